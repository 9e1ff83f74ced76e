"""Explanations: whether a judge's own words beside a score say that there is none, or that it is another one.

"I'm sorry, but I can't assess this one."     the judge declines: its score is none
"<why>", "TODO", "explanation for W7QX"       the form was copied: its score is a part of the form
"Refunded too early, so I give it 0.4."       another score than the entry's own
"The agent said 5, then 7; a tool said 0.3"   about the agent's work: any number may stand there
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from gavel.judge.reply.claims import ORDINAL, Said
from gavel.judge.reply.clauses import Clause, clauses, named
from gavel.judge.reply.columns import SEVERITY
from gavel.judge.reply.declines import declines
from gavel.judge.reply.grades import explains_otherwise, gives_another_score, unquoted
from gavel.judge.reply.lexicon import Words, pattern, source
from gavel.judge.reply.opinions import contradiction
from gavel.judge.reply.positions import in_every_reading
from gavel.judge.reply.praise import verdicts, verdicts_contradict
from gavel.judge.reply.tone import told_the_other_way_round

_FORM_WORD = (
    r"(?:explanations?|explain|reason(?:ing)?s?|rationale|justification|comment|text|description|summary|sentences?"
    r"|begründung|erklärung|explicación|justificación|motivo|explication|raison|пояснение|объяснение|обоснование)"
)
_PLACEHOLDER = re.compile(
    rf"(?:(?:your|the|an?|my|some|sample|example|short|brief|insert|add|write|put|one|two|or|few|1-2|concise|dummy"
    rf"|placeholder|detailed) )*{_FORM_WORD}(?: (?:text|string|here|goes|to|be|added|follows|tbd|placeholder))*"
    r"(?: (?:for|of|about|why|on|über|de|para|zu) (?:the )?(?:trajectory |attempt |candidate )?(?:member|label"
    r"|id|\d)(?: here)?)?"
    r"|(?:one or two|1-2) sentences about what decided the score|why,? in a few words"
    r"|to ?do|tbd|tba|fix ?me|string|str|placeholder|lorem ipsum.*|dummy(?: text)?|sample(?: text)?"
    r"|example(?: text)?|xxx+"
    r"|foo|bar|null|undefined|nan|n ?/ ?a|not (?:applicable|available|provided|specified)|to be (?:added|filled in|done"
    r"|determined)"
    r"|(?:解释|说明|理由|原因|评语|説明|解説|理由をここに|설명|이유)|占位符?|待定|待补充?|(?:在此|此处|这里)填写.{0,6}|示例.{0,4}",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"[\s\"'`*_.,:;!。：]+$|^[\s\"'`*_.,:;!]+")
_WRAPPED = re.compile(r"\s*(?:<[^<>]{1,120}>|\[[^\[\]]{1,120}\]|\{\{?[^{}]{1,120}\}\}?|\$\{?\w+\}?)[\s.]*")
_DIGIT = re.compile(r"\d")
_DOTS = re.compile(r"[\s.…?_*-]*[.…?_][\s.…?_*-]*")


def is_placeholder(text: str, said: Said) -> bool:
    """Whether a text is a part of the form, not filled in."""
    if not text.strip():
        return False
    if _WRAPPED.fullmatch(text) or _DOTS.fullmatch(text):
        return True
    return bool(len(text) < 200 and _PLACEHOLDER.fullmatch(_MARKUP.sub("", _with_members(text.casefold(), said))))


def problem_with_explanation(text: str, said: Said, label: str, parts: Iterable[Clause] | None = None) -> str:
    """What is wrong with the explanation of a member's score; empty = nothing. `parts`: its clauses, if known."""
    shown = text if len(text) <= 60 else text[:60] + "…"
    if is_placeholder(text, said):
        return f'the explanation of {label.upper()} is a placeholder ("{shown}")'
    if sentence := declines(text):
        return f'the explanation of {label.upper()} says that it was not judged ("{sentence[:60]}")'
    if gives_another_score(text, said, label):
        return f'the explanation of {label.upper()} gives another score ("{shown}")'
    if found := _has_second_thoughts(said.mention.sub("member", text)):
        return f'the explanation of {label.upper()} has second thoughts ("{found[:60]}")'
    bare, own = unquoted(text), said.of_criterion(label)

    def contradicts(reading: str) -> str:
        return contradiction(reading, own, label, parts if reading == text else None)

    if found := in_every_reading(contradicts, bare, own, label):
        return f'the explanation of {label.upper()} contradicts its score ("{found.strip()[:60]}")'
    return ""


def problems_with_explanations(explanations: Mapping[str, str], said: Said) -> Iterator[str]:
    """What is wrong with the explanations, by label in lower case: each alone, and beside the others."""
    parts = {label: list(clauses(text, said.of_criterion(label), label)) for label, text in explanations.items()}
    for label, text in explanations.items():
        problem = problem_with_explanation(text, said, label, parts[label])
        yield from filter(None, (explains_otherwise(text, said, label), problem))
    if all_the_same(explanations, said):
        yield "its scores differ, yet their explanations are all the same"
    for part in said.by_criterion():
        own = {label: text for label, text in explanations.items() if label in part.scores}
        if contrary := verdicts_contradict({label: verdicts(parts[label], label) for label in own}, part):
            yield f"its explanations contradict its scores: {contrary}"
        if told_the_other_way_round(own, part):
            yield "its explanations blame the member with the highest score and praise that with the lowest"
        if _measures_otherwise(own, part):
            yield "its explanations give the scores another meaning"
    if swapped := _about_another(explanations, said):
        yield f"the explanation of {swapped.upper()} is about another member"


_SELF_CORRECTING = re.compile(
    r"\b(?:I|we) (?:\w+ly )?(?:mixed|swapp|confus|misread|misl|misj|overr|underr|overe|undere|forgot|retract"
    r"|take (?:it|that) back"
    r"|was (?:too|wrong|mistaken)|must correct)|\bmy (?:first|earlier|initial|previous) (?:reading|score"
    r"|impression|verdict|rating)"
    r"|\b(?:score|rating|grade|mark)s? (?:is |was |seems |are )?(?:far |much |a bit |slightly )?too (?:high|low"
    r"|generous|harsh|lenient)"
    r"|\b(?:text|explanation|entry|verdict|notes?|reasons?) (?:of|for|about) member\b|\bmember['’]s (?:text"
    r"|explanation|entry|verdict)\b",
    re.IGNORECASE,
)
"""What a judge says of itself, or of another member's entry."""


_STARTS = r"(?:^|(?<=[.!?…]\s)|(?<=[。！？…\n])|(?<=[—–-]\s))\W{0,4}"
_SECOND_THOUGHTS = Words(
    lambda plain: (
        rf"{_STARTS}(?:{source('interrupts', plain=plain)}\s?(?:[,:;.!?…，：；。！？、]|[—–-]\s)"
        rf"|{source('rereads', plain=plain)})"
    )
)


def _has_second_thoughts(text: str) -> str:
    """The words with which a judge interrupts itself, at the beginning of a sentence."""
    bare = unquoted(text)
    found = _SECOND_THOUGHTS.search(bare) or _SELF_CORRECTING.search(bare)
    return found[0].strip() if found else ""


_HEAD = re.compile(
    r"^\W{0,3}(?:(?:this (?:is|one is)|explanation|reasons?|verdict|scores?|notes?) (?:about|for|of|on)"
    r" )?(?:trajectory |attempt |candidate |response )?\W{0,3}",
    re.IGNORECASE,
)
_TOLD_APART = re.compile(
    r"\b(?:than|while|whereas|but|unlike|like|same|similar|as well|also|too|only|both|more|less|better|worse"
    r"|instead|here"
    r"|this (?:one|attempt|trajectory)|whose|'s)\b|['’]s\b",
    re.IGNORECASE,
)


def _about_another(explanations: Mapping[str, str], said: Said) -> str:
    """The member whose explanation begins with another's name, as if the two had been exchanged."""
    begun = list[str]()
    for label, text in explanations.items():
        members = named(text[:400], said)
        head = _HEAD.match(text)
        if not members or members[0].label not in said.scores or members[0].label == label:
            continue
        if len(re.findall(r"\w+", text)) <= 4 and not _TOLD_APART.search(text) and not re.search(r"\bas\b", text):
            return label
        if members[0].start > (head.end() if head else 0) or any(one.label == label for one in members):
            continue
        if re.match(r"\W{0,3}[:：)\]—–]", text[members[0].end :]):
            return label
        if not _TOLD_APART.search(text):
            begun.append(label)
    alike = len(begun) > 1 or (begun and len(named(explanations[begun[0]], said)) == 1)
    return begun[0] if alike else ""


_MEASURE = re.compile(
    r"\W{0,3}(?P<head>[^\W\d_]+(?: [^\W\d_]+){0,3})\s*(?P<sign>[:=]?)\s*(?P<value>\d*[.,]?\d+|[^\W\d_]+)"
)


def _measures_otherwise(explanations: Mapping[str, str], said: Said) -> bool:
    """Whether all explanations begin with a measure other than quality that rises with the scores.

    "Penalty 0.5: skipped a lookup" at 0.5, or "Severity of faults: high" at the highest score.
    """
    if len(explanations) < 2 or len(set(said.scores.values())) == 1:
        return False
    found = {label: _MEASURE.match(text) for label, text in explanations.items()}
    values, heads = dict[str, float](), set[str]()
    for label, measure in found.items():
        if measure is None:
            return False
        heads.add(measure["head"].casefold())
        value = measure["value"].casefold()
        if value[-1].isdigit():
            values[label] = float(value.replace(",", "."))
        elif value in SEVERITY:
            values[label] = SEVERITY[value]
    if len(heads) > 1 or len(values) < len(found) or not pattern("meaning").search(heads.pop()):
        return False
    ranked = sorted(values, key=lambda label: values[label])
    scores = [said.scores[label] for label in ranked]
    equal = all(said.are(value, label) for label, value in values.items())
    told = all(measure and measure["sign"] for measure in found.values())
    return equal or (told and scores == sorted(scores) and len(set(values.values())) > 1)


def all_the_same(explanations: Mapping[str, str], said: Said) -> bool:
    """Whether scores that differ have one and the same explanation, but for the names of members."""
    if len(explanations) < 2 or len(set(said.scores.values())) == 1:
        return False
    bare = (re.sub(r"\W+", " ", _with_members(text.casefold(), said)).strip() for text in explanations.values())
    text = next(bare)
    if any(other != text for other in bare):
        return False
    words = [word for word in text.split() if word != "member"]
    return len(words) > 2 or (not text.isascii() and len(text) > 7)


def _with_members(text: str, said: Said) -> str:
    text = said.mention.sub(" member ", text)
    if _DIGIT.search(text):
        text = ORDINAL.sub(" member ", text)
    return re.sub(r"\s+", " ", text).strip()
