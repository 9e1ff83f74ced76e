"""Random numbers that belong to a request, not to the batch that it is sampled in."""

import numpy as np


def uniform(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1) that depend on seed and position alone: SplitMix64 (Steele et al., 2014). `[n]`"""
    with np.errstate(over="ignore"):
        state = _mix(seeds.astype(np.uint64)) + (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        return (_mix(state) >> np.uint64(11)) * 2.0**-53


def _mix(state: np.ndarray) -> np.ndarray:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
