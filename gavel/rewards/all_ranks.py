"""Groups whose members are spread over the processes of a training run, judged once.

    rewards = judge_on_all_ranks(read_mine, judge_groups)

Every rank reads its own members, all members are gathered, each rank judges its share of the groups, and every rank is
answered with the rewards of its own members. An error on one rank is raised on all, so that none waits for ever.
"""

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gavel.judge.errors import JudgeError

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Keyed:
    """A member, and the key that those of its group share."""

    key: Hashable
    member: Any


def groups_of(members: Sequence[Keyed], size: int | None) -> list[list[int]]:
    """Indices of the members of each group, in order.

    Members of one key are a group; when there are a multiple of `size`, as when a prompt was drawn twice, each run of
    `size` is.
    """
    by_key: dict[Hashable, list[int]] = {}
    for number, one in enumerate(members):
        by_key.setdefault(one.key, []).append(number)
    found: list[list[int]] = []
    for same in by_key.values():
        step = size if size and len(same) % size == 0 else len(same)
        found += [same[start : start + step] for start in range(0, len(same), step)]
    return found


def judge_on_all_ranks(
    read: Callable[[], Sequence[Keyed]], judge: Callable[[list[list[Any]]], list[list[R]]], *, size: int | None = None
) -> list[R]:
    """The results of this rank's members, in the order of `read`.

    `judge` is given groups of members, and gives a result for each. Without a process group of torch.distributed this
    process is the only rank. Raises what `read` or `judge` raised on any rank.
    """
    rank, ranks = _rank()
    read_here = _gathered(_outcome(read), ranks)
    members = [one for of_rank in read_here for one in of_rank]
    groups = groups_of(members, size)
    mine = range(rank, len(groups), ranks)
    judged = _gathered(_outcome(lambda: judge([[members[i].member for i in groups[number]] for number in mine])), ranks)
    results: dict[int, R] = {}
    for other, of_rank in enumerate(judged):
        for number, group in zip(range(other, len(groups), ranks), of_rank, strict=True):
            results.update(zip(groups[number], group, strict=True))
    before = sum(len(of_rank) for of_rank in read_here[:rank])
    return [results[before + number] for number in range(len(read_here[rank]))]


def _rank() -> tuple[int, int]:
    """This process's number, and how many there are."""
    if "torch.distributed" not in sys.modules:
        return 0, 1
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def _outcome(work: Callable[[], T]) -> T | Exception:
    """What it gives, or what it raises: the other ranks must be told."""
    try:
        return work()
    except Exception as error:
        return error


def _gathered(outcome: T | Exception, ranks: int) -> list[T]:
    """The outcomes of all ranks. Raises the first error among them."""
    if ranks == 1:
        outcomes: list[Any] = [outcome]
    else:
        from torch import distributed

        outcomes = [None] * ranks
        sent = JudgeError(f"{type(outcome).__name__}: {outcome}") if _is_unsendable(outcome) else outcome
        distributed.all_gather_object(outcomes, sent)  # pyright: ignore[reportUnknownMemberType]
    if isinstance(outcome, Exception):
        raise outcome
    for number, other in enumerate(outcomes):
        if isinstance(other, Exception):
            raise JudgeError(f"judging failed in process {number} of {ranks}: {other}") from other
    return outcomes


def _is_unsendable(outcome: object) -> bool:
    """Whether it is an error of a kind that another process may not be able to read."""
    return isinstance(outcome, Exception) and not isinstance(outcome, JudgeError)
