"""The judging code of other libraries, each from its own wheel, against Gavel's: same groups, same biased judge.

    python benchmarks/judge_peers.py --cache ~/.cache/gavel-peers

Every library runs in a process and a virtual environment of its own (made under `--cache` on the first run, which needs
a package index) and asks a simulated judge behind a loopback server (`peers/server.py`); so does Gavel. Figures:

    tau        Kendall's tau-b with the true qualities, mean over the groups ± its standard error
    tokens     of the prompts, per group (o200k); a row of Gavel is told for each library that costs no more
    arrival    score gained from the middle of the order of arrival to its end, at equal quality, in sd of the scores
    malformed  wrong (a number that the reply does not mean) and lost (a meant number not read) of the replies of
               `peers/malformed.py`, in the library's own format; filed: the same of `peers/replies.json`
    10 % fail  shares of members without a score, and with another score than without failures, and the change of tau;
               each call fails with probability .1 (500, 429, a refusal, a reply cut off, an empty one)

Takes 7 minutes on one core when the environments exist. Exits with 1 when a number of Gavel's is wrong.
"""

import argparse
import asyncio
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

from engine_quality import Latent, SimulatedJudge
from peers.environments import DRIVERS, PEERS, EnvironmentFailed, Peer, Variant, prepare, versions
from peers.malformed import CASES, DRAFT, FILED, GOOD
from peers.server import JudgeServer, serving

from gavel.judge.audit.agreement import mean_kendall_tau
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.judge.stats import centred_positions
from gavel.llm.providers import load_litellm
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import MessageOrChoice, Trajectory

MEMBERS = 8
ORDERS = (1, 2, 4, 8)
OF_PAIRS = ("winner", "rank", "pair")
"""Reply formats of ways that take up to 56 calls a group."""
VOCABULARY = (
    "order refund policy customer shipped window receipt account carrier item lookup confirmed notes status amount "
    "days request result checked found because before after next answer balance transfer agreed missing reference"
)
TASK = "Customer {n} asks for a refund of an opened item. Look up the order and the policy, then decide and explain."
Scores = Sequence[float | None] | None
"""Of the attempts of a request; None when the library raised."""


@dataclass(frozen=True, slots=True)
class Group:
    task: str
    attempts: tuple[str, ...]
    """In order of arrival, the shorter ones first."""
    qualities: tuple[float, ...]


@dataclass(slots=True)
class Row:
    who: str
    what: str
    figures: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def simulated(count: int, words: int, seed: int, table: dict[str, Latent]) -> list[Group]:
    random, groups = Random(f"{seed}/peers"), []
    for number in range(count):
        lengths = sorted(random.randint(words // 2, 3 * words // 2) for _ in range(MEMBERS))
        names = [f"sim-{number}x{random.randrange(16**6):06x}" for _ in lengths]
        qualities = tuple(random.gauss() for _ in lengths)
        table.update({name: Latent(quality) for name, quality in zip(names, qualities, strict=True)})
        attempts = tuple(
            f"Attempt {name}. " + _prose(length, random) for name, length in zip(names, lengths, strict=True)
        )
        groups.append(Group(TASK.format(n=number), attempts, qualities))
    return groups


def _prose(words: int, random: Random) -> str:
    lines = [" ".join(random.choices(VOCABULARY.split(), k=12)) + "." for _ in range(max(1, words // 12))]
    return "\n".join(line.capitalize() for line in lines)


def requests_of(variant: Variant, url: str, groups: Sequence[Group], faulty: int) -> list[dict[str, Any]]:
    """Everything that a variant is asked: all groups, some again with failing calls, and the malformed replies."""

    def request(kind: str, name: str | int, mode: str, task: str, attempts: Sequence[str]) -> dict[str, Any]:
        model = f"{variant.form}--{variant.name}--{mode}"
        ask = {"url": url, "model": model, "variant": variant.name, "task": task, "attempts": list(attempts)}
        return {"id": f"{variant.name}/{kind}/{name}", **ask}

    asked = [request("clean", n, "clean", g.task, g.attempts) for n, g in enumerate(groups)]
    again = groups[:faulty] if variant.form in OF_PAIRS else groups
    asked += [request("faulty", n, "faulty", g.task, g.attempts) for n, g in enumerate(again)]
    if variant.is_scripted:
        named = [*CASES, *(FILED if variant.form in ("labels", "numbers") else ())]
        attempts = [f"Attempt {name} says so." for name in GOOD]
        asked += [request("scripted", name, "scripted", f"This is case-{name}.", attempts) for name in named]
    return asked


async def ask_library(peer: Peer, python: Path, requests: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    """Results by id, from the library's driver in a process of its own."""
    source, target = folder / "requests", folder / "results"
    source.write_text("".join(json.dumps(request) + "\n" for request in requests), encoding="utf-8")
    target.write_text("", encoding="utf-8")
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
    keys = {"OPENAI_API_KEY": "none", "PYTHONPATH": ""}
    process = await asyncio.create_subprocess_exec(
        python, DRIVERS / peer.driver, source, target, cwd=folder, env=os.environ | quiet | keys,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        _, errors = await asyncio.wait_for(process.communicate(), 600)
    except TimeoutError:
        process.kill()
        raise EnvironmentFailed("its driver took more than 10 minutes") from None
    if process.returncode:
        raise EnvironmentFailed((errors.decode().strip().splitlines() or ["it ended without a word"])[-1][:200])
    return {result["id"]: result for result in map(json.loads, target.read_text(encoding="utf-8").splitlines())}


async def ask_gavel(requests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    judges: dict[str, Judge] = {}
    slots = asyncio.Semaphore(8)

    async def one(request: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        model, orders = request["model"], int(request["variant"].removeprefix("orders"))
        if model not in judges:
            juror = Juror(f"openai/{model}", params={"api_base": f"{request['url']}/v1", "api_key": "none"})
            judges[model] = Judge(juror, orders=orders)
        messages: list[list[MessageOrChoice]] = [
            [{"role": "user", "content": request["task"]}, {"role": "assistant", "content": attempt}]
            for attempt in request["attempts"]
        ]
        group = TrajectoryGroup(Trajectory(messages_and_choices=said) for said in messages)
        async with slots:
            judged = await judges[model].score(group)
        return request["id"], {"scores": [trajectory.reward for trajectory in judged]}

    return dict(await asyncio.gather(*map(one, requests)))


def row_of(who: str, variant: Variant, results: Mapping[str, Any], groups: Sequence[Group], server: JudgeServer) -> Row:
    def scores(kind: str, name: str | int) -> Scores:
        return results.get(f"{variant.name}/{kind}/{name}", {}).get("scores")

    clean = [scores("clean", n) for n in range(len(groups))]
    if not any(clean):
        errors = [r["error"] for r in results.values() if "error" in r]
        return Row(who, variant.what, problem=errors[0] if errors else "no group was scored")
    model = f"{variant.form}--{variant.name}--clean"
    figures: dict[str, Any] = agreement(groups, clean)
    figures |= {"tokens": server.tokens[model] / len(groups), "calls": server.calls[model] / len(groups)}
    figures["arrival"], figures["arrival ±"] = arrival(groups, clean)
    failing = [scores("faulty", n) for n in range(len(groups)) if f"{variant.name}/faulty/{n}" in results]
    figures |= {f"failing {name}": value for name, value in after_failures(groups, clean, failing).items()}
    if variant.is_scripted:
        figures["malformed"] = scripted(lambda name: scores("scripted", name))
        if variant.form in ("labels", "numbers"):
            figures["filed"] = filed(lambda name: scores("scripted", name))
    return Row(who, variant.what, figures)


def agreement(groups: Sequence[Group], answers: Sequence[Scores]) -> dict[str, float | None]:
    taus: list[float] = []
    for group, scores in zip(groups, answers, strict=False):
        pairs = [(s, q) for s, q in zip(scores or [], group.qualities, strict=False) if s is not None]
        tau = mean_kendall_tau([pairs]) if len(pairs) > 1 else None
        if tau is not None:
            taus.append(tau)
    error = stdev(taus) / math.sqrt(len(taus)) if len(taus) > 1 else None
    return {"tau": fmean(taus) if taus else None, "±": error}


def arrival(groups: Sequence[Group], answers: Sequence[Scores]) -> tuple[float, float]:
    """Slope of the scores, in units of their spread within groups, on arrival beside quality; and its error."""
    rows: list[tuple[float, float, float]] = []
    for group, scores in zip(groups, answers, strict=True):
        for position, score, quality in zip(centred_positions(MEMBERS), _centred(scores), group.qualities, strict=True):
            if score is not None:
                rows.append((position, quality - fmean(group.qualities), score))
    spread = math.sqrt(fmean(score**2 for _, _, score in rows)) or 1.0
    pp, qq, pq = (math.fsum(row[a] * row[b] for row in rows) for a, b in ((0, 0), (1, 1), (0, 1)))
    ps, qs = (math.fsum(row[a] * row[2] for row in rows) / spread for a in (0, 1))
    determinant = pp * qq - pq * pq
    slope, gain = (qq * ps - pq * qs) / determinant, (pp * qs - pq * ps) / determinant
    left = fmean((score / spread - slope * position - gain * quality) ** 2 for position, quality, score in rows)
    return slope, math.sqrt(left * qq / determinant)


def _centred(scores: Scores) -> list[float | None]:
    got = [score for score in scores or [] if score is not None]
    if not got:
        return [None] * MEMBERS
    return [None if score is None else score - fmean(got) for score in scores or []]


def after_failures(groups: Sequence[Group], clean: Sequence[Scores], failing: Sequence[Scores]) -> dict[str, Any]:
    members = none = other = 0
    for before, after in zip(clean, failing, strict=False):
        for n in range(MEMBERS):
            score = after[n] if after else None
            members += 1
            none += score is None
            other += score is not None and bool(before) and not _same(score, before[n])  # type: ignore[index]
    before, after = (agreement(groups, answers[: len(failing)])["tau"] for answers in (clean, failing))
    change = None if before is None or after is None else after - before
    return {"none": none / members, "other": other / members, "tau change": change}


def _same(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and math.isclose(one, other, abs_tol=1e-6))


def scripted(scores: Any) -> dict[str, Any]:
    """Wrong and lost, with the names of the cases; what the clean reply and the draft make of the library tells."""
    good, draft = scores("clean"), scores("draft")
    means = {"good": good, "maybe": good, "draft": draft, "none": None}
    return _count({name: (scores(name), means[case.means], case.means == "good") for name, case in CASES.items()})


def filed(scores: Any) -> dict[str, Any]:
    found: dict[str, tuple[Scores, Scores, bool]] = {}
    for name, case in FILED.items():
        expected: Any = case["expected"]
        meant = expected["either"] if isinstance(expected, dict) else None if expected == "reject" else expected
        found[name] = (scores(name), meant, isinstance(expected, list))
    return _count(found)


def _count(found: Mapping[str, tuple[Scores, Scores, bool]]) -> dict[str, Any]:
    wrong: list[str] = []
    lost: list[str] = []
    for name, (got, meant, must) in found.items():
        pairs = [(score, meant[n] if meant else None) for n, score in enumerate(got or [])]
        if any(score is not None and not _same(score, means) for score, means in pairs):
            wrong.append(name)
        elif must and (not pairs or any(score is None for score, _ in pairs)):
            lost.append(name)
    return {"wrong": wrong, "lost": lost, "of": len(found)}


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| library | way | calls | tokens | tau | gavel, no more tokens | arrival, sd | malformed wrong / lost "
        "| filed wrong / lost | 10 % fail: no score, other score, tau's change |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    ours = [row for row in rows if row.who.startswith("gavel") and not row.problem]
    for row in rows:
        f, name = row.figures, f"| {row.who} | {row.what}"
        if row.problem:
            lines.append(f"{name} | did not run: {row.problem} | | | | | | | |")
            continue
        cheaper = [our for our in ours if our.figures["tokens"] <= f["tokens"]]
        best = max(cheaper, key=lambda our: our.figures["tokens"], default=None)
        equal = "" if row in ours else f"{best.figures['tau']:.3f} ({best.what})" if best else "none is as cheap"
        change = "" if f["failing tau change"] is None else f", {f['failing tau change']:+.3f}"
        lines.append(
            f"{name} | {f['calls']:.1f} | {f['tokens']:,.0f} | {f['tau']:.3f} ± {f['±']:.3f} | {equal} "
            f"| {f['arrival']:+.3f} ± {f['arrival ±']:.3f} | {_of(f.get('malformed'))} | {_of(f.get('filed'))} "
            f"| {f['failing none']:.1%}, {f['failing other']:.1%}{change} |"
        )
    return "\n".join(lines)


def _of(count: Mapping[str, Any] | None) -> str:
    return f"{len(count['wrong'])} / {len(count['lost'])} of {count['of']}" if count else ""


async def report(arguments: argparse.Namespace) -> list[Row]:
    latents = {name: Latent(0.0) for name in {**GOOD, **DRAFT}}
    groups = simulated(arguments.groups, arguments.words, arguments.seed, latents)
    _ = load_litellm().encoding  # once this is loaded, tiktoken finds the files that LiteLLM brings
    import tiktoken

    encode = tiktoken.get_encoding("o200k_base").encode_ordinary
    server = JudgeServer(SimulatedJudge(latents, seed=arguments.seed), lambda text: len(encode(text)))
    rows: list[Row] = []
    async with serving(server) as url:
        started = time.monotonic()
        variants = [Variant(f"orders{n}", f"{n} order{'s' * (n > 1)}", "labels", n == 2) for n in ORDERS]
        for variant in variants:
            results = await ask_gavel(requests_of(variant, url, groups, arguments.faulty))
            rows.append(row_of("gavel", variant, results, groups, server))
        print(f"gavel: {time.monotonic() - started:.0f} s", file=sys.stderr)
        for peer in PEERS:
            if arguments.only and peer.package not in arguments.only:
                continue
            started, who = time.monotonic(), f"{peer.package} {peer.version}"
            try:
                python = await asyncio.to_thread(prepare, peer, arguments.cache)
                told = versions(python)
                asked = [r for v in peer.variants for r in requests_of(v, url, groups, arguments.faulty)]
                with tempfile.TemporaryDirectory() as folder:
                    results = await ask_library(peer, python, asked, Path(folder))
            except EnvironmentFailed as failed:
                rows += [Row(who, variant.what, problem=str(failed)) for variant in peer.variants]
                continue
            rows += [row_of(who, variant, results, groups, server) for variant in peer.variants]
            print(f"{who} ({told}): {time.monotonic() - started:.0f} s", file=sys.stderr)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--faulty", type=int, default=30, help="groups judged again with failing calls, by pairs")
    parser.add_argument("--words", type=int, default=180, help="mean length of an attempt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", help="a package to compare with, instead of all; repeatable")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "gavel-peers")
    parser.add_argument("--json", action="store_true", help="all figures, with the names of wrong and lost cases")
    arguments = parser.parse_args()
    rows = asyncio.run(report(arguments))
    if arguments.json:
        shown = [{"who": row.who, "what": row.what, **row.figures, "problem": row.problem} for row in rows]
        print(json.dumps(shown, indent=1, ensure_ascii=False))
    else:
        print(table(rows))
    counts = [row.figures.get(name) for row in rows if row.who == "gavel" for name in ("malformed", "filed")]
    raise SystemExit(any(count["wrong"] for count in counts if count))


if __name__ == "__main__":
    main()
