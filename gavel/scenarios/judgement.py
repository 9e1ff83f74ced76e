"""A judge's result for one member, and for its group.

A score is a number only when a judge gave it. Every failure is a status with a reason, so that no
failure can be read as a low score.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

GroupStatus = Literal["scored", "partial", "unscored", "degenerate"]


class Vote(BaseModel):
    """One score that one judge call gave to one member."""

    model_config = ConfigDict(defer_build=True)

    score: float
    """In [0, 1]."""
    slot: int
    """Position at which the member was shown in that call, from 0."""
    order: int
    """Index of the order of presentation (the call), from 0."""
    model: str
    explanation: str = ""
    criteria: dict[str, float] = Field(default_factory=dict)
    """Scores by the rubric's criteria, of which `score` is the weighted mean; empty when it has none."""


class Judgement(BaseModel):
    """What the judge said of one member."""

    model_config = ConfigDict(defer_build=True)

    score: float | None = None
    """What the votes come to, in [0, 1] (see the group's `mode`); None = not scored."""
    standard_error: float | None = None
    """Standard error of `score`; None with fewer than two votes."""
    explanation: str = ""
    criteria: dict[str, float] = Field(default_factory=dict)
    """Mean of the votes by the rubric's criteria, as they were given: not brought to one scale, as `score` is."""
    votes: list[Vote] = Field(default_factory=list[Vote])
    flags: list[str] = Field(default_factory=list)
    """What a program found in the trajectory's text: "empty", "contentless", "addresses the judge" or "a tool's output
    addresses the judge". The judge is shown them, and they may cap the score."""
    reason: str | None = None
    """Why there is no score."""


class GroupJudgement(BaseModel):
    """How a group was judged, and what that cost."""

    model_config = ConfigDict(defer_build=True)

    status: GroupStatus
    mode: str = "groupwise"
    """How members were compared: "groupwise", "pairwise" (two in a call), or "anchored" (to fixed scores)."""
    reason: str | None = None
    """Why not every member is scored."""
    calls: int = 0
    """Asked for now; tokens and cost are theirs."""
    cached_calls: int = 0
    """Answered by a cassette."""
    lost_orders: int = 0
    """Orders of presentation that came to no vote."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    """US dollars; None = unknown (never 0 for want of a price)."""
    seconds: float = 0.0
    models: list[str] = Field(default_factory=list)
    prompt_ids: list[str] = Field(default_factory=list)
    """Content hashes of the prompt templates that were used."""
    seed: int | None = None
    repairs: dict[str, int] = Field(default_factory=dict)
    """What had to be repaired in the replies that were used, by kind: "fence", "quotes", "wrapper", "number" ..."""
    warnings: list[str] = Field(default_factory=list)
