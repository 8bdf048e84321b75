"""Shows artifacts in a notebook: vocabularies, tables, checkpoints, training curves, blessings and proofs.

Call `register_visualizations` once; then `InteractiveContext.show` of TFX shows the channels of the components::

    from components.notebook import register_visualizations
    from tfx.orchestration.experimental.interactive.interactive_context import InteractiveContext

    register_visualizations()
    context = InteractiveContext()
    context.run(vocabulary_gen)
    context.show(vocabulary_gen.outputs["vocabularies"])
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from tfx import types
from tfx.types import standard_artifacts

from components.artifact_files import read_embedding_config
from components.artifacts import EmbeddingCheckpoint, TableConfigs, Vocabularies
from components.compat import register_visualization
from embedding_core.config import TableConfig
from embedding_core.display import shown_token
from embedding_core.optimizers import Optimizer
from embedding_core.schema import Json
from embedding_core.storage import read_json
from embedding_core.vocabulary import Vocabulary, load_vocabularies

Page: TypeAlias = Iterator[str]
"""Pieces of HTML."""

_TOKENS = 10  # frequent tokens that are shown of each vocabulary
_BAR = 20  # width in em of the bar of the most frequent token
_FLOAT = 4  # bytes


def register_visualizations() -> None:
    """Register how `InteractiveContext.show` shows the artifacts of this project's components.

    Types that TFX shows itself (schema, statistics, anomalies, evaluation) stay as they are.
    """
    for artifact_type in _PAGES:
        register_visualization(artifact_type, html_of)


def html_of(artifact: types.Artifact) -> str:
    """Return the HTML that a notebook shows for an artifact.

    Raises:
      KeyError: artifacts of this type are not shown by this module.
    """
    return "".join(_PAGES[_shown_type(artifact)](artifact))


def _shown_type(artifact: types.Artifact) -> type[types.Artifact]:
    """Return the class of the type's name: an artifact that ML Metadata returned may be of a class made from it."""
    return next((cls for cls in _PAGES if artifact.type_name == cls.TYPE_NAME), type(artifact))


def _vocabularies(artifact: Any) -> Page:
    for name, vocabulary in sorted(load_vocabularies(artifact.uri).items()):
        features = ", ".join(sorted(vocabulary.features))
        yield (
            f"<h4>{_text(name)}</h4>{len(vocabulary):,} of {vocabulary.distinct:,} tokens, {vocabulary.coverage:.1%} "
            f"of {vocabulary.total_count:,} occurrences; features {_text(features)}; digest {vocabulary.digest[:12]}"
        )
        yield from _table(("row", "token", "occurrences", ""), _token_rows(vocabulary))


def _token_rows(vocabulary: Vocabulary) -> Iterator[Sequence[str]]:
    counts = vocabulary.counts[:_TOKENS].tolist()
    tokens = vocabulary.tokens[:_TOKENS].to_pylist()
    for row, (token, count) in enumerate(zip(tokens, counts, strict=True)):
        width = _BAR * count / max(1, *counts)
        bar = f'<div style="background:#4c78a8;height:0.8em;width:{width:.2f}em"></div>'
        yield str(row), _text(shown_token(token, private=vocabulary.private)), f"{count:,}", bar


def _tables(artifact: Any) -> Page:
    config = read_embedding_config(artifact.uri)
    features: dict[str, list[str]] = {}
    for feature in config.features:
        features.setdefault(feature.table, []).append(feature.name)
    rows = [(*_shape(table), table.combiner, ", ".join(features.get(table.name, ()))) for table in config.tables]
    yield from _table(("table", "rows", "dim", "optimizer", "MB with slots", "combiner", "features"), _texts(rows))


def _shape(table: TableConfig) -> tuple[object, ...]:
    optimizer = table.optimizer
    slots = optimizer.slots if isinstance(optimizer, Optimizer) else ()
    size = table.vocabulary_size * table.dim * _FLOAT * (1 + len(slots))
    return table.name, table.vocabulary_size, table.dim, optimizer.name if optimizer else "", round(size / 1e6, 3)


def _checkpoint(artifact: Any) -> Page:
    from embedding_core.checkpoint import verify  # loads TensorFlow

    manifest = verify(artifact.uri)
    yield f"step {manifest.step:,}; every file has the digest that its manifest names"
    rows = [
        (*_shape(table), (manifest.vocabularies.get(str(table.vocabulary)) or "")[:12])
        for table in manifest.config.tables
    ]
    yield from _table(("table", "rows", "dim", "optimizer", "MB with slots", "vocabulary's digest"), _texts(rows))


def _model_run(artifact: Any) -> Page:
    history: Json = read_json(os.path.join(artifact.uri, "history.json"))
    yield "evaluations while training"
    names = list(dict.fromkeys(name for evaluation in history["evals"] for name in evaluation))
    yield from _table(names, _texts([[evaluation.get(name) for name in names] for evaluation in history["evals"]]))


def _blessing(artifact: Any) -> Page:
    blessed = bool(artifact.get_int_custom_property("blessed"))
    yield f"<b>{'blessed' if blessed else 'refused'}</b> {_text(artifact.get_string_custom_property('reason'))}"


def _pushed(artifact: Any) -> Page:
    if not artifact.get_int_custom_property("pushed"):
        yield f"<b>nothing was pushed</b>: {_text(artifact.get_string_custom_property('reason'))}"
        return
    proof: Json = json.loads(artifact.get_string_custom_property("parity"))
    version, destination = (artifact.get_string_custom_property(f"pushed_{key}") for key in ("version", "destination"))
    yield (
        f"<b>version {_text(version)}</b> in {_text(destination)}. The proof compared {proof['rows']:,} rows "
        f"({proof['eval_rows']:,} of the eval split, {proof['edge_rows']:,} edge cases) of the exported model with "
        f"training: the largest difference is {proof['max_abs']:g}."
    )
    rows = [
        (
            name,
            difference["rows"],
            difference["max_abs"],
            difference["mean_abs"],
            difference["tolerance"],
            "yes" if difference["within"] else "no",
        )
        for name, difference in sorted(proof["differences"].items())
    ]
    head = ("compared", "rows", "largest difference", "mean difference", "tolerance", "within")
    yield from _table(head, _texts(rows))


def _texts(rows: Iterable[Iterable[object]]) -> Iterator[list[str]]:
    """Write numbers and texts as cells."""
    for row in rows:
        yield [
            f"{cell:,}" if isinstance(cell, int) else f"{cell:.4g}" if isinstance(cell, float) else _text(cell)
            for cell in row
        ]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Page:
    """Write a table; the cells are HTML."""
    yield f"<table><tr>{''.join(f'<th>{_text(name)}</th>' for name in head)}</tr>"
    for row in rows:
        yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
    yield "</table>"


def _text(value: object) -> str:
    return html.escape("" if value is None else str(value))


_PAGES: dict[type[types.Artifact], Callable[[Any], Page]] = {
    Vocabularies: _vocabularies,
    TableConfigs: _tables,
    EmbeddingCheckpoint: _checkpoint,
    standard_artifacts.ModelRun: _model_run,
    standard_artifacts.ModelBlessing: _blessing,
    standard_artifacts.PushedModel: _pushed,
}
