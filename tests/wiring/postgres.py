"""A PostgreSQL server of the tests' own: Debian's package, installed where it is missing, on a private socket and no port."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.wiring.debian import install

SUPERUSER = "postgres"


def programs() -> Path:
    """The folder of ``initdb`` and ``pg_ctl``, of the newest version; installed by apt first where there is none."""
    if not (found := _found()):
        install("postgresql")
        found = _found()
    assert found, "apt has installed postgresql, but there is no initdb below /usr/lib/postgresql"
    return found[-1]


def _found() -> list[Path]:
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return sorted(folders, key=lambda folder: int(folder.parent.name))


class Server:
    """``dsn`` reaches it while it runs. It refuses to run as root, so there it runs as the package's own user."""

    def __init__(self, folder: Path) -> None:
        self._bin, self._folder = programs(), folder
        self._as = ["runuser", "-u", SUPERUSER, "--"] if os.getuid() == 0 else []
        user = SUPERUSER if self._as else pwd.getpwuid(os.getuid()).pw_name
        self.dsn = f"postgresql://{user}@/postgres?host={folder}"
        if self._as:
            shutil.chown(folder, SUPERUSER)
        self._run("initdb", "-D", str(folder / "data"), "-A", "trust", "-N")

    def start(self) -> None:
        options = f"-c listen_addresses='' -c unix_socket_directories='{self._folder}' -c fsync=off"
        log = str(self._folder / "log")
        self._run("pg_ctl", "start", "-w", "-D", str(self._folder / "data"), "-l", log, "-o", options)

    def stop(self) -> None:
        """As a crash would: connections are cut."""
        self._run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", str(self._folder / "data"))

    def _run(self, program: str, *words: str) -> None:
        command = [*self._as, str(self._bin / program), *words]
        subprocess.run(command, cwd="/", check=True, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, timeout=60)


@contextmanager
def server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # a short path: a socket's name may have 107 bytes
    try:
        server = Server(folder)
        server.start()
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
