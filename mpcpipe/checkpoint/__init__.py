"""Checkpoints of one party as files: what is in one, how it is encoded, encrypted, and put on disk."""
