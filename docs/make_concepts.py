"""Draws docs/concepts.svg, the loop of a training step: `python docs/make_concepts.py`.

Five boxes in a circle, each with the value that it hands on. A test compares the picture with what this script draws.
"""

from html import escape
from pathlib import Path

TARGET = Path(__file__).with_name("concepts.svg")
WIDTH, HEIGHT = 980, 348
BOX_WIDTH, BOX_HEIGHT, GAP, TOP = 164, 148, 34, 60
BOXES = (
    ("Scenario", "#2563eb", ("what the agent is asked,", "what it can do", "", "8 rollouts of one task")),
    ("Group", "#2563eb", ("A  looked up, refunded", "B  refunded at once", "C  looked up, no answer", "…")),
    ("Judge", "#b45309", ("reads all of them, in", "balanced orders", "A .9  B .3  C .6", "± standard error")),
    ("Advantage", "#047857", ("score less the mean", "of the group", "A +.3  B −.3  C 0", "")),
    ("Step", "#047857", ("sampled tokens of A up,", "of B down: one update", "of the LoRA adapter", "")),
)
BACK = "the new adapter goes live; the next step's rollouts are sampled from it"


def text(x: float, y: float, words: str, size: int, color: str, weight: str = "normal") -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{color}" font-weight="{weight}" '
        f'text-anchor="middle">{escape(words)}</text>'
    )


def left(number: int) -> float:
    return 12 + number * (BOX_WIDTH + GAP)


def box(number: int) -> list[str]:
    title, color, lines = BOXES[number]
    x, middle = left(number), left(number) + BOX_WIDTH / 2
    parts = [
        f'<rect x="{x:.0f}" y="{TOP}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8" fill="#fff" stroke="{color}" '
        'stroke-width="2"/>',
        text(middle, TOP + 28, title, 18, color, "bold"),
    ]
    return parts + [text(middle, TOP + 58 + 22 * at, line, 13, "#1f2937") for at, line in enumerate(lines)]


def picture() -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif">',
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L10 5L0 10z" fill="#475569"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        text(
            WIDTH / 2,
            32,
            "One training step: groups of attempts are scored, and scores become an update",
            17,
            "#0f172a",
            "bold",
        ),
    ]
    middle = TOP + BOX_HEIGHT / 2
    for number in range(len(BOXES)):
        parts += box(number)
        if number:
            start = left(number) - GAP + 3
            parts.append(
                f'<path d="M{start:.0f} {middle:.0f}H{left(number) - 3:.0f}" stroke="#475569" stroke-width="2" '
                'fill="none" marker-end="url(#tip)"/>'
            )
    first, last, below = left(0) + BOX_WIDTH / 2, left(len(BOXES) - 1) + BOX_WIDTH / 2, TOP + BOX_HEIGHT + 56
    parts.append(
        f'<path d="M{last:.0f} {TOP + BOX_HEIGHT + 3}V{below}H{first:.0f}V{TOP + BOX_HEIGHT + 3}" stroke="#475569" '
        'stroke-width="2" fill="none" marker-end="url(#tip)"/>'
    )
    parts.append(text((first + last) / 2, below + 24, BACK, 14, "#334155"))
    held_out = "every few steps: success on held-out tasks, which no score of the judge enters"
    parts.append(text((first + last) / 2, below + 50, held_out, 13, "#64748b"))
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(picture())
