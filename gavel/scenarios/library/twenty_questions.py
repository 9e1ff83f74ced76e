"""Twenty questions: a simulated user thinks of an animal and answers the agent's questions.

The user answers by a table of facts, without a model; GAVEL_USER_MODEL names a language model to play it.
"""

import json
import os
import random
import re

from gavel.llm.types import Message, Schema, text_of
from gavel.scenarios.library._shared import repeating, shipped
from gavel.scenarios.scripted_agent import Player, Turns
from gavel.scenarios.simulated_user import SimulatedUser
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory

_QUESTIONS = 20
_FACTS = {
    "fly": "owl eagle bat bee butterfly sparrow duck",
    "bird": "owl eagle sparrow duck penguin ostrich",
    "water": "duck penguin whale dolphin shark trout crocodile frog octopus",
    "fish": "shark trout",
    "insect": "bee butterfly ant",
    "mammal": "bat whale dolphin horse cow dog cat mouse elephant lion tiger kangaroo rabbit",
    "fur": "bat horse cow dog cat mouse lion tiger kangaroo rabbit",
    "four legs": "crocodile frog horse cow dog cat mouse elephant lion tiger rabbit",
    "bigger than a person": "ostrich whale dolphin shark crocodile horse cow elephant lion tiger",
    "smaller than a cat": "owl bat bee butterfly sparrow frog mouse ant trout",
    "eat meat": "owl eagle penguin dolphin shark trout crocodile frog octopus dog cat lion tiger bat",
    "pet": "dog cat rabbit mouse",
    "farm": "duck horse cow",
    "night": "owl bat mouse",
    "stripes": "bee tiger",
    "lay eggs": "owl eagle bee butterfly sparrow duck penguin ostrich trout crocodile frog octopus ant",
    "africa": "ostrich crocodile elephant lion",
    "australia": "kangaroo",
    "jump": "frog kangaroo rabbit",
    "sting": "bee ant",
    "arms": "octopus",
    "run fast": "ostrich horse lion tiger dog cat rabbit",
    "neck": "ostrich horse",
    "trunk": "elephant",
    "mane": "horse lion",
}
FACTS = {fact: frozenset(animals.split()) for fact, animals in _FACTS.items()}
"""Facts with the animals for which they hold, by words that a question about a fact contains."""
ANIMALS = sorted({animal for animals in FACTS.values() for animal in animals})
_SYNONYMS = {
    **{"wings": "fly", "swim": "water", "sea": "water", "hair": "fur", "hunt": "eat meat", "house": "pet"},
    **{"large": "bigger than a person", "big": "bigger than a person", "small": "smaller than a cat"},
}


async def answer_by_facts(messages: list[Message], schema: Schema) -> str:
    """A reply in the form of a simulated user's model. The animal is in the first message."""
    secret = re.findall(r"Your animal is: (\w+)", text_of(messages[0]))[0]
    words, done = answer(text_of(messages[-1]), secret)
    return json.dumps({"message": words, "done": done})


def answer(question: str, secret: str) -> tuple[str, bool]:
    """The player's answer to a question, and whether the animal was found."""
    asked = question.casefold()
    facts = [fact for fact in FACTS if re.search(rf"\b{fact}", asked)]
    for fact in facts:
        asked = re.sub(rf"\b{fact}", "it", asked)  # facts may contain animal names themselves
    named = _animals_in(asked)
    facts += [fact for word, fact in _SYNONYMS.items() if re.search(rf"\b{word}", asked) and fact not in facts]
    if len(named) == 1 and not facts:
        return (f"Yes, it is the {secret}.", True) if named == {secret} else ("No.", False)
    if len(facts) == 1 and not named:
        return ("Yes." if secret in FACTS[facts[0]] else "No."), False
    return "I cannot answer that by yes or no.", False


def _animals_in(words: str) -> set[str]:
    return {animal for animal in ANIMALS if re.search(rf"\b{animal}s?\b", words)}


def goal(task: Task) -> str:
    return (
        f"Your animal is: {task.data['animal']}. The assistant asks about it. Answer every question by yes or no, "
        "truly, and say nothing else of the animal. You are done when the assistant has named it."
    )


def succeeded(trajectory: Trajectory) -> bool:
    """Whether the agent's last words name the animal, and no other."""
    said = [message.get("content") or "" for message in trajectory.messages() if message["role"] == "assistant"]
    return _animals_in("".join(said[-1:]).casefold()) == {str(Task.of(trajectory.metadata).data["animal"])}


def hand_reward(trajectory: Trajectory) -> float:
    """A naive hand-written reward: more for fewer questions."""
    return succeeded(trajectory) * (1 - 0.5 * float(trajectory.metrics["turns"]) / _QUESTIONS)


_TASKS = [Task(id=it, user="I think of an animal. Which one is it?", data={"animal": it}) for it in ANIMALS]
scenario = shipped(
    "twenty_questions",
    [task for at, task in enumerate(_TASKS) if at % 4 != 1],
    _TASKS[1::4],
    user=SimulatedUser(os.environ.get("GAVEL_USER_MODEL") or answer_by_facts, persona="a friendly player", goal=goal),
    max_turns=_QUESTIONS,
    success=succeeded,
    hand_reward=hand_reward,
)


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Asks what splits the remaining animals most evenly, and names the last ones."""
    left, asked = set(ANIMALS), set[str]()
    while True:
        fact = min(FACTS, key=lambda fact: (fact in asked, abs(len(FACTS[fact] & left) - len(left) / 2)))
        if not 0 < len(FACTS[fact] & left) < len(left):
            break
        asked.add(fact)
        said = yield f"Does this fit: {fact}?"
        left = left & FACTS[fact] if said.startswith("Yes") else left - FACTS[fact]
    for animal in sorted(left):
        yield f"Is it the {animal}?"


PLAYERS: dict[str, Player] = {"expert": expert, "fool": repeating("Can it fly?")}
