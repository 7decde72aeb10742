"""Additive sharing between two parties, with correlated randomness from a dealer: semi-honest, one corruption."""

from mpcpipe.protocol.additive2.protocol import Additive2

__all__ = ["Additive2"]
