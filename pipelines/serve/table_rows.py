"""Reads the rows of the tables that a version was made of, and finds the neighbours of a row."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from embedding_core.checkpoint import BundleReader, verify
from embedding_core.checkpoint.bundle import Rows
from embedding_core.checkpoint.checkpoint_manifest import BUNDLE
from embedding_core.checkpoint.remap import checkpoint_vocabularies
from embedding_core.checkpoint.summary import name_of_row
from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.display import shown_token
from embedding_core.errors import ConfigError, EmbeddingError, nearest
from embedding_core.schema import Json
from embedding_core.training.finished_run import RunDescription
from embedding_core.vocabulary import Vocabulary
from pipelines.config import PipelineConfig
from pipelines.lineage.graph import Node
from pipelines.previous.finished_trainings import FinishedTrainings, Training, finished_trainings
from pipelines.report.run_figures import shown_inputs, split_files


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
      number: its number.
      token: its token, or the digest if the token is private; "id <number>" of raw ids.
      count: number of occurrences of the token; None if the row does not belong to one.
      vector: its values.
      similarity: cosine of the angle to the row whose neighbour it is; None if it is listed for itself.
    """

    number: int
    token: str
    count: int | None
    vector: Sequence[float]
    similarity: float | None = None


class TableRows:
    """The trained tables of a version, from its EmbeddingCheckpoint: float32, whatever type is served.

    Attributes:
      config: the tables and features.
      sample: inputs of rows of the eval split that a request may show; empty if they are gone.
    """

    def __init__(self, folder: str, sample: Mapping[str, npt.NDArray[Any]] | None = None) -> None:
        """Verify an embedding checkpoint.

        Raises:
          CheckpointError: a file is missing or damaged.
        """
        manifest = verify(folder)
        self.config: EmbeddingConfig = manifest.config
        self._reader = BundleReader(os.path.join(folder, BUNDLE))
        self._vocabularies = checkpoint_vocabularies(folder, manifest)
        self.sample = sample or {}

    def table(self, name: str) -> TableConfig:
        """Return a table.

        Raises:
          ConfigError: there is none of this name.
        """
        tables = {table.name: table for table in self.config.tables}
        if name not in tables:
            raise ConfigError(f"unknown table {name!r}: {nearest(name, tables)}")
        return tables[name]

    def vocabulary_of(self, table: TableConfig) -> Vocabulary | None:
        """Return the vocabulary that the rows belong to; None for raw ids."""
        return None if table.vocabulary is None else self._vocabularies[table.vocabulary]

    def is_private(self, table: TableConfig) -> bool:
        """Return whether tokens of the table may be shown only as digests."""
        vocabulary = self.vocabulary_of(table)
        return vocabulary is not None and vocabulary.private

    def row_of(self, table: TableConfig, token: str) -> int:
        """Find the row of a token, or of a raw id.

        Raises:
          ConfigError: it has none.
        """
        vocabulary = self.vocabulary_of(table)
        if vocabulary is None:
            return self._checked(table, token)
        row: int = pc.index(vocabulary.tokens, pa.scalar(token.encode(), vocabulary.tokens.type)).as_py()
        if row < 0:
            shown = shown_token(token.encode(), private=self.is_private(table))
            raise ConfigError(f"table {table.name!r} has no row for {shown!r}: it is looked up as an unknown token.")
        return row

    def first_token(self, table: TableConfig) -> str:
        """Return the token, or the raw id, of the first row; "" if no token has a row."""
        vocabulary = self.vocabulary_of(table)
        if vocabulary is None:
            return "0"
        tokens: list[bytes] = vocabulary.tokens.slice(0, 1).to_pylist()
        return b"".join(tokens).decode(errors="ignore")

    def _checked(self, table: TableConfig, number: str) -> int:
        if not re.fullmatch("[0-9]{1,18}", number) or int(number) >= table.vocabulary_size:
            raise ConfigError(f"{number!r} is not a row of {table.name!r}: it has 0 to {table.vocabulary_size - 1}.")
        return int(number)

    def rows(self, table: TableConfig, start: str, count: int) -> list[Row]:
        """Return up to `count` rows from the row of the number `start` on.

        Raises:
          ConfigError: `start` is not the number of a row.
        """
        first = self._checked(table, start)
        rows: list[Row] = []
        for begin, part in self._slices(table):
            places = range(max(first, begin), min(first + count, begin + len(part)))
            rows += [self._row(table, place, part[place - begin]) for place in places]
            if begin + len(part) >= first + count:
                break
        return rows

    def neighbours(self, table: TableConfig, number: str, count: int) -> list[Row]:
        """Return the row of that number, then the tokens or raw ids with the most similar rows, the best first.

        Rows of zeros and rows that are not finite are nobody's neighbours: the cosine is not defined.

        Raises:
          ConfigError: `number` is not the number of a row.
        """
        (row,) = self.rows(table, number, 1)
        vocabulary = self.vocabulary_of(table)
        known = table.vocabulary_size if vocabulary is None else len(vocabulary)
        best: list[Row] = []
        for begin, part in self._slices(table):
            similar = _cosines(part[: max(0, known - begin)], np.asarray(row.vector))
            places = [place for place in np.argsort(-similar, kind="stable")[: count + 1] if similar[place] > -np.inf]
            near = (self._row(table, begin + int(place), part[place], float(similar[place])) for place in places)
            best = sorted([*best, *near], key=lambda neighbour: -(neighbour.similarity or 0.0))[: count + 1]
        return [row, *[neighbour for neighbour in best if neighbour.number != row.number][:count]]

    def _slices(self, table: TableConfig) -> Iterator[tuple[int, Rows]]:
        return self._reader.slices(table.name)

    def _row(
        self, table: TableConfig, number: int, vector: npt.NDArray[np.float32], similarity: float | None = None
    ) -> Row:
        vocabulary, name = self.vocabulary_of(table), name_of_row(table, self._vocabularies, number)
        count = int(vocabulary.counts[number]) if vocabulary is not None and number < len(vocabulary) else None
        return Row(number, name, count, vector.tolist(), similarity)


def _cosines(rows: Rows, vector: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Compute the cosine of the angle between each row and a vector; -inf where it is not defined."""
    wide = rows.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = wide @ vector / (np.linalg.norm(wide, axis=1) * np.linalg.norm(vector))
    return np.where(np.isfinite(cosines), cosines, -np.inf)


def tables_of_version(config: PipelineConfig, number: int, facts: Json) -> TableRows:
    """Open the tables of the training that a version was made of.

    Args:
      config: the pipeline.
      number: number of the version.
      facts: what the version's manifest says.

    Raises:
      ConfigError: the metadata does not know the training, or its checkpoint is gone or damaged.
    """
    trainings = finished_trainings(config)
    run = trainings.artifact_at(str(facts.get("sources", {}).get("model_run", "")))
    if run is None:
        raise ConfigError(
            f"version {number} is of a training that the metadata of {config.name!r} does not know: restore the "
            "metadata, or give the configuration that pushed it."
        )
    return TableRows(trainings.checkpoint_of(Training(run, f"version {number}")).uri, _sample(trainings, run))


def _sample(trainings: FinishedTrainings, run: Node) -> Mapping[str, npt.NDArray[Any]]:
    """Return the inputs that the report of a training shows; nothing if its files are gone."""
    graph = next(trainings.transform_graphs_of(run), None)
    vocabularies, examples = trainings.vocabularies_of(run), trainings.examples_of(run)
    if graph is None or vocabularies is None or examples is None:
        return {}
    try:
        described = RunDescription.load(run.uri)
        return shown_inputs(described, graph.uri, vocabularies.uri, split_files(examples, "eval"))
    except (OSError, ValueError, EmbeddingError, tf.errors.OpError):
        return {}
