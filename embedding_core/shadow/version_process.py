"""Holds one version of a model in a process of its own, and sends it requests."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy.typing as npt
from typing_extensions import Self

from embedding_core.errors import CheckpointError
from embedding_core.proof.parity import error_line, scoring_environment
from embedding_core.shadow.answering import array_of, read_message, write_message

_PROGRAM = Path(__file__).with_name("answering.py")
_LONGEST_ERROR = 500


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer of a version.

    Attributes:
      outputs: arrays by output name; None if the version refused the request.
      error: why it was refused; "" if it was answered.
      quotes: whether the error is a message of the graph, which may quote the request.
      seconds: time that the session took; None if the request was refused or is the first of its kind.
    """

    outputs: Mapping[str, npt.NDArray[Any]] | None = None
    error: str = ""
    quotes: bool = False
    seconds: float | None = None


class VersionProcess:
    """A version of a model in a process of its own; a context manager, which ends the process.

    Attributes:
      path: folder of the SavedModel.
      load_seconds: time that the session loader took.
      loaded_bytes: resident memory after loading, of TensorFlow and the model.
      peak_bytes: largest resident memory that was read so far.
      deltas: number of deltas that were applied to it.

    Raises:
      CheckpointError: the version does not load, or the process takes longer than `timeout` seconds, or ends.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 900.0) -> None:
        self.path = os.fspath(path)
        self._timeout = timeout
        self._timed_out = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        # -I: the child must not find this project through the working directory or PYTHONPATH.
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", str(_PROGRAM), self.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=scoring_environment(),
        )
        self.load_seconds = 0.0
        self.loaded_bytes = self.peak_bytes = self.deltas = 0

    def __enter__(self) -> Self:
        try:
            facts, _ = self._received("loading")
        except BaseException:
            self._end()
            raise
        self.load_seconds, self.loaded_bytes = facts["load_seconds"], facts["loaded_bytes"]
        self.peak_bytes = self.loaded_bytes
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def ask(self, signature: str, inputs: Mapping[str, bytes], outputs: Sequence[str], what: str) -> Answer:
        """Send a request, and wait for the answer.

        Args:
          signature: name of the signature.
          inputs: serialized TensorProto by input name.
          outputs: names of the outputs; empty for all.
          what: name of the request in errors.

        Raises:
          CheckpointError: the process ended or took too long.
        """
        try:
            write_message(self._stdin, {"signature": signature, "outputs": list(outputs)}, inputs)
        except OSError:
            raise self._failure(what) from None
        facts, parts = self._received(what)
        # The kernel's counters of memory are approximate: a later reading of the peak can be below an earlier one.
        self.peak_bytes = max(self.peak_bytes, facts["peak_bytes"])
        if "error" in facts:
            return Answer(error=facts["error"][:_LONGEST_ERROR], quotes=facts["quotes"])
        arrays = {name: array_of(part) for name, part in parts.items()}
        return Answer(outputs=arrays, seconds=facts["seconds"])

    @property
    def _stdin(self) -> Any:
        return self._process.stdin

    def _received(self, what: str) -> tuple[dict[str, Any], dict[str, bytes]]:
        timer = threading.Timer(self._timeout, self._kill)
        timer.start()
        try:
            message = read_message(self._process.stdout)  # type: ignore[arg-type]
        finally:
            timer.cancel()
        if message is None:
            raise self._failure(what)
        return message

    def _kill(self) -> None:
        self._timed_out = True
        self._process.kill()

    def _failure(self, what: str) -> CheckpointError:
        code = self._process.wait()
        if self._timed_out:
            return CheckpointError(
                f"{self.path!r} took over {self._timeout:g} s ({what}): check that the machine is free."
            )
        self._stderr.seek(0)
        text = error_line(self._stderr.read().decode(errors="replace"))
        return CheckpointError(
            f"the process of {self.path!r} ended (exit code {code}, {what}): {text} Give the folder of a SavedModel "
            "that TensorFlow loads, and enough memory for two versions."
        )

    def _end(self) -> None:
        """End the process: it ends by itself when its standard input closes."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:  # the process is gone, and with it what was not yet written
                    continue
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()
