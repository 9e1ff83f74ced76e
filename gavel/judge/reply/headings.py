"""Headings: whether the text before an object introduces it as the answer, or leaves it inside a draft.

**Thinking**                           the object is part of thoughts under a heading, which nothing has ended
maybe {"W7QX": 0.1}                    the object stands in the middle of a sentence
Had the refund failed: {"W7QX": 0.1}   the sentence before the object says that it is not the answer
"""

import re
from typing import Literal

from gavel.judge.reply import vocabulary as say
from gavel.judge.reply.lexicon import language, pattern, understood
from gavel.judge.reply.mentions import Mentions
from gavel.judge.reply.thoughts import THINKING

_NUMBERING = re.compile(r"(?:\d{1,2}[.)]|[-•*])\s+")
_NAME = re.compile(
    r"(?P<marks>(?:[^\w\"'‘“]|_)*)(?P<name>[^\W_][^*_:：…#|=~!?`\n]{0,70}?)\s*(?P<end>[*_:：…#"
    r"|=~!?`][*_:：…#|=~!?`.)\]\s]*|\.\.+|[)\]]?$)"
)
_RULE = re.compile(r"^\s*([-*_=])(?:\s*\1){2,}\s*$")
_FENCE = re.compile(r"^\s*(?:`{3,}|~{3,})\s*[\w+.-]*\s*$|(?<![`~])(?:`{3,}|~{3,})[\w+.-]*[ \t]*$")
_HARD = re.compile(
    r"think|thought|scratch|ponder|mus(?:e|ing)|deliberat|brainstorm|monolog|chain|contemplat|draft|rough"
    r"|working|inner|internal|denk|gedank|überleg"
    r"|entwurf|pens|borrador|réfl|brouillon|мысл|размышл|чернов|思|想法|草稿|考え|생각",
    re.IGNORECASE,
)
_INTRODUCES = re.compile(r"[:：=>→\-—–.。!！|*_#`\])\"”]$|\A$")
_LIST_MARK = re.compile(r"^[ \t]*(?:[-*•]|\d{1,3}[.)])?[ \t]*[`\"'“]?$")
_Section = Literal["open", "thoughts", "soft", "unknown"]


def cleanly_introduced(text: str, mention: Mentions) -> bool:
    """Whether an object that follows `text` is said as the answer. `mention`: finds names of members."""
    if text.rstrip().endswith("~~") and not text.rstrip().endswith("~~~"):
        return False
    lines = text.split("\n")
    last = lines[-1]
    while lines and (not lines[-1].strip(" \t\r`~\"'\\") or _FENCE.match(lines[-1].strip())):
        last = lines.pop()
    if not _is_format(_open_fence(text)):
        return False
    fresh = not last.strip(" \t\r`~\"'\\") or bool(_FENCE.match(last.strip()))
    if not lines:
        return True
    intro = _FENCE.sub("", lines[-1]).rstrip(" \t\r`~\"'\\")
    if not fresh and not _starts_cleanly(intro):
        return False
    if _COMMENTED.search(intro):
        return False
    sentence = re.split(r"(?<=[.!?])\s+(?=\S)|(?<=[。！？])(?=\S)", intro)[-1]
    if say.NO_ANSWER.search(sentence) or say.HYPOTHETICAL_UNSPACED.search(sentence):
        return False
    colon = intro.rstrip("*_ ").endswith((":", "："))
    if not mention.search(sentence) and not _introduction_understood(sentence, colon=colon, fresh=fresh):
        return False
    bare = mention.sub("", sentence)
    named = bool(mention.search(sentence))
    says = len(re.findall(r"[^\W\d_]{2,}|[\u3040-\u9fff]", bare)) > 1 if named else bool(re.search(r"\w", bare))
    line = intro.strip()
    plain = not line.startswith(("#", "*", "_", "=", "-", "|")) and not re.search(r"[.!?。！？|*_)\]\"”]$", line)
    introduced = (
        say.INTRODUCES.search(bare)
        or pattern("subject").search(bare)
        or _LIST_MARK.match(intro)
        or (named and not colon)
    )
    if says and (colon or plain) and not introduced and len(sentence) < 200:
        return False
    unfinished = not sentence.rstrip("*_").endswith((".", "!", "|")) and not mention.search(sentence)
    introduces = (
        unfinished
        or sentence.rstrip("*_").endswith((":", "："))
        or (bool(say.SCORE_TALK.search(sentence)) and len(sentence) < 70 and not mention.search(sentence))
    )
    if introduces and say.HYPOTHETICAL.search(sentence):
        return False
    if intro.lstrip().startswith((">", "~~")) or intro.endswith("~~") or _open_parenthesis(lines):
        return False
    return _section(lines, mention) == "open" or _is_answer_line(lines[-1], _section(lines[:-1], mention))


def _open_fence(text: str) -> str:
    """The line that opened a fence which the text leaves open."""
    opened = ""
    for found in re.finditer(r"(?<![`~])(?:`{3,}|~{3,})[^\n`~]*$", text, re.MULTILINE):
        opened = "" if opened else found[0]
    return opened


def _is_format(line: str) -> bool:
    """Whether a line that opens a fence names a format, and not something that is no answer: "```example"."""
    found = re.search(r"(?<![`~])(?:`{3,}|~{3,})\s*(?P<info>[^`~]*)$", line)
    return not found or bool(_FORMATS.fullmatch(found["info"].strip()))


_FORMATS = re.compile(
    r"(?:json[5cl]?|jsonlines|javascript|js|typescript|ts|python|py|text|txt|plain|plaintext|ya?ml|xml|html"
    r"|markdown|md|code|output"
    r"|answer|response|result|results|scores?|verdict|final|none|bash|sh|console|http|ruby|java|c|tool_code"
    r"|tool_call|hjson)?",
    re.IGNORECASE,
)
_COMMENTED = re.compile(r"(?:^|\s)(?:/\*+|//+|--)\s*$|(?:^|\n)#\s?$|^\s*\$ \w|<!--\s*$")
"""The object stands in a comment, or is what a command printed."""
_SCORE_NOUN = re.compile(
    r"\b(?:scor|rating|number|value|verdict|result|output|json|answer|evaluat|judge?ment|grade|mark)", re.IGNORECASE
)


def _introduction_understood(sentence: str, *, colon: bool, fresh: bool) -> bool:
    """Whether the words that introduce the object are all known to call it the answer."""
    words = _LETTERS.findall(sentence)
    ends = sentence.rstrip('*_ )"”').endswith((".", "!", "。", "！"))
    if not colon and ends and (len(words) > 5 or not _SCORE_NOUN.search(sentence)) and sentence.isascii():
        return True
    clause = re.split(r"[,;—–，、]|\s-\s", sentence.rstrip(",;—–- "))[-1] if colon else sentence
    if pattern("unmeant", "meaning").search(clause) and len(clause) < 80:
        return False
    if not colon and len(words) > 8:
        return True
    strange = [word for word in _LETTERS.findall(clause) if word.casefold() not in understood()]
    if len(strange) * 2 >= len(_LETTERS.findall(clause)) or not sentence.isascii():
        return not strange or language(sentence) is not None
    return not strange


_LETTERS = re.compile(r"[^\W\d_]+")


def _starts_cleanly(line: str) -> bool:
    if _LIST_MARK.match(line) or say.FINAL.fullmatch(line.strip()):
        return True
    return bool(_INTRODUCES.search(line))


def _open_parenthesis(lines: list[str]) -> bool:
    """Whether the last paragraph leaves a parenthesis open."""
    paragraph = ""
    for line in reversed(lines[-40:]):
        if not line.strip():
            break
        paragraph = line + paragraph
    return paragraph.count("(") + paragraph.count("（") > paragraph.count(")") + paragraph.count("）") + len(
        re.findall(r"[:;]-?\(", paragraph)
    )


def _is_answer_line(line: str, section: _Section) -> bool:
    """Whether a line such as "Final scores:" ends a section, so that an object after it is the answer."""
    text = line.strip(" \t*_#`-=>")
    if not text.endswith((":", "：")) or not say.ANSWER_HEADING.search(text) or _HARD.search(text):
        return False
    return section in ("soft", "unknown") or bool(say.FINAL_MARK.search(text) and len(text) < 40)


def _section(lines: list[str], mention: Mentions) -> _Section:
    """What kind of section the end of the text is in."""
    section: _Section = "open"
    in_fence = False
    for line in lines:
        if line.strip().startswith(("```", "~~~")):
            in_fence = not in_fence
            continue
        if in_fence or not line.strip() or len(line) > 2000:
            continue
        if _RULE.match(line):
            section = section if section == "thoughts" else "open"
            continue
        kind = _heading(line, mention)
        if kind == "member":
            continue
        if kind is not None and not (section == "thoughts" and kind in ("soft", "unknown", "benign")):
            section = "open" if kind in ("answer", "benign") else kind
    return section


def _heading(
    line: str, mention: Mentions
) -> Literal["thoughts", "soft", "unknown", "benign", "answer", "member"] | None:
    """What kind of heading a line is or begins with; None = none."""
    line = line[:160].strip(" \t>")
    numbering = _NUMBERING.match(line)
    found = _NAME.match(line, numbering.end() if numbering else 0)
    if not found:
        return None
    name, text, ends, marked = (
        found["name"],
        line[found.end() :].strip("*_ "),
        found["end"].strip(),
        bool(found["marks"].strip()),
    )
    words = re.findall(r"[^\W_]+", name)
    unspaced = any("\u3000" < character < "\uffff" for character in name)
    alone = not text
    if not words or len(words) > 8 or (unspaced and len(name) > 16):
        return None
    if mention.search(name) or re.search(
        r"\b(?:trajectory|attempt|candidate|rollout|response|agent)\s*#?\d", name, re.IGNORECASE
    ):
        return "member" if marked or ends else None
    thinks = bool(THINKING.search(name))
    if not (marked or ends) and not (alone and thinks and len(words) <= 4):
        return None
    if _HARD.search(name) and thinks and (marked or alone or len(words) <= 4):
        return "thoughts"
    if not alone and not marked:
        return None
    if not alone and not ends.startswith(("*", "_", ":", "：")):
        return None
    if thinks:
        return "soft" if marked or len(words) <= 2 else None
    if not marked and ends not in (":", "："):
        return None
    if say.ANSWER_HEADING.search(name) and not say.HYPOTHETICAL.search(name):
        return "answer" if marked or say.FINAL_MARK.search(name) else None
    if not marked or not alone or say.BENIGN_HEADING.search(name):
        return "benign" if marked else None
    return "unknown"
