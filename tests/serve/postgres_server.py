"""A PostgreSQL of the tests' own: started, stopped and restarted; not installed, its tests are skipped."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest


def binaries() -> Path | None:
    """Where initdb is: distributions keep it out of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    where = str(found[-1]) if found else shutil.which("initdb")
    return None if where is None else Path(where).parent


class PostgresServer:
    """A database server on a port that the system chose, with its data in a temporary folder.

    Args:
        durable: whether it waits for the disk, which no test needs: they kill processes, not machines.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self._durable = durable
        found = binaries()
        if found is None:
            pytest.skip("PostgreSQL is not installed")
        self._binaries = found
        pytest.importorskip("psycopg")
        # initdb refuses root, and the temporary folders of pytest are for root only.
        self._as_user: list[str] = []
        self.folder = Path(tempfile.mkdtemp(prefix="chainrule-postgres-"))
        if os.geteuid() == 0:
            self._as_user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
            shutil.chown(self.folder, "nobody", "nogroup")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._run(
            "initdb", "-U", "chainrule", "--auth=trust", "--locale=C", "-E", "UTF8", "--no-sync"
        )
        self.start()
        self._schemas = 0

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://chainrule@127.0.0.1:{self.port}/{database}"

    def new_schema(self) -> str:
        """The URL of an empty schema: it costs less than a database."""
        self._schemas += 1
        name = f"jobs_{self._schemas}"
        self.execute(f"CREATE SCHEMA {name}")
        return f"{self.url}?options=-csearch_path%3D{name}"

    def execute(self, statement: str, url: str | None = None) -> list[tuple]:
        import psycopg

        with psycopg.connect(url or self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        options = f"-c listen_addresses=127.0.0.1 -c port={self.port} "
        options += f"-c unix_socket_directories={self.folder} -c max_connections=200"
        options += "" if self._durable else " -c fsync=off"
        self._run("pg_ctl", "-w", "-o", options, "-l", str(self.folder / "log"), "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-w", "-m", mode, "stop")

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It is there and says nothing: all its processes are stopped."""
        main = psutil.Process(int((self.folder / "data" / "postmaster.pid").read_text().split()[0]))
        main.suspend()  # it starts no more processes
        stopped = [main, *main.children()]
        for process in stopped[1:]:
            process.suspend()
        try:
            yield
        finally:
            for process in stopped:
                process.resume()

    def remove(self) -> None:
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        data = str(self.folder / "data")
        command = [*self._as_user, str(self._binaries / program), "-D", data, *arguments]
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/", timeout=300
        )
        assert done.returncode == 0, done.stderr.decode()
