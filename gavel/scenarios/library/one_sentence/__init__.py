"""One sentence: "Write one short sentence about the sea."

A small language model answers with a long one, or with several. It needs no tools, and whether a reply is short can be
counted; whether it makes sense, a judge has to say.
"""

import re

from gavel.prompts import render
from gavel.scenarios.library.one_sentence.dictionary import HAS_DICTIONARY, dictionary_share
from gavel.scenarios.library.one_sentence.topics import HELD_OUT, TRAIN
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory

SHORTEST, LONGEST = 4, 12
"""Words of a short sentence."""


def reply_of(trajectory: Trajectory) -> str:
    """What the agent answered; empty where it did not."""
    last = trajectory.messages()[-1]
    return (last.get("content") or "") if last["role"] == "assistant" else ""


def words(trajectory: Trajectory) -> int:
    return len(reply_of(trajectory).split())


def names_topic(trajectory: Trajectory) -> bool:
    """Whether the reply has the topic's last word in it, also with another ending."""
    topic = str(Task.of(trajectory.metadata).data["topic"]).split()[-1].casefold()
    stem = topic[: max(3, len(topic) - 2)] if topic.endswith("s") else topic
    return re.search(rf"\b{re.escape(stem)}", reply_of(trajectory).casefold()) is not None


def dictionary_words(trajectory: Trajectory) -> float:
    """The share of the reply's words that an English dictionary has."""
    return dictionary_share(reply_of(trajectory))


def succeeded(trajectory: Trajectory) -> bool:
    """Whether the reply is one finished sentence of 4 to 12 words that names its topic."""
    reply = reply_of(trajectory).strip().strip('"')
    one = re.fullmatch(r"[^.!?]+[.!?]", reply) is not None
    return (
        trajectory.status == "finished" and one and SHORTEST <= words(trajectory) <= LONGEST and names_topic(trajectory)
    )


def hand_reward(trajectory: Trajectory) -> float:
    """What somebody might write by hand: only the length, so that nonsense is as good as a sentence."""
    return 1 / (1 + max(0, words(trajectory) - LONGEST))


def _tasks(topics: tuple[str, ...]) -> list[Task]:
    return [
        Task(id=t.replace(" ", "-"), user=f"Write one short sentence about {t}.", data={"topic": t}) for t in topics
    ]


scenario = Scenario(
    name="one_sentence",
    system=render("scenarios/one_sentence_system.j2").strip(),
    tasks=_tasks(TRAIN),
    held_out=_tasks(HELD_OUT),
    max_turns=1,
    rubric=render("scenarios/one_sentence_rubric.j2").strip(),
    success=succeeded,
    hand_reward=hand_reward,
    measures={"words": words, "names_topic": names_topic}
    | ({"dictionary_words": dictionary_words} if HAS_DICTIONARY else {}),
)
