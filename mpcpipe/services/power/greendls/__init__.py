"""GREENDLS's agent: a dueling Q-network that chooses memory clock, SM clock and batch; how it is trained and kept."""
