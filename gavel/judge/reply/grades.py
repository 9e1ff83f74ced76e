"""Grades: numbers that a judge gives a member in its explanation, which have to be its score.

"Refunded too early, so I give it 0.4."       another score than the entry's own
"4/10 because it refunded first."             a number that is a clause of its own
"The agent said 5, then 7; a tool said 0.3"   about the agent's work: any number may stand there
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from gavel.judge.reply import vocabulary as say
from gavel.judge.reply.claims import Said

_LONG = 300
"""Characters of a sentence that may be nothing but a grade."""


def gives_another_score(text: str, said: Said, label: str) -> bool:
    """Whether an explanation gives its member another number than its score."""
    return bool(
        _gives_another(text, said, label) or _holds_another(text, said, label) or _grades_otherwise(text, said, label)
    )


QUOTED = re.compile(r"\"[^\"\n]{0,400}\"|“[^”\n]{0,400}”|«[^»\n]{0,400}»|「[^」\n]{0,400}」|„[^“”\n]{0,400}[“”]")

_SENTENCES = re.compile(r"(?<=[.!?;])\s+|(?<=[。！？；])|\n+")
_DIGIT = re.compile(r"\d")


@lru_cache(maxsize=64)
def unquoted(text: str) -> str:
    """The text without what it quotes."""
    return QUOTED.sub(" ", text)


@lru_cache(maxsize=64)
def unquoted_sentences(text: str) -> Sequence[str]:
    """The sentences of a text without what it quotes; several checks read the same text one after the other."""
    return _SENTENCES.split(unquoted(text))


_N = (
    r"(?P<n>[01]?[.,]\d{1,4}(?![\d%/])|[01](?=\s*(?:[.,;!)]?\s*$|[.,;!)]\s|(?:for|because|since|overall)\b)))"
    r"(?!\s?(?:[%$€£]|/|(?:s|ms|sec\w*|kg|km|h|min\w*|percent|usd|eur|dollars?|euros?|of|out)\b))"
)

_OWN_SCORES = re.compile(
    r"(?:^|[.;!?:\n—–]\s*)(?:so |thus |hence |therefore,? |edit:? )?(?:(?:my|final|overall|total|resulting"
    r"|correct|new) )*"
    rf"(?:score|rating|grade|mark|verdict)\s{{0,2}}(?:is|of|[:=→-]|now)?\s{{0,2}}{_N}(?=\s*(?:[.,;!)]|$|for\b"
    rf"|because|since|due))"
    r"|\bI(?:['’](?:d|ll|ve|m)| would| will)? (?:\w+ ){0,2}(?:give|gave|assign|assigned|rate|rated|score|scored|go with"
    r"|going with|went with|settled? (?:on|at|for)|put|set|grade|graded|award|awarded|landed? (?:on|at))\b"
    rf"[^.!?;:\"\d]{{0,30}}?{_N.replace('?P<n>', '?P<n1>')}"
    r"|(?:\bI\b[^.!?;\"]{0,60}|\bbut )\b(?:lower|rais|reduc|dropp|bring|brought|cut|capp|bump|mov|adjust|chang"
    r"|revis|correct)\w* "
    rf"(?:it |this |that |them |the score )?(?:\w+ )?(?:to|at) {_N.replace('?P<n>', '?P<n2>')}"
    rf"|\b(?:caps|limits|brings|lowers|drops|puts) (?:it|this|that|the score) (?:\w+ )?(?:to"
    rf"|at) {_N.replace('?P<n>', '?P<n3>')}"
    rf"|(?:给|給|打|评|評|得)(?:予|了|它|其|出)?\s?{_N.replace('?P<n>', '?P<n4>')}\s?分"
    rf"|(?:评分|得分|分数|評分|スコア|得点|点数)(?:为|是|應為|应为|は|[:：])\s?{_N.replace('?P<n>', '?P<n5>')}"
    r"|\b(?:daher|deshalb|also|somit|macht|folglich|insgesamt)(?: nur| noch)? "
    rf"{_N.replace('?P<n>', '?P<n6>')}\s?Punkte?\b"
    r"|\b(?:gebe|vergebe) (?:ich )?(?:\w+ ){0,3}" + _N.replace("?P<n>", "?P<n7>") + ""
    r"|\b(?:pongo|doy|asigno|otorgo|dou|atribuo|assegno|attribuisco|gli do)\b[^.;\d]{0,25}?"
    + _N.replace("?P<n>", "?P<n8>")
    + r"|\b(?:je (?:lui )?(?:mets|donne|note)|j['’](?:attribue|accorde))\b[^.;\d]{0,25}?"
    + _N.replace("?P<n>", "?P<n9>")
    + r"|\b(?:ставлю|оцениваю|даю|присваиваю|выставляю)\b[^.;\d]{0,20}?"
    + _N.replace("?P<n>", "?P<n10>")
    + r"|"
    + _N.replace("?P<n>", "?P<n11>")
    + r"\s?[点점](?:とする|とした|とします|をつけ|を付け|が妥当|にする|을 (?:준|부여|매))",
    re.IGNORECASE,
)
"""A score that the judge gives in its own name."""

_UNMEANT = re.compile(r"\b(?:would have|if|had it|otherwise|might have|could have)\b", re.IGNORECASE)

_OBJECT = re.compile(r"\{[^}]{1,300}\}")

_OBJECT_SCORE = re.compile(
    r"[\"']?(?:final_?)?(?:score|rating)[\"']?\s*:\s*[\"']?(?P<n>\d{0,3}[.,]?\d+)", re.IGNORECASE
)

_CORRECTED = re.compile(
    r"\b(?:correct(?:ed|ion)|revised?|updated?|final|actual|real|new|proper|my|amended|should be"
    r"|instead)\b[^.!?{}]{0,30}$",
    re.IGNORECASE,
)


def explains_otherwise(text: str, said: Said, label: str | None) -> str:
    """What is wrong with a text: it says that the score should be another one."""
    for found in say.EXPLAINS_OTHERWISE.finditer(text):
        if not said.are(float(found["n"].replace(",", ".")), label):
            return f'an explanation gives another score ("{found[0]}")'
    return ""


_BARE_GRADE = re.compile(
    r"(?:^|[.;:!?]\s+|\n)\W{0,3}(?P<n>\d{1,3}(?:[.,]\d{1,4})?)\s?(?:(?:/|out of|of|von|de|sur"
    r"|из)\s?(?P<of>\d{1,4})|(?P<percent>[%％]))?"
    r"(?P<unit>\s?(?:stars?|points?|pts?|punkte?|puntos?|étoiles?|sterne?))?(?=\s*(?:$|[.;:!,)—–](?!\d)|-\s"
    r"|\s[-—–]|because\b"
    r"|since\b|overall\b|as it\b|would be\b|is (?:fair|right|enough|appropriate|more|too)|seems))"
    r"|(?:^|,|\bso|\bhence|\bthus)\s+(?P<n2>\d{1,3}(?:[.,]\d{1,4})?)\s?/\s?(?P<of2>5|10|100)(?=\s*(?:$|[.;!]"
    r"|because\b|since\b|overall\b))",
    re.IGNORECASE,
)
"""A number that is a clause of its own, as a grade is: "4/10 because it refunded first"."""


def _grades_otherwise(text: str, said: Said, label: str) -> bool:
    for found in _BARE_GRADE.finditer(unquoted(text)) if _DIGIT.search(text) else ():
        number = float((found["n"] or found["n2"]).replace(",", "."))
        whole = found["of"] or found["of2"]
        if whole:
            number = number / float(whole) if float(whole) else -1.0
        elif found["percent"]:
            number /= 100
        elif number > 1 or (number == int(number) and not found["unit"]):
            continue
        if not said.are(number, label):
            return True
    for sentence in unquoted_sentences(text):
        if len(sentence) > _LONG:
            continue
        if _DIGIT.search(sentence):
            hedged = _HEDGED.fullmatch(sentence.strip())
            if hedged and not said.are(float(hedged["n"].replace(",", ".")), label):
                return True
            told = _OF_THE_SCORE.match(sentence) or _LOWERED.match(sentence)
            if told and not said.are(float(told["n"].replace(",", ".")), label):
                return True
        word = _NOUGHT.fullmatch(sentence.strip())
        if (word and not said.are(0, label)) or _IN_WORDS.fullmatch(sentence.strip()):
            return True
    return False


_OF_THE_SCORE = re.compile(
    r"^\W*(?:(?:the|its|my|this|own|final|overall|hence|so|thus|therefore) ){0,3}(?:scores?|rating|grade"
    r"|mark)\b(?! (?:the|that|of the"
    r" (?:user|tool|agent|game|essay|model|test)))[^.;\d]{0,40}(?P<n>[01]?[.,]\d{1,3}|[01])(?![\d.,]\d"
    r"|\s?[%/€$])(?=\W*(?:$|after|because|since|due|for|as|on|in|\())",
    re.IGNORECASE,
)

_HEDGED = re.compile(
    r"\W*(?:(?:probably|maybe|perhaps|about|around|roughly|say|i['’]?d|i would|i|so|thus|hence|rather|more like"
    r"|closer to|at best|at most"
    r"|only|just|a|an|give|it|go|with|now|then|well|call|this|is|or|no more than|vielleicht|eher|etwa|quizás"
    r"|plutôt|talvez|forse"
    r"|скорее|大概|约|約)\W+){1,6}(?P<n>[01]?[.,]\d{1,3})\W*(?:(?:at most|at best|or so|overall|then|instead|tops"
    r"|maybe|perhaps)\W*)?",
    re.IGNORECASE,
)
"""A short sentence that gives a number and nothing else."""
_NUMBER_WORDS = r"(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|half)"

_IN_WORDS = re.compile(
    rf"\W*{_NUMBER_WORDS} (?:out of|of|over) (?:five|ten|hundred|a hundred|one hundred|5|10|100)\b.*"
    rf"|\W*{_NUMBER_WORDS} (?:stars?|points?)\W*"
    rf"|\W*(?:zero|nought) point {_NUMBER_WORDS}\W*",
    re.IGNORECASE,
)

_LOWERED = re.compile(
    r"^\W*(?:(?:heavily|slightly|therefore|hence|so|thus) )?(?:marked|docked|reduced|capped|lowered|dropped|cut"
    r"|raised|bumped|brought|limited"
    r"|adjusted|moved)(?: down| up| back)? (?:to|at) (?P<n>[01]?[.,]\d{1,3}|[01])(?![\d.,]\d|\s?[%€$]|\s?(?:mm"
    r"|cm|m|s|kg|usd|eur)\b)",
    re.IGNORECASE,
)

_NOUGHT = re.compile(r"\W*(?:zero|nil|nought|null|cero|zéro|ноль|零分|0分|零点)(?: points| marks)?\W*", re.IGNORECASE)


_SCORE = re.compile(_N, re.IGNORECASE)
"""What each form of a judge's own score holds."""


def _gives_another(text: str, said: Said, label: str) -> bool:
    for sentence in unquoted_sentences(text):
        if not _SCORE.search(sentence) or _UNMEANT.search(sentence):
            continue
        numbers = [
            next(filter(None, found.groups()))
            for found in _OWN_SCORES.finditer(sentence)
            if not said.mention.search(found[0])
            and not (found["n2"] and not re.search(r"\bI\b", sentence[: found.start() + 2]))
        ]
        if numbers and not said.are(float(numbers[-1].replace(",", ".")), label):
            return True
    return False


def _holds_another(text: str, said: Said, label: str) -> bool:
    """Whether JSON in the text gives a member another score. An agent knows no labels."""
    for found in _OBJECT.finditer(text):
        number = _OBJECT_SCORE.search(found[0])
        named = said.mention.search(found[0])
        if not number or not (named or _CORRECTED.search(text[max(0, found.start() - 60) : found.start()])):
            continue
        name = named[0].casefold() if named else label
        if not said.are(float(number["n"].replace(",", ".")), name):
            return True
    return False
