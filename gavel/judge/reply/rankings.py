"""Rankings: whether prose ranks members otherwise than their scores do.

"B3KD is the worst.", "W7QX > B3KD", "Best to worst: W7QX, B3KD", "I would pick W7QX."
"""

import re

from gavel.judge.reply.claims import Said

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
_RANKS = re.compile(
    r"\brank(?:ing|ed|s)?\b|best (?:to|first|at)|from best|in order\b|1st\b|\bplaces?\b|\bpodium\b|followed by|>|🥇"
    r"|rangfolge|reihenfolge|clasificación|classement|рейтинг|排名|排序|順位",
    re.IGNORECASE,
)
_WORST_FIRST = re.compile(r"worst (?:to|first)|from worst|ascending|lowest first|weakest (?:to|first)", re.IGNORECASE)
_PICKS = re.compile(
    r"(?P<best>(?<!to )\b(?:best|strongest|winner|top|favou?rite)\b(?!\s+(?:to|first|part|thing))"
    r"|\b(?:pick|choose|prefer|favou?r|recommend)\b|最好|最佳)"
    r"|(?P<worst>(?<!to )\b(?:worst|weakest|loser)\b(?!\s+(?:to|first|part|thing)))",
    re.IGNORECASE,
)
_NAMES = re.compile(
    r"^(?:[ ]+(?:attempt|trajectory|one|candidate|answer|response|overall|of (?:all|these|them|the \w+)))*"
    r"的?[\s*_`]*(?:is|are|was|would be|goes to|:|=|是|为|-)?[\s*_`]*(?:clearly |still |trajectory |attempt )*$",
    re.IGNORECASE,
)


def ranks_otherwise(sentence: str, said: Said) -> bool:
    """Whether a sentence ranks members against their scores: "B3KD is the worst", "W7QX > B3KD"."""
    found = [(match.start(), match.end(), match[0].casefold()) for match in said.mention.finditer(sentence)]
    scores = said.scores
    highest, lowest = max(scores.values()), min(scores.values())
    if _lists_otherwise([name for _, _, name in found], sentence, said):
        return True
    for index, (start, end, name) in enumerate(found):
        if name not in scores:
            continue
        extreme = _named_as(sentence[max(0, start - 60) : start])
        if extreme and scores[name] != (highest if extreme == "best" else lowest):
            return True
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


def _named_as(before: str) -> str | None:
    """ "best" or "worst" when the text before a name calls its member so."""
    picks = list(_PICKS.finditer(before))
    if not picks or not _NAMES.match(before[picks[-1].end() :]) or re.search(r"\bnot\b|n['’]t|second|next", before):
        return None
    return picks[-1].lastgroup


def _lists_otherwise(names: list[str], sentence: str, said: Said) -> bool:
    """Whether a sentence that ranks all members lists them in another order than their scores."""
    names = list(dict.fromkeys(names))
    if len(names) < max(2, len(said.scores)) or not _RANKS.search(sentence) or "<" in sentence:
        return False
    scores = [said.scores[name] for name in names if name in said.scores]
    return scores != sorted(scores, reverse=not _WORST_FIRST.search(sentence))
