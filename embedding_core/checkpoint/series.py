"""Training checkpoints: each a sealed folder, and series of them by step, of which the newest good one is restored.

A folder holds a plain `tf.train.Checkpoint` named `ckpt-<step>`, TensorFlow's state file `checkpoint` (so that
`tf.train.latest_checkpoint` finds it; this project never asks it) and `manifest.json`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from embedding_core.errors import CheckpointError
from embedding_core.storage import (
    SealedFolder,
    StrPath,
    make_folders,
    move,
    names_in,
    open_file,
    remove_folder,
    remove_leftovers,
    whole_folder,
)

_log = logging.getLogger(__name__)

_SEALED = SealedFolder(constants={"format": "training-checkpoint", "version": 1})
_INDEX = re.compile(r"ckpt-(\d+)\.index\Z")
_FOLDER = re.compile(r"step-(\d+)\Z")
_DAMAGED = ".damaged"


class TrainingCheckpoint(NamedTuple):
    """A training checkpoint whose files are as they were written.

    Attributes:
      folder: where it is.
      step: that it was taken at.
      facts: what the writer had to say; a JSON object.
    """

    folder: str
    step: int
    facts: Mapping[str, Any]

    @property
    def prefix(self) -> str:
        """What TensorFlow calls the path of the checkpoint."""
        return os.path.join(self.folder, f"ckpt-{self.step}")


def write_training_checkpoint(
    folder: StrPath,
    step: int,
    write: Callable[[str], object],
    *,
    files: Mapping[str, str] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> TrainingCheckpoint:
    """Make a folder a training checkpoint, in one rename; one that is there gives way.

    Args:
      folder: the folder to make.
      step: of the state.
      write: writes a TensorFlow checkpoint at the prefix given.
      files: texts to keep beside it, by file name.
      facts: a JSON object to keep in the manifest.

    Raises:
      CheckpointError: it cannot be written, as where the disk is full; what was there before is untouched.
    """
    folder = os.fspath(folder)
    saved = TrainingCheckpoint(folder, step, dict(facts or {}))
    name = os.path.basename(saved.prefix)
    state = f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n'
    with whole_folder(folder, replace=True) as temporary:
        write(os.path.join(temporary, name))
        for file_name, text in {"checkpoint": state, **(files or {})}.items():
            with open_file(os.path.join(temporary, file_name), "w") as file:
                file.write(text)
        _SEALED.write(temporary, {"step": step, "facts": saved.facts})
    return saved


def read_training_checkpoint(folder: StrPath) -> TrainingCheckpoint:
    """Verify the training checkpoint in a folder: every file is compared with the manifest.

    Raises:
      CheckpointError: a file is missing or damaged.
    """
    folder = os.fspath(folder)
    body = _SEALED.verify(folder)
    return TrainingCheckpoint(folder, body["step"], body["facts"])


def latest_training_checkpoint(folder: StrPath) -> str:
    """Find the checkpoint `ckpt-<step>` with the highest step in a folder, by the names of its files.

    TensorFlow's state file, which names the latest too, is not read: if it is damaged there seems to be no checkpoint
    at all. If there is a manifest, as in what this project's trainer writes, all files are verified. The checksums of
    plain TensorFlow checkpoints are verified when their tensors are read.

    Returns:
      The prefix of the checkpoint.

    Raises:
      CheckpointError: there is none, or it is damaged.
    """
    if _SEALED.exists(folder):
        return read_training_checkpoint(folder).prefix
    steps = [int(match[1]) for match in map(_INDEX.match, names_in(folder)) if match]
    if not steps:
        raise CheckpointError(
            f"{os.fspath(folder)!r} has no checkpoint `ckpt-<step>`: training wrote none, or wrote it elsewhere."
        )
    return os.path.join(folder, f"ckpt-{max(steps)}")


class CheckpointSeries:
    """The training checkpoints of one run, each in a folder `step-<step>`. Only one process may use it at a time."""

    def __init__(self, folder: StrPath) -> None:
        """Use a folder, which is created; what a kill in the middle of a save left in it is removed."""
        self.folder = os.fspath(folder)
        make_folders(self.folder)
        remove_leftovers(self.folder)

    def steps(self) -> list[int]:
        """The steps that there are folders for, newest first; whether they are good is not known yet."""
        return sorted((int(match[1]) for match in map(_FOLDER.match, names_in(self.folder)) if match), reverse=True)

    def path(self, step: int) -> str:
        """The folder of a step."""
        return os.path.join(self.folder, f"step-{step}")

    def facts(self, step: int) -> Mapping[str, Any]:
        """What the writer of a step's checkpoint had to say; its files are not looked at.

        Raises:
          CheckpointError: its manifest is missing or damaged.
        """
        facts: Mapping[str, Any] = _SEALED.read(self.path(step))["facts"]
        return facts

    def save(
        self,
        step: int,
        write: Callable[[str], object],
        *,
        files: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the checkpoint of a step; arguments and errors are those of `write_training_checkpoint`."""
        write_training_checkpoint(self.path(step), step, write, files=files, facts=facts)

    def keep(self, steps: Collection[int]) -> None:
        """Delete the checkpoints of all other steps."""
        for step in self.steps():
            if step not in steps:
                remove_folder(self.path(step))

    def restore(self, restore: Callable[[TrainingCheckpoint], None]) -> TrainingCheckpoint | None:
        """Restore the newest checkpoint that verifies, with a warning for every one passed over.

        Newer ones that do not are set aside under `step-<step>.damaged`, so that the run can save there again.

        Args:
          restore: brings the state back; it is called with one checkpoint after the other until it raises no
            CheckpointError.

        Returns:
          What was restored, or None where there is no checkpoint at all.

        Raises:
          CheckpointError: there are checkpoints, but none verifies and can be restored.
        """
        problems = []
        for step in self.steps():
            try:
                found = self.verified(step)
                restore(found)
            except CheckpointError as error:
                problems.append((step, str(error)))
                continue
            for bad, problem in problems:
                _log.warning("the checkpoint of step %d is passed over for that of step %d: %s", bad, step, problem)
                self._set_aside(bad)
            return found
        damaged = [name for name in names_in(self.folder) if name.endswith(_DAMAGED)]
        if problems or damaged:
            told = "; ".join([problem for _, problem in problems] + damaged)
            raise CheckpointError(
                f"no checkpoint in {self.folder!r} can be restored ({told}): bring back its files, or remove the "
                "folder to train from nothing."
            )
        return None

    def verified(self, step: int) -> TrainingCheckpoint:
        """The checkpoint of a step.

        Raises:
          CheckpointError: it is not there, or damaged.
        """
        found = read_training_checkpoint(self.path(step))
        if found.step != step:
            raise CheckpointError(f"{found.folder!r} holds the checkpoint of step {found.step}: folders were swapped.")
        return found

    def _set_aside(self, step: int) -> None:
        remove_folder(self.path(step) + _DAMAGED)
        move(self.path(step), self.path(step) + _DAMAGED)
