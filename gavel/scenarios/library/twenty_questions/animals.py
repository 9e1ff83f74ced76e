"""What is true of the animals, and a player without a model who answers questions by it."""

import json
import re

from gavel.llm.message_parts import text_of
from gavel.llm.types import Message, Schema

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
"""The animals of which a fact is true, by words that a question about it has."""
ANIMALS = sorted({animal for animals in FACTS.values() for animal in animals})
_SYNONYMS = {
    "wings": "fly",
    "swim": "water",
    "sea": "water",
    "hair": "fur",
    "large": "bigger than a person",
    "big": "bigger than a person",
    "small": "smaller than a cat",
    "hunt": "eat meat",
    "house": "pet",
}


async def answer_by_facts(messages: list[Message], schema: Schema) -> str:
    """A reply as a simulated user's model gives it. The animal is in the first message."""
    secret = re.findall(r"Your animal is: (\w+)", text_of(messages[0]))[0]
    words, done = answer(text_of(messages[-1]), secret)
    return json.dumps({"message": words, "done": done})


def answer(question: str, secret: str) -> tuple[str, bool]:
    """What the player says to a question, and whether the animal is found."""
    asked = question.casefold()
    facts = [fact for fact in FACTS if re.search(rf"\b{fact}", asked)]
    for fact in facts:
        asked = re.sub(rf"\b{fact}", "it", asked)  # some name an animal themselves
    named = [animal for animal in ANIMALS if re.search(rf"\b{animal}s?\b", asked)]
    facts += [fact for word, fact in _SYNONYMS.items() if re.search(rf"\b{word}", asked) and fact not in facts]
    if len(named) == 1 and not facts:
        return (f"Yes, it is the {secret}.", True) if named == [secret] else ("No.", False)
    if len(facts) == 1 and not named:
        return ("Yes." if secret in FACTS[facts[0]] else "No."), False
    return "I cannot answer that by yes or no.", False
