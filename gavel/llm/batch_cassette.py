"""Questions asked in batches, mostly at half the price: a cassette that collects what it cannot answer.

    batches = Batches(BatchJob(directory), prices, budget)
    while True:
        await ask_everything(BatchCassette(path, batches))      unknown questions raise `NotYetError`
        if not await batches.advance():                         sends them, and waits for the replies
            break

Each round asks everything again, from the start: what is answered is read from file, so that prompts need not be held
for a day, and a killed process goes on where it was. A repair of an unusable reply is a question of the next round.
Requests that failed for the moment, or were not reached before the batch expired, are sent again, `_ATTEMPTS` times.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import openai

from gavel.base.errors import first_error
from gavel.llm.batch_api import BatchApi, request_line
from gavel.llm.batch_job import BatchJob, BatchRecord
from gavel.llm.batch_result import BatchResult, not_answered, read_results
from gavel.llm.batch_vendors import batch_price
from gavel.llm.budget import Budget
from gavel.llm.cassette import Cassette
from gavel.llm.dialect import FORMATS, dialect_of
from gavel.llm.errors import (
    BudgetError,
    CassetteError,
    ContextError,
    LlmError,
    NotYetError,
    PermanentError,
    RefusedError,
)
from gavel.llm.failures import (
    context_limit,
    is_permanent,
    is_refusal,
    is_too_long,
    may_be_the_format,
    may_pass,
    read_failure,
    remedy,
)
from gavel.llm.local_models import PROVIDER
from gavel.llm.prices import Prices
from gavel.llm.prompt_cut import check_not_cut
from gavel.llm.providers import load_litellm
from gavel.llm.question import Question
from gavel.llm.response import read_response, with_text_content
from gavel.llm.types import Accept, Reply

_ATTEMPTS = 3
_MOST_REQUESTS, _MOST_BYTES = 50_000, 90_000_000
"""Of one batch."""
POLL_SECONDS = 10.0, 60.0
"""The first and the longest pause between looks at a batch."""
_GRACE_SECONDS = 20.0
"""For how long a batch whose creation was broken off may not be listed yet."""
_ENDED_BEFORE = ("failed", "cancelled")
"""Ends of a batch that count as no attempt."""
_EXPECTED_COMPLETION = 1000
"""Reply tokens expected of a request, before it is sent."""


class BatchCassette(Cassette):
    """A cassette that answers with the replies of batches, and collects the questions that have none."""

    def __init__(self, path: str | Path, batches: "Batches") -> None:
        super().__init__(path)
        self._batches = batches
        self._kept: set[str] = set()

    @property
    def asks_now(self) -> bool:
        return False

    async def answer(
        self,
        question: Question,
        ask: Callable[[], Awaitable[Reply]],
        accept: Accept | None = None,
        repairs: Sequence[tuple[Question, Reply]] = (),
        settled: Callable[[], object] = lambda: None,
    ) -> Reply:
        """As a cassette answers. Raises `NotYetError` for a question whose reply comes with a batch, and a failure of
        its request."""
        if question.model.startswith(f"{PROVIDER}/"):
            return await super().answer(question, ask, accept, repairs, settled)
        reply = self._batches.reply(question)
        if reply is None:
            return await super().answer(question, lambda: self._batches.collect(question), accept, repairs)
        if question.key not in self._kept and (accept is None or accept(reply)):
            self._kept.add(question.key)
            try:
                await self.keep(question, reply, repairs)
            except CassetteError as error:  # for example a full disk
                logging.getLogger(__name__).warning("a reply is used, but not kept: %s", error.message)
        return reply


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
        """By key: the result that decides, and the reply format that it answers."""
        self._attempts: Counter[str] = Counter()
        self._formats: dict[str, int] = {}
        """By key: the reply format to ask for, after another was refused."""
        self._sent: dict[str, dict[str, Any]] = {}
        """By key: the parameters, as they were sent last."""
        self._paid: set[str] = set()
        self._collected: dict[tuple[str, str, int], IO[bytes]] = {}
        self._questions: dict[tuple[str, str], Question] = {}
        """One of each model and address: it says how to connect."""
        self._wanted: set[str] = set()
        """Questions of this round without a reply."""
        self._under_way = {key for batch in job.batches if batch.stage != "over" for key in job.keys(batch)}
        self._expected = 0.0, 0
        """USD and tokens of what is collected."""
        for batch in job.batches:
            if batch.stage == "over":
                self._load(batch)
        self._results = {key: result for key, result in self._results.items() if not result[0].may_be_mended}

    def reply(self, question: Question) -> Reply | None:
        """The reply that a batch brought; None = none did yet. Raises `LlmError` when the request failed for good."""
        if question.key not in self._results:
            return None
        result, reply_format = self._results[question.key]
        failure = result.failure
        if failure is None:
            return self._read(question, result)
        if self._may_be_asked_otherwise(question, failure, reply_format):
            del self._results[question.key]
            return None
        message = f"{question.model} failed in a batch: {failure}"
        if is_too_long(failure):
            raise ContextError(message, remedy(failure), context_limit(str(failure)))
        if is_refusal(failure):
            raise RefusedError(message)
        if is_permanent(failure):
            raise PermanentError(message, remedy(failure))
        raise LlmError(message, remedy(failure))

    def _may_be_asked_otherwise(self, question: Question, failure: openai.OpenAIError, reply_format: int) -> bool:
        """Whether the model may answer in another reply format, or without a parameter that it refused."""
        dialect, params = dialect_of(_endpoint(question)), question.public_params
        sent = self._sent.get(question.key, dialect.translate(params))
        if sent != dialect.translate(params):  # another request of the batch has shown what it does not take
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
        reply = replace(reply, key=question.key)
        if question.key not in self._paid:
            self._paid.add(question.key)
            self._budget.spent_usd += reply.cost_usd or 0.0
            self._budget.spent_tokens += reply.prompt_tokens + reply.completion_tokens
        own_server = bool(question.params.keys() & {"api_base", "base_url"})
        check_not_cut(question.model, reply, question.messages, own_server=own_server)
        return reply

    async def collect(self, question: Question) -> Reply:
        """Notes the question for the next batch, unless one is under way with it, and raises `NotYetError`."""
        key, endpoint = question.key, _endpoint(question)
        self._questions.setdefault(endpoint, question)
        if key not in self._wanted and key not in self._under_way:
            dialect = dialect_of(endpoint)
            reply_format = self._formats.get(key, dialect.format)
            self._sent[key] = sent = dialect.translate(question.public_params)
            data = request_line(question, FORMATS[reply_format][1](question.schema) | sent)
            self._file(*endpoint, reply_format).write(data)
            each = batch_price(question.model, self._prices, question.params) or (0.0, 0.0)
            usd, tokens = (len(data) // 4 * each[0] + _EXPECTED_COMPLETION * each[1]) / 1e6, len(data) // 4
            self._expected = self._expected[0] + usd, self._expected[1] + tokens + _EXPECTED_COMPLETION
        self._wanted.add(key)
        raise NotYetError(f"the reply of {question.model} comes with a batch.")

    def _file(self, model: str, address: str, reply_format: int) -> IO[bytes]:
        group = model, address, reply_format
        if group not in self._collected:
            path = self._job.directory / f"collecting-{len(self._collected)}.jsonl"
            self._collected[group] = path.open("w+b")
        return self._collected[group]

    async def advance(self) -> bool:
        """Sends what was collected, and waits until every batch is over; whether there was any.

        Raises `BudgetError` when more would be spent than is left, and `LlmError` for a batch that failed as a whole;
        the results that came are on file then.
        """
        self._check_budget()
        self._write_collected()
        unfinished = [batch for batch in self._job.batches if batch.stage != "over"]
        waiting = [batch for batch in unfinished if any(key in self._wanted for key in self._job.keys(batch))]
        self._wanted.clear()
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                for batch in waiting:
                    tasks.create_task(self._finish(batch))
        return bool(waiting)

    def _write_collected(self) -> None:
        for (model, address, reply_format), file in self._collected.items():
            file.seek(0)
            while lines := list(_chunk(file)):
                batch = self._job.add(model, address, reply_format, lines)
                self._under_way.update(self._job.keys(batch))
            file.close()
            Path(file.name).unlink()
        self._collected.clear()
        self._expected = 0.0, 0

    def _check_budget(self) -> None:
        budget, (usd, tokens) = self._budget, self._expected
        if budget.max_cost_usd is not None and budget.spent_usd + usd > budget.max_cost_usd:
            raise BudgetError(
                f"the next batch would cost about {usd:.2g} USD, and {budget.max_cost_usd - budget.spent_usd:.2g} of "
                f"{budget.max_cost_usd:g} USD are left.",
                "Raise the budget (--max-cost); what is answered is kept.",
            )
        if budget.max_tokens is not None and budget.spent_tokens + tokens > budget.max_tokens:
            raise BudgetError(
                f"the next batch would take about {tokens:,} tokens, and {budget.max_tokens - budget.spent_tokens:,} "
                f"of {budget.max_tokens:,} are left.",
                "Raise the budget (--max-judge-tokens); what is answered is kept.",
            )

    async def _finish(self, batch: BatchRecord) -> None:
        """Brings a batch from wherever it is to its end, with its results on file."""
        question = self._questions.get((batch.model, batch.address))
        api = BatchApi(batch.model, question.params if question else {})
        if batch.stage == "written":
            batch.file_id = await api.upload(self._job.requests(batch))
            batch.stage = "uploaded"
            self._job.save()
        while not batch.batch_id:
            batch.batch_id = await self._create(api, batch) or ""
        if batch.stage != "sent":
            batch.stage = "sent"
            self._job.save()
        name = f"batch {self._job.batches.index(batch) + 1} ({batch.model}, {batch.batch_id})"
        pause, longest = self._poll_seconds
        told = ""
        while not (status := await api.status(batch.batch_id)).is_over:
            news = f"{name}: {status.state}, {status.done:,} of {status.total:,} answered"
            if news != told:
                self._tell(news)
            told = news
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, longest)
        contents = [await api.content(file) for file in status.files]
        self._job.finish(batch, status.state, (content.rstrip(b"\n") + b"\n" for content in contents))
        self._load(batch)
        self._tell(f"{name}: {status.state}, {status.done:,} of {status.total:,} answered")
        if status.state == "failed":
            raise LlmError(
                f"{name} was refused: {status.problem or 'no reason is given'}",
                "Nothing of it was answered. Mend the cause; the same command sends it again.",
            )
        if status.state == "cancelled":
            raise LlmError(f"{name} was cancelled.", "What was answered is kept; the same command asks for the rest.")

    async def _create(self, api: BatchApi, batch: BatchRecord) -> str | None:
        """Creates the batch unless an earlier attempt, whose answer was lost, has; None = it is not known yet."""
        if batch.stage == "sending":
            if not api.can_find:
                self._job.stop_sending(batch)
                count = sum(1 for _ in self._job.keys(batch))
                raise LlmError(
                    f"it is not known whether a batch of {count:,} requests to {batch.model} was created: its creation "
                    "was broken off.",
                    f"Look for it where the vendor shows batches (metadata gavel: {batch.tag}), and cancel it there; "
                    "the same command sends its requests again.",
                )
            while True:
                if found := await api.find(batch.tag, batch.file_id):
                    return found
                if time.time() - batch.sending_since > _GRACE_SECONDS:
                    break
                await asyncio.sleep(self._poll_seconds[0])
        self._job.start_sending(batch)
        return await api.create(batch.file_id, batch.tag)

    def _load(self, batch: BatchRecord) -> None:
        """Reads the results of a batch that is over; what failed for the moment counts as an attempt."""
        keys = set(self._job.keys(batch))
        self._under_way -= keys
        tried = set[str]() if batch.end in _ENDED_BEFORE else set(keys)
        for result in read_results(self._job.results(batch), keys):
            key, failure = result.custom_id, result.failure
            tried.discard(key)
            if failure is not None and (may_pass(failure) or result.is_unreached):
                self._attempts[key] += batch.end not in _ENDED_BEFORE
                if self._attempts[key] < _ATTEMPTS:
                    continue
            if failure is None or not self._is_answered(key):
                self._results[key] = result, batch.reply_format
        for key in tried:
            self._attempts[key] += 1
            if self._attempts[key] >= _ATTEMPTS and key not in self._results:
                self._results[key] = not_answered(key), batch.reply_format

    def _is_answered(self, key: str) -> bool:
        return key in self._results and self._results[key][0].failure is None


def _chunk(file: IO[bytes]) -> Iterator[bytes]:
    """The next lines that make one batch."""
    size = 0
    for _ in range(_MOST_REQUESTS):
        start = file.tell()
        line = file.readline()
        size += len(line)
        if not line:
            return
        if size > _MOST_BYTES and size > len(line):
            file.seek(start)
            return
        yield line


def _endpoint(question: Question) -> tuple[str, str]:
    """The model and its server, as a client names them."""
    return question.model, str(question.params.get("api_base") or question.params.get("base_url") or "")
