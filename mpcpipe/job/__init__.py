"""The job file: its keys, reading and checking it, and what the parties must agree on."""
