"""Modes of judging: what a juror is shown, what it is asked for, and how its answers become scores.

A mode is a class with a `schedule`, a form of reply (`request`, `schema`, `read`) and an `aggregate`. All modes show
the same transcripts. To add one, write a class here and name it in `choose_mode` and in `ModeName`.

    orders(3, 2, "seed")                  two orders of the group, the second the reversal of the first
    group_schedule(20, [2], "seed")       2 rounds for one juror, each with every member once, in blocks of at most 8
    pair_schedule(4, [2], "seed")         every pair twice, once in each order

Judges favour positions, and score a member by the one before it, so both are balanced: over an even number of orders
every member has the same mean position. The same seed gives the same schedule.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Any, ClassVar, Literal

from gavel.judge.errors import JudgeError
from gavel.judge.panel import aggregate
from gavel.judge.panel.aggregate import Answer, Scores
from gavel.judge.panel.bradley_terry import pairwise
from gavel.judge.panel.standard_errors import NoisePrior
from gavel.judge.prompt.sanitize import sanitize
from gavel.judge.reply import readout
from gavel.judge.reply.distribution import read_decisions
from gavel.judge.reply.verdict import Verdict, ids_to_score, read_scores, reply_schema
from gavel.judge.rubric import Rubric
from gavel.llm.decisions import MOST_LEVELS, MOST_QUESTIONS, score_question
from gavel.llm.response import LOGPROBS as PARAMS
from gavel.llm.types import Schema, Wire
from gavel.prompts import render

ModeName = Literal["groupwise", "pairwise", "decisions", "readout"]
"""The modes that a user may choose; anchors make "groupwise" "anchored"."""


LARGEST_WHOLE = 10
"""A group of up to this many members is shown whole; a larger one in blocks, since a judge reads a long prompt worse
than a short one."""
BLOCK = 8
"""Members of a block, at most."""
OPPONENTS = 8
"""Members that each member is compared with in pairs, or all where they are fewer: all pairs up to 9 members."""

Schedule = list[list[tuple[int, ...]]]
"""For each juror, the members that each of its calls shows, in order."""


def orders(members: int, count: int, seed: str) -> list[tuple[int, ...]]:
    """`count` orders of `range(members)`: rows of a Williams square, each followed by its reversal.

    In the n rows of a square over an even n, every member has each position once, and follows each other member once
    (Williams 1949). Two squares, mirrors of each other, do so for an odd n: each follows each other twice in 2n rows.
    Fewer orders take rows evenly spread over the square; more begin another one, with a new shuffle.
    """
    random = Random(seed)
    zigzag = [(step + 1) // 2 * (1 - 2 * (step % 2)) for step in range(members)]  # 0, -1, 1, -2 …: differences differ
    square = members if members % 2 else members // 2  # rows without their reversals
    pairs = (count + 1) // 2
    rows: list[tuple[int, ...]] = []
    while len(rows) < count:
        shuffled = random.sample(range(members), members)
        turns = max(1, min(square, pairs - len(rows) // 2))
        for turn in range(turns):
            row = tuple(shuffled[(at + turn * square // turns) % members] for at in zigzag)
            rows += [row, row[::-1]]
    return rows[:count]


def group_schedule(
    members: int,
    counts: Sequence[int],
    seed: str,
    in_every_call: Collection[int] = (),
    max_shown: int = LARGEST_WHOLE,
) -> Schedule:
    """`counts[juror]` orders of the whole group for each juror, or as many rounds of blocks.

    Blocks are used for more than `max_shown` members, which is what fits a prompt, and for more than `LARGEST_WHOLE`.
    Orders are balanced over all jurors together. In blocks a juror gets at least 2 rounds, so that its blocks share
    members, unless the members of `in_every_call` (anchors) link all blocks.
    """
    in_blocks = members > min(max_shown, LARGEST_WHOLE)
    rounds_by_juror = [max(2, count) if in_blocks and not in_every_call else count for count in counts]
    total = sum(rounds_by_juror)
    if in_blocks:
        rounds = block_rounds(members, total, seed, in_every_call, min(max_shown, BLOCK))
    else:
        rounds = [[row] for row in orders(members, total, seed)]
    remaining = iter(rounds)
    return [[block for blocks in islice(remaining, count) for block in blocks] for count in rounds_by_juror]


def block_rounds(
    members: int, count: int, seed: str, in_every_call: Collection[int] = (), max_block: int = BLOCK
) -> list[list[tuple[int, ...]]]:
    """`count` partitions of a group into blocks of nearly equal size, at most `max_block`, in the order shown.

    The shuffled members fill a table with one column per block; in each round row r is rotated r steps further. So a
    block shares members with several blocks of the next round, and all blocks are linked. Each member of
    `in_every_call` (fewer than `BLOCK`) fills a row of its own. `orders` of the rows balance the positions in a block.
    """
    dealt = [member for member in range(members) if member not in in_every_call]
    columns = math.ceil(len(dealt) / max(1, max_block - len(in_every_call)))
    dealt = Random(seed).sample(dealt, len(dealt))
    rows = [dealt[start : start + columns] for start in range(0, len(dealt), columns)]
    rows += [[member] * columns for member in sorted(in_every_call)]
    rounds: list[list[tuple[int, ...]]] = []
    for turn, order in enumerate(orders(len(rows), count, seed)):
        blocks: list[list[int]] = [[] for _ in range(columns)]
        for row in order:
            for column, member in enumerate(rows[row]):
                blocks[(column + turn * row) % columns].append(member)
        rounds.append([tuple(block) for block in blocks if len(block) > 1])  # one member alone is not compared
    return rounds


def pair_schedule(members: int, counts: Sequence[int], seed: str) -> Schedule:
    """`counts[juror]` times every pair for each juror, in the order shown.

    The members are shuffled onto a circle, and each is compared with those at certain distances on both sides: so all
    are in equally many pairs, and first in half of them (except for one pair when an even number all meet). Distance 1
    links all members. Every second showing of a pair, counted over all jurors, is reversed.
    """
    circle = Random(seed).sample(range(members), members)
    distances = range(1, members // 2 + 1)
    if members > OPPONENTS + 1:  # evenly spread: near and far links keep chains short
        count, farthest = OPPONENTS // 2, (members - 1) // 2
        distances = [1 + n * (farthest - 1) // (count - 1) for n in range(count)]
    forward: list[tuple[int, ...]] = []
    for distance in distances:
        starts = members // 2 if 2 * distance == members else members
        forward += [(circle[start], circle[(start + distance) % members]) for start in range(starts)]
    backward = [pair[::-1] for pair in forward]
    schedule: Schedule = []
    turn = 0
    for count in counts:
        schedule.append([pair for n in range(turn, turn + count) for pair in (backward if n % 2 else forward)])
        turn += count
    return schedule


class Groupwise:
    """Shows the group in each call, a large one in blocks, and asks for JSON with an explanation and a score for each
    member; a score is a mean of votes, with anchors on their scale. The base of the other modes."""

    wire: ClassVar[Wire] = "chat"
    params: ClassVar[Mapping[str, Any]] = {}
    """LiteLLM parameters that a call takes."""
    can_be_repaired: ClassVar[bool] = True
    """Whether an invalid reply is sent back with its problem."""
    most_scores: ClassVar[int | None] = None
    """Max scores of one call; None = as many as fit."""
    highest: ClassVar[int] = 1
    """The best score."""
    states = False
    """Whether a reply also holds the score to be expected after each turn."""

    def schedule(
        self, members: int, counts: Sequence[int], seed: str, fixed: Collection[int], max_shown: Callable[[], int]
    ) -> Schedule:
        """For each juror, the members that each of its calls shows, in order.

        `counts`: orders of each juror. `fixed`: the members that are anchors. `max_shown`: gives the number of members
        that fit one prompt; it counts tokens, so it is called only where the number matters.
        """
        return group_schedule(members, counts, seed, fixed, max_shown())

    def templates(self, rubric: Rubric) -> Sequence[str]:
        """Names of the prompt templates, for the judgement: of the instructions, then of the request."""
        request = "judge/criteria.j2" if rubric.criteria else "judge/group.j2"
        return "judge/system.j2", request, *(["judge/states.j2"] if self.states else [])

    def request(self, rubric: Rubric, labels: Sequence[str], turns: Sequence[int]) -> str:
        """What a call asks for, after the transcripts. `turns`: of each label, where states are asked for."""
        _, *names = self.templates(rubric)
        values = {"labels": labels, "criteria": _criteria(rubric), "states": self.states}
        counts = list(zip(labels, turns, strict=False))
        return "\n\n".join(render(name, **values, counts=counts).strip() for name in names)

    def schema(self, rubric: Rubric, labels: Sequence[str]) -> Schema:
        """The JSON schema of a reply."""
        return reply_schema(ids_to_score(rubric, labels), states=self.states)

    def read(
        self, reply: str, rubric: Rubric, labels: Sequence[str], *, cut_off: bool, turns: Sequence[int] = ()
    ) -> Verdict:
        """The scores in a reply. Raises `VerdictError` for a reply without a score that can be used.

        `turns`: how many states each label has to have; empty where none are asked for.
        """
        return read_scores(reply, rubric, labels, cut_off=cut_off, turns=turns)

    def aggregate(
        self, answers: Sequence[Answer], members: int, fixed: Mapping[int, float], noise_prior: NoisePrior | None = None
    ) -> Scores:
        """The score of each of the group's `members`, or the reason why it has none.

        `fixed`: scores of the anchors, to whose scale the votes are brought. `noise_prior`: the noise of votes in
        earlier groups; only standard errors without anchors use it, since other votes are on other scales.
        """
        if fixed:
            return aggregate.anchored(answers, members, fixed)
        return aggregate.groupwise(answers, members, noise_prior)


class Pairwise(Groupwise):
    """Shows two members in each call; a score is the mean probability of winning (Bradley-Terry)."""

    def schedule(
        self, members: int, counts: Sequence[int], seed: str, fixed: Collection[int], max_shown: Callable[[], int]
    ) -> Schedule:
        return pair_schedule(members, counts, seed)

    def aggregate(
        self, answers: Sequence[Answer], members: int, fixed: Mapping[int, float], noise_prior: NoisePrior | None = None
    ) -> Scores:
        return pairwise(answers)


class Decisions(Groupwise):
    """Shows the group to decision models, which answer one score question for each member with a distribution over
    levels. A score is the mean of the distributions, on the scale of the anchors where there are any."""

    wire: ClassVar[Wire] = "decisions"
    can_be_repaired: ClassVar[bool] = False
    most_scores: ClassVar[int | None] = MOST_QUESTIONS
    highest: ClassVar[int] = MOST_LEVELS - 1

    def templates(self, rubric: Rubric) -> Sequence[str]:
        return "judge/system.j2", "judge/decision.j2"

    def request(self, rubric: Rubric, labels: Sequence[str], turns: Sequence[int]) -> str:
        return ""

    def schema(self, rubric: Rubric, labels: Sequence[str]) -> Schema:
        levels = ["0 (worst)", *map(str, range(1, self.highest)), f"{self.highest} (best)"]
        questions: list[Schema] = []
        for letter, name in _criteria(rubric) or [("", "")]:
            for label in labels:
                text = render("judge/decision.j2", label=label, letter=letter, criterion=name).strip()
                questions.append(score_question(label + letter, text, levels))
        return {"questions": questions}

    def read(
        self, reply: str, rubric: Rubric, labels: Sequence[str], *, cut_off: bool, turns: Sequence[int] = ()
    ) -> Verdict:
        return read_decisions(reply, rubric, labels, MOST_LEVELS)

    def aggregate(
        self, answers: Sequence[Answer], members: int, fixed: Mapping[int, float], noise_prior: NoisePrior | None = None
    ) -> Scores:
        scores = super().aggregate(answers, members, fixed, noise_prior)
        return aggregate.with_spreads(scores, answers, fixed)


class Readout(Decisions):
    """Shows the group, asks for one digit for each member, and reads a distribution out of the probabilities of the
    digit's tokens."""

    wire: ClassVar[Wire] = "logprobs"
    params: ClassVar[Mapping[str, Any]] = PARAMS
    most_scores: ClassVar[int | None] = None
    highest: ClassVar[int] = readout.LEVELS - 1

    def templates(self, rubric: Rubric) -> Sequence[str]:
        return "judge/system.j2", "judge/readout.j2"

    def request(self, rubric: Rubric, labels: Sequence[str], turns: Sequence[int]) -> str:
        ids = ids_to_score(rubric, labels)
        return render("judge/readout.j2", ids=ids, highest=self.highest, criteria=_criteria(rubric)).strip()

    def schema(self, rubric: Rubric, labels: Sequence[str]) -> Schema:
        ids, digit = ids_to_score(rubric, labels), {"type": "integer", "enum": list(range(readout.LEVELS))}
        properties = dict.fromkeys(ids, digit)
        return {"type": "object", "properties": properties, "required": ids, "additionalProperties": False}

    def read(
        self, reply: str, rubric: Rubric, labels: Sequence[str], *, cut_off: bool, turns: Sequence[int] = ()
    ) -> Verdict:
        return readout.read_readout(reply, rubric, labels)


def _criteria(rubric: Rubric) -> list[tuple[str, str]]:
    """The letters and names of the rubric's criteria."""
    return [(letter, sanitize(criterion.name)) for letter, criterion in rubric.lettered]


def choose_mode(name: ModeName, *, has_anchors: bool, states: bool = False) -> Groupwise:
    """The mode of this name. Raises `JudgeError` for anchors in the mode "pairwise", and for states in any but
    "groupwise"."""
    if states and name != "groupwise":
        raise JudgeError(
            f'states are scores after each turn of an attempt, which mode="{name}" does not ask for.',
            'Leave out states, or take mode="groupwise".',
        )
    if name == "pairwise" and has_anchors:
        raise JudgeError(
            "pairs say who wins, not on what scale, so anchors cannot be used with them.",
            'Leave out anchors, or take mode="groupwise".',
        )
    modes = {"groupwise": Groupwise, "pairwise": Pairwise, "decisions": Decisions, "readout": Readout}
    mode = modes[name]()
    mode.states = states
    return mode
