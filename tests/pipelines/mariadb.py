"""Starts Debian's MariaDB in a temporary folder, on a free port of the loopback address; ends it by its process id."""

import contextlib
import dataclasses
import getpass
import os
import shutil
import socket
import subprocess
import time

import pytest

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"  # where Debian has servers
SERVER = shutil.which("mariadbd", path=_PATH)
needs_mariadb = pytest.mark.skipif(SERVER is None, reason="MariaDB is missing: apt-get install mariadb-server")
DATABASE, USER = "lineage", "tfx"
_SETUP = f"""
CREATE DATABASE {DATABASE};
CREATE USER '{USER}'@'127.0.0.1' IDENTIFIED BY '%s';
GRANT ALL ON {DATABASE}.* TO '{USER}'@'127.0.0.1';
"""


@dataclasses.dataclass(frozen=True)
class Server:
    """A running server with an empty database, and a user who has all rights on it."""

    port: int
    password: str
    process: subprocess.Popen

    @property
    def address(self):
        return f"mysql://{USER}@127.0.0.1:{self.port}/{DATABASE}"


@contextlib.contextmanager
def running_mariadb(folder, password="not-a-word-7c1f", options=()):
    folder.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    install = [shutil.which("mariadb-install-db", path=_PATH), "--no-defaults", f"--datadir={folder}/data"]
    install += ["--auth-root-authentication-method=normal", "--skip-test-db", f"--user={getpass.getuser()}"]
    subprocess.run(install, check=True, capture_output=True)
    (folder / "setup.sql").write_text(_SETUP % password)
    command = [SERVER, "--no-defaults", f"--user={getpass.getuser()}", f"--datadir={folder}/data"]
    command += ["--bind-address=127.0.0.1", f"--port={port}", "--skip-name-resolve", f"--socket={folder}/socket"]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([*command, *options, f"--init-file={folder}/setup.sql"], stdout=log, stderr=log)
    try:
        _wait(folder / "log", process)
        yield Server(port, password, process)
    finally:
        process.kill()
        process.wait()


def _wait(log, process):
    for _ in range(1200):
        if "ready for connections" in log.read_text():
            return
        assert process.poll() is None, log.read_text()[-2000:]
        time.sleep(0.1)
    raise TimeoutError(log.read_text()[-2000:])
