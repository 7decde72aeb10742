"""Replicated sharing among four parties: any one may deviate, and is found out (FantasticFour)."""

from mpcpipe.protocol.replicated4.protocol import Replicated4

__all__ = ["Replicated4"]
