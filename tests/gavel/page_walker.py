"""Walks a page of the documentation as a newcomer does: in an empty directory, block after block, as written.

    ```bash                      runs; a failure ends the walk
    ```python title="desk.py"    is written to desk.py (toml, json and others with a title likewise)
    ```python                    runs as a script
    ```text                      is what the block before it printed: each line is found, in order; any number stands
                                 for any other number, and … for anything

A comment above a block changes how it is walked, and why stands in it:

    <!-- walk: replace "openai/gpt-5-mini" with "stand-in": no key here -->      from here on, in what is run or written
    <!-- walk: skip: needs a GPU -->                 the next block is not run; the options of its commands are checked
    <!-- walk: background until "http://": … -->     the next block goes on while the others run
    <!-- walk: fails: … -->                          the next block ends with an error

`steps` reads a page, and `Walk` takes the steps.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Mode = Literal["run", "skip", "background", "fails"]
_FENCE = re.compile(r"^( *)```(\w*)(.*?)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!-- walk: (.*?) -->", re.DOTALL)
_NUMBER = re.compile(r"(?<!\w)-?\$?\d*[.,]?\d+")
SECONDS = 900.0
"""For one block; a hang is an error."""


class WalkError(AssertionError):
    """A page does not do what it says."""


@dataclass(frozen=True, slots=True)
class Step:
    """A block of a page, and how it is walked."""

    language: str
    title: str | None
    text: str
    line: int
    mode: Mode = "run"
    until: str = ""
    """Text after which a block in the background is ready."""
    replaced: tuple[tuple[str, str], ...] = ()

    @property
    def shown(self) -> str:
        """The text with its replacements."""
        text = self.text
        for old, new in self.replaced:
            text = text.replace(old, new)
        return text


def blocks(page: Path, language: str, section: str = "") -> list[str]:
    """The page's blocks of a language, or those of the section with this heading."""
    text = page.read_text(encoding="utf-8")
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def steps(page: Path) -> Iterator[Step]:
    """The blocks of a page in order. Raises `WalkError` for a comment that says nothing known."""
    text = page.read_text(encoding="utf-8")
    replaced: list[tuple[str, str]] = []
    mode, until = "run", ""
    for match in sorted([*_FENCE.finditer(text), *_COMMENT.finditer(text)], key=lambda found: found.start()):
        if match.re is _COMMENT:
            said = " ".join(match[1].split())
            if pair := re.match(r'replace "(.+?)" with "(.*?)": ', said):
                replaced.append((pair[1], pair[2]))
            elif waits := re.match(r'background until "(.+?)": ', said):
                mode, until = "background", waits[1]
            elif plain := re.match(r"(skip|fails): \w", said):
                mode = plain[1]
            else:
                raise WalkError(f"{page}: the walk knows no {said!r}; its reason follows a colon")
            continue
        indent, language, info, body = match.groups()
        title = re.search(r'title="(.+?)"', info)
        lines = body.splitlines(keepends=True)
        yield Step(
            language=language,
            title=title[1] if title else None,
            text="".join(line.removeprefix(indent) for line in lines),
            line=text.count("\n", 0, match.start()) + 1,
            mode=mode,  # pyright: ignore[reportArgumentType]
            until=until,
            replaced=tuple(replaced),
        )
        mode, until = "run", ""


@dataclass
class Walk:
    """A walk in one directory. Use it as a context manager: it ends what was left running."""

    folder: Path

    _background: list[subprocess.Popen[str]] = field(default_factory=list)
    _output: str | None = None
    _scripts: int = 0

    def __enter__(self) -> "Walk":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._background:
            os.killpg(process.pid, signal.SIGTERM)
        for process in self._background:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def page(self, page: Path) -> int:
        """Walks the page; returns how many blocks ran. Raises `WalkError`, naming page and line."""
        ran = 0
        for step in steps(page):
            try:
                ran += self.take(step)
            except WalkError as error:
                raise WalkError(f"{page.name}, line {step.line}: {error}") from error
        return ran

    def take(self, step: Step) -> bool:
        """Takes one step; returns whether something ran."""
        output, self._output = self._output, None
        if step.title is None and step.language in ("text", ""):
            if output is not None and step.mode == "run":
                check_output(step.text, output)
            return False
        if step.title is not None:
            target = self.folder / step.title
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(step.shown, encoding="utf-8")
            return False
        if step.mode == "skip" or step.language not in ("bash", "python"):
            return False
        if step.mode == "background":
            self._start(step)
            return True
        self._output = self._run(step)
        return True

    def _command(self, step: Step) -> list[str]:
        if step.language == "bash":
            return ["bash", "-e", "-o", "pipefail", "-c", step.shown]
        self._scripts += 1
        script = self.folder / f"page_{self._scripts}.py"
        script.write_text(step.shown, encoding="utf-8")
        return [sys.executable, str(script)]

    def _options(self) -> dict[str, Any]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("GAVEL_", "OPENAI_", "WANDB_"))
        }
        environment = {**clean, "PATH": path, "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
        printed = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "text": True}
        return {"cwd": self.folder, "env": environment, **printed}

    def _run(self, step: Step) -> str:
        try:
            done = subprocess.run(self._command(step), stdout=subprocess.PIPE, timeout=SECONDS, **self._options())
        except subprocess.TimeoutExpired as error:
            raise WalkError(f"not done after {SECONDS:.0f} s; it printed: {error.output!r}") from error
        if (done.returncode != 0) != (step.mode == "fails"):
            raise WalkError(f"exit status {done.returncode} of\n{step.shown}\n{done.stdout}")
        if "Traceback" in done.stdout:
            raise WalkError(f"a traceback of\n{step.shown}\n{done.stdout}")
        return done.stdout

    def _start(self, step: Step) -> None:
        log = self.folder / f"background_{len(self._background)}.log"
        with log.open("w") as out:
            process = subprocess.Popen(self._command(step), stdout=out, start_new_session=True, **self._options())
        self._background.append(process)
        end = time.monotonic() + SECONDS
        while step.until not in log.read_text():
            if process.poll() is not None or time.monotonic() > end:
                raise WalkError(f"{step.until!r} was not printed by\n{step.shown}\n{log.read_text()}")
            time.sleep(0.2)


def check_output(shown: str, printed: str) -> None:
    """Raises `WalkError` when a line of the page is not printed, or not in this order."""
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    at = 0
    for line in shown.splitlines():
        if not line.strip() or line.strip() == "…":
            continue
        parts = re.split(r"(\s*…\s*|" + _NUMBER.pattern + ")", " ".join(line.split()))
        known = {part: ".*" if part.strip() == "…" else _NUMBER.pattern for part in parts[1::2]}
        pattern = re.compile("".join(known.get(part) or re.escape(part) for part in parts))
        found = next((number for number in range(at, len(lines)) if pattern.fullmatch(lines[number])), None)
        if found is None:
            raise WalkError(f"the page shows the line\n{line}\nand this was printed:\n{printed}")
        at = found + 1
