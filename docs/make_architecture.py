"""Draws docs/architecture.svg, the life of a trajectory: `python docs/make_architecture.py`.

Each floor is a row, each wing a box with the files that do the work; an arrow says what is handed on. A test compares
the picture with what this script draws, and the files' names with the tree.
"""

from dataclasses import dataclass
from html import escape
from pathlib import Path

TARGET = Path(__file__).with_name("architecture.svg")
WIDTH, HEIGHT = 1120, 604
LEFT, RIGHT = 150, 56
BOX_HEIGHT = 96
ROW_TOPS = (84, 276, 468)
COLUMNS = 4
GAP = 62
BOX_WIDTH = (WIDTH - LEFT - RIGHT - (COLUMNS - 1) * GAP) / COLUMNS


@dataclass(frozen=True)
class Box:
    title: str
    says: tuple[str, str]
    files: str


@dataclass(frozen=True)
class Row:
    floor: str
    does: str
    color: str
    boxes: tuple[Box, Box, Box, Box]
    """In the order of the columns, left to right."""


ROWS = (
    Row(
        "scenarios/",
        "acts",
        "#2563eb",
        (
            Box("a task", ("system prompt and tools;", "held-out split"), "scenario.py  task.py"),
            Box("a rollout", ("chat completions and", "tool calls, turn by turn"), "rollout.py  tools.py"),
            Box("a Trajectory", ("sampled choices with their", "token ids and log-probs"), "trajectory.py"),
            Box("a TrajectoryGroup", ("attempts at one task,", "bounded, in input order"), "gather.py  group.py"),
        ),
    ),
    Row(
        "judge/",
        "scores",
        "#b45309",
        (
            Box("panel/", ("ballots of all jurors and", "orders become scores"), "aggregate.py"),
            Box("reply/", ("one score for each label,", "or the reply is refused"), "verdict.py"),
            Box("llm/", ("the call: limits, retries,", "budget, cassette"), "client.py"),
            Box("prompt/", ("canonical members, labels,", "fences, hostile text"), "fenced_transcript.py"),
        ),
    ),
    Row(
        "trainer/",
        "learns",
        "#047857",
        (
            Box("data/", ("ids become sequences,", "scores become advantages"), "advantages.py  packing.py"),
            Box("learner/", ("loss, gradient, one update", "of the LoRA adapter"), "learner.py  losses.py"),
            Box("runs/", ("checkpoint, metrics and", "trajectories on disk"), "checkpoints.py"),
            Box("engines/  serving/", ("proves the adapter is live;", "OpenAI-style endpoint"), "openai_server.py"),
        ),
    ),
)
HANDED_ON = (("Task", "turns", "group"), ("ballots", "reply", "prompt"), ("batch", "adapter", "publish"))
"""Labels of the arrows within a row, between columns 0-1, 1-2 and 2-3."""


def column(number: int) -> float:
    return LEFT + number * (BOX_WIDTH + GAP)


def text(x: float, y: float, words: str, style: str, anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{style}" text-anchor="{anchor}">{escape(words)}</text>'


def arrow(points: list[tuple[float, float]]) -> str:
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline points="{path}" class="arrow" marker-end="url(#head)"/>'


def draw_box(box: Box, x: float, y: float, color: str) -> list[str]:
    middle = x + BOX_WIDTH / 2
    return [
        f'<rect x="{x:g}" y="{y:g}" width="{BOX_WIDTH:g}" height="{BOX_HEIGHT}" rx="8" fill="#fff" stroke="{color}"/>',
        text(middle, y + 24, box.title, "title"),
        text(middle, y + 44, box.says[0], "says"),
        text(middle, y + 60, box.says[1], "says"),
        text(middle, y + 83, box.files, "files"),
    ]


def draw_row(number: int) -> list[str]:
    row, top = ROWS[number], ROW_TOPS[number]
    middle = top + BOX_HEIGHT / 2
    parts = [
        f'<rect x="16" y="{top - 22}" width="{WIDTH - 32}" height="{BOX_HEIGHT + 44}" rx="12" fill="{row.color}" '
        'fill-opacity="0.07"/>',
        text(34, middle - 2, row.floor, "floor", "start"),
        text(34, middle + 18, row.does, "says", "start"),
    ]
    for place, box in enumerate(row.boxes):
        parts += draw_box(box, column(place), top, row.color)
    for place, label in enumerate(HANDED_ON[number]):
        near, far = column(place) + BOX_WIDTH + 4, column(place + 1) - 4
        leftward = number == 1
        parts.append(arrow([(far, middle), (near, middle)] if leftward else [(near, middle), (far, middle)]))
        parts.append(text((near + far) / 2, middle - 8, label, "label"))
    return parts


def draw_between_rows() -> list[str]:
    last, first = column(3) + BOX_WIDTH / 2, column(0) + BOX_WIDTH / 2
    under = [top + BOX_HEIGHT + 4 for top in ROW_TOPS]
    judged, scored = (under[0] + ROW_TOPS[1]) / 2 + 2, (under[1] + ROW_TOPS[2]) / 2 + 2
    edge, over, rollout = WIDTH - 30, 40, column(1) + BOX_WIDTH / 2
    middle = ROW_TOPS[2] + BOX_HEIGHT / 2
    return [
        arrow([(last, under[0]), (last, ROW_TOPS[1] - 4)]),
        text(last - 10, judged, "the group, as soon as its own members are done", "label", "end"),
        arrow([(first, under[1]), (first, ROW_TOPS[2] - 4)]),
        text(
            first + 10,
            scored,
            "the same group with a reward and a Judgement for each member, or unscored",
            "label",
            "start",
        ),
        arrow(
            [
                (column(3) + BOX_WIDTH + 2, middle),
                (edge, middle),
                (edge, over),
                (rollout, over),
                (rollout, ROW_TOPS[0] - 4),
            ]
        ),
        text((rollout + edge) / 2, over - 10, "the next rollouts are sampled by the new adapter, name@step", "label"),
    ]


def picture() -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" aria-label="The life of a trajectory">',
        "<style>text{font-family:system-ui,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2937}"
        ".floor{font-size:17px;font-weight:700}.title{font-size:15px;font-weight:600}"
        ".says{font-size:12px;fill:#4b5563}.label{font-size:11.5px;fill:#4b5563;font-style:italic}"
        ".files{font-size:11.5px;font-family:ui-monospace,Menlo,Consolas,monospace}"
        ".arrow{fill:none;stroke:#4b5563;stroke-width:1.6}</style>",
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L10,5 L0,10 z" fill="#4b5563"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for number in range(len(ROWS)):
        parts += draw_row(number)
    parts += draw_between_rows()
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    TARGET.write_text(picture())
