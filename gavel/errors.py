"""The one base of every error that a user can mend."""


class GavelError(Exception):
    """What happened, and what to type next.

    The command line prints both parts and exits with status 1; no traceback for a user's mistake.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(f"{message}\n{remedy}" if remedy else message)
        self.message = message
        self.remedy = remedy
