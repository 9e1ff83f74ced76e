"""Which weights a deployment serves, by what it says of its own tokens. Pure.

Log-probs: let s be those of the host, a of the adapter that was deployed and c of another candidate, each `[T]`. The
share  w = Σ (s − c)(a − c) / Σ (a − c)²  is 1 for the adapter and 0 for c; a host's rounding moves it by no more than a
few standard errors, so a base without the adapter, or another step, is told apart as far as the tokens allow.
Greedy text: it begins as that of the weights that are served, and goes on so until rounding parts the two.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_HALF, _ERRORS = 0.5, 3.0
_SHARE_OFF = 0.2
"""By which the share may be off 1 beyond its error: an earlier step of the same run lies on the way to this one."""
_TOLERANCE = 0.25
"""Nats by which a host's log-probs are off on average at most, by another precision or a quantized base."""
_ALIKE, _CLEAR = 0.5, 0.15
"""Share of the host's text that is the same from its beginning, on average, and by how much one must lead."""
_MARKS = re.compile(r"</?[a-z_|]{1,24}>")
"""<think>, <tool_call>: some hosts take them out of the text."""
_SAME = 1e-4
"""Nats; candidates that are closer (root mean square) are the same for any host."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Served: what the tokens tell."""

    served: bool | None
    """True: the adapter that was deployed; False: something else; None: it cannot be told."""
    said: str
    """In a sentence."""


def by_logprobs(host: Sequence[float], ours: str, candidates: Mapping[str, Sequence[float]]) -> Finding:
    """`host` and each of `candidates` `[T]`; `ours` is the name of the one that was deployed."""
    adapter = candidates[ours]
    off = {name: _rms(host, values) for name, values in candidates.items()}
    noise = min(off.values())
    nearest = min(off, key=lambda name: (off[name], name != ours))
    mean_off = math.fsum(abs(s - a) for s, a in zip(host, adapter, strict=True)) / len(host)
    untold: list[str] = []
    for name, values in candidates.items():
        apart = [a - c for a, c in zip(adapter, values, strict=True)]
        square = math.fsum(gap * gap for gap in apart)
        if name == ours:
            continue
        if square <= len(host) * _SAME**2:
            untold.append(name)
            continue
        share = math.fsum((s - c) * gap for s, c, gap in zip(host, values, apart, strict=True)) / square
        error = _ERRORS * noise / math.sqrt(square)
        if nearest != ours and share + error < _HALF:
            return Finding(
                False, f"it serves {nearest}, not {ours} ({off[nearest]:.2g} nats from that, {off[ours]:.2g})"
            )
        if abs(share - 1) > _SHARE_OFF + error:
            return Finding(False, f"its log-probs are {mean_off:.2g} nats off: it serves neither {ours} nor {nearest}")
        if share - error <= _HALF:
            untold.append(name)
    if mean_off > _TOLERANCE:
        return Finding(False, f"its log-probs are {mean_off:.2g} nats off: it does not serve {ours}")
    if untold:
        return Finding(None, f"within {mean_off:.2g} nats, {ours} cannot be told from {', '.join(untold)}")
    return Finding(True, f"it serves {ours}: {len(host)} log-probs are within {mean_off:.2g} nats on average")


def by_greedy_text(host: Sequence[str], ours: str, candidates: Mapping[str, Sequence[str]]) -> Finding:
    """`host` and each of `candidates`: the greedy replies to the same prompts, those of the host not empty."""
    alike = {name: math.fsum(map(_alike, host, texts)) / len(host) for name, texts in candidates.items()}
    nearest = max(alike, key=lambda name: (alike[name], name == ours))
    share = f"{alike[ours]:.0%} of its greedy text"
    if alike[nearest] < _ALIKE:
        return Finding(False, f"only {share} is that of {ours}: it serves something else")
    if alike[nearest] > alike[ours] + _CLEAR:
        return Finding(False, f"it serves {nearest}, not {ours}, by its greedy text")
    untold = [name for name, value in alike.items() if name != ours and value > alike[ours] - _CLEAR]
    if untold:
        return Finding(None, f"by its greedy text, {ours} cannot be told from {', '.join(untold)}")
    return Finding(True, f"it serves {ours}: {share} is the same here")


def _alike(host: str, here: str) -> float:
    host, here = (_MARKS.sub("", text).strip() for text in (host, here))
    same = next((at for at, (a, b) in enumerate(zip(host, here, strict=False)) if a != b), min(len(host), len(here)))
    return same / max(1, len(host))


def _rms(one: Sequence[float], other: Sequence[float]) -> float:
    return math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(one, other, strict=True)) / len(one))
