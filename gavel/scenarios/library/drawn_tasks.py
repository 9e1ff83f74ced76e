"""Tasks that follow from numbers, drawn when they are asked for: a split of thousands costs nothing to declare."""

from collections.abc import Callable, Sequence
from typing import overload

from gavel.scenarios.task import Task


class DrawnTasks(Sequence[Task]):
    def __init__(self, numbers: Sequence[int], draw: Callable[[int], Task]) -> None:
        """`draw` gives the task of a number, always the same one; tasks of different numbers have different ids."""
        self.numbers = numbers
        self.draw = draw

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self.draw(number) for number in self.numbers[index]]
        return self.draw(self.numbers[index])
