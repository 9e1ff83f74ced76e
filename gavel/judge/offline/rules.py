"""Rules that a program can check: the part of a rubric that the stand-in judge understands.

A rule is a line that begins with "- " and has one of these forms; other lines of the rubric are ignored.

    - calls A, B and C
    - calls A, B and C before X or Y
    - calls X only after A and B
    - calls X when <condition over keys of the JSON objects that tools returned>
    - calls X and Y when the request says "one word" or "another"
    - calls X when A finds something
    - calls X with one_argument and another from the request (or: from A, from the first of A)
    - calls only one of X, Y, Z
    - calls X and Y at most once
    - is told "one phrase" or "another" (by the user: what a world answers to words; or: is not told)
    - says "one phrase" or "another" ... (the agent, in any message; or: does not say)
    - ends with a message ...

A condition consists of names, constants, comparisons, `and`, `or` and `not`. It is evaluated by Jinja's sandbox.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from jinja2 import StrictUndefined, TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gavel.judge.offline.facts import Facts, words_of

_SANDBOX = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
_QUOTED = r'"[^"]+"(?:(?:, | or )"[^"]+")*'
_COMPARISONS = {"eq", "ne", "lt", "lteq", "gt", "gteq"}


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
class OnlyAfter:
    """Whenever one of `actions` was called, all of `needed` had been. Kept where none was called."""

    text: str
    actions: tuple[str, ...]
    needed: tuple[str, ...]

    def kept(self, facts: Facts) -> bool:
        first = next((index for index, name in enumerate(facts.calls) if name in self.actions), None)
        return first is None or set(self.needed) <= set(facts.calls[:first])


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
class WhenAsked:
    """All of `actions` were called if the user said one of `words`, and none of them otherwise."""

    text: str
    actions: tuple[str, ...]
    words: tuple[str, ...]

    def kept(self, facts: Facts) -> bool:
        request = " ".join(words_of(facts.request.lower()))
        due = any(re.search(rf"\b{re.escape(word)}\b", request) for word in self.words)
        return all((action in facts.calls) == due for action in self.actions)


@dataclass(frozen=True, slots=True)
class WhenFound:
    """`action` was called if and only if the last call of `source` returned something that is not empty."""

    text: str
    action: str
    source: str

    def kept(self, facts: Facts) -> bool:
        found = next((call.result for call in reversed(facts.made) if call.name == self.source), None)
        return (self.action in facts.calls) == bool(found)


@dataclass(frozen=True, slots=True)
class ArgumentsFrom:
    """Each call of one of `actions` took its `arguments` from the last result of `source` before it, from that result's
    first item, or, without a source, from the user's words in that order. Kept where none was called."""

    text: str
    actions: tuple[str, ...]
    arguments: tuple[str, ...]
    source: str | None
    first: bool = False

    def kept(self, facts: Facts) -> bool:
        return all(self._taken(facts, index) for index, call in enumerate(facts.made) if call.name in self.actions)

    def _taken(self, facts: Facts, index: int) -> bool:
        values = [words_of(facts.made[index].arguments.get(name)) for name in self.arguments]
        if not all(values):
            return False
        if self.source is None:
            left = iter(words_of(facts.request))
            return all(word in left for value in values for word in value)
        earlier = (call.result for call in reversed(facts.made[:index]) if call.name == self.source)
        result = next(earlier, None)
        if self.first and isinstance(result, list):
            result = cast("list[Any]", result)[:1]
        return {word for value in values for word in value} <= set(words_of(result))


@dataclass(frozen=True, slots=True)
class AtMostOnce:
    """Each of `actions` was called once or not at all."""

    text: str
    actions: tuple[str, ...]

    def kept(self, facts: Facts) -> bool:
        return all(facts.calls.count(action) <= 1 for action in self.actions)


@dataclass(frozen=True, slots=True)
class OnlyOneOf:
    """`actions` were called exactly once in total."""

    text: str
    actions: tuple[str, ...]

    def kept(self, facts: Facts) -> bool:
        return sum(name in self.actions for name in facts.calls) == 1


@dataclass(frozen=True, slots=True)
class Told:
    """The user said one of `phrases`, or, if not `wanted`, none of them. An agent cannot write the user's turns, so
    what a world says of the outcome is true."""

    text: str
    phrases: tuple[str, ...]
    wanted: bool

    def kept(self, facts: Facts) -> bool:
        said = facts.request.casefold()
        return any(phrase.casefold() in said for phrase in self.phrases) == self.wanted


@dataclass(frozen=True, slots=True)
class Says:
    """The agent said one of `phrases`, or, if not `wanted`, none of them."""

    text: str
    phrases: tuple[str, ...]
    wanted: bool

    def kept(self, facts: Facts) -> bool:
        said = facts.said.casefold()
        return any(phrase.casefold() in said for phrase in self.phrases) == self.wanted


@dataclass(frozen=True, slots=True)
class EndsWithMessage:
    """The last event is a message to the user that is not blank."""

    text: str

    def kept(self, facts: Facts) -> bool:
        return facts.ends_with_message


Rule = (
    Calls
    | Before
    | OnlyAfter
    | When
    | WhenAsked
    | WhenFound
    | ArgumentsFrom
    | OnlyOneOf
    | AtMostOnce
    | Told
    | Says
    | EndsWithMessage
)


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
    for read in (_told, _says, _at_most_once, _only_after, _when_asked, _when_found, _arguments_from):
        if (rule := read(text)) is not None:
            return rule
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


def _told(text: str) -> Rule | None:
    found = re.fullmatch(rf"is (not )?told ({_QUOTED})", text, re.IGNORECASE)
    return Told(text, _phrases(found[2]), found[1] is None) if found else None


def _says(text: str) -> Rule | None:
    found = re.match(rf"(says|does not say) ({_QUOTED})", text, re.IGNORECASE)
    return Says(text, _phrases(found[2]), found[1].lower() == "says") if found else None


def _phrases(quoted: str) -> tuple[str, ...]:
    return tuple(re.findall(r'"([^"]+)"', quoted))


def _at_most_once(text: str) -> Rule | None:
    found = re.fullmatch(r"calls (.+) at most once", text, re.IGNORECASE)
    actions = _names(found[1]) if found else ()
    return AtMostOnce(text, actions) if actions else None


def _only_after(text: str) -> Rule | None:
    found = re.fullmatch(r"calls (.+) only after (.+)", text, re.IGNORECASE)
    actions, needed = (_names(found[1]), _names(found[2])) if found else ((), ())
    return OnlyAfter(text, actions, needed) if actions and needed else None


def _when_asked(text: str) -> Rule | None:
    found = re.fullmatch(rf"calls (.+?) when the request says ({_QUOTED})", text, re.IGNORECASE)
    if not found or not (actions := _names(found[1])):
        return None
    words = tuple(" ".join(words_of(each.lower())) for each in _phrases(found[2]))
    return WhenAsked(text, actions, words) if all(words) else None


def _when_found(text: str) -> Rule | None:
    found = re.fullmatch(r"calls (\S+) when (\S+) finds something", text, re.IGNORECASE)
    names = (*_names(found[1]), *_names(found[2])) if found else ()
    return WhenFound(text, *names) if len(names) == 2 else None


def _arguments_from(text: str) -> Rule | None:
    found = re.fullmatch(r"calls (.+?) with (.+) from (the request|(?:the first of )?\S+)", text, re.IGNORECASE)
    if not found:
        return None
    actions, arguments, origin = _names(found[1]), _names(found[2]), found[3].lower()
    if not actions or not arguments:
        return None
    if origin == "the request":
        return ArgumentsFrom(text, actions, arguments, None)
    source = _names(found[3].split()[-1])
    return ArgumentsFrom(text, actions, arguments, source[0], "first of" in origin) if source else None


def _names(text: str) -> tuple[str, ...]:
    """The tool names in "A, B and C"; empty if the text contains anything else."""
    names = [name.strip().strip("`") for name in re.split(r",|\band\b|\bor\b", text) if name.strip()]
    return tuple(names) if all(re.fullmatch(r"[\w.:/-]+", name) for name in names) else ()


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

    All rules of the form `calls … when …` together are one check of weight 2: the right action, and no wrong one; so is
    each `is told`. Rules about order and arguments weigh 1, the others 0.5.
    """
    broken: list[str] = []
    checks: list[tuple[float, bool]] = []
    right_actions: list[bool] = []
    for rule in rules:
        kept = rule.kept(facts)
        if not kept:
            broken.append(rule.text)
        match rule:
            case When() | WhenAsked() | WhenFound():
                right_actions.append(kept)
            case Calls() | Before() | OnlyAfter() | ArgumentsFrom():
                checks.append((1.0, kept))
            case Told(wanted=True):
                checks.append((2.0, kept))
            case OnlyOneOf() | Told() | Says() | AtMostOnce() | EndsWithMessage():
                checks.append((0.5, kept))
    if right_actions:
        checks.append((2.0, all(right_actions)))
    share = sum(weight for weight, kept in checks if kept) / sum(weight for weight, _ in checks)
    return share, list(dict.fromkeys(broken))
