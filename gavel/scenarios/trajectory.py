"""A trajectory: one attempt of an agent at one task, as plain data.

A trajectory is a list of OpenAI message dicts (context, never trained) and OpenAI `Choice`s
(sampled, trained). A `Choice` from a Gavel endpoint has, besides the standard `logprobs`, the
extra fields `token_ids`, `prompt_token_ids` and `policy_version`. Choices of LiteLLM and whole completions are
understood too. JSON round trips are lossless.
"""

import json
import numbers
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Self, cast

from openai.types.chat.chat_completion import Choice
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    WrapValidator,
    model_validator,
)
from pydantic_core import to_jsonable_python

from gavel.base.errors import GavelError
from gavel.base.fields import Constructed
from gavel.llm.types import Message, text_of
from gavel.scenarios.judgement import Judgement

_EXACT = (
    "token_ids",
    "prompt_token_ids",
    "policy_version",
    "temperature",
    "continues_sampled",
    "sample_id",
    "token_logprobs",
)
"""Fields of a Gavel endpoint's choice that LiteLLM moves to `provider_specific_fields`."""


def as_item(value: Any) -> Any:
    """A `Choice`, a message dict, or any other value unchanged."""
    if isinstance(value, Choice):
        return value
    fields: Any = value
    if isinstance(value, BaseModel):  # as LiteLLM's and OpenAI's
        fields = value.model_dump(mode="json", warnings=False, exclude_none="role" in type(value).model_fields)
    match fields:
        case {"role": str()} if "message" not in fields:
            return fields
        case {"message": Mapping(), "finish_reason": _}:
            return _choice(fields)
        case {"choices": [only]} if "role" not in fields:
            return as_item(only)
        case {"object": "response"}:
            raise ValueError("a response of the Responses API is no choice: model.capture() records its turn")
        case {"role": str()} | {"type": str()}:
            return fields
        case dict():
            held = ", ".join(cast("dict[str, Any]", fields)) or "nothing"
            raise ValueError(f"a message needs a role, such as assistant; this one holds only {held}")
        case _:
            return value


def _choice(fields: Mapping[str, Any]) -> Choice:
    """Parses a choice as tolerantly as the OpenAI client: servers send choices (finish_reason "abort", a null log-prob)
    that strict validation rejects, and a stored choice must be readable again."""
    kept: dict[str, Any] = dict(fields)
    specific: dict[str, Any] = kept.pop("provider_specific_fields", None) or {}
    kept |= {name: specific[name] for name in _EXACT if kept.get(name) is None and specific.get(name) is not None}
    kept["message"] = {name: each for name, each in kept["message"].items() if name != "provider_specific_fields"}
    return Choice.construct(None, **kept)


MessageOrChoice = Annotated[Choice | Message, BeforeValidator(as_item)]
MessagesAndChoices = list[MessageOrChoice]


def to_messages(items: Iterable[Choice | Message]) -> list[Message]:
    """The conversation as plain OpenAI message dicts."""
    known = map(as_item, items)  # appended items were never validated
    return [
        item.message.model_dump(exclude_none=True, mode="json") if isinstance(item, Choice) else item for item in known
    ]


def _jsonable(value: Any) -> Any:
    match value:
        case numbers.Integral():
            return int(value)
        case numbers.Real():  # including numpy's scalars
            return float(value)
        case _:
            return to_jsonable_python(value, fallback=repr)


class Record(Constructed):
    """A value that survives a JSON round trip unchanged, including NaN, infinities and lone surrogates."""

    model_config = ConfigDict(ser_json_inf_nan="constants", defer_build=True)

    def model_dump_json(self, *, indent: int | None = None, **options: Any) -> str:
        """JSON, ASCII only: pydantic's serializer rejects lone surrogates, or replaces them in the keys of a dict."""
        options.setdefault("warnings", False)
        dumped = self.model_dump(**options)
        return json.dumps(dumped, default=_jsonable, indent=indent, separators=None if indent else (",", ":"))

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        """Parses as pydantic does, but accepts lone surrogates."""
        try:
            read = json.loads(json_data)
        except ValueError:
            return super().model_validate_json(json_data, **options)
        return cls.model_validate(read, **options)

    def to_json(self) -> str:
        """One line of JSON, ASCII only."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The record that `to_json` wrote.

        Raises `ValueError` (`json.JSONDecodeError`, `pydantic.ValidationError`) or `TypeError` on anything else, and
        `NotANumberError`.
        """
        return cls.model_validate(json.loads(text))


Schemas = Annotated[
    list[Message] | None, Field(description="gavel.Toolbox([function]).schemas gives those of Python functions.")
]
"""OpenAI tool schemas."""


class _Conversation(Record):
    """A record with a conversation, which cannot be passed under a wrong name and lost."""

    messages_and_choices: MessagesAndChoices = Field(default_factory=list[MessageOrChoice])
    tools: Schemas = None
    """OpenAI tool schemas that the agent was shown."""
    agent: str | None = None
    """The agent's name, in an episode with several agents."""

    def messages(self) -> list[Message]:
        """The conversation as plain OpenAI message dicts, ready for the next request."""
        return to_messages(self.messages_and_choices)

    @model_validator(mode="before")
    @classmethod
    def _by_its_name(cls, given: Any) -> Any:
        if isinstance(given, dict) and "messages" in given and "messages_and_choices" not in given:
            raise ValueError("the conversation is messages_and_choices, not messages")
        return cast("Any", given)


class NotANumberError(GavelError):
    """A reward or a metric is not a number."""


def _as_reward(value: Any) -> float | None:
    """A reward; a numeric text is converted. Raises `NotANumberError` for any other value."""
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise NotANumberError(
            f"the reward of a trajectory is a number, not {value!r:.80}", "None stands for: not scored."
        ) from error


def as_metrics(given: Any) -> Any:
    """Numbers and truth values; pydantic alone would accept "yes" as `True`. Raises `NotANumberError` for any other."""
    if not isinstance(given, Mapping):
        return given
    metrics: dict[Any, Any] = {}
    for name, value in cast("Mapping[Any, Any]", given).items():
        plain = plain_value(value)
        if isinstance(plain, numbers.Number) and not isinstance(plain, int | float | complex):
            plain = float(plain)  # pyright: ignore[reportArgumentType]  # a Fraction or a Decimal
        if not isinstance(plain, int | float):
            raise NotANumberError(
                f"the metric {name!r:.80} is a number, True or False, not {value!r:.80}",
                "Leave it out, or put it into metadata, which holds any JSON.",
            )
        metrics[name] = plain
    return metrics


Metrics = Annotated[dict[str, float | int | bool], BeforeValidator(as_metrics)]


def _as_json(given: Any, validate: Callable[[Any], Any]) -> Any:
    try:
        return validate(given)
    except ValidationError:
        return validate(plain_value(given))


def plain_value(value: Any) -> Any:
    """The value with tuples as lists, and with NumPy's and torch's values converted to Python's."""
    match value:
        case dict():
            return {name: plain_value(each) for name, each in cast("dict[Any, Any]", value).items()}
        case list() | tuple():
            return [plain_value(each) for each in cast("Sequence[Any]", value)]
        case _:
            convert = getattr(value, "tolist", None)
            return convert() if callable(convert) else value


Metadata = Annotated[dict[str, JsonValue], WrapValidator(_as_json)]


class History(_Conversation):
    """An additional conversation of the same trajectory: a sub-agent's, or one with a rewritten context."""


class Trajectory(_Conversation):
    """One attempt of an agent at one task."""

    additional_histories: list[History] = Field(default_factory=list[History])
    reward: Annotated[float | None, BeforeValidator(_as_reward)] = None
    """None = not scored; such a trajectory is never trained."""
    step_rewards: list[float] | None = None
    """One for each sampled turn, in the order of `choices()`, besides `reward`, which belongs to the end. Only a loss
    with a value head (`Ppo`) learns from them."""
    judgement: Judgement | None = None
    metrics: Metrics = Field(default_factory=dict)
    metadata: Metadata = Field(default_factory=dict)
    logs: list[str] = Field(default_factory=list)
    status: Literal["finished", "truncated", "failed"] = "finished"
    status_reason: str | None = None
    policy_version: int | None = None
    """Training step of the policy that acted."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises `NotANumberError` for a reward or a metric that is not a number, as the constructor does."""
        checks = {"reward": _as_reward, "metrics": as_metrics}
        value = checks[name](value) if name in checks else value
        super().__setattr__(name, value)

    def histories(self) -> list[History]:
        """The main conversation first, then the additional ones."""
        main = History(messages_and_choices=self.messages_and_choices, tools=self.tools, agent=self.agent)
        return [main, *self.additional_histories]

    def choices(self) -> Iterator[Choice]:
        """Every sampled turn of every history, in order."""
        for history in (self, *self.additional_histories):
            yield from (item for item in map(as_item, history.messages_and_choices) if isinstance(item, Choice))

    def convert_appended(self) -> Self:
        """Turns whole replies, which were appended without validation, into their choices, in place. Raises
        `ValueError` for what is no message."""
        for history in (self, *self.additional_histories):
            items: list[Any] = history.messages_and_choices
            if not all(isinstance(item, Choice) or (isinstance(item, dict) and "role" in item) for item in items):
                items[:] = map(as_item, items)
        return self

    def closing_text(self) -> str:
        """The agent's closing message; empty if its conversation ends with something else."""
        last = self.messages()[-1:]
        return "".join(text_of(message) for message in last if message.get("role") == "assistant")

    def reading_copy(self) -> Self:
        """A copy for read-only checks, so that popping a message has no effect here. Metrics and logs are shared."""
        histories = list(self.additional_histories)
        return self.model_copy(
            update={"messages_and_choices": list(self.messages_and_choices), "additional_histories": histories}
        )

    def log(self, line: str) -> None:
        self.logs.append(line)

    def finish(self) -> Self:
        """Marks the trajectory as finished; to be called at the end of a rollout."""
        self.status = "finished"
        return self

    @contextmanager
    def track_duration(self, name: str) -> Generator[None, None, None]:
        """Adds the block's seconds to `metrics["duration/<name>"]`."""
        started = time.monotonic()
        try:
            yield
        finally:
            key = f"duration/{name}"
            self.metrics[key] = self.metrics.get(key, 0.0) + time.monotonic() - started


class RolloutError(Record):
    """An exception of a group, in a form that can be stored."""

    type: str
    message: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Self:
        lines = traceback.format_exception(error)
        return cls(type=type(error).__name__, message=str(error), traceback="".join(lines))
