"""What can go wrong with a judge, in a form that tells what to do about it."""

from scenarios.errors import GavelError


class JudgeError(GavelError):
    """A judge could not be asked, or what it said could not be used."""


class MissingKeyError(JudgeError):
    """The judge model's API key is not set."""


class UnknownModelError(JudgeError):
    """Nobody serves a judge model of this name."""


class NotAskedError(JudgeError):
    """The question was not put to the judge model: nothing was sent and nothing is owed."""


class ContextTooSmallError(JudgeError):
    """The judge's context has no room for two trajectories, however they are shortened."""


class BudgetError(NotAskedError):
    """The call would have passed the budget."""


class ContextError(JudgeError):
    """The prompt, or the prompt with room for its reply, is longer than the judge model takes."""

    def __init__(self, message: str, remedy: str = "", limit: int | None = None) -> None:
        super().__init__(message, remedy)
        self.limit = limit
        """In tokens, as the server names it; None = it names none."""


class UnknownPriceError(JudgeError):
    """A budget in dollars cannot be kept, because nobody knows what the model costs."""


class CassetteError(NotAskedError):
    """A cassette cannot be used."""


class CassetteMissError(CassetteError):
    """A cassette that is only replayed has no reply to the question."""
