"""Rules that a program can check: what the stand-in judge reads of a rubric, and what it does not.

Each title, list item and sentence of a rubric is a statement. A statement of one of these forms is a rule; any other is
told as not read, and so are titles and what leads into a list: "The agent never:" would turn the rules below it round.

    - calls A, B and C (or: A or B)
    - does not call A or B
    - calls A and B before X or Y                  not kept where neither X nor Y is called
    - calls X only after A and B                   kept where X is never called
    - calls X when CONDITION                       and not where it does not hold
    - calls X only when CONDITION                  kept where X is never called
    - calls X with one_argument and another from A (or: from the first of A, from the request)
    - calls X only with one_argument from A        kept where X is never called
    - calls only one of X, Y, Z
    - calls X and Y at most once
    - says "one phrase" or "another" (to the user; or: and; or: does not say; or: says the reference)
    - says "one phrase" when CONDITION             and not where it does not hold
    - is told "one phrase" or "another" (by the user: what a world answers to words; or: is not told)
    - ends with a message (to the user)

A CONDITION compares keys of the JSON objects that tools returned (`days <= 30 and not opened`, evaluated by Jinja's
sandbox), or is `the request says "a phrase"`, `A says "a phrase"`, `A finds something`. Rules joined by `; ` are one,
kept where all are. Each rule counts 1, one that ends with `(weight 2)` 2. A call that failed or has no result was not
made. A phrase is found as whole words, whatever their case. A rule that names no tool of those declared is not read;
where none are declared, names that no attempt calls are told.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, cast

from jinja2 import StrictUndefined, TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gavel.judge.offline.facts import Facts, words_of

_SANDBOX = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
_PHRASE = r'"[^"]*\w[^"]*"'
_QUOTED = rf"{_PHRASE}(?:(?:, | or | and |, or |, and ){_PHRASE})*"
_ADDRESSEE = r"(?: to (?:the |its )?(?:user|customer))?"
_FROM_TOOL = rf"(the request|[\w.:/`-]+) (?:says {_QUOTED}|finds something)"
_COMPARISONS = {"eq", "ne", "lt", "lteq", "gt", "gteq"}
_ITEM = re.compile(r"( *)(?:[-*+•]|\d+[.)]) +(.*)")
_SENTENCES = re.compile(r'(?:"[^"]*"|[^.!?]|[.!?]+(?=\S))+[.!?]*')

Finding = tuple[bool, str]
"""Whether a rule is kept, and what happened: never empty where it is not kept."""
Check = Callable[[Facts], Finding]


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
        """(text, kept, what happened) of each part."""
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

    @property
    def shortfall(self) -> str:
        """`1 of 3 rules checked; not read: "is polite", "is right"`; empty where all are read."""
        count = len(self.rules) + len(self.unread)
        read = f"{len(self.rules)} of {count} {'rule' if count == 1 else 'rules'} checked; not read: {self.named}"
        return "; ".join(filter(None, [read if self.unread else "", self.misnamed]))

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
    has_reference: bool = False,
    declared: frozenset[str] = frozenset(),
    called: frozenset[str] | None = None,
) -> Reading:
    """The rules in a rubric and its other statements, in order.

    A reference that the judge is given is a statement too: it is read where a rule is `says the reference`. `declared`
    are the tools that the attempts have, `called` those that they called; any name is a tool's where both are missing.
    """
    rules: list[Rule] = []
    unread: list[str] = []
    unknown: dict[str, None] = {}
    asks_reference = False
    for statement in _statements(rubric):
        asks = bool(re.search(rf"\bsays {REFERENCE}\b", statement, re.IGNORECASE))
        rule = None if asks and not has_reference else _rule(statement)
        known = declared or called
        strange = sorted(rule.tools - known) if rule and known is not None else []
        unknown |= dict.fromkeys(strange)
        if rule is None or (strange and declared):
            unread.append(statement)
        else:
            rules.append(rule)
            asks_reference |= asks
    if has_reference and not asks_reference:
        unread.append(REFERENCE)
    return Reading(tuple(rules), tuple(unread), tuple(unknown), tuple(sorted(declared)))


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


def nearest_form(statement: str) -> str:
    """The form that a statement which is not read comes nearest to, filled in where it can be; of titles none."""
    text = _plain(statement)
    if text.startswith("#") or text.endswith(":") or _rule(text):
        return ""
    if found := re.fullmatch(r"(says|does not say|is told|is not told) (.+)", text, re.IGNORECASE):
        words = [each.strip("'\" ") for each in re.split(r"(?:, | or )", found[2])]
        return f"{found[1]} " + " or ".join(f'"{word}"' for word in words if word)
    if text == REFERENCE:
        return f"says {REFERENCE}"
    forms = {
        "at most once": "calls TOOL at most once",
        "only one": "calls only one of TOOL, OTHER",
        "only after": "calls TOOL only after OTHER",
        "when": "calls TOOL only when days <= 30",
        "if": "calls TOOL only when days <= 30",
        "before": "calls TOOL before OTHER",
        "from": "calls TOOL with ARGUMENT from OTHER",
        "with": "calls TOOL with ARGUMENT from the request",
        "message": "ends with a message",
    }
    return next((form for word, form in forms.items() if re.search(rf"\b{word}\b", text, re.IGNORECASE)), "")


# --- statements -----------------------------------------------------------------------------------------------------


def _statements(rubric: str) -> Iterator[str]:
    """Titles, list items and sentences of prose."""
    for text in _blocks(rubric.translate({ord(mark): '"' for mark in "“”„"})):
        yield from (_plain(each) for each in _SENTENCES.findall(text) if re.search(r"\w", each))


def _blocks(rubric: str) -> Iterator[str]:
    """The text of each title, list item and paragraph."""
    indent: int | None = None
    lines: list[str] = []
    for line in [*rubric.expandtabs().splitlines(), ""]:
        item = _ITEM.fullmatch(line)
        is_title = line.lstrip().startswith("#")
        is_text = bool(line.strip()) and not is_title
        continues = is_text and not item and (indent is None or len(line) - len(line.lstrip()) > indent)
        if lines and not continues:
            yield " ".join(lines)
            lines = []
        if item:
            indent, lines = len(item[1]), [_weighted(item[2].strip())]
        elif is_text:
            indent, lines = (indent if lines else None), [*lines, line.strip()]
        elif is_title:
            yield line.strip()


def _weighted(item: str) -> str:
    """`calls a. (weight 2)` as one sentence."""
    return re.sub(r"\.?\s*(\(weight [\d.]+\))\.?$", r" \1", item)


def _plain(statement: str) -> str:
    return statement.strip().rstrip(".").strip()


# --- forms ----------------------------------------------------------------------------------------------------------


def _rule(statement: str) -> Rule | None:
    weight = 1.0
    if found := re.fullmatch(r"(.*) \(weight (\d+(?:\.\d+)?)\)", statement):
        statement, weight = found[1], float(found[2])
    texts = [part.strip() for part in re.findall(r'(?:"[^"]*"|[^;"])+', statement)]
    found_parts = [(text, *read) for text in texts if (read := _check(text))]
    if not weight or not texts or len(found_parts) < len(texts) or statement.endswith(":"):
        return None
    parts = tuple((text, check) for text, check, _ in found_parts)
    return Rule(statement, parts, weight, frozenset[str]().union(*(tools for _, _, tools in found_parts)))


def _check(text: str) -> tuple[Check, frozenset[str]] | None:
    """The check of a part, and the tools that it names."""
    for pattern, form in _FORMS:
        if (found := re.fullmatch(pattern, text, re.IGNORECASE)) and (check := form(*found.groups())):
            named = found.groupdict()
            tools = [name for key in ("tools", "others") for name in _names(named.get(key) or "")]
            if source := re.fullmatch(_FROM_TOOL, named.get("condition") or "", re.IGNORECASE):
                tools.append(source[1].strip("`"))
            if (origin := named.get("origin") or "").lower() != "the request":
                tools += _names(origin.split()[-1] if origin else "")
            return check, frozenset(tools) - {"the request"}
    return None


def _calls(negated: str | None, listed: str) -> Check | None:
    names, any_of = _names(listed), _is_or(listed)
    if not names:
        return None

    def check(facts: Facts) -> Finding:
        if negated:
            return _met(not (made := [name for name in names if name in facts.calls]), f"{_and(made)} was called")
        absent = [name for name in names if name not in facts.calls]
        return _met(not absent or (any_of and len(absent) < len(names)), _absent(absent, facts))

    return check


def _before(needed: str, actions: str) -> Check | None:
    first, then = _names(needed), _names(actions)
    return partial(_in_order, first, _is_or(needed), then, True) if first and then else None


def _only_after(actions: str, needed: str) -> Check | None:
    first, then = _names(needed), _names(actions)
    return partial(_in_order, first, _is_or(needed), then, False) if first and then else None


def _in_order(needed: Sequence[str], any_of: bool, actions: Sequence[str], must_act: bool, facts: Facts) -> Finding:
    at = next((index for index, name in enumerate(facts.calls) if name in actions), None)
    if at is None:
        return not must_act, _absent(actions, facts)
    act = facts.made[at]
    early = {call.name for call in facts.made if call.turn < act.turn}
    late = [name for name in needed if name not in early]
    if not late or (any_of and len(late) < len(needed)):
        return True, ""
    beside = {call.name for call in facts.made if call.turn == act.turn}
    came = [
        f"{name} came {'in the same turn as' if name in beside else 'after'} {act.name}"
        for name in late
        if name in facts.calls
    ]
    never = [name for name in late if name not in facts.calls]
    return False, "; ".join([*came, *([_absent(never, facts)] if never else [])])


def _when(listed: str, only: str | None, condition: str) -> Check | None:
    names, holds = _names(listed), _condition_of(condition)
    if not names or holds is None:
        return None

    def check(facts: Facts) -> Finding:
        called = [name for name in names if name in facts.calls]
        if only and not called:
            return True, _absent(names, facts)
        due, why = holds(facts)
        if due is None:
            return False, why
        if due and not only:
            absent = [name for name in names if name not in called]
            return _met(not absent, f"{_absent(absent, facts)}, and {why}")
        return _met(due or not called, f"{_and(called)} was called, and {why}")

    return check


def _condition_of(text: str) -> Callable[[Facts], tuple[bool | None, str]] | None:
    """Whether it holds, None where that cannot be known, and why."""
    if found := re.fullmatch(rf"(the request|[\w.:/`-]+) says ({_QUOTED})", text, re.IGNORECASE):
        phrases = _phrases(found[2])
        return phrases and partial(_source_says, found[1].strip("`"), *phrases)
    if found := re.fullmatch(r"([\w.:/`-]+) finds something", text, re.IGNORECASE):
        return partial(_finds, found[1].strip("`"))
    condition = _condition(text)
    return condition and partial(_holds, condition)


def _source_says(source: str, phrases: Sequence[str], any_of: bool, facts: Facts) -> tuple[bool | None, str]:
    if source.lower() == "the request":
        said = facts.request
    else:
        results = [call.result for call in facts.made if call.name == source]
        if not results:
            return None, _absent([source], facts)
        said = results[-1] if isinstance(results[-1], str) else " ".join(words_of(results[-1]))
    found = [phrase for phrase in phrases if _occurs(phrase, said)]
    holds = bool(found) if any_of else len(found) == len(phrases)
    return holds, f"{source} " + (f"says {_and(map(_quote, found))}" if holds else "does not say so")


def _finds(source: str, facts: Facts) -> tuple[bool | None, str]:
    results = [call.result for call in facts.made if call.name == source]
    if not results:
        return False, _absent([source], facts)
    return bool(results[-1]), f"{source} found {'something' if results[-1] else 'nothing'}"


@dataclass(frozen=True, slots=True)
class Condition:
    """A compiled condition."""

    names: frozenset[str]
    """Every name in it; all must be known, including those that evaluation would skip."""
    evaluate: Callable[[Mapping[str, Any]], Any]
    """Raises `TypeError` for values that cannot be compared."""


class _Text(str):
    """A text that a tool returned. It can be compared, and is neither true nor false: "no" is not empty."""

    __slots__ = ()

    def __bool__(self) -> bool:
        raise TypeError


def _holds(condition: Condition, facts: Facts) -> tuple[bool | None, str]:
    if unknown := sorted(condition.names - facts.known.keys()):
        return None, f"no tool told {_and(unknown)}"
    values = _and(f"{name} is {str(facts.known[name])[:40]}" for name in sorted(condition.names))
    try:
        known = {key: _Text(value) if isinstance(value, str) else value for key, value in facts.known.items()}
        return bool(condition.evaluate(known)), values
    except TypeError:
        return None, f"{values}, which cannot be compared"


def _arguments_from(listed: str, only: str | None, arguments: str, origin: str) -> Check | None:
    actions, names = _names(listed), _names(arguments)
    first, source = origin.lower().startswith("the first of "), _names(origin.split()[-1])
    if not actions or not names or not source:
        return None
    source = None if origin.lower() == "the request" else source[0]

    def check(facts: Facts) -> Finding:
        absent = [name for name in actions if name not in facts.calls]
        if only and len(absent) == len(actions):
            return True, _absent(actions, facts)
        if not only and absent and not (_is_or(listed) and len(absent) < len(actions)):
            return False, _absent(absent, facts)
        for call in facts.made:
            if call.name not in actions:
                continue
            values = {name: words_of(call.arguments.get(name)) for name in names}
            if missing := [name for name, words in values.items() if not words]:
                return False, f"{call.name} was called without {_and(missing)}"
            told = "; ".join(f"{name} {' '.join(words)[:40]}" for name, words in values.items())
            if source is None:
                left = iter(words_of(facts.request))
                if not all(word in left for words in values.values() for word in words):
                    return False, f"{call.name} was called with {told}, which the request does not say"
                continue
            result = next((c.result for c in reversed(facts.made) if c.name == source and c.turn < call.turn), None)
            if first and isinstance(result, list):
                result = cast("list[Any]", result)[:1]
            if not {word for words in values.values() for word in words} <= set(words_of(result)):
                return False, f"{call.name} was called with {told}, which {source} had not told"
        return True, ""

    return check


def _only_one_of(listed: str) -> Check | None:
    names = _names(listed)

    def check(facts: Facts) -> Finding:
        made = [name for name in facts.calls if name in names]
        return _met(len(made) == 1, f"{_and(made)} were called" if made else _absent(names, facts))

    return check if names else None


def _at_most_once(listed: str) -> Check | None:
    names = _names(listed)

    def check(facts: Facts) -> Finding:
        often = [f"{name} was called {facts.calls.count(name)} times" for name in names if facts.calls.count(name) > 1]
        return _met(not often, "; ".join(often))

    return check if names else None


def _says(verb: str, quoted: str) -> Check | None:
    listed = _phrases(quoted)
    if listed is None:
        return None
    phrases, any_of = listed
    is_told, negated = "told" in verb.lower(), " not " in f"{verb} "

    def check(facts: Facts) -> Finding:
        found = [phrase for phrase in phrases if _occurs(phrase, facts.request if is_told else facts.said)]
        if negated:
            return _met(not found, f"it {'was told' if is_told else 'said'} {_and(map(_quote, found))}")
        absent = _listed([_quote(phrase) for phrase in phrases if phrase not in found], "or" if any_of else "and")
        return _met(
            bool(found) if any_of else len(found) == len(phrases),
            f"it was not told {absent}" if is_told else f"it did not say {absent}",
        )

    return check


def _says_when(quoted: str, condition: str) -> Check | None:
    says, holds = _says("says", quoted), _condition_of(condition)
    if says is None or holds is None:
        return None

    def check(facts: Facts) -> Finding:
        due, why = holds(facts)
        if due is None:
            return False, why
        said, otherwise = says(facts)
        return _met(said == due, f"{'it said so' if said else otherwise}, and {why}")

    return check


def _says_reference() -> Check:
    def check(facts: Facts) -> Finding:
        return _met(_occurs(facts.reference.strip(" ."), facts.said), "it did not say what the reference is")

    return check


def _ends_with_message() -> Check:
    return lambda facts: (not facts.ending, facts.ending)


_FORMS: list[tuple[str, Callable[..., Check | None]]] = [
    (rf"ends with a message{_ADDRESSEE}", _ends_with_message),
    (rf"says the reference{_ADDRESSEE}", _says_reference),
    (rf"(says|does not say) ({_QUOTED}){_ADDRESSEE}", _says),
    (rf"says ({_QUOTED}){_ADDRESSEE} when (?P<condition>.+)", _says_when),
    (rf"(is told|is not told) ({_QUOTED})", _says),
    (r"calls only one of (?P<tools>.+)", _only_one_of),
    (r"calls (?P<tools>.+) at most once", _at_most_once),
    (r"calls (?P<tools>.+) only after (?P<others>.+)", _only_after),
    (r"calls (?P<tools>.+?) (only )?when (?P<condition>.+)", _when),
    (
        r"calls (?P<tools>.+?) (only )?with (.+) from (?P<origin>the request|(?:the first of )?\S+)",
        _arguments_from,
    ),
    (r"calls (?P<tools>.+) before (?P<others>.+)", _before),
    (r"(?:calls|(does not call)) (?P<tools>.+)", _calls),
]


def _met(kept: bool, otherwise: str) -> Finding:
    return kept, "" if kept else otherwise


def _absent(names: Sequence[str], facts: Facts) -> str:
    """What became of tools that were not called with success."""
    told = [f"{name}'s call failed" for name in names if name in facts.failed]
    if never := [name for name in names if name not in facts.failed]:
        told.append(f"{_and(never)} {'was' if len(never) == 1 else 'were'} never called")
    return "; ".join(told)


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


def _is_or(text: str) -> bool:
    return bool(re.search(r"\bor\b", text))


def _phrases(quoted: str) -> tuple[tuple[str, ...], bool] | None:
    """The phrases, and whether one is enough; None where "and" and "or" are mixed."""
    between = re.sub(r'"[^"]*"', "", quoted)
    if "and" in between and "or" in between:
        return None
    return tuple(re.findall(r'"([^"]+)"', quoted)), "and" not in between


def _occurs(phrase: str, text: str) -> bool:
    """Whether a phrase stands in a text as whole words and numbers, whatever the case and the width of spaces."""
    wanted, found = (" ".join(unicodedata.normalize("NFKC", each).casefold().split()) for each in (phrase, text))
    if not wanted:
        return False
    first, last = (r"\d" if edge.isdigit() else r"[^\W\d_]" for edge in (wanted[0], wanted[-1]))
    # Scripts without case are written without spaces between words.
    starts = wanted[0].isdigit() or wanted[0].upper() != wanted[0]
    ends = wanted[-1].isdigit() or wanted[-1].upper() != wanted[-1]
    before = (r"(?<!\d)(?<!\d[.,])(?<! [-−])" if wanted[0].isdigit() else rf"(?<!{first})") if starts else ""
    after = (r"(?![.,]?\d)" if wanted[-1].isdigit() else rf"(?!{last})") if ends else ""
    return re.search(f"{before}{re.escape(wanted)}{after}", f" {found}") is not None


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
