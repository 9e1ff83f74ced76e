"""Thoughts: where a model's reasoning begins and ends in its reply, in the tags of any model.

    <think>maybe {"W7QX": 0.1}</think>{"W7QX": 0.8}                         thoughts up to </think>
    <|channel|>analysis<|message|>…<|end|><|channel|>final<|message|>{…}    thoughts up to <|end|>
    ◁think▷maybe {"W7QX": 0.1}                                              thoughts that are cut off

A tag is known by its form, not by its name: whatever stands in brackets at the beginning or end of a line opens
thoughts, unless its name says that the answer is inside or that it only formats text. Thoughts end at their own closing
tag; a closing tag whose opening is lost makes everything before it thoughts.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

_OPENING, _CLOSING = "<＜〈⟨《‹◁◀【〔〖⟦⟪❮❰", ">＞〉⟩》›▷▶】〕〗⟧⟫❯❱"
_TAG = (
    rf"(?:[{_OPENING}]|&lt;){{1,3}}[|｜!\s]{{0,3}}(?P<slash>[/\\]{{0,2}})[|｜\s]{{0,3}}(?P<name>[^\W\d_][\w:.▁\-]{{0,40}})"
    rf"(?P<more>(?:[ \t][^{_OPENING}{_CLOSING}{{}}\n]{{0,80}})?)[|｜\s]{{0,3}}(?P<empty>/?)(?:[{_CLOSING}]"
    rf"|&gt;){{1,3}}"
)
_SQUARE = r"\[[ ]?(?P<slash2>/?)[ ]?(?P<name2>[^\W\d_]{1,30}(?:[ _:-][^\W\d_]{1,30}){0,4})[ ]?\]"
_BRACES = r"\{{1,3}[ ]?[%#]?(?P<slash3>/?)[ ]?(?P<name3>[^\W\d_]{1,30}(?:[ _:-][^\W\d_]{1,30}){0,3})[ ]?[%#]?\}{1,3}"
_TURN = (
    r"<[|｜]?(?:channel|im_start|start|start_header_id|role|recipient|message_role|start_of_turn|turn)[|｜]?>"
    r"[ ]?(?P<turn>[\w.= -]{0,40})|(?P<glued>assistant(?=final|analysis|commentary)|\A\s{0,9}(?:analysis"
    r"|commentary)(?=\w))"
)
_FENCE = r"(?P<fence>`{3,}|~{3,})[ ]?(?P<language>[\w+.-]{0,30})"
_COMMENT = r"(?P<comment><!--)"
MARK = rf"{_COMMENT}|{_TURN}|{_TAG}|{_SQUARE}|{_BRACES}|{_FENCE}"
MARK_BEGINS = rf"[{_OPENING}&\[{{`~]|assistant|\A"
"""How a match of `MARK` begins; tried first, since it is faster."""
_MARK = re.compile(rf"(?={MARK_BEGINS})(?:{MARK})", re.IGNORECASE)
_TURN_ENDS = re.compile(
    r"<[|｜]?(?:channel|im_start|start|start_header_id|start_of_turn|turn|end|im_end|eot_id|return|call|end_of_turn"
    r"|eom_id|end_header_id)[|｜]?>|assistant(?=final)",
    re.IGNORECASE,
)

THINKING = re.compile(
    r"(?<![^\W\d_])(?:think|thought|reason|reflect|scratch|ponder|mus(?:e|ing)s?(?![a-z])|deliberat|brainstorm"
    r"|monolog"
    r"|chain.?of|cot(?![a-z])|contemplat|cogit|ruminat|analy[sz]|ratiocinat|workings?(?![a-z])|rough|inner|internal"
    r"|draft|ideation|plann?(?:ing)?(?![a-z])|deduc|mind|contempl|meditat|speculat|introspect"
    r"|denk|gedank|überleg|nachdenk|entwurf|pens|razon|reflex|borrador|réfl|raison|brouillon|ragion|rifless"
    r"|racioc|мысл|размышл|рассужд|обдум|анализ|чернов|düşün|gondol|myśl|rozumow)"
    r"|(?:ante|un|ant|longcat_|mm:|seed:|self.?)th(?:ink|ought)|think(?:ing)?\b|思考|想法|推理|推敲|分析|思维|思路|草稿|考え|検討"
    r"|推論|추론|생각|사고|تفكير|سوچ|सोच|विचार",
    re.IGNORECASE,
)
"""Stems of names of reasoning."""
_ANSWER = re.compile(
    r"answer|final|output|response|result|scor|verdict|json|judge?ment|evaluat|assessment|rating|grad(?:e|ing)|reply"
    r"|return|submi|tool|function|call|invoke|param|argument|solution|conclusion|reward|antwort|ergebnis|bewertung"
    r"|respuesta|resultado|puntua|réponse|résultat|ответ|оценк|результат|答案|回答|结果|评分|结论|最终|解答|採点|정답",
    re.IGNORECASE,
)
"""Stems of names of answers."""
_GIVEN = re.compile(
    r"(?:tool|function|user|system|command|observation)s?[ _-]?(?:responses?|results?|outputs?|messages?|turn"
    r"|inputs?|prompt)|inst|sys|user"
    r"|(?:block)?quote|q|example|sample|template|old|previous|observation|(?:example|sample|draft|expected"
    r"|previous|old|last|earlier|reference|initial|first)[ _-](?:output|answer|response|reply)"
)
"""Names of tags around what a judge did not say, or not as its answer."""
_FORMATTING = {
    *(
        "a",
        "b",
        "i",
        "u",
        "s",
        "p",
        "br",
        "hr",
        "em",
        "strong",
        "div",
        "span",
        "pre",
        "code",
        "table",
        "thead",
        "tbody",
    ),
    *(
        "tr",
        "td",
        "th",
        "ul",
        "ol",
        "li",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "small",
        "sub",
        "sup",
        "html",
        "body",
        "section",
    ),
    *("im_start", "im_end", "eot_id", "eom_id", "eos", "bos", "endoftext", "end_of_text", "end_of_turn", "end"),
    *("begin_of_text", "start_header_id", "end_header_id", "message", "assistant", "model", "channel", "start", "turn"),
    *(
        "start_of_turn",
        "pad",
        "begin▁of▁sentence",
        "end▁of▁sentence",
        "end_of_sentence",
        "constrain",
        "eot",
        "eod",
        "done",
        "inst",
        "sys",
    ),
}
"""Names of tags that format text or end a turn, in lower case."""
_ANSWERING_TURNS = {"", "assistant", "model", "final", "ai", "bot", "assistant final", "answer", "response", "output"}
_EDGES = {"start", "begin", "open", "opening", "end", "close", "closing", "stop", "of", "the", "fin"}
_ENDS = {"end", "close", "closing", "stop", "fin", "done"}
_LINE_START = re.compile(r"[\s>*_#`~\-–—.:|]*\Z")
_LINE_END = re.compile(r"[ \t*_`~\-:]*(?:\n|\Z)")
_QUOTES = "`'\"“”‘’"


@dataclass(frozen=True, slots=True)
class Mark:
    """A tag in a reply."""

    kind: Literal["opens", "closes", "neutral", "fence", "text"]
    """"text" = it only looks like a tag."""
    name: str = ""


def read_mark(found: re.Match[str], labels: Collection[str]) -> Mark:
    """What a match of `MARK` is. `labels`, in lower case: names that may stand in brackets."""
    if found["comment"]:
        return Mark("opens", "comment")
    if found["turn"] is not None or found["glued"]:
        name = " ".join((found["turn"] or "").split()).casefold()
        if found["glued"]:
            name = "" if found["glued"].casefold() == "assistant" else "analysis"
            return (
                Mark("neutral") if not name and found.string.startswith("final", found.end()) else Mark("opens", "turn")
            )
        return Mark("neutral") if name in _ANSWERING_TURNS or not _has_letters(name) else Mark("opens", "turn")
    if found["fence"]:
        thinking = found["language"] and THINKING.search(found["language"])
        return Mark("opens", "fence") if thinking else Mark("fence")
    return _read_tag(found, labels)


def _read_tag(found: re.Match[str], labels: Collection[str]) -> Mark:
    name = found["name"] or found["name2"] or found["name3"]
    more = found["more"] or ""
    if "=" not in more and len(more.split()) <= 3:
        name += more
    name = name.replace("▁", "_").strip().casefold()
    words = re.findall(r"[^\W_]+", name)
    text, start, end = found.string, found.start(), found.end()
    fenced = text.startswith("``", end) or text.endswith("``", 0, start)
    if start > 0 and end < len(text) and text[start - 1] in _QUOTES and text[end] in _QUOTES and not fenced:
        return Mark("text")
    thinks = bool(THINKING.search(name))
    if not thinks and _GIVEN.fullmatch(name) and found["name3"] is None:
        slash = found["slash"] or found["slash2"]
        return Mark("closes" if slash and name not in ("inst", "sys") else "neutral" if slash else "opens", name)
    if not thinks:
        if name in labels or (found["name"] is None and any(word in labels for word in words)):
            return Mark("text")
        if found["name3"] or found["empty"] or name in _FORMATTING or _ANSWER.search(name):
            return Mark("neutral" if found["name3"] is None else "text")
        slash = found["slash"] or found["slash2"]
        if not slash and not _at_an_edge(text, start, end):
            return Mark("text")
    base = "thought" if thinks else " ".join(word for word in words if word not in _EDGES)
    closes = found["slash"] or found["slash2"] or found["slash3"] or {words[0], words[-1]} & _ENDS
    return Mark("closes" if closes else "opens", base)


def _at_an_edge(text: str, start: int, end: int) -> bool:
    """Whether a tag begins or ends its line; in square brackets, only whether it begins it."""
    before = text[max(0, start - 12) : start].rpartition("\n")
    begins = bool(_LINE_START.match(before[2])) and (bool(before[1]) or start <= 12)
    if text[start : start + 1] == "[":
        return begins and (text[start:end].isupper() or bool(_LINE_END.match(text, end)))
    return begins or bool(_LINE_END.match(text, end))


def _has_letters(name: str) -> bool:
    return any(character.isalpha() for character in name)


def end_of_thoughts(text: str, position: int, mark: Mark, labels: Collection[str]) -> int | None:
    """The position after thoughts that `mark`, which ends at `position`, opened; None = they are cut off."""
    if mark.name == "comment":
        end = text.find("-->", position)
        return None if end < 0 else end + 3
    if mark.name == "turn":
        ends = _TURN_ENDS.search(text, position)
        return None if ends is None else ends.start()
    depth = 1
    for found in _MARK.finditer(text, position):
        if mark.name == "fence":
            if found["fence"]:
                depth += 1 if found["language"] else -1
        elif not found["fence"]:
            inner = read_mark(found, labels)
            if inner.name == mark.name:
                depth += {"opens": 1, "closes": -1}.get(inner.kind, 0)
        if depth == 0:
            return found.end()
    return None


def without_tags(text: str, labels: Collection[str] = ()) -> str:
    """The text without tags that format it or end a turn."""

    def left(found: re.Match[str]) -> str:
        names = any(word in labels for word in re.findall(r"\w+", found[0].casefold()))
        return found[0] if names or read_mark(found, labels).kind != "neutral" else ""

    return _MARK.sub(left, text)


def begins_an_answer(text: str) -> bool:
    """Whether a tag in the text opens another answer."""
    for found in _MARK.finditer(text):
        name = found["name"] or ""
        if (
            name
            and not found["slash"]
            and _ANSWER.search(name)
            and not re.search("end|stop|close", name, re.IGNORECASE)
        ):
            return True
    return False
