"""Types that scripts use: messages, tools, training settings and results."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from openai.types.chat.chat_completion import Choice as Choice
from openai.types.chat.chat_completion_message_param import ChatCompletionMessageParam
from openai.types.chat.chat_completion_tool_param import ChatCompletionToolParam
from pydantic import BaseModel, ConfigDict, Field, SkipValidation

Message = Annotated[ChatCompletionMessageParam, SkipValidation]
MessageOrChoice = Message | Choice
Messages = list[Message]
MessagesAndChoices = list[MessageOrChoice]
Tools = list[ChatCompletionToolParam]
Verbosity = Literal[0, 1, 2]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)
    """Settings of other versions of ART are kept, so that training can report them."""


class TrainConfig(_Settings):
    learning_rate: float = 5e-6
    kl_penalty_coef: float = 0.0
    """Weight of the divergence from the base model in the reward."""
    beta: float = 0.0
    """Weight of the divergence from the base model in the loss, of earlier versions of ART."""
    grad_accumulation_sequences: int | None = Field(default=None, ge=1)
    """Trajectories per optimizer update."""


class TrainSFTConfig(_Settings):
    learning_rate: float | list[float] = 5e-5
    """One learning rate, or one per batch."""
    batch_size: int | Literal["auto"] = "auto"
    """Trajectories per optimizer update; auto: 2."""


class LoRAConfig(_Settings):
    rank: int | None = None
    alpha: int | None = None
    target_modules: list[str] | None = None

    def as_peft_args(self) -> dict[str, Any]:
        values = {"r": self.rank, "lora_alpha": self.alpha, "target_modules": self.target_modules}
        return {name: value for name, value in values.items() if value is not None}


@dataclass
class TrainResult:
    step: int
    metrics: dict[str, float] = field(default_factory=dict[str, float])


@dataclass
class LocalTrainResult(TrainResult):
    checkpoint_path: str | None = None


@dataclass
class ServerlessTrainResult(TrainResult):
    artifact_name: str | None = None
