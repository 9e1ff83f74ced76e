"""A chat completion's body, read and checked: what is asked of the engine, and how the reply is to be shown.

`ChatRequest` declares what a body may hold; the other APIs declare theirs as a `Given` too, and translate it. A field
that does not fit is refused by its place: `messages.1.role`.
"""

import json
from collections.abc import Iterable, Mapping, Set
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetPydanticSchema,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core.core_schema import no_info_wrap_validator_function

from gavel.base.fields import problem
from gavel.llm.types import Message
from gavel.trainer.engines.protocol import Shaping
from gavel.trainer.serving.answers import BadRequest, shown

_TEXT_PARTS = ("text", "input_text", "output_text", "reasoning_text", "summary_text", "refusal")
_MAX_TOOLS = 1024
"""Rendering more keeps the endpoint busy for seconds."""
_GREEDY_BELOW = 1e-5
"""Temperatures by which log-probs cannot be divided are 0."""
_SHOWN_NAMES = 300
"""Characters."""


class Given(BaseModel):
    """A part of a body; what is not declared passes."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)
    remedies: ClassVar[Mapping[str, str]] = {}
    """Remedies for fields where correcting or leaving them out is not enough."""
    inert: ClassVar[Set[str]] = frozenset()
    """Fields that say nothing about what is sampled here."""


_Given = TypeVar("_Given", bound=Given)


def read(kind: type[_Given], body: Mapping[str, Any]) -> _Given:
    """The fields of a body, where null is absent. Raises `BadRequest`."""
    try:
        given = {name: value for name, value in body.items() if value is not None and name not in kind.inert}
        return kind.model_validate(given)
    except ValidationError as error:
        name = str((*max((each["loc"] for each in error.errors()), key=len), "it")[0])
        told = problem(error).replace("extra inputs are not permitted", "it is not supported here")
        raise BadRequest(told, kind.remedies.get(name, f"Correct it, or leave {name} out.")) from error


def joined_text(content: Any) -> Any:
    """The texts of a list of parts, joined; another value as it is."""
    if not isinstance(content, list):
        return content
    texts: list[str] = []
    for part in cast("list[Any]", content):
        kind = cast(Message, part).get("type") if isinstance(part, dict) else type(part).__name__
        text = part.get("refusal" if kind == "refusal" else "text") if kind in _TEXT_PARTS else None
        if not isinstance(text, str):
            raise ValueError(f"this endpoint serves text only, and a part is of type {shown(kind)}")
        texts.append(text)
    return "".join(texts)


Text = Annotated[str, BeforeValidator(joined_text)]
"""A text, or a list of parts with text."""


def _refuse_all_but_off(value: Any) -> Any:
    if value:
        raise ValueError("it is not supported here")
    return value


Off = Annotated[Any, AfterValidator(_refuse_all_but_off)]
"""A feature that is not served."""


def function_tool(name: str, description: str | None, parameters: dict[str, Any] | None) -> Message:
    """A tool as chat completions have it. `strict` stays away: the same tools then make the same prompt, whichever API
    they come by."""
    fields = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": {field: value for field, value in fields.items() if value is not None}}


def function_choice(name: str) -> Message:
    """The `tool_choice` of a turn that calls this function."""
    return {"type": "function", "function": {"name": name}}


def check_characters(texts: Any) -> None:
    """Raises `BadRequest` for texts that no tokenizer takes."""
    try:
        json.dumps(texts, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"the request has half a surrogate pair, which is no character: {error.object[error.start]!r}",
            'Replace it; in Python by text.encode("utf-8", "replace").decode().',
        ) from error


class _Function(Given):
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(Given):
    type: Literal["function"] = "function"
    function: _Function


class _CalledFunction(Given):
    name: str
    arguments: str | dict[str, Any]


class _Call(Given):
    id: str | None = None
    function: _CalledFunction


class _Message(Given):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | None = None
    name: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[_Call] | None = None
    function_call: None = None

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError('it has no content, which may be ""')
        return self


class _StreamOptions(Given):
    include_usage: bool = False
    """A stream ends with a chunk of its usage."""


def _shaped(shape: Any) -> GetPydanticSchema:
    """The value as it is, if it fits the shape."""

    def given(value: Any, check: Any) -> Any:
        check(value)
        return value

    return GetPydanticSchema(lambda _, schema_of: no_info_wrap_validator_function(given, schema_of(shape)))


def _whole(value: Any) -> Any:
    """JavaScript writes 3 as 3.0, too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _stop_strings(stop: Any) -> Any:
    check_characters(stop)
    return [stop] if isinstance(stop, str) else stop


def _schema(form: Any) -> str | None:
    match form:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return '{"type": "object"}'
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return json.dumps(schema)
        case _:
            raise ValueError("it is not supported here")


_Whole = Annotated[int, BeforeValidator(_whole)]
_Limit = Annotated[int, BeforeValidator(_whole), Field(ge=1)] | None


class ChatRequest(Given):
    """The fields of a request body; an unknown one is refused."""

    model_config = ConfigDict(extra="forbid")
    inert = frozenset({"include_reasoning", "metadata", "prediction", "prompt_cache_key", "prompt_cache_retention"}) | {
        *("reasoning_effort", "return_tokens_as_token_ids", "safety_identifier", "service_tier", "store", "user"),
        "verbosity",
    }
    remedies: ClassVar = {
        "model": "Ask model.get_inference_name() for each rollout.",
        "messages": 'Give [{"role": "user", "content": "…"}]; a call is {"function": {"name": …, "arguments": "{…}"}}.',
        "tools": 'Give [{"type": "function", "function": {"name": …, "parameters": …}}], those that the task may need.',
        "n": "Send several requests for more.",
        "chat_template_kwargs": "Leave it out, or give {}.",
        "logit_bias": 'Write {"1234": -100}, say.',
        "response_format": "Known: text, json_object, and json_schema with a schema.",
    }

    model: str
    messages: Annotated[list[Message], _shaped(Annotated[list[_Message], Field(min_length=1)])]
    tools: Annotated[list[Message], _shaped(Annotated[list[_Tool], Field(max_length=_MAX_TOOLS)])] | None = None
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = True
    """Whether a turn goes on after its first tool call."""
    temperature: float = Field(default=1.0, ge=0, le=2)
    max_completion_tokens: _Limit = None
    max_tokens: _Limit = None
    """`max_completion_tokens` in older clients."""
    max_output_tokens: _Limit = None
    """`max_completion_tokens` in the Responses API."""
    seed: _Whole | None = None
    n: Annotated[_Whole, Field(ge=1, le=128)] = 1
    """Turns to sample."""
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_stop_strings)] = []
    """Strings that end a turn."""
    response_format: Annotated[str | None, BeforeValidator(_schema)] = None
    """The JSON schema of the turn's text, as JSON; None: any text."""
    chat_template_kwargs: dict[str, Any] = {}
    modalities: list[Literal["text"]] = []
    top_p: float = Field(default=1.0, ge=0, le=1)
    top_k: Annotated[_Whole, Field(ge=-1, le=10**9)] = 0
    min_p: float = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, ge=0.01, le=100)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    logit_bias: dict[Annotated[str, Field(pattern="^[0-9]+$")], Annotated[float, Field(ge=-100, le=100)]] = {}
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    logprobs: bool = True
    top_logprobs: Off = None
    compact_logprobs: bool = False
    """Log-probs as a plain list."""
    return_token_ids: bool = True

    @field_validator("temperature")
    @classmethod
    def _divides_log_probs(cls, value: float) -> float:
        return 0.0 if value < _GREEDY_BELOW else value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        names = [tool["function"]["name"] for tool in self.tools or ()]
        match self.tool_choice:
            case "auto" | "none":
                pass
            case "required" if names:
                pass
            case {"type": "function", "function": {"name": name}} if name in names:
                pass
            case _:
                raise ValueError(
                    f"tool_choice={shown(self.tool_choice)} names none of the tools: "
                    f"{', '.join(names)[:_SHOWN_NAMES] or 'there are none'}. To allow some alone, offer these alone"
                )
        return self

    @property
    def offered(self) -> list[Message] | None:
        """The tools; None where the turn may call none."""
        return None if self.tool_choice == "none" else self.tools or None

    @property
    def must_call(self) -> bool:
        """A turn calls a tool."""
        return self.tool_choice not in ("auto", "none")

    @property
    def call(self) -> str | None:
        """The one that it calls; None: any."""
        return self.tool_choice["function"]["name"] if isinstance(self.tool_choice, dict) else None

    @property
    def limit(self) -> int | None:
        """The most tokens of a turn; None: as many as fit."""
        return self.max_completion_tokens or self.max_tokens or self.max_output_tokens

    @property
    def shaping(self) -> Shaping | None:
        """None where the distribution stays the policy's."""
        shaping = Shaping(
            top_p=self.top_p,
            top_k=max(0, self.top_k),
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias={int(token): value for token, value in self.logit_bias.items()},
        )
        return shaping if shaping.asked() else None


def check_tokens(token_ids: Iterable[int], name: str, vocabulary: int) -> None:
    """Raises `BadRequest` for a token that the model does not have, which would stop the engine."""
    if (highest := max(token_ids, default=0)) >= vocabulary:
        raise BadRequest(
            f"{name} names the token {highest}, which the model does not have", f"Its tokens are 0 to {vocabulary - 1}."
        )


def read_chat_request(body: Mapping[str, Any], vocabulary: int | None = None) -> ChatRequest:
    """`vocabulary`: tokens of the model, where it is known. Raises `BadRequest`."""
    asked = read(ChatRequest, body)
    if vocabulary is not None:
        check_tokens(map(int, asked.logit_bias), "logit_bias", vocabulary)
    return asked
