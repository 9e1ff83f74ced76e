"""Surroundings: whether what a reply says outside its final object and closed thoughts leaves the scores as they are.

    {"W7QX": 0.9, "B3KD": 0.2} Trajectory 1 is best.       harmless
    {"W7QX": 0.9, "B3KD": 0.2} So W7QX should be 0.2.      a problem: it takes a score back
    On a scale of 1 (poor) to 5: {"W7QX": 0.9, …}          a problem: another scale

After the object only closing words are harmless: every number in them must be a score of the object, or count
attempts. Before it numbers may be anything (calls, prices), but not another score of a member, nor another scale.
"""

import re
import unicodedata
from bisect import bisect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from gavel.judge.reply import vocabulary as say
from gavel.judge.reply.headings import cleanly_introduced

_SENTENCE_ENDS = re.compile(r"(?<=[.!?;])\s+|(?<=[。！？；])|\n+|(?<=:)\s+(?=[A-Z(])")
_UNITS = r"%|％|percent|per cent|prozent|por ciento|процент\w*|points?|pts?|stars?|★|punkte?|puntos?|балл\w*|分|点|점"
_NUMBER = re.compile(
    r"(?<![\w.,])[-+~≈]?(?P<n>\d{1,9}(?:[.,]\d{1,9})?|[.,]\d{1,9})"
    r"(?:[ ]?(?:/|out of|of|von|de|sur|из|中)[ ]?(?P<whole>\d{1,4}(?:\.\d+)?))?"
    rf"(?:[ -]?(?P<unit>{_UNITS}))?(?![\w])(?P<noun>[ ](?:[A-Za-zÀ-ÿ]+))?",
    re.IGNORECASE,
)
_NOT_A_NOUN = frozenset(
    {
        *("and", "for", "because", "since", "as", "but", "while", "vs", "versus", "overall", "then", "though"),
        *("which", "given", "due", "or", "at", "is", "was", "to", "so", "if", "with", "by", "on", "und", "für"),
        *("weil", "y", "para", "porque", "et", "pour", "car", "и", "так"),
    }
)
_ATTEMPTS = (
    r"trajector(?:y|ies)|attempts?|candidates?|rollouts?|responses?|agents?|members?|options?|runs?|entr(?:y"
    r"|ies)|answers?"
    r"|versuche?n?|trajektorien?|intentos?|trayectorias?|tentatives?|trajectoires?|попыт\w*|траектор\w*|items?"
    r"|solutions?|ids"
)
_ORDINAL = re.compile(
    rf"\b(?:{_ATTEMPTS})[ ]*(?:no\.?|number|nr\.?|id)?[ ]*[#№(\[]?[ ]*(\d{{1,3}})\b(?![.,]\d|[ ]?(?:%|/|out of))"
    rf"(?:(?:[ ]*,[ ]*|[ ]*&[ ]*|[ ]+(?:and|or|und|y|et|и)[ ]+)#?(\d{{1,3}})\b(?![.,]\d|[ ]?(?:%|/|out of)))*"
    r"|(?<!\w)[#№](\d{1,3})\b(?![.,]\d)|第\s*(\d{1,3})|(?:轨迹|尝试|候选|試行)\s*(\d{1,3})(?![.,]\d)",
    re.IGNORECASE,
)
_COUNT = re.compile(
    rf"\b(\d{{1,3}})[ ]+(?:[A-Za-z]+[ ]+){{0,2}}(?:{_ATTEMPTS}|scores|objects|criteria)\b", re.IGNORECASE
)
_UNIT_RANGE = re.compile(
    r"(?:(?:from|between|in|on|of|range|scale|von|de|entre|от"
    r"|从)\s*(?:the\s*)?)?[\[(]?(?<![\w.,])0(?:[.,]0+)?(?P<zero>\s*\([^()]{0,60}\))?\s*"
    r"(?:-|–|—|~|to|and|,|\.\.|…|through|bis|und|a|y|à|et|до|и|到|至|〜|から)\s*1(?:[.,]0+)?(?![\w%]|[.,]\d"
    r"|/)(?P<one>\s*\([^()]{0,60}\))?[\])]?",
    re.IGNORECASE,
)
_RANGE = re.compile(
    r"(?<![A-Za-z0-9.,$€£-])(?P<low>\d{1,3}(?:[.,]\d+)?)\s{0,2}[分点점]?(?P<gloss>\([^()\n]{0,60}\)"
    r"|[=:][^,;.\d\n]{1,40})?\s{0,2},?\s{0,2}"
    r"(?:-|–|—|~|〜|…|\.\.\.?|to|through|up to|bis|zu|a|al|à|до|по|到|至|から|and|und|y|et|и)\s{0,2}"
    r"(?P<high>\d{1,3}(?:[.,]\d+)?)(?![\w]*\d)\s{0,2}(?P<gloss2>\(|=)?",
    re.IGNORECASE,
)
_BEST = re.compile(
    r"^[\s*_`:]*(?:is|was|did|performed|ranks?|comes?|came)\s+(?:clearly |by far |overall |definitely |easily "
    r"|obviously |still )?(?:the )?(?:very )?"
    r"(?:(?P<best>best|strongest|winner|top|first)|(?P<worst>worst|weakest|last))(?=\s*(?:[.!,;:]|$"
    r"|\b(?:overall|attempt|trajectory|candidate|one|of)\b))",
    re.IGNORECASE,
)
_MORE_THAN = re.compile(
    r"^[\s*_`]*(?:>|≻|beats\b|outperforms\b|is better than\b|ranks above\b|is ahead of\b)[\s*_`]*$", re.IGNORECASE
)
_LESS_THAN = re.compile(r"^[\s*_`]*(?:<|≺|is worse than\b|loses to\b|ranks below\b)[\s*_`]*$", re.IGNORECASE)
_MEMBER_WORD = re.compile(
    r"\b(?:first|second|third|fourth|last|former|latter|both|others?|one|these|those|them|two|each|all)\b",
    re.IGNORECASE,
)
_SAYS = re.compile(r"\w|[<>=≻≺-]")
_LETTERS = re.compile(r"[^\W\d_]+(?:['’][a-z]+)?")
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class Said:
    """The scores that the object gives, and what finds a member's name in prose."""

    scores: Mapping[str, float]
    """By label in lower case, in the order of the labels."""
    mention: re.Pattern[str]

    @classmethod
    def of(cls, scores: Mapping[str, float], names: Collection[str] = ()) -> "Said":
        """`names`: further names of members that prose may use."""
        words = "|".join(map(re.escape, sorted({*scores, *names}, key=len, reverse=True)))
        folded = {label.casefold(): score for label, score in scores.items()}
        return cls(folded, re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])", re.IGNORECASE))

    def are(self, value: float, name: str | None = None) -> bool:
        """Whether a number is the score of a member, or of any. A member may have a score for each criterion."""
        if name is not None and name in self.scores:
            return abs(value - self.scores[name]) < _CLOSE
        own = [score for label, score in self.scores.items() if name is None or label[:-1] == name]
        return any(abs(value - score) < _CLOSE for score in own)


def problem_before(text: str, said: Said) -> str:
    """What is wrong with the text before the object; empty = nothing."""
    if not cleanly_introduced(text, said.mention):
        return "it is not clear that its JSON object is the final answer"
    return next(filter(None, (_contradiction(sentence, said) for sentence in _rows_assigned(text))), "")


def _rows_assigned(text: str) -> Iterator[str]:
    """The sentences of a text; in a table of scores a cell counts as assigned to the member of its row."""
    tabled = any("|" in sentence and say.SCALE.search(sentence) for sentence in sentences(text))
    for sentence in sentences(text):
        yield sentence.replace("|", " : ") if tabled else sentence


def problem_after(text: str, said: Said) -> str:
    """What is wrong with the text after the object; empty = it is nothing but closing words."""
    if re.search(r"[{\[][^{}\[\]]*[\"':\d]", said.mention.sub("member", text)):
        return "more JSON follows its JSON object"
    for sentence in sentences(text):
        if found := _contradiction(sentence, said, after=True):
            return found
        if _takes_back(sentence, said):
            return f'what follows its JSON object may change a score ("{_shown(sentence)}")'
    return ""


def problem_within(text: str, said: Said) -> str:
    """What is wrong with a text that stands beside the scores in the object; empty = nothing."""
    for sentence in sentences(text):
        if (found := _contradiction(sentence, said)) or _corrects(sentence, said):
            return found or f'a text beside the scores may change one ("{_shown(sentence)}")'
    return ""


def sentences(text: str) -> Iterator[str]:
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    for part in _SENTENCE_ENDS.split(text):
        if _SAYS.search(part):
            yield part.strip(" \t\r`")


def _shown(sentence: str) -> str:
    return sentence if len(sentence) <= 60 else sentence[:60] + "…"


def _contradiction(sentence: str, said: Said, after: bool = False) -> str:
    """Whether a sentence tells another scale, or other scores."""
    if _ranks_otherwise(sentence, said):
        return f'it says "{_shown(sentence)}", which its scores contradict'
    bare = _ORDINAL.sub(" member ", said.mention.sub(" member ", sentence))
    if tells_a_scale(bare, said):
        return f'it tells another scale or meaning than quality from 0 to 1 ("{_shown(sentence)}")'
    if _gives_other_scores(sentence, said, after):
        return f'outside its JSON object it gives other numbers ("{_shown(sentence)}")'
    return ""


def tells_a_scale(sentence: str, said: Said) -> bool:
    """Whether a sentence, in which "member" stands for names, puts the scores on another scale than from 0 to 1."""
    about_scores = bool(say.SCORE_TALK.search(sentence))
    members = " member " in sentence
    if (about_scores or not members) and say.LOWER_IS_BETTER.search(sentence) and not _of_members(sentence):
        return True
    if about_scores and (say.MEANING.search(sentence) or say.MEANING_UNSPACED.search(sentence)) and not members:
        return True
    for found in (*say.BOUND_IS.finditer(sentence), *say.IS_BOUND.finditer(sentence)):
        if (found["bound"][0] == "0") == bool(found["good"]):
            return True
    rest = _UNIT_RANGE.sub(" ", sentence)
    talks = bool(say.SCALE.search(rest))
    for found in _RANGE.finditer(rest):
        low, high = (float(found[name].replace(",", ".")) for name in ("low", "high"))
        glossed = found["gloss"] or found["gloss2"]
        if (talks or glossed) and high > 1 and not (said.are(low) and said.are(high)):
            return True
    return False


def _of_members(sentence: str) -> bool:
    """Whether a comparison is one of members, as in "lower scores go to worse attempts"."""
    return bool(
        re.search(
            r"\b(?:lower|higher)[- ]scor|\b(?:lower|higher) scores? (?:reflects?|means?|goes|go|for|indicates?)\b",
            sentence,
        )
    ) and not (
        re.search(
            r"lower scores? \w+ (?:\w+ ){0,2}(?:better|best|good)|higher scores? \w+ (?:\w+ ){0,2}(?:worse|worst|bad)",
            sentence,
        )
    )


def _gives_other_scores(sentence: str, said: Said, after: bool) -> bool:
    rest = _UNIT_RANGE.sub(" ", sentence)
    members = [(found.start(), found.end(), found[0].casefold()) for found in said.mention.finditer(rest)]
    covered = list(_ORDINAL.finditer(rest))
    for found in covered:
        number = next(filter(None, found.groups()))
        labels = list(said.scores)
        own = (
            labels[int(number) - 1]
            if 0 < int(number) <= len(labels) and len(re.findall(r"\d+", found[0])) == 1
            else "?"
        )
        members.append((found.start(), found.end(), own))
    members.sort()
    rest = _blank(rest, [(start, end) for start, end, _ in members])
    if after:
        rest = re.sub(r"^\s{0,9}[-*]?\s{0,9}\d{1,2}[.)]\s", lambda found: " " * len(found[0]), rest)
        if any(
            int(found[1]) != len(said.scores) and int(found[1]) > len(said.scores) for found in _COUNT.finditer(rest)
        ):
            return True
        rest = _blank(rest, [found.span() for found in _COUNT.finditer(rest)])
        if _loose_digits(rest):
            return True
    strict = after or (not members and bool(say.SCALE.search(rest)))
    if strict and not after:
        rest = _blank(rest, [found.span() for found in _COUNT.finditer(rest)])
    numbers = [
        (found.start(), value)
        for found in _NUMBER.finditer(rest)
        if (value := _score_like(found, rest, members, after, strict)) is not None
    ]
    if not numbers:
        return False
    if not members:
        about = after or say.SCORE_TALK.search(rest) or len(numbers) > 1
        return bool(about) and not all(said.are(value) or (value in (0, 1) and not after) for _, value in numbers)
    return not (_assigned(numbers, members, said, forward=True) or _assigned(numbers, members, said, forward=False))


def _loose_digits(text: str) -> bool:
    """Whether a digit is no part of a number that can be read."""
    left = _NUMBER.sub(" ", text)
    return any(map(str.isdigit, left))


def _blank(text: str, spans: Collection[tuple[int, int]]) -> str:
    parts, position = list[str](), 0
    for start, end in sorted(spans):
        if start >= position:
            parts += text[position:start], " " * (end - start)
            position = end
    return "".join([*parts, text[position:]])


def _score_like(
    found: re.Match[str], text: str, members: list[tuple[int, int, str]], after: bool, strict: bool
) -> float | None:
    """The number as a score from 0 to 1; None when it counts something else."""
    number = float(found["n"].replace(",", "."))
    unit, whole = (found["unit"] or "").casefold(), found["whole"]
    noun = (found["noun"] or "").strip().casefold()
    if whole:
        number = number / float(whole) if float(whole) else -1.0
    elif unit.startswith(("%", "％", "per", "pro", "por", "про")):
        number /= 100
    elif unit:
        number = number if number <= 1 else -number
    if after:
        return number
    if noun and noun not in _NOT_A_NOUN and not (unit and not unit.startswith(("%", "％", "p"))):
        return None
    if strict:
        return number
    before = text[max(0, found.start() - 24) : found.start()]
    if re.search(r"[$€£#]\s*$", before):
        return None
    if whole or unit or ("." in found[0] and number <= 1) or "," in found["n"]:
        return number
    index = bisect(members, (found.start(),)) - 1
    near = index >= 0 and 0 <= found.start() - members[index][1] <= 24
    follows = text[found.end() : found.end() + 2]
    assigned = re.search(
        r"(?:[:=→>(]|->|gets?|deserves?|earns?|scores?|score of|rated?|an?|give)[\s*_`]*$", before, re.IGNORECASE
    )
    if near and assigned and not re.match(r"\s?[A-Za-z\-]", follows):
        return number
    return None


def _assigned(numbers: list[tuple[int, float]], members: list[tuple[int, int, str]], said: Said, forward: bool) -> bool:
    """Whether each number is the score of the nearest member before it, or (not `forward`) after it."""
    starts = [start for start, _, _ in members]
    for position, value in numbers:
        index = bisect(starts, position) - forward
        if not 0 <= index < len(members) or not said.are(value, members[index][2]):
            return False
    return True


def _ranks_otherwise(sentence: str, said: Said) -> bool:
    """Whether a sentence ranks members against their scores: "B3KD is the worst", "W7QX > B3KD"."""
    found = [(match.start(), match.end(), match[0].casefold()) for match in said.mention.finditer(sentence)]
    scores = said.scores
    highest, lowest = max(scores.values()), min(scores.values())
    for index, (_, end, name) in enumerate(found):
        if name not in scores:
            continue
        best = _BEST.search(sentence[end : end + 80])
        if best and scores[name] != (highest if best["best"] else lowest):
            return True
        if index + 1 < len(found) and (other := found[index + 1][2]) in scores:
            between = sentence[end : found[index + 1][0]][:60]
            if _MORE_THAN.match(between) and scores[name] < scores[other]:
                return True
            if _LESS_THAN.match(between) and scores[name] > scores[other]:
                return True
    return False


def _corrects(sentence: str, said: Said) -> bool:
    mentions, bare = _without_members(sentence, said)
    if say.CORRECTS.search(bare) or (say.CORRECTS_ELSEWHERE.search(bare) and not _is_plain_english(bare)):
        return True
    may = say.MAY_CORRECT.search(bare)
    return may is not None and (mentions > 1 or may.start() <= 2 or bool(say.SCORE_TALK.search(bare)))


def _takes_back(sentence: str, said: Said) -> bool:
    """Whether a sentence after the object corrects it, or cannot be understood."""
    mentions, bare = _without_members(sentence, said)
    if not re.search(r"\w", bare):
        return False
    polite = say.POLITE.search(bare)
    if polite and not re.match(r"(?:wait|oops|whoops|correct|actually|sorry)", bare, re.IGNORECASE):
        return False
    if mentions == 0 and say.FAREWELL.search(bare) and not say.CORRECTS_ELSEWHERE.search(bare.partition(",")[0]):
        return False
    if _corrects(sentence, said):
        return True
    about = mentions != 1 or say.SCORE_TALK.search(bare) or _MEMBER_WORD.search(bare)
    if about and (say.MAY_CORRECT.search(bare) or say.MAY_TURN.search(bare)):
        return True
    if say.NUMBER_WORD.search(_COUNT_WORD.sub(" ", bare)) and (mentions or say.SCORE_TALK.search(bare)):
        return True
    return not _is_plain_english(bare)


def _without_members(sentence: str, said: Said) -> tuple[int, str]:
    """How many members a sentence names, and the sentence without their names."""
    bare, labels = said.mention.subn(" ", sentence)
    bare, ordinals = _ORDINAL.subn(" ", bare)
    return labels + ordinals, bare.strip()


_COUNT_WORD = re.compile(
    rf"\b(?:all|the|these|those|other|first|last|of|between)?\s*(?:two|three|four|five|six|seven|eight|nine|ten"
    rf"|half)\s+(?:\w+\s+){{0,2}}(?:{_ATTEMPTS}|others?)\b"
    r"|zero to one|between zero and one",
    re.IGNORECASE,
)


def _is_plain_english(sentence: str) -> bool:
    words = [word.casefold() for word in _LETTERS.findall(sentence)]
    if not sentence.isascii() and any(
        word and not word.isascii() and not re.fullmatch(r"[a-zà-ÿ'’]+", word) for word in words
    ):
        return False
    common = sum(word in say.COMMON_ENGLISH for word in words)
    return common >= 0.34 * len(words)
