"""Rules that a program can check: the part of a rubric that the stand-in judge understands.

A rule is a line that begins with "- " and has one of these forms; other lines of the rubric are ignored.

    - calls A, B and C
    - calls A, B and C before X or Y
    - calls X when <condition over keys of the JSON objects that tools returned>
    - calls only one of X, Y, Z
    - ends with a message ...

A condition consists of names, constants, comparisons, `and`, `or` and `not`. It is evaluated by Jinja's sandbox.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from jinja2 import StrictUndefined, TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gavel.judge.prompt.canonical_group import Conversation, TextEvent, ToolCallEvent

_SANDBOX = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
_COMPARISONS = {"eq", "ne", "lt", "lteq", "gt", "gteq"}


@dataclass(frozen=True, slots=True)
class Facts:
    """What rules depend on in one attempt."""

    calls: tuple[str, ...]
    """Names of the tools called without an error, in order."""
    errors: int
    """Number of calls that returned an error."""
    known: Mapping[str, Any]
    """Keys and values of the JSON objects that tools returned; a later value replaces an earlier one."""
    ends_with_message: bool


@dataclass(frozen=True, slots=True)
class Condition:
    """A compiled condition."""

    names: frozenset[str]
    """Every name in it; all must be known, including those that evaluation would skip."""
    evaluate: Callable[[Mapping[str, Any]], Any]
    """Raises `TypeError` for values that cannot be compared."""


@dataclass(frozen=True, slots=True)
class Calls:
    """All of `needed` were called."""

    text: str
    needed: tuple[str, ...]

    def kept(self, facts: Facts) -> bool:
        return set(self.needed) <= set(facts.calls)


@dataclass(frozen=True, slots=True)
class Before:
    """One of `actions` was called, and all of `needed` were called before the first of them."""

    text: str
    needed: tuple[str, ...]
    actions: tuple[str, ...]

    def kept(self, facts: Facts) -> bool:
        first = next((index for index, name in enumerate(facts.calls) if name in self.actions), None)
        return first is not None and set(self.needed) <= set(facts.calls[:first])


@dataclass(frozen=True, slots=True)
class When:
    """`action` was called if and only if the condition holds. Not kept if the agent never learned a value it names."""

    text: str
    action: str
    condition: Condition

    def kept(self, facts: Facts) -> bool:
        if not self.condition.names <= facts.known.keys():
            return False
        try:
            due = bool(self.condition.evaluate(facts.known))
        except TypeError:  # values that cannot be compared are as good as unknown
            return False
        return (self.action in facts.calls) == due


@dataclass(frozen=True, slots=True)
class OnlyOneOf:
    """`actions` were called exactly once in total."""

    text: str
    actions: tuple[str, ...]

    def kept(self, facts: Facts) -> bool:
        return sum(name in self.actions for name in facts.calls) == 1


@dataclass(frozen=True, slots=True)
class EndsWithMessage:
    """The last event is a message to the user that is not blank."""

    text: str

    def kept(self, facts: Facts) -> bool:
        return facts.ends_with_message


Rule = Calls | Before | When | OnlyOneOf | EndsWithMessage


def read_rules(rubric: str) -> list[Rule]:
    """The rules in a rubric, in order."""
    lines = (line.strip() for line in rubric.splitlines())
    rules = (_rule(line[2:].strip().rstrip(".")) for line in lines if line.startswith("- "))
    return [rule for rule in rules if rule is not None]


def _rule(text: str) -> Rule | None:
    if re.match(r"ends with a message\b", text, re.IGNORECASE):
        return EndsWithMessage(text)
    if found := re.fullmatch(r"calls only one of (.+)", text, re.IGNORECASE):
        actions = _names(found[1])
        return OnlyOneOf(text, actions) if actions else None
    if found := re.fullmatch(r"calls (\S+) when (.+)", text, re.IGNORECASE):
        action, condition = _names(found[1]), _condition(found[2])
        return When(text, action[0], condition) if action and condition else None
    if found := re.fullmatch(r"calls (.+) before (.+)", text, re.IGNORECASE):
        needed, actions = _names(found[1]), _names(found[2])
        return Before(text, needed, actions) if needed and actions else None
    if found := re.fullmatch(r"calls (.+)", text, re.IGNORECASE):
        needed = _names(found[1])
        return Calls(text, needed) if needed else None
    return None


def _names(text: str) -> tuple[str, ...]:
    """The tool names in "A, B and C"; empty if the text contains anything else."""
    names = [name.strip().strip("`") for name in re.split(r",|\band\b|\bor\b", text) if name.strip()]
    return tuple(names) if all(re.fullmatch(r"[\w.:/-]+", name) for name in names) else ()


def facts_of(attempt: Sequence[Conversation]) -> Facts:
    """The facts of an attempt as `read_transcripts` gives it: in full, the main conversation first."""
    calls: list[str] = []
    errors = 0
    known: dict[str, Any] = {}
    for call in (event for each in attempt for event in each.events if isinstance(event, ToolCallEvent)):
        result = _json_object(call.result)
        if result.get("error"):
            errors += 1
        else:
            calls.append(call.name)
            known |= result
    last = attempt[0].events[-1] if attempt[0].events else None
    return Facts(
        calls=tuple(calls),
        errors=errors,
        known=known,
        ends_with_message=isinstance(last, TextEvent) and last.role == "assistant" and bool(last.text.strip()),
    )


def _json_object(text: str | None) -> dict[str, Any]:
    """The object that a tool returned; empty for anything else."""
    try:
        value = json.loads(text or "null")
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


@lru_cache(256)
def _condition(text: str) -> Condition | None:
    """A condition made of names, constants, comparisons, and, or, not; None for anything else."""
    try:
        template = _SANDBOX.parse(f"{{{{ {text} }}}}")
        outputs = [part for output in template.find_all(nodes.Output) for part in output.nodes]
        if len(template.body) == len(outputs) == 1 and _is_plain(outputs[0]):
            names = frozenset(node.name for node in template.find_all(nodes.Name))
            return Condition(names, _SANDBOX.compile_expression(text))
    except (TemplateError, SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    return None


def _is_plain(node: nodes.Node) -> bool:
    """Whether a node can only compare values: no calls, attributes, arithmetic, filters or tests.

    It is checked before the expression is compiled, because Jinja evaluates constant parts (`9**9**9`) on compiling.
    """
    match node:
        case nodes.Name(name=name):
            return name != "self"  # in Jinja this is the template, whatever a tool returned under this key
        case nodes.Const():
            return True
        case nodes.And(left=left, right=right) | nodes.Or(left=left, right=right):
            return _is_plain(left) and _is_plain(right)
        case nodes.Not(node=negated):
            return _is_plain(negated)
        case nodes.Compare(expr=first, ops=operands):
            return _is_plain(first) and all(each.op in _COMPARISONS and _is_plain(each.expr) for each in operands)
        case _:
            return False


def score_rules(rules: Iterable[Rule], facts: Facts) -> tuple[float, list[str]]:
    """The weighted share of at least one rule that is kept, and the texts of the rules that are not.

    All `When` rules together are one check of weight 2: the right action, and no wrong one. `Calls` and `Before` weigh
    1, the others 0.5.
    """
    broken: list[str] = []
    checks: list[tuple[float, bool]] = []
    right_actions: list[bool] = []
    for rule in rules:
        kept = rule.kept(facts)
        if not kept:
            broken.append(rule.text)
        match rule:
            case When():
                right_actions.append(kept)
            case Calls() | Before():
                checks.append((1.0, kept))
            case OnlyOneOf() | EndsWithMessage():
                checks.append((0.5, kept))
    if right_actions:
        checks.append((2.0, all(right_actions)))
    share = sum(weight for weight, kept in checks if kept) / sum(weight for weight, _ in checks)
    return share, list(dict.fromkeys(broken))
