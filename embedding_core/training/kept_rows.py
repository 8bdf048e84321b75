"""Keeps encoded rows for later trainings on the same rows, vocabularies and transform; other settings may differ."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from embedding_core.errors import CheckpointError
from embedding_core.storage import (
    SealedFolder,
    file_digest,
    is_remote,
    locked_folder,
    make_folders,
    names_in,
    remove_folder,
    remove_leftovers,
    scratch_folder,
)
from embedding_core.training.checkpoints import fingerprint
from embedding_core.training.training_inputs import Inputs

_SEALED = SealedFolder(
    constants={"format": "tfx-embeddings encoded rows", "version": 1},
    missing="its rows were not encoded to the end",
    remedy="they are encoded again",
)


class RowsFolder(NamedTuple):
    """A folder for the encoded rows of a training.

    Attributes:
      path: an existing folder, with a folder for each split.
      is_kept: whether later trainings may read it; if so, its splits are sealed and verified.
    """

    path: str
    is_kept: bool


def rows_key(inputs: Inputs, files: list[str], *others: Any) -> str:
    """Compute a digest of all that encoded rows depend on.

    Args:
      inputs: tables, features and vocabularies; dims and optimizers do not change the digest.
      files: TFRecord files of all splits.
      others: further JSON values, such as the digest of the transform and the share of rows that are held back.
    """
    features = []
    for feature in inputs.config.features:
        table = inputs.config.table_of(feature.name)
        column = inputs.column_of(feature).to_mapping()
        features.append([feature.name, column, table.vocabulary, table.vocabulary_size, table.oov_rows])
    read = {name: file_digest(name)["sha256"] for name in [*files, *inputs.vocabularies.values()]}
    parts = [
        features,
        [inputs.dense, [[task.key, task.kind] for task in inputs.tasks], inputs.weight],
        sorted(read.items()),
        *others,
    ]
    return fingerprint(*parts)


@contextlib.contextmanager
def rows_folder(path: str | None) -> Iterator[RowsFolder]:
    """Yield a folder for encoded rows: `path`, locked, or a temporary folder if another process uses `path`.

    Args:
      path: folder to keep, named by `rows_key`; it may hold the rows of a previous training. Folders beside it that no
        process uses are removed. If `path` is None or in an object store, the folder is temporary.
    """
    if path is None or is_remote(path):
        with scratch_folder("rows") as folder:
            yield RowsFolder(folder, False)
        return
    make_folders(path)
    with locked_folder(path, wait=False) as locked:
        if not locked:
            with scratch_folder("rows") as folder:
                yield RowsFolder(folder, False)
            return
        _remove_others(path)
        yield RowsFolder(path, True)


def _remove_others(path: str) -> None:
    parent = os.path.dirname(path)
    remove_leftovers(parent)
    for name in set(names_in(parent)) - {os.path.basename(path)}:
        other = os.path.join(parent, name)
        with locked_folder(other, wait=False) as is_unused:
            if is_unused:
                remove_folder(other)


def seal_split(folder: str) -> None:
    """Seal the folder of a split, after all its files are encoded."""
    _SEALED.write(folder, {})


def whole_split(folder: str) -> list[str] | None:
    """Return the encoded files of a split in order; None if it was not encoded to the end, or is damaged."""
    try:
        files = _SEALED.verify(folder)["files"]
    except CheckpointError:
        return None
    return [os.path.join(folder, name) for name in sorted(files)]
