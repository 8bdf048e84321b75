"""Reads artifacts of tables and vocabularies, from any file system that TFX reads."""

from __future__ import annotations

import os

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError
from embedding_core.schema import Json
from embedding_core.storage import is_remote, read_bounded, unsealed_json
from embedding_core.vocabulary import Vocabulary, load_vocabularies

EMBEDDING_CONFIG_FILE = "embedding_config.json"
SPARSE_CORE_LIMITS_FILE = "sparse_core_limits.json"
"""File of a TableConfigs artifact for a slice with SparseCores, see `embedding_core.training.sparse_core_limits`."""
RECORD_SUFFIX = ".lineage.json"
"""Suffix of the record beside an artifact, see `components.lineage_record`."""


def read_embedding_config(folder: str) -> EmbeddingConfig:
    """Return the tables and features of a TableConfigs artifact, verified if sealed (earlier releases wrote no seal).

    Raises:
      ConfigError: the file is not what TableConfigGen wrote.
    """
    path = os.path.join(folder, EMBEDDING_CONFIG_FILE)
    try:
        return EmbeddingConfig.from_json(_content(path))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path!r} is not what TableConfigGen wrote ({error}): restore it, or run TableConfigGen again."
        ) from error


def read_sparse_core_limits(folder: str) -> Json | None:
    """Return the limits of SparseCores in a TableConfigs artifact; None if it has none.

    Raises:
      ConfigError: the file is not what TableConfigGen wrote.
    """
    from tfx.dsl.io import fileio

    path = os.path.join(folder, SPARSE_CORE_LIMITS_FILE)
    if not fileio.exists(path):
        return None
    try:
        return unsealed_json(_content(path))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path!r} is not what TableConfigGen wrote ({error}): restore it, or run TableConfigGen again."
        ) from error


def _content(path: str) -> bytes:
    if not is_remote(path):
        return read_bounded(path)
    from tfx.dsl.io import fileio

    with fileio.open(path, "rb") as file:
        return bytes(file.read())


def read_vocabularies(folder: str) -> dict[str, Vocabulary]:
    """Return the vocabularies of a Vocabularies artifact, verified, by name.

    Raises:
      VocabularyError: a file is missing or damaged, or the folder has no vocabulary.
    """
    from tfx.dsl.io import fileio

    return load_vocabularies(folder, open_file=fileio.open, list_folder=fileio.listdir)
