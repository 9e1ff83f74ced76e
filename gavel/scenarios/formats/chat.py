"""Converts any conversation to OpenAI chat messages.

    messages([{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}], "f.jsonl:1")
    # ([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}], "ShareGPT")

Each item becomes a role with parts (`_open`), each part a text, a thought, a call or a result (`_PARTS`), and these
become messages: results stand alone, thoughts are `reasoning_content`. Chat messages are returned unchanged. Parts
without a counterpart (images, audio, unknown blocks) stay in the content, and unknown fields beside it.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.formats.row import (
    IDS,
    NAMES,
    RowError,
    as_json,
    as_list,
    first_of,
    id_of,
    is_list,
    is_object,
    joined,
    loaded,
    name_of,
    refused,
    tool_call,
)
from gavel.scenarios.formats.text import parsed

OPENAI, ANTHROPIC, RESPONSES = "OpenAI messages", "Anthropic messages", "OpenAI Responses items"
_SHAREGPT, _LANGCHAIN, _SDK, _BEDROCK = "ShareGPT", "LangChain messages", "AI SDK messages", "Bedrock Converse messages"
_OTHERS = {
    "human": "user",
    **dict.fromkeys(("ai", "gpt", "model", "bot", "chatgpt", "bard", "bing"), "assistant"),
    **dict.fromkeys(("observation", "function_response", "tool_response", "tool_result"), "tool"),
}
"""Other programs' names of the roles."""
KNOWN_ROLES = {**{name: name for name in ("system", "developer", "user", "assistant", "tool", "function")}, **_OTHERS}
_CALLERS = {"function_call": "assistant", "tool_call": "assistant", "function": "tool"}
"""ShareGPT's speakers whose turns are calls as JSON, and their roles where they are not."""
_CALLING = _CALLERS.keys() - KNOWN_ROLES
"""Roles of messages that are calls as JSON, as ms-swift has them."""
_OF_LANGCHAIN = ("human", "ai", "system", "tool", "function", "developer", "chat")
_OF_PYDANTIC_AI = {"system-prompt": "system", "user-prompt": "user", "tool-return": "user", "retry-prompt": "user"}

_CODE = ("executableCode", "executable_code", "codeExecutionResult", "code_execution_result")
_PARTS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("text", "user-prompt", "system-prompt", "summary_text", "reasoning_text"), ("text", "")),
    **dict.fromkeys(("input_text", "output_text"), ("text", RESPONSES)),
    **dict.fromkeys(("thinking", "redacted_thinking"), ("thought", ANTHROPIC)),
    **{"reasoning": ("thought", ""), "reasoningContent": ("thought", _BEDROCK)},
    **dict.fromkeys(("tool_use", "server_tool_use", "mcp_tool_use"), ("call", ANTHROPIC)),
    **dict.fromkeys(("tool-call", "builtin-tool-call"), ("call", _SDK)),
    **dict.fromkeys(("tool_call", "functionCall", "function_call", "tool-invocation", "tool-NAME"), ("call", "")),
    **dict.fromkeys(_CODE[:2], ("call", "")),
    **{"toolUse": ("call", _BEDROCK), "NAME_call": ("call", RESPONSES), "NAME_call_output": ("result", RESPONSES)},
    **dict.fromkeys(("tool-result", "tool-return", "builtin-tool-return", "retry-prompt"), ("result", _SDK)),
    **dict.fromkeys(("tool_call_response", "functionResponse", "function_response"), ("result", "")),
    **dict.fromkeys(_CODE[2:], ("result", "")),
    **{"toolResult": ("result", _BEDROCK), "NAME_tool_result": ("result", ANTHROPIC)},
    **dict.fromkeys(("step-start", "step-finish", "source-url", "source-document", "cachePoint"), ("nothing", "")),
}
"""What a part is, and whose if that is plain, by its `type`, its `part_kind`, or the field that holds it."""
_NOISE = {
    *("type", "part_kind", "cache_control", "caller", "state", "status", "phase", "signature", "annotations"),
    *("timestamp", "thoughtSignature", "thought_signature", "providerMetadata", "providerOptions", "dynamic_ref"),
    *("internal", "citations", "refusal"),
}
"""Fields of parts and items that tell a reader nothing."""
_ENVELOPE = ("type", "id", "status", "phase")
_TEXTS = ("thinking", "text", "reasoning", "content", "summary", "reasoningText")
_RESULTS = ("content", "output", "result", "response", "results", "outputs")
_ERRORS = ("errorText", "error")
_ITEMS = ("reasoning", "item_reference", "compaction", "mcp_list_tools")
_ITEM_ENDINGS = ("_call", "_call_output", "_approval_request", "_approval_response")

_OF_IDS = "type role id object index call_id tool_call_id tool_use_id caller phase policy_version"
_BOOKKEEPING = (
    "finish_reason stop_reason stop_sequence logprobs token_logprobs token_ids prompt_token_ids cache_control weight "
    "prefix created created_at timestamp model usage"
)
NOT_CONTENT = frozenset(f"{_OF_IDS} {_BOOKKEEPING} encrypted_content signature extra_content".split())
"""Fields that are never shown, beside those of thoughts. An unknown field is shown as JSON."""
_THOUGHT_FIELD = re.compile(r"(?:think(?:ing)?|thoughts?|reasoning)(?:[A-Z_]\w*)?")
"""Names of fields in which programs keep thoughts: reasoning_content, thinking_blocks, thoughtSignature, thought."""
MEDIA = frozenset(("attachments", "audio", "documents", "file", "files", "image", "images", "media", "video", "videos"))
"""Fields of a message that hold more than text."""

_PLAIN = ("system", "user", "assistant")
"""Roles of the messages of which nothing is converted, if they are text."""
Block = tuple[str, Any]
"""`part`, `thought`, `call` or `result`, and the content part, the text, the tool call or the message."""


def messages(items: Any, where: str) -> tuple[list[Message], str]:
    """The messages of a conversation, and the name of its format. Raises `RowError`."""
    found, forms = _convert_all(parsed(items, where, "messages", only_lists=True), where)
    found = [each if "role" in each or "message" in each else {"role": "user", **each} for each in found]
    return _link_results(found), next(iter(forms), OPENAI)


def as_chat(items: Sequence[Message]) -> list[Message]:
    """Converts messages of a program; a message of no known form is kept unchanged."""
    return list(items) if all(map(_is_openais, items)) else _link_results(_convert_all(items, None)[0])


def is_bookkeeping(key: str, value: Any) -> bool:
    """Whether a field is left out: it holds an id, bookkeeping, thoughts, or nothing."""
    if key in NOT_CONTENT or _THOUGHT_FIELD.fullmatch(key) or is_empty(value):
        return True
    return key == "status" and value in ("completed", "success")


def is_empty(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)


def odd_fields(message: Message) -> list[str]:
    """The fields of what a user or an agent says that a judge is shown as JSON, for want of a place."""
    known = ("content", "tool_calls", "function_call", "name", "refusal", *MEDIA)
    said = message.get("role") != "tool"
    return [name for name, each in message.items() if said and name not in known and not is_bookkeeping(name, each)]


def misnamed_assistant(messages: Sequence[Message]) -> tuple[str, str] | None:
    """The problem and its remedy, where other roles speak than those that are known, and none is the assistant's."""
    if any(message.get("role") == "assistant" for message in messages):
        return None
    roles = dict.fromkeys(role for message in as_chat(messages) if isinstance(role := message.get("role"), str))
    strange = [role for role in roles if role not in KNOWN_ROLES]
    if "assistant" in roles or not strange:
        return None
    told = "user" in roles or len(strange) == 1
    renamed = [f"{strange[-1]} to assistant", *([] if told else [f"{strange[0]} to user"])]
    return (
        f"none of its messages is the assistant's. Its roles: {', '.join(roles)}.",
        f"Rename {' and '.join(renamed)}, if the judge is to score what {strange[-1]} says.",
    )


def _convert_all(items: Sequence[Any], where: str | None) -> tuple[list[Message], dict[str, None]]:
    """The messages, and the names of their forms. Raises `RowError` for an unknown item, unless `where` is None."""
    found: list[Message] = []
    forms: dict[str, None] = {}
    for number, item in enumerate(items):
        if not is_object(item):
            raise refused(str(where), f"{number}: it is no message.", "A message is an object with a role.")
        said, form = [item], ""
        try:
            if not (item.keys() == {"role", "content"} and item["role"] in _PLAIN and isinstance(item["content"], str)):
                said, form = convert(item, str(where), f"{number}")
        except RowError:
            if where is not None:
                raise
        if form:
            forms[form] = None
        for message in said:
            if RESPONSES in forms and form in (RESPONSES, "") and found and _goes_on(found[-1], message):
                found[-1] = _merged(found[-1], message)
            else:
                found.append(message)
    return found, forms


def _is_openais(message: Any) -> bool:
    """Whether it is a text, tool calls with ids, or the result of one in OpenAI's form, and nothing else, as most
    messages are."""
    match message:
        case {"role": "tool", "tool_call_id": str(number), "content": str()}:
            return len(message) == 3 and bool(number)
        case {"role": "assistant", "tool_calls": [*calls], "content": str() | None}:
            return len(message) == 3 and all(map(_is_openais_call, calls))
        case {"role": str(role), "content": str()}:
            is_known = role == KNOWN_ROLES.get(role.lower(), role) and role not in _CALLING
            return len(message) == 2 and is_known and role not in ("tool", "function")
        case _:
            return False


def _is_openais_call(call: Any) -> bool:
    match call:
        case {"id": str(number), "function": {"arguments": str()}}:
            return bool(number)
        case _:
            return False


def _goes_on(last: Message, message: Message) -> bool:
    """Whether an item belongs to the turn before it: Responses has an item for each thought, text and call of one."""
    if not last.get("role") == message.get("role") == "assistant" or "function_call" in last:
        return False
    if last.get("content") is None and not last.get("tool_calls"):
        return True
    return message.get("content") is None and "tool_calls" in message and "reasoning_content" not in message


def _merged(last: Message, message: Message) -> Message:
    thoughts = [each["reasoning_content"] for each in (last, message) if each.get("reasoning_content")]
    calls = [call for each in (last, message) for call in as_list(each.get("tool_calls"))]
    whole = {
        **last,
        **message,
        "content": last.get("content") if message.get("content") is None else message["content"],
    }
    whole |= {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
    return whole | ({"tool_calls": calls} if calls else {})


def convert(item: Message, where: str, place: str) -> tuple[list[Message], str]:
    """The chat messages of an item, and the name of its form, which is empty for a chat message. Raises `RowError` for
    an item without a role, or of a speaker that is not known."""
    found: list[Message] = []
    named = ""
    for message, form in _open(item, where, place):
        parts, blocks = message.get("content"), list[Block]()
        for part in as_list(parts):
            kind, what, whose = _kind(part)
            form = form or whose
            blocks += _read_part(part, kind, what)
        named = named or form
        found += _assemble(message, blocks) if is_list(parts) else [message]
    return found, named


def _open(item: Message, where: str, place: str) -> Iterator[tuple[Message, str]]:
    """The messages in an item, with its parts as their content, and the form's name where the item tells it."""
    kind, parts, content = item.get("type"), item.get("parts"), item.get("content")
    kind = kind if isinstance(kind, str) else ""
    given = parts if is_list(parts) else [parts] if parts else []
    if "role" not in item and is_object(item, "message", "finish_reason"):
        yield item, ""
    elif "role" not in item and is_object(item, "from", "value"):
        yield _speak(item["from"], item["value"], where, place), _SHAREGPT
    elif "human" in item and len(item) == 2 and is_object(item, "assistant|gpt"):
        yield {"role": "user", "content": item["human"]}, _SHAREGPT
        yield {"role": "assistant", "content": first_of(item, "assistant", "gpt")}, _SHAREGPT
    elif given and all(is_object(part, "part_kind") for part in given):
        for role, run in groupby(given, lambda part: _OF_PYDANTIC_AI.get(str(part["part_kind"]), "assistant")):
            yield {"role": role, "content": list(run)}, "Pydantic AI messages"
    elif given and not content and all(isinstance(part, str | dict) for part in given):
        typed = all(is_object(part, "type") for part in given)
        more = {"content": [{"text": part} if isinstance(part, str) else part for part in given], "parts": None}
        yield (
            _normalize({"role": "user", **item, **more}, where, place),
            "messages with parts" if typed else "Gemini contents",
        )
    elif is_list(calls := item.get("toolInvocations")):
        done = [{"type": "tool-invocation", "toolInvocation": call} for call in calls]
        more = {"content": [*done, *([{"type": "text", "text": content}] if content else [])], "toolInvocations": None}
        yield _normalize({**item, **more, "parts": None}, where, place), _SDK
    elif (said := _of_langchain(item)) is not None:
        yield _normalize(said, where, place), _LANGCHAIN
    elif "role" not in item and (kind in _ITEMS or kind.endswith(_ITEM_ENDINGS)):
        yield {"role": "assistant", "content": [item]}, RESPONSES
    elif kind == "message" and "role" in item:
        inner = {name: each for name, each in item.items() if name not in _ENVELOPE}
        yield _normalize(inner, where, place), RESPONSES
    else:
        yield _normalize(item, where, place), ""


def _of_langchain(item: Message) -> Message | None:
    """A message of LangChain, also within its serialization, with its role; None for anything else."""
    match item:
        case {"lc": _, "kwargs": {**inner}, "id": [*_, last]}:
            item = {"type": last, **inner}
        case {"type": kind, "data": {"content": _, **_rest} as data} if len(item) == 2:
            item = {**data, "type": kind}
        case _:
            pass
    kind = str(item.get("type")).removesuffix("Chunk").removesuffix("Message").lower()
    if ("role" in item and kind != "chat") or "content" not in item or kind not in _OF_LANGCHAIN:
        return None
    extra = given if is_object(given := item.get("additional_kwargs")) else {}
    names = ["tool_calls", "tool_call_id", "name", "reasoning_content"]
    names += [] if item.get("tool_calls") or extra.get("tool_calls") else ["function_call"]
    beside = {name: value for name in names if (value := item.get(name) or extra.get(name))}
    return {"role": item.get("role", "other") if kind == "chat" else kind, "content": item["content"], **beside}


def _speak(speaker: Any, value: Any, where: str, place: str) -> Message:
    """A turn of ShareGPT. Raises `RowError` for an unknown speaker."""
    role = {**_CALLERS, **KNOWN_ROLES, "function": "tool"}.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        known = ", ".join(dict.fromkeys([*KNOWN_ROLES, *_CALLERS]))
        raise refused(
            where, f"{place}.from: {speaker!r} is no speaker that is known.", f"ShareGPT's speakers are {known}."
        )
    parsed = loaded(value) if isinstance(value, str) and speaker in _CALLERS else None
    calls = parsed if is_list(parsed) else [parsed]
    if calls and all(is_object(call, "name", "arguments|parameters") for call in calls):
        return {"role": "assistant", "content": None, "tool_calls": [tool_call(call) for call in calls]}
    return {"role": role, "content": value}


def _normalize(message: Message, where: str, place: str) -> Message:
    """A chat message with its role and its calls in OpenAI's form, without empty fields."""
    if "role" not in message:
        raise refused(where, f"{place}.role: field required", "Rows hold messages and tools in OpenAI's chat format.")
    role, extra = message["role"], message.get("additional_kwargs")
    message = {name: value for name, value in message.items() if value is not None or name == "content"}
    if is_object(extra, "reasoning_content"):  # as LangChain's messages keep it, also under roles
        rest = {name: value for name, value in extra.items() if name != "reasoning_content"}
        message |= {"reasoning_content": extra["reasoning_content"], "additional_kwargs": rest}
    if isinstance(role, str):
        message["role"] = KNOWN_ROLES.get(role.lower(), role)
        if role in _CALLING:
            message |= _speak(role, message.get("content"), where, place)
    if is_list(calls := message.get("tool_calls")):
        message["tool_calls"] = [tool_call(call) for call in calls]
    if (name := thought_field(message)) is not None:
        message["reasoning_content"] = message.pop(name)
    return message


def thought_field(message: Message) -> str | None:
    """The field that holds a message's thoughts as text under another name than `reasoning_content`; None without."""
    if message.get("reasoning_content"):
        return None
    named = (name for name, value in message.items() if _THOUGHT_FIELD.fullmatch(name) and isinstance(value, str))
    return next((name for name in named if message[name]), None)


def _kind(part: Any) -> tuple[str, str, str]:
    """The name of a part in `_PARTS`, what it is, and whose; a part of no known name is a `part`."""
    if not is_object(part):
        return "", "part", ""
    name, otherwise = first_of(part, "part_kind", "type"), ""
    if not isinstance(name, str):  # the field that holds it
        held = (name for name in part if name in _PARTS and (name == "text" or is_object(part[name])))
        name, otherwise = next(held, ""), _BEDROCK
    elif name not in _PARTS and "toolCallId" in part:
        name = "tool-NAME"
    elif name not in _PARTS:
        endings = (("NAME_tool_result", "tool_use_id"), ("NAME_call", "type"), ("NAME_call_output", "type"))
        known = (each for each, field in endings if name.endswith(each.removeprefix("NAME_")) and field in part)
        name = next(known, "")
    what, whose = _PARTS.get(name, ("part", ""))
    return name, what, whose or (otherwise if name else "")


def _read_part(part: Any, kind: str, what: str) -> Iterator[Block]:
    """The blocks of a part; one of no known kind is itself."""
    holder = "toolInvocation" if kind == "tool-invocation" else kind
    inner = part.get(holder) if kind else None
    body = {**{name: value for name, value in part.items() if name != holder}, **inner} if is_object(inner) else part
    if what == "thought" or (what == "text" and part.get("thought") is True):
        if (text := "\n".join(_said_in(body))) or kind != "reasoning":
            yield "thought", text or "[redacted]"
    elif what == "text" and isinstance(text := body.get("text", body.get("content")), str):
        rest = {name: value for name, value in body.items() if value and name not in (*_NOISE, "text", "content")}
        yield "part", {"type": "text", "text": text, **rest}
    elif what == "call":
        yield from _call(part if kind in _CODE else body, kind)
    elif what == "result" and (id_of(body) or name_of(body) or kind in _CODE):
        yield "result", _result(body, kind)
    elif what != "nothing":
        yield "part", _shown(part)


def _said_in(value: Any) -> list[str]:
    """The texts of a thought, at any depth."""
    if isinstance(value, str):
        return [value] if value else []
    if is_list(value):
        return [text for each in value for text in _said_in(each)]
    return _said_in(first_of(value, *_TEXTS)) if is_object(value) else []


def _call(body: Message, kind: str) -> Iterator[Block]:
    """A call, with its result or error if it has one already."""
    fields = {name: value for name, value in body.items() if name not in _NOISE and value is not None}
    output = next((fields.pop(name) for name in _RESULTS if name in fields), None)
    error = next((fields.pop(name) for name in _ERRORS if name in fields), None)
    if kind in _CODE:
        fields = {"name": "executable_code", "arguments": body[kind]}
    elif kind == "tool-NAME":
        fields = {"name": str(body.get("type")).removeprefix("tool-"), **fields}
    elif not name_of(fields) and kind == "NAME_call":
        arguments = {name: value for name, value in fields.items() if name not in ("id", "call_id")}
        fields = {"id": id_of(body), "name": str(body["type"]).removesuffix("_call"), "arguments": arguments}
    call = tool_call({"name": "", **fields})
    yield "call", call
    if output is not None or error is not None:
        if body.get("type") == "image_generation_call":
            output = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{output}"}}]
        failed = {"is_error": True} if output is None else {}
        yield "result", _result({"id": call.get("id"), "content": error if output is None else output, **failed}, "")


def _result(body: Message, kind: str) -> Message:
    used = next((name for name in _RESULTS if body.get(name) is not None), "content")
    content: Any = body.get(used)
    failed = body.get("is_error") is True or body.get("status") == "error" or kind == "retry-prompt"
    if is_object(content, "type", "value"):
        failed, content = str(content["type"]).startswith("error"), content["value"]
    found: Message = {"role": "tool", "content": _content(content)}
    found |= {"tool_call_id": id_of(body)} if id_of(body) else {}
    found |= {"name": name_of(body)} if name_of(body) else {}
    taken = {*_NOISE, *IDS, *NAMES, used, "is_error"}
    found |= {name: value for name, value in body.items() if name not in taken and value is not None}
    return found | ({"is_error": True} if failed else {})


def _content(value: Any) -> Any:
    """A result's text or parts; anything else as JSON."""
    if isinstance(value, str) or value is None:
        return value or ""
    parts = value if is_list(value) else [value]
    if parts and all(
        is_object(part) and (_kind(part)[0] or part.get("type") or part.keys() == {"json"}) for part in parts
    ):
        return joined([_shown(part) for part in parts])
    return as_json(value)


def _shown(part: Any) -> Any:
    """A part as content of a chat message: images in OpenAI's form, everything else unchanged."""
    match part:
        case {"text": str(text), **rest} if rest.get("type") == "text" or len(part) < 4:
            return {"type": "text", "text": text, **{name: each for name, each in rest.items() if name not in _NOISE}}
        case {"json": value} if len(part) == 1:
            return {"type": "text", "text": as_json(value)}
        case (
            {"type": "image", "source": {"type": "base64", "media_type": media, "data": data}, **rest}
            | {"type": "image", "data": str(data), "mimeType": media, **rest}  # of the Model Context Protocol
        ):
            url = f"data:{media};base64,{data}"
        case (
            {"type": "image", "source": {"url": str(url)} | {"path": str(url)}, **rest}
            | {"type": "image", "image": str(url), **rest}
            | {"type": "input_image" | "computer_screenshot", "image_url": str(url), **rest}
        ):
            pass
        case {"image": {"format": str(form), "source": {"bytes": str(data)}}, **rest}:
            url = f"data:image/{form};base64,{data}"
        case {"inlineData": {**inner}, **rest} | {"inline_data": {**inner}, **rest} if str(
            media := first_of(inner, "mimeType", "mime_type")
        ).startswith("image/"):
            url = f"data:{media};base64,{inner.get('data')}"
        case _:
            return part
    return {"type": "image_url", "image_url": {"url": url}, **{k: v for k, v in rest.items() if k not in _NOISE}}


def _assemble(message: Message, blocks: Sequence[Block]) -> list[Message]:
    """The messages of one message's blocks: results stand alone, what stands between them is a message of its role."""
    known = as_list(message.get("tool_calls"))
    rest = {
        name: value for name, value in message.items() if name not in ("content", "tool_calls") and value is not None
    }
    found: list[Message] = []
    turn: Message | None = None
    if known:
        found.append(turn := {**rest, "content": None, "tool_calls": list(known)})
    for kind, value in blocks:
        if kind == "result":
            found.append(value)
            turn = None
            continue
        if kind == "call" and any(_is_same_call(value, call) for call in known):
            continue
        if turn is None:
            found.append(turn := {**rest, "content": None})
        if kind == "thought":
            turn["reasoning_content"] = "\n".join(filter(None, [turn.get("reasoning_content"), value]))
        elif kind == "call":
            turn["tool_calls"] = [*turn.get("tool_calls", ()), value]
        else:
            turn["content"] = [*(turn["content"] or ()), value]
    for each in found:
        each["content"] = joined(each["content"]) if is_list(each["content"]) else each["content"]
    if found and all(each["role"] == "tool" for each in found):  # there is no message to hold the rest
        found[0] = {**rest, **found[0]}
    return found or [{**rest, "content": ""}]


def _is_same_call(block: Message, call: Any) -> bool:
    """Whether a call of `tool_calls` is that of a block: LangChain writes both, and no input yet while streaming."""
    said, told = block["function"], call.get("function") if is_object(call) else None
    if not block.get("id") or not is_object(told) or (call.get("id"), told.get("name")) != (block["id"], said["name"]):
        return False
    return not (given := loaded(said["arguments"])) or loaded(str(told.get("arguments") or "{}")) == given


def _link_results(found: list[Message]) -> list[Message]:
    """The messages with legacy function calls as tool calls; calls without an id get one, and results their call's."""
    linked: list[Message] = []
    pending: list[tuple[str, str]] = []  # (id, name) of calls without a result
    for number, message in enumerate(found):
        if is_object(legacy := message.get("function_call")) and not message.get("tool_calls"):
            message = {**message, "tool_calls": [tool_call({"type": "function", "function": legacy})]}
            del message["function_call"]
        role, name = message.get("role"), message.get("name")
        is_open = role == "function" or (role == "tool" and not message.get("tool_call_id"))
        if is_open and (same := [call for call in pending if call[1] == name] or pending):
            message = {**message, "role": "tool", "tool_call_id": same[0][0]}
        if message.get("role") == "tool":
            pending = [call for call in pending if call[0] != message.get("tool_call_id")]
        if is_list(calls := message.get("tool_calls")) and calls:
            named = enumerate(calls)
            calls = [{**it, "id": it.get("id") or f"call_{number}_{n}"} if is_object(it) else it for n, it in named]
            message = {**message, "tool_calls": calls}
            # a result without an id answers the newest turn
            called = [(str(it["id"]), it.get("function")) for it in calls if is_object(it)]
            pending = [(number, name_of(body) if is_object(body) else "") for number, body in called]
        linked.append(message)
    return linked
