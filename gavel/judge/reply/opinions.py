"""Opinions: how a text ranks members, and whether their scores agree.

"B3KD is the worst."                  B3KD has the lowest score
"W7QX > B3KD", "W7QX beats B3KD"      W7QX has no lower score than B3KD
"W7QX failed. B3KD solved it."        W7QX has no higher score than B3KD
"Better than both others."            in the explanation of a member: it has the highest score
"""

import re
from collections import defaultdict
from collections.abc import Iterable

from gavel.judge.reply.claims import ORDINAL, Said
from gavel.judge.reply.clauses import ORDINAL_WORD, UNSPACED, WORD, Clause, clauses, denied
from gavel.judge.reply.comparisons import (
    ONLY_IN_PART,
    OTHERS,
    beside_others,
    compares_subject_wrongly,
    compares_wrongly,
)
from gavel.judge.reply.lexicon import Words, pattern, source
from gavel.judge.reply.praise import FILLERS, verdict_of, verdicts_contradict

_NOT_THE_ONE = re.compile(
    r"\b(?:second|third|next|one of|among|amongst|nearly|almost|near|close to|zweit\w*|segund\w*|deuxième"
    r"|secondo|втор\w*"
    r"|at|to|its|their|his|the user's|a)\W*$|第二|次|之一",
    re.IGNORECASE,
)
_PLACE = re.compile(
    r"^\W*(?:rank(?:ed|s)?|place[ds]?|position|rang|platz|puesto|rango|место)\W{0,3}#?(\d{1,2})(?:st|nd|rd"
    r"|th)?\b(?![.,]\d)"
    r"(?=\W*(?:$|of|/|out|von|de|из|in|overall|\())|^\W*#(\d{1,2})(?=\W*(?:$|of|in|overall|/))|^\W*(\d)(?:st|nd"
    r"|rd|th)(?: place| of|\W*$)|^\W*(?:ranks? |ranked |finishes |comes )?(first|second|third|fourth|fifth"
    r"|sixth|last)(?: place)?(?: out)? of (?:the |all )?"
    r"(?:\d|two|three|four|five|six|seven|eight|lot|group|pack)|^\W*(?:ranks?|ranked|finishes|comes(?: in)?)"
    r" (first|second|third|fourth|fifth|last)\W*$"
    r"|^\W*第?(\d)\s?(?:位|名|위|등)\W*$",
    re.IGNORECASE,
)
"""The place of a member in the ranking, the best being 1."""
_NTH = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
_EXTREME = re.compile(
    r"\bthe (?P<edge>highest|lowest|top|best|worst|poorest) (?:score|mark|rating|grade)\b", re.IGNORECASE
)
_OTHERS_ARE = re.compile(
    r"^\W*(?:everyone else|everybody else|all (?:the )?(?:other\w*|rest)|both (?:the )?others|every other \w+"
    r"|the (?:others|rest))"
    r"(?: (?:are|is|did|do|does|were|was|performed|perform|all|clearly|much|far)){0,3} (?P<how>\w+)\W*$",
    re.IGNORECASE,
)
_PICKED = re.compile(
    r"\b(?:I|we)(?:['’]d|['’]ll| would| will)? (?:\w+ )?(?:pick|choose|prefer|favou?r|recommend|select|vote"
    r" for)\b(?!.*\bnot\b)"
    r"|\bmy (?:top )?(?:pick|choice|favou?rite)\b",
    re.IGNORECASE,
)
_FOLLOWS_A_RANK = (
    r"(?=\W*$|\W+(?:is|was|are|ist|war|es|est|é|è|era|było|jest)\W*$|\W+(?:of|by|because|since|as|for|in|and"
    r"|overall|here|so|so far|with|at|on|than|to|thanks|due"
    r"|von|der|des|de|du|des|del|di|из|в|weil|da|porque|car|perché|что|так)(?![^\W_]))"
)


_AND_THE_OTHER = re.compile(r"\W*(?:did|does|has|was|is)(?: not|n['’]t)\W*", re.IGNORECASE)
"""What "W7QX solved the task" is followed by: "B3KD did not"."""
_ONLY = re.compile(r"\W*only\W", re.IGNORECASE)
_ONLY_ONE = re.compile(
    r"\bthe only (?:one|attempt|trajectory|candidate|run|answer|response)(?: of \w+(?: \w+)?)? (?:that|which|who|to)"
    r" (?:(?P<best>(?:actually |fully |really )?(?:works?|worked|succeed\w*|pass(?:es|ed)?|delivers?|delivered"
    r"|(?:solve|complete|finish|do)(?:s|d|ed|es)? (?:it|the \w+)))|(?P<worst>fail(?:s|ed)?|broke|breaks))\W*$",
    re.IGNORECASE,
)
_ONLY_GOOD = re.compile(
    r"\bthe only (?:(?P<best>good|strong|successful|correct|acceptable|decent|working|convincing|complete|proper)"
    r"|bad|weak|poor|failed|failing|wrong|incorrect|unsuccessful)"
    r" (?:one|attempt|trajectory|candidate|run|answer|response)\b",
    re.IGNORECASE,
)
_LEAVES_BEHIND = re.compile(
    r"\bleaves? (?:both |all |the )*(?:of )?(?:the )?(?:others?|other \w+|rest|field|competition) (?:\w+ )?"
    r"(?:behind|in the dust)\b",
    re.IGNORECASE,
)
_NEAR_AN_EDGE = re.compile(
    r"\b(?:scor|rat|rank|put|plac|grad)\w* (?:this|it)?(?: one| attempt)?\s?(?:somewhere |right )?(?:near|at|close to"
    r"|towards?) the (?:very )?(?P<edge>top|bottom)\W*$",
    re.IGNORECASE,
)


def contradiction(text: str, said: Said, subject: str = "", parts: Iterable[Clause] | None = None) -> str:
    """The clause by which a text contradicts the scores; empty = none. `subject`: whose explanation the text is.
    `parts`: the clauses of the text, where they are known.

    "Trajectory 1" may be the first one shown or the first entry: a contradiction is one in both readings.
    """
    found = _contradiction(text, said, subject, clauses(text, said, subject) if parts is None else parts)
    if found and list(said.scores) != list(said.listed) and (ORDINAL.search(text) or ORDINAL_WORD.search(text)):
        said = said.as_listed()
        return _contradiction(text, said, subject, clauses(text, said, subject))
    return found


def _contradiction(text: str, said: Said, subject: str, parts: Iterable[Clause]) -> str:
    scores = said.scores
    if len(scores) < 2 or not text.strip():
        return ""
    found, told = defaultdict[str, list[int]](list), ("", 0)
    for clause in parts:
        if _ranks_wrongly(clause, said):
            return clause.text.strip() or clause.member.upper()
        level = verdict_of(clause)
        if level is None and told[0] not in ("", clause.member) and _AND_THE_OTHER.fullmatch(clause.text):
            level = -told[1]
        if level is not None:
            found[clause.member].append(level)
            told = clause.member, level
    if not subject:
        for sentence in re.split(r"(?<=[.!?])\s+|\n+|[。！]", text):
            if wrong := compares_wrongly(sentence, said):
                return wrong
    return verdicts_contradict({name: own for name, own in found.items() if name in scores}, said)


def _ranks_wrongly(clause: Clause, said: Said) -> bool:
    scores, member = said.scores, clause.member
    if member not in scores:
        return False
    lowest, highest, own = min(scores.values()), max(scores.values()), scores[member]
    if clause.names - {member}:
        return clause.own and compares_subject_wrongly(clause.text, said, member)
    elsewhere = _OTHERS_ARE.search(clause.text) if clause.own else None
    if elsewhere and pattern("better").search(elsewhere["how"]):
        return own != lowest
    if elsewhere and pattern("worse").search(elsewhere["how"]):
        return own != highest
    if clause.own and _PICKED.search(clause.text):
        return own != highest
    if (edge := _NEAR_AN_EDGE.search(clause.text)) and not denied(clause.text, edge.start()):
        return lowest < highest and own == (lowest if edge["edge"].casefold() == "top" else highest)
    if (leaves := _LEAVES_BEHIND.search(clause.text)) and not denied(clause.text, leaves.start()):
        return own != highest
    if only := _ONLY_ONE.search(clause.text) or _ONLY_GOOD.search(clause.text):
        return not denied(clause.text, only.start()) and own != (highest if only["best"] else lowest)
    if not clause.own and _ONLY.match(clause.text) and (level := verdict_of(clause)):
        return own != (highest if level > 0 else lowest)
    if re.search(r"\b(?:if|would|could|might)\b", clause.text):
        return False
    scored = _EXTREME.search(clause.text)
    if scored and not clause.own and not denied(clause.text, scored.start()):
        return own != (lowest if re.match("low|worst|poor", scored["edge"], re.IGNORECASE) else highest)
    if clause.own and (place := _PLACE.search(clause.text)):
        above = sum(score > own for score in scores.values())
        said_place = next(filter(None, place.groups())).casefold()
        if said_place == "last":
            return own != lowest
        number = _NTH.index(said_place) + 1 if said_place in _NTH else int(said_place)
        return not above < number <= sum(score >= own for score in scores.values())
    rank = _rank(clause.text, clause.own)
    if (rank == "best" and own != highest) or (rank == "worst" and own != lowest):
        return True
    if rank == "not best" and own == highest and list(scores.values()).count(highest) == 1 and not clause.own:
        return True
    if rank == "not worst" and own == lowest and list(scores.values()).count(lowest) == 1 and not clause.own:
        return True
    others = OTHERS.search(clause.text)
    if others and not ONLY_IN_PART.search(clause.text[others.end() :]):
        above, below = beside_others(clause.text, "better"), beside_others(clause.text, "worse")
        if (above and own != highest) or (below and own != lowest):
            return True
    return _deserves_otherwise(clause, own, lowest, highest)


def _deserves_otherwise(clause: Clause, own: float, lowest: float, highest: float) -> bool:
    deserves = pattern("deserves").search(clause.text)
    if not deserves:
        return False
    rest = clause.text[deserves.end() :]
    if re.search(r"最高|highest|top score|top mark|full marks|le plus haut|más alt|höchste", rest, re.IGNORECASE):
        return own != highest
    if re.search(r"最低|lowest|niedrigste|más baj|le plus bas", rest, re.IGNORECASE):
        return own != lowest
    moved = pattern("higher", "lower").search(clause.text)
    if not moved:
        return False
    if UNSPACED.search(clause.text):
        return len(clause.text.strip()) <= 16
    words = [word.casefold() for word in WORD.findall(rest) if not pattern("higher", "lower").fullmatch(word)]
    return len(words) <= 5 and all(word in FILLERS or word in _MOVES for word in words)


_MOVES = frozenset(
    {
        *("be", "spot", "rank", "ranked", "ranking", "place", "placed", "score", "scored", "scores", "rate"),
        *("rated", "grade", "graded", "mark", "marked", "credit", "points", "point", "than", "get", "receive"),
        *("have", "been", "put", "listed", "above", "below", "up", "down", "in", "the", "to", "for", "tener"),
        *("puntos", "puntuación", "estar", "ser", "haben", "werden", "bewertet", "punkte", "stehen", "sein"),
        *("être", "avoir", "noté", "plus", "moins", "ter", "pontos", "avere", "punti", "essere", "быть"),
        *("стоять", "балл", "баллов", "оценка", "оценку", "hebben", "staan", "punten", "mieć", "punktów"),
        *("trajectory", "attempt", "this", "that", "it", "one"),
    }
)


def _rank(text: str, own: bool) -> str | None:
    """Whether a clause calls its member the best or the worst."""
    for rank in ("best", "worst") if pattern("best", "worst").search(text) else ():
        for found in pattern(rank).finditer(text):
            before, after = text[: found.start()], text[found.end() :]
            if _NOT_THE_ONE.search(before) or re.search(r"\bthan\b.{0,6}$", before):
                continue
            is_denied = denied(text, found.start())
            if UNSPACED.search(found[0]):
                whole = len(text.strip()) <= len(found[0]) + (6 if own else 12) or pattern("attempt").search(text)
                if not whole:
                    continue
            elif (
                not _AFTER_A_RANK.match(after)
                or (own and not _begins(before))
                or (not own and len(WORD.findall(before)) > 6)
                or (own and re.match(r"\W+(?:for|in|at|with|by|to)\b", after))
            ):
                continue
            return f"not {rank}" if is_denied else rank
    if own:
        return None
    if wins := _beside(text, "wins"):
        return "not best" if denied(text, wins.start()) else "best"
    if loses := _beside(text, "loses"):
        return "not worst" if denied(text, loses.start()) else "worst"
    return None


def _beside(text: str, concept: str) -> re.Match[str] | None:
    """A verb that makes a winner, when the clause is hardly more than it and what follows."""
    found = pattern(concept).search(text)
    if not found:
        return None
    before = [word.casefold() for word in WORD.findall(text[: found.start()])]
    if len(before) > 3 or not all(word in _BEFORE_A_RANK for word in before):
        return None
    after = text[found.end() :]
    return (
        found
        if re.match(_FOLLOWS_A_RANK, after, re.IGNORECASE) or (UNSPACED.search(found[0]) and len(after) < 4)
        else None
    )


_FILLERS = r"(?:of|the|all|my|these|those|overall|single|von|der|den|de|los|las|les|des|tous|из|in|these|its)"
_AFTER_A_RANK = Words(lambda plain: rf"{_FOLLOWS_A_RANK}|(?:\W+{_FILLERS}){{0,2}}\W+{source('attempt', plain=plain)}")


def _begins(before: str) -> bool:
    """Whether hardly anything stands before a rank in its clause: "The clearly best attempt", not "It found"
    " the best"."""
    words = [word.casefold() for word in WORD.findall(before)]
    return len(words) <= 4 and all(word in _BEFORE_A_RANK for word in words)


_BEFORE_A_RANK = frozenset(
    [
        "the",
        "this",
        "that",
        "is",
        "was",
        "by",
        "far",
        "clearly",
        "overall",
        "easily",
        "simply",
        "probably",
        "definitely",
        "obviously",
        "therefore",
        "so",
        "thus",
        "hence",
        "still",
        "attempt",
        "trajectory",
        "one",
        "run",
        "and",
        "makes",
        "it",
        "made",
        "remains",
        "ranks",
        "ranked",
        "comes",
        "performs",
        "performed",
        "did",
        "as",
        "der",
        "die",
        "das",
        "dieser",
        "ist",
        "klar",
        "el",
        "la",
        "los",
        "es",
        "este",
        "lo",
        "le",
        "les",
        "c'est",
        "est",
        "cette",
        "o",
        "a",
        "é",
        "il",
        "lo",
        "è",
        "это",
        "самый",
        "самая",
        "самое",
        "in",
        "my",
        "view",
        "arguably",
        "not",
        "never",
        "should",
        "must",
        "comes",
        "ranks",
        "places",
        "finishes",
        "ended",
        "ends",
        "response",
        "answer",
        "candidate",
        "solution",
        "worst",
        "best",
        "actually",
        "in",
        "fact",
        "really",
        "mit",
        "abstand",
        "deutlich",
        "claramente",
        "nettement",
        "clairement",
    ]
)
