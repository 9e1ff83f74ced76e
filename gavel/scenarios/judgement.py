"""The result of judging: a judgement for each member, with its votes, and one for the group.

A score is a number only when a judge gave it. Every failure is a status with a reason, so that no failure can be read
as a low score.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

GroupStatus = Literal["scored", "partial", "unscored", "degenerate"]


class Vote(BaseModel):
    """One score that one judge call gave to one member."""

    model_config = ConfigDict(defer_build=True)

    score: float
    """Score in [0, 1]."""
    position: int
    """Position of the member in that call's prompt, from 0."""
    order: int
    """Index of the call, each with its own order of presentation, from 0."""
    model: str
    served_by: str = ""
    """The model's name according to the server; empty when it names none."""
    explanation: str = ""
    criteria: dict[str, float] = Field(default_factory=dict)
    """Scores by criterion of the rubric; `score` is their weighted mean. Empty without criteria."""
    spread: float | None = None
    """Standard deviation of the distribution whose mean `score` is; None = the judge said the score in words."""
    states: list[float] = Field(default_factory=list[float])
    """The score that the judge would have expected after each turn of the main conversation, in [0, 1]; empty where
    none were asked for, or none that can be used came."""
    reply_key: str = ""
    """Key of the reply on the cassette (its `replies.key`); empty without a cassette."""


class Judgement(BaseModel):
    """The score of one member, and the votes behind it."""

    model_config = ConfigDict(defer_build=True)

    score: float | None = None
    """Aggregate of the votes, in [0, 1] (see the group's `mode`); None = not scored."""
    standard_error: float | None = None
    """Standard error of `score` around the expected score over all orders, pooled over the group (and over earlier
    groups, with a noise prior); None if no member has two votes. Scores read from probabilities include the votes'
    `spread`, and always have one."""
    degrees_of_freedom: float | None = None
    """Degrees of freedom of `standard_error`: `gavel.judge.stats.score_interval` makes an interval of both."""
    explanation: str = ""
    criteria: dict[str, float] = Field(default_factory=dict)
    """Mean of the votes by criterion, as given; unlike `score` they are not equated."""
    states: list[float] = Field(default_factory=list[float])
    """The score to be expected after each turn of the main conversation: `score`, and the mean over the votes of how
    much more or less than its own score each expected there. Empty without states."""
    states_standard_errors: list[float] = Field(default_factory=list[float])
    """Standard error of each state over the votes; empty with fewer than two votes."""
    largest_fall: int | None = None
    """Of a member below its group's mean: index of the turn after which the judge expected the most less than before.
    Before the first turn that is the mean. None without states."""
    votes: list[Vote] = Field(default_factory=list[Vote])
    flags: list[str] = Field(default_factory=list)
    """Found in the trajectory by rules: "empty", "contentless", "addresses the judge", "a tool's output addresses the
    judge" or "unseen content". The judge is shown them, and they may cap the score."""
    reason: str | None = None
    """Why there is no score."""


class GroupJudgement(BaseModel):
    """How a group was judged, and the cost."""

    model_config = ConfigDict(defer_build=True)

    status: GroupStatus
    mode: str = "groupwise"
    """How members were compared: "groupwise", "pairwise" (two per call), "anchored" (on the scale of anchors),
    "decisions" or "readout" (scores read from probabilities)."""
    reason: str | None = None
    """Reason why not every member is scored."""
    calls: int = 0
    """Number of calls to judge models; tokens and cost are theirs."""
    cached_calls: int = 0
    """Number of calls answered from a cassette."""
    lost_orders: int = 0
    """Number of calls without a usable reply."""
    order_agreement: float | None = None
    """Rank agreement between orders: mean Kendall tau between two orders, -1 to 1, over members without ties. At 0 or
    below the scores reflect noise or the position in the prompt. None = unknown (one order, ties)."""
    p_right: float | None = None
    """Probability that of two members the one with the higher score is the better one, as far as labels go: the mean
    over all pairs, each weighted by its difference of scores. None = the judge has learnt from no labels."""
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    """Prompt tokens that were in the servers' prompt caches; they cost less."""
    completion_tokens: int = 0
    cost_usd: float | None = None
    """US dollars; None = unknown (never 0 for want of a price)."""
    seconds: float = 0.0
    models: list[str] = Field(default_factory=list)
    prompt_ids: list[str] = Field(default_factory=list)
    """Content hashes of the prompt templates that were used."""
    seed: int | None = None
    settings: dict[str, JsonValue] | None = None
    """The judge's settings that may change a score (`Judge.settings`), and the task's: `truth`, and `task_rubric`, the
    id of the rubric that was used."""
    repairs: dict[str, int] = Field(default_factory=dict)
    """Repairs needed to read the replies, by kind: "fence", "quotes", "wrapper", "number" ..."""
    warnings: list[str] = Field(default_factory=list)
