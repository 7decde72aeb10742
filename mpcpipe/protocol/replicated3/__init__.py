"""Replicated sharing among three parties: semi-honest, one corruption (CryptGPU, Piranha's P-Falcon, ABY3)."""

from mpcpipe.protocol.replicated3.protocol import Replicated3

__all__ = ["Replicated3"]
