"""Rules that a program can check: what the stand-in judge reads of a rubric, and what it does not.

Each title, list item and sentence of a rubric is a statement. A statement of one of these forms is a rule; any other is
told as not read, and so is all that it may turn round, as "The agent never:" does: what stands below a title or a
sentence that is not read, and what is nested in such an item.

    - calls look_up and check before refund (weight 2); ends with a message

`_FORMS` has all forms, and docs/judge.md says what each means. What was told after a call or beside it is not known to
that call; a call that failed or has no result was not made. A rule that names no tool of those declared is not read;
where none are declared, names that no attempt calls are told.
"""

import json
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from jinja2 import Environment, TemplateError, nodes

from gavel.judge.offline.facts import (
    GLUE,
    JOINT,
    MANY,
    MARKED,
    STRAIGHT,
    Facts,
    join_thousands,
    object_of,
    readings_of,
    result_of,
    texts_of,
    value_of,
    words_of,
)
from gavel.judge.prompt.sanitize import comparable, normal_form

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_JINJA = Environment()
"""Parses conditions; nothing is ever rendered."""
_PHRASE = r'"[^"]*\w[^"]*"'
_QUOTED = rf"{_PHRASE}(?:(?:, | or | and |, or |, and ){_PHRASE})*"
_ADDRESSEE = r"(?: to (?:the |its )?(?:user|customer))?"
_FROM_TOOL = rf"(the request|[\w.:/`-]+) (?:says {_QUOTED}|finds something)"
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
}
_MOST_NODES = 200
_THREE_PLACES = re.compile(r""""[^"]*"|'[^']*'|(?<![\w.])(?P<open>[1-9]\d{0,2}\.\d{3})(?![\w.])""")
"""A text, or a number such as `1.000`, which may be one or a thousand: a condition with it is not read."""
_NULL = re.compile(r""""[^"]*"|'[^']*'|(?P<null>\bnull\b)""")
_DATE = re.compile(r"0000-00-00(?:[T ]00:00(?::00(?:\.0+)?)?Z?)?|00:00(?::00)?")
"""A date, one with a time, or a time, its digits as zeros."""
_ITEM = re.compile(r"( *)(?:[-*+•]|\d+[.)]) +(.*)")
_RUBRIC_COMMENT = re.compile(r'(?P<kept>"[^"\n]*")|<!--.*?-->|(?P<unclosed><!--.*)', re.DOTALL)
_SENTENCES = re.compile(r'(?:"[^"]*"|[^.!?]|[.!?]+(?=\S))+[.!?]*')

Finding = tuple[bool, str]
"""Whether a rule is kept, and what happened: never empty where it is not kept."""
Check = Callable[[Facts], Finding]
Condition = Callable[[Facts], tuple[bool | None, str]]
"""Whether it holds, None where that cannot be known, and why."""


class Names(NamedTuple):
    """Tools, arguments or phrases of a rule."""

    names: tuple[str, ...]
    any_of: bool
    """Whether one of them is enough."""

    def allow(self, absent: Sequence[str]) -> bool:
        """Whether the rule is kept although these are not there."""
        return not absent or (self.any_of and len(absent) < len(self.names))


@dataclass(frozen=True, slots=True)
class Rule:
    """A statement that can be checked."""

    text: str
    parts: tuple[tuple[str, Check], ...]
    """Those that `; ` joins, by their text; all of them must be kept."""
    weight: float = 1.0
    tools: frozenset[str] = frozenset()
    """The tools that it names."""

    def findings(self, facts: Facts) -> list[tuple[str, bool, str]]:
        """(text, kept, what happened) of each part. A rule about a tool that a text calls is not kept: what the call
        did is not known."""
        if hidden := sorted(self.tools & facts.written):
            return [(text, False, f"it calls {_and(hidden)} in its text, which is no call") for text, _ in self.parts]
        return [(text, *check(facts)) for text, check in self.parts]


@dataclass(frozen=True, slots=True)
class Reading:
    """What of a rubric is read."""

    rules: tuple[Rule, ...]
    unread: tuple[str, ...]
    """The other statements."""
    unknown: tuple[str, ...] = ()
    """Names of statements that are no tool's: neither declared nor, where none are declared, called."""
    declared: tuple[str, ...] = ()
    lacks_reference: bool = False
    """Whether a statement asks for a reference that is not there, or holds no word."""

    @property
    def shortfall(self) -> str:
        """`1 of 3 rules checked; not read: "is polite", "is right"`; empty where all are read."""
        count = len(self.rules) + len(self.unread)
        read = f"{len(self.rules)} of {count} {'rule' if count == 1 else 'rules'} checked; not read: {self.named}"
        return "; ".join(filter(None, [read if self.unread else "", self.lacking, self.misnamed]))

    @property
    def lacking(self) -> str:
        return "there is no reference to say" if self.lacks_reference else ""

    @property
    def misnamed(self) -> str:
        """Which names are no tool's; empty without such."""
        if not self.unknown:
            return ""
        names = _and(map(_quote, self.unknown))
        if not self.declared:
            return f"no tools are declared, and no attempt calls {names}"
        return f"no tool is named {names}: there {'is' if len(self.declared) == 1 else 'are'} {_and(self.declared)}"

    @property
    def named(self) -> str:
        """The first of what is not read."""
        shown = [text if text == REFERENCE else f'"{text[:80]}{"…" * (len(text) > 80)}"' for text in self.unread[:3]]
        more = len(self.unread) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")


REFERENCE = "the reference"


@lru_cache(256)
def read_rubric(
    rubric: str,
    *,
    reference: str | None = None,
    declared: frozenset[str] = frozenset(),
    called: frozenset[str] | None = None,
) -> Reading:
    """The rules in a rubric and its other statements, in order.

    A reference that the judge is given is a statement too: it is read where a rule is `says the reference`, unless it
    has no word, which nothing says. A comment is no statement, but one that is not closed is told. `declared` are
    the tools that the attempts have, `called` those that they called; any name is a tool's where both are missing.
    """
    rules: list[Rule] = []
    unread: list[str] = []
    unknown: dict[str, None] = {}
    asks_reference, answers = False, _answers(reference or "")
    turned: int | None = None
    """Statements from this indentation on may be turned round by one above them that is not read."""
    text = normal_form(rubric).translate(STRAIGHT)
    unclosed = [" ".join(found[0].split()) for found in _RUBRIC_COMMENT.finditer(text) if found["unclosed"]]
    text = _RUBRIC_COMMENT.sub(lambda found: found["kept"] or "", text)
    for indent, statements in _blocks(text):
        turned = None if turned is None or indent < turned else turned
        is_turned = turned is not None
        for statement in statements:
            asks = bool(re.search(rf"\bsays {REFERENCE}\b", statement, re.IGNORECASE))
            asks_reference |= asks
            rule = None if is_turned or (asks and not answers) else _rule(statement)
            known = declared or called
            strange = sorted(rule.tools - known) if rule and known is not None else []
            unknown |= dict.fromkeys(strange)
            if rule and not (strange and declared):
                rules.append(rule)
                continue
            unread.append(statement)
            if rule is None and not is_turned:
                is_turned, turned = True, indent + (indent >= 0 and not statement.endswith(":"))
    unread += unclosed
    if reference and not asks_reference:
        unread.append(REFERENCE)
    return Reading(tuple(rules), tuple(unread), tuple(unknown), tuple(sorted(declared)), asks_reference and not answers)


def score_rules(rules: Iterable[Rule], facts: Facts) -> tuple[float, str]:
    """The weighted share of at least one rule that is kept, and what became of them."""
    found = [(rule, rule.findings(facts)) for rule in rules]
    kept = [rule for rule, parts in found if all(part_kept for _, part_kept, _ in parts)]
    share = sum(rule.weight for rule in kept) / sum(rule.weight for rule, _ in found)
    told = f"Kept: {len(kept)} of {len(found)} {'rule' if len(found) == 1 else 'rules'}"
    parts = [part for _, parts in found for part in parts]
    idle = dict.fromkeys(what for _, part_kept, what in parts if part_kept and what)
    broken = dict.fromkeys(f"{text} ({what})" for text, part_kept, what in parts if not part_kept)
    told += f" ({'; '.join(idle)})." if idle else "."
    return share, told + (f" Not kept: {'; '.join(broken)}." if broken else "")


def nearest_form(statement: str, declared: Collection[str] = ()) -> str:
    """The form that says the same as a statement which is not read, and is read; empty without such, as of titles.

    It names none but the `declared` tools, where there are such."""

    def reads(form: str) -> bool:
        rule = _rule(form)
        return rule is not None and (not declared or rule.tools <= {*declared})

    text = _uncoded(_plain(statement))
    if text.startswith("#") or text.endswith(":") or _rule(text):
        return ""
    for pattern, same in ((r"\A", ""), *_SAME):
        text = re.sub(pattern, same, text, flags=re.IGNORECASE)
        spelled = dict.fromkeys(_spelled_out(text, mark, end) for mark, end in (("", ""), (".", "0")))
        if forms := [*filter(reads, spelled)]:
            return "` or `- ".join(forms)
    return ""


def counts(statement: str) -> bool:
    """Whether it says how often, outside of quotations."""
    return re.search(r"\b(?:once|twice|thrice|times)\b", re.sub(r'"[^"]*"', "", statement), re.IGNORECASE) is not None


def _quoted(found: re.Match[str]) -> str:
    """Names and numbers in quotes; any other words stay as they are, for they may describe what is to be said."""
    items = re.split(r"(, (?:or |and )?| or | and )", found["list"])
    for each in items[::2]:
        words = each.split()
        is_named = all(word[0].isupper() or word[0].isdigit() for word in words)
        if counts(each) or (not is_named and not re.fullmatch(r"'[^']+'|\d\S* \w+", each)):
            return found[0]
    quoted = (f'"{each.strip(chr(39))}"' if index % 2 == 0 else each for index, each in enumerate(items))
    return found["verb"] + " " + "".join(quoted) + found["more"]


_SAME: Sequence[tuple[str, str | Callable[[re.Match[str]], str]]] = (
    (r"""^(["'])(.*)\1$""", r"\2"),
    (r"[\s,:;(\[–-]+weight\W*(\d+(?:\.\d+)?)[)\]]?$", r" (weight \1)"),
    (r"^(?:it|(?:the )?(?:agent|assistant|model)) ", ""),
    (r"^(?:(?:do|does|must|should|shall|may|can|will)(?: not|n't| never)|cannot|never) (call|say)s?\b", r"does not \1"),
    (r"^(?:(?:must|should|shall) )?(?:always )?(call|say|end)s?\b", r"\1s"),
    # "calls a and says "b"": two rules, unless a word before "and" may reach over both
    (
        r"""^((?:(?!\b(?:not|when|unless|if|before|after|or)\b)[^"]|"[^"]*")+?),? and """
        r"(?=(?:calls|says|does|ends|is) )",
        r"\1; ",
    ),
    (r"^does not call ([^;]+?) (?:when|if) ([^;(]+)$", r"calls \1 only when not (\2)"),
    (r"^does not call ([^;]+?) unless ([^;(]+)$", r"calls \1 only when \2"),
    (r"^does not call ([^;]+?) (?:before|until) ([^;]+)$", r"calls \1 only after \2"),
    (r"^((?:calls|says) [^;]+?) unless ([^;(]+)$", r"\1 when not (\2)"),
    (r"^((?:calls|says) [^;]+?) if ([^;]+)$", r"\1 when \2"),
    (r"^(calls [^;]+)(?<! only) after ([^;]+)$", r"\1 only after \2"),
    (r'(?<= )is(?= (?:"|\d|true\b|false\b|null\b))(?=(?:[^"]*"[^"]*")*[^"]*$)', "=="),
    (
        r"(?<=[<>=] )[$€£¥]?(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(?: ?(?:[$€£¥]|(?-i:[A-Z]{3})\b))?",
        lambda found: found[1].replace(",", "") + (found[2] or ""),
    ),
    (r"^(calls [^;]+?),? (?:and )?then (?:calls )?([^;]+)$", r"\1 before \2"),
    (r'(?<![=!<>])=(?!=)(?=(?:[^"]*"[^"]*")*[^"]*$)', "=="),
    (r'"([^"]*)"(?=\s*(?:[<>]|[!=]=))', lambda found: re.sub(r"\W+", "_", found[1])),
    (
        rf"^(?P<verb>says|does not say|is told|is not told) (?P<list>.+?)(?P<more>{_ADDRESSEE}(?: when .+)?)$",
        _quoted,
    ),
    (rf"^{REFERENCE}$", f"says {REFERENCE}"),
)
"""What a statement may be written as, and what says the same: all of it stands in that, but for the one who acts."""


def _spelled_out(text: str, mark: str, end: str) -> str:
    """With the numbers that may be ones of thousands spelled so that they are not: `1000`, or `1.0000`."""
    return _THREE_PLACES.sub(lambda found: found["open"].replace(".", mark) + end if found["open"] else found[0], text)


# --- statements -----------------------------------------------------------------------------------------------------


def _blocks(rubric: str) -> Iterator[tuple[int, list[str]]]:
    """The indentation of each list item, or -1 of a title or paragraph, and its sentences."""
    indent: int | None = None
    lines: list[str] = []
    for line in [*rubric.expandtabs().splitlines(), ""]:
        item = _ITEM.fullmatch(line)
        is_title = line.lstrip().startswith("#")
        is_text = bool(line.strip()) and not is_title
        continues = is_text and not item and (indent is None or len(line) - len(line.lstrip()) > indent)
        if lines and not continues:
            yield -1 if indent is None else indent, _sentences(" ".join(lines))
            lines = []
        if item:
            # `calls a. (weight 2)` is one sentence.
            indent, lines = len(item[1]), [re.sub(r"\.?\s*(\(weight [\d.]+\))\.?$", r" \1", item[2].strip())]
        elif is_text:
            indent, lines = (indent if lines else None), [*lines, line.strip()]
        elif is_title:
            yield -1, _sentences(line.strip())


def _sentences(text: str) -> list[str]:
    return [_plain(each) for each in _SENTENCES.findall(text) if re.search(r"\w", each)]


def _plain(statement: str) -> str:
    """Without a task's box and the marks of emphasis. Those of code stay: a statement is told as it was written."""
    return _unmarked(_BOX.sub("", statement.strip())).rstrip(".").strip()


def _unmarked(text: str) -> str:
    return _EMPHASIS.sub(lambda found: found[0] if found["inner"] is None else _unmarked(found["inner"]), text)


def _uncoded(text: str) -> str:
    return re.sub(r'("[^"]*")|`([^`]+)`', r"\1\2", text)


_BOX = re.compile(r"\[[ xX]\] ")
_EMPHASIS = re.compile(
    r'"[^"]*"|`[^`]*`|(?<![\w*])(?P<marks>\*{1,3}|_{1,3})(?=\S)(?P<inner>.+?)(?<=\S)(?P=marks)(?![\w*])'
)
"""A quotation or code, which stays as it is, or what stands between marks."""


# --- forms ----------------------------------------------------------------------------------------------------------


def _rule(statement: str) -> Rule | None:
    weight = 1.0
    if found := re.fullmatch(r"(.*) \(weight (\d+(?:\.\d+)?)\)", statement):
        statement, weight = found[1], float(found[2])
    texts = [part.strip() for part in re.findall(r'(?:"[^"]*"|[^;"])+', statement)]
    found_parts = [(text, *read) for text in texts if (read := _check(text))]
    has_open_quote = statement.count('"') % 2 == 1
    if not weight or not texts or len(found_parts) < len(texts) or has_open_quote or statement.endswith(":"):
        return None
    parts = tuple((text, check) for text, check, _ in found_parts)
    return Rule(statement, parts, weight, frozenset[str]().union(*(tools for _, _, tools in found_parts)))


def _check(text: str) -> tuple[Check, frozenset[str]] | None:
    """The check of a part, and the tools that it names."""
    text = _uncoded(text)
    for pattern, check in _FORMS:
        found = re.fullmatch(pattern, text, re.IGNORECASE)
        parts = {name: part or "" for name, part in found.groupdict().items()} if found else {}
        given = {name: _READERS.get(name, str)(part) for name, part in parts.items()}
        if found and None not in given.values():
            return partial(check, **given), frozenset(_tools_in(parts)) - {"the request"}
    return None


def _tools_in(parts: Mapping[str, str]) -> Iterator[str]:
    for kind in ("tools", "needed", "actions"):
        yield from _names(parts.get(kind, ""))
    if source := re.fullmatch(_FROM_TOOL, parts.get("condition", ""), re.IGNORECASE):
        yield source[1].strip("`")
    if (origin := parts.get("origin", "")) and origin.lower() != "the request":
        yield from _names(origin.split()[-1])


def _calls(facts: Facts, tools: Names, negated: str) -> Finding:
    if negated:
        made = [name for name in tools.names if name in facts.calls]
        return _met(not made, f"{_and(made)} {_was(made)} called")
    absent = [name for name in tools.names if name not in facts.calls]
    return _met(tools.allow(absent), _absent(absent, facts))


def _in_order(facts: Facts, needed: Names, actions: Names, *, must_act: bool) -> Finding:
    at = next((index for index, name in enumerate(facts.calls) if name in actions.names), None)
    if at is None:
        return not must_act, _absent(actions.names, facts)
    act = facts.made[at]
    early = {call.name for call in facts.made if call.turn < act.turn}
    late = [name for name in needed.names if name not in early]
    if needed.allow(late):
        return True, ""
    beside = {call.name for call in facts.made if call.turn == act.turn}
    came = [
        f"{name} came {'in the same turn as' if name in beside else 'after'} {act.name}"
        for name in late
        if name in facts.calls
    ]
    never = [name for name in late if name not in facts.calls]
    return False, "; ".join([*came, *([_absent(never, facts)] if never else [])])


def _when(facts: Facts, tools: Names, only: str, condition: Condition) -> Finding:
    acts = [call for call in facts.made if call.name in tools.names]
    absent = [name for name in tools.names if name not in facts.calls]
    if not acts and only:
        return True, _absent(tools.names, facts)
    why = ""
    for act in acts:
        due, why = condition(facts.before(act))
        if not due:
            told = f"before {act.name} was called," if due is None else f"{act.name} was called, and"
            return False, f"{told} {why}"
    if not acts:
        due, why = condition(facts)
        if not due:
            return due is False, why
    return _met(bool(only) or tools.allow(absent), f"{_absent(absent, facts)}, and {why}")


def _condition_of(text: str) -> Condition | None:
    if found := re.fullmatch(rf"(the request|[\w.:/`-]+) says ({_QUOTED})", text, re.IGNORECASE):
        phrases = _read_phrases(found[2])
        return phrases and partial(_source_says, found[1].strip("`"), phrases)
    if found := re.fullmatch(r"([\w.:/`-]+) finds something", text, re.IGNORECASE):
        return partial(_finds, found[1].strip("`"))
    condition = _condition(text)
    return condition and partial(_holds, condition)


def _source_says(source: str, phrases: Names, facts: Facts) -> tuple[bool | None, str]:
    if source.lower() == "the request":
        said = facts.request
    else:
        results = facts.results_of(source)
        if not results:
            return None, _absent([source], facts)
        said = "\n".join(texts_of(results[-1]))
    found = [phrase for phrase in phrases.names if _occurs(phrase, said)]
    holds = phrases.allow([phrase for phrase in phrases.names if phrase not in found])
    return holds, f"{source} " + (f"says {_and(map(_quote, found))}" if holds else "does not say so")


def _finds(source: str, facts: Facts) -> tuple[bool | None, str]:
    results = facts.results_of(source)
    if not results:
        return False, _absent([source], facts)
    found = _is_something(results[-1])
    if found is None:
        return None, f"{source} told whether it found something in a form that is not read"
    return found, f"{source} found {'something' if found else 'nothing'}"


def _is_something(value: Any) -> bool | None:
    """Whether a value is none of null, false, 0 and an empty text or list. None where only part of it is: an object
    such as `{"status": "ok", "rows": []}` may be an answer as well as a record with an empty field."""
    value = result_of(value) if isinstance(value, str) else value
    if not value or not isinstance(value, dict | list):
        return bool(value)
    if isinstance(value, list):
        return any(map(_is_record, cast("list[Any]", value))) or None
    parts = {_is_something(each) for each in object_of(value).values()}
    return parts.pop() if len(parts) == 1 else None


def _is_record(item: Any) -> bool:
    """Whether an item of a list is something. Parts of an object may be nothing, but not all lists and objects in it:
    then it may be an answer without records."""
    found = _is_something(item)
    if found is not None or isinstance(item, list):
        return found is True
    holders: list[Any] = [each for each in object_of(item).values() if isinstance(each, dict | list)]
    return not holders or any(map(_is_record, holders))


def _holds(condition: nodes.Node, facts: Facts) -> tuple[bool | None, str]:
    known: dict[str, Any] = {}
    for key in sorted({*_keys(condition)}):
        places = facts.values_of(key)
        values = [value for _, value in places]
        if places and MANY not in values and all(value == values[0] for value in values):
            known[key] = values[0]
            continue
        told = {place.partition(".")[0] for place, _ in places}
        told = told or [call.name for call in facts.made if _stands_in(key.rpartition(".")[2], call.result)]
        if not told:
            return None, f"no tool told {key}"
        named = _listed((place for place, value in places if value is not MANY), "or")
        return None, f"{_and(told)} told {key} in a form that is not read" + (f": name {named}" if named else "")
    values = _and(f"{name} is {json.dumps(known[name], ensure_ascii=False)[:40]}" for name in sorted(known))
    try:
        return _truth(_evaluate(condition, known)), values
    except TypeError:
        return None, f"{values}, which cannot be compared"


def _stands_in(name: str, result: Any) -> bool:
    try:
        return re.search(rf"\b{name}\b", json.dumps(result, ensure_ascii=False)) is not None
    except RecursionError:  # it is nested so deeply that its keys were not read either
        return True


def _key(node: nodes.Node) -> str:
    """`order.days` of the node that is this key; empty of any other."""
    match node:
        case nodes.Name(name=name):
            return name
        case nodes.Getattr(node=outer, attr=name) if key := _key(outer):
            return f"{key}.{name}"
        case _:
            return ""


def _keys(condition: nodes.Node) -> Iterator[str]:
    if key := _key(condition):
        yield key
    else:
        for node in condition.iter_child_nodes():
            yield from _keys(node)


def _evaluate(node: nodes.Node, known: Mapping[str, Any]) -> Any:
    """The value of a condition that `_is_plain`. Raises `TypeError` for values of kinds that cannot be compared."""
    match node:
        case nodes.Const(value=value):
            return value
        case nodes.Name() | nodes.Getattr():
            return known[_key(node)]
        case nodes.Not(node=negated):
            return not _truth(_evaluate(negated, known))
        case nodes.And(left=left, right=right):
            return _truth(_evaluate(left, known)) and _truth(_evaluate(right, known))
        case nodes.Or(left=left, right=right):
            return _truth(_evaluate(left, known)) or _truth(_evaluate(right, known))
        case nodes.Compare(expr=first, ops=operands):
            values = [_evaluate(each, known) for each in (first, *(operand.expr for operand in operands))]
            pairs = zip([operand.op for operand in operands], values, values[1:], strict=False)
            return all(_compares(*pair) for pair in pairs)
        case _:
            raise TypeError(node)


def _truth(value: Any) -> bool:
    if value is None or isinstance(value, str):
        raise TypeError  # null and "no" are neither true nor false
    return bool(value)


def _compares(comparison: str, left: Any, right: Any) -> bool:
    """JSON's kinds differ: `true` and "30" are no numbers. Only numbers, and dates and times as ISO 8601 writes them,
    have an order."""
    left, right = (comparable(each).translate(STRAIGHT) if isinstance(each, str) else each for each in (left, right))
    is_equality = comparison in ("eq", "ne")
    if is_equality and (left is None or right is None):
        return (left is right) == (comparison == "eq")
    kinds = {_kind(left), _kind(right)}
    shapes = {re.sub(r"\d", "0", str(each)) for each in (left, right)}
    has_order = kinds == {"number"} or (len(shapes) == 1 and _DATE.fullmatch(shapes.pop()))
    if len(kinds) > 1 or not (is_equality or has_order):
        raise TypeError
    return _COMPARISONS[comparison](left, right)


def _kind(value: Any) -> str:
    kinds = ((bool, "truth"), (int | float, "number"), (str, "text"))
    return next((name for kind, name in kinds if isinstance(value, kind)), type(value).__name__)


def _arguments_from(facts: Facts, tools: Names, only: str, arguments: Names, origin: str) -> Finding:
    absent = [name for name in tools.names if name not in facts.calls]
    if only and len(absent) == len(tools.names):
        return True, _absent(tools.names, facts)
    if not only and not tools.allow(absent):
        return False, _absent(absent, facts)
    source = origin.split()[-1].strip("`")
    for call in facts.made:
        if call.name not in tools.names:
            continue
        values = {name: "\n".join(texts_of(call.arguments.get(name))) for name in arguments.names}
        if missing := [name for name, text in values.items() if not re.search(r"\w", text)]:
            return False, f"{call.name} was called without {_and(missing)}"
        told = "; ".join(f"{name} {text[:40]}" for name, text in values.items())
        is_request = origin.lower() == "the request"
        result = next(reversed(facts.before(call).results_of(source)), None)
        if result is not None and origin.lower().startswith("the first of "):
            result = _first_of(result)
            if result is None:
                return False, f"{source} told {_and(arguments.names)} in a form that is not read"
        text = facts.request if is_request else "\n".join(texts_of(result))
        if not all(_tells(text, value, is_request) for value in values.values()):
            how = "the request does not say" if is_request else f"{origin.replace('`', '')} had not told"
            return False, f"{call.name} was called with {told}, which {how}"
    return True, ""


def _first_of(result: Any) -> list[Any] | None:
    """The first item, if there is one, of the only list of a result; None where no or several lists stand in it."""
    found: list[list[Any]] = []
    parts = [result]
    while parts:
        part = result_of(each) if isinstance(each := parts.pop(), str) else each
        if isinstance(part, list):
            found.append(cast("list[Any]", part))
        parts += object_of(part).values()
    return found[0][:1] if len(found) == 1 else None


def _tells(text: str, values: str, in_order: bool) -> bool:
    """Whether a text has each word and number of these values, and addresses whole. A percent sign may be missing: an
    argument's name says its unit."""
    if not all(_has_address(text, address) for address in _ADDRESS.findall(values)):
        return False
    for reading, asked in product(readings_of(text), readings_of(values)):
        at = 0
        words = words_of(asked.replace(GLUE, ""))
        for word, unit in zip(words, [*words[1:], ""], strict=True):
            start = at if in_order else 0
            at = reading.find(f"\n{word}\n", start)
            at = reading.find(f"\n{word}{GLUE}\n{unit}\n", start) if at < 0 else at
            if at < 0:
                break
            at += len(word) + 1
        else:
            return True
    return False


def _only_one_of(facts: Facts, tools: Names) -> Finding:
    made = [name for name in facts.calls if name in tools.names]
    times = f" {len(made)} times" if len(set(made)) == 1 else ""
    told = f"{_and(made)} {_was(set(made))} called{times}"
    return _met(len(made) == 1, told if made else _absent(tools.names, facts))


def _at_most_once(facts: Facts, tools: Names) -> Finding:
    counts = {name: facts.calls.count(name) for name in tools.names}
    often = [f"{name} was called {count} times" for name, count in counts.items() if count > 1]
    return _met(not often, "; ".join(often))


def _says(facts: Facts, verb: str, phrases: Names) -> Finding:
    is_told, is_negated = "told" in verb.lower(), " not " in f"{verb} "
    text = facts.request if is_told else facts.said
    ranged = re.sub(r"(?<=\d)-(?=\d)", "–", text)  # what may be a range says its ends
    found = [
        phrase
        for phrase in phrases.names
        if _occurs(phrase, ranged if is_negated or _COUNTED.match(phrase) else text, is_part_enough=is_negated)
    ]
    if is_negated:
        return _met(not found, f"it {'was told' if is_told else 'said'} {_and(map(_quote, found))}")
    absent = [phrase for phrase in phrases.names if phrase not in found]
    listed = _listed(map(_quote, absent), "or" if phrases.any_of else "and")
    return _met(phrases.allow(absent), f"it was not told {listed}" if is_told else f"it did not say {listed}")


_COUNTED = re.compile(r"\W*\d[\d.,]*\s+[^\W\d]")
"""A number of something, such as `5 days`: a range of them is no id."""


def _says_when(facts: Facts, phrases: Names, condition: Condition) -> Finding:
    due, why = condition(facts)
    if due is None:
        return False, why
    said, otherwise = _says(facts, "says", phrases)
    return _met(said == due, f"{'it said so' if said else otherwise}, and {why}")


def _says_reference(facts: Facts) -> Finding:
    said = any(_occurs(answer.strip(" ."), facts.said) for answer in _answers(facts.reference))
    length = len(facts.reference.strip()) if "\n" in facts.reference.strip() else 0
    whole = f", a text of {length} characters that is looked for as a whole" if length else ""
    return _met(said, f"it did not say what the reference is{whole}")


def _answers(reference: str) -> list[str]:
    """What may be said for a reference: the text; each text or number of a list; the one value of an object. None for
    a reference without a word, and for any other JSON."""
    value = value_of(reference)
    if fields := object_of(value):
        value = next(iter(fields.values())) if len(fields) == 1 else fields
    elif value is None or isinstance(value, bool):
        value = reference
    elif isinstance(value, int | float):
        value = [reference, value]
    listed = cast("list[object]", value) if isinstance(value, list) else [value]
    texts = [
        each if isinstance(each, str) else f"{each:.15g}" for each in listed if isinstance(each, str | int | float)
    ]
    return [text for text in texts if re.search(r"\w", text)] if len(texts) == len(listed) else []


def _ends_with_message(facts: Facts) -> Finding:
    return not facts.ending, facts.ending


_FORMS: list[tuple[str, Callable[..., Finding]]] = [
    (rf"ends with a message{_ADDRESSEE}", _ends_with_message),
    (rf"says the reference{_ADDRESSEE}", _says_reference),
    (rf"(?P<verb>says|does not say) (?P<phrases>{_QUOTED}){_ADDRESSEE}", _says),
    (rf"says (?P<phrases>{_QUOTED}){_ADDRESSEE} when (?P<condition>.+)", _says_when),
    (rf"(?P<verb>is told|is not told) (?P<phrases>{_QUOTED})", _says),
    (r"calls only one of (?P<tools>.+)", _only_one_of),
    (r"calls (?P<tools>.+) at most once", _at_most_once),
    (r"calls (?P<actions>.+) only after (?P<needed>.+)", partial(_in_order, must_act=False)),
    (r"calls (?P<tools>.+?) (?P<only>only )?when (?P<condition>.+)", _when),
    (
        r"calls (?P<tools>.+?) (?P<only>only )?with (?P<arguments>.+) "
        r"from (?P<origin>the request|(?:the first of )?[`\w.:/-]+)",
        _arguments_from,
    ),
    (r"calls (?P<needed>.+) before (?P<actions>.+)", partial(_in_order, must_act=True)),
    (r"(?:calls|(?P<negated>does not call)) (?P<tools>.+)", _calls),
]
"""Each form, and what checks it. The parts that it names are read by `_READERS`; one that none of them can read makes
the statement one of another form."""


def _met(kept: bool, otherwise: str) -> Finding:
    return kept, "" if kept else otherwise


def _absent(names: Sequence[str], facts: Facts) -> str:
    """What became of tools that were not called with success."""
    told = [f"{name}'s call failed" for name in names if name in facts.failed]
    told += [f"{name}'s call has no result" for name in names if name in facts.unanswered]
    if never := [name for name in names if name not in (*facts.failed, *facts.unanswered)]:
        told.append(f"{_and(never)} {_was(never)} never called")
    return "; ".join(told)


def _was(names: Collection[str]) -> str:
    return "was" if len(names) == 1 else "were"


def _and(texts: Iterable[str]) -> str:
    return _listed(texts, "and")


def _listed(texts: Iterable[str], word: str) -> str:
    *most, last = list(dict.fromkeys(texts)) or [""]
    return f"{', '.join(most)} {word} {last}" if most else last


def _quote(phrase: str) -> str:
    return f'"{phrase}"'


def _names(text: str) -> tuple[str, ...]:
    """The tool names in "A, B and C"; empty if the text contains anything else."""
    if re.search(r"\band\b", text) and re.search(r"\bor\b", text):
        return ()  # which of them belong together is not said
    names = [name.strip().strip("`") for name in re.split(r",|\band\b|\bor\b", text) if name.strip()]
    return tuple(names) if all(re.fullmatch(r"[\w.:/-]+", name) for name in names) else ()


def _read_names(text: str) -> Names | None:
    return Names(names, re.search(r"\bor\b", text) is not None) if (names := _names(text)) else None


def _read_phrases(quoted: str) -> Names | None:
    """None where "and" and "or" are mixed."""
    between = re.sub(r'"[^"]*"', "", quoted)
    is_mixed = "and" in between and "or" in between
    return None if is_mixed else Names(tuple(re.findall(r'"([^"]+)"', quoted)), "or" in between)


_READERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("tools", "needed", "actions", "arguments"), _read_names),
    "phrases": _read_phrases,
    "condition": _condition_of,
}


def _occurs(phrase: str, text: str, *, is_part_enough: bool = False) -> bool:
    """Whether a phrase stands in a text as whole words and numbers, whatever the case, marks and width of spaces. What
    a reader does not see holds none, but an address is found as a link's, too. An address is found whole, and a single
    letter in its own case. `is_part_enough`: a part of a word with hyphens counts."""
    has_targets = "://" in phrase or "@" in phrase
    if has_targets and not any(
        _has_address(shown, phrase.strip()) for shown in (text, _without_marks(text, has_targets))
    ):
        return False
    if len(letter := phrase.strip()) == 1 and letter.lower() != letter.upper():
        return re.search(rf"(?<!\w){letter}(?!\w|{MARKED})", _without_marks(text, has_targets)) is not None
    for wanted in _readings_shown(phrase, has_targets):
        whole = r"(?![\^%‰‱٪])" if wanted[-2:-1].isdigit() else r"(?!\^)"
        words = re.escape(wanted[:-1].replace(GLUE, "")).replace("\\\n", f"{GLUE}?\n") + "\n" + whole
        words = words if is_part_enough else f"(?<!{JOINT}){words}(?!-{JOINT})"
        if len(wanted) > 1 and any(re.search(words, found) for found in _readings_shown(text, has_targets)):
            return True
    return False


def _has_address(text: str, address: str) -> bool:
    """Whether an address stands in a text, and not as a part of another."""
    whole = rf"(?<![\w.+@/\\-]){re.escape(address)}/?(?![\w@/\\?#&=-]|\.\w)"
    return re.search(whole, text, re.IGNORECASE) is not None


_ADDRESS = re.compile(r"(?=\S*[^\W\d])[^\s<>()\[\],;\"']*[@/\\][^\s<>()\[\],;\"']*\w")
"""A link, a path, or an address of mail."""


@lru_cache(256)
def _readings_shown(text: str, has_targets: bool) -> tuple[str, ...]:
    return readings_of(join_thousands(_without_marks(text, has_targets)))


def _without_marks(text: str, has_targets: bool, *, html: bool = True) -> str:
    """What a reader of Markdown sees, with tags as they are written; no comments, and nothing that is struck out. Of a
    list's numbers, that of a lone item alone, which may begin a sentence: `1945. The war ended`.

    `has_targets`: with the addresses of links and images."""
    from markdown_it.tree import SyntaxTreeNode

    shown: list[str] = []
    blocks = _markdown(html=html, has_links=text.count("[") <= _MOST_LINKS).parse(text)
    items = [each for each in SyntaxTreeNode(blocks).walk() if each.type == "list_item" and len(each.siblings) > 1]
    listed = {id(each.nester_tokens.opening) for each in items if each.nester_tokens}
    for block in blocks:
        if block.children is not None:
            struck = 0
            for each in block.children:
                struck += each.nesting if each.type.startswith("s_") else 0
                is_hidden = struck or (each.content.startswith("<!--") and each.type == "html_inline")
                shown.append("\n" if each.type.endswith("break") else "" if is_hidden else each.content)
            shown.append("\n")
            targets = [each.attrs.get("href", each.attrs.get("src")) for each in block.children if has_targets]
            shown += [f"{target}\n" for target in targets if target]
        elif block.type == "html_block":
            shown += [_without_marks(_COMMENT.sub("", block.content), has_targets, html=False), "\n"]
        elif block.nesting >= 0 and not block.type.endswith("list_open") and id(block) not in listed:
            shown += [block.info + block.markup, "\n", block.content, "\n"]
    return "".join(shown)


_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_MOST_LINKS = 2000
"""The parser's time grows with the square of open brackets."""


@lru_cache(4)
def _markdown(*, html: bool, has_links: bool) -> "MarkdownIt":
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": html, "maxNesting": 200}).enable(["table", "strikethrough"])
    return reader.disable(["reference", "code", *([] if has_links else ["link", "image"])])  # these hide or keep text


@lru_cache(256)
def _condition(text: str) -> nodes.Node | None:
    """A condition made of names, constants, comparisons, and, or, not; None for anything else."""
    if any(found["open"] for found in _THREE_PLACES.finditer(text)):
        return None
    text = _NULL.sub(lambda found: "none" if found["null"] else found[0], text)
    try:
        template = _JINJA.parse(f"{{{{ {text} }}}}")
        outputs = [part for output in template.find_all(nodes.Output) for part in output.nodes]
        if len(template.body) == len(outputs) == 1 and len([*template.find_all(nodes.Node)]) <= _MOST_NODES:
            return outputs[0] if _is_plain(outputs[0]) else None
    except (TemplateError, ValueError, RecursionError, MemoryError):
        pass
    return None


def _is_plain(node: nodes.Node) -> bool:
    """Whether a node can only compare values: no calls, arithmetic, filters or tests.

    `status == open` is not read: the name is meant as a text more often than as another key. Nor is a comparison of
    texts alone: `"days since" <= 30`.
    """
    match node:
        case nodes.Name() | nodes.Const() | nodes.Getattr():
            return isinstance(node, nodes.Const) or bool(_key(node))
        case nodes.And(left=left, right=right) | nodes.Or(left=left, right=right):
            return _is_plain(left) and _is_plain(right)
        case nodes.Not(node=negated):
            return _is_plain(negated)
        case nodes.Compare(expr=first, ops=operands):
            sides = [first, *(each.expr for each in operands)]
            are_constant = {isinstance(each, nodes.Const) for each in sides}
            if are_constant == {True} or (all(map(_key, sides)) and {each.op for each in operands} & {"eq", "ne"}):
                return False
            return _is_plain(first) and all(each.op in _COMPARISONS and _is_plain(each.expr) for each in operands)
        case _:
            return False
