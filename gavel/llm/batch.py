"""Asks questions in batches, mostly at half the price: requests are collected, and their replies come within a day.

    cassette = BatchCassette(path, batches := Batches(directory, prices, budget))
    while True:
        await ask_everything(cassette)                          requests without a reply raise `NotAskedError`
        if not await batches.advance():                         sends them, and waits for the replies
            break

Each round, also of a restarted process, asks everything again. A repair, or a request in another reply format, is one
of the next round. What failed temporarily, or was not reached, is resent up to `_ATTEMPTS` times. LiteLLM can only read
Anthropic's batches, and takes those of Vertex AI and Bedrock from buckets in the user's own cloud.
"""

import asyncio
import hashlib
import json
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
from tenacity import stop_after_delay

from gavel.base.errors import first_error
from gavel.base.files import locked
from gavel.llm.budget import Budget, Prices, amount, price
from gavel.llm.cassette import Cassette, Question
from gavel.llm.completion import CONNECTION, endpoint_of
from gavel.llm.errors import LlmError, NotAskedError
from gavel.llm.failures import as_llm_error, kind_of, may_pass, remedy, retrying, status_error
from gavel.llm.providers import load_litellm, model_info
from gavel.llm.response import token_count
from gavel.llm.types import Message, Reply, is_mapping

_ATTEMPTS = 3
_MOST_REQUESTS, _MOST_BYTES = 50_000, 90_000_000
"""Largest batch: requests and bytes."""
POLL_SECONDS = 10.0, 60.0
"""The first and the longest interval between polls of a batch."""
_GRACE_SECONDS, _PATIENCE_SECONDS = 20.0, 300.0
"""Seconds for which a batch whose creation was interrupted may be missing from the list, and for which a call of the
vendor's batch interface is retried."""
_ENDPOINT = "/v1/chat/completions"
_PRICE_SHARES = {"openai": 0.5, "azure": 0.5, "hosted_vllm": 1.0, "litellm_proxy": 1.0}
"""LiteLLM's name of each provider with batches -> price of a token in a batch, as a share of its usual price."""


def provider_of(model: str, params: Mapping[str, Any]) -> str:
    """LiteLLM's name of a model's provider. Raises `LlmError` for one whose batches are not supported."""
    _, provider, _, _ = load_litellm().get_llm_provider(model, params.get("custom_llm_provider"))
    if provider not in _PRICE_SHARES:
        *others, last = _PRICE_SHARES
        raise LlmError(
            f"{model} cannot be asked in batches: its provider is {provider}.",
            f"Models of {', '.join(others)} and {last} can, and those of any server with OpenAI's batch interface, "
            "as openai/MODEL with --judge-param api_base=URL. For others leave out --batch.",
        )
    return provider


def connection(model: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The connection parameters of a request to the model, as LiteLLM's batch calls take them."""
    provider = provider_of(model, params)
    given = {name: params[name] for name in CONNECTION - {"timeout", "client"} if name in params}
    if address := given.pop("base_url", None):
        given.setdefault("api_base", address)
    if _PRICE_SHARES[provider] == 1:  # a server of the user's own
        _, _, key, address = load_litellm().get_llm_provider(model, params.get("custom_llm_provider"))
        given = {"api_base": address, "api_key": key} | given
        if not given["api_base"]:
            raise LlmError(f"{model} needs the address of its server.", "Add --judge-param api_base=http://HOST/v1.")
    return given | {"custom_llm_provider": provider}


def batch_price(model: str, prices: Prices, params: Mapping[str, Any]) -> tuple[float, float] | None:
    """USD per million tokens in a batch: by LiteLLM's table, else the vendor's share of the price; None = unknown."""
    if model not in prices:
        listed = model_info(model)
        per_token = listed.get("input_cost_per_token_batches"), listed.get("output_cost_per_token_batches")
        if per_token[0] and per_token[1]:
            return per_token[0] * 1e6, per_token[1] * 1e6
    full, share = price(model, prices), _PRICE_SHARES[provider_of(model, params)]
    return None if full is None else (share * full[0], share * full[1])


def _request_body(model: str, messages: Sequence[Message], options: Mapping[str, Any]) -> dict[str, Any]:
    """The body that LiteLLM would send. Raises `LlmError` for a parameter that the model does not accept."""
    litellm = load_litellm()
    name, provider, _, _ = litellm.get_llm_provider(model, options.get("custom_llm_provider"))
    given = {key: value for key, value in options.items() if key not in CONNECTION}
    try:
        body: dict[str, Any] = litellm.utils.get_optional_params(model=name, custom_llm_provider=provider, **given)
    except litellm.UnsupportedParamsError as error:
        raise LlmError(f"{model} does not take a parameter: {error}", "Leave it out.") from error
    extra: dict[str, Any] = body.pop("extra_body", None) or {}
    body.pop("stream", None)
    return {"model": name, "messages": list(messages), **body, **extra}


class BatchApi:
    """One vendor's batch API with one user's credentials; temporary failures are retried."""

    def __init__(self, model: str, params: Mapping[str, Any]) -> None:
        self._model = model
        self._options = connection(model, params) | {"timeout": 120.0, "max_retries": 0, "num_retries": 0}

    async def create(self, requests: bytes, tag: str) -> str | None:
        """Creates a batch of these requests; returns its id, or None if it is unknown whether it exists.

        Creating costs money and is not retried: the caller looks for the batch by its tag.
        """
        file = ("requests.jsonl", requests, "application/jsonl")
        file_id: str = (await self.call("acreate_file", file=file, purpose="batch")).id
        wanted: dict[str, Any] = {"completion_window": "24h", "endpoint": _ENDPOINT, "metadata": {"gavel": tag}}
        try:
            return (await self.call("acreate_batch", 0.0, input_file_id=file_id, **wanted)).id
        except LlmError as error:
            if error.__cause__ and may_pass(error.__cause__):
                return None
            raise

    async def call(self, name: str, patience: float = _PATIENCE_SECONDS, **arguments: Any) -> Any:
        """Calls LiteLLM's function of this name; for so many seconds again after a temporary failure."""
        call, options = getattr(load_litellm(), name), arguments | self._options
        try:
            return await retrying(stop_after_delay(patience))(call, **options)
        except Exception as error:  # LiteLLM raises different errors per vendor
            help_ = remedy(error) or "The same command goes on from here."
            raise LlmError(f"the batch interface of {self._model} failed: {error}", help_) from error


Result = Mapping[str, Any]
"""The outcome of one request: a line of a batch's results, in one of these forms. Empty = the batch did not reach it.

    {"custom_id": "…", "response": {"status_code": 200, "body": {…}}, "error": null}
    {"custom_id": "…", "response": {"status_code": 400, "body": {"error": {"message": "…"}}}, "error": null}
    {"custom_id": "…", "response": null, "error": {"code": "batch_expired", "message": "…"}}
"""


def _failure(result: Result) -> openai.OpenAIError | None:
    """The error that the same request would raise outside a batch; None = it has a reply."""
    match result:
        case {"response": {"status_code": 200, "body": {"choices": _}}}:
            return None
        case {"response": {"status_code": int(status), "body": body}}:
            words = _message_in(body.get("error") if is_mapping(body) else None) or json.dumps(body)[:500]
            return status_error(500 if status == 200 else status, words, body)  # an error sent as a reply
        case _:
            return status_error(503, _message_in(result.get("error")) or "no batch answered the request")


def _message_in(error: object) -> str:
    """The message of an error, in either form."""
    return str((error.get("message") if is_mapping(error) else error) or "")


_TABLES = """
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY,
    tag TEXT UNIQUE,                      -- random; it is the metadata of the vendor's batch
    model TEXT,
    address TEXT,                         -- of the server, if the user names one
    is_creating INTEGER DEFAULT FALSE,    -- creation has begun: without an id the batch is looked for by its tag
    id TEXT DEFAULT ''
);
CREATE TABLE IF NOT EXISTS requests (
    key TEXT PRIMARY KEY,                 -- hash of the body
    number INTEGER,                       -- the batch that the request is in, or was in last
    line TEXT,                            -- of the file that is uploaded
    result TEXT,                          -- NULL = under way
    attempts INTEGER DEFAULT 0            -- temporary failures
);
CREATE INDEX IF NOT EXISTS by_batch ON requests (number);
"""
_COLLECT = """
INSERT INTO requests (key, number, line) VALUES (?, ?, ?)
ON CONFLICT (key) DO UPDATE SET number = excluded.number, result = NULL
"""


class Batches:
    """The batches of one output, in a directory: a killed process loses no result and sends nothing twice."""

    def __init__(self, directory: Path, prices: Prices, budget: Budget, tell: Callable[[str], object] = str) -> None:
        """`prices`: of a token in a batch. `tell` receives a line for the user whenever something happens.

        Raises `LlmError` if the directory cannot be used, or is in use by another process.
        """
        self.directory = directory
        self._prices, self._budget, self._tell = prices, budget, tell
        self._collecting: dict[tuple[str, str], tuple[int, int, int]] = {}
        """Model and address -> the batch that takes further requests: its number, requests and bytes."""
        self._params: dict[tuple[str, str], Mapping[str, Any]] = {}
        """Model and address -> parameters that say how to connect."""
        self._wanted: set[int] = set()
        """The batches with requests of this round."""
        self._expected = 0.0, 0
        """Expected USD and tokens of the collected requests."""
        with ExitStack() as stack:
            self._db = self._open(stack)
            self._opened = stack.pop_all()

    def _open(self, stack: ExitStack) -> sqlite3.Connection:
        path = self.directory / "state.sqlite"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(self.directory))
            db = sqlite3.connect(path, check_same_thread=False)
            stack.callback(db.close)
            db.executescript(_TABLES)
            finished = "SELECT key, model, result FROM requests JOIN batches USING (number) WHERE result IS NOT NULL"
            for key, model, text in db.execute(finished).fetchall():
                result = json.loads(text)
                self._charge(model, result)
                if (failure := _failure(result)) and kind_of(failure) == "permanent":  # somebody may have mended it
                    db.execute("DELETE FROM requests WHERE key = ?", (key,))
            db.commit()
            return db
        except BlockingIOError as error:
            raise LlmError(f"another process waits for the batches in {path.parent}.", "Let it, or stop it.") from error
        except OSError as error:
            raise LlmError(f"{path.parent} cannot be written: {error}", "Choose another file with --out.") from error
        except (sqlite3.Error, ValueError) as error:
            help_ = "Restore it, choose another --out, or delete its directory."
            raise LlmError(f"{path} cannot be read: {error}", help_) from error

    def remove(self) -> None:
        """Deletes the directory: all results are on the cassette and in the output."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self._opened.close()

    def close(self) -> None:
        """Releases the directory for other processes; deletes it if it has no batches."""
        if self.directory.exists():
            self._db.rollback()
            if self._db.execute("SELECT 1 FROM batches").fetchone() is None:
                self.remove()
        self._opened.close()

    async def complete(
        self, model: str, messages: Sequence[Message], options: Mapping[str, Any], seconds: float
    ) -> dict[str, Any]:
        """The response's body from a batch, as `complete_in_time` returns it; raises the error of the request.

        Raises `NotAskedError` after queueing the request for the next batch, unless one with it is under way.
        """
        body = _request_body(model, messages, options)
        key = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        self._params.setdefault(endpoint_of(model, options), options)
        row = self._db.execute("SELECT number, result, attempts FROM requests WHERE key = ?", (key,)).fetchone()
        number, text, attempts = row or (0, None, 0)
        result = json.loads(text) if text else None
        failure = None if result is None else _failure(result)
        is_temporary = failure is not None and may_pass(failure)
        if row is None or (is_temporary and attempts < _ATTEMPTS):
            number, result = self._collect(endpoint_of(model, options), key, body), None
        if result is None:
            self._wanted.add(number)
            raise NotAskedError(f"the reply of {model} comes with a batch.")
        if failure is not None:
            raise as_llm_error(failure, model, 0.0) if is_temporary else failure
        return result["response"]["body"]

    def _collect(self, endpoint: tuple[str, str], key: str, body: Mapping[str, Any]) -> int:
        """Adds the request to its endpoint's current batch, or to a new one when that is full; returns its number."""
        request = {"custom_id": key, "method": "POST", "url": _ENDPOINT, "body": body}
        line = json.dumps(request, allow_nan=False) + "\n"
        number, requests, size = self._collecting.get(endpoint, (0, _MOST_REQUESTS, 0))
        if requests == _MOST_REQUESTS or size + len(line) > _MOST_BYTES:
            new = "INSERT INTO batches (tag, model, address) VALUES (?, ?, ?)"
            number, requests, size = self._db.execute(new, (secrets.token_hex(16), *endpoint)).lastrowid or 0, 0, 0
        self._collecting[endpoint] = number, requests + 1, size + len(line)
        self._db.execute(_COLLECT, (key, number, line))
        usd, tokens = amount(self._prices.get(endpoint[0]), len(line) // 4, 1000)  # an estimate
        self._expected = self._expected[0] + usd, self._expected[1] + tokens
        return number

    def _charge(self, model: str, result: Result) -> None:
        match result:
            case {"response": {"body": {"usage": {"prompt_tokens": prompt, "completion_tokens": completion}}}}:
                usd, tokens = amount(self._prices.get(model), token_count(prompt), token_count(completion))
                self._budget.spent_usd += usd
                self._budget.spent_tokens += tokens
            case _:  # a failure costs nothing
                pass

    async def advance(self) -> bool:
        """Sends what was collected, and waits until every batch is over; returns whether there was any.

        Raises `BudgetError` if the batch exceeds the remaining budget, and `LlmError` for a batch that failed as a
        whole, with its available results on file.
        """
        self._budget.check_fits("the next batch", self._expected)
        self._db.commit()  # what was collected
        waiting, self._wanted, self._collecting, self._expected = sorted(self._wanted), set(), {}, (0.0, 0)
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                for number in waiting:
                    tasks.create_task(self._finish(number))
        return bool(waiting)

    async def _finish(self, number: int) -> None:
        """Drives a batch from its current state to the end, with its results on file."""
        wanted = "SELECT tag, model, address, is_creating, id FROM batches WHERE number = ?"
        tag, model, address, is_creating, batch_id = self._db.execute(wanted, (number,)).fetchone()
        api = BatchApi(model, self._params.get((model, address), {}))
        lines = self._db.execute("SELECT line FROM requests WHERE number = ?", (number,))
        requests = b"" if batch_id else "".join(line for (line,) in lines).encode()
        until = time.monotonic() + _GRACE_SECONDS
        while not batch_id:
            if is_creating:
                page = await api.call("alist_batches", limit=100)
                tagged = (each for each in page.data if each.metadata and each.metadata.get("gavel") == tag)
                batch_id = next((each.id for each in tagged), None)
            if is_creating and not batch_id and time.monotonic() <= until:
                await asyncio.sleep(POLL_SECONDS[0])
            elif not batch_id:
                is_creating = self._set(number, "is_creating", True)
                batch_id = await api.create(requests, tag)
                until = time.monotonic() + _GRACE_SECONDS
        self._set(number, "id", batch_id)
        name, told, pause = f"batch {number} ({model}, {batch_id})", "", POLL_SECONDS[0]
        while True:
            found = await api.call("aretrieve_batch", batch_id=batch_id)
            counts = found.request_counts
            done, total = (counts.completed + counts.failed, counts.total) if counts else (0, 0)
            if (line := f"{name}: {found.status}, {done:,} of {total:,} answered") != told:
                self._tell(line)
            if found.status in ("completed", "failed", "expired", "cancelled"):
                break
            told = line
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, POLL_SECONDS[1])
        files = filter(None, (found.output_file_id, found.error_file_id))
        contents = [(await api.call("afile_content", file_id=file)).content for file in files]
        self._keep(number, model, b"\n".join(contents), counts=found.status in ("completed", "expired"))
        if found.status == "failed":
            errors: list[Any] = (found.errors.data if found.errors else None) or []
            problem = "; ".join(f"{error.message} ({error.code})" for error in errors[:3])
            raise LlmError(
                f"{name} was refused: {problem or 'no reason is given'}",
                "Nothing of it was answered. Mend the cause; the same command sends it again.",
            )
        if found.status == "cancelled":
            raise LlmError(f"{name} was cancelled.", "What was answered is kept; the same command asks for the rest.")

    def _set(self, number: int, column: str, value: Any) -> Any:
        with self._db:
            self._db.execute(f"UPDATE batches SET {column} = ? WHERE number = ?", (value, number))
        return value

    def _keep(self, number: int, model: str, content: bytes, *, counts: bool) -> None:
        """Stores the results of a batch that is over, and charges them; unreadable lines are skipped.

        `counts`: whether a temporary failure counts as an attempt.
        """
        results: dict[str, Result] = {}
        for line in content.splitlines():
            with suppress(ValueError, KeyError, TypeError):
                result = json.loads(line)
                results[result["custom_id"]] = result
        with self._db:
            for (key,) in self._db.execute("SELECT key FROM requests WHERE number = ?", (number,)).fetchall():
                result = results.get(key, {})
                self._charge(model, result)
                row = json.dumps(result), _failure(result) is not None and counts, key
                self._db.execute("UPDATE requests SET result = ?, attempts = attempts + ? WHERE key = ?", row)


class BatchCassette(Cassette):
    """A cassette whose unknown questions are asked in batches; what they answer counts as asked by this process."""

    def __init__(self, path: str | Path, batches: Batches) -> None:
        super().__init__(path)
        self.complete, self.asks_now = batches.complete, False
        self._answered: set[str] = set()

    async def answer(self, question: Question, *arguments: Any, **options: Any) -> Reply:
        reply = await super().answer(question, *arguments, **options)
        if not reply.cached:
            self._answered.add(question.key)
        return replace(reply, cached=question.key not in self._answered)
