"""The judge's settings as plain data: for code, configuration files and the command line.

    JudgeConfig(models="openai/gpt-5-mini", orders=4, max_cost_usd=1.0).build()
    Judge("openai/gpt-5-mini", orders=4, config=JudgeConfig(quorum=0.5))

Each field is documented once, below it; the command line's help and `gavel config` print that text.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, field_validator
from pydantic.json_schema import SkipJsonSchema

from gavel.base.fields import Constructed, misfit
from gavel.base.text import decoded
from gavel.judge.errors import JudgeError
from gavel.judge.panel.juror import Juror
from gavel.judge.panel.standard_errors import NoisePrior
from gavel.judge.prompt.flags import AlonePolicy, ImagePolicy, UnseenPolicy
from gavel.judge.prompt.sanitize import Redact
from gavel.llm.budget import PriceTable
from gavel.llm.rate_limits import Limits

if TYPE_CHECKING:
    from gavel.judge.judge import Judge
    from gavel.llm.budget import Budget
    from gavel.llm.cassette import Cassette

_LIMITS = Limits()


class JudgeConfig(Constructed):
    """Which models judge, how often each group is judged, and what it may cost."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    models: str | list[str | Juror] | None = None
    """Judge model: any LiteLLM id, stand-in (rules, no key) or constant; several, in a list or separated by commas,
    make a jury. Default: GAVEL_JUDGE_MODEL."""
    rubric: str | None = None
    """What good work is: a text, or @FILE. Default: the scenario's rubric, else a general one."""
    mode: Literal["groupwise", "pairwise", "decisions", "readout"] = "groupwise"
    """Whether one call shows a whole group, or two of its members; decisions asks decision models, which answer with
    probabilities, and readout reads the probabilities of a digit's tokens (vLLM and others with logprobs)."""
    orders: int = Field(default=2, ge=1)
    """Orders in which the judge sees a group (in pairwise mode: each pair). Above 10 members it sees blocks of at most
    8, and each member at least twice; pairwise compares a member with 8 others, or with all where they are fewer."""
    states: bool = False
    """Whether a reply also says, for each turn of each member, which score was to be expected then: a few tokens a
    turn. Where attempts fail shows in `gavel check` and `gavel view`, and `TrainConfig(advantage="critic")` learns from
    it."""
    quorum: float = Field(default=0.0, ge=0, le=1)
    """Share of the jury's weight that must have voted for a member; below it the member is unscored."""
    caps: dict[str, float] | None = None
    """Highest score of a member with a flag, by flag ("empty", "contentless", "addresses the judge", "a tool's output
    addresses the judge", "unseen content"). Default: flags are recorded only."""
    unseen: UnseenPolicy = "unscored"
    """What becomes of a member with content that the judge is not shown (audio, a file, an unknown block, an image for
    a judge that sees none): it is unscored, or scored with the flag "unseen content"."""
    images: ImagePolicy = "auto"
    """Whether images are sent: auto (when LiteLLM knows that every judge model sees them), send, or flag (never)."""
    alone: AlonePolicy = "unscored"
    """Whether a group of one distinct attempt is unscored, or scored by itself."""
    redact: Literal["secrets"] | SkipJsonSchema[Redact] | None = None
    """Redact all text of trajectories and tools before it leaves: "secrets" are keys, e-mail addresses and card
    numbers; in code, a function of the text redacts more. Images are not redacted. Default: nothing is."""
    content_retries: int = Field(default=2, ge=0)
    """Repeated requests after a reply that cannot be read."""
    cache: Literal["auto", "lead", "off"] = "auto"
    """Whether a group's first call goes ahead, so that the others find the prompt's beginning in the server's cache:
    auto (where that saves money), lead (always) or off."""
    concurrency: int = Field(default=_LIMITS.concurrency, ge=1)
    """Concurrent calls to one judge model."""
    timeout: float = Field(default=_LIMITS.timeout, gt=0)
    """Seconds for one attempt of a call."""
    deadline: float = Field(default=_LIMITS.deadline, gt=0)
    """Seconds for a call with all its attempts."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    """Requests per minute to one judge model. Default: no limit."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Tokens per minute, of prompts and replies, to one judge model. Default: no limit."""
    max_cost_usd: float | None = Field(default=None, gt=0)
    """Budget for judging, in US dollars. Default: no limit."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Budget for judging, in tokens of prompts and replies. Default: no limit."""
    cassette: Path | None = None
    """SQLite file that keeps the judge's replies, so that none is paid for twice; "none" = no file. Default of the
    commands: cassettes.sqlite in the directory of the run or of the output; of Judge and this class: no file."""
    params: dict[str, Any] = Field(default={})
    """LiteLLM parameters for every judge model, such as temperature, api_base or reasoning_effort."""
    prices: PriceTable | None = None
    """US dollars per million prompt, completion and (optionally) cached prompt tokens, by model. Default: GAVEL_PRICES,
    else LiteLLM's table."""
    seed: int = 0
    """Seed of the orders."""
    noise_prior: NoisePrior | None = None
    """Noise of the judge's votes in other groups, which standard errors are shrunk to: `gavel judge golden` prints it.
    Default: each group's own votes; a training run takes it from its first step."""

    @field_validator("models", mode="before")
    @classmethod
    def _listed(cls, models: object) -> object:
        if isinstance(models, str) and "," in models:
            return [name.strip() for name in models.split(",")]
        return models

    def build(
        self, rubric: str | None = None, cassette: "Cassette | None" = None, budget: "Budget | None" = None
    ) -> "Judge":
        """The judge; `rubric` and `cassette` are those to use when no rubric is set, and instead of `self.cassette`;
        `budget` is one that judges share, instead of one of its own.

        Raises `JudgeError` for settings that contradict each other, and for a rubric file that cannot be read.
        """
        from gavel.judge.judge import Judge

        return Judge(rubric=None if self.rubric else rubric, cassette=cassette, budget=budget, config=self)

    def with_given(self, **settings: object) -> Self:
        """These settings with those that are not None in their place. Raises `JudgeError` for an invalid one."""
        given = {name: value for name, value in settings.items() if value is not None}
        if not given:
            return self
        try:
            return type(self).model_validate({**dict(self), **given})
        except ValidationError as error:
            told = misfit(type(self), error)
            raise JudgeError(told.message, told.remedy) from error


def read_text_option(value: str | None, what: str) -> str | None:
    """The value itself, or with `@FILE` the file's text. Raises `JudgeError` when it cannot be read."""
    if value is not None and re.fullmatch(r"[^@\s]\S*\.(md|txt|j2|rst)", value.strip()):
        raise JudgeError(f"the {what} is {value!r}, which names a file.", f"Write @{value.strip()} for what it holds.")
    if value is None or not value.startswith("@"):
        return value
    try:
        return decoded(Path(value[1:]).read_bytes()).replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise JudgeError(
            f"the {what} {value[1:]} cannot be read: {error}", "Give the path of a UTF-8 text file after @."
        ) from error
