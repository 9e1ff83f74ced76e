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
from gavel.judge.reply.claims import ORDINAL, UNIT_RANGE, Said, gives_other_scores
from gavel.judge.reply.closings import (
    breaks_off,
    corrects,
    is_plain_english,
    is_understood,
    rationale_heading,
    takes_back,
)
from gavel.judge.reply.declines import declines
from gavel.judge.reply.headings import cleanly_introduced
from gavel.judge.reply.lexicon import language
from gavel.judge.reply.opinions import contradiction
from gavel.judge.reply.rankings import ranks_otherwise

_SENTENCE_ENDS = re.compile(r"(?<=[.!?;])\s+|(?<=[。！？；])|\n+|(?<=:)\s+(?=[A-Z][a-z])")
_RANGE = re.compile(
    r"(?<![A-Za-z0-9.,$€£-])(?P<low>\d{1,3}(?:[.,]\d+)?)\s{0,2}[分点점]?(?P<gloss>\([^()\n]{0,60}\)"
    r"|[=:][^,;.\d\n]{1,40})?\s{0,2},?\s{0,2}"
    r"(?:-|–|—|~|〜|…|\.\.\.?|to|through|up to|bis|zu|a|al|à|до|по|到|至|から|and|und|y|et|и)\s{0,2}"
    r"(?P<high>\d{1,3}(?:[.,]\d+)?)(?![\w]*\d)\s{0,2}(?P<gloss2>\(|=)?",
    re.IGNORECASE,
)
_SAYS = re.compile(r"\w|[<>=≻≺-]")

_ABOUT_THE_NUMBERS = re.compile(
    r"^\W{0,4}(?:(?:the|these|those|all|my|each|every|such|here) ){0,2}(?:of )?(?:the )?(?:\w+ ){0,1}"
    r"(?:scores?|numbers?|values?|ratings?|figures?|grades?|marks|json|verdicts?|results?)\b"
    r"(?: (?:below|above|here|given|that follow|shown|in the json|in the object)){0,2} (?P<says>(?:are|is|were"
    r"|was|have|has)\b.*)",
    re.IGNORECASE,
)
"""A sentence that says what the numbers are."""
_MARKS = re.compile(r"[\s\-–—*_`#=~.,;:!|\]\[}{)(>\"'“”’✅☑✔️😊🙂👍🎉🏁🔚]*")
"""Characters that close a reply and say nothing."""


def problem_before(text: str, said: Said) -> str:
    """What is wrong with the text before the object; empty = nothing."""
    if _numbers_otherwise(text, said):
        return "it numbers its labels in another order than that of their scores"
    if not cleanly_introduced(text, said.mention):
        return "it is not clear that its JSON object is the final answer"
    for sentence in _rows_assigned(text):
        if found := _contradiction(sentence, said):
            return found
        if say.STAND_FOR.search(_with_members(sentence, said)):
            return f'it says that its labels stand for others ("{_shown(sentence)}")'
        numbers = _ABOUT_THE_NUMBERS.match(sentence)
        if numbers and not said.mention.search(sentence) and not is_understood(numbers["says"]):
            return f'what it says of its scores is not understood ("{_shown(sentence)}")'
    if found := contradiction(text, said):
        return f'it says "{_shown(found.strip())}", which its scores contradict'
    return ""


def _numbers_otherwise(text: str, said: Said) -> bool:
    """Whether a list numbers bare labels neither in the order of their scores nor as they were shown or listed."""
    lines = re.findall(
        r"(?m)^\s{0,9}(\d{1,2})[.)]\s{1,3}[*_`]{0,3}([A-Za-z0-9]{1,12})[*_`.]{0,4}\s{0,9}$", text[:20_000]
    )
    labels = [name.casefold() for _, name in lines if name.casefold() in said.scores]
    if len(labels) < 2 or len(set(labels)) < len(said.scores):
        return False
    scores = [said.scores[label] for label in labels]
    return scores != sorted(scores, reverse=True) and labels not in (list(said.scores), list(said.listed))


def _rows_assigned(text: str) -> Iterator[str]:
    """The sentences of a text; in a table of scores a cell counts as assigned to the member of its row."""
    tabled = any("|" in sentence and say.SCALE.search(sentence) for sentence in sentences(text))
    for sentence in sentences(text):
        yield sentence.replace("|", " : ") if tabled else sentence


def problem_after(text: str, said: Said) -> str:
    """What is wrong with the text after the object; empty = it is nothing but closing words."""
    if re.search(r"[{\[][^{}\[\]]*[\"':\d]", said.mention.sub("member", text)):
        return "more JSON follows its JSON object"
    if _numbers_otherwise(text, said):
        return "it numbers its labels in another order than that of their scores"
    if re.search(r"(?<![`~])(?:`{3,}|~{3,})[ \t]*\w", text):
        return "another answer begins after its JSON object"
    text = re.sub(r"(?m)^(\s{0,9})\d{1,2}[.)]\s+", r"\1- ", text)
    last, rationale = "", False
    elsewhere = language(said.mention.sub(" ", text)) is not None and not is_plain_english(said.mention.sub(" ", text))
    for part in _SENTENCE_ENDS.split(text):
        if not _SAYS.search(part) and not _MARKS.fullmatch(part):
            return f'what follows its JSON object is not understood ("{_shown(part.strip())}")'
    for sentence in sentences(text):
        last = sentence
        rationale = rationale or bool(rationale_heading().match(sentence))
        if found := _contradiction(sentence, said, after=True):
            return found
        if takes_back(sentence, said, rationale=rationale, elsewhere=elsewhere):
            return f'what follows its JSON object may change a score ("{_shown(sentence)}")'
    if found := contradiction(text, said):
        return f'it says "{_shown(found.strip())}", which its scores contradict'
    return f'what follows its JSON object breaks off ("{_shown(last)}")' if breaks_off(last) else ""


def problem_within(text: str, said: Said) -> str:
    """What is wrong with a text that stands beside the scores in the object; empty = nothing."""
    for sentence in sentences(text):
        if (found := _contradiction(sentence, said)) or corrects(sentence, said):
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
