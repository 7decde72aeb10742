"""The command `mpcpipe`: a file a verb."""
