"""Generated mailboxes, and a question to each whose answer one mail has. All of it follows from the number of the task.

Around the right mail stand near misses: earlier versions of it, the same from another sender, and the same sender on
another thing. So a search alone, without reading and comparing, finds a wrong answer more often than the right one.
"""

import random
from collections.abc import Callable
from functools import cache

from pydantic import BaseModel

from gavel.scenarios.library.email_search.mailbox import Mail
from gavel.scenarios.task import Task

COMPANIES = ("Nordwind", "Alpenglas", "Brightway", "Cobalt", "Delphin", "Everstone", "Falkner", "Greenleaf")
PEOPLE = ("Ada Abel", "Bruno Costa", "Chen Ito", "Dora Lund", "Emil Grau", "Farah Kaya", "Goran Hale", "Hanna Fuchs")
PROJECTS = ("Harbour", "Lantern", "Meadow", "Compass", "Orchard", "Summit", "Anchor", "Willow")
THINGS = ("paper", "chairs", "cables", "printers", "lamps", "screens", "coffee", "carpets")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October")
_SIZE = 48
_CHATTER = (
    ("Lunch", "Shall we have lunch together on {day}? The place beside the {thing} shop is open again."),
    ("Lost keys", "I have lost my keys near the {thing} store. Please tell me if you find them."),
    ("Thanks", "Thank you for your help with {project}. It was a good week."),
    ("Holiday", "I am away until {day}. For {project} please write to {person}."),
    ("Newsletter", "This month: {thing} at new prices, a visit to {company}, and a word from {person}."),
    ("Parking", "The yard is closed on {day} because of the delivery of {thing}."),
)


class Question(BaseModel):
    """The hidden state of a task."""

    mails: list[Mail]
    answer: str
    source: str
    """Id of the mail that has it."""
    others: list[str]
    """Values of the same kind that stand in other mails."""


class _Draft(BaseModel):
    """A mail before it has an id, and the value that it tells."""

    month: int
    day: int
    sender: str
    subject: str
    body: str
    value: str = ""


def _amount(dice: random.Random) -> str:
    return str(dice.randint(101, 9899))


def _clock(dice: random.Random) -> str:
    return f"{dice.randint(8, 18)}:{dice.choice(('00', '10', '15', '20', '30', '40', '45', '50'))}"


def _room(dice: random.Random) -> str:
    return f"{dice.choice('ABCD')}{dice.randint(101, 999)}"


def _code(dice: random.Random) -> str:
    return f"{dice.choice('KLMNPRTVWX')}{dice.choice('KLMNPRTVWX')}-{dice.randint(1000, 9999)}"


def _invoice(dice: random.Random) -> tuple[str, list[_Draft]]:
    """The newest of several invoices; or the corrected one."""
    company, other = dice.sample(COMPANIES, 2)
    thing, another = dice.sample(THINGS, 2)
    months = sorted(dice.sample(range(10), 6))
    drafts = [_bill(dice, company, thing, month) for month in reversed(months[:5])]
    drafts += [_bill(dice, company, another, months[5]), _bill(dice, other, thing, months[5])]
    if dice.random() < 0.5:
        wrong = drafts[0]
        right = _bill(dice, company, thing, wrong.month, day=28)
        right.subject = f"Correction: {right.subject}"
        right.body = f"Our first invoice had a mistake, for which we are sorry; it is void. {right.body}"
        drafts.insert(0, right)
        return f"How much must we pay {company} for {thing} of {MONTHS[right.month]}, in euros?", drafts
    return f"What does {company} charge in the newest invoice for {thing}, in euros?", drafts


def _bill(dice: random.Random, company: str, thing: str, month: int, day: int | None = None) -> _Draft:
    amount = _amount(dice)
    return _Draft(
        month=month,
        day=day or dice.randint(2, 20),
        sender=f"accounts@{company.casefold()}.example",
        subject=f"Invoice from {company} for {thing}, {MONTHS[month]}",
        body=f"Please pay {amount} euros for {thing} delivered in {MONTHS[month]}. Thank you for your order.",
        value=amount,
    )


def _meeting(dice: random.Random) -> tuple[str, list[_Draft]]:
    """When or where a meeting is now that it was moved."""
    project, other = dice.sample(PROJECTS, 2)
    person, other_person = dice.sample(PEOPLE, 2)
    asks_room = dice.random() < 0.5
    draw = _room if asks_room else _clock

    def invited(about: str, who: str, month: int, day: int, *, moved: bool) -> _Draft:
        value = draw(dice)
        fact = f"in room {value}" if asks_room else f"at {value}"
        rest = f"at {_clock(dice)}" if asks_room else f"in room {_room(dice)}"
        said = "has been moved: we now meet" if moved else "is planned: we meet"
        return _Draft(
            month=month,
            day=day,
            sender=_address(who),
            subject=f"{'Change: ' if moved else ''}{about} review",
            body=f"The review of {about} {said} {fact}, {rest}. Regards, {who}",
            value=value,
        )

    month = dice.randint(1, 8)
    drafts = [
        invited(project, person, month, 20, moved=True),
        invited(project, person, month, 15, moved=True),
        invited(project, person, month, 11, moved=True),
        invited(project, person, month, 8, moved=True),
        invited(project, person, month, 5, moved=False),
        invited(other, person, month, 24, moved=True),
        invited(other, other_person, month, 3, moved=False),
    ]
    what = "In which room" if asks_room else "At what time"
    return f"{what} is the review of {project}, as it was last arranged?", drafts


def _access(dice: random.Random) -> tuple[str, list[_Draft]]:
    """The code that somebody sent for something, where others sent others."""
    project, other = dice.sample(PROJECTS, 2)
    person, another = dice.sample(PEOPLE, 2)

    def sent(about: str, who: str, month: int) -> _Draft:
        code = _code(dice)
        return _Draft(
            month=month,
            day=dice.randint(2, 26),
            sender=_address(who),
            subject=f"Door code for {about}",
            body=f"Hello, the door code for the {about} office is {code}. Do not pass it on. {who.split()[0]}",
            value=code,
        )

    months = sorted(dice.sample(range(10), 6))
    drafts = [sent(project, person, month) for month in reversed(months[:4])]
    drafts += [sent(project, another, month) for month in months[4:]]
    drafts += [sent(other, person, months[5]), sent(other, another, months[0])]
    return f"What is the newest door code for the {project} office that {person} sent?", drafts


_KINDS: tuple[Callable[[random.Random], tuple[str, list[_Draft]]], ...] = (_invoice, _meeting, _access)


def _address(person: str) -> str:
    return f"{person.casefold().replace(' ', '.')}@office.example"


@cache
def draw_task(number: int) -> Task:
    """The task of a number, always the same one; `data` has the mailbox and the answer."""
    dice = random.Random(f"email search {number}")
    question, drafts = dice.choice(_KINDS)(dice)
    while len({draft.value for draft in drafts}) < len(drafts):  # two mails with one value: both would be right
        question, drafts = dice.choice(_KINDS)(dice)
    right = drafts[0]
    about = [*drafts]
    while len(drafts) < _SIZE:
        drafts.append(_chatter(dice))
    dice.shuffle(drafts)
    ids = dice.sample(range(1000, 10000), len(drafts))
    mails = [
        Mail(
            mail_id=f"M{mail_id}",
            date=f"2031-{draft.month + 1:02d}-{draft.day:02d}",
            sender=draft.sender,
            subject=draft.subject,
            body=draft.body,
        )
        for mail_id, draft in zip(ids, drafts, strict=True)
    ]
    source = next(mail.mail_id for mail, draft in zip(mails, drafts, strict=True) if draft is right)
    others = [draft.value for draft in about if draft is not right]
    data = Question(mails=mails, answer=right.value, source=source, others=others)
    return Task(id=f"question-{number}", user=question, data=data.model_dump(mode="json"))


def _chatter(dice: random.Random) -> _Draft:
    subject, body = dice.choice(_CHATTER)
    day, month, person = dice.randint(1, 28), dice.randrange(10), dice.choice(PEOPLE)
    words = {
        "day": f"{dice.randint(1, 28)} {dice.choice(MONTHS)}",
        "thing": dice.choice(THINGS),
        "project": dice.choice(PROJECTS),
        "person": dice.choice(PEOPLE),
        "company": dice.choice(COMPANIES),
    }
    return _Draft(month=month, day=day, sender=_address(person), subject=subject, body=body.format(**words))
