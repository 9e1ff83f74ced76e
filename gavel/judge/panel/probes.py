"""One cheap question to every model of a jury, before the first group."""

import asyncio
from collections.abc import Sequence
from itertools import chain

from gavel.judge.errors import as_judge_error
from gavel.llm.client import Client
from gavel.llm.errors import LlmError
from gavel.llm.probe import Probe


async def probe_all(jurors: Sequence[Sequence[Client]], *, replayed: bool) -> list[Probe]:
    """The answers of all clients; `jurors` are the clients of each, the first and its fallbacks.

    Without `replayed`, clients that have replies on their cassette are asked when their first request is to be sent.
    Raises `JudgeError` when no client of a juror answers.
    """
    distinct = {_endpoint(client): client for client in chain.from_iterable(jurors) if client.can_be_probed}
    if not replayed:
        for endpoint in [endpoint for endpoint, client in distinct.items() if await client.has_replies()]:
            distinct.pop(endpoint).probe_when_asked()
    async with asyncio.TaskGroup() as tasks:
        asked = {endpoint: tasks.create_task(_probe(client)) for endpoint, client in distinct.items()}
    answers = {endpoint: task.result() for endpoint, task in asked.items()}
    for clients in jurors:
        of_juror = [answers.get(_endpoint(client)) for client in clients]
        if isinstance(error := of_juror[0], LlmError) and all(isinstance(one, LlmError) for one in of_juror):
            raise as_judge_error(error)
    failed = {name: error.message for (name, _), error in answers.items() if isinstance(error, LlmError)}
    probes = [answer for answer in answers.values() if isinstance(answer, Probe)]
    return probes + [Probe(name, "", "", 0.0, None, problem) for name, problem in failed.items()]


async def _probe(client: Client) -> Probe | LlmError:
    try:
        return await client.probe()
    except LlmError as error:
        return error


def _endpoint(client: Client) -> tuple[str, str]:
    """Clients for which one question answers for all."""
    return client.name, repr(sorted(client.params.items()))
