"""A PostgreSQL server of this machine's own package, on loopback, with its data in a temporary folder."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from tests.limits import HANG_SECONDS

_USER = "postgres"


def binaries() -> Path | None:
    """The folder of the server's programs, the newest version; None = it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    on_path = shutil.which("postgres")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


class Cluster:
    """A server that can be stopped and started again."""

    def __init__(self, programs: Path, *, fsync: bool = False) -> None:
        """`fsync`: whether it waits for the disk, as one does that is to survive a power cut."""
        self._programs = programs
        self._fsync = "on" if fsync else "off"
        self._folder = Path(tempfile.mkdtemp(prefix="gavel-postgresql-"))
        self._user = _USER if os.geteuid() == 0 else None  # the server does not run as root
        if self._user:
            os.chown(self._folder, pwd.getpwnam(self._user).pw_uid, -1)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        options = ["--auth=trust", f"--username={_USER}", "--no-sync", "--encoding=UTF8", "--locale=C"]
        command = [programs / "initdb", "-D", self._folder / "data", *options]
        subprocess.run(command, check=True, capture_output=True, user=self._user, cwd="/", timeout=HANG_SECONDS)
        self._databases = 0
        self._server: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        settings = [f"port={self._port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={self._folder}"]
        settings += [f"fsync={self._fsync}", "max_connections=200"]
        options = [part for setting in settings for part in ("-c", setting)]
        with (self._folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [self._programs / "postgres", "-D", self._folder / "data", *options],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd="/",
            )
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._server.poll() is not None:
                    raise
                time.sleep(0.05)

    def stop(self) -> None:
        """Ends all connections, and the server."""
        assert self._server is not None
        self._server.send_signal(signal.SIGINT)  # "fast"
        self._server.wait(HANG_SECONDS)

    def url(self, name: str) -> str:
        return f"postgresql://{_USER}@127.0.0.1:{self._port}/{name}"

    def database(self) -> str:
        """The URL of a new, empty database."""
        self._databases += 1
        name = f"gavel_{self._databases}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def remove(self) -> None:
        if self._server is not None and self._server.poll() is None:
            self._server.send_signal(signal.SIGQUIT)  # "immediate": nothing is kept
            self._server.wait(HANG_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)
