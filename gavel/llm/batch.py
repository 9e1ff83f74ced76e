"""Asks questions in batches, mostly at half the price: requests are collected, and their replies come within a day.

    batches = Batches(directory, prices, budget)
    cassette = BatchCassette(path, batches)
    while True:
        await ask_everything(cassette)                          requests without a reply raise `NotAskedError`
        if not await batches.advance():                         sends them, and waits for the replies
            break

Each round asks everything again from the start: stored replies are read from file, so that prompts need not be held for
a day, and a restarted process resumes. A client asks as it does without batches, so a repair, or a request in another
reply format, is one of the next round. Requests that failed temporarily, or were not processed before the batch
expired, are resent up to `_ATTEMPTS` times.
"""

import asyncio
import fcntl
import hashlib
import json
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

import openai
from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError

from gavel.base.errors import first_error
from gavel.base.files import sync, write_atomically
from gavel.llm.batch_api import BatchApi, request_body
from gavel.llm.budget import Budget
from gavel.llm.cassette import Cassette, Entry, Question
from gavel.llm.completion import endpoint_of
from gavel.llm.errors import LlmError, NotAskedError
from gavel.llm.failures import as_llm_error, kind_of, may_pass, status_error
from gavel.llm.prices import Prices
from gavel.llm.response import token_count
from gavel.llm.types import Accept, Message, Reply, is_mapping

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
    """One batch: `<tag>.requests.jsonl` is what is sent, `<tag>.results.jsonl` what came back."""

    tag: str
    """Random; it is the metadata of the vendor's batch."""
    model: str
    address: str
    """The server's address, if the user names one."""
    is_creating: bool = False
    """Whether its creation has begun: without an id it is looked for by its tag."""
    batch_id: str = ""
    end: str = ""
    """The vendor's final status; the results are on file then."""


_State = TypeAdapter(list[BatchRecord])


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
            return status_error(503, _message_in(self.error) or "no batch answered the request")
        status = self.response.status_code
        if status == 200 and "choices" in self.body:
            return None
        words = _message_in(self.body.get("error")) or json.dumps(self.response.body)[:500]
        return status_error(500 if status == 200 else status, words, self.body)  # an error sent as a reply


def _message_in(error: JsonValue) -> str:
    """The message of an error, in either form."""
    return str((error.get("message") if isinstance(error, dict) else error) or "")


@dataclass(slots=True)
class _Collected:
    """A batch that is being collected."""

    batch: BatchRecord
    file: IO[bytes]
    requests: int = 0


class Batches:
    """The batches of one output, in a directory: a killed process loses no result and sends nothing twice."""

    def __init__(
        self,
        directory: Path,
        prices: Prices | None = None,
        budget: Budget | None = None,
        tell: Callable[[str], None] = lambda line: None,
        poll_seconds: tuple[float, float] | None = None,
    ) -> None:
        """`prices`: of a token in a batch. `tell` receives a line for the user whenever something happens.

        Raises `LlmError` if the directory cannot be used, or is in use by another process.
        """
        self.directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = (directory / ".lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise LlmError(f"another process waits for the batches in {directory}.", "Let it, or stop it.") from error
        except OSError as error:
            raise LlmError(f"{directory} cannot be written: {error}", "Choose another file with --out.") from error
        self._prices = prices or {}
        self._budget = budget or Budget()
        self._tell = tell
        self._poll_seconds = poll_seconds or POLL_SECONDS
        self._batches = self._read()
        self._results: dict[str, BatchResult] = {}
        """Key of a request -> its final result."""
        self._attempts: Counter[str] = Counter()
        self._collected: dict[tuple[str, str], _Collected] = {}
        """Model and address -> the batch that takes further requests."""
        self._full: list[_Collected] = []
        self._params: dict[tuple[str, str], Mapping[str, Any]] = {}
        """Model and address -> parameters that say how to connect."""
        self._wanted: set[str] = set()
        """Keys of this round's requests without a reply."""
        self._under_way: set[str] = set()
        self._expected = 0.0, 0
        """Expected USD and tokens of the collected requests."""
        known = {batch.tag for batch in self._batches}
        for path in directory.glob("*.requests.jsonl"):
            if path.name.partition(".")[0] not in known:  # its process was killed while collecting
                path.unlink()
        for batch in self._batches:
            if batch.end:
                self._load(batch)
        for batch in self._batches:
            if not batch.end:
                self._under_way.update(self._keys(batch))
        for key, result in list(self._results.items()):
            if result.failure and kind_of(result.failure) == "permanent":  # somebody may have fixed the cause since
                del self._results[key]

    def _read(self) -> list[BatchRecord]:
        path = self.directory / "state.json"
        try:
            return _State.validate_json(path.read_bytes()) if path.exists() else []
        except (OSError, ValidationError) as error:
            remedy = "Restore it, choose another --out, or delete its directory."
            raise LlmError(f"{path} cannot be read: {error}", remedy) from error

    def _save(self) -> None:
        write_atomically(self.directory / "state.json", _State.dump_json(self._batches, indent=1), durable=True)

    def _file(self, batch: BatchRecord, what: Literal["requests", "results"]) -> Path:
        return self.directory / f"{batch.tag}.{what}.jsonl"

    def _keys(self, batch: BatchRecord) -> Iterator[str]:
        """The keys of the batch's requests."""
        with self._file(batch, "requests").open("rb") as file:
            for line in file:
                yield json.loads(line)["custom_id"]

    def remove(self) -> None:
        """Deletes the directory: all results are on the cassette and in the output."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self._lock.close()

    def close(self) -> None:
        """Releases the directory for other processes; deletes it if it has no batches."""
        if not self._batches:
            self.remove()
        self._lock.close()

    async def complete(
        self, model: str, messages: Sequence[Message], options: Mapping[str, Any], seconds: float
    ) -> dict[str, Any]:
        """The response's body from a batch, as `complete_in_time` returns it; raises the error of the request.

        Raises `NotAskedError` after queueing the request for the next batch, unless one with it is under way.
        """
        body = request_body(model, messages, options)
        key = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        result = self._results.get(key)
        if result is None:
            self._params.setdefault(endpoint_of(model, options), options)
            self._wanted.add(key)
            if key not in self._under_way:
                self._collect(model, options, key, body)
            raise NotAskedError(f"the reply of {model} comes with a batch.")
        if (failure := result.failure) is not None:
            raise as_llm_error(failure, model, 0.0) if may_pass(failure) else failure
        return result.body

    def _collect(self, model: str, params: Mapping[str, Any], key: str, body: Mapping[str, Any]) -> None:
        """Adds the request to its endpoint's current batch, or to a new one when that is full."""
        line = {"custom_id": key, "method": "POST", "url": "/v1/chat/completions", "body": body}
        data = json.dumps(line, allow_nan=False).encode() + b"\n"
        endpoint = endpoint_of(model, params)
        into = self._collected.get(endpoint)
        if into and (into.requests == _MOST_REQUESTS or into.file.tell() + len(data) > _MOST_BYTES):
            self._full.append(into)
            into = None
        if into is None:
            batch = BatchRecord(tag=secrets.token_hex(16), model=model, address=endpoint[1])
            into = self._collected[endpoint] = _Collected(batch, self._file(batch, "requests").open("wb"))
        into.file.write(data)
        into.requests += 1
        self._under_way.add(key)
        self._expected = self._with_cost(self._expected, model, len(data) // 4, _EXPECTED_COMPLETION)

    def _with_cost(self, spent: tuple[float, int], model: str, prompt: int, completion: int) -> tuple[float, int]:
        """USD and tokens, with those of one more request."""
        each = self._prices.get(model, (0.0, 0.0))
        return spent[0] + (prompt * each[0] + completion * each[1]) / 1e6, spent[1] + prompt + completion

    async def advance(self) -> bool:
        """Sends what was collected, and waits until every batch is over; returns whether there was any.

        Raises `BudgetError` if the batch exceeds the remaining budget, and `LlmError` for a batch that failed as a
        whole, with its available results on file.
        """
        self._budget.check_fits("the next batch", self._expected)
        for each in [*self._full, *self._collected.values()]:
            each.file.close()
            sync(self._file(each.batch, "requests"))
            self._batches.append(each.batch)
            self._save()
        self._full, self._collected, self._expected = [], {}, (0.0, 0)
        unfinished = [batch for batch in self._batches if not batch.end]
        waiting = [batch for batch in unfinished if any(key in self._wanted for key in self._keys(batch))]
        self._wanted.clear()
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                for batch in waiting:
                    tasks.create_task(self._finish(batch))
        return bool(waiting)

    async def _finish(self, batch: BatchRecord) -> None:
        """Drives a batch from its current state to the end, with its results on file."""
        api = BatchApi(batch.model, self._params.get((batch.model, batch.address), {}))
        if not batch.batch_id:
            batch.batch_id = await self._create(api, batch)
            self._save()
        name = f"batch {self._batches.index(batch) + 1} ({batch.model}, {batch.batch_id})"
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
        write_atomically(self._file(batch, "results"), b"".join(contents), durable=True)
        batch.end = found.status
        self._save()
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
            if batch.is_creating and (found := await self._find(api, batch)):
                return found
            file_id = await api.upload(self._file(batch, "requests").read_bytes())
            batch.is_creating = True
            self._save()
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

    def _load(self, batch: BatchRecord) -> None:
        """Reads the results of a batch that is over, and what they cost; unreadable lines are skipped. A temporary
        failure counts as an attempt."""
        results: dict[str, BatchResult] = {}
        with self._file(batch, "results").open("rb") as file:
            for line in file:
                with suppress(ValidationError):
                    result = BatchResult.model_validate_json(line)
                    results[result.custom_id] = result
        for key in self._keys(batch):
            self._under_way.discard(key)
            result = results.get(key, BatchResult(custom_id=key))
            usage = result.body.get("usage")
            if is_mapping(usage):
                tokens = token_count(usage.get("prompt_tokens")), token_count(usage.get("completion_tokens"))
                spent = self._budget.spent_usd, self._budget.spent_tokens
                self._budget.spent_usd, self._budget.spent_tokens = self._with_cost(spent, batch.model, *tokens)
            if (failure := result.failure) and may_pass(failure):
                self._attempts[key] += batch.end not in _ENDED_BEFORE
                if self._attempts[key] < _ATTEMPTS:
                    continue
            self._results[key] = result


class BatchCassette(Cassette):
    """A cassette whose unknown questions are asked in batches; what they answer counts as asked by this process."""

    def __init__(self, path: str | Path, batches: Batches) -> None:
        super().__init__(path)
        self.complete = batches.complete
        self._answered: set[str] = set()

    @property
    def asks_now(self) -> bool:
        return False

    async def answer(
        self,
        question: Question,
        ask: Callable[[], Awaitable[Reply]],
        accept: Accept | None = None,
        repairs: Sequence[Entry] = (),
    ) -> Reply:
        async def answered() -> Reply:
            reply = await ask()
            self._answered.add(question.key)
            return reply

        reply = await super().answer(question, answered, accept, repairs)
        return replace(reply, cached=reply.cached and question.key not in self._answered)
