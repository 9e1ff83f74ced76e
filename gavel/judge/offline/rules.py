"""Written rules that a program can check: the part of a rubric that the stand-in judge understands.

A rule is a line that begins with "- " and has one of these forms; every other line is for other readers.

    - calls A, B and C before X or Y
    - calls X when <condition over keys of the JSON objects that tools returned>
    - calls only one of X, Y, Z
    - ends with a message ...
"""

import ast
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gavel.judge.prompt.canonical import Conversation, TextEvent, ToolCallEvent


@dataclass(frozen=True, slots=True)
class Facts:
    """What a rule may look at in one attempt."""

    calls: tuple[str, ...]
    """Tools that were called without an error, in order."""
    errors: int
    known: Mapping[str, Any]
    """Keys and values of the JSON objects that tools returned."""
    ends_with_message: bool


@dataclass(frozen=True, slots=True)
class Before:
    """Every one of `needed` was called before the first of `actions`, and one of those was called."""

    text: str
    needed: tuple[str, ...]
    actions: tuple[str, ...]

    def kept(self, facts: Facts) -> bool:
        first = next((place for place, name in enumerate(facts.calls) if name in self.actions), None)
        return first is not None and set(self.needed) <= set(facts.calls[:first])


@dataclass(frozen=True, slots=True)
class When:
    """`action` was called exactly when the condition holds, and the agent found out whether it does."""

    text: str
    action: str
    condition: ast.expr

    def kept(self, facts: Facts) -> bool:
        try:
            due = bool(_value(self.condition, facts.known))
        except (_Unknown, TypeError):  # TypeError: values that cannot be compared tell as little as none
            return False
        return (self.action in facts.calls) == due


@dataclass(frozen=True, slots=True)
class OnlyOneOf:
    """Exactly one call of any of `actions`."""

    text: str
    actions: tuple[str, ...]

    def kept(self, facts: Facts) -> bool:
        return sum(name in self.actions for name in facts.calls) == 1


@dataclass(frozen=True, slots=True)
class EndsWithMessage:
    """The last thing is a message to the user."""

    text: str

    def kept(self, facts: Facts) -> bool:
        return facts.ends_with_message


Rule = Before | When | OnlyOneOf | EndsWithMessage


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
    return None


def _names(text: str) -> tuple[str, ...]:
    """The tool names in "A, B and C"; none if anything else is in it."""
    names = [name.strip().strip("`") for name in re.split(r",|\band\b|\bor\b", text) if name.strip()]
    return tuple(names) if all(re.fullmatch(r"[\w.:/-]+", name) for name in names) else ()


def facts_of(attempt: Sequence[Conversation]) -> Facts:
    """The facts of an attempt, shown in full: its main conversation first."""
    calls = [event for each in attempt for event in each.events if isinstance(event, ToolCallEvent)]
    results = [(call, _json(call.result)) for call in calls]
    failed = [isinstance(result, dict) and bool(result.get("error")) for _, result in results]
    known: dict[str, Any] = {}
    for (_, result), wrong in zip(results, failed, strict=True):
        if isinstance(result, dict) and not wrong:
            known |= result
    last = attempt[0].events[-1] if attempt[0].events else None
    return Facts(
        calls=tuple(call.name for call, wrong in zip(calls, failed, strict=True) if not wrong),
        errors=sum(failed),
        known=known,
        ends_with_message=isinstance(last, TextEvent) and last.role == "assistant" and bool(last.text.strip()),
    )


def _json(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


class _Unknown(Exception):
    """The agent never learned a value that a condition names."""


_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _condition(text: str) -> ast.expr | None:
    """A condition made of names, constants, comparisons, and, or, not; None for anything else."""
    try:
        condition = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return condition if _is_plain(condition) else None


def _is_plain(node: ast.expr) -> bool:
    match node:
        case ast.Name() | ast.Constant():
            return True
        case ast.BoolOp(values=values):
            return all(map(_is_plain, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _is_plain(operand)
        case ast.Compare(left=left, ops=ops, comparators=others):
            return all(type(op) in _COMPARE for op in ops) and all(map(_is_plain, [left, *others]))
        case _:
            return False


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """The value of a plain condition. Raises `_Unknown` if any name in it is, needed or not."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            if name not in known:
                raise _Unknown(name)
            return known[name]
        case ast.BoolOp(op=op, values=values):
            found = [_value(value, known) for value in values]
            return all(found) if isinstance(op, ast.And) else any(found)
        case ast.UnaryOp(operand=operand):
            return not _value(operand, known)
        case ast.Compare(left=left, ops=ops, comparators=others):
            terms = [_value(term, known) for term in (left, *others)]
            return all(_COMPARE[type(op)](a, b) for op, a, b in zip(ops, terms, terms[1:], strict=False))
        case _:
            raise _Unknown(ast.dump(node))


def score_rules(rules: Iterable[Rule], facts: Facts) -> tuple[float, list[str]]:
    """The weighted share of rules that are kept, and the texts of those that are not.

    All `When` rules are one check of weight 2: the right thing was done, and nothing else. A `Before` weighs 1, the
    others a half.
    """
    rules = list(rules)
    kept = {rule.text: rule.kept(facts) for rule in rules}
    deeds = [kept[rule.text] for rule in rules if isinstance(rule, When)]
    checks = [(2.0, all(deeds))] if deeds else []
    checks += [
        (1.0 if isinstance(rule, Before) else 0.5, kept[rule.text]) for rule in rules if not isinstance(rule, When)
    ]
    share = sum(weight for weight, ok in checks if ok) / sum(weight for weight, _ in checks)
    return share, [text for text, ok in kept.items() if not ok]
