"""Runs the compilers of TPU cores and of SparseCores in processes of their own environments, without TensorFlow.

The compiler is in the package libtpu, whose licence is Google Cloud's terms of service. It is therefore never a
dependency of this project: a user installs it, with the versions of a file of requirements beside this one.

Google's TPU compiler, XLA:TPU, compiles the program of a core. It compiles the lookup and update of stacks of tables on
SparseCores (TPU v5p, v6e) through jax-tpu-embedding. This process and a compiler's process exchange files.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

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


# The smallest slice of each generation: the program of one core does not depend on the number of cores.
_TOPOLOGIES = {"v2": "v2:2x2", "v3": "v3:2x2", "v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuCompiler(CompilerEnvironment):
    """The TPU compiler of an environment."""

    NAME = "the TPU compiler"
    VARIABLE = "TPU_COMPILER_PYTHON"
    TARGET = "tpu-compiler"
    OPTION = "--compiler-python"
    REQUIREMENTS = "requirements.txt"
    PINNED = ("jax", "jaxlib", "libtpu")
    SCRIPT = "compiler_process.py"

    def compile(self, hlo: bytes, generation: str) -> Json:
        """Compile an HLO module for one core of a TPU.

        Args:
          hlo: serialized HloModuleProto.
          generation: "v2", "v3", "v4", "v5e", "v5p" or "v6e".

        Returns:
          "stage": "compiled", "refused" (the compiler's "error", word for word), "not converted" ("error" is of
          StableHLO, the form in which the compiler takes programs) or "stopped" ("error" says how the process ended);
          "versions"; "target"; and if compiled "argument_bytes", "output_bytes", "shared_bytes" (of outputs in the
          memory of arguments), "temporary_bytes", "program_bytes", "flops", "bytes_accessed", "optimal_seconds" (the
          compiler's estimate of a step) and "operations" by type.

        Raises:
          ConfigError: the environment is damaged, or has other versions than those that are pinned.
        """
        target = _TOPOLOGIES[generation]
        reply = self._exchange({"topology": target}, {"program.hlo": hlo})
        if reply["stage"] == "compiling":
            reply = {**reply, "stage": "stopped"}
        return {"target": target, **reply}


_DIMENSIONS = {"v5p": 3, "v6e": 2}  # of the network that joins the chips of a slice


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseCoreCompiler(CompilerEnvironment):
    """The TPU compiler of an environment with jax-tpu-embedding, which needs Python 3.12 or later."""

    NAME = "the compiler for SparseCores"
    VARIABLE = "SPARSECORE_COMPILER_PYTHON"
    TARGET = "sparsecore-compiler"
    OPTION = "--sparsecore-python"
    REQUIREMENTS = "sparse_core_requirements.txt"
    PINNED = ("jax-tpu-embedding", "jax", "jaxlib", "libtpu")
    SCRIPT = "sparse_core_process.py"

    def compile(self, program: Json, generation: str) -> Json:
        """Compile the lookup and update of every stack of tables for all chips of a slice; each stack alone.

        Args:
          program: "chips", "sparse_cores_per_chip" and "batch_size" (of all chips); "tables": "rows", "dim", "combiner"
            and "optimizer" by name, with the "kind" and "hyperparameters" of the optimizer and the names of those that
            are "changed" from their defaults; "features": "table" and "length" (of a sequence, else 0) by name;
            "form": `jax_tpu_embedding` in the forms of the limits.
          generation: "v5p" or "v6e".

        Returns:
          "versions", "target" and "stacks". Each stack has "stage": "compiled", "refused" ("error" is the compiler's,
          word for word), "stopped" ("error" says how the process ended) or "lacking" ("error" names the optimizer that
          jax-tpu-embedding does not have); its "tables"; and if compiled "argument_bytes", "output_bytes",
          "shared_bytes", "temporary_bytes" and "program_bytes" of a chip, and "not_passed": hyperparameters that are
          set, and that jax-tpu-embedding does not have.

        Raises:
          ConfigError: the environment is damaged, or has other versions than those that are pinned; or the slice has
            another number of chips than a box can have.
        """
        target, left = slice_name(generation, program["chips"]), True
        done: dict[str, Json] = {}
        while left:
            reply = self._exchange({**program, "topology": target, "done": sorted(done)}, {})
            done |= reply["stacks"]
            left = reply["stage"] == "compiling"  # the process ended: go on with the stack after this one
            if left:
                done[reply["stack"]] = {"stage": "stopped", "error": reply["error"], "tables": reply["tables"]}
        return {"target": target, "versions": reply["versions"], "stacks": done}


class SparseCores(NamedTuple):
    """What the programs of SparseCores are compiled with.

    Attributes:
      compiler: the compiler; None if its environment is not there.
      limits: what `sparse_core_limits` computed for the slice, the batch and the tables; None if nothing did.
      source: source of the limits in words; if there are none, why, and what to do.
    """

    compiler: SparseCoreCompiler | None
    limits: Json | None
    source: str


def slice_name(generation: str, chips: int) -> str:
    """Name a slice as the compiler does, such as "v5p:2x2x1": its chips in each dimension, in the most compact box.

    Raises:
      ConfigError: no box has so many chips.
    """
    dimensions = _DIMENSIONS[generation]
    sides = [side for side in range(1, chips + 1) if chips % side == 0]
    boxes = [
        box
        for box in itertools.combinations_with_replacement(sides, dimensions)
        if math.prod(box) == chips and (box.count(1) == 0 or chips <= 4)
    ]
    if not boxes:
        raise ConfigError(f"a slice of {generation} does not have {chips} chips: use another size.")
    box = min(boxes, key=sum)
    ordered = [side for side in box if side > 1] + [side for side in box if side == 1]
    return f"{generation}:{'x'.join(map(str, ordered))}"
