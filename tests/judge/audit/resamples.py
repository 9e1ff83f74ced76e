import numpy as np

from gavel.judge.audit.bootstrap import estimate


def resampled_groups(total: int) -> list[list[int]]:
    """The group indices of every resample that `estimate` draws for `total` groups."""
    rows: list[list[int]] = []

    def record(drawn: np.ndarray) -> np.ndarray:
        rows.extend(drawn.tolist())
        return np.zeros(len(drawn))

    estimate(record, total, total)
    observed, *resamples = rows
    assert observed == list(range(total))
    return resamples
