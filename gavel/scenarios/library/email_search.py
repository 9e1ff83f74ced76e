"""Email search: find the one mail that answers a question, read it, and answer with it as the source.

Every episode has its own mailbox, in SQLite's full-text index. Success is the exact answer from the right mail, which
must have been read.

Mailbox and question follow from the number of the task. Around the right mail stand near misses: earlier versions of
it, the same from another sender, and the same sender on another thing. So a search alone, without reading and
comparing, finds a wrong answer more often than the right one.
"""

import random
import re
import sqlite3
from collections.abc import Callable

from pydantic import BaseModel

from gavel.scenarios.library._shared import ask, drawn, shipped
from gavel.scenarios.scripted_agent import Call, Player, Turns
from gavel.scenarios.task import Task
from gavel.scenarios.tools import done
from gavel.scenarios.trajectory import Trajectory

MOST_FOUND = 10
"""Max mails in a search result."""
_LONGEST = 60
"""Max characters of an answer."""
_SIZE = 48
COMPANIES = ("Nordwind", "Alpenglas", "Brightway", "Cobalt", "Delphin", "Everstone", "Falkner", "Greenleaf")
PEOPLE = ("Ada Abel", "Bruno Costa", "Chen Ito", "Dora Lund", "Emil Grau", "Farah Kaya", "Goran Hale", "Hanna Fuchs")
PROJECTS = ("Harbour", "Lantern", "Meadow", "Compass", "Orchard", "Summit", "Anchor", "Willow")
THINGS = ("paper", "chairs", "cables", "printers", "lamps", "screens", "coffee", "carpets")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October")
_CHATTER = (
    ("Lunch", "Shall we have lunch together on {day}? The place beside the {thing} shop is open again."),
    ("Lost keys", "I have lost my keys near the {thing} store. Please tell me if you find them."),
    ("Thanks", "Thank you for your help with {project}. It was a good week."),
    ("Holiday", "I am away until {day}. For {project} please write to {person}."),
    ("Newsletter", "This month: {thing} at new prices, a visit to {company}, and a word from {person}."),
    ("Parking", "The yard is closed on {day} because of the delivery of {thing}."),
)


class Mail(BaseModel):
    mail_id: str = ""
    date: str
    """"2031-03-14": dates compare as texts."""
    sender: str
    subject: str
    body: str


class Question(BaseModel):
    """The hidden state of a task."""

    mails: list[Mail]
    answer: str
    source: str
    """Id of the mail with the answer."""
    others: list[str]
    """Values of the same kind in other mails."""


Drawn = tuple[str, list[tuple[Mail, str]]]
"""A question, and the mails about it with their values, the right one first."""


def _mail(month: int, day: int, sender: str, subject: str, body: str) -> Mail:
    if "@" not in sender:
        sender = f"{sender.casefold().replace(' ', '.')}@office.example"
    return Mail(date=f"2031-{month + 1:02d}-{day:02d}", sender=sender, subject=subject, body=body)


def _draw_invoice(dice: random.Random) -> Drawn:
    """The newest of several invoices, or the corrected one."""

    def bill(company: str, thing: str, month: int, day: int | None = None, subject: str = "", body: str = ""):
        amount, sender = str(dice.randint(101, 9899)), f"accounts@{company.casefold()}.example"
        subject += f"Invoice from {company} for {thing}, {MONTHS[month]}"
        body += f"Please pay {amount} euros for {thing} delivered in {MONTHS[month]}. Thank you for your order."
        return _mail(month, day or dice.randint(2, 20), sender, subject, body), amount

    company, other = dice.sample(COMPANIES, 2)
    thing, another = dice.sample(THINGS, 2)
    *months, last = sorted(dice.sample(range(10), 6))
    mails = [bill(company, thing, month) for month in reversed(months)]
    mails += [bill(company, another, last), bill(other, thing, last)]
    if dice.random() < 0.5:
        sorry = "Our first invoice had a mistake, for which we are sorry; it is void. "
        mails.insert(0, bill(company, thing, months[-1], 28, "Correction: ", sorry))
        return f"How much must we pay {company} for {thing} of {MONTHS[months[-1]]}, in euros?", mails
    return f"What does {company} charge in the newest invoice for {thing}, in euros?", mails


def _draw_meeting(dice: random.Random) -> Drawn:
    """The time or place of a meeting after it was moved."""
    project, other = dice.sample(PROJECTS, 2)
    person, other_person = dice.sample(PEOPLE, 2)
    asks_room = dice.random() < 0.5

    def clock() -> str:
        return f"{dice.randint(8, 18)}:{dice.choice(('00', '10', '15', '20', '30', '40', '45', '50'))}"

    def room() -> str:
        return f"{dice.choice('ABCD')}{dice.randint(101, 999)}"

    def invited(about: str, who: str, month: int, day: int) -> tuple[Mail, str]:
        is_moved = day > 5
        value = room() if asks_room else clock()
        where = f"in room {value}, at {clock()}" if asks_room else f"at {value}, in room {room()}"
        said = "has been moved: we now meet" if is_moved else "is planned: we meet"
        subject, body = (
            f"{'Change: ' * is_moved}{about} review",
            f"The review of {about} {said} {where}. Regards, {who}",
        )
        return _mail(month, day, who, subject, body), value

    month = dice.randint(1, 8)
    mails = [invited(project, person, month, day) for day in (20, 15, 11, 8, 5)]
    mails += [invited(other, person, month, 24), invited(other, other_person, month, 3)]
    what = "In which room" if asks_room else "At what time"
    return f"{what} is the review of {project}, as it was last arranged?", mails


def _draw_access(dice: random.Random) -> Drawn:
    """The code that somebody sent for something, among codes of others."""
    project, other = dice.sample(PROJECTS, 2)
    person, another = dice.sample(PEOPLE, 2)

    def sent(about: str, who: str, month: int) -> tuple[Mail, str]:
        letters = "KLMNPRTVWX"
        code = f"{dice.choice(letters)}{dice.choice(letters)}-{dice.randint(1000, 9999)}"
        body = f"Hello, the door code for the {about} office is {code}. Do not pass it on. {who.split()[0]}"
        return _mail(month, dice.randint(2, 26), who, f"Door code for {about}", body), code

    months = sorted(dice.sample(range(10), 6))
    mails = [sent(project, person, month) for month in reversed(months[:4])]
    mails += [sent(project, another, month) for month in months[4:]]
    mails += [sent(other, person, months[5]), sent(other, another, months[0])]
    return f"What is the newest door code for the {project} office that {person} sent?", mails


_KINDS: tuple[Callable[[random.Random], Drawn], ...] = (_draw_invoice, _draw_meeting, _draw_access)


def draw_task(number: int) -> Task:
    """The task of a number, always the same one; `data` has the mailbox and the answer."""
    dice = random.Random(f"email search {number}")
    question, about = dice.choice(_KINDS)(dice)
    while len({value for _, value in about}) < len(about):  # two mails with the same value would both be right
        question, about = dice.choice(_KINDS)(dice)
    mails, (answer, *others) = [mail for mail, _ in about], [value for _, value in about]
    mails += [_draw_chatter(dice) for _ in range(_SIZE - len(mails))]
    dice.shuffle(mails)
    for mail, mail_id in zip(mails, dice.sample(range(1000, 10000), _SIZE), strict=True):
        mail.mail_id = f"M{mail_id}"
    data = Question(mails=mails, answer=answer, source=about[0][0].mail_id, others=others)
    return Task(id=f"question-{number}", user=question, data=data.model_dump(mode="json"))


def _draw_chatter(dice: random.Random) -> Mail:
    subject, body = dice.choice(_CHATTER)
    day, month, person = dice.randint(1, 28), dice.randrange(10), dice.choice(PEOPLE)
    words = {"day": f"{dice.randint(1, 28)} {dice.choice(MONTHS)}"}
    for name, values in (("thing", THINGS), ("project", PROJECTS), ("person", PEOPLE), ("company", COMPANIES)):
        words[name] = dice.choice(values)
    return _mail(month, day, person, subject, body.format(**words))


class EmailSearch:
    """The world of one mailbox, in memory."""

    def reset(self, task: Task) -> None:
        self._question = Question.model_validate(task.data)
        self._mails = {mail.mail_id: mail for mail in self._question.mails}
        self._database = sqlite3.connect(":memory:")
        self._database.execute("CREATE VIRTUAL TABLE mails USING fts5(mail_id UNINDEXED, date, sender, subject, body)")
        rows = [list(each.model_dump().values()) for each in self._mails.values()]
        self._database.executemany("INSERT INTO mails VALUES (?, ?, ?, ?, ?)", rows)
        self._read: set[str] = set()
        self._answer = self._source = ""

    def search(self, query: str, limit: int = MOST_FOUND) -> list[dict[str, str]]:
        """Find mails by words of sender, subject, text and date; shows at most 10, without their text."""
        # Mails with all words, the best match first, or else mails with any; the index's operators are words, too.
        words = list(dict.fromkeys(re.findall(r"\w+", query[:1000].casefold())))[:12]
        if not words:
            raise ValueError("the query has no words")
        statement = "SELECT mail_id FROM mails WHERE mails MATCH ? ORDER BY rank, mail_id LIMIT ?"
        found: list[tuple[str]] = []
        for operator in (" ", " OR "):
            match = operator.join(f'"{word}"' for word in words)
            found = found or self._database.execute(statement, (match, max(1, min(limit, MOST_FOUND)))).fetchall()
        return [self._mails[mail_id].model_dump(exclude={"body"}) for (mail_id,) in found]

    def read(self, mail_id: str) -> dict[str, str]:
        """Read a mail."""
        mail = self._mail(mail_id)
        self._read.add(mail.mail_id)
        return mail.model_dump()

    def answer(self, answer: str, source: str) -> object:
        """Answer the question, with the id of the mail that says so. This ends the search.

        Args:
            answer: The amount, time, room or code alone.
            source: The id of one mail.
        """
        if self._source:
            raise ValueError("the question is answered already")
        if len(answer) > _LONGEST:
            raise ValueError(f"an answer has at most {_LONGEST} characters: give the value alone")
        self._source, self._answer = self._mail(source).mail_id, answer
        return done("The answer is noted.")

    def success(self, trajectory: Trajectory) -> bool:
        """Whether the answer is right and unambiguous, and its mail was read."""
        return self._is_right() and self._source == self._question.source and self._source in self._read

    def reward(self, trajectory: Trajectory) -> float:
        """A naive hand-written reward: the answer, its source, and a little for reading the right mail."""
        read = 0.2 * (self._question.source in self._read)
        return read + 0.5 * self._is_right() + 0.3 * (self._source == self._question.source)

    def _is_right(self) -> bool:
        return is_answer(self._answer, self._question.answer, self._question.others)

    def _mail(self, mail_id: str) -> Mail:
        found = self._mails.get(mail_id.strip().upper())
        if found is None:
            raise ValueError(f"there is no mail {mail_id[:40]}")
        return found

    def close(self) -> None:
        self._database.close()


def is_answer(said: str, answer: str, others: list[str]) -> bool:
    """Whether a text contains the answer, and none of the other values nor any other number or code.

    "EUR 1,250.00" is 1250, "room B204" is B204; "1250 or 1350" is neither.
    """
    values = re.findall(r"[a-z]{0,2}-?\d[\d:.,-]*", re.sub(r"eur(?:os?)?|€", " ", said.casefold()))
    wanted = _plain(answer)
    return len(values) == 1 and _plain(values[0]) == wanted and wanted not in map(_plain, others)


def _plain(value: str) -> str:
    return re.sub(r"\.00$", "", value.casefold().replace(",", "").rstrip(".:-").lstrip("0"))


scenario = shipped("email_search", *drawn(draw_task, 3000, 600), environment=EmailSearch, max_turns=12, max_steps=24)


_PATTERNS = {"room": r"in room (\w+)", "time": r"at (\d+:\d+)", "code": r"office is ([A-Z]+-\d+)"}
"""Where a mail has the value, by a word of the question; else it is an amount."""


def _values(question: str, mail: dict[str, str]) -> list[str]:
    pattern = next((pattern for word, pattern in _PATTERNS.items() if word in question), r"pay (\d+) euros")
    return re.findall(pattern, mail["body"])


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Searches by the names in the question, reads matching mails, newest first, and answers from the first with a
    value."""
    names = re.findall(r"\b[A-Z][a-z]+\b", opening.partition(" ")[2])
    things = re.findall(r"(?:for|pay \w+ for) ([a-z]+)(?: of|,)", opening)
    found = yield from ask("search", query=" ".join([*names, *things, *(["review"] if "review" in opening else [])]))
    month = next((name for name in MONTHS if name in opening), "")
    for each in sorted(found, key=lambda mail: mail["date"], reverse=True):
        mail = yield from ask("read", mail_id=each["mail_id"])
        text = f"{mail['sender']} {mail['subject']} {mail['body']}".casefold()
        values, fits = _values(opening, mail), all(word.casefold() in text for word in [*names, *things])
        if values and fits and month in mail["subject"]:
            yield Call("answer", {"answer": values[0], "source": mail["mail_id"]})
            return


def fool(task: Task, opening: str, dice: random.Random) -> Turns:
    """Answers from the first mail in the search result."""
    found = yield from ask("search", query=opening)
    values = _values(opening, (yield from ask("read", mail_id=found[0]["mail_id"])))
    yield Call("answer", {"answer": values[0] if values else "unknown", "source": found[0]["mail_id"]})


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool}
