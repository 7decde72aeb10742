"""Layers, losses and optimizers on shares, written once for all protocols."""
