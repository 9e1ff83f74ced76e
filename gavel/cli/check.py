"""`gavel check`: two episodes of one task side by side, judged as a group of a training run would be."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from gavel.base.errors import GavelError
from gavel.base.text import counted
from gavel.cli.evaluated_models import api_model
from gavel.cli.interrupts import run_interruptibly
from gavel.cli.named import scenario_named
from gavel.cli.options import Assignments, Source, announce_stand_in, run_config, run_flags, settings_command
from gavel.cli.score import own_explanation
from gavel.cli.terminal import plain, print_warning, say
from gavel.cli.training import lengths_file, with_tasks_there_are
from gavel.judge.errors import JudgeError
from gavel.judge.estimate import estimate_run
from gavel.judge.prompt.call_prompt import count_message_tokens
from gavel.llm.client import ChatAgent, Client
from gavel.llm.errors import UnknownModelError
from gavel.llm.types import Message, Reply, text_of
from gavel.reports.page import write_file
from gavel.reports.transcript import shortened, transcribe
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario, ScenarioError, shipped_scenarios
from gavel.scenarios.scripted_agent import played_by, players_of, talker, tool_user
from gavel.scenarios.shared_state import changed_state, shared_state
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.loop.evaluation import measure
from gavel.trainer.run_config import RunConfig

PLAYERS = "players"
"""The agent's name for a shipped scenario's expert and fool."""
_MARKS = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}
_TASKS_NAMED = 8
_FLAGS = run_flags("--group-size", "--tasks", "--steps", "--max-tokens", "judge", without="--cassette")


def check(
    source: Source,
    values: Mapping[str, Any],
    assignments: Assignments = None,
    agent: Annotated[
        str | None,
        typer.Option(help="A LiteLLM model, or `players`: a shipped scenario's expert and fool. Default: two scripts."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="Id of the task to play. Default: the first in training.")] = None,
    prompt: Annotated[bool, typer.Option("--prompt/--no-prompt", help="Show the judge's prompt, too.")] = True,
) -> None:
    """Play two episodes of a scenario before anything is trained.

    Shows both transcripts, the judge's prompt and what it says, what was truncated, and what a step would cost.
    Without --agent, one script calls every tool once and the other only answers. The exit status is 1 when an episode
    failed, or the judge gave no scores.
    """
    config = run_config(source, values, assignments, flags=_FLAGS).resolved()
    scenario = scenario_named(config.scenario)
    judge = config.judge.build(scenario.rubric)
    announce_stand_in(judge.names)
    console = Console()
    tasks = [*scenario.tasks("train"), *scenario.tasks("held_out")]
    chosen = scenario.sample("train", 1, seed=0)[0]
    if task is not None and (chosen := next((each for each in tasks if each.id == task), None)) is None:
        known = ", ".join([each.id for each in tasks][:_TASKS_NAMED]) + ", …" * (len(tasks) > _TASKS_NAMED)
        raise ScenarioError(f"{scenario.name} has no task with the id {task!r}", f"Name one of them: {known}.")
    player = None
    if agent is None:
        models, names = [tool_user(chosen.data), talker()], "two scripts"
    elif agent == PLAYERS:
        players = players_of(scenario.name) if scenario.name in shipped_scenarios() else {}
        if not players:
            raise ScenarioError(
                f"{scenario.name} has no players of its own",
                "Leave --agent out for two plain scripts, or name a model: --agent openai/gpt-5-mini",
            )
        models = [played_by(players[name], chosen) for name in ("expert", "fool")]
        names = "the scenario's own expert and fool"
    else:
        try:
            player = ChatAgent(agent, instead="--agent ollama/qwen3")
        except UnknownModelError as error:
            raise ScenarioError(
                f"--agent takes a model with an API: {error.message}",
                f"Leave it out for two plain scripts; for one of this machine: gavel evaluate --models base:{agent}.",
            ) from error
        names = agent
        models = [api_model(player)] * 2

    async def play_and_judge() -> bool:
        say(console, f"{scenario.name} · task {chosen.id} · played twice at once by {names}")
        state = shared_state(scenario)
        others: list[list[Trajectory]] = [[] for _ in models]
        episodes = await asyncio.gather(
            *(
                rollout(model, scenario, chosen, max_tokens=config.loop.max_tokens, seed=seed, others=others[seed])
                for seed, model in enumerate(models)
            )
        )
        for number, episode in enumerate(episodes, 1):
            for each in [episode, *others[number - 1]]:
                _print_episode(console, number, each, scenario)
        for name, reason in state.items():
            if isinstance(reason, str):
                say(console, f"not compared before and after: {name} ({reason})", "dim")
        for name in changed_state(state, scenario):
            say(
                console,
                f"warning: the tools have changed {name}, which all episodes share: attempts at one task see each "
                "other's changes. Make the world a class: Scenario(environment=…), see docs/scenarios.md.",
                "yellow",
            )
        prompts: list[list[Message]] = []
        watched = judge.rehearsal(_Watched, prompts=prompts)
        judged = await watched.score(TrajectoryGroup(episodes))
        if prompt and prompts:
            console.print(Rule("the judge is asked"))
            for message in prompts[0]:
                _say_lines(console, text_of(message), "dim")
        _print_judgement(console, judged)
        tokens = max(count_message_tokens(episode.messages()) for episode in episodes)
        try:  # for later dry runs
            write_file(lengths_file(scenario), json.dumps({"tokens": tokens, "players": names}) + "\n")
        except GavelError as error:
            print_warning(f"the lengths were not kept for --dry-run: {error.message}")
        console.print(Rule("a step of training"))
        loop, fewer = with_tasks_there_are(config.loop, scenario)
        groups = f"{counted(loop.tasks_per_step, 'group')} of {loop.group_size} episodes"
        size = f"{groups} as long as these ({tokens:,} tokens)"
        try:
            estimate = await estimate_run(judge, loop.tasks_per_step, loop.group_size, tokens)
            say(console, f"{size}: {estimate.words} for the judge; {counted(loop.steps, 'step')} in a run.")
        except JudgeError as error:
            say(console, f"{size}: {error.message}", "yellow")
        if fewer:
            say(console, fewer)
        if player is not None:
            spent = "an unknown amount" if player.cost_usd is None else f"{player.cost_usd:.4f} USD"
            say(console, f"These two episodes cost {spent} for {player.model}.")
        return all(each.reward is not None and each.status != "failed" for each in judged)

    raise typer.Exit(0 if run_interruptibly(play_and_judge()) else 1)


@dataclass(frozen=True, slots=True)
class _Watched(Client):
    """A client whose prompts are kept."""

    prompts: list[list[Message]] = field(default_factory=list[list[Message]])

    async def ask(self, messages: list[Message], *arguments: Any, **options: Any) -> Reply:
        self.prompts.append(messages)
        return await Client.ask(self, messages, *arguments, **options)


def _print_episode(console: Console, number: int, episode: Trajectory, scenario: Scenario) -> None:
    console.print(Rule(f"episode {number}" if episode.agent is None else f"episode {number}: {episode.agent}"))
    for place, history in enumerate(episode.histories()):
        if place and history.agent is not None:
            say(console, f"the agent {history.agent}:", "bold")
        for message in history.messages():
            role = message["role"]
            style = _MARKS.get(role, "")
            if text := text_of(message).strip():
                _say_lines(console, text, style, before=f"{role}: ")
            for call in message.get("tool_calls") or ():
                function = call["function"]
                _say_lines(console, f"{function['name']}({function['arguments']})", style, before=f"{role} calls ")
    ended = episode.status if episode.status_reason is None else f"{episode.status}: {episode.status_reason}"
    measures = {} if episode.status == "failed" else measure(scenario, episode)
    figures = {**{name: float(value) for name, value in episode.metrics.items()}, **measures}
    say(console, " · ".join([ended, *(f"{name} {value:g}" for name, value in figures.items())]), "bold")


def _print_judgement(console: Console, judged: TrajectoryGroup) -> None:
    console.print(Rule("the judge says"))
    scores = [episode.reward for episode in judged if episode.reward is not None]
    if len(scores) < len(judged):
        say(
            console, f"{len(judged) - len(scores)} of {len(judged)} episodes have no score: nothing to train on.", "red"
        )
    elif len(set(scores)) == 1:
        say(console, "Nothing tells them apart: a group of such members teaches nothing.", "yellow")
    else:
        say(console, f"The judge tells them apart: {' and '.join(f'{score:.2f}' for score in scores)}.")
    for number, episode in enumerate(judged, 1):
        said = episode.judgement
        if episode.reward is None:
            reason = said.reason if said and said.reason else "no reason was given"
            say(console, f"episode {number}: unscored, {reason}", "red")
            continue
        error = "" if said is None or said.standard_error is None else f" ± {said.standard_error:.2f}"
        say(console, f"episode {number}: {episode.reward:.2f}{error}  {own_explanation(judged, episode)}")
        for flag in said.flags if said else ():
            say(console, f"  flag: {flag}", "yellow")
        for turn, (first, *_) in enumerate(transcribe(episode)[0].rounds, 1):
            if first.state is not None:
                did = shortened(" ".join([*map(str, first.calls), first.text]))
                fell = "  the largest fall" if first.fell else ""
                say(console, f"  after turn {turn} {first.state:.2f}  {did}{fell}", "yellow" if fell else "")
    for warning in judged.judgement.warnings if judged.judgement else ():
        say(console, f"warning: {warning}", "yellow")


def _say_lines(console: Console, text: str, style: str, before: str = "") -> None:
    first, *rest = text.splitlines() or [""]
    console.print(Text.assemble((before, f"bold {style}".strip()), plain(first, style)), soft_wrap=True)
    for line in rest:
        say(console, line, style)


app = settings_command(check, RunConfig, _FLAGS)
