"""A table of figures in a terminal: whatever its width, no figure is cut or broken.

             held-out  cost,        judge
              success    USD          held-out success: 0.91 ± 0.02
judge     0.91 ± 0.02   1.20          cost, USD: 1.20
"""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gavel.cli.terminal import plain

_LABEL, _WORD = 8, 12
"""Columns of a label, and of a heading's word, that may be folded."""
_GAP = 2


def print_figures(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """`headings` and each of `rows` begin with the label, which figures follow.

    Headings are wrapped and labels folded where that is enough; else each figure is a line of its own.
    """
    heads, *lines = [[plain(text) for text in row] for row in (headings, *rows)]
    columns = list(zip(heads, *lines, strict=True))
    wide = [max(text.cell_len for text in column) for column in columns]
    widths = [_narrowest(column) for column in columns[1:]]
    spare = console.width - sum(widths) - _GAP * len(widths)
    label = min(wide[0], spare)
    if label < min(wide[0], _LABEL):
        return _print_stacked(console, heads, lines)
    spare -= label
    for at in reversed(range(len(widths))):  # the last columns have the commonest headings
        more = min(spare, wide[at + 1] - widths[at])
        widths[at] += more
        spare -= more
    table = Table(box=None, pad_edge=False)
    table.add_column(heads[0], overflow="fold", width=label)
    for heading, width in zip(heads[1:], widths, strict=True):
        table.add_column(heading, justify="right", overflow="fold", width=width)
    for line in lines:
        table.add_row(*line)
    console.print(table)


def _narrowest(column: Sequence[Text]) -> int:
    heading, *figures = column
    words = (min(cell_len(word), _WORD) for word in heading.plain.split())
    return max([*words, *(figure.cell_len for figure in figures)])


def _print_stacked(console: Console, heads: Sequence[Text], lines: Sequence[Sequence[Text]]) -> None:
    if heads[0].plain:
        console.print(heads[0], style="bold", soft_wrap=True)
    for label, *figures in lines:
        console.print(label, soft_wrap=True)
        for heading, figure in zip(heads[1:], figures, strict=True):
            console.print(Text.assemble("  ", heading, ": ", figure), soft_wrap=True)
