"""mpcpipe trains PyTorch models on data that nobody may see."""

__version__ = "0.1.0"
