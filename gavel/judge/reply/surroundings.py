"""Surroundings: whether what a reply says outside its final object and closed thoughts leaves the scores as they are.

    {"W7QX": 0.9, "B3KD": 0.2} Trajectory 1 is best.       harmless
    {"W7QX": 0.9, "B3KD": 0.2} So W7QX should be 0.2.      a problem: it takes a score back
    On a scale of 1 (poor) to 5: {"W7QX": 0.9, …}          a problem: another scale

After the object only closing words are harmless: every number in them must be a score of the object, or count
attempts. Before it numbers may be anything (calls, prices), but not another score of a member, nor another scale.
"""

import re
import unicodedata
from collections.abc import Iterator

from gavel.judge.reply import vocabulary as say
from gavel.judge.reply.claims import ATTEMPTS, ORDINAL, UNIT_RANGE, Said, gives_other_scores
from gavel.judge.reply.explanations import declines
from gavel.judge.reply.headings import cleanly_introduced
from gavel.judge.reply.rankings import ranks_otherwise

_SENTENCE_ENDS = re.compile(r"(?<=[.!?;])\s+|(?<=[。！？；])|\n+|(?<=:)\s+(?=[A-Z][a-z])")
_RANGE = re.compile(
    r"(?<![A-Za-z0-9.,$€£-])(?P<low>\d{1,3}(?:[.,]\d+)?)\s{0,2}[分点점]?(?P<gloss>\([^()\n]{0,60}\)"
    r"|[=:][^,;.\d\n]{1,40})?\s{0,2},?\s{0,2}"
    r"(?:-|–|—|~|〜|…|\.\.\.?|to|through|up to|bis|zu|a|al|à|до|по|到|至|から|and|und|y|et|и)\s{0,2}"
    r"(?P<high>\d{1,3}(?:[.,]\d+)?)(?![\w]*\d)\s{0,2}(?P<gloss2>\(|=)?",
    re.IGNORECASE,
)
_MEMBER_WORD = re.compile(
    r"\b(?:first|second|third|fourth|last|former|latter|both|others?|one|these|those|them|two|each|all)\b",
    re.IGNORECASE,
)
_SAYS = re.compile(r"\w|[<>=≻≺-]")
_LETTERS = re.compile(r"[^\W\d_]+(?:['’][a-z]+)?")


def problem_before(text: str, said: Said) -> str:
    """What is wrong with the text before the object; empty = nothing."""
    if not cleanly_introduced(text, said.mention):
        return "it is not clear that its JSON object is the final answer"
    for sentence in _rows_assigned(text):
        if found := _contradiction(sentence, said):
            return found
        if say.STAND_FOR.search(_with_members(sentence, said)):
            return f'it says that its labels stand for others ("{_shown(sentence)}")'
    return ""


def _rows_assigned(text: str) -> Iterator[str]:
    """The sentences of a text; in a table of scores a cell counts as assigned to the member of its row."""
    tabled = any("|" in sentence and say.SCALE.search(sentence) for sentence in sentences(text))
    for sentence in sentences(text):
        yield sentence.replace("|", " : ") if tabled else sentence


def problem_after(text: str, said: Said) -> str:
    """What is wrong with the text after the object; empty = it is nothing but closing words."""
    if re.search(r"[{\[][^{}\[\]]*[\"':\d]", said.mention.sub("member", text)):
        return "more JSON follows its JSON object"
    last = ""
    for sentence in sentences(text):
        last = sentence
        if found := _contradiction(sentence, said, after=True):
            return found
        if _takes_back(sentence, said):
            return f'what follows its JSON object may change a score ("{_shown(sentence)}")'
    return f'what follows its JSON object breaks off ("{_shown(last)}")' if _breaks_off(last) else ""


def _breaks_off(sentence: str) -> bool:
    """Whether a sentence at the end of a reply has no end."""
    ended = re.search(r"[.!?…。！？)\]}|>*_`\"'”;:\d-]$", sentence) or not sentence.isascii()
    return not ended and len(_LETTERS.findall(sentence)) > 5 and not (say.POLITE.search(sentence) or _is_list(sentence))


def problem_within(text: str, said: Said) -> str:
    """What is wrong with a text that stands beside the scores in the object; empty = nothing."""
    for sentence in sentences(text):
        if (found := _contradiction(sentence, said)) or _corrects(sentence, said):
            return found or f'a text beside the scores may change one ("{_shown(sentence)}")'
    return ""


def problem_with_comment(text: str, said: Said) -> str:
    """What is wrong with a comment inside the object; empty = it is as harmless as closing words."""
    text = re.sub(r"^\s*(?:/{2,}|#+|/\*+)\s*|\s*\*+/\s*$", "", text, flags=re.MULTILINE).strip()
    doubts = "?" in text or say.NO_ANSWER.search(text) or say.HYPOTHETICAL.search(text)
    if doubts or said.mention.search(text) or declines(text) or problem_after(text + "." * (len(text) > 20), said):
        return f'a comment in its JSON object may change a score ("{_shown(text)}")'
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
    if ranks_otherwise(sentence, said):
        return f'it says "{_shown(sentence)}", which its scores contradict'
    bare = _with_members(sentence, said)
    if " member " in bare and (say.SYMBOLS.search(bare) or say.LETTER_GRADE.search(bare)):
        return f'outside its JSON object it grades in other ways ("{_shown(sentence)}")'
    if tells_a_scale(bare, said):
        return f'it tells another scale or meaning than quality from 0 to 1 ("{_shown(sentence)}")'
    if gives_other_scores(sentence, said, after=after):
        return f'outside its JSON object it gives other numbers ("{_shown(sentence)}")'
    return ""


def _with_members(sentence: str, said: Said) -> str:
    """The sentence with "member" for every name of one."""
    return ORDINAL.sub(" member ", said.mention.sub(" member ", sentence))


def tells_a_scale(sentence: str, said: Said) -> bool:
    """Whether a sentence, in which "member" stands for names, puts the scores on another scale than from 0 to 1."""
    about_scores = bool(say.SCORE_TALK.search(sentence))
    members = " member " in sentence
    if (about_scores or not members) and say.LOWER_IS_BETTER.search(sentence) and not _of_members(sentence):
        return True
    if about_scores and (say.MEANING.search(sentence) or say.MEANING_UNSPACED.search(sentence)) and not members:
        return True
    if say.CLOSER_TO_FAULTS.search(sentence) or (
        say.NUMBER_WORD.search(sentence) and re.search(r"\b(?:maximum|minimum|max|scale)\b", sentence, re.IGNORECASE)
    ):
        return True
    other = say.OTHER_SCORES.search(sentence)
    if other and other["of"].casefold() not in say.SCORES_OF and other["of"].isascii() and not members:
        return True
    denotes = say.DENOTES.search(sentence)
    if denotes and (not say.QUALITY.search(denotes["what"]) or say.NO_QUALITY.search(denotes["what"])):
        return True
    for found in (*say.BOUND_IS.finditer(sentence), *say.IS_BOUND.finditer(sentence)):
        if (found["bound"][0] == "0") == bool(found["good"]):
            return True
    rest = UNIT_RANGE.sub(" ", sentence)
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
            r"lower scores? \w+ (?:\w+ ){0,2}(?:better|best|good)|higher scores? \w+ (?:\w+ ){0,2}(?:worse"
            r"|worst|bad)",
            sentence,
        )
    )


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
    if _is_list(sentence):
        return False
    about = mentions != 1 or say.SCORE_TALK.search(bare) or _MEMBER_WORD.search(bare)
    turns = say.MAY_TURN.search(bare)
    if (
        turns
        and (turns.start() <= 2 or mentions > 1 or say.ABOUT_SCORES.search(bare))
        and bare[:3] not in ("No ", "no ")
    ):
        return True
    if about and say.MAY_CORRECT.search(bare):
        return True
    if say.NUMBER_WORD.search(_COUNT_WORD.sub(" ", bare)) and (mentions or say.SCORE_TALK.search(bare)):
        return True
    if not mentions and not say.TOPIC.search(bare) and len(bare) > 4:
        return True
    if say.AS_GOOD.search(bare) and len(set(said.scores.values())) > 1:
        return True
    if say.ABOUT_SCORES.search(bare) and not say.HARMLESS_ABOUT_SCORES.search(bare):
        return True
    if say.FIRST_PERSON.search(bare) and not say.HARMLESS_FIRST_PERSON.search(bare):
        return True
    if mentions and not say.VERB.search(bare) and not said.mention.fullmatch(sentence.strip("*_ .:")):
        return True
    return bool(re.search(r"\bthan (?:that|this|shown|given|stated)\b", bare)) or not _is_plain_english(bare)


def _is_list(sentence: str) -> bool:
    """Whether a sentence is nothing but names, numbers and the words of a ranking."""
    words = {word.casefold() for word in _LETTERS.findall(re.sub(r"\b[A-Z0-9]{4,}\b", "", sentence))}
    return words <= {
        "ranking",
        "scores",
        "score",
        "trajectory",
        "attempt",
        "and",
        "then",
        "followed",
        "by",
        "best",
        "worst",
        "winner",
        "summary",
        "order",
        "so",
        "e",
    }


def _without_members(sentence: str, said: Said) -> tuple[int, str]:
    """How many members a sentence names, and the sentence without their names."""
    bare, labels = said.mention.subn(" ", sentence)
    bare, ordinals = ORDINAL.subn(" ", bare)
    return labels + ordinals, bare.strip()


_COUNT_WORD = re.compile(
    rf"\b(?:all|the|these|those|other|first|last|of|between)?\s*(?:two|three|four|five|six|seven|eight|nine|ten"
    rf"|half)\s+(?:\w+\s+){{0,2}}(?:{ATTEMPTS}|others?)\b"
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
    return common >= 0.3 * len(words)
