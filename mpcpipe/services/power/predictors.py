"""The predictors of the papers, by scikit-learn (extra `power`): boosted trees, and a Gaussian process.

They learn latency and energy from clocks and batch alone, without physics. Kept to compare with, and for the policies
that are defined with them.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpcpipe.errors import PowerError
from mpcpipe.services.power.grid import Grid

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Learned:
    """Two regressors of (memory clock, SM clock, batch): ms a batch, and mJ a request, each or its logarithm."""

    latency: Any
    energy: Any
    logarithms: bool

    def predict(self, memory_clock_mhz: int, sm_clocks_mhz: Array, batches: Array) -> tuple[Array, Array]:
        """Latency in ms and power in watts: (clocks, batches) each."""
        keys = list(itertools.product([memory_clock_mhz], np.asarray(sm_clocks_mhz), np.asarray(batches)))
        inputs, shape = _inputs(np.array(keys, float), self.logarithms), (len(sm_clocks_mhz), len(batches))
        ms, energy = (model.predict(inputs).reshape(shape) for model in (self.latency, self.energy))
        if self.logarithms:
            ms, energy = np.exp(ms), np.exp(energy)
        return ms, energy * np.asarray(batches, float)[None, :] / ms

    def alone(self, memory_clock_mhz: int, sm_clock_mhz: float, batch: float) -> tuple[float, float]:
        """(ms a batch, watts) of one worker with the whole GPU."""
        ms, watts = self.predict(memory_clock_mhz, np.array([sm_clock_mhz]), np.array([batch]))
        return float(ms[0, 0]), float(watts[0, 0])


def boosted_trees(grid: Grid, seed: int = 0) -> Learned:
    """Gradient boosting as in GREENDLS: 200 trees of depth 5, rate 0.15, on the plain values."""
    ensemble = _sklearn("ensemble")
    inputs, latency, energy = _table(grid, False)

    def learn(values: Array) -> Any:
        trees = ensemble.GradientBoostingRegressor(learning_rate=0.15, max_depth=5, n_estimators=200, random_state=seed)
        return trees.fit(inputs, values)

    return Learned(learn(latency), learn(energy), False)


def gaussian_process(grid: Grid, seed: int = 0) -> Learned:
    """Matern 5/2 with noise, on logarithms; its length scales are fitted."""
    process, kernels = _sklearn("gaussian_process"), _sklearn("gaussian_process.kernels")
    inputs, latency, energy = _table(grid, True)

    def learn(values: Array) -> Any:
        kernel = kernels.Matern(np.ones(inputs.shape[1]), (0.05, 1e3), nu=2.5) + kernels.WhiteKernel(1e-3, (1e-6, 1.0))
        # Length scales are fitted on some of the points, since that takes their number's third power many times over.
        chosen = np.random.default_rng(seed).permutation(len(inputs))[:200]
        options = {"normalize_y": True, "random_state": seed}
        with warnings.catch_warnings():
            # A length scale at its bound: that clock does not matter; noise at its bound: there is none. Both are fine.
            warnings.simplefilter("ignore", _sklearn("exceptions").ConvergenceWarning)
            fitted = process.GaussianProcessRegressor(kernel, **options).fit(inputs[chosen], values[chosen])
        return process.GaussianProcessRegressor(fitted.kernel_, optimizer=None, **options).fit(inputs, values)

    return Learned(learn(np.log(latency)), learn(np.log(energy)), True)


def _inputs(keys: Array, logarithms: bool) -> Array:
    if not logarithms:
        return keys
    return np.log2(keys)


def _table(grid: Grid, logarithms: bool) -> tuple[Array, Array, Array]:
    keys = itertools.product(grid.memory_clocks_mhz, grid.sm_clocks_mhz, grid.batches)
    return _inputs(np.array(list(keys), float), logarithms), grid.latency_ms.ravel(), grid.energy_mj.ravel()


def _sklearn(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"sklearn.{module}")
    except ImportError as error:
        raise PowerError(
            "the papers' predictors need scikit-learn: pip install 'mpcpipe[power]'; the fitted physics needs nothing"
        ) from error
