"""Workers of one party as processes: orders, hand-over and channels between them."""
