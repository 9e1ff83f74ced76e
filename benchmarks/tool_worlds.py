"""Generated tool worlds: conversations in which an agent reads its tools, calls them, and says what came of it.

    worlds = Worlds(seed=0)
    episode = worlds.draw()         # a system prompt, schemas of tools, and messages in OpenAI's form

Names, ids, fields, values, descriptions and wordings are drawn at random, a third of the words from the whole word list
or made up, so that what is called, and with which arguments, can only be copied from what stands in the conversation.
The rules that some system prompts state are followed in most episodes and broken in some: which of them hold in a job
is what a judge teaches, not these.
"""

import json
import pydoc_data.topics
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

Message = dict[str, Any]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _either(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


NOUNS = _words(
    "order ticket parcel booking account invoice room table flight seat book loan bike repair patient visit course "
    "student exam job server device sensor message email file note task meeting event product item cart shipment "
    "delivery route train bus car rental house flat contract policy claim payment transfer card coupon voucher gift "
    "plant pet dog cat recipe meal menu pizza match player team song album film show concert photo tour trip hotel "
    "guest garden machine part engine printer phone laptop camera case customer member report project shift invoice "
    "request appointment reservation subscription application document locker key boat ship package container desk"
)
THINGS = _words(
    "lamp kettle toaster chair desk blanket jacket boots scarf tent radio camera phone tablet keyboard monitor guitar "
    "drum bicycle helmet novel puzzle wheel brake tyre chain pump saddle bread cheese apple tea coffee cup plate knife "
    "pen paper box bag coat shoe hat shirt ring clock mirror sofa bed carpet brush paint hammer drill saw ladder rope"
)
PEOPLE = _words(
    "Anna Ben Carla David Emma Felix Grace Henry Ida Jonas Karin Leo Maria Nils Olga Paul Rosa Sam Tina Victor Wanda "
    "Yusuf Zoe Smith Miller Garcia Chen Kumar Novak Rossi Silva Weber Berg Khan Ali Sato Kim Lee Brown Jones"
)
WORDS_OF_STATUS = _words(
    "open closed lost paid late new old broken ready waiting shipped delivered cancelled active free full empty gold "
    "silver basic premium red blue green black white small large high low urgent normal damaged opened sealed used"
)
NUMBERS = _words(
    "days price weight age stock seats hours distance points score count level balance year size minutes nights miles "
    "pages guests weeks months quantity amount total rating temperature speed length cost fee"
)
TEXTS = _words("item owner name status color city type kind category product brand place room title group model plan")
FLAGS = _words("opened paid active available damaged insured open urgent used member late broken")
UNITS = ("days", "weeks", "months", "hours", "years", "minutes")
READS = _words(
    "look_up get find read check show fetch view open inspect query load lookup get_details see search retrieve"
)
DESKS = ("desk", "shop", "office", "service", "counter", "help line", "team", "department", "agency", "store", "club")
ENDS = ("Anything else?", "Have a nice day.", "Thank you.", "Best wishes.", "Is there more I can do?")
ASIDES = _either(
    "It was a gift.|I am in a hurry.|Thank you.|Thanks!|It is for my sister.|I wrote last week, too.|"
    "Please be quick.|I do not need it any more.|Something came up.|It does not work.|I changed my mind.|"
    "It is not what I wanted.|Hello.|Good morning.|Hi there,|Dear team,|I need help.|Sorry to bother."
)
REGULAR = _words(
    "cancel confirm close extend approve reject ship book reserve renew block unlock lock restart delete archive "
    "move assign repair replace exchange return deny accept release start stop pause update print publish register "
    "remove add deliver order charge escalate rent clean upgrade activate disable schedule postpone transfer refund "
    "check record report mark collect mend fix reset store sign call contact invite water feed paint wash cook"
)
IRREGULAR = {
    "send": "sent",
    "sell": "sold",
    "buy": "bought",
    "pay": "paid",
    "lend": "lent",
    "give": "given",
    "hold": "held",
}
ASKED = {
    "refund": _either(
        "I want my money back for {x}.|Can I get a refund for {x}?|I would like a refund of {x}.|"
        "Give me my money back for {x}."
    ),
    "return": ("I want to send {x} back.", "{X} has to go back.", "I would like to give {x} back."),
    "exchange": ("I want another one in place of {x}.", "Can I swap {x}?"),
    "cancel": ("I no longer want {x}.", "I can not come, it is about {x}.", "Please call off {x}."),
    "book": ("I would like to have {x}.", "Is {x} free? I want it.", "I need {x}."),
    "reserve": ("Please keep {x} for me.", "I would like to have {x}."),
    "repair": ("{X} is broken.", "{X} does not work any more.", "Can you fix {x}?"),
    "fix": ("{X} is broken.", "{X} does not work."),
    "extend": ("I need more time for {x}.", "Can I keep {x} longer?"),
    "renew": ("I would like to keep {x} longer.", "{X} runs out soon."),
    "send": ("I am waiting for {x}.", "Where is {x}? I need it."),
    "ship": ("I am waiting for {x}.", "When does {x} leave?"),
    "buy": ("I want {x}.", "I will take {x}."),
    "lend": ("May I borrow {x}?", "I would like to borrow {x}."),
    "postpone": ("{X} is too early for me.", "Can {x} be later?"),
    "block": ("I lost {x}.", "Somebody stole {x}."),
    "replace": ("I need a new one for {x}.", "I lost {x}."),
}
ASK_TO = _either(
    "Please {v} {x}.|I want to {v} {x}.|Can you {v} {x}?|I would like to {v} {x}.|{V} {x}.|{V} {x}, please.|"
    "Could you please {v} {x}?|I need you to {v} {x}.|{X} should be {p}.|I want {x} to be {p}.|You must {v} {x}.|"
    "My request: {v} {x}.|Will you {v} {x} for me?|{X}: please {v} it.|We have to {v} {x}.|Let us {v} {x}."
)
ASK_ABOUT = _either(
    "What is the {f} of {x}?|Tell me the {f} of {x}.|I want to know the {f} of {x}.|{X}: {f}?|Which {f} has {x}?|"
    "Can you tell me the {f} of {x}?|How about the {f} of {x}?|Please find out the {f} of {x}.|"
    "Give me the {f} of {x}."
)


@cache
def english() -> str:
    """Prose that comes with Python: its language reference."""
    return "\n".join(str(text) for text in pydoc_data.topics.topics.values())


@cache
def word_list() -> tuple[str, ...]:
    """Lower-case words of that prose, the most frequent first."""
    counted = Counter(re.findall(r"\b[a-z]{3,10}\b", english()))
    return tuple(word for word, times in sorted(counted.items(), key=lambda each: (-each[1], each[0])) if times > 1)


@cache
def sentences() -> tuple[str, ...]:
    """Short sentences of that prose."""
    plain = re.sub(r"\s+", " ", english())
    return tuple(re.findall(r"(?<=\. )[A-Z][a-z ,]{15,70}\.", plain))


@dataclass(slots=True)
class Tool:
    """As the agent sees it."""

    name: str
    description: str
    properties: dict[str, Any]
    optional: set[str] = field(default_factory=set)

    @property
    def schema(self) -> Message:
        required = [name for name in self.properties if name not in self.optional]
        parameters = {"type": "object", "properties": self.properties, "required": required}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }


@dataclass(frozen=True, slots=True)
class Generated:
    """An episode: what the agent was told, and what it did."""

    tools: list[Message]
    messages: list[Message]


@dataclass(slots=True)
class _Act:
    verb: str
    past: str
    tool: Tool
    extra: tuple[str, Any] | None = None
    """A second argument, and its value."""
    said: str = ""
    """How the user names that value; empty where it comes from a result."""


class Worlds:
    """Draws episodes, always the same ones for a seed."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(f"tool worlds {seed}")

    def draw(self, echoes: float = 0.0, long: float = 0.15) -> Generated:
        """The next episode; with probability `echoes` a lesson in which the agent says again what it hears, and
        with probability `long` one of many rules, tools and facts."""
        episode = _Episode(self._dice, long)
        return episode.echo() if self._dice.random() < echoes else episode.play()

    def compare(self) -> Generated:
        """The next lesson in which a number is compared with a limit, in words or before an act."""
        episode = _Episode(self._dice, 0.0)
        return episode.comparison() if self._dice.random() < 0.5 else episode.ruled()


class _Episode:
    def __init__(self, dice: random.Random, long: float) -> None:
        self.dice = dice
        self.strange = dice.random() < 0.3
        """Whether most words are drawn from all words, or made up."""
        self.long = dice.random() < long
        """Whether the system prompt, the tools and the results are many."""
        self.messages: list[Message] = []
        self.noun = self.word(NOUNS)
        self.id_name = dice.choice(
            (
                f"{self.noun}_id",
                f"{self.noun}_id",
                "id",
                self.noun,
                f"{self.noun}_number",
                "number",
                "code",
                "ref",
                self.word(NOUNS),
            )
        )
        self.id_is_number = dice.random() < 0.12
        self.id = self.first_id = self.identifier()
        self.formed = ("", "", "")
        self.facts = self.draw_facts()

    # What everything is called

    def chance(self, share: float) -> bool:
        return self.dice.random() < share

    def word(self, usual: Sequence[str]) -> str:
        if not self.strange and self.chance(0.85):
            return self.dice.choice(usual)
        if self.chance(0.35):
            return self.made_up()
        return self.dice.choice(word_list()[: self.dice.choice((300, 1500, 4000))])

    def made_up(self) -> str:
        syllables = (
            "".join(self.dice.choice(part) for part in ("bcdfghjklmnprstvwz", "aeiou", ("", "", "n", "r", "s", "l")))
            for _ in range(self.dice.randint(1, 3))
        )
        return "".join(syllables)

    def identifier(self) -> Any:
        digits = "".join(self.dice.choice("0123456789") for _ in range(self.dice.choice((2, 3, 4, 4, 4, 5, 6))))
        if self.id_is_number:
            return int(digits.lstrip("0") or "7")
        letters = "".join(self.dice.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(self.dice.choice((1, 1, 2, 3))))
        kind = self.dice.random()
        if kind < 0.66:
            return digits
        if kind < 0.76:
            return f"{letters}{digits}"
        if kind < 0.84:
            return f"{letters}-{digits}"
        if kind < 0.88:
            return f"{letters.lower()}{digits[:2]}"
        if kind < 0.95:
            return self.person() if self.chance(0.5) else self.word(THINGS)
        return f"{self.word(THINGS)}-{digits[:2]}"

    def number(self) -> Any:
        top = self.dice.choice((9, 50, 50, 99, 99, 400, 2000))
        return (
            self.dice.randint(0, top)
            if self.chance(0.93)
            else round(self.dice.uniform(0, top), self.dice.choice((1, 2)))
        )

    def draw_facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        for _ in range(self.dice.randint(4, 9) if self.long else self.dice.choice((1, 2, 2, 3, 3, 4))):
            kind = self.dice.random()
            if kind < 0.45:
                facts[self.word(NUMBERS)] = self.number()
            elif kind < 0.8:
                facts[self.word(TEXTS)] = self.text_value()
            else:
                facts[self.word(FLAGS)] = self.chance(0.5)
        return facts

    def text_value(self) -> str:
        values = self.dice.choice((THINGS, THINGS, PEOPLE, WORDS_OF_STATUS))
        return self.word(values) if values is not PEOPLE else self.person()

    def person(self) -> str:
        """A name, usually one that no other episode has."""
        names = (self.dice.choice(PEOPLE) if self.chance(0.4) else self.made_up().capitalize() for _ in range(2))
        return " ".join(names) if self.chance(0.3) else next(names)

    def verb(self) -> tuple[str, str]:
        if self.strange and self.chance(0.6):
            made = self.word(REGULAR)
            return made, made + ("d" if made.endswith("e") else "ed")
        if self.chance(0.1):
            return self.dice.choice(list(IRREGULAR.items()))
        verb = self.dice.choice(REGULAR)
        return verb, verb + (
            "led" if verb == "cancel" else "pped" if verb in ("ship", "stop") else "d" if verb.endswith("e") else "ed"
        )

    def joined(self, *words: str) -> str:
        """A name of several words."""
        style = self.dice.random()
        if style < 0.85:
            return "_".join(words)
        if style < 0.95:
            return words[0] + "".join(word.capitalize() for word in words[1:])
        return words[0] if self.chance(0.5) else "-".join(words)

    # Tools

    def kind_of(self, value: Any) -> dict[str, Any]:
        if isinstance(value, bool):
            return {"type": "boolean"}
        if isinstance(value, int):
            return {"type": "integer"}
        return {"type": "number"} if isinstance(value, float) else {"type": "string"}

    def reader(self, noun: str, argument: str, value: Any, gives: Sequence[str]) -> Tool:
        verb = self.dice.choice(READS) if self.chance(0.85) else self.word(READS)
        first = gives[0].replace("_", " ")
        describe = self.dice.choice(
            _either(
                "Look up a {n}.|Get the {n}.|Read the {n}.|Show what is known of a {n}.|Get details of a {n}.|"
                "The {f} of a {n}.|Find a {n} by its {a}.|Returns the {n} with this {a}.|Look up the {n}: {all}.|"
                "{all} of a {n}.|Check a {n}.|Read the {f}."
            )
        )
        name = self.dice.choice(
            (
                self.joined(verb, noun),
                self.joined(verb, noun),
                verb,
                noun,
                self.joined(noun, verb),
                self.joined(verb, gives[0]),
            )
        )
        described = describe.format(n=noun, f=first, a=argument.replace("_", " "), all=", ".join(gives))
        return Tool(name, self.described(described), {argument: self.property_of(value)})

    def described(self, text: str) -> str:
        if self.chance(0.12):
            return ""
        text = text[:1].upper() + text[1:]
        if self.chance(0.08):
            text = f"{text} {self.dice.choice(sentences())}"
        return text

    def property_of(self, value: Any) -> dict[str, Any]:
        shape = self.kind_of(value)
        if self.chance(0.04):
            shape["description"] = self.dice.choice(
                (f"the {self.noun}", self.dice.choice(sentences()), "as written in the request")
            )
        return shape

    def act(self) -> _Act:
        verb, past = self.verb()
        named = self.dice.choice(
            (verb, verb, self.joined(verb, self.noun), self.joined(verb, self.noun), self.joined(self.noun, verb))
        )
        describe = self.dice.choice(
            _either(
                "{V} a {n}.|{V} the {n}.|{V} a {n}. Cannot be undone.|{V} it.|Will {v} a {n} by its {a}.|{V}s a {n}.|"
                "{V} the {n} of a customer.|The {n} is {p}.|Use this to {v} a {n}.|Mark a {n} as {p}."
            )
        )
        described = describe.format(v=verb, V=verb.capitalize(), n=self.noun, p=past, a=self.id_name.replace("_", " "))
        act = _Act(verb, past, Tool(named, self.described(described), {self.id_name: self.property_of(self.id)}))
        kind = self.dice.random()
        if kind < 0.1:  # a value that the user names
            value = self.number() if self.chance(0.6) else self.text_value()
            name = self.word(NUMBERS if not isinstance(value, str) else TEXTS)
            self.extend(
                act,
                name,
                value,
                self.property_of(value),
                self.dice.choice((" {a} {v}", " with {a} {v}", " to {v}", " for {v} {a}", ", {a}: {v}")),
            )
        elif kind < 0.17:  # one of several
            options = [self.word(WORDS_OF_STATUS) for _ in range(self.dice.randint(2, 4))]
            value = self.dice.choice(options)
            self.extend(
                act,
                self.dice.choice(("reason", "kind", "mode", "size", self.word(TEXTS))),
                value,
                {"type": "string", "enum": options},
                self.dice.choice((" as {v}", ", it is {v}", " because it is {v}", " ({v})")),
            )
        elif kind < 0.27 and self.facts:  # a value of the result
            name, value = self.dice.choice(list(self.facts.items()))
            if not isinstance(value, bool):
                act.extra = (name, value)
                act.tool.properties[name] = self.property_of(value)
        return act

    def extend(self, act: _Act, name: str, value: Any, shape: dict[str, Any], said: str) -> None:
        if name in act.tool.properties:
            return
        act.tool.properties[name] = shape
        act.extra, act.said = (name, value), said.format(a=name.replace("_", " "), v=value)

    # What is said

    def of(self) -> str:
        """The thing that it is about, in the user's words."""
        noun = self.noun.replace("_", " ")
        if not isinstance(self.id, int) and self.id[0].isalpha() and not any(map(str.isdigit, self.id)):
            return self.dice.choice(
                (f"{noun} {self.id}", f"the {noun} {self.id}", f"{self.id}", f"the {noun} of {self.id}")
            )
        return self.dice.choice(
            (
                f"{noun} {self.id}",
                f"{noun} {self.id}",
                f"{noun} {self.id}",
                f"the {noun} {self.id}",
                f"my {noun} {self.id}",
                f"{self.id}",
                f"{noun} number {self.id}",
                f"{noun} no. {self.id}",
            )
        )

    def filled(self, template: str, act: _Act | None = None, about: str = "") -> str:
        x = self.of()
        parts: dict[str, str] = {"x": x, "X": x[:1].upper() + x[1:], "f": about.replace("_", " ")}
        if act is not None:
            parts |= {"v": act.verb, "V": act.verb.capitalize(), "p": act.past}
        return template.format(**parts)

    def request(self, act: _Act) -> str:
        ways = ASKED.get(act.verb, ()) if self.chance(0.6) else ()
        said = self.filled(self.dice.choice(ways or ASK_TO), act)
        if act.said:
            said = said[:-1] + act.said + said[-1]
        return self.with_asides(said)

    def with_asides(self, said: str) -> str:
        if self.chance(0.12):
            said = f"{self.dice.choice(ASIDES)} {said}"
        if self.chance(0.12):
            said = f"{said} {self.dice.choice(ASIDES) if self.chance(0.7) else self.dice.choice(sentences())}"
        return (
            said
            if self.chance(0.9)
            else said.lower()
            if self.chance(0.5) and not re.search("[A-Z]", str(self.id))
            else said.rstrip(".")
        )

    def policy(self) -> str:
        """A sentence of a handbook, about anything."""
        verb, past = self.verb()
        return self.dice.choice(
            _either(
                "A {n} with {f} {v} is {p}.|{V} a {n} only if the {f} is {w}.|The {f} of a {n} is at most {v}.|"
                "Customers with {f} {w} may {v1} {v} {n}s.|{n}s are never {p} on a day with {f} {v}.|"
                "Before you {v1} a {n}, read its {f}.|If the {f} is over {v}, {v1} the {n}.|"
                "A {w} {n} costs {v} and can be {p}.|Each {n} has a {f} from {v} to {v2}.|"
                "Always give the {f} when you {v1} a {n}.|{n}s of {w} are {p} after {v} {f}.|"
                "Never {v1} two {n}s at once.|Ask for the {f} before a {n} is {p}.|Without a {f} nothing is {p}.|"
                "- {w}: {f} up to {v}, may be {p}|- no {n} under {v} {f}"
            )
        ).format(
            n=self.word(NOUNS),
            f=self.word(NUMBERS if self.chance(0.6) else TEXTS),
            v=self.number(),
            v2=self.number(),
            w=self.word(WORDS_OF_STATUS),
            V=verb.capitalize(),
            v1=verb,
            p=past,
        )

    def system(self, rules: Sequence[str]) -> str:
        noun = self.noun.replace("_", " ")
        opening = self.dice.choice(
            _either(
                "You run the {n} {d}.|You work at the {n} {d}.|You are the assistant of a {n} {d}.|"
                "You help customers of a {n} {d}.|You answer for the {n} {d}.|You are an agent with tools.|"
                "You are a helpful assistant.|You look after {n}s.|You are in charge of the {n}s of a {w}.|"
            )
        ).format(n=noun, d=self.dice.choice(DESKS), w=self.word(DESKS))
        more = [rule for rule in rules if rule]
        if self.chance(0.3):
            more.append(
                self.dice.choice(
                    (
                        "Look before you act.",
                        "Use the tools.",
                        "Be brief.",
                        "Say what you did.",
                        "End with a sentence to the customer.",
                        "Be polite.",
                        f"First read the {noun}, then act.",
                        "Answer in one sentence.",
                        "Never guess.",
                        "When done, tell the customer.",
                        self.dice.choice(sentences()),
                    )
                )
            )
        more += [
            self.policy() if self.chance(0.85) else self.dice.choice(sentences())
            for _ in range(self.dice.randint(3, 40) if self.long else self.dice.choice((0, 0, 0, 0, 0, 1, 2)))
        ]
        self.dice.shuffle(more)
        return ("\n" if self.chance(0.15) else " ").join(text for text in (opening, *more) if text)

    # What happens

    def call(self, tool: Tool, arguments: Mapping[str, Any], result: Any) -> None:
        order = [name for name in tool.properties if name in arguments]
        made = {
            "name": tool.name,
            "arguments": json.dumps({name: arguments[name] for name in order}, ensure_ascii=False),
        }
        number = f"call_{len(self.messages)}"
        self.messages.append(
            {"role": "assistant", "content": "", "tool_calls": [{"id": number, "type": "function", "function": made}]}
        )
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        self.messages.append({"role": "tool", "tool_call_id": number, "content": text})

    def end(self, *sentences: str) -> None:
        text = self.dice.choice(sentences)
        text = text[:1].upper() + text[1:]
        if self.chance(0.06):
            text = f"{text} {self.dice.choice(ENDS)}"
        self.messages.append({"role": "assistant", "content": text})

    def failed(self) -> dict[str, str]:
        return {
            "error": self.dice.choice(
                _either(
                    "no {n} {i}|{n} {i} was not found|unknown {n}|LookupError: no {n} {i}|KeyError: '{i}'|not found|"
                    "there is no {n} {i}"
                )
            ).format(n=self.noun, i=self.id)
        }

    def shown(self, facts: Mapping[str, Any]) -> Any:
        """Facts as a tool tells them."""
        items = list(facts.items())
        style = self.dice.random()
        if style < 0.78:
            if self.chance(0.15):
                items.insert(0, (self.id_name, self.id))
            return dict(items)
        if style < 0.9:
            return ", ".join(
                f"{name} {json.dumps(value) if isinstance(value, bool) else value}" for name, value in items
            )
        return f"{self.noun} {self.id}: " + ", ".join(f"{name} {value}" for name, value in items)

    def rule(self, act: _Act) -> tuple[str, bool, Sequence[str]] | None:
        """What the system prompt says about when to act, whether it allows this, and refusals."""
        verb, past, noun = act.verb, act.past, self.noun.replace("_", " ")
        name = self.dice.choice(list(self.facts))
        value: Any = self.facts[name]
        told = name.replace("_", " ")
        sorry = self.dice.choice(("I am sorry, ", "Sorry, ", "", "No: ", "I can not do that: ", "I am afraid "))
        if isinstance(value, bool):
            wanted = self.chance(0.5)
            no = "" if wanted else "not "
            text = self.dice.choice(
                _either(
                    "{V} only when it is {no}{f}.|{V} {n}s that are {no}{f}.|Never {v} a {n} that is {yes}{f}.|"
                    "It must be {no}{f} to be {p}."
                )
            )
            refusals = (
                f"{sorry}it is {'not ' if wanted else ''}{told}.",
                f"{sorry}only {no}{told} {noun}s can be {past}.",
                f"{sorry}I can not {verb} it.",
            )
            return (
                text.format(V=verb.capitalize(), v=verb, n=noun, f=told, no=no, yes="not " if wanted else "", p=past),
                value == wanted,
                refusals,
            )
        if isinstance(value, str):
            wanted = value if self.chance(0.5) else self.word(WORDS_OF_STATUS)
            denies = self.chance(0.5)
            text = self.dice.choice(
                ("Never {v} when the {f} is {w}.", "Do not {v} {w} {n}s.")
                if denies
                else ("{V} only when the {f} is {w}.", "{V} only {w} {n}s.")
            )
            refusals = (
                f"{sorry}the {told} is {value}.",
                f"{sorry}{'no ' if denies else 'only '}{wanted} {noun}s can be {past}.",
                f"{sorry}I can not {verb} it.",
            )
            return (
                text.format(V=verb.capitalize(), v=verb, f=told, w=wanted, n=noun),
                (value == wanted) != denies,
                refusals,
            )
        limit = (
            self.dice.choice((5, 7, 10, 14, 15, 20, 21, 25, 30, 30, 30, 40, 45, 50, 60, 90, 100, 200, 500))
            if self.chance(0.7)
            else self.dice.randint(1, 99)
        )
        if self.chance(0.75):  # so that the limit divides the values
            value = self.dice.randint(0, 2 * limit)
            self.facts[name] = value
        unit = f" {told}" if told in UNITS else ""
        upper = self.chance(0.7)
        if upper:
            text = self.dice.choice(
                _either(
                    "{V} only when {f} is at most {l}.|{V} {n}s with at most {l} {f}.|"
                    "{V} what is at most {l} {f} old.|{V} what was bought at most {l} {f} ago.|"
                    "Never {v} when {f} is more than {l}.|{V} up to {l} {f}.|Only {n}s of at most {l} {f} are {p}.|"
                    "{V} within {l} {f}.|{V} if {f} <= {l}.|No {n} over {l} {f} is {p}."
                )
            )
            refusals = (
                f"{sorry}that is more than {limit}{unit or ' ' + told}.",
                f"{sorry}only up to {limit}{unit or ' ' + told}.",
                f"{sorry}{told} is {value}, more than {limit}.",
                f"{sorry}it is over {limit} {told}.",
                f"{sorry}I can not {verb} it after {limit} {told}.",
                f"{sorry}{value} {told} is too much.",
                f"{sorry}the limit is {limit} {told}.",
            )
        else:
            text = self.dice.choice(
                _either(
                    "{V} only when {f} is at least {l}.|{V} {n}s with at least {l} {f}.|{V} if {f} is {l} or more.|"
                    "Never {v} below {l} {f}.|{V} if {f} >= {l}."
                )
            )
            refusals = (
                f"{sorry}that is less than {limit} {told}.",
                f"{sorry}{told} is {value}, less than {limit}.",
                f"{sorry}it needs at least {limit} {told}.",
                f"{sorry}I can not {verb} it below {limit} {told}.",
            )
        return (
            text.format(V=verb.capitalize(), v=verb, n=noun, f=told, l=limit, p=past),
            (value <= limit) if upper else (value >= limit),
            refusals,
        )

    def do(self, act: _Act) -> None:
        """Acts, and tells."""
        arguments = {self.id_name: self.id} | ({} if act.extra is None else dict([act.extra]))
        named = next((value for value in self.facts.values() if isinstance(value, str)), self.noun)
        code = f"{self.dice.choice('ABCDEFGHKLMNPRSTUVWXYZ')}{self.dice.randint(10, 999)}"
        result: Any = self.dice.choice(
            (
                f"{act.past} {self.id}",
                f"{act.past} {named}",
                f"{act.past}",
                "ok",
                "done",
                {"ok": True},
                {"status": act.past},
                {act.past: self.id},
                f"{self.noun} {self.id} {act.past}",
                {"status": act.past, "code": code},
                f"{act.past}, code {code}",
                {self.id_name: self.id, "result": "ok"},
            )
        )
        self.call(act.tool, arguments, result)
        noun = self.noun.replace("_", " ")
        if code in json.dumps(result):
            self.end(
                f"{noun} {self.id} is {act.past}. The code is {code}.",
                f"Done, your code is {code}.",
                f"I have {act.past} it, code {code}.",
                f"It is {act.past}: {code}.",
            )
            return
        told = [
            f"{noun} {self.id} is {act.past}.",
            f"I have {act.past} {noun} {self.id}.",
            f"Your {noun} is {act.past}.",
            f"I have {act.past} it.",
            f"I {act.past} your {noun}.",
            f"Done. {noun.capitalize()} {self.id} was {act.past}.",
            f"Your {noun} {self.id} was {act.past}.",
            f"It is {act.past}.",
        ]
        if isinstance(result, str) and len(result) > 5:
            told += [f"{result}.", f"Done: {result}.", f"I have {result}."]
        if named != self.noun:
            told += [f"I have {act.past} your {named}.", f"The {named} is {act.past}.", f"Your {named} was {act.past}."]
        self.end(*told)

    def play(self) -> Generated:
        kind = self.dice.random()
        reader = self.reader(self.noun, self.id_name, self.id, list(self.facts))
        acts: dict[str, _Act] = {}
        for _ in range(self.dice.choice((1, 1, 1, 2, 2, 3, 4))):
            made = self.act()
            acts.setdefault(made.verb, made)
        act, *others = acts.values()
        tools = [reader, *(each.tool for each in acts.values())]
        rules: list[str] = []
        if kind < 0.14:
            user = self.asked_about(reader)
        elif kind < 0.24:
            user = self.act_at_once(act)
        elif kind < 0.30:
            user = self.unknown(reader, act)
        elif kind < 0.42:
            user = self.by_list(tools, act)
        elif kind < 0.45:
            user = self.words_only()
        elif kind < 0.57:
            user = self.fill_in(tools, rules, act)
        else:
            user = self.look_and_act(tools, rules, act, others, reader, chain=kind > 0.82)
        if self.chance(0.1) and "tool_calls" in self.messages[0]:
            user = self.asks_first(user)

        distinct: dict[str, Tool] = {}
        for tool in tools:
            distinct.setdefault(tool.name, tool)
        if len(distinct) < len(tools):
            return _Episode(self.dice, self.long).play()
        while len(tools) < 9 and self.chance(0.7 if self.long else 0.1):  # others that are not needed
            noun = self.word(NOUNS)
            tool = self.reader(noun, self.dice.choice((f"{noun}_id", self.word(TEXTS))), "x", [self.word(TEXTS)])
            if self.chance(0.5):
                tool = self.form()[0]
            if tool.name not in distinct:
                distinct[tool.name] = tool
                tools.append(tool)
        if self.chance(0.3):
            self.dice.shuffle(tools)
        system = self.system(rules)
        opening = [{"role": "system", "content": system}] if system else []
        return Generated([tool.schema for tool in tools], [*opening, {"role": "user", "content": user}, *self.messages])

    def echo(self) -> Generated:
        """The shortest lesson in copying: the user's words again, or those between two marks."""
        values = [
            str(
                self.dice.choice(
                    (self.identifier, self.number, self.text_value, self.made_up, lambda: self.word(TEXTS))
                )()
            )
            for _ in range(self.dice.randint(1, 6))
        ]
        text = self.dice.choice((" ", " ", ", ", "_")).join(values)
        if self.chance(0.5):
            return Generated([], [{"role": "user", "content": text}, {"role": "assistant", "content": text}])
        name = self.word(NUMBERS)
        facts = (
            {self.word(TEXTS): self.text_value() for _ in range(self.dice.randint(0, 2))}
            | {name: values[0]}
            | {self.word(TEXTS): self.identifier() for _ in range(self.dice.randint(0, 2))}
        )
        messages = [
            {"role": "user", "content": json.dumps(facts)},
            {"role": "assistant", "content": f"{name}: {facts[name]}"},
        ]
        return Generated([], messages)

    def asks_first(self, user: str) -> str:
        """The agent must ask for the number; what the user wanted comes without it."""
        named = str(self.id)
        if named not in user or self.first_id != self.id:
            return user
        asked = self.dice.choice(
            ("What is the {a}?", "Please tell me the {a}.", "Which {n} is it?", "May I have the {a}?")
        ).format(a=self.id_name.replace("_", " "), n=self.noun.replace("_", " "))
        told = self.dice.choice(("{i}", "It is {i}.", "{n} {i}", "The {a} is {i}.", "{i}, please.")).format(
            i=named, n=self.noun.replace("_", " "), a=self.id_name.replace("_", " ")
        )
        self.messages[:0] = [{"role": "assistant", "content": asked}, {"role": "user", "content": told}]
        return (
            user.replace(f" no. {named}", "")
            .replace(f" number {named}", "")
            .replace(f" {named}", "")
            .replace(named, f"a {self.noun}")
        )

    def form(self) -> tuple[Tool, dict[str, tuple[Any, str]]]:
        """A tool of two to four arguments; of each its value and how the user says it."""
        verb, past = self.verb() if self.chance(0.6) else (self.dice.choice(READS), "found")
        noun = self.word(NOUNS)
        shapes: dict[str, Any] = {}
        said: dict[str, tuple[Any, str]] = {}
        for _ in range(self.dice.choice((2, 2, 3, 3, 4))):
            kind = self.dice.random()
            if kind < 0.5:
                name, value = (
                    self.word(
                        (*NUMBERS, "first_day", "last_day", "from_night", "to_night", "people", "max_price", "hour")
                    ),
                    self.number(),
                )
                way = self.dice.choice(
                    _either("{a} {v}|for {v} {a}|with {a} {v}|{v} {a}|from {a} {v}|to {a} {v}|at most {v} {a}")
                )
            elif kind < 0.85:
                name, value = (
                    self.word((*TEXTS, "from_city", "to_city", "guest", "customer", "person")),
                    self.text_value(),
                )
                way = self.dice.choice(
                    ("{a} {v}", "for {v}", "from {v}", "to {v}", "with {a} {v}", "named {v}", "{v}", "the {a} is {v}")
                )
            else:
                options = [self.word(WORDS_OF_STATUS) for _ in range(self.dice.randint(2, 3))]
                name, value = self.word(("kind", "mode", "size", "fare", "class", "level")), self.dice.choice(options)
                shapes[name] = {"type": "string", "enum": options}
                way = "{v}"
            if name in said:
                continue
            shapes.setdefault(name, self.property_of(value))
            said[name] = (value, way.format(a=name.replace("_", " "), v=value))
        name = self.joined(verb, noun) if self.chance(0.8) else verb
        described = self.dice.choice(
            ("{V} a {n}.", "{V} {n}s.", "{V} a {n} with this {a}.", "{V} the {n} of a customer.")
        ).format(V=verb.capitalize(), n=noun, a=next(iter(said)).replace("_", " "))
        tool = Tool(name, self.described(described), shapes)
        self.formed = (verb, past, noun)
        return tool, said

    def fill_in(self, tools: list[Tool], rules: list[str], act: _Act) -> str:
        """One call whose arguments all stand in the request, in any order; a list may follow, then an act on one."""
        tool, said = self.form()
        verb, past, noun = self.formed
        if self.chance(0.15) and len(said) > 1:  # one that is not asked for
            left_out = self.dice.choice(list(said))
            del said[left_out]
            tool.optional.add(left_out)
        parts = [way for _, way in said.values()]
        self.dice.shuffle(parts)
        text = self.dice.choice(
            _either(
                "{V} a {n} {p}.|Please {v} a {n}, {p}.|I want to {v} a {n} {p}.|I need a {n} {p}. Please {v} it.|"
                "{p}: {v} a {n}.|Can you {v} a {n} {p}?|A {n} {p}, please."
            )
        ).format(V=verb.capitalize(), v=verb, n=noun, p=self.dice.choice((" ", ", ", " and ", ", ")).join(parts))
        values = {name: value for name, (value, _) in said.items()}
        tools[0] = tool
        if self.chance(0.5):
            self.noun = noun
            ids = [self.identifier() for _ in range(self.dice.choice((1, 2, 2, 3, 5)))]
            names = [self.word(NUMBERS), self.word(TEXTS)][: self.dice.choice((0, 1, 1, 2))]
            self.call(
                tool,
                values,
                [
                    {self.id_name: each}
                    | {name: self.number() if at == 0 else self.text_value() for at, name in enumerate(names)}
                    for each in ids
                ],
            )
            self.id = ids[0]
            if self.chance(0.6):
                act.tool.properties, act.extra = {self.id_name: self.property_of(self.id)}, None
                if said and self.chance(0.5):
                    name = self.dice.choice(list(said))
                    if name != self.id_name:
                        act.tool.properties[name], act.extra = tool.properties[name], (name, values[name])
                self.facts = {}
                self.do(act)
            else:
                self.end(
                    f"I found {noun} {self.id}.",
                    f"{noun} {self.id}.",
                    f"there is {noun} {self.id}.",
                    f"I found {len(ids)}: {', '.join(map(str, ids))}.",
                )
            return self.with_asides(text)
        code = f"{self.dice.choice('ABCDEFGHKLMNPRSTUVWXYZ')}{self.dice.randint(10, 999)}"
        result: Any = self.dice.choice(
            (
                "ok",
                past,
                f"{noun} {past}",
                {"status": past},
                {"code": code},
                {self.id_name: self.id},
                f"{past}, code {code}",
            )
        )
        self.call(tool, values, result)
        shown = json.dumps(result)
        if code in shown:
            self.end(
                f"Done, your code is {code}.",
                f"The {noun} is {past}, code {code}.",
                f"It is {past}. The code is {code}.",
            )
        elif str(self.id) in shown:
            self.end(
                f"The {noun} is {past}: {self.id}.",
                f"Done. It is {noun} {self.id}.",
                f"Your {self.id_name.replace('_', ' ')} is {self.id}.",
            )
        else:
            self.end(
                f"The {noun} is {past}.",
                f"I have {past} the {noun}.",
                "Done.",
                f"Your {noun} is {past}, {self.dice.choice(parts)}.",
            )
        return self.with_asides(text)

    def comparison(self) -> Generated:
        """The shortest lesson in rules: a limit, a fact, and which side of the limit it is on."""
        limit = (
            self.dice.choice((7, 10, 14, 20, 30, 30, 30, 45, 50, 60, 90))
            if self.chance(0.5)
            else self.dice.randint(2, 99)
        )
        name, value = self.word(NUMBERS), self.dice.randint(0, 2 * limit)
        verb, past = self.verb()
        told = name.replace("_", " ")
        rule = self.dice.choice(
            _either(
                "At most {l} {f}.|{V} only when {f} is at most {l}.|{V} what is at most {l} {f} old."
                "|{V} up to {l} {f}.|{V} within {l} {f}."
                "|Never {v} when {f} is more than {l}.|No more than {l} {f}.|{V} if {f} <= {l}."
            )
        ).format(V=verb.capitalize(), v=verb, l=limit, f=told)
        fact = self.dice.choice((json.dumps({name: value}), f"{told} {value}", f"{value} {told}", str(value)))
        if self.chance(0.3) and not fact.startswith("{"):
            fact = f"{fact}. Can you {verb} it?"
        said = self.dice.choice(
            (f"yes, it can be {past}.", "yes.", f"{value} is at most {limit}.", f"I {verb} it.")
            if value <= limit
            else (
                f"no, that is more than {limit} {told}.",
                "no.",
                f"{value} is more than {limit}.",
                f"I am sorry, only up to {limit} {told}.",
            )
        )
        said = said[:1].upper() + said[1:]
        return Generated(
            [],
            [{"role": role, "content": text} for role, text in (("system", rule), ("user", fact), ("assistant", said))],
        )

    def ruled(self) -> Generated:
        """The shortest world with a rule, which is kept: one fact, one act."""
        self.facts = {self.word(NUMBERS): self.number()}
        act = self.act()
        act.tool.properties, act.extra, act.said = {self.id_name: self.property_of(self.id)}, None, ""
        reader = self.reader(self.noun, self.id_name, self.id, list(self.facts))
        rule = self.rule(act)
        if rule is None or reader.name == act.tool.name:
            return self.comparison()
        text, allowed, refusals = rule
        user = self.request(act)
        self.call(reader, {self.id_name: self.id}, self.shown(self.facts))
        if allowed:
            self.do(act)
        else:
            self.end(*refusals)
        opening = [{"role": "system", "content": text}, {"role": "user", "content": user}]
        return Generated([reader.schema, act.tool.schema], [*opening, *self.messages])

    def asked_about(self, reader: Tool) -> str:
        about, value = self.dice.choice(list(self.facts.items()))
        self.call(reader, {self.id_name: self.id}, self.shown(self.facts))
        told = json.dumps(value) if isinstance(value, bool) else str(value)
        name, noun = about.replace("_", " "), self.noun.replace("_", " ")
        self.end(
            f"the {name} is {told}.",
            f"the {name} of {noun} {self.id} is {told}.",
            f"{told}.",
            f"{noun} {self.id}: {name} {told}.",
            f"it has {name} {told}.",
        )
        return self.with_asides(self.filled(self.dice.choice(ASK_ABOUT), about=about))

    def act_at_once(self, act: _Act) -> str:
        if act.extra is not None and not act.said:  # the value is known from nothing
            del act.tool.properties[act.extra[0]]
            act.extra = None
        self.do(act)
        return self.request(act)

    def unknown(self, reader: Tool, act: _Act) -> str:
        noun = self.noun.replace("_", " ")
        acts = self.chance(0.7)
        said = (
            self.request(act)
            if acts
            else self.with_asides(self.filled(self.dice.choice(ASK_ABOUT), about=next(iter(self.facts))))
        )
        self.call(
            reader if not acts or self.chance(0.6) or (act.extra and not act.said) else act.tool,
            {self.id_name: self.id} | (dict([act.extra]) if act.extra and act.said else {}),
            self.failed(),
        )
        self.end(
            f"I can not find {noun} {self.id}.",
            f"there is no {noun} {self.id}.",
            f"sorry, I do not know {noun} {self.id}.",
            f"I am sorry, there is no such {noun}.",
            f"{noun} {self.id} was not found.",
        )
        return said

    def words_only(self) -> str:
        said, answers = self.dice.choice(
            (
                (
                    ("Hello.", "Good morning.", "Hi.", "Hello there."),
                    ("Hello, what can I do for you?", "How can I help you?", "Good morning. How can I help?"),
                ),
                (("Thank you.", "Thanks.", "That is all."), ("You are welcome.", "Have a nice day.")),
                (("Who are you?", "What can you do?"), ("I can help you with your {n}.", "I look after {n}s.")),
                (
                    ("I have a question about a {n}.", "It is about my {n}.", "Can you help me with a {n}?"),
                    ("Which {n} is it?", "Please tell me the {a}.", "What is the {a}?"),
                ),
            )
        )
        parts = {"n": self.noun.replace("_", " "), "a": self.id_name.replace("_", " ")}
        self.end(self.dice.choice(answers).format(**parts))
        return self.dice.choice(said).format(**parts)

    def by_list(self, tools: list[Tool], act: _Act) -> str:
        """Searches by a value that the user names, then acts on one that was found."""
        noun = self.noun.replace("_", " ")
        by, wanted = self.word(TEXTS), self.text_value()
        introduced = self.chance(0.3)
        if introduced:
            by, wanted = (
                self.dice.choice(_words("guest customer name person owner passenger member")),
                self.person(),
            )
        search = self.dice.choice(
            (
                self.joined(self.dice.choice(("search", "find", "list", "show")), f"{self.noun}s"),
                self.joined("search", self.noun),
                self.joined("list", self.noun),
                self.joined("find", self.noun, "by", by),
            )
        )
        finder = Tool(
            search,
            self.described(
                self.dice.choice(
                    (
                        f"Find {noun}s by {by}.",
                        f"List the {noun}s of a {by}.",
                        f"Search {noun}s.",
                        f"{noun}s with this {by}.",
                    )
                )
            ),
            {by: self.property_of(wanted)},
        )
        tools[0] = finder
        number = self.dice.choice(NUMBERS)
        found = [
            self.id,
            *(
                self.identifier()
                for _ in range(self.dice.randint(2, 8) if self.long else self.dice.choice((0, 1, 1, 2)))
            ),
        ]
        values = [self.dice.randint(1, 99) for _ in found]
        pick, said = 0, ""
        if len(found) > 1 and len(set(values)) == len(values) and self.chance(0.4):
            least = self.chance(0.5)
            pick = values.index(min(values) if least else max(values))
            said = f" The one with the {'lowest' if least else 'highest'} {number}."
        elif len(found) > 1 and self.chance(0.3):
            pick = self.dice.randrange(len(found))
            said = f" The one with {number} {values[pick]}."
        style = self.chance(0.7)
        self.call(
            finder,
            {by: wanted},
            [{self.id_name: each, number: value} for each, value in zip(found, values, strict=True)]
            if style
            else ", ".join(f"{each} ({number} {value})" for each, value in zip(found, values, strict=True)),
        )
        self.id = found[pick]
        if self.chance(0.3):
            self.end(
                f"I found {noun} {self.id}.",
                f"{noun} {self.id} has {number} {values[pick]}.",
                f"there is {noun} {self.id}, {number} {values[pick]}.",
                f"{self.id}.",
            )
            return self.with_asides(
                self.dice.choice(
                    _either("I am {w}. Which {n} do I have?|My name is {w}. Where is my {n}?|{w}: show me my {n}s.")
                    if introduced
                    else _either(
                        "Find a {n} with {b} {w}.|Which {n} has {b} {w}?|Is there a {n} with {b} {w}?|"
                        "I am looking for a {n}, {b} {w}.|Show me a {w} {n}."
                    )
                ).format(n=noun, b=by, w=wanted)
                + said
            )
        if act.extra is not None and not act.said:
            del act.tool.properties[act.extra[0]]
            act.extra = None
        text = self.dice.choice(
            _either(
                "I am {w}. Please {v} my {n}{s}.|Hello, I am {w}. {V} my {n}{s}.|My name is {w}. Can you {v} my {n}{s}?"
                "|This is {w}. I want to {v} my {n}{s}.|{V} the {n} of {w}{s}."
            )
            if introduced
            else _either(
                "{V} a {n} with {b} {w}{s}.|Please {v} a {n}, {b} {w}{s}.|I want to {v} a {w} {n}{s}.|"
                "Can you {v} the {n} of {w}{s}?|Find a {n} with {b} {w} and {v} it{s}."
            )
        ).format(V=act.verb.capitalize(), v=act.verb, n=noun, b=by, w=wanted, s=act.said)
        self.facts = {by: wanted}
        self.do(act)
        return self.with_asides(text + said)

    def look_and_act(
        self, tools: list[Tool], rules: list[str], act: _Act, others: list[_Act], reader: Tool, *, chain: bool
    ) -> str:
        """Looks, in a chain also at what the first result names; then acts, refuses, or does another thing."""
        noun = self.noun.replace("_", " ")
        allowed, refusals = (
            self.chance(0.7),
            [
                f"I am sorry, I can not {act.verb} {noun} {self.id}.",
                f"sorry, {noun} {self.id} can not be {act.past}.",
                f"I can not {act.verb} it.",
                f"{noun} {self.id} is not {act.past}.",
            ],
        )
        ruled = self.rule(act) if self.chance(0.75) else None
        if act.extra is not None and not act.said:
            act.extra = (act.extra[0], self.facts[act.extra[0]])
        if ruled is not None:
            text, by_rule, why = ruled
            rules.append(text)
            refusals = [*why, *(refusals[:1])]
            allowed = by_rule if self.chance(0.85) else self.chance(0.5)
        instead = others[0] if others and self.chance(0.25) else None
        if instead is not None and (instead.extra is None or instead.said == ""):
            if instead.extra is not None:
                instead.extra = (instead.extra[0], self.facts[instead.extra[0]])
            rules.append(
                self.dice.choice(
                    (f"Otherwise {instead.verb} it.", f"Else {instead.verb} the {noun}.", f"If not, {instead.verb}.")
                )
            )
        else:
            instead = None
        first = dict(self.facts)
        second: dict[str, Any] = {}
        link = next((name for name, value in first.items() if isinstance(value, str)), None)
        if chain and link is not None:
            if len(first) > 1 and self.chance(0.6):  # a part of the facts stands in the second result
                for name in [name for name in first if name != link][: self.dice.randint(1, 2)]:
                    second[name] = first.pop(name)
            else:
                second = {self.word(NUMBERS): self.number()}
        looks = self.chance(0.9) or (act.extra is not None and not act.said)
        said = self.request(act)
        if looks:
            self.call(reader, {self.id_name: self.id}, self.shown(first))
            if second and link is not None:
                about = self.dice.choice((link, link, "name", "key", self.word(TEXTS)))
                what = self.dice.choice(("policy", "rules", "price", "stock", "details", "terms", self.word(NOUNS)))
                reader_2 = self.reader(what, about, first[link], list(second))
                reader_2.description = reader_2.description and self.dice.choice(
                    (
                        f"Read the {what} of a {link}.",
                        f"The {what} of this {link}.",
                        f"Get the {what} for a {link}.",
                        reader_2.description,
                    )
                )
                tools.insert(1, reader_2)
                self.call(reader_2, {about: first[link]}, self.shown(second))
        if allowed:
            self.do(act)
        elif instead is not None:
            self.do(instead)
        else:
            self.end(*refusals)
        return said
