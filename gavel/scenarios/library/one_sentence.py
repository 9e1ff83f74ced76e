"""One sentence: "Write one short sentence about the sea."

A small language model answers with a long sentence, or with several. The task needs no tools. Brevity can be counted;
sense only a judge can assess.
"""

import re

from gavel.scenarios.library._shared import playing, shipped
from gavel.scenarios.scripted_agent import Player
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory

TRAIN = (
    "the sea", "a bicycle", "the moon", "bread", "winter", "a violin", "the desert", "tea", "a lighthouse", "honey",
    "the wind", "a library", "rice", "a train", "the night", "an owl", "paper", "a volcano", "salt", "a garden",
    "the sun", "a horse", "chess", "a river", "wool", "an island", "coffee", "a clock", "the forest", "a kitchen",
    "glass", "a dog", "the harvest", "an orange", "a bridge", "rain", "a market", "gold", "a spider", "the theatre",
    "milk", "a ladder", "the alphabet", "a whale", "autumn", "a candle", "football", "an engine", "the north",
    "a shadow", "soap", "a museum", "the heart", "a mirror", "potatoes", "a storm", "iron", "a tailor", "the circus",
    "a letter",
)  # fmt: skip
HELD_OUT = (
    "the sky", "a cat", "spring", "a piano", "cheese", "a castle", "snow", "a farmer", "the airport", "an apple",
    "wood", "a doctor", "the stars", "a boat", "sugar", "a teacher", "the beach", "an elephant", "silver", "a school",
    "summer", "a guitar", "the hospital", "a chair", "pepper", "a mountain", "the post office", "an umbrella", "cotton",
    "a nurse", "the weather", "a rabbit", "butter", "a window", "the kitchen table", "an ant", "leather", "a lake",
    "the city", "a bird", "chocolate", "a camera", "the jungle", "a hammer", "fire", "a baker", "the radio", "a pencil",
    "water", "a tiger", "the garden gate", "an egg", "sand", "a painter", "the morning", "a shoe", "soup", "a rocket",
    "the village", "a fox", "ice", "a telephone", "the mail", "a bee", "music", "a carpet", "the sunset", "a wolf",
    "stone", "a bus", "the ocean floor", "a key", "tomatoes", "a cloud", "the newspaper", "a drum", "oil", "a lion",
    "the playground", "a blanket", "corn", "a frog", "the harbour", "a knife", "silk", "a turtle", "the orchestra",
    "a bottle", "thunder", "a tree", "the attic", "a monkey", "pasta", "a kite", "the evening", "a wheel",
)  # fmt: skip
SHORTEST, LONGEST = 4, 12
"""Min and max words of a short sentence."""


def words(trajectory: Trajectory) -> int:
    return len(trajectory.closing_text().split())


def names_topic(trajectory: Trajectory) -> bool:
    """Whether the reply contains the topic's last word, also inflected."""
    topic = str(Task.of(trajectory.metadata).data["topic"]).split()[-1].casefold()
    stem = topic[: max(3, len(topic) - 2)] if topic.endswith("s") else topic
    return re.search(rf"\b{re.escape(stem)}", trajectory.closing_text().casefold()) is not None


def succeeded(trajectory: Trajectory) -> bool:
    """Whether the reply is one finished sentence of 4 to 12 words that names its topic."""
    reply = trajectory.closing_text().strip().strip('"')
    one = re.fullmatch(r"[^.!?]+[.!?]", reply) is not None
    return (
        trajectory.status == "finished" and one and SHORTEST <= words(trajectory) <= LONGEST and names_topic(trajectory)
    )


def hand_reward(trajectory: Trajectory) -> float:
    """A naive hand-written reward: only the length counts, so that nonsense scores like a sentence."""
    return 1 / (1 + max(0, words(trajectory) - LONGEST))


def _tasks(topics: tuple[str, ...]) -> list[Task]:
    return [
        Task(id=it.replace(" ", "-"), user=f"Write one short sentence about {it}.", data={"topic": it}) for it in topics
    ]


scenario = shipped(
    "one_sentence",
    _tasks(TRAIN),
    _tasks(HELD_OUT),
    max_turns=1,
    success=succeeded,
    hand_reward=hand_reward,
    measures={"words": words, "names_topic": names_topic},
)


def _player(form: str) -> Player:
    return lambda _task, opening, _dice: playing([form.format(topic=opening.rstrip(".").partition("about ")[2])])


PLAYERS: dict[str, Player] = {
    "expert": _player("Many people like to think about {topic}."),
    "fool": _player(
        "Of course! Here is a sentence about {topic}. " + "I like {topic} very much, and I could talk of it. " * 3
    ),
}
