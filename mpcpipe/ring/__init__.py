"""Integers modulo 2^k: products, convolutions, bit planes; native, in plain torch, or without values."""
