"""Does this machine compute rightly? A small secure computation, and every kernel beside plain torch."""
