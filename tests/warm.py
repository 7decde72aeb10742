"""What a process imports that others are forked from: every dealer of a test would load it again, for seconds."""

from mpcpipe.ring.shadow import warm

warm()
