"""Runs a compiler in a process of its own environment, and exchanges files with it. Does not use TensorFlow.

The compiler is in the package libtpu, whose licence is Google Cloud's terms of service. It is therefore never a
dependency of this project: a user installs it, with the versions of a file of requirements beside this one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from typing_extensions import Self

from embedding_core.errors import ConfigError
from embedding_core.schema import Json

_HERE = Path(__file__).parent
# Settings of the caller that would change what the other environment imports or compiles.
_NOT_INHERITED = ("PYTHON", "JAX_", "TPU_", "XLA_", "LIBTPU_", "ALLOW_MULTIPLE_LIBTPU_", "PJRT_", "LD_PRELOAD", "TF_")
_FATAL = re.compile(r"^F\d{4} .*?\] (.*)", re.MULTILINE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompilerEnvironment:
    """An environment with a compiler; each kind of compiler is a subclass.

    Attributes:
      python: the environment's Python.
      seconds: time limit of one process, in seconds.
      NAME: name of the compiler, in words.
      VARIABLE: environment variable that names the Python.
      TARGET: target of `make` that makes the environment, in the folder `.<TARGET>`.
      OPTION: option of the commands that names the Python.
      REQUIREMENTS: file with the versions, in this folder.
      PINNED: packages whose versions are checked.
      SCRIPT: script of the process, in this folder.
    """

    python: Path
    seconds: float = 900

    NAME: ClassVar[str]
    VARIABLE: ClassVar[str]
    TARGET: ClassVar[str]
    OPTION: ClassVar[str]
    REQUIREMENTS: ClassVar[str]
    PINNED: ClassVar[tuple[str, ...]]
    SCRIPT: ClassVar[str]

    @classmethod
    def find(cls, python: str | os.PathLike[str] | None = None) -> Self:
        """Return the compiler of an environment.

        Args:
          python: the environment's Python; None takes the environment variable `VARIABLE`, or else the Python that
            `make` puts in the current folder.

        Raises:
          ConfigError: there is no such Python.
        """
        given = os.fspath(python) if python is not None else os.environ.get(cls.VARIABLE)
        path = Path(os.path.abspath(given or cls._default()))
        if not (path.is_file() and os.access(path, os.X_OK)):
            raise ConfigError(f"there is no environment of {cls.NAME}: {str(path)!r} is not a program; {cls.remedy()}.")
        return cls(python=path)

    @classmethod
    def installed(cls) -> Self | None:
        """Return the compiler if `VARIABLE` names a Python or `make` was run in the current folder; else None.

        Raises:
          ConfigError: `VARIABLE` is set, and is not a program.
        """
        return cls.find() if os.environ.get(cls.VARIABLE) or cls._default().is_file() else None

    @classmethod
    def pinned_versions(cls) -> dict[str, str]:
        """Return the versions that the environment must have, by package."""
        text = (_HERE / cls.REQUIREMENTS).read_text()
        found = dict(re.findall(r"^([\w-]+)==([\w.]+)", text, re.MULTILINE))
        return {name: found[name] for name in cls.PINNED}

    @classmethod
    def remedy(cls) -> str:
        """Say how to make the environment."""
        return (
            f"make it with `make {cls.TARGET}`, or install {_listed(cls.pinned_versions())} in an environment of its "
            f"own and name its Python with `{cls.OPTION}` or the environment variable {cls.VARIABLE}"
        )

    @classmethod
    def _default(cls) -> Path:
        return Path(f".{cls.TARGET}/bin/python")

    def _exchange(self, request: Json, files: Mapping[str, bytes]) -> Json:
        """Run the process on a request; return its reply.

        The reply has "stage" "compiling" only if the process ended before the compiler did; "error" then says how.

        Raises:
          ConfigError: the environment is damaged, or has other versions than those that are pinned.
        """
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for file, content in files.items():
                (folder / file).write_bytes(content)
            (folder / "request.json").write_text(json.dumps({**request, "versions": self.pinned_versions()}))
            ended = self._run(folder)
            reply = _reply(folder)
            errors = (folder / "stderr").read_text(errors="replace")
        named = f"the environment of {self.NAME}, {os.fspath(self.python)!r},"
        if reply.get("stage") == "versions":
            raise ConfigError(f"{named} has {_listed(reply['versions'])}: {self.remedy()}.")
        if reply.get("stage") not in ("compiling", "compiled", "refused", "not converted"):
            raise ConfigError(f"{named} cannot run the compiler ({ended or _last_words(errors)}): {self.remedy()}.")
        if reply["stage"] == "compiling":
            reply = {**reply, "error": ": ".join(filter(None, [ended, _last_words(errors)]))}
        return reply

    def _run(self, folder: Path) -> str:
        """Run the process; return how it ended in words, empty if it ended without an error of the system."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
        with (folder / "stderr").open("wb") as errors:
            try:
                # -I: neither the caller's Python settings nor the folder of the script, whose modules have other uses.
                done = subprocess.run(  # noqa: S603
                    [os.fspath(self.python), "-I", os.fspath(_HERE / self.SCRIPT), os.fspath(folder)],
                    env=kept,
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    timeout=self.seconds,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return f"it was not ready after {self.seconds:g} s"
            except OSError as error:
                return str(error.strerror)
        number = -done.returncode
        return f"signal {number} ended it, {signal.strsignal(number)!r}" if number > 0 else ""


def _reply(folder: Path) -> Json:
    try:
        reply: Json = json.loads((folder / "reply.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return reply


def _last_words(errors: str) -> str:
    fatal = _FATAL.search(errors)
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return fatal.group(1) if fatal else lines[-1] if lines else "it wrote nothing"


def _listed(versions: Json) -> str:
    return ", ".join(f"{name} {version}" if version else f"no {name}" for name, version in versions.items())
