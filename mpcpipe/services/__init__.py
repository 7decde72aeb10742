"""Services run beside the workers of a party. They see its public events, and never a share."""
