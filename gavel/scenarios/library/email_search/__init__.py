"""Email search: find the one mail that answers a question, read it, and answer with it as the source.

Every episode has a mailbox of its own, in SQLite's full-text index. Success is the exact answer, from the right mail,
which was read before.
"""

import re

from gavel.prompts import render
from gavel.scenarios.library.drawn_tasks import DrawnTasks
from gavel.scenarios.library.email_search.mailbox import MOST_FOUND, Mailbox
from gavel.scenarios.library.email_search.questions import Question, draw_task
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.tools import done
from gavel.scenarios.trajectory import Trajectory

_TRAIN, _HELD_OUT = range(3000), range(3000, 3600)
_LONGEST = 60
"""Characters of an answer."""


class EmailSearch:
    """One mailbox."""

    def reset(self, task: Task) -> None:
        self._question = Question.model_validate(task.data)
        self._mailbox = Mailbox(self._question.mails)
        self._read: set[str] = set()
        self._answered: tuple[str, str] | None = None

    def search(self, query: str, limit: int = MOST_FOUND) -> list[dict[str, str]]:
        """Find mails by words of sender, subject, text and date; shows at most 10, without their text."""
        return [mail.model_dump(exclude={"body"}) for mail in self._mailbox.search(query, limit)]

    def read(self, mail_id: str) -> dict[str, str]:
        """Read a mail."""
        mail = self._mailbox.mail(mail_id)
        self._read.add(mail.mail_id)
        return mail.model_dump()

    def answer(self, answer: str, source: str) -> object:
        """Answer the question, with the id of the mail that says so. This ends the search.

        Args:
            answer: The amount, time, room or code alone.
            source: The id of one mail.
        """
        if self._answered is not None:
            raise ValueError("the question is answered already")
        if len(answer) > _LONGEST:
            raise ValueError(f"an answer has at most {_LONGEST} characters: give the value alone")
        self._answered = (answer, self._mailbox.mail(source).mail_id)
        return done("The answer is noted.")

    def success(self, trajectory: Trajectory) -> bool:
        """Whether the answer is the right one and no other, and its mail was read."""
        if self._answered is None:
            return False
        answer, source = self._answered
        is_right = is_answer(answer, self._question.answer, self._question.others)
        return is_right and source == self._question.source and source in self._read

    def reward(self, trajectory: Trajectory) -> float:
        """What somebody might write by hand: the answer, its source, and a little for having read the right mail."""
        read = 0.2 * (self._question.source in self._read)
        if self._answered is None:
            return read
        answer, source = self._answered
        is_right = is_answer(answer, self._question.answer, self._question.others)
        return read + 0.5 * is_right + 0.3 * (source == self._question.source)

    def close(self) -> None:
        self._mailbox.close()


def is_answer(said: str, answer: str, others: list[str]) -> bool:
    """Whether a text names the answer, and neither one of the other values nor any other number or code.

    "EUR 1,250.00" is 1250, "room B204" is B204; "1250 or 1350" is neither.
    """
    values = re.findall(r"[a-z]{0,2}-?\d[\d:.,-]*", re.sub(r"eur(?:os?)?|€", " ", said.casefold()))
    wanted = _plain(answer)
    return len(values) == 1 and _plain(values[0]) == wanted and wanted not in map(_plain, others)


def _plain(value: str) -> str:
    return re.sub(r"\.00$", "", value.casefold().replace(",", "").rstrip(".:-").lstrip("0"))


scenario = Scenario(
    name="email_search",
    system=render("scenarios/email_search_system.j2").strip(),
    environment=EmailSearch,
    tasks=DrawnTasks(_TRAIN, draw_task),
    held_out=DrawnTasks(_HELD_OUT, draw_task),
    max_turns=12,
    max_steps=24,
    rubric=render("scenarios/email_search_rubric.j2").strip(),
)
