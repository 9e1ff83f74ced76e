"""Agreement between the orders of a group: how often two of them rank two members alike.

    order_agreement([{0: 0.9, 1: 0.1}, {0: 0.1, 1: 0.9}])      -1.0: what is shown first wins
    order_agreement([{0: 0.9, 1: 0.1}, {0: 0.7, 1: 0.2}])      1.0

It is Kendall's tau between two orders, over all of them together, of the members that both tell apart.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from gavel.judge.panel.ballot import Ballot


def order_agreement(orders: Iterable[Mapping[int, float]]) -> float | None:
    """From -1 (each two orders contradict each other) to 1, by the scores of each order; None = no two of them tell the
    same two members apart."""
    above: Counter[tuple[int, int]] = Counter()
    for scores in orders:
        for one, other in combinations(sorted(scores), 2):
            if scores[one] != scores[other]:
                above[(one, other) if scores[one] > scores[other] else (other, one)] += 1
    alike = sum(times * (times - 1) // 2 for times in above.values())
    opposed = sum(times * above.get((other, one), 0) for (one, other), times in above.items()) // 2
    return (alike - opposed) / (alike + opposed) if alike + opposed else None


def agreement_of(ballots: Sequence[Ballot]) -> float | None:
    """The agreement of the ballots that were answered."""
    return order_agreement(
        {member: scored.score for member, scored in ballot.scores.items()} for ballot in ballots if ballot.scores
    )
