"""What a dealer dealt beforehand, on disk: one folder a party, each used once."""
