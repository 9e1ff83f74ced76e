"""A chat completion's body, read and checked: what is asked of the engine, and how the reply is to be shown.

text(item, "call_id", "input item 2")     ->   "c1", or BadRequest: input item 2 has no call_id

`ChatRequest` declares what a body may hold; a field that does not fit is refused by its place. The functions before it
read single fields of other APIs' bodies.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, cast

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

_KINDS: dict[type, str] = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def text(holder: Message, name: str, where: str) -> str:
    """A field that must be there, and be text. Raises `BadRequest`."""
    if name not in holder:
        raise BadRequest(f"{where} has no {name}", f'Give it {{"{name}": "…"}}.')
    value = holder[name]
    if not isinstance(value, str):
        raise BadRequest(f"the {name} of {where} is {kind_of(value)}", "Give it as text.")
    return value


def an_object(value: Any, where: str) -> Message:
    """A JSON object. Raises `BadRequest`."""
    if not isinstance(value, dict):
        raise BadRequest(f"{where} is {kind_of(value)}", "Give an object: {…}.")
    return cast("Message", value)


def objects(value: Any, where: str, each: str) -> list[Message]:
    """A list of JSON objects; `each` is what one is called. Raises `BadRequest`."""
    if not isinstance(value, list):
        raise BadRequest(f"{where} is {kind_of(value)}", "Give a list of objects: [{…}].")
    return [an_object(item, f"{each} {number}") for number, item in enumerate(cast("list[Any]", value))]


def parts(content: Any, where: str) -> list[Message]:
    """The parts of a content that is not plain text. Raises `BadRequest`."""
    if not isinstance(content, list):
        raise BadRequest(f"{where} is {kind_of(content)}", "Give text, or a list of parts with text.")
    return objects(content, where, f"{where}, part")


def joined_text(content: Any, where: str, kinds: Sequence[str] = ("text",)) -> str:
    """A text, or the texts of parts of these kinds. Raises `BadRequest`."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in parts(content, f"the content of {where}"):
        kind = part.get("type")
        if kind not in kinds:
            raise BadRequest(f"{where} has content of type {shown(kind)}", "This endpoint serves text only.")
        texts.append(text(part, "refusal" if kind == "refusal" else "text", where))
    return "".join(texts)


def function_tools(given: Any, kind: str, schema: str, remedy: str) -> list[Message]:
    """Tools as chat completions have them; `schema` is their field of parameters. Raises `BadRequest`."""
    made: list[Message] = []
    for number, tool in enumerate(objects(given, "tools", "tool")):
        if tool.get("type") != kind and not (kind == "custom" and tool.get("type") is None):
            why = f"tool {number} is of type {shown(tool.get('type'))}, which is not supported here"
            raise BadRequest(why, remedy)
        name = text(tool, "name", f"tool {number}")
        # `strict` stays away: the same tools then make the same prompt, whichever API they come by.
        function = {"name": name, "description": tool.get("description"), "parameters": tool.get(schema)}
        function = {field: value for field, value in function.items() if value is not None}
        made.append({"type": "function", "function": function})
    return made


def check_types(body: Mapping[str, Any], types: Mapping[str, type]) -> None:
    """Raises `BadRequest` for a field of another type than the vendor's API takes; null is none."""
    for name, wanted in types.items():
        value = body.get(name)
        if value is not None and not isinstance(value, wanted):
            raise BadRequest(f"{name}={shown(value)} is not {_KINDS[wanted]}", f"Correct it, or leave {name} out.")


def kind_of(value: Any) -> str:
    return _KINDS.get(type(value), "of an unknown kind")


def switch(body: Mapping[str, Any], name: str) -> bool | None:
    """A parameter that is on or off; None: as usual. Raises `BadRequest` for anything else, which would be guessed."""
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise BadRequest(f"{name}={shown(value)} is neither true nor false")


def check_characters(texts: Any) -> None:
    """Raises `BadRequest` for texts that no tokenizer takes."""
    try:
        json.dumps(texts, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"the request has half a surrogate pair, which is no character: {error.object[error.start]!r}",
            'Replace it; in Python by text.encode("utf-8", "replace").decode().',
        ) from error


STREAMED: Message = {"stream": True, "stream_options": {"include_usage": True}}
"""The fields of a request whose chunks another API's stream is made of."""
_INERT = {
    "include_reasoning": bool,
    "metadata": dict,
    "prediction": dict,
    "prompt_cache_key": str,
    "prompt_cache_retention": str,
    "reasoning_effort": str,
    "return_tokens_as_token_ids": bool,
    "safety_identifier": str,
    "service_tier": str,
    "store": bool,
    "user": str,
    "verbosity": str,
}
"""Parameters that say nothing about what is sampled here, with their types."""
_SHAPING = ("top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_MAX_TOOLS = 1024
"""Rendering more keeps the endpoint busy for seconds."""
_GREEDY_BELOW = 1e-5
"""Temperatures by which log-probs cannot be divided are 0."""
_SHOWN_NAMES = 300
"""Characters."""
_REMEDIES = {
    "model": "Ask model.get_inference_name() for each rollout.",
    "messages": 'Give [{"role": "user", "content": "…"}]; a call is {"function": {"name": …, "arguments": "{…}"}}.',
    "tools": 'Give [{"type": "function", "function": {"name": …, "parameters": …}}], those that the task may need.',
    "n": "Send several requests for more.",
    "logit_bias": 'Write {"1234": -100}, say.',
    "response_format": "Known: text, json_object, and json_schema with a schema.",
}
"""Remedies for fields where leaving them out is not enough."""


class _Given(BaseModel):
    """A part of a body; what is not declared passes."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class _Function(_Given):
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(_Given):
    type: Literal["function"] = "function"
    function: _Function


class _CalledFunction(_Given):
    name: str
    arguments: str | dict[str, Any]


class _Call(_Given):
    id: str | None = None
    function: _CalledFunction


def _text_alone(content: Any) -> Any:
    """Text, or parts of text: what else a part holds the renderers would silently drop."""
    for part in cast("list[Any]", content) if isinstance(content, list) else ():
        match part:
            case {"type": "text", "text": str()} | {"type": "refusal", "refusal": str()}:
                pass
            case _:
                raise ValueError("this endpoint serves text only")
    if not isinstance(content, str | list | None):
        raise ValueError("this endpoint serves text only")
    return content


class _Message(_Given):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Any, AfterValidator(_text_alone)] = None
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


class _StreamOptions(_Given):
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


class _Body(_Given):
    """The fields of a request body; null counts as absent."""

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
    chat_template_kwargs: Any = None
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
    top_logprobs: Annotated[_Whole, Field(ge=0, le=20)] = 0
    """Likeliest tokens to show beside each sampled one."""
    compact_logprobs: bool = False
    """Log-probs as a plain list."""
    return_token_ids: bool = True

    @field_validator("temperature")
    @classmethod
    def _divides_log_probs(cls, value: float) -> float:
        return 0.0 if value < _GREEDY_BELOW else value

    @field_validator("tools")
    @classmethod
    def _none_offered(cls, tools: list[Message] | None) -> list[Message] | None:
        return tools or None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs come with logprobs alone: set logprobs=True")
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


class ChatRequest(_Body):
    shaping: Shaping | None = None
    """None where the distribution stays the policy's."""
    forced: bool = False
    """The turn is a second attempt, which was made to call a tool; no body asks for that."""
    sample_id: str = ""
    """Distinguishes the turn from an equal one; no body sets it."""

    @property
    def offered(self) -> list[Message] | None:
        """The tools; None where the turn may call none."""
        return None if self.tool_choice == "none" else self.tools

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


def read_chat_request(body: Mapping[str, Any], vocabulary: int | None = None) -> ChatRequest:
    """`vocabulary`: tokens of the model, where it is known. Raises `BadRequest`."""
    check_types(body, _INERT)
    given = {name: value for name, value in body.items() if value is not None and name not in _INERT}
    if unknown := sorted(given.keys() - _Body.model_fields.keys()):
        name = unknown[0]
        raise BadRequest(f"{name}={shown(given[name])} is not supported here", f"Leave {name} out.")
    try:
        asked = _Body.model_validate(given)
    except ValidationError as error:
        name = str((*error.errors()[0]["loc"], "it")[0])
        raise BadRequest(problem(error), _REMEDIES.get(name, f"Correct it, or leave {name} out.")) from error
    bias = {int(token): value for token, value in asked.logit_bias.items()}
    if vocabulary is not None and (foreign := next((token for token in bias if token >= vocabulary), None)):
        raise BadRequest(
            f"logit_bias={shown(asked.logit_bias)} names the token {foreign}, which the model does not have",
            f"Its tokens are 0 to {vocabulary - 1}.",
        )
    tails = {name: getattr(asked, name) for name in _SHAPING}
    shaping = Shaping(**tails, top_k=max(0, asked.top_k), logit_bias=bias)
    return ChatRequest.model_construct(**dict(asked), shaping=shaping if shaping.asked() else None)
