"""Programs of one's own, with all parties as threads of this process."""
