"""What physics leaves over, as a Gaussian process over memory clock, SM clock and batch.

The points are a full grid, so the covariance is a Kronecker product of three small ones, and everything is exact by
three small eigenvalue problems. Length scales and noise are those under which the residuals are most likely.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_CLOCK_SCALES = (0.05, 0.1, 0.2, 0.4, 1.0)
_BATCH_SCALES = (0.7, 1.5, 3.0, 6.0)
_MEMORY_LIKENESS = (0.2, 0.6, 0.9)
_NOISES = (0.01, 0.05, 0.2, 0.6, 2.0)


@dataclass(frozen=True, eq=False)
class Residual:
    """coefficients: (memory clocks, SM clocks, batches), by which covariances are weighted."""

    sm_clocks_mhz: tuple[int, ...]
    batches: tuple[int, ...]
    clock_scale: float
    batch_scale: float
    likeness: float
    noise: float
    coefficients: Array

    @classmethod
    def learn(cls, values: Array, sm_clocks_mhz: Sequence[int], batches: Sequence[int]) -> Residual:
        """values: (memory clocks, SM clocks, batches), logarithms of measured over predicted."""
        clocks, sizes = np.log(np.array(sm_clocks_mhz, float)), np.log2(np.array(batches, float))
        count = values.shape[0]
        memories = [np.linalg.eigh(_alike(count, likeness)) for likeness in _MEMORY_LIKENESS]
        by_clock = [np.linalg.eigh(_matern(clocks, clocks, scale)) for scale in _CLOCK_SCALES]
        by_batch = [np.linalg.eigh(_matern(sizes, sizes, scale)) for scale in _BATCH_SCALES]
        best = None
        for (i, m), (j, c), (k, s) in itertools.product(enumerate(memories), enumerate(by_clock), enumerate(by_batch)):
            turned = np.einsum("abc,ai,bj,ck->ijk", values, m[1], c[1], s[1], optimize=True)
            spread = m[0][:, None, None] * c[0][None, :, None] * s[0][None, None, :]
            for noise in _NOISES:
                scale = spread + noise
                size = float(np.mean(turned**2 / scale)) or 1e-12  # the most likely variance, given the rest
                misfit = float(np.sum(np.log(scale))) + values.size * np.log(size)
                if best is None or misfit < best[0]:
                    weighted = turned / scale
                    best = misfit, i, j, k, noise, np.einsum("ijk,ai,bj,ck->abc", weighted, m[1], c[1], s[1])
        assert best is not None
        _, i, j, k, noise, coefficients = best
        return cls(
            tuple(sm_clocks_mhz),
            tuple(batches),
            _CLOCK_SCALES[j],
            _BATCH_SCALES[k],
            _MEMORY_LIKENESS[i],
            noise,
            coefficients,
        )

    def at(self, memory: int, sm_clocks_mhz: Array, batches: Array) -> Array:
        """Expected residuals: (clocks, batches). memory: index of the memory clock.

        Below the lowest clock and above the highest it stays what it is there, so that power goes on rising with the
        clock as physics has it; beyond the batches it fades.
        """
        sm_clocks_mhz = np.clip(sm_clocks_mhz, self.sm_clocks_mhz[0], self.sm_clocks_mhz[-1])
        like = _alike(self.coefficients.shape[0], self.likeness)[memory]
        clocks = _matern(np.log(sm_clocks_mhz), np.log(np.array(self.sm_clocks_mhz, float)), self.clock_scale)
        sizes = _matern(np.log2(batches), np.log2(np.array(self.batches, float)), self.batch_scale)
        found: Array = clocks @ np.tensordot(like, self.coefficients, 1) @ sizes.T
        return found


def _alike(count: int, likeness: float) -> Array:
    return likeness * np.ones((count, count)) + (1.0 - likeness) * np.eye(count)


def _matern(a: Array, b: Array, scale: float) -> Array:
    """Matern 5/2."""
    d = np.sqrt(5.0) * np.abs(a[:, None] - b[None, :]) / scale
    found: Array = (1.0 + d + d**2 / 3.0) * np.exp(-d)
    return found
