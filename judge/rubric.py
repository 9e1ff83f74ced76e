"""What a good trajectory is, in words that a judge reads."""

from dataclasses import dataclass

from judge.errors import JudgeError
from prompts import content_hash, render


@dataclass(frozen=True, slots=True)
class Rubric:
    """The judge's yardstick. A plain string is taken wherever a rubric is."""

    text: str

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise JudgeError("the rubric is empty.", "Say in a sentence what a good attempt is, or leave rubric out.")

    @property
    def id(self) -> str:
        """`rubric@hash` of the text."""
        return f"rubric@{content_hash(self.text)}"

    @classmethod
    def of(cls, rubric: "Rubric | str | None") -> "Rubric":
        """The rubric itself, one made of a string, or the general one for None."""
        match rubric:
            case Rubric():
                return rubric
            case str():
                return cls(rubric.strip() or rubric)
            case None:
                return cls(render("judge/default_rubric.j2").strip())
