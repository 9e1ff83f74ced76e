"""Several processes run what one has collected: they are forked from it, so all that the tests import is loaded once.

    python -m pytest -p tests.forked_workers --processes 3

Files go one by one to whichever process is free. What happens to a test arrives through a pipe and is reported as ever.
A process that dies fails the test that it was running, and another goes on with the rest of its file; a test of which
nothing was heard fails the run. pytest-xdist's workers each import and collect everything: half a minute of CPU apiece.
"""

import itertools
import os
import struct
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

import pytest
from _pytest._io import TerminalWriter

from tests import forkserver
from tests.limits import MANY_TESTS

SECONDS_TO_MISS_A_WORKER = 5
"""A dead worker whose end of the pipe is held open by a process of its own is noticed after so long."""
_NUMBER = struct.Struct("<I")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=1, help="Processes that run tests, forked after the collection.")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    processes: int = session.config.getoption("--processes") or 1
    if processes < 2 or session.testsfailed or session.config.option.collectonly:
        return None
    _Run(session).finish(processes)
    return True


@dataclass
class _Worker:
    process: ForkProcess
    begun: int | None = None
    """Number of the test that it has begun last."""
    left: list[int] = field(default_factory=list[int])
    """Numbers of the tests of its files that it has not finished."""


class _Run:
    def __init__(self, session: pytest.Session) -> None:
        self.session, self.config = session, session.config
        numbers = range(len(session.items))
        by_file = itertools.groupby(numbers, key=lambda number: session.items[number].path)
        files = [list(group) for _, group in by_file]
        self.files = sorted(files, key=self._slow_tests, reverse=True)
        self.workers = dict[Connection, _Worker]()
        self.started = 0
        self.queue, filled = os.pipe()
        os.write(filled, b"".join(map(_NUMBER.pack, range(len(self.files)))))
        os.close(filled)

    def _slow_tests(self, numbers: list[int]) -> int:
        """How many tests of a file are slow. Those with the most begin first, so that none is left alone at the end."""
        return sum(self.session.items[number].get_closest_marker("slow") is not None for number in numbers)

    def finish(self, processes: int) -> None:
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False  # as with pytest-xdist: tests of several files end in turns
        if len(self.session.items) > MANY_TESTS:
            forkserver.share()
        unheard = set(range(len(self.session.items)))
        try:
            for _ in range(min(processes, len(self.files))):
                self._start([])
            while self.workers:
                dead = [pipe for pipe, worker in self.workers.items() if not worker.process.is_alive()]
                for pipe in wait([*self.workers], timeout=SECONDS_TO_MISS_A_WORKER) or dead:
                    assert isinstance(pipe, Connection)
                    self._hear(pipe, unheard)
                    if self.session.shouldfail:
                        raise self.session.Failed(self.session.shouldfail)
                    if self.session.shouldstop:
                        raise self.session.Interrupted(self.session.shouldstop)
        finally:
            for worker in self.workers.values():
                worker.process.terminate()
        for number in sorted(unheard):
            self._fail(number, "Nothing was heard of this test: it did not run.")

    def _start(self, first: list[int]) -> None:
        """Starts a worker that runs these tests before it takes files."""
        self.started += 1
        context = get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=self._work, args=(sender, self.started, first))
        sys.stdout.flush()
        sys.stderr.flush()
        process.start()
        sender.close()
        self.workers[receiver] = _Worker(process, left=[*first])

    def _hear(self, pipe: Connection, unheard: set[int]) -> None:
        worker = self.workers[pipe]
        if (said := _received(pipe, worker)) is None:
            self._ended(pipe, worker, unheard)
            return
        kind, value = said
        hook = self.config.hook
        match kind:
            case "file":
                worker.left += self.files[value]
            case "begins":
                worker.begun = value
                item = self.session.items[value]
                hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            case "ended":
                worker.left.remove(value)
                worker.begun = None
                unheard.discard(value)
            case "warning":
                (text, category, file, line), rest = value
                message = warnings.WarningMessage(text, type(category, (Warning,), {}), file, line)
                hook.pytest_warning_recorded.call_historic(kwargs={"warning_message": message, **rest})
            case _:
                report = hook.pytest_report_from_serializable(config=self.config, data=value)
                hook.pytest_runtest_logreport(report=report)

    def _ended(self, pipe: Connection, worker: _Worker, unheard: set[int]) -> None:
        worker.process.join()
        del self.workers[pipe]
        pipe.close()
        if worker.begun is not None:
            self._fail(worker.begun, f"The process that ran this test ended with status {worker.process.exitcode}.")
            worker.left.remove(worker.begun)
            unheard.discard(worker.begun)
        if worker.left:
            self._start(worker.left)

    def _fail(self, number: int, why: str) -> None:
        item = self.session.items[number]
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")
        self.config.hook.pytest_runtest_logreport(report=report)

    def _work(self, pipe: Connection, number: int, first: list[int]) -> None:
        """What a worker does from its beginning to its end."""
        for other in self.workers:
            other.close()
        self._settle(number)
        sender = _Sender(pipe, self.config)
        self.config.pluginmanager.register(sender, "forked_workers_sender")
        sender.knows_old_warnings = True
        for one, following in itertools.pairwise(itertools.chain(self._taken(pipe, first), [None])):
            assert one is not None
            pipe.send(("begins", one))
            item = self.session.items[one]
            after = None if following is None else self.session.items[following]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            pipe.send(("ended", one))

    def _taken(self, pipe: Connection, first: list[int]) -> Iterator[int]:
        """The numbers of the tests that this worker runs. A file is taken before the last test of the one before."""
        yield from first
        while taken := os.read(self.queue, _NUMBER.size):
            (file,) = _NUMBER.unpack(taken)
            pipe.send(("file", file))
            yield from self.files[file]

    def _settle(self, number: int) -> None:
        """Gives this process what it cannot share: captured output, a directory, and a terminal for stacks alone."""
        manager = self.config.pluginmanager
        capture: Any = manager.get_plugin("capturemanager")
        capture.stop_global_capturing()
        if reporter := manager.unregister(name="terminalreporter"):
            manager.register(_Terminal(reporter), "terminalreporter")
        capture.start_global_capturing()
        capture.suspend_global_capture()
        factory: Any = self.config._tmp_path_factory  # pyright: ignore[reportAttributeAccessIssue]
        factory._basetemp = factory.getbasetemp() / f"worker{number}"
        factory._basetemp.mkdir()


def _received(pipe: Connection, worker: _Worker) -> tuple[str, Any] | None:
    """What a worker says next; None = it has ended, although a process that it forked may hold its pipe open."""
    if not worker.process.is_alive() and not pipe.poll():
        return None
    try:
        return pipe.recv()
    except EOFError:
        return None


class _Terminal:
    """What pytest-timeout writes the stacks of threads to."""

    def __init__(self, reporter: Any) -> None:
        self._tw: TerminalWriter = reporter._tw


class _Sender:
    """Passes on what is reported in a worker."""

    def __init__(self, pipe: Connection, config: pytest.Config) -> None:
        self._pipe, self._config = pipe, config
        self.knows_old_warnings = False
        """Warnings from before the fork are repeated to each new plugin."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self._pipe.send(("report", hook.pytest_report_to_serializable(config=self._config, report=report)))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        if not self.knows_old_warnings:
            return
        of = warning_message
        said = str(of.message), of.category.__name__, of.filename, of.lineno
        self._pipe.send(("warning", (said, {"when": when, "nodeid": nodeid, "location": location})))
