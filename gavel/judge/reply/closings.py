"""Closings: whether a sentence after the object leaves the scores as they are.

"K7QX is the best."  "I hope this helps!"  "Begründung: K7QX hat alles geprüft."    harmless
"Swap the first two."  "Done with the dry run."  "K7QX mérite moins."                not

What is said of the numbers has to be understood word by word. Of members anything may be told, as reasons are, unless
it ranks them otherwise (`opinions`), or has second thoughts.
"""

import re
from functools import cache

from gavel.judge.reply import vocabulary as say
from gavel.judge.reply.claims import ATTEMPTS, ORDINAL, Said
from gavel.judge.reply.clauses import named
from gavel.judge.reply.lexicon import common, entries, language, pattern, understood

_MEMBER_WORD = re.compile(
    r"\b(?:first|second|third|fourth|last|former|latter|both|others?|one|these|those|them|two|each|all)\b",
    re.IGNORECASE,
)

_LETTERS = re.compile(r"[^\W\d_]+(?:['’][a-z]+)?")

_DOUBTS = re.compile(
    r"\b(?:fix|real|actual|examples?|sample|placeholders?|rough|sketch|adjust|replace|once|proceed|correction|dry run"
    r"|provide|instead|start|draft|change|update|swap|attached|random|dummy|wrong|exempl|beispiel|ejempl|esempi"
    r"|inventad|aunque|erfunden|zufäll|provisional|пример|случайн|выдуман)|示例|例|随机|假|占位|仮|ダミー|虚构|编造|예시",
    re.IGNORECASE,
)
"""What a polite closing says of scores that are not meant."""


def is_understood(sentence: str) -> bool:
    """Whether a sentence is known to leave the scores as they are, word by word."""
    if pattern("unmeant", "meaning").search(sentence) or say.NUMBER_WORD.search(_COUNT_WORD.sub(" ", sentence)):
        return False
    words = [word.casefold() for word in _LETTERS.findall(sentence)]
    return all(len(word) == 1 or word in understood() or "'" in word or "’" in word for word in words)


def breaks_off(sentence: str) -> bool:
    """Whether a sentence at the end of a reply has no end."""
    ended = re.search(r"[.!?…。！？)\]}|>*_`\"'”;:\d-]$", sentence) or not sentence.isascii()
    return not ended and len(_LETTERS.findall(sentence)) > 5 and not (say.POLITE.search(sentence) or _is_list(sentence))


def corrects(sentence: str, said: Said) -> bool:
    mentions, bare = _without_members(sentence, said)
    if say.CORRECTS.search(bare) or (say.CORRECTS_ELSEWHERE.search(bare) and not is_plain_english(bare)):
        return True
    may = say.MAY_CORRECT.search(bare)
    return may is not None and (mentions > 1 or may.start() <= 2 or bool(say.SCORE_TALK.search(bare)))


@cache
def rationale_heading() -> re.Pattern[str]:
    """The heading of a section that gives reasons, or the word at the beginning of a sentence that does."""
    names = "|".join(sorted(map(re.escape, {word.rstrip("*") for word in entries("rationale")}), key=len, reverse=True))
    return re.compile(
        rf"(?<![\s#*_>-])[\s#*_>-]{{0,12}}(?:{names})[^\W\d_]{{0,4}}(?:[ ][^\W\d_]+){{0,3}}[\s*_]*(?:[:：]|[*_]*$)",
        re.IGNORECASE,
    )


def _harmless_elsewhere(sentence: str, said: Said, rationale: bool) -> bool:
    """Whether a sentence in a language other than English, after the object, gives reasons and nothing else."""
    if not rationale and language(said.mention.sub(" ", sentence)) is None:
        return False
    bare = rationale_heading().sub(" ", sentence)
    if pattern("revises", "interrupts", "rereads", "unmeant", "deserves", "own", "meaning").search(bare):
        return False
    if say.CORRECTS_ELSEWHERE.search(bare) or say.CORRECTS.search(bare) or say.NUMBER_WORD.search(bare):
        return False
    members = [one.label for one in named(sentence, said)]
    if not members:
        if pattern("not", "higher", "lower").search(bare):
            return rationale and not pattern("subject").search(bare)
        return rationale or bool(pattern("subject").search(bare) or re.search(r"\bscores?\b", bare, re.IGNORECASE))
    if any(label not in said.scores for label in members):
        return False
    if not rationale and set(members) != set(said.scores):
        return False
    scores = [said.scores[label] for label in dict.fromkeys(members)]
    shown = [label for label in said.scores if label in members]
    return scores == sorted(scores, reverse=True) or list(dict.fromkeys(members)) == shown


def takes_back(sentence: str, said: Said, *, rationale: bool = False, elsewhere: bool = False) -> bool:
    """Whether a sentence after the object corrects it, or cannot be understood.

    `rationale`: it is among reasons; `elsewhere`: it stands in a text in another language than English.
    """
    mentions, bare = _without_members(sentence, said)
    if not re.search(r"\w", bare):
        return False
    if rationale_heading().fullmatch(bare.strip()) or rationale_heading().fullmatch(bare.strip("#*_ :") + ":"):
        return False
    polite = say.POLITE.search(bare)
    farewell = mentions == 0 and say.FAREWELL.search(bare)
    if (polite or farewell) and (mentions or _DOUBTS.search(bare)):
        return True
    if polite and not re.match(r"(?:wait|oops|whoops|correct|actually|sorry)", bare, re.IGNORECASE):
        return False
    if farewell and not say.CORRECTS_ELSEWHERE.search(bare.partition(",")[0]):
        return False
    if (not mentions and _is_plain_closing(bare)) or (mentions == 1 and _PICKS_ONE.fullmatch(bare)):
        return False
    if (
        mentions
        and is_understood(_BUT.sub(" ", bare))
        and pattern("best", "worst", "better", "worse", "wins").search(bare)
    ):
        return bool(
            say.CORRECTS.search(bare)
            or say.MAY_CORRECT.search(bare)
            or re.search(r"\b(?:should|now|would|than (?:that|this|shown|given|stated))\b", bare)
        )
    english = is_plain_english(bare) or (rationale and not re.search(r"[^\W\d_a-zA-Z]", bare))
    if (elsewhere or not english) and not _is_list(sentence):
        return not _harmless_elsewhere(sentence, said, rationale)
    if corrects(sentence, said):
        return True
    if _is_list(sentence):
        return False
    if not mentions and len(_LETTERS.findall(bare)) <= 5 and not rationale and not is_understood(bare):
        return True
    about = mentions != 1 or say.SCORE_TALK.search(bare) or _MEMBER_WORD.search(bare)
    turns = say.MAY_TURN.search(bare)
    if (
        turns
        and not (rationale and turns[0].casefold() in ("not", "no", "n't", "but", "however"))
        and (turns.start() <= 2 or mentions > 1 or say.ABOUT_SCORES.search(bare))
        and bare[:3] not in ("No ", "no ")
    ):
        return True
    if about and say.MAY_CORRECT.search(bare):
        return True
    if say.NUMBER_WORD.search(_COUNT_WORD.sub(" ", bare)) and (mentions or say.SCORE_TALK.search(bare)):
        return True
    if not mentions and not rationale and not say.TOPIC.search(bare) and len(bare) > 4:
        return True
    if say.AS_GOOD.search(bare) and len(set(said.scores.values())) > 1:
        return True
    if say.ABOUT_SCORES.search(bare) and not say.HARMLESS_ABOUT_SCORES.search(bare):
        return True
    if say.FIRST_PERSON.search(bare) and not say.HARMLESS_FIRST_PERSON.search(bare):
        return True
    if mentions and not say.VERB.search(bare) and not said.mention.fullmatch(sentence.strip("*_ .:")):
        return True
    return bool(re.search(r"\bthan (?:that|this|shown|given|stated)\b", bare)) or not english


_PICKS_ONE = re.compile(
    r"(?:overall, |so |all in all, )?(?:I|we)(?:['’]d| would)? (?:pick|choose|prefer|favou?r|recommend)\s*"
    r"(?:overall|here)?\W*",
    re.IGNORECASE,
)
"""Without the member's name; `opinions` says whether it is the best one."""
_BUT = re.compile(r"\b(?:not|but|never|clearly|outperforms|beats|slightly|ahead|strongest|weakest)\b", re.IGNORECASE)


def _is_plain_closing(sentence: str) -> bool:
    """Whether a sentence that names no member is understood and compares nothing."""
    return is_understood(sentence) and not _COMPARES.search(sentence) and not re.search(r"[\d?/=]|:\s*$", sentence)


_COMPARES = re.compile(
    r"\b(?:first|second|third|last|both|others?|two|higher|lower|better|best|worse|worst|more|less|than|should"
    r"|equal|equally"
    r"|now|but|over|under|up|out|or|apart|highest|lowest|mean|means|stands?|represents?|denotes?|differs?|can"
    r"|could|may|might"
    r"|would|need|needed|want|such|like|once|when|if|find|get|gets|let|made|go|come|use|used|told|tell"
    r"|instructed|start|begin"
    r"|same|weighted|applied|apply|applying|sorted|right|correct|check|checked)\b",
    re.IGNORECASE,
)


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
        "in",
        "short",
        "overall",
        "final",
        "verdict",
        "decision",
    }


def _without_members(sentence: str, said: Said) -> tuple[int, str]:
    """How many members a sentence names, and the sentence without their names."""
    bare, labels = said.mention.subn(" ", sentence)
    bare, ordinals = ORDINAL.subn(" ", bare)
    return labels + ordinals, bare.strip()


_COUNT_WORD = re.compile(
    rf"\b(?:all|the|these|those|other|first|last|of|between)?\s*(?:two|three|four|five|six|seven|eight|nine|ten"
    rf"|half)\s+(?:\w+\s+){{0,2}}(?:{ATTEMPTS}|others?)\b"
    r"|\b(?:of the|all|the other) (?:two|three|four|five|six|seven|eight)\b"
    r"|zero to one|between zero and one",
    re.IGNORECASE,
)


def is_plain_english(sentence: str) -> bool:
    words = [word.casefold() for word in _LETTERS.findall(sentence)]
    if not sentence.isascii() and any(
        word and not word.isascii() and not re.fullmatch(r"[a-zà-ÿ'’]+", word) for word in words
    ):
        return False
    known = sum(word in common() for word in words)
    return known >= 0.3 * len(words)
