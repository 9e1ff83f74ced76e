"""Looks for secrets where they must not be: in files, also packed ones, and in the command lines of all processes."""

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import zstandard


class Watcher:
    """Reads the command lines of all processes, again and again."""

    def __init__(self, *secrets: str) -> None:
        self.found: set[str] = set()
        self._secrets = secrets
        self._ended = threading.Event()

    @contextmanager
    def watching(self) -> Generator[None]:
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = process.read_bytes().decode(errors="replace")
                except OSError:
                    continue
                if any(secret in line for secret in self._secrets):
                    self.found.add(line)


def planted_files(directory: Path, secrets: Sequence[str]) -> list[str]:
    """Files with a secret, also those that are packed, and what stands around it."""
    found: list[str] = []
    for file in sorted(path for path in directory.rglob("*") if path.is_file()):
        content = file.read_bytes()
        if file.suffix == ".zst":
            content = zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True).read()
        for secret in secrets:
            at = content.find(secret.encode())
            if at >= 0:
                found.append(f"{file}: {content[max(0, at - 80) :][:160]!r}")
    return found
