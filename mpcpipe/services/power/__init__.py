"""Power: which clocks, batch and partition a GPU should have, and what a choice costs."""
