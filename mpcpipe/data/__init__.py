"""Whose rows they are, and which rows make a batch."""
