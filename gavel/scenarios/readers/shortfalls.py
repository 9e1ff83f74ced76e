"""Notes on attempts of which a judge sees less than there was: those that failed, or in which nobody answers, and those
with images or documents beside their messages."""

from collections.abc import Sequence

from openai.types.chat.chat_completion import Choice

from gavel.llm.counted import counted
from gavel.scenarios.readers.openings import beside_messages
from gavel.scenarios.readers.row import Attempt, Found
from gavel.scenarios.trajectory import Trajectory


def shortfalls(found: Sequence[Found]) -> list[str]:
    """A note for each kind, with the first attempt of that kind. Groups that stand in the file are not looked at."""
    attempts = [each for each in found if isinstance(each, Attempt)]
    failed = [each for each in attempts if each.trajectory.status == "failed"]
    silent = [each for each in attempts if each.trajectory.status != "failed" and not _answers(each.trajectory)]
    all_of_them = counted(len(attempts), "attempt")
    notes: list[str] = []
    if failed:
        notes.append(
            f"{len(failed):,} of {all_of_them} failed, and get{'s' * (len(failed) == 1)} no score. "
            f"First: {failed[0].row.where} ({failed[0].trajectory.status_reason or 'no reason is recorded'})."
        )
    if silent:
        notes.append(
            f"{len(silent):,} of {all_of_them} hold{'s' * (len(silent) == 1)} no turn of the assistant: "
            f"there is nothing in them to judge. First: {silent[0].row.where}."
        )
    hidden = [each for each in attempts if beside_messages(each.trajectory)]
    if hidden:
        names = ", ".join(dict.fromkeys(name for each in hidden for name in beside_messages(each.trajectory)))
        notes.append(
            f"the judge is not shown what rows hold beside their messages ({names}); put it into the messages. First: "
            f"{hidden[0].row.where}."
        )
    return notes


def _answers(trajectory: Trajectory) -> bool:
    return any(isinstance(item, Choice) or item.get("role") == "assistant" for item in trajectory.messages_and_choices)
