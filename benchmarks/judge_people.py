"""The judge engine against people: recorded verdicts of real judges, and a small real model, on what people labelled.

    python benchmarks/judge_people.py --data DIR
    python benchmarks/judge_people.py --data DIR --real       # also the small real model, on groups of 4 and 6

DIR holds LLMBar's natural and processed sets with the recorded verdicts of GPT-4, ChatGPT, LLaMA2-70B, PaLM2 and Falcon
in both orders (princeton-nlp/LLMBar, MIT) as `llmbar_*.jsonl.gz`, and Topical-Chat replies (maszhongming/UniEval, MIT),
GSM8K solutions (openai/grade-school-math, MIT) and trajectories of τ-bench's airline (sierra-research/tau-bench, MIT).

A recorded verdict is the reply of a judge that is asked through `gavel.Judge`; what cannot be read stays unreadable.
Accuracy counts a tie half. Probabilities and weights are learnt from 50 pairs as `gavel judge golden` does, and tried
on the rest of the set (of a small one, half is learnt from), over `--splits` draws. It takes about three minutes on one
core. Exits with 1 where a jury with learnt weights is more than .01 below its best member, or a judge's probabilities
are off by more than .05, whatever the number of pairs; their standard error is told beside it.
"""

import argparse
import asyncio
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

from gavel.judge.audit.agreement import agreement_of_pairs
from gavel.judge.audit.golden import (
    GoldenResult,
    check_golden,
    golden_scores,
    jury_weights,
    learnt_skill,
    with_weights,
)
from gavel.judge.audit.human_labels import GoldenGroup, load_golden
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.judge.panel.standard_errors import NoisePrior
from gavel.judge.prompt.fenced_transcript import read_transcripts
from gavel.judge.prompt.provider_formats import TextEvent

PROMPT = "Vanilla_NoRules"
"""The prompt whose verdicts every set has."""
JURIES = (("GPT-4", "ChatGPT", "PaLM2"), ("ChatGPT", "LLaMA2", "PaLM2"), ("GPT-4", "ChatGPT", "LLaMA2", "PaLM2"))
LABELS = 50
TRIED = 4000
"""Least number of pairs that probabilities are tried on, with repetition."""
REACH, GAP = 0.01, 0.05


@dataclass(frozen=True, slots=True)
class PairSet:
    """Pairs, and the verdicts of judges on them."""

    name: str
    groups: list[GoldenGroup]
    verdicts: list[dict[str, list[str | None]]]
    """By judge, the better output (1 or 2) as they stand and swapped."""

    @property
    def judges(self) -> list[str]:
        return [judge for judge in self.verdicts[0] if all(judge in row for row in self.verdicts)]


def read_pairs(directory: Path) -> list[PairSet]:
    """The sets of LLMBar's files, each with its golden groups."""
    sets: dict[str, PairSet] = {}
    for path in sorted(directory.glob("llmbar_*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        for row, group in zip(rows, load_golden(path), strict=True):
            own = sets.setdefault(row["subset"], PairSet(row["subset"], [], []))
            own.groups.append(group)
            own.verdicts.append({judge: found[PROMPT] for judge, found in row["verdicts"].items() if PROMPT in found})
    return list(sets.values())


def shown_in(prompt: Any) -> dict[str, tuple[str, str]]:
    """What stands before the last reply of each attempt in a prompt, and that reply, by label in the order shown."""
    text = prompt if isinstance(prompt, str) else prompt[0]["text"]
    found: dict[str, tuple[str, str]] = {}
    for label, attempt in read_transcripts(text).items():
        *before, last = [event.text for event in attempt[0].events if isinstance(event, TextEvent)] or [""]
        found[label] = plain("".join(before)), plain(last)
    return found


def plain(text: str) -> str:
    """The text as it can be found again: a prompt shows it without invisible characters and spaces at its ends."""
    return "".join(character for character in text if character.isalnum())


class RecordedJudge:
    """Gives the recorded verdicts of one judge."""

    def __init__(self, name: str, pairs: PairSet) -> None:
        self.__qualname__ = name
        self._verdicts: dict[frozenset[tuple[str, str]], tuple[str, list[str | None]]] = {}
        for group, row in zip(pairs.groups, pairs.verdicts, strict=True):
            asked = plain("".join(str(message["content"]) for message in group.opening))
            said = [plain(str(messages[-1]["content"])) for messages in group.members.values()]
            self._verdicts[frozenset((asked, reply) for reply in said)] = said[0], row[name]

    async def __call__(self, messages: Sequence[Mapping[str, Any]], schema: Mapping[str, Any]) -> str:
        shown = shown_in(messages[1]["content"])
        first, second = shown
        output_1, (as_they_stand, swapped) = self._verdicts[frozenset(shown.values())]
        in_order = shown[first][1] == output_1
        winner = as_they_stand if in_order else swapped
        if winner not in ("1", "2"):
            return "It cannot be said."
        best = first if (winner == "1") == in_order else second
        return as_reply({label: float(label == best) for label in shown})


def as_reply(scores: Mapping[str, float]) -> str:
    return json.dumps(
        {"scores": [{"trajectory_id": label, "explanation": "", "score": score} for label, score in scores.items()]}
    )


def gaps(results: Sequence[GoldenResult]) -> list[float]:
    """By pair, the score of the better member less that of the worse; an unscored pair is a tie."""
    found: list[float] = []
    for result in results:
        rewards = [member.reward for member in result.judged or ()]
        scores = {
            name: reward for name, reward in zip(result.group.members, rewards, strict=True) if reward is not None
        }
        whole = len(scores) == len(rewards)
        found += [scores[better] - scores[worse] if whole else 0.0 for better, worse in result.group.pairs]
    return found


def accuracy(found: Sequence[float]) -> float:
    return fmean(0.5 if abs(gap) < 1e-9 else float(gap > 0) for gap in found)


def certainty(result: GoldenResult, prior: NoisePrior) -> float:
    """The probability that the higher-scored of a pair is the better one."""
    one, other = (member.judgement for member in result.judged or ())
    if not (one and other) or one.score is None or other.score is None:
        return 0.5
    error = math.hypot(one.standard_error or 0.0, other.standard_error or 0.0)
    return prior.p_better(abs(one.score - other.score), error)


def area(certainties: Sequence[float], right: Sequence[bool]) -> float | None:
    """How often a right verdict is more certain than a wrong one; a tie counts half."""
    pairs = [
        (yes, no)
        for yes, r in zip(certainties, right, strict=True)
        if r
        for no, q in zip(certainties, right, strict=True)
        if not q
    ]
    return fmean(0.5 if a == b else float(a > b) for a, b in pairs) if pairs else None


def draws(count: int, splits: int) -> list[tuple[list[int], list[int]]]:
    """Pairs to learn from and pairs to try on; of a small set half and half, in more draws, since few are tried."""
    labels = min(LABELS, count // 2)
    splits = max(splits, TRIED // (count - labels))
    mixed = [Random(seed).sample(range(count), count) for seed in range(splits)]
    return [(order[:labels], order[labels:]) for order in mixed]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge that has learnt from other pairs says of one."""

    pair: int
    chance: float
    """Its probability of being right."""
    gap: float
    """Score of the better member less that of the worse; 0 = a tie."""


def tried_verdicts(results: Sequence[GoldenResult], splits: int, *, learns_weights: bool) -> list[list[Verdict]]:
    """By draw, the verdicts on the pairs that are tried. Whatever is learnt comes from the draw's other pairs."""
    scores = [golden_scores([result]) for result in results]
    found: list[list[Verdict]] = []
    for known, tried in draws(len(results), splits):
        own = [results[n] for n in known + tried]
        if learns_weights:
            own = with_weights(own, jury_weights([each for n in known for each in scores[n]]))
        prior = NoisePrior(skill=learnt_skill(own[: len(known)]) or 0.0)
        verdicts = zip(tried, own[len(known) :], strict=True)
        found.append([Verdict(n, certainty(result, prior), gaps([result])[0]) for n, result in verdicts])
    return found


def calibration(verdicts: Sequence[Verdict]) -> dict[str, float | None]:
    """Of the decided pairs: how often right, how often by the learnt probability, the error of the difference that
    comes from the set being small, and the mean gap of its tenths.

    The error is that of a ratio over distinct pairs: one that is tried in many draws counts once.
    """
    decided = [verdict for verdict in verdicts if verdict.gap]
    if not decided:
        return {"predicted": None, "observed": None, "error": None, "gap by tenths": None, "AUC": None}
    off = fmean(verdict.chance - (verdict.gap > 0) for verdict in decided)
    tenths, of_pair = defaultdict[int, float](float), defaultdict[int, float](float)
    for verdict in decided:
        apart = verdict.chance - (verdict.gap > 0)
        tenths[min(9, int(10 * verdict.chance))] += apart
        of_pair[verdict.pair] += apart - off
    pairs = len(of_pair)
    square = math.fsum(each**2 for each in of_pair.values()) * pairs / max(1, pairs - 1)
    some = verdicts[:: max(1, len(verdicts) // 1000)]
    return {
        "predicted": fmean(verdict.chance for verdict in decided),
        "observed": fmean(verdict.gap > 0 for verdict in decided),
        "error": math.sqrt(square) / len(decided),
        "gap by tenths": math.fsum(map(abs, tenths.values())) / len(decided),
        "AUC": area([verdict.chance for verdict in some], [verdict.gap > 0 for verdict in some]),
    }


async def judged(judges: Sequence[Juror], groups: Sequence[GoldenGroup], orders: int) -> list[GoldenResult]:
    return await check_golden(Judge(judges, orders=orders), groups)


async def pair_rows(pairs: PairSet, splits: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    found: dict[str, list[float]] = {}
    recorded = {name: RecordedJudge(name, pairs) for name in pairs.judges}
    for name, judge in recorded.items():
        one = gaps(await judged([Juror(judge)], pairs.groups, 1))
        results = await judged([Juror(judge)], pairs.groups, 2)
        found[name] = gaps(results)
        verdicts = chain.from_iterable(tried_verdicts(results, splits, learns_weights=False))
        row = {"set": pairs.name, "judge": name, "pairs": len(results), "one order": accuracy(one)}
        row |= figures(found[name])
        rows.append(row | calibration([*verdicts]))
    juries: list[tuple[str, ...]] = [jury for jury in JURIES if set(jury) <= set(recorded)]
    if set(recorded) != set(juries[-1]):
        juries.append(tuple(recorded))
    for jury in juries:
        together = await judged([Juror(recorded[name]) for name in jury], pairs.groups, 2)
        row = {"set": pairs.name, "judge": "jury of " + ", ".join(jury), **figures(gaps(together))}
        equal = calibration([*chain.from_iterable(tried_verdicts(together, splits, learns_weights=False))])
        row |= {f"{name}, equal weights": equal[name] for name in ("predicted", "observed", "error")}
        drawn = tried_verdicts(together, splits, learns_weights=True)
        learnt = [accuracy([verdict.gap for verdict in verdicts]) for verdicts in drawn]
        best = [max(accuracy([found[name][v.pair] for v in verdicts]) for name in jury) for verdicts in drawn]
        gains = [own - other for own, other in zip(learnt, best, strict=True)]
        row |= {"learnt weights": fmean(learnt), "best member": fmean(best), "gain": fmean(gains)}
        row |= {"error of gain": stdev(gains) / math.sqrt(len(gains))}
        rows.append(row | calibration([*chain.from_iterable(drawn)]))
    return rows


def figures(found: Sequence[float]) -> dict[str, Any]:
    decided = [gap for gap in found if abs(gap) > 1e-9]
    return {"two orders": accuracy(found), "decided": len(decided) / len(found), "of decided": accuracy(decided)}


async def length_judge(messages: Sequence[Mapping[str, Any]], schema: Mapping[str, Any]) -> str:
    """Prefers what is long; the baseline of every judge."""
    shown = shown_in(messages[1]["content"])
    return as_reply({label: 1 - 1 / (1 + len(reply) / 100) for label, (_, reply) in shown.items()})


class SmallModelJudge:
    """The mean log-prob of a reply after its question under SmolLM2-135M-Instruct; it reads the group one by one."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoTokenizer

        from gavel.trainer.embedded.small_model import small_model_path
        from gavel.trainer.loop.likelihood_judge import LikelihoodJudge
        from gavel.trainer.policy.policy import load_base

        tokenizer = AutoTokenizer.from_pretrained(str(small_model_path()))
        self._judge = LikelihoodJudge(load_base("smollm2-135m", torch.float32, "cpu"), tokenizer)

    async def __call__(self, messages: Sequence[Mapping[str, Any]], schema: Mapping[str, Any]) -> str:
        from gavel.trainer.loop.likelihood_judge import last_reply

        attempts = read_transcripts(messages[1]["content"])
        means = [mean for mean, _ in self._judge.logprobs([last_reply(attempt) for attempt in attempts.values()])]
        return as_reply({label: math.exp(mean) for label, mean in zip(attempts, means, strict=True)})


async def group_rows(directory: Path, real: bool, limit: int) -> list[dict[str, Any]]:
    """Sets of groups of 4 and 6, by length and by the small real model."""
    judges: dict[str, Any] = {"length": length_judge} | (
        {"SmolLM2-135M, likelihood": SmallModelJudge()} if real else {}
    )
    rows: list[dict[str, Any]] = []
    for file, by in (("topical_chat", None), ("gsm8k_solutions", None), ("tau_airline_gpt4o", "task")):
        groups = load_golden(directory / f"{file}.jsonl.gz", by=by)
        groups = [groups[at * len(groups) // limit] for at in range(limit)] if limit < len(groups) else groups
        for name, judge in judges.items():
            if file.startswith("tau") and name != "length":
                continue  # the last of many turns says little by itself
            results = await check_golden(Judge(judge, orders=2), groups)
            tiers = [{m: -n for n, tier in enumerate(r.group.order) for m in tier} for r in results]
            pairs = [[(r.scores[m], tier[m]) for m in r.scores] for r, tier in zip(results, tiers, strict=True)]
            found = agreement_of_pairs(pairs, file)
            rows.append(
                {
                    "set": file,
                    "judge": name,
                    "groups": len(groups),
                    "tau": found.tau.value,
                    "pairs right": found.pair_accuracy.value,
                    "top is best": found.top_1.value,
                }
            )
    return rows


def missed_bars(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Juries below their best member, and probabilities further off than the bar."""
    missed: list[str] = []
    for row in rows:
        whose = f"{row['set']}, {row['judge']}"
        if row.get("gain", 0.0) < -REACH:
            missed.append(f"{whose}: {row['learnt weights']:.3f}, its best member {row['best member']:.3f}")
        if row.get("predicted") is not None and distance(row) > GAP:
            told = f"right {row['observed']:.3f}, predicted {row['predicted']:.3f} ± {row['error']:.3f}"
            missed.append(f"{whose}: {told}")
    gains = [row["gain"] for row in rows if "gain" in row]
    return missed + (
        ["juries are no better than their best members on the mean"] if gains and fmean(gains) <= 0 else []
    )


def distance(row: Mapping[str, Any]) -> float:
    return abs(row["predicted"] - row["observed"])


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """How far probabilities are off in all rows together, beside what the sets' size alone would give, and by judge."""
    lines: list[str] = []
    with_figures = [row for row in rows if row.get("predicted") is not None]
    for kind, own in (
        ("single judges", [row for row in with_figures if "gain" not in row]),
        ("juries", [row for row in with_figures if "gain" in row]),
    ):
        off = fmean(row["predicted"] - row["observed"] for row in own)
        root, chance = (
            math.sqrt(fmean(each)) for each in ([distance(r) ** 2 for r in own], [r["error"] ** 2 for r in own])
        )
        lines.append(f"{kind}: predicted less observed {off:+.3f}, root mean square {root:.3f}, by chance {chance:.3f}")
    by_judge: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in with_figures:
        if "gain" not in row:
            by_judge[row["judge"]].append((row["decided"] * row["pairs"], row["predicted"] - row["observed"]))
    for judge, parts in by_judge.items():
        pairs = math.fsum(count for count, _ in parts)
        off = math.fsum(count * each for count, each in parts) / pairs
        lines.append(f"{judge}, all sets: predicted less observed {off:+.3f} ({pairs:.0f} decided pairs)")
    gains = [row["gain"] for row in rows if "gain" in row]
    return [*lines, f"juries over their best members: {fmean(gains):+.4f} on the mean, {min(gains):+.4f} at least"]


async def report(directory: Path, splits: int, real: bool, limit: int) -> list[dict[str, Any]]:
    rows = [row for pairs in read_pairs(directory) for row in await pair_rows(pairs, splits)]
    return rows + await group_rows(directory, real, limit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory of the files above")
    parser.add_argument("--splits", type=int, default=40, help="draws of the pairs that are learnt from")
    parser.add_argument("--real", action="store_true", help="also ask SmolLM2-135M-Instruct (make real)")
    parser.add_argument("--groups", type=int, default=100, help="of a set of groups of 4 or 6, at most")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(report(arguments.data, arguments.splits, arguments.real, arguments.groups))
    missed = missed_bars(rows)
    if arguments.json:
        print(json.dumps({"rows": rows, "missed_bars": missed}, indent=1, ensure_ascii=False))
    else:
        for row in rows:
            numbers = "  ".join(f"{name} {value:.3f}" for name, value in row.items() if isinstance(value, float))
            print(f"{row['set']:21} {row['judge']:45} {numbers}")
        print("\n".join([*summary(rows), *(missed or ["Every bar is met."])]))
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
