"""The data sets, split into training and test."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import sklearn.datasets


class Split(NamedTuple):
    """Inputs and targets for training, then for the test; labels where the task is to classify."""

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def _split(x: np.ndarray, y: np.ndarray, seed: int = 0) -> Split:
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = x[order].astype(np.float32), y[order]
    cut = int(0.8 * len(x))
    return Split(x[:cut], y[:cut], x[cut:], y[cut:])


def moons() -> Split:
    """Two interleaved half circles with noise."""
    return _split(
        *sklearn.datasets.make_moons(1000, noise=0.1, random_state=0)
    )


def digits() -> Split:
    """Handwritten digits, 8 × 8, grey values between 0 and 1."""
    bunch = sklearn.datasets.load_digits()
    return _split(bunch.images.reshape(-1, 64) / 16, bunch.target)


def oscillations(signal: object) -> Split:
    """Signals of random codes between −1 and 1; target and input are the same."""
    codes = (
        np.random.default_rng(0).uniform(-1, 1, (640, 2)).astype(np.float32)
    )
    signals = np.asarray(signal(codes))  # type: ignore[operator]
    return _split(signals, signals)
