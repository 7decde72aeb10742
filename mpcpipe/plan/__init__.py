"""Who does what when: costs, cuts, schedules, and the simulator that chooses among them. Values in, values out."""
