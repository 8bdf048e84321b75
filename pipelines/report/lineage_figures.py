"""Reads the figures of a lineage page: what a pushed model was made of, and what changed since the previous one."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from components.artifact_files import read_embedding_config
from embedding_core.display import shown_token
from embedding_core.errors import DataError, EmbeddingError, nearest
from embedding_core.vocabulary import Vocabulary, load_vocabularies, load_vocabulary
from pipelines.lineage.ancestors import Generation, generations
from pipelines.lineage.graph import Node, node_of
from pipelines.lineage.records import files_of, json_if_readable
from pipelines.report.run_report import Figures

_SAMPLES = 8
_MODEL_FIGURES = ("eval_auc", "eval_loss", "step", "seconds")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularyChange:
    """One vocabulary, compared with that of the previous model.

    Attributes:
      name: name of the vocabulary.
      size, coverage, digest: of this model's vocabulary.
      came, went, stayed: numbers of tokens that are new, gone, and in both; None without a previous model.
      new_tokens, lost_tokens: the first 8 of the tokens that came and went, in the order of their vocabulary; empty if
        the column is private.
    """

    name: str
    size: int
    coverage: float
    digest: str
    came: int | None = None
    went: int | None = None
    stayed: int | None = None
    new_tokens: Sequence[str] = ()
    lost_tokens: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenRow:
    """The row of one token.

    Attributes:
      vocabulary, token: name of the vocabulary, and the token.
      row: its row in every table of that vocabulary, from 0.
      count: number of its occurrences.
      digest: digest of the vocabulary that the row belongs to.
      tables: names of the tables of that vocabulary.
    """

    vocabulary: str
    token: str
    row: int
    count: int
    digest: str
    tables: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Page:
    """The figures of a lineage page.

    Attributes:
      start: id of the artifact that the page is about.
      nodes: its lineage, the artifact itself first; then the other artifacts of the pushes that it descends from.
      files: by id of an artifact, `path` and `size` of the external files that it was made of.
      vocabularies: changes of the model's vocabularies.
      tables: per table its rows, dim, bytes, and the rows of the previous model, or None.
      remap: per table what a warm start kept, added and dropped; empty without one.
      metrics: by name of a figure, its value and that of the previous model, or None.
      before: version of the previous model, or None.
      line: the pushed models that this one descends from by warm starts, the oldest first, and this one last.
    """

    start: int
    nodes: Mapping[int, Node]
    files: Mapping[int, Sequence[Figures]]
    vocabularies: Sequence[VocabularyChange]
    tables: Sequence[Figures]
    remap: Mapping[str, Figures]
    metrics: Mapping[str, tuple[Any, Any]]
    before: str | None
    line: Sequence[Generation]


def collect_page(
    nodes: Mapping[int, Node],
    before: Mapping[int, Node] | None = None,
    line: Sequence[Mapping[int, Node]] | None = None,
) -> Page:
    """Read the figures of a lineage page.

    Args:
      nodes: a lineage, the artifact that the page is about first.
      before: lineage of the model pushed before it, or None.
      line: lineages of the models that it descends from, the oldest first, then its own; None means only its own.
    """
    start = next(iter(nodes.values()))
    previous = next(iter(before.values())) if before else None
    past, lineages = before or {}, [nodes] if line is None else line
    shown = {**nodes, **{number: node for lineage in lineages for number, node in lineage.items()}}
    return Page(
        start=start.id,
        nodes=shown,
        files={node.id: files for node in shown.values() if (files := files_of(node))},
        vocabularies=_vocabularies(nodes, past),
        tables=_tables(nodes, past),
        remap=_remap(nodes),
        metrics=_metrics(nodes, past),
        before=None if previous is None else str(previous.facts.get("pushed_version", previous.id)),
        line=generations(lineages),
    )


def find_token(nodes: Mapping[int, Node], vocabulary: str, token: str) -> TokenRow | None:
    """Find the row of a token in the model; None if it has none.

    Raises:
      DataError: the vocabulary is unknown.
      VocabularyError: the vocabulary is damaged, or its files are gone.
    """
    artifact = node_of(nodes, "components.Vocabularies")
    if artifact is None:
        return None
    known = list(artifact.facts.get("vocabularies", [vocabulary]))
    if vocabulary not in known:
        raise DataError(f"unknown vocabulary {vocabulary!r}: {nearest(vocabulary, known)}")
    loaded = load_vocabulary(artifact.uri, vocabulary)
    row = pc.index(loaded.tokens, pa.scalar(token.encode(), loaded.tokens.type)).as_py()
    if row < 0:
        return None
    return TokenRow(
        vocabulary=vocabulary,
        token=token,
        row=row,
        count=int(loaded.counts[row]),
        digest=loaded.digest,
        tables=_tables_of(nodes, vocabulary),
    )


def _tables_of(nodes: Mapping[int, Node], vocabulary: str) -> tuple[str, ...]:
    artifact = node_of(nodes, "components.TableConfigs")
    if artifact is None:
        return ()
    config = read_embedding_config(artifact.uri)
    return tuple(table.name for table in config.tables if table.vocabulary == vocabulary)


def _loaded(nodes: Mapping[int, Node]) -> dict[str, Vocabulary]:
    """Return the vocabularies of a lineage; empty if their files are gone or damaged."""
    artifact = node_of(nodes, "components.Vocabularies")
    try:
        return {} if artifact is None else dict(load_vocabularies(artifact.uri))
    except (EmbeddingError, OSError):
        return {}


def _vocabularies(nodes: Mapping[int, Node], before: Mapping[int, Node]) -> list[VocabularyChange]:
    old = _loaded(before)
    return [_change(vocabulary, old.get(name)) for name, vocabulary in sorted(_loaded(nodes).items())]


def _change(vocabulary: Vocabulary, old: Vocabulary | None) -> VocabularyChange:
    facts = VocabularyChange(
        name=vocabulary.name, size=len(vocabulary), coverage=vocabulary.coverage, digest=vocabulary.digest
    )
    if old is None:
        return facts
    came, went = _without(vocabulary.tokens, old.tokens), _without(old.tokens, vocabulary.tokens)
    private = vocabulary.private or old.private
    return dataclasses.replace(
        facts,
        came=len(came),
        went=len(went),
        stayed=len(vocabulary) - len(came),
        new_tokens=() if private else _shown(came),
        lost_tokens=() if private else _shown(went),
    )


def _without(tokens: pa.Array, others: pa.Array) -> pa.Array:
    """Return the tokens that are not among the others, in their order."""
    return tokens.filter(pc.invert(pc.is_in(tokens, value_set=others)))


def _shown(tokens: pa.Array) -> tuple[str, ...]:
    return tuple(shown_token(token, private=False) for token in tokens.slice(0, _SAMPLES).to_pylist())


def _plan(nodes: Mapping[int, Node]) -> Figures:
    artifact = node_of(nodes, "components.TableConfigs")
    path = None if artifact is None else os.path.join(artifact.uri, "plan.json")
    tables: Figures = {} if path is None else json_if_readable(path).get("tables", {})
    return tables


def _tables(nodes: Mapping[int, Node], before: Mapping[int, Node]) -> list[Figures]:
    old = _plan(before)
    return [
        {
            "name": name,
            "rows": table["rows"],
            "dim": table["dim"],
            "bytes": table["table_bytes"] + table["slot_bytes"],
            "rows_before": old[name]["rows"] if name in old else None,
        }
        for name, table in sorted(_plan(nodes).items())
    ]


def _remap(nodes: Mapping[int, Node]) -> dict[str, Figures]:
    """Return what the warm start kept, from the facts of the nearest checkpoint of a CheckpointLoader."""
    for node in nodes.values():
        if node.type == "components.EmbeddingCheckpoint" and "remap" in node.facts:
            return dict(node.facts["remap"])
    return {}


def _metrics(nodes: Mapping[int, Node], before: Mapping[int, Node]) -> dict[str, tuple[Any, Any]]:
    runs = [node_of(part, "ModelRun") for part in (nodes, before)]
    now, then = ({} if run is None else run.facts for run in runs)
    return {name: (now.get(name), then.get(name)) for name in _MODEL_FIGURES if now.get(name) is not None}
