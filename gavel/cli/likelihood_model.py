"""`--judge likelihood`: the judge of `gavel demo --real`, for any command that trains on the scenario one_sentence."""

from gavel.cli.demo_jobs import LIKELIHOOD
from gavel.llm.providers import names, register
from gavel.llm.types import Message


def register_likelihood() -> None:
    """Makes `likelihood` a judge model, whose weights are loaded with its first question."""
    if LIKELIHOOD not in names():
        register(LIKELIHOOD, _first_reply)


def _first_reply(messages: list[Message]) -> str:
    from rich.console import Console

    from gavel.cli.demo_texts import FrozenBase

    return FrozenBase(Console(stderr=True)).judge.reply(messages)  # which is registered by its making
