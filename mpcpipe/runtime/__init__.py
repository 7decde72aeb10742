"""The training of one party: its workers, stages, checkpoints, and what it measures and makes known."""
