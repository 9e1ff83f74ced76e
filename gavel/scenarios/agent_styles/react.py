"""ReAct: the agent writes a thought and an action as text, and reads an observation.

    Thought: I need the order.              ->  the tool call look_up_order({"order_id": "4711"})
    Action: look_up_order {"order_id": "4711"}
    Observation: {"item": "lamp", …}        <-  its result

For models without native tool calls. An unparsable turn is answered with the problem, and counted in
`unreadable_turns`, of which an episode may have as many as turns.
"""

import json
from functools import partial

from gavel.llm.types import Message, text_of
from gavel.prompts import render
from gavel.scenarios.agent_styles import restyle, sample_turn
from gavel.scenarios.episode import Episode
from gavel.scenarios.scenario import Scenario, find_scenario
from gavel.scenarios.scripted_agent import example
from gavel.scenarios.stepped_episode import Moment, SteppedEpisode
from gavel.scenarios.text_calls import Unreadable, Words, calls_message, read_turn, signature

UNREADABLE = "unreadable_turns"


def scenario_at(address: str) -> Scenario:
    """The scenario of `react:SCENARIO`. Raises `ScenarioError`."""
    return react(find_scenario(address))


def react(scenario: Scenario) -> Scenario:
    """The scenario, played with thoughts and actions as text. It is called `NAME_react`."""
    return restyle(scenario, "react", partial(_play, scenario.max_turns))


async def _play(most_unreadable: int, beneath: SteppedEpisode, episode: Episode) -> None:
    trajectory = episode.trajectory
    trajectory.metrics = {"turns": 0, UNREADABLE: 0}
    items = trajectory.messages_and_choices
    moment = await beneath.start()
    items += _opening(moment)
    while not moment.over:
        choice = await sample_turn(episode, items, (), len(items))
        items.append(choice)
        trajectory.metrics["turns"] += 1
        said = choice.message.content or ""
        turn = read_turn(said, moment.tools)
        if choice.finish_reason == "length":
            moment = await beneath.act({"content": said}, finish_reason="length")
        elif isinstance(turn, Unreadable) and trajectory.metrics[UNREADABLE] < most_unreadable:
            trajectory.metrics[UNREADABLE] += 1
            items.append({"role": "user", "content": f"Observation: {turn.problem}"})
            continue
        elif isinstance(turn, Unreadable | Words):
            moment = await beneath.act({"content": turn.text if isinstance(turn, Words) else said})
        else:
            moment = await beneath.act(calls_message(turn, len(items)))
        heard = (
            f"Observation: {text_of(each)}" if each.get("role") == "tool" else text_of(each)
            for each in moment.new
            if each.get("role") != "assistant"
        )
        if answer := "\n\n".join(filter(None, heard)):
            items.append({"role": "user", "content": answer})


def _opening(moment: Moment) -> list[Message]:
    """The first messages of an episode, with the tools and the form of an action in the system prompt."""
    system = [text_of(each) for each in moment.new if each.get("role") in ("system", "developer")]
    if moment.tools:
        system.append(form_of(moment.tools))
    rest = [each for each in moment.new if each.get("role") not in ("system", "developer")]
    return [*([{"role": "system", "content": "\n\n".join(system)}] if system else []), *rest]


def form_of(tools: list[Message]) -> str:
    """Instructions for calling the tools as text."""
    first = tools[0]["function"]
    arguments = json.dumps(example(first.get("parameters") or {}, text="…"), ensure_ascii=False)
    return render(
        "scenarios/react_form.j2",
        tools=[signature(schema["function"]) for schema in tools],
        example=f"{first['name']} {arguments}",
    ).strip()
