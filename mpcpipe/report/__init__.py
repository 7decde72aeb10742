"""What happened in a run: read from its folder, as a page, a trace, or lines for a terminal."""
