"""`llms.txt` and `llms-reference.txt`: what a coding agent reads in place of the site.

`llms.txt` lists every page with its first sentence, in the form of llmstxt.org. `llms-reference.txt` has every public
name with its signature, every command with its options and every setting of a run, in plain text.
"""

import inspect
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

import gavel
from gavel.base import entry_points
from gavel.trainer.run_config import RunConfig

from .commands import about, commands, options, usage
from .public_names import public_names

SUMMARY = (
    "Gavel turns an LLM judge into a reward: it scores a group of agent trajectories of one task from 0 to 1, relative to each other, "
    "and trains the agent on those scores with GRPO and LoRA. Python 3.11+; `pip install .` in a clone (no release on PyPI yet); the import name is `gavel`."
)
ADVICE = """Advice for agents that write code with Gavel:
- Everything that awaits is a coroutine: `await judge.score(group)`, `await model.train(groups)`; wrap scripts in `asyncio.run(main())`.
- Try it without a key: the judge "stand-in" checks rubric lines such as `- calls A before B`; base_model="embedded/returns-desk" is a tiny policy.
- `gavel check FILE` plays two episodes of a scenario; `gavel train FILE --dry-run` tells calls, tokens and dollars; both before training.
- A member that the judge could not score has `reward is None`; never replace it by 0.
- Errors are `gavel.GavelError` with `.message` and `.remedy`; the remedy is what to type next.
- Commands with `--json` print one JSON document on standard output; exit status 1 is an error that a user can mend.
"""


@dataclass(frozen=True, slots=True)
class PageLine:
    """A page of the site: its section of the navigation, title, address and first sentence."""

    section: str
    title: str
    url: str
    says: str


def first_sentence(markdown: str) -> str:
    """The first sentence of a page's first paragraph; empty when a page begins with no prose."""
    without = re.sub(
        r"```.*?```|<!--.*?-->|^#.*$|^\s*(?:[|>!]|- |:::).*$", "", markdown, flags=re.DOTALL | re.MULTILINE
    )
    paragraph = next((" ".join(part.split()) for part in without.split("\n\n") if part.strip()), "")
    paragraph = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)
    return re.split(r"(?<=[.:!?])\s", paragraph, maxsplit=1)[0].removesuffix(":")


def index(pages: Iterable[PageLine]) -> str:
    """`llms.txt`."""
    lines = ["# Gavel", "", f"> {SUMMARY}", "", ADVICE]
    sections: dict[str, list[PageLine]] = {}
    for page in pages:
        sections.setdefault(page.section, []).append(page)
    for section, inside in sections.items():
        lines += [f"## {section}", ""]
        lines += [
            f"- [{page.title}]({page.url}): {page.says}" if page.says else f"- [{page.title}]({page.url})"
            for page in inside
        ]
        lines.append("")
    return "\n".join(lines)


def reference() -> str:
    """`llms-reference.txt`."""
    lines = ["# Gavel: compact reference", "", SUMMARY, "", ADVICE, "## Public names (`import gavel`)", ""]
    for name in public_names():
        lines += _name(name, getattr(gavel, name))
    lines += ["", "## Rewards of other trainers (`gavel.integrations`)", ""]
    for name in entry_points.names("gavel.rewards"):
        module = entry_points.load("gavel.rewards", name)
        lines += [f"gavel.integrations.{name}.{each}{_signature(getattr(module, each))}" for each in module.__all__]
    lines += ["", "## Commands", ""]
    for command in commands():
        lines.append(f"{usage(command)}  # {_first(about(command))}")
        lines += [
            f"    {' '.join([*each.opts, *each.secondary_opts])}: {_first(each.help or '')}"
            for each in options(command)
        ]
    lines += ["", "## Settings of a run (run.toml; --set PATH=VALUE)", ""]
    lines += list(_settings(RunConfig, ""))
    return "\n".join(lines) + "\n"


def _name(name: str, value: Any) -> Iterator[str]:
    says = _first(inspect.getdoc(value) or "")
    if inspect.isclass(value) and issubclass(value, BaseModel):
        yield f"class gavel.{name}  # {says}"
        for field, info in value.model_fields.items():
            default = (
                ""
                if info.is_required()
                else f" = {_shown(info.get_default(call_default_factory=True, validated_data={}))}"
            )
            yield f"    {field}{default}"
    elif inspect.isclass(value):
        yield f"class gavel.{name}{_signature(value)}  # {says}"
    else:
        yield f"{'async ' if inspect.iscoroutinefunction(value) else ''}def gavel.{name}{_signature(value)}  # {says}"
        return
    for method, function in vars(value).items():
        if not method.startswith("_") and inspect.isfunction(function) and function.__doc__:
            kind = "async def" if inspect.iscoroutinefunction(function) else "def"
            yield f"    {kind} {method}{_signature(function)}  # {_first(function.__doc__)}"


def _signature(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parts = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in signature.parameters.values()
        if each.name != "self"
    ]
    return re.sub(r"<[^>]*>", "…", str(signature.replace(parameters=parts, return_annotation=inspect.Signature.empty)))


def _settings(model: type[BaseModel], path: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        if isinstance(default, BaseModel):
            yield from _settings(type(default), f"{path}{name}.")
        else:
            yield f"{path}{name} = {_shown(default)}  # {_first(field.description or '')}"


def _shown(value: Any) -> str:
    if isinstance(value, BaseModel):
        return f"{type(value).__name__}()"
    try:
        return json.dumps(value)
    except TypeError:
        return "required" if type(value).__name__ == "PydanticUndefinedType" else str(value)


def _first(text: str) -> str:
    return re.split(r"(?<=[.!?])\s", " ".join(text.split()), maxsplit=1)[0]
