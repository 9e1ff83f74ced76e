"""Asks questions in batches, mostly at half the price, through a cassette that collects what it cannot answer.

    batches = Batches(BatchJob(directory), prices, budget)
    while True:
        await ask_everything(BatchCassette(path, batches))      unknown questions raise `NotYetError`
        if not await batches.advance():                         sends them, and waits for the replies
            break

Each round asks everything again from the start: stored replies are read from file, so that prompts need not be held for
a day, and a restarted process resumes. The repair of an unusable reply is a question of the next round. Requests that
failed temporarily, or were not processed before the batch expired, are resent up to `_ATTEMPTS` times.
"""

import asyncio
import fcntl
import json
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

import openai
from pydantic import BaseModel, JsonValue, ValidationError

from gavel.base.errors import first_error
from gavel.base.files import sync, write_atomically
from gavel.llm.batch_api import BatchApi, batch_price, request_line
from gavel.llm.budget import Budget
from gavel.llm.cassette import Cassette, Question
from gavel.llm.completion import FORMATS, dialect_of, endpoint_of
from gavel.llm.errors import LlmError, NotYetError
from gavel.llm.failures import as_llm_error, is_permanent, may_be_the_format, may_pass, read_failure, status_error
from gavel.llm.prices import Prices
from gavel.llm.prompt_cut import check_not_cut
from gavel.llm.providers import is_local, load_litellm
from gavel.llm.response import read_response, with_text_content
from gavel.llm.types import Accept, Reply

_ATTEMPTS = 3
_MOST_REQUESTS, _MOST_BYTES = 50_000, 90_000_000
"""Largest batch: requests and bytes."""
POLL_SECONDS = 10.0, 60.0
"""The first and the longest interval between polls of a batch."""
_GRACE_SECONDS = 20.0
"""Seconds for which a batch whose creation was interrupted may be missing from the list."""
_ENDED_BEFORE = ("failed", "cancelled")
"""Final states of a batch that do not count as an attempt."""
_EXPECTED_COMPLETION = 1000
"""Expected reply tokens of a request, before it is sent."""


class BatchRecord(BaseModel):
    """One batch of a job."""

    tag: str
    """Random; it is the metadata of the vendor's batch."""
    model: str
    address: str
    """The server's address, if the user names one."""
    reply_format: int
    """Index of the reply format that the requests ask for."""
    stage: Literal["written", "sending", "sent", "over"] = "written"
    batch_id: str = ""
    end: str = ""
    """The vendor's final status."""


class _State(BaseModel):
    format_version: Literal[2] = 2
    batches: list[BatchRecord] = []


class BatchJob:
    """The batches of one output, on disk: a killed process loses no result and sends nothing twice.

    A directory holds, for each batch, `<tag>.requests.jsonl` (what is sent), `<tag>.results.jsonl` (what came back),
    and an entry in `state.json`, which is written before each step and after it:

        written     the requests are on file
        sending     the batch is being created: after a kill it is looked for by its tag
        sent        its id is known
        over        its results are on file

    One process at a time uses the directory.
    """

    def __init__(self, directory: Path) -> None:
        """Raises `LlmError` if the directory cannot be used, or is in use by another process."""
        self.directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = (directory / ".lock").open("w")
        except OSError as error:
            raise LlmError(f"{directory} cannot be written: {error}", "Choose another file with --out.") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise LlmError(f"another process waits for the batches in {directory}.", "Let it, or stop it.") from error
        self.batches = self._read().batches
        known = {batch.tag for batch in self.batches}
        for path in directory.glob("*.requests.jsonl"):
            if path.name.partition(".")[0] not in known:  # its process was killed while collecting
                path.unlink()

    def _read(self) -> _State:
        path = self.directory / "state.json"
        if not path.exists():
            return _State()
        try:
            return _State.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            remedy = "Restore it, choose another --out, or delete its directory."
            raise LlmError(f"{path} cannot be read: {error}", remedy) from error

    def add(self, batch: BatchRecord) -> None:
        """Adds a batch whose requests are on file."""
        sync(self.requests(batch))
        self.batches.append(batch)
        self.save()

    def save(self) -> None:
        state = _State(batches=self.batches).model_dump_json(indent=1)
        write_atomically(self.directory / "state.json", state, durable=True)

    def requests(self, batch: BatchRecord) -> Path:
        """The file with the batch's requests."""
        return self.directory / f"{batch.tag}.requests.jsonl"

    def keys(self, batch: BatchRecord) -> Iterator[str]:
        """The keys of the questions that the batch asks."""
        with self.requests(batch).open("rb") as file:
            for line in file:
                yield json.loads(line)["custom_id"]

    def finish(self, batch: BatchRecord, end: str, results: bytes) -> None:
        """Writes the results."""
        write_atomically(self.directory / f"{batch.tag}.results.jsonl", results, durable=True)
        batch.stage, batch.end = "over", end
        self.save()

    def results(self, batch: BatchRecord) -> Iterator["BatchResult"]:
        """The results; unreadable lines are skipped."""
        with (self.directory / f"{batch.tag}.results.jsonl").open("rb") as file:
            for line in file:
                with suppress(ValidationError):
                    yield BatchResult.model_validate_json(line)

    def remove(self) -> None:
        """Deletes the directory: all results are on the cassette and in the output."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self._lock.close()

    def close(self) -> None:
        """Releases the directory for other processes; deletes it if it has no batches."""
        if not self.batches:
            self.remove()
        self._lock.close()


class UnansweredError(openai.OpenAIError):
    """A batch ended without an answer to one of its requests."""


class _Response(BaseModel):
    status_code: int
    body: JsonValue = None


class BatchResult(BaseModel):
    """The outcome of one request: a line of a batch's results, in one of these forms.

    {"custom_id": "…", "response": {"status_code": 200, "body": {…}}, "error": null}
    {"custom_id": "…", "response": {"status_code": 400, "body": {"error": {"message": "…"}}}, "error": null}
    {"custom_id": "…", "response": null, "error": {"code": "batch_expired", "message": "…"}}
    """

    custom_id: str
    response: _Response | None = None
    """None = the batch ended before the request was sent to the model."""
    error: JsonValue = None

    @property
    def body(self) -> dict[str, Any]:
        """The server's response body."""
        body = self.response.body if self.response else None
        return body if isinstance(body, dict) else {}

    @property
    def failure(self) -> openai.OpenAIError | None:
        """The error that the same request would raise outside a batch; None = it has a reply."""
        if self.response is None:
            return UnansweredError(_message_in(self.error) or "no batch answered the request")
        status = self.response.status_code
        if status == 200 and "choices" in self.body:
            return None
        words = _message_in(self.body.get("error")) or json.dumps(self.response.body)[:500]
        return status_error(500 if status == 200 else status, words, self.body)  # an error sent as a reply


def _message_in(error: JsonValue) -> str:
    """The message of an error, in either form."""
    return str((error.get("message") if isinstance(error, dict) else error) or "")


class BatchCassette(Cassette):
    """A cassette that answers from batches."""

    def __init__(self, path: str | Path, batches: "Batches") -> None:
        super().__init__(path)
        self._batches = batches

    @property
    def asks_now(self) -> bool:
        return False

    async def answer(
        self,
        question: Question,
        ask: Callable[[], Awaitable[Reply]],
        accept: Accept | None = None,
        repairs: Sequence[tuple[Question, Reply]] = (),
    ) -> Reply:
        """Answers as a cassette does. Raises `NotYetError` if the reply comes with a batch, or the error of its failed
        request."""
        if is_local(question.model):
            return await super().answer(question, ask, accept, repairs)
        reply = await super().answer(question, lambda: self._batches.ask(question), accept, repairs)
        return self._batches.accounted(question, reply)


@dataclass(slots=True)
class _Collected:
    """A batch that is being collected."""

    batch: BatchRecord
    file: IO[bytes]
    requests: int = 0

    def takes(self, model: str, address: str, reply_format: int, size: int) -> bool:
        """Whether a request of `size` bytes may be added."""
        of = self.batch.model, self.batch.address, self.batch.reply_format
        has_room = self.requests < _MOST_REQUESTS and self.file.tell() + size <= _MOST_BYTES
        return of == (model, address, reply_format) and has_room


class Batches:
    """The batches of one job."""

    def __init__(
        self,
        job: BatchJob,
        prices: Prices | None = None,
        budget: Budget | None = None,
        tell: Callable[[str], None] = lambda line: None,
        poll_seconds: tuple[float, float] | None = None,
    ) -> None:
        """`tell` receives a line for the user whenever something happens."""
        self._job = job
        self._prices = prices or {}
        self._budget = budget or Budget()
        self._tell = tell
        self._poll_seconds = poll_seconds or POLL_SECONDS
        self._results: dict[str, tuple[BatchResult, int]] = {}
        """Key -> the final result, and the reply format that it answers."""
        self._attempts: Counter[str] = Counter()
        self._formats: dict[str, int] = {}
        """Key -> the reply format to request after another was rejected."""
        self._sent: dict[str, dict[str, Any]] = {}
        """Key -> the parameters that were last sent."""
        self._paid: set[str] = set()
        self._collected: list[_Collected] = []
        self._questions: dict[tuple[str, str], Question] = {}
        """One question per model and address: it says how to connect."""
        self._wanted: set[str] = set()
        """Keys of this round's questions without a reply."""
        self._under_way = {key for batch in job.batches if batch.stage != "over" for key in job.keys(batch)}
        self._expected = 0.0, 0
        """Expected USD and tokens of the collected requests."""
        for batch in job.batches:
            if batch.stage == "over":
                self._load(batch)
        for key, (result, _) in list(self._results.items()):
            if result.failure and is_permanent(result.failure):  # somebody may have fixed the cause since
                del self._results[key]

    async def ask(self, question: Question) -> Reply:
        """The reply from a batch. Raises `LlmError` if the request failed for good, and `NotYetError` after queueing
        the question for the next batch, unless one with it is under way."""
        if question.key in self._results:
            result, reply_format = self._results[question.key]
            if (failure := result.failure) is None:
                return self._read(question, result)
            if not self._may_be_asked_otherwise(question, failure, reply_format):
                raise as_llm_error(failure, question.model, 0.0)
            del self._results[question.key]
        if question.key not in self._wanted and question.key not in self._under_way:
            self._collect(question)
        self._questions.setdefault(endpoint_of(question.model, question.params), question)
        self._wanted.add(question.key)
        raise NotYetError(f"the reply of {question.model} comes with a batch.")

    def accounted(self, question: Question, reply: Reply) -> Reply:
        """The reply with its cost counted as new, if a batch of this job brought it."""
        result = self._results.get(question.key)
        if result is None or result[0].failure:
            return reply
        self._pay(question.key, reply)
        return replace(reply, cached=False)

    def _pay(self, key: str, reply: Reply) -> None:
        if key not in self._paid:
            self._paid.add(key)
            self._budget.spent_usd += reply.cost_usd or 0.0
            self._budget.spent_tokens += reply.prompt_tokens + reply.completion_tokens

    def _may_be_asked_otherwise(self, question: Question, failure: openai.OpenAIError, reply_format: int) -> bool:
        """Whether the model may answer in another reply format, or without a parameter that it rejected."""
        dialect = dialect_of(endpoint_of(question.model, question.params))
        params = question.public_params
        sent = self._sent.get(question.key, dialect.translate(params))
        if sent != dialect.translate(params):  # another request of the batch has shown the parameter that it rejects
            return True
        refused = dialect.refused(read_failure(failure), params)
        if refused is not None:
            return dialect.do_without(refused, question.model, sent)
        if may_be_the_format(failure) and reply_format + 1 < len(FORMATS):
            self._formats[question.key] = reply_format + 1
            return True
        return False

    def _read(self, question: Question, result: BatchResult) -> Reply:
        body, repairs = with_text_content(result.body)
        response = load_litellm().ModelResponse(**{**body, "usage": body.get("usage") or {}})
        each = batch_price(question.model, self._prices, question.params)
        prices = {question.model: each} if each else {}
        reply = read_response(question.model, response, list(question.messages), prices, repairs)
        self._pay(question.key, reply)
        own_server = bool(question.params.keys() & {"api_base", "base_url"})
        check_not_cut(question.model, reply, question.messages, own_server=own_server)
        return reply

    def _collect(self, question: Question) -> None:
        """Adds the request to its endpoint's current batch that is not full."""
        endpoint = endpoint_of(question.model, question.params)
        dialect = dialect_of(endpoint)
        reply_format = self._formats.get(question.key, dialect.format)
        self._sent[question.key] = sent = dialect.translate(question.public_params)
        data = request_line(question, FORMATS[reply_format][1](question.schema) | sent)
        into = next((each for each in self._collected if each.takes(*endpoint, reply_format, len(data))), None)
        if into is None:
            model, address = endpoint
            batch = BatchRecord(tag=secrets.token_hex(16), model=model, address=address, reply_format=reply_format)
            into = _Collected(batch, self._job.requests(batch).open("wb"))
            self._collected.append(into)
        into.file.write(data)
        into.requests += 1
        prompt, completion = batch_price(question.model, self._prices, question.params) or (0.0, 0.0)
        tokens = len(data) // 4
        usd = (tokens * prompt + _EXPECTED_COMPLETION * completion) / 1e6
        self._expected = self._expected[0] + usd, self._expected[1] + tokens + _EXPECTED_COMPLETION

    async def advance(self) -> bool:
        """Sends what was collected, and waits until every batch is over; returns whether there was any.

        Raises `BudgetError` if the batch exceeds the remaining budget, and `LlmError` for a batch that failed as a
        whole, with its available results on file.
        """
        self._budget.check_fits("the next batch", self._expected)
        for each in self._collected:
            each.file.close()
            self._job.add(each.batch)
            self._under_way.update(self._job.keys(each.batch))
        self._collected.clear()
        self._expected = 0.0, 0
        unfinished = [batch for batch in self._job.batches if batch.stage != "over"]
        waiting = [batch for batch in unfinished if any(key in self._wanted for key in self._job.keys(batch))]
        self._wanted.clear()
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                for batch in waiting:
                    tasks.create_task(self._finish(batch))
        return bool(waiting)

    async def _finish(self, batch: BatchRecord) -> None:
        """Drives a batch from its current state to the end, with its results on file."""
        question = self._questions.get((batch.model, batch.address))
        api = BatchApi(batch.model, question.params if question else {})
        if batch.stage != "sent":
            batch.batch_id = await self._create(api, batch)
            self._move_on(batch, "sent")
        name = f"batch {self._job.batches.index(batch) + 1} ({batch.model}, {batch.batch_id})"
        pause, longest = self._poll_seconds
        told = ""
        while True:
            found = await api.retrieve(batch.batch_id)
            counts = found.request_counts
            done, total = (counts.completed + counts.failed, counts.total) if counts else (0, 0)
            if (news := f"{name}: {found.status}, {done:,} of {total:,} answered") != told:
                self._tell(news)
            if found.status in ("completed", "failed", "expired", "cancelled"):
                break
            told = news
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, longest)
        files = filter(None, (found.output_file_id, found.error_file_id))
        contents = [(await api.content(file)).rstrip(b"\n") + b"\n" for file in files]
        self._job.finish(batch, found.status, b"".join(contents))
        self._load(batch)
        if found.status == "failed":
            errors: list[Any] = (found.errors.data if found.errors else None) or []
            problem = "; ".join(f"{error.message} ({error.code})" for error in errors[:3])
            raise LlmError(
                f"{name} was refused: {problem or 'no reason is given'}",
                "Nothing of it was answered. Mend the cause; the same command sends it again.",
            )
        if found.status == "cancelled":
            raise LlmError(f"{name} was cancelled.", "What was answered is kept; the same command asks for the rest.")

    async def _create(self, api: BatchApi, batch: BatchRecord) -> str:
        """Creates the batch, unless an earlier attempt whose response was lost has; returns its id."""
        while True:
            if batch.stage == "sending" and (found := await self._find(api, batch)):
                return found
            file_id = await api.upload(self._job.requests(batch).read_bytes())
            self._move_on(batch, "sending")
            if created := await api.create(file_id, batch.tag):
                return created

    async def _find(self, api: BatchApi, batch: BatchRecord) -> str | None:
        """The id of a batch whose creation was interrupted; None = there is none."""
        until = time.monotonic() + _GRACE_SECONDS
        while True:
            found = await api.find(batch.tag)
            if found or time.monotonic() > until:
                return found
            await asyncio.sleep(self._poll_seconds[0])

    def _move_on(self, batch: BatchRecord, stage: Literal["written", "sending", "sent"]) -> None:
        batch.stage = stage
        self._job.save()

    def _load(self, batch: BatchRecord) -> None:
        """Reads the results of a batch that is over; a temporary failure counts as an attempt."""
        keys = set(self._job.keys(batch))
        self._under_way -= keys
        results = {result.custom_id: result for result in self._job.results(batch)}
        for key in keys:
            result = results.get(key, BatchResult(custom_id=key))
            failure = result.failure
            if failure is not None and (may_pass(failure) or isinstance(failure, UnansweredError)):
                self._attempts[key] += batch.end not in _ENDED_BEFORE
                if self._attempts[key] < _ATTEMPTS:
                    continue
            if failure is None or key not in self._results or self._results[key][0].failure:
                self._results[key] = result, batch.reply_format
