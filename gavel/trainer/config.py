"""What can be set about training. One object per concern; nothing here that nobody reads.

Published algorithms by name, as settings of `TrainConfig`.

    gavel.recipe("dapo")                                 TrainConfig(advantage="std", loss=ClippedSurrogate(...), ...)
    gavel.recipe("cispo", learning_rate=5e-6)            the same with a setting of one's own
    gavel train SCENARIO --recipe dapo                   its settings, under those that other options name

docs/algorithms.md has the papers and the formulas.
"""

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator

from gavel.base.errors import GavelError
from gavel.base.fields import Constructed


class Settings(Constructed):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class VllmSettings(Settings):
    """vLLM as the engine of rollouts: a process that is started and ended here, or a server that runs already."""

    urls: tuple[Annotated[str, Field(pattern=r"^https?://")], ...] = ()
    """Addresses of running vLLM servers, over which rollouts are spread; they must see the run directory. None starts
    `replicas` here."""
    replicas: int = Field(default=1, ge=1)
    """vLLM servers to start on this machine, each on a GPU of its own, over which rollouts are spread."""
    api_key: SecretStr | None = None
    """The key of running servers, if they want one."""
    python: str = Field(default_factory=lambda: os.environ.get("GAVEL_VLLM_PYTHON") or sys.executable)
    """Interpreter of the environment that holds vLLM, to start it with. Default: GAVEL_VLLM_PYTHON, else this one."""
    gpu_memory_utilization: float = Field(default=0.45, gt=0, le=1)
    """Share of the GPU's memory that a started server takes; the learner needs the rest, unless it sleeps."""
    sleep: bool = False
    """Whether the server hands its GPU memory to the learner during every training step."""
    start_seconds: float = Field(default=900.0, gt=0)
    """Until when a started server must be ready."""
    arguments: tuple[str, ...] = ()
    """Further arguments for a started server, as of `vllm serve`."""

    @field_validator("urls", mode="before")
    @classmethod
    def _split_addresses(cls, value: Any) -> Any:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list | tuple):
            return texts
        return tuple(part.strip() for text in cast("Sequence[Any]", texts) for part in str(text).split(","))

    @field_validator("urls")
    @classmethod
    def _check_addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        if len(urls) != len({url.rstrip("/").removesuffix("/v1") for url in urls}):
            raise ValueError("it names a server twice")
        return urls

    @field_validator("replicas")
    @classmethod
    def _check_replicas(cls, replicas: int, info: ValidationInfo) -> int:
        if replicas > 1 and info.data.get("urls"):
            raise ValueError("replicas are started here, and there are addresses of servers that run already")
        return replicas


AdvantageKind = Literal["mean", "std", "rloo", "rank", "shrunk", "critic"]
OnTokenMismatch = Literal["refuse", "branch"]
Aggregation = Literal["grpo", "dapo", "dr_grpo", "bnpo"]
KlEstimator = Literal["k1", "k2", "k3"]
RewardName = Literal["judge", "hand", "success", "constant"]
ExportForm = Literal["merged", "adapter"]
ExportDtype = Literal["auto", "float32", "bfloat16", "float16"]
TurnLimits = dict[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=1)]]
"""Turns of a rollout by the first step that they are for."""


class LoraSettings(Settings):
    """The adapter, on the linear layers of the text decoder (Hu et al., 2021, arXiv 2106.09685)."""

    rank: int = Field(default=16, ge=1)
    """Rank of the LoRA adapter."""
    alpha: int = Field(default=32, ge=1)
    """Update scale; the update is multiplied by alpha / rank."""
    rslora: bool = False
    """Multiplies the update by alpha / sqrt(rank) instead (rsLoRA, arXiv 2312.03732)."""
    targets: list[str] = Field(default_factory=list)
    """Adapted layers by the ends of their names, such as q_proj or self_attn.o_proj. Default: all linear layers."""
    experts: bool = False
    """Adapts the experts of a mixture, too, each with factors of its own, at the same rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of a layer's inputs that its adapter does not see in an update's pass; sampling and scoring are whole."""
    seed: int = 0
    """For the random half of the adapter."""


class PolicySettings(Settings):
    """How the base model is held, by the learner and by the sampler alike. The adapter is float32 whatever it is."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the frozen weights and what is computed with them; auto: bfloat16 on a GPU, float32 elsewhere."""
    quantization: Literal["4bit"] | None = None
    """4bit: the linear layers' weights in NF4 by bitsandbytes (QLoRA, arXiv 2305.14314)."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the chat template, such as enable_thinking=false."""
    loader: Literal["peft", "unsloth"] = "peft"
    """unsloth: with Unsloth's kernels, on a GPU and beside vLLM only. They know no shared prefixes: every sequence is
    computed by itself."""
    use_liger_kernel: bool | None = None
    """RMS norms, RoPE and SwiGLU of the learner by Liger's Triton kernels. Default: on a GPU where liger-kernel is
    installed, in the modules where a trial finds them equal."""


EngineChoice = Literal["transformers", "vllm"] | VllmSettings
"""Who samples the rollouts: the embedded engine, a vLLM that is started with default settings, or one as described."""


class _Averaged(Settings):
    """A loss of single tokens: it can be averaged in several ways."""

    aggregation: Aggregation = "dapo"
    """grpo: tokens of a sequence, then sequences; dapo: all tokens; bnpo: tokens of a group, then groups;
    dr_grpo: the sum over `constant_length` times the sequences."""
    constant_length: int = Field(default=1024, ge=1)
    """Of dr_grpo, in tokens; 1 sums over the tokens of a sequence."""


class _Clipped(_Averaged):
    clip_low: float = Field(default=0.2, ge=0)
    clip_high: float = Field(default=0.2, ge=0)
    """The ratio counts from 1 - clip_low to 1 + clip_high."""
    dual_clip: float | None = Field(default=None, gt=1)
    """The most that the ratio counts for a negative advantage (arXiv 1912.09729); None = no bound."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(f"dual_clip must be above 1 + clip_high = {1 + self.clip_high:g}")
        return self


class ClippedSurrogate(_Clipped):
    """The clipped surrogate of PPO and GRPO (arXiv 1707.06347, 2402.03300)."""

    kind: Literal["grpo"] = "grpo"


class Ppo(_Clipped):
    """The clipped surrogate with per-token advantages from a learned value head (arXiv 1707.06347).

    It needs no group to compare with: groups of one, and groups with equal rewards, are trained too.
    """

    kind: Literal["ppo"] = "ppo"
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per trained token."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """Lambda of generalized advantage estimation (arXiv 1506.02438): 0 trusts the values, 1 the rewards."""
    whiten: bool = True
    """Whether the advantages of a batch are brought to mean 0 and standard deviation 1, over its tokens."""
    value_clip: float | None = Field(default=0.2, gt=0)
    """Clips a value's change since the batch began, in the value loss; None = no clipping."""
    value_coefficient: float = Field(default=0.1, gt=0)
    """Weight of the value loss beside the policy's; it is averaged in the same way."""
    value_learning_rate: float = Field(default=1e-3, gt=0, le=1e30)
    """Peak for the value head, which begins at zero; the schedule is the adapter's."""


class Gspo(Settings):
    """The clipped surrogate over one ratio a sequence, averaged over sequences (arXiv 2507.18071).

    The ratio is taken against the learner at the batch's start, also without `sampler_correction`: against the sampler,
    the rounding of bfloat16 alone is more than the clip.
    """

    kind: Literal["gspo"] = "gspo"
    clip_low: float = Field(default=3e-4, ge=0)
    clip_high: float = Field(default=4e-4, ge=0)
    """The sequence's ratio counts from 1 - clip_low to 1 + clip_high."""


class Cispo(_Averaged):
    """Log-probs weighted by the capped ratio; no token is without a gradient (arXiv 2506.13585)."""

    kind: Literal["cispo"] = "cispo"
    ratio_cap: float = Field(default=5.0, gt=0)
    """The most that the ratio counts. The default is ScaleRL's (arXiv 2510.13786)."""


class Reinforce(_Averaged):
    """Log-probs weighted by the advantage, without a ratio (Williams, 1992)."""

    kind: Literal["reinforce"] = "reinforce"


Loss = Annotated[ClippedSurrogate | Gspo | Cispo | Reinforce | Ppo, Field(discriminator="kind")]


class SamplerCorrection(Settings):
    """Importance sampling between the sampler and the learner as it was when the batch began.

    The token losses are multiplied by w = exp(learner - sampler) and their ratio is taken against the learner at the
    batch's start: truncated and masked importance sampling (see docs/algorithms.md).
    """

    mode: Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_mask"] = (
        "token_truncate"
    )
    """truncate: w is brought into [floor, cap]; mask: a w outside of it counts 0. A sequence's w is the product of its
    tokens'. geometric_mask: a sequence whose tokens' w have a geometric mean outside counts 0, any other one 1."""
    cap: float = Field(default=2.0, gt=0)
    floor: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.floor >= self.cap:
            raise ValueError("floor must be below cap")
        return self


class _Updates(Settings):
    """How the adapter is updated, whatever it learns from."""

    learning_rate: float = Field(default=1e-5, gt=0, le=1e30)
    """Peak; for LoRA about ten times that of full fine-tuning."""
    warmup_steps: int = Field(default=0, ge=0)
    """Linear warm-up, in training steps (calls of `model.train` and `model.train_sft`)."""
    total_steps: int | None = Field(default=None, ge=1)
    """With it the rate decays, reaching zero after this training step; without it, it stays."""
    decay: Literal["linear", "cosine"] = "linear"
    """How it decays, if it does."""
    epochs: int = Field(default=1, ge=1)
    """Passes over what one call is given."""
    max_gradient_norm: float = Field(default=1.0, gt=0)
    """Gradients are clipped to this norm."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled weight decay."""
    adam_betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    """AdamW's decay rates of the means of gradients and of their squares."""
    micro_batch_tokens: int | None = Field(default=None, ge=1)
    """Unique tokens per forward pass: bounds memory, does not change the result. A group that fits is not cut.
    Default: what fits the free memory, measured at the first step and kept with the run; at most 32768 on a GPU, 16384
    elsewhere."""
    gradient_checkpointing: bool | None = None
    """Keeps only what enters a layer and computes the rest again for its gradient: less memory, more work.
    Default: on a GPU, in passes over more than `whole_pass_tokens`."""
    whole_pass_tokens: int | None = Field(default=None, ge=0)
    """Unique tokens up to which a forward pass keeps all that it computes, where `gradient_checkpointing` is not set.
    Default: what fits the free memory of a GPU, measured as `micro_batch_tokens` is."""


class SftConfig(_Updates):
    """One call of `model.train_sft`."""

    learning_rate: float = Field(default=2e-4, gt=0, le=1e30)
    """Peak; for LoRA about ten times that of full fine-tuning."""
    batch_size: int = Field(default=16, ge=1)
    """Trajectories in an update, at most; each update averages over its own trained tokens."""
    restart: bool = False
    """Begins again before the step with what the run began with, the base model or another run's adapter, and with a
    new optimizer. Steps go on counting."""


class TrainConfig(_Updates):
    """One call of `model.train`. docs/algorithms.md has the settings of the published algorithms."""

    advantage: AdvantageKind = "mean"
    """What of a group's scores the learner sees. mean: less the group's mean; std: that, over the standard deviation;
    rloo: less the mean of the others; rank: the order alone; shrunk: mean, the smaller the less reliable the judge's
    votes are; critic: mean, paid to the turns at which the judge's states rose or fell (JudgeConfig.states). See
    `gavel.trainer.data.advantages`."""
    gae_lambda: float = Field(default=0.5, ge=0, le=1)
    """Of advantage='critic': how much of a gain at one turn is paid to the turn before and the turn after. 0 trusts the
    judge's states, 1 pays all turns alike, whatever they are."""
    minimal_spread: float = Field(default=1e-6, ge=0)
    """A group whose rewards differ by no more than this gives no signal and is left out."""
    normalize_over_batch: bool = False
    """Divides the advantages by their root mean square over all groups of the call, of each scenario by itself
    (REINFORCE++, arXiv 2501.03262; ScaleRL, arXiv 2510.13786)."""
    step_advantages: bool = False
    """Compares the rewards of single turns (`Trajectory.step_rewards`) over the group, too: a turn's tokens get their
    trajectory's advantage and those of their own turn and of all later ones (process supervision, arXiv 2402.03300,
    4.1.3)."""
    mask_truncated: bool = False
    """Members that ran out of tokens or turns count in their group's mean, but are not trained themselves (DAPO's
    overlong filtering, arXiv 2503.14476)."""
    on_token_mismatch: OnTokenMismatch = "refuse"
    """Of a trajectory in which a turn does not go on from the tokens of the turn before it: refuse leaves it out unless
    the chat template alone is the cause, branch trains it as several sequences (see docs/tokens.md)."""
    loss: Loss = ClippedSurrogate()
    """Policy loss."""
    top_entropy: float = Field(default=1.0, gt=0, le=1)
    """Share of the batch's tokens, those with the highest entropy when the batch begins, that the policy loss trains
    (arXiv 2506.01939: 0.2). Less than 1 costs a pass without a gradient."""
    entropy_bonus: float = Field(default=0.0, ge=0)
    """Weight of the entropy, which is subtracted from every token's loss."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence from the reference in the loss."""
    kl_in_reward: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence from the reference in the reward: of k1, the sampler's log-prob less the
    reference's, as in PPO-style RLHF and RLOO. It costs a pass without a gradient."""
    kl_in_reward_per: Literal["token", "sequence"] = "token"
    """token: from a token on, the later ones of its sequence are charged to it; sequence: all of a sequence's are
    charged to its reward, before the group's mean is subtracted."""
    reference: str = Field(default="base", min_length=1)
    """What the divergence is from. base: the base model; start: the policy as it was when training by these settings
    began, such as after SFT; a number: the checkpoint of that step of this run; else the directory of an adapter, such
    as another run's checkpoint. The run keeps a copy."""
    kl_estimator: KlEstimator = "k3"
    """Schulman's estimators: see `gavel.trainer.learner.losses.kl`."""
    kl_with_ratio: bool = False
    """Multiplies the estimate by the loss's ratio, which gives k1 and k3 the gradient of the divergence itself (arXiv
    2512.02556). Without the ratio k1 has no gradient on average."""
    sampler_correction: SamplerCorrection | None = None
    """None: the ratio is taken against the sampler's own log-probs (that of Gspo against the learner's)."""
    mini_batches: int = Field(default=1, ge=1)
    """Updates of a pass, each from whole groups and averaged over itself alone; fewer when there are fewer groups."""

    @property
    def reference_path(self) -> Path | None:
        """The directory that `reference` names, if it does."""
        named = self.reference in ("base", "start") or self.reference.isdecimal()
        return None if named else Path(self.reference)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if isinstance(self.loss, Ppo):
            for name in ("advantage", "gae_lambda", "minimal_spread", "normalize_over_batch", "step_advantages"):
                if getattr(self, name) != (default := type(self).model_fields[name].default):
                    raise ValueError(
                        f"{name} is for losses that compare a group's members; Ppo does not: leave it at {default}"
                    )
        by_turns = "step_advantages" if self.step_advantages else "critic" if self.advantage == "critic" else None
        if self.reference != "base" and not (self.beta or self.kl_in_reward):
            raise ValueError("reference is what a divergence is from, and none is trained: set beta or kl_in_reward")
        if self.kl_in_reward_per == "sequence" and self.kl_in_reward and self.advantage not in ("mean", "rloo"):
            raise ValueError("kl_in_reward_per='sequence' needs advantage='mean' or 'rloo'; per token it goes with any")
        if self.step_advantages and self.advantage not in ("mean", "std"):
            raise ValueError("step_advantages needs advantage='mean' or 'std'")
        if by_turns and (self.normalize_over_batch or self.kl_in_reward):
            raise ValueError(f"{by_turns} goes with neither normalize_over_batch nor kl_in_reward: leave one out")
        if self.top_entropy < 1 and isinstance(self.loss, Gspo):
            raise ValueError(
                "top_entropy chooses single tokens, and gspo has one ratio a sequence: leave out one of them"
            )
        return self


class JudgeChecks(Settings):
    """How far the judge is to be trusted while its scores train. What is asked here costs as judging does."""

    every: int = Field(default=0, ge=0)
    """Steps between two checks, at each of which the judge scores the golden set and the anchors anew, past the
    cassette. 0: none."""
    golden: Path | None = None
    """Golden set of a check, as `gavel judge golden FILE` takes it. Default: the one that is shipped."""
    anchors: int = Field(default=2, ge=0)
    """Groups of the first step that a check scores again."""
    second: str | None = Field(default=None, min_length=1)
    """A second judge model, which scores a sample of every step; nothing is trained on its scores."""
    second_groups: int = Field(default=2, ge=1)
    """Groups of a step in that sample."""


class _Rollouts(Settings):
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of the rollouts."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of one turn of the agent. Default: 1024."""
    concurrency: int = Field(default=128, ge=1)
    """Rollouts at once."""
    turn_limits: TurnLimits = Field(default={})
    """Turns of a training rollout, from a step (or iteration) on, as in ScalingInter-RL (arXiv 2509.08755):
    {0: 10, 20: 20, 40: 30}. Held-out episodes have the scenario's own limit, or the largest of these if that is more.
    Default: its own."""
    stall_seconds: float | None = Field(default=None, gt=0)
    """Without a rollout, a judgement or a training step that starts or ends for so long, the run stops with an error.
    Default: 1800, or the longest that a turn of max_tokens may take (600 and a quarter for each token)."""
    seed: int = 0
    """Chooses the tasks, and seeds every sampled turn and shuffle."""


class LoopConfig(_Rollouts):
    """A whole training run of one scenario."""

    steps: int = Field(default=50, ge=1)
    """Training steps in all; an earlier run continues."""
    tasks_per_step: int = Field(default=16, ge=1)
    """Groups in a step."""
    group_size: int = Field(default=8, ge=2)
    """Rollouts of a task: the members that the judge compares."""
    reward: dict[RewardName, float] = Field(default_factory=lambda: {"judge": 1.0})
    """Weights of the rewards whose sum is trained on. judge: the judge's score, from 0 to 1; hand: the scenario's
    hand_reward; success: 1 or 0; constant: 1 for every member, a control. Without a weight for judge it is not called.
    """
    max_staleness: int = Field(default=0, ge=0)
    """How many training steps a group's policy may be older than the policy that it trains. 0: a step is rolled out,
    judged and trained before the next one starts. More: all three overlap, on a backend that serves one adapter more.
    """
    refill: float = Field(default=0.0, ge=0)
    """Groups without a signal are replaced by further ones, at most so many times `tasks_per_step` in a step (DAPO's
    dynamic sampling, arXiv 2503.14476); each costs its rollouts and its judging. 0: none is replaced."""
    on_alarm: Literal["tell", "stop"] = "tell"
    """What happens when the judge's scores are to be distrusted (docs/metrics.md lists the alarms). stop: the run ends
    after the step; the same command goes on."""
    checks: JudgeChecks = JudgeChecks()
    evaluate_every: int = Field(default=5, ge=1)
    """Steps between two points of the learning curve."""
    evaluation_tasks: int = Field(default=128, ge=1)
    """Held-out tasks of a point of the curve."""
    judged_tasks: int | None = Field(default=None, ge=0)
    """Held-out tasks of a point at which the judge compares the attempts with those of the base and of the best step so
    far (`wins/base` and `wins/best` among the metrics). Default: 64 where the scenario has no success, else 0."""
    final_tasks: int = Field(default=512, ge=1)
    """Held-out tasks of the first and the last evaluation."""
    keep_checkpoints: int = Field(default=3, ge=1)
    """The newest that are kept; the others are deleted after every step."""
    keep_best: int = Field(default=1, ge=0)
    """How many are kept beside them for being the best."""
    keep_best_by: str = Field(default="held_out/success", pattern=r"^[^/]+/.+$")
    """What makes one the best: `split/metric` of metrics.jsonl, the higher the better. Only a step with such a value
    can be among the best. Where the scenario has no success, the default is held_out/wins/base."""

    @field_validator("reward")
    @classmethod
    def _some_weight(cls, weights: dict[RewardName, float]) -> dict[RewardName, float]:
        if not all(math.isfinite(weight) for weight in weights.values()):
            raise ValueError("every weight must be a finite number")
        if not any(weights.values()):
            raise ValueError("at least one reward needs a weight other than 0")
        return {name: weight for name, weight in weights.items() if weight}


class EvolveConfig(_Rollouts):
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
    evaluation_tasks: int = Field(default=256, ge=1)
    """Held-out tasks of each evaluation: before the first iteration, and after every one."""

    @model_validator(mode="after")
    def _something_to_compare(self) -> Self:
        if self.attempts == 1 and self.reward and self.reward.get("judge"):
            raise ValueError("the judge compares the attempts at a task: set attempts to 2 or more")
        return self

    @property
    def threshold(self) -> float | None:
        """`above`, or what it is by default."""
        return self.above if self.above is not None or self.ranked else 0.5

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
        own = {name: getattr(self, name) for name in _Rollouts.model_fields}
        return LoopConfig().model_copy(update={**own, "group_size": self.attempts, "reward": self.reward or {}})


RecipeName = Literal[
    "grpo", "dr_grpo", "dapo", "gspo", "cispo", "scalerl", "rloo", "reinforce_pp", "top_entropy", "ppo"
]

_DAPO = {"advantage": "std", "loss": {"kind": "grpo", "clip_high": 0.28, "aggregation": "dapo"}, "mask_truncated": True}
RECIPES: dict[str, dict[str, Any]] = {
    "grpo": {"advantage": "std", "loss": {"kind": "grpo", "aggregation": "grpo"}, "beta": 0.04},
    "dr_grpo": {"loss": {"kind": "grpo", "aggregation": "dr_grpo"}},
    "dapo": _DAPO,
    "gspo": {"advantage": "std", "loss": {"kind": "gspo"}, "mini_batches": 4},
    "cispo": {"advantage": "std", "loss": {"kind": "cispo"}},
    "scalerl": {"normalize_over_batch": True, "loss": {"kind": "cispo", "aggregation": "bnpo"}},
    "rloo": {
        "advantage": "rloo",
        "loss": {"kind": "reinforce", "aggregation": "dr_grpo", "constant_length": 1},
        "kl_in_reward": 0.03,
        "kl_in_reward_per": "sequence",
    },
    "reinforce_pp": {"normalize_over_batch": True, "loss": {"kind": "grpo"}, "beta": 1e-3, "kl_estimator": "k2"},
    "top_entropy": {**_DAPO, "top_entropy": 0.2},
    "ppo": {"loss": {"kind": "ppo"}, "kl_in_reward": 0.02, "epochs": 4},
}
"""The settings that each names; all others keep their defaults."""
_REFILLED = {"dapo": 2.0, "top_entropy": 2.0}
"""`LoopConfig.refill` of those that replace groups without a signal."""


class RecipeError(GavelError):
    """There is no recipe of that name."""


def recipe_settings(name: str) -> dict[str, Any]:
    """The settings of a recipe as plain data. Raises `RecipeError`."""
    if name not in RECIPES:
        raise RecipeError(f"there is no recipe {name!r}", f"There are: {', '.join(RECIPES)}.")
    return RECIPES[name]


def recipe_tables(name: str) -> dict[tuple[str, str], Any]:
    """The settings of a recipe by their paths in a `RunConfig`, those of the loop included. Raises `RecipeError`."""
    found = {("train", key): value for key, value in recipe_settings(name).items()}
    return found | ({("loop", "refill"): _REFILLED[name]} if name in _REFILLED else {})


def recipe(name: RecipeName, **settings: Any) -> TrainConfig:
    """The configuration of a published algorithm, with `settings` over it. Raises `RecipeError`."""
    return TrainConfig.model_validate({**recipe_settings(name), **settings})
