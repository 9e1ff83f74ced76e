"""Logs of programs: calls to language models with their requests, batches of them, and the traces of tracers.

    {"request": {"messages": […]}, "response": {"choices": […]}}             proxies; Gemini's and Vertex's batches
    {"messages": […], "response": {"choices": […]}, "model": …}              LiteLLM
    {"prompt": "Where?", "choices": [{"text": "Here."}], "model": …}         text completions
    {"modelInput": {…}, "modelOutput": {…}, "recordId": …}                   Bedrock's batches
    {"input": {"inputBodyJson": {…}}, "output": {"outputBodyJson": {…}}}     Bedrock's invocation log
    {"custom_id": "7", "response": {"status_code": 200, "body": {…}}}        batches of OpenAI, Anthropic and Gemini
    {"instruction": "Sum up.", "input": "The text", "output": "A summary"}   instruction data, evaluation tools, dumps
    {"id": "o1", "traceId": "t1", "type": "GENERATION", "input": [{…}], …}   Langfuse's traces and observations
    {"id": "r1", "trace_id": "r1", "run_type": "chain", "inputs": {…}, …}    LangSmith's runs

Each choice is an attempt, and each trace. Requests that failed are counted, not judged. If the model calls of a trace
are exported too, its conversation is that of the last call, which repeats the earlier ones; conversations that no later
call repeats (sub-agents') become additional histories.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.formats import chat
from gavel.scenarios.formats.fields import (
    SYSTEM,
    after_context,
    are_several,
    attempt,
    find_conversation,
    offered_tools,
    prompt,
    system_message,
    talk,
    without,
)
from gavel.scenarios.formats.row import (
    Attempt,
    Format,
    Row,
    RowError,
    Source,
    as_json,
    as_list,
    as_message,
    at,
    cell,
    first_line,
    first_of,
    is_list,
    is_object,
    with_single_score,
)
from gavel.scenarios.trajectory import History, MessageOrChoice

_QUESTIONS = ("messages", "contents", "input", "prompt")
_CUT = ("length", "max_tokens", "MAX_TOKENS", "incomplete")
_UNREAD = "its choices hold neither message nor text"


@dataclass(frozen=True, slots=True)
class Answers:
    """The attempts in a response."""

    attempts: list[list[Any]]
    """The messages of each choice."""
    ended: dict[str, Any]
    """Status of a truncated attempt."""
    problem: str = ""
    """Reason why there is no attempt."""


def read_request(body: Message) -> list[Any]:
    """The messages of a request."""
    asked = next((body[name] for name in _QUESTIONS if name in body), None)
    return [*system_message(first_of(body, *SYSTEM)), *as_message(asked or "", "user")]


def read_response(body: Any) -> Answers:
    """The attempts in a response body, or the reason why there is none: an error, or an unknown form."""
    if not is_object(body):
        return Answers([], {}, "no response")
    choices, candidates, output = body.get("choices"), body.get("candidates"), body.get("output")
    ends = [body.get(name) for name in ("status", "stopReason", "stop_reason")]
    if is_list(choices) and choices and all(is_object(choice, "message|text") for choice in choices):
        said = [as_message(choice.get("message", choice.get("text")), "assistant") for choice in choices]
        ends = [choice.get("finish_reason") for choice in choices]
    elif is_list(candidates) and candidates and all(is_object(each, "content") for each in candidates):
        said = [[{"role": "model", **each["content"]}] for each in candidates]
        ends = [first_of(each, "finishReason", "finish_reason") for each in candidates]
    elif is_list(output) and output:
        said = [output]
    elif is_object(output, "message"):
        said = [[output["message"]]]
    elif is_list(body.get("content")) and not body.get("error"):
        said = [[{"role": "assistant", "content": body["content"]}]]
    else:
        return Answers([], {}, _problem(body.get("error"), _UNREAD if choices else "no choices"))
    return Answers(said, {"status": "truncated"} if any(reason in _CUT for reason in ends) else {})


def _problem(error: Any, otherwise: str) -> str:
    """The code or type of an error, at any depth."""
    while is_object(error, "error"):
        error = error["error"]
    return str(first_of(error, "code", "type", "status") or otherwise) if is_object(error) else otherwise


_PAIRS = (
    ("request", "response"),
    ("modelInput", "modelOutput"),
    ("request_body", "response_body"),
    ("input.inputBodyJson", "output.outputBodyJson"),
    ("sample", "sample"),
    ("item", "sample"),
)
"""Where request and response stand in a row (dotted paths). OpenAI's graders have the sample beside the item."""


def _split_exchange(value: Any) -> tuple[Message, Any, Collection[str]] | None:
    """The request, the response, and the row's fields that held them; None if it holds no exchange."""
    if not is_object(value):
        return None
    for asked, answered in _PAIRS:
        request, holder = _body(at(value, asked)), answered.partition(".")[0]
        if is_object(request, "|".join(_QUESTIONS)) and (holder in value or "error" in value):
            used = {asked.partition(".")[0], holder} - {"item"}  # its other fields are the task's
            return request, _body(at(value, answered)), used
    choices, response = value.get("choices"), _body(value.get("response"))
    if is_object(value, "prompt") and "messages" not in value and is_list(choices) and all(map(is_object, choices)):
        return value, value, ("prompt", "choices")
    is_answer = is_object(response, "choices|candidates|output|error") or (
        is_object(response, "content") and is_list(response["content"]) and "role" not in response
    )
    used = (*_QUESTIONS, "response", "tools", "system", "systemInstruction")
    return (value, response, used) if is_answer and is_object(value, "|".join(_QUESTIONS)) else None


def _body(value: Any) -> Any:
    """A body, possibly stored as JSON text or under `body`."""
    body = cell(value)
    return body["body"] if is_object(body, "body") and is_object(body["body"]) else body


def _read_exchanges(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in rows:
        request, response, used = _split_exchange(row.value) or ({}, {}, ())
        yield from _answer(row, request, read_response(response), source, EXCHANGES.name, without(row.value, *used))


def _answer(
    row: Row, request: Message, answers: Answers, source: Source, form: str, fields: Message
) -> Iterator[Attempt]:
    """One attempt for each answer to a request; failed requests are counted."""
    if answers.problem:
        why = "response not read" if answers.problem == _UNREAD else "request failed"
        source.leave_out(row, f"{why} ({answers.problem})")
    prompts = as_list(request.get("prompt"))
    if prompts and answers.attempts and not any(isinstance(each, str | dict) for each in prompts):
        source.leave_out(row, "request whose prompt is token ids: its text is not known", len(answers.attempts))
        return
    for number, answer in enumerate(answers.attempts):
        if prompts and all(isinstance(each, str) for each in prompts):  # each has as many choices
            request = {**request, "prompt": prompts[number * len(prompts) // len(answers.attempts)]}
        yield attempt(row, form, read_request(request), answer, fields, tools=offered_tools(request), **answers.ended)


EXCHANGES = Format(
    "requests with responses",
    ("request|modelInput", "response|modelOutput"),
    lambda value: _split_exchange(value) is not None,
    _read_exchanges,
)


def _read_batch(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    """The answers of a batch, which are joined by their ids with the requests of its input file."""
    requests: dict[tuple[str, str], Message] = {}
    answers = [row for row in rows if not _requests(row.value)]
    for row in rows:
        for each in _requests(row.value):
            body: Message = each[_name(each)[0]]
            if requests.setdefault(_name(each), body) != body:
                raise RowError(
                    f"{row.where}: two different requests are called {_name(each)[1]}.",
                    "Score each batch with its own input file.",
                )
    if not answers:
        raise RowError(f"{rows[0].where} is a request of a batch, and no answer is there.", "Name its output as well.")
    if not requests:
        raise RowError(
            f"{rows[0].where} is an answer of a batch, without what was asked.",
            "Name the batch's input file as well: gavel score INPUT OUTPUT.",
        )
    for row in answers:
        found, request = _read_result(row.value), requests.get(_name(row.value))
        if request is None and not found.problem:
            source.leave_out(row, "answer to no request of the input file")
        else:
            yield from _answer(row, request or {}, found, source, BATCH.name, {"custom_id": _name(row.value)[1]})


def _name(row: Message) -> tuple[str, str]:
    """The field with the requests of its vendor (Gemini, Anthropic, OpenAI), and the id of a request or an answer."""
    field = "request" if "key" in row else "params" if is_object(row, "params|result") else "body"
    return field, as_json(row.get("custom_id", row.get("key")))


def _read_result(row: Message) -> Answers:
    """The responses to one request: of OpenAI and Gemini under `response`, of Anthropic under `result`."""
    result = first_of(row, "result", "response")
    result = result if is_object(result) else {}
    body, status = first_of(result, "message", "body") or result, result.get("status_code", 200)
    if is_object(body) and status == 200 and not row.get("error") and result.get("type", "succeeded") == "succeeded":
        return read_response(body)
    error = row.get("error") or result.get("error") or (body.get("error") if is_object(body) else None)
    return Answers([], {}, _problem(error, str(result.get("type", f"status {status}"))))


def _requests(value: Any) -> list[Message]:
    """The requests of a batch that a value is, or that it holds under `requests`; empty for anything else."""
    rows = as_list(value["requests"]) if is_object(value, "requests") else [value]
    are_requests = all(is_object(each, "custom_id|key") and is_object(each.get(_name(each)[0])) for each in rows)
    return rows if are_requests and not any(is_object(each, "response|result|error") for each in rows) else []


def _is_result(value: Any) -> bool:
    """Whether it is an answer of a batch: an id, and a body or an error without what was asked."""
    if not is_object(value, "custom_id", "response|result|error") and not is_object(value, "key", "response|error"):
        return False
    said = first_of(value, "result", "response")
    return not is_object(value, "|".join(("request", *_QUESTIONS))) and (said is None or is_object(said))


BATCH = Format(
    "batch output",
    ("custom_id", "response|result"),
    lambda value: bool(_requests(value)) or _is_result(value),
    _read_batch,
)


def _read_logged(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in rows:
        fields: Message = row.value
        given, answered = ("input", "output") if "output" in fields else ("inputs", "outputs")
        asked = fields.get(given)
        rest = without(fields, given, answered, "tools")
        if "instruction" in fields:
            rest = without(fields, answered, "tools")
            asked = prompt(row, rest)
        elif before := after_context(rest, []):
            asked = [*before, *talk(row, asked, "user", _LISTS)]
        before, output = _conversation(row, asked, None), fields[answered]
        for each in output if are_several(output) and not any(map(is_list, output)) else [output]:
            said = _conversation(row, asked, each)
            if not said:
                source.leave_out(row, "row without input and output")
                continue
            is_after = said[: len(before)] == before
            answer = said[len(before) :] if is_after else said
            yield attempt(row, LOGGED.name, before if is_after else None, answer, rest, tools=offered_tools(asked))


LOGGED = Format(
    "inputs and outputs",
    ("input|inputs|instruction", "output|outputs"),
    lambda value: is_object(value, "output", "input|instruction") or is_object(value, "inputs", "outputs"),
    _read_logged,
)


_IDS = ("traceId", "trace_id", "id", "run_id")
_PARENTS = ("parentObservationId", "parent_observation_id", "parent_run_id", "parent_run_ids")
_TIMES = ("dotted_order", "startTime", "start_time")
_CALLS = ("generation", "llm", "chat_model")
"""Kinds of records that are model calls."""
_KEPT = (
    *("name", "userId", "user_id", "sessionId", "session_id", "session_name", "tags"),
    *("environment", "version", "release"),
)


def _read_traces(rows: Sequence[Row], source: Source, form: str) -> Iterator[Attempt]:
    traces: dict[str, list[tuple[Row, Message]]] = {}
    for row in rows:
        value: Message = row.value
        name = as_json(first_of(value["trace"], "id") if is_object(value.get("trace")) else first_of(value, *_IDS))
        known = traces.get(name, [])
        if any(_is_whole(each) for _, each in known) and _is_whole(value):
            name = f"{name} {row.where}"  # rows of other programs may share an id
        traces.setdefault(name, []).extend((row, record) for record in _records(value))
    for members in traces.values():
        if made := _trace(members[0][0], [record for _, record in members], form):
            yield made
        else:
            source.leave_out(members[0][0], f"trace without {' and '.join(_SIDES[form])}")


def _records(value: Message) -> Iterator[Message]:
    """A record, and those within it."""
    yield value["trace"] if is_object(value.get("trace")) else value
    for child in (*as_list(value.get("observations")), *as_list(value.get("child_runs"))):
        if is_object(child):
            yield from _records(child)


def _is_whole(record: Message) -> bool:
    """Whether it is the record of a trace, and not of a part of it."""
    return "run_type" not in record and not (first_of(record, *_IDS[:2]) and "type" in record)


def _trace(row: Row, records: Sequence[Message], form: str) -> Attempt | None:
    """The attempt of a trace; None if it holds neither input nor output."""
    asked, answered = _SIDES[form]
    records = sorted(records, key=lambda each: str(first_of(each, *_TIMES) or ""))
    parts = [each for each in records if not _is_whole(each)]
    roots = [each for each in records if _is_whole(each)]
    roots += [each for each in parts if not first_of(each, *_PARENTS)]
    root, last = (roots or records)[0], (parts or records)[-1]
    calls = [each for each in parts if str(first_of(each, "run_type", "type")).lower() in _CALLS]
    with_messages = [each for each in calls if find_conversation(each.get(asked), _LISTS)]
    calls = with_messages or ([] if root.get(asked) or root.get(answered) else calls)
    turns = [(each.get(asked), each.get(answered)) for each in calls or [root]]
    found = _longest([_conversation(row, given, said) for given, said in turns if given or said])
    if not found:
        return None
    invoked = (extra.get("invocation_params") for each in records if is_object(extra := cell(each.get("extra"))))
    tools = next(filter(None, map(offered_tools, [*invoked, *(each.get(asked) for each in records)])), None)
    whole = (roots or [last])[0]  # a part of a trace may be exported without its root
    said, *others = found
    ended: dict[str, Any] = {}
    if error := _error(whole) or ("" if whole.get(answered) else _error(last)):
        ended = {"status": "failed", "status_reason": first_line(error)}
    elif not whole.get(answered) and not any(message.get("role") == "assistant" for message in said):
        state = f" (status {last['status']})" if last.get("status") else ""
        ended = {"status": "failed", "status_reason": f"it has no {answered}{state}"}
    kept = (*_KEPT, "extra" if form == LANGSMITH.name else "metadata")
    fields = {name: root[name] for name in kept if root.get(name) is not None}
    fields["trace_id"] = first_of(root, *_IDS)
    scores, stats = as_list(cell(root.get("scores"))), cell(root.get("feedback_stats"))
    metrics = {str(each["name"]): each["value"] for each in scores if is_object(each, "name", "value")}
    metrics |= {
        name: each["avg"] for name, each in (stats if is_object(stats) else {}).items() if is_object(each, "avg")
    }
    example = root.get("reference_example_id")
    return attempt(
        row,
        form,
        None,
        said,
        fields,
        task={"reference_example_id": example} if example else None,
        tools=tools,
        metrics=with_single_score(metrics),
        additional_histories=[History(messages_and_choices=list[MessageOrChoice](m), tools=tools) for m in others],
        **ended,
    )


def _error(record: Message) -> str:
    """The error that a record ended with, if there is one."""
    if record.get("level") == "ERROR":
        return str(first_of(record, "statusMessage", "status_message") or "level ERROR")
    state = str(record.get("status") or "")
    return str(record.get("error") or (f"status {state}" if state.lower() in ("error", "failed") else ""))


def _fits_langfuse(value: Any) -> bool:
    if is_object(value, "trace", "observations"):
        return True
    observation = is_object(value, "traceId|trace_id", "type", "id", "startTime|start_time")
    trace = is_object(value, "id", "timestamp", "input|output|observations") and "messages" not in value
    return (observation or trace) and "run_type" not in value


LANGFUSE = Format(
    "Langfuse export",
    ("id", "traceId|trace_id|timestamp", "input|output"),
    _fits_langfuse,
    partial(_read_traces, form="Langfuse export"),
)
LANGSMITH = Format(
    "LangSmith runs",
    ("id|run_id", "run_type", "inputs|outputs"),
    lambda value: is_object(value, "run_type", "id|run_id", "inputs|outputs"),
    partial(_read_traces, form="LangSmith runs"),
    task="reference example",
)
_SIDES = {LANGFUSE.name: ("input", "output"), LANGSMITH.name: ("inputs", "outputs")}


_LISTS = ("messages", "input", "prompt", "chat_history")
_OUTPUTS = ("messages", "output", "generations", "choices", "message")


def _conversation(row: Row, given: Any, answered: Any) -> list[Message]:
    """The input's messages and the output's; the output's alone if it holds the whole conversation (LangGraph)."""
    before, _ = chat.messages(talk(row, given, "user", _LISTS), row.where)
    after, _ = chat.messages(talk(row, answered, "assistant", _OUTPUTS), row.where)
    if not find_conversation(given, _LISTS) and any(message.get("role") == "user" for message in after):
        return after  # the output is a whole conversation, and the input holds only template values for its beginning
    repeated = len(after) > len(before) and [_core(m) for m in after[: len(before)]] == [_core(m) for m in before]
    return after if repeated else [*before, *after]


def _longest(conversations: Sequence[list[Message]]) -> list[list[Message]]:
    """Messages lists that are no prefix of a later one, the longest first: a call repeats the conversation so far."""
    kept: list[list[Message]] = []
    cores = [[_core(message) for message in each] for each in conversations]
    for number, core in enumerate(cores):
        if core and not any(other[: len(core)] == core for other in cores[number + 1 :]):
            kept.append(conversations[number])
    return sorted(kept, key=len, reverse=True)


def _core(message: Message) -> tuple[Any, ...]:
    """The content that two loggings of one message share."""
    named = [as_json(call.get("function")) for call in as_list(message.get("tool_calls")) if is_object(call)]
    return message.get("role"), as_json(message.get("content") or ""), *named
