"""The settings of `gavel evolve`, as plain data."""

from typing import Self

from pydantic import Field, model_validator

from gavel.trainer.config import LoopConfig, RewardName, Settings, TurnLimits

_SUCCESS = 0.5


class EvolveConfig(Settings):
    """Exploration and imitation in turns (AgentEvol, arXiv 2406.04151); one iteration is rejection sampling."""

    iterations: int = Field(default=4, ge=1)
    """Rounds of exploration, choice and supervised learning from the base; an earlier run continues."""
    tasks: int = Field(default=128, ge=1)
    """Train tasks that an iteration explores, other ones in each."""
    attempts: int = Field(default=8, ge=1)
    """Rollouts of each of them."""
    reward: dict[RewardName, float] | None = None
    """Weights of the rewards that choose what is imitated: success (1 or 0), judge (the judge's scores, which rank the
    attempts at a task), hand, or a sum of them. Default: success, or judge where the scenario has no success."""
    best: int | None = Field(default=None, ge=1)
    """Attempts at a task that are kept, those with the highest rewards. Default: 1 where the judge ranks them, else
    all that are above the threshold."""
    above: float | None = None
    """Only attempts whose reward is greater than this. Default: 0.5, or none where the judge ranks them."""
    accumulate: bool = False
    """Imitates what all iterations so far have kept; otherwise, as in AgentEvol, what the newest has."""
    turn_limits: TurnLimits = Field(default_factory=dict)
    """Turns of an exploring rollout, from an iteration on: {1: 10, 2: 20, 4: 30}. Default: the scenario's own."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of the rollouts."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of one turn of the agent. Default: 1024."""
    concurrency: int = Field(default=128, ge=1)
    """Rollouts at once."""
    seed: int = 0
    """Chooses the tasks, seeds every sampled turn, and shuffles what is imitated."""
    evaluation_tasks: int = Field(default=256, ge=1)
    """Held-out tasks of each evaluation: before the first iteration, and after every one."""
    stall_seconds: float | None = Field(default=None, gt=0)
    """Without a rollout or a judgement that starts or ends for so long, the run stops with an error. Default: 1800, or
    the longest that a turn of max_tokens may take (600 and a quarter for each token)."""

    @model_validator(mode="after")
    def _something_to_compare(self) -> Self:
        if self.attempts == 1 and self.reward and self.reward.get("judge"):
            raise ValueError("the judge compares the attempts at a task: set attempts to 2 or more")
        return self

    @property
    def threshold(self) -> float | None:
        """`above`, or what it is by default."""
        return self.above if self.above is not None or self.ranked else _SUCCESS

    @property
    def kept(self) -> int:
        """The most attempts at a task that are kept."""
        return self.best or (1 if self.ranked else self.attempts)

    @property
    def ranked(self) -> bool:
        """Whether the judge ranks the attempts."""
        return bool((self.reward or {}).get("judge"))

    def with_reward_for(self, has_success: bool) -> "EvolveConfig":
        """The same with the reward that a scenario has by default."""
        chosen: RewardName = "success" if has_success else "judge"
        return self if self.reward is not None else self.model_copy(update={"reward": {chosen: 1.0}})

    def sampling(self) -> LoopConfig:
        """How rollouts and evaluations sample."""
        return LoopConfig(
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            concurrency=self.concurrency,
            seed=self.seed,
            stall_seconds=self.stall_seconds,
            turn_limits=self.turn_limits,
        )
