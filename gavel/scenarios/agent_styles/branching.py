"""Branching, after Tree of Thoughts (arXiv:2305.10601): samples several next turns, and the policy votes for one.

    turn 1   A  B* C        three candidates from one prompt, and a vote: B is carried out
    turn 2      D* E  F     the next three follow B
    trajectory: B D …       additional histories: A, C, the vote, E, F, the vote

Only the chosen turn is executed, so worlds need no copies: the tree is one turn deep beside the chosen path. All
candidates and votes are sampled turns of the one trajectory, and share its reward.
"""

import json
import re
from functools import partial
from typing import Any

from openai.types.chat.chat_completion import Choice

from gavel.base.errors import run_all
from gavel.llm.types import Message
from gavel.prompts import render
from gavel.scenarios.agent_styles import restyle, sample_turn
from gavel.scenarios.episode import Episode
from gavel.scenarios.scenario import Scenario, ScenarioError, find_scenario
from gavel.scenarios.stepped_episode import SteppedEpisode
from gavel.scenarios.trajectory import History, to_messages

BRANCHES = 3
UNREADABLE = "unreadable_votes"
_NUMBER = re.compile(r"\d+")


def scenario_at(address: str) -> Scenario:
    """The scenario of `branching:SCENARIO`. Raises `ScenarioError`."""
    return branching(find_scenario(address))


def branching(scenario: Scenario, branches: int = BRANCHES) -> Scenario:
    """The scenario, played with `branches` candidates a turn. It is called `NAME_branching`.

    Raises `ScenarioError` for fewer than two branches.
    """
    if branches < 2:
        raise ScenarioError(f"branches={branches} leaves nothing to choose.", "Use 2 or more.")

    return restyle(scenario, "branching", partial(_play, branches))


async def _play(branches: int, beneath: SteppedEpisode, episode: Episode) -> None:
    trajectory = episode.trajectory
    trajectory.metrics = {"turns": 0, UNREADABLE: 0}
    items = trajectory.messages_and_choices
    moment = await beneath.start()
    items += moment.new
    trajectory.tools = moment.tools or None
    while not moment.over:
        place = len(items)
        candidates = await run_all(
            sample_turn(episode, items, moment.tools, place, branch) for branch in range(branches)
        )
        chosen = await _choose_by_vote(candidates, episode)
        trajectory.additional_histories += [
            History(messages_and_choices=[*items, each], tools=trajectory.tools, agent="branch")
            for each in candidates
            if each is not chosen
        ]
        items.append(chosen)
        trajectory.metrics["turns"] += 1
        (message,) = to_messages([chosen])
        moment = await beneath.act(message, finish_reason=chosen.finish_reason)
        items += moment.new


async def _choose_by_vote(candidates: list[Choice], episode: Episode) -> Choice:
    """The candidate that the policy votes for; the first if all are equal, or the vote names none."""
    trajectory, shown = episode.trajectory, [_shown(each) for each in candidates]
    if len(set(shown)) == 1:
        return candidates[0]
    items = trajectory.messages_and_choices
    question: Message = {"role": "user", "content": render("scenarios/branch_vote.j2", candidates=shown).strip()}
    ballot = [*items, question]
    vote = await sample_turn(episode, ballot, (), len(items), "vote")
    trajectory.additional_histories.append(History(messages_and_choices=[*ballot, vote], agent="vote"))
    named = [int(each) for each in _NUMBER.findall(vote.message.content or "") if len(each) < 4]
    if not named or not 1 <= named[-1] <= len(candidates):
        trajectory.metrics[UNREADABLE] += 1
        return candidates[0]
    return candidates[named[-1] - 1]


def _shown(choice: Choice) -> str:
    """A candidate as the vote prompt shows it: its text and its calls."""
    (message,) = to_messages([choice])
    calls: list[Any] = [each.get("function") or {} for each in message.get("tool_calls") or ()]
    parts: list[str] = [message.get("content") or ""]
    parts += [f"{each.get('name')} {each.get('arguments')}" for each in calls]
    return "\n".join(filter(None, parts)) or json.dumps("")
