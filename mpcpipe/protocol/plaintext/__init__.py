"""The same interface over ordinary numbers. It protects nothing."""

from mpcpipe.protocol.plaintext.protocol import Plaintext

__all__ = ["Plaintext"]
