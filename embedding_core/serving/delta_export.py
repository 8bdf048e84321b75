"""Exports a model that takes deltas: its layout, its digest, its guarded signatures and `apply_delta`."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from embedding_core.config import EmbeddingConfig
from embedding_core.delta_protocol import APPLY_DELTA
from embedding_core.errors import ConfigError
from embedding_core.serving.delta_graph import DeltaExport, DeltaState, apply_signature, random_key
from embedding_core.serving.served_state import Layout, ServedState, TableLayout, lines_of, state_of
from embedding_core.serving.serving_module import ServingModule
from embedding_core.serving.table_blocks import vocabulary_file
from embedding_core.storage import file_digest

_UNCHANGED = ("counters", "transform_features", "transform_labels")
"""Signatures that read nothing that deltas change."""
_LARGEST_TABLE = 2**31


def spare_rows(config: EmbeddingConfig, settings: DeltaExport) -> dict[str, int]:
    """Return the number of spare rows by table; tables of raw ids have none."""
    return {
        table.name: settings.spare_of(table.vocabulary_size - table.oov_rows)
        for table in config.tables
        if table.vocabulary is not None
    }


def layout_of(module: ServingModule, vocabularies: Mapping[str, str]) -> Layout:
    """Describe where a module has its tables, with a new key.

    Raises:
      ConfigError: a table has 2**31 rows or more.
    """
    tables = []
    for table in module.config.tables:
        rows = module.rows_of(table.name)
        if rows.count >= _LARGEST_TABLE:
            raise ConfigError(
                f"table {table.name!r} has {rows.count} rows: deltas number rows by 31 bits; set `push.deltas: false`."
            )
        tokens = None if table.vocabulary is None else table.vocabulary_size - table.oov_rows
        tables.append(
            TableLayout(
                name=table.name,
                block=rows.name,
                start=rows.start,
                tokens=tokens,
                oov_rows=0 if tokens is None else table.oov_rows,
                capacity=rows.count,
                vocabulary=file_digest(vocabulary_file(table, vocabularies))["sha256"] if tokens else None,
            )
        )
    dense = tuple((one.dtype.name, tuple(map(int, one.shape))) for one in module.dense_variables)
    return Layout(tables=tuple(tables), dense=dense, checksum_key=random_key())


def with_deltas(
    module: ServingModule,
    signatures: Mapping[str, Any],
    layout: Layout,
    vocabularies: Mapping[str, str],
    settings: DeltaExport,
) -> dict[str, Any]:
    """Let signatures answer from one state and say which, and add `apply_delta`.

    Raises:
      ConfigError: the model has an index of candidates, which deltas would not change.
    """
    if "top_k" in signatures:
        raise ConfigError(
            "deltas do not change the index of candidates that `top_k` searches: set `push.deltas: false` for this "
            "model, or leave the signature `top_k` out."
        )
    state = DeltaState()
    state.digest.assign(_state(module, layout, vocabularies).digest())
    module.deltas = state
    guarded = {name: one if name in _UNCHANGED else state.guarded(one) for name, one in signatures.items()}
    return {**guarded, APPLY_DELTA: apply_signature(module, state, layout, settings.secret)}


def _state(module: ServingModule, layout: Layout, vocabularies: Mapping[str, str]) -> ServedState:
    tokens = {
        table.name: lines_of(vocabulary_file(table, vocabularies))
        for table in module.config.tables
        if table.vocabulary is not None
    }
    blocks = {name: np.asarray(block) for name, block in module.tables.items()}
    return state_of(layout, blocks, tokens, [one.numpy() for one in module.dense_variables])


def save_layout(layout: Layout, module: ServingModule, folder: str) -> None:
    """Write the layout of a model that was saved to a folder, with the digests of its graph and its state."""
    if isinstance(module.deltas, DeltaState):
        digest = module.deltas.digest.numpy().decode()
        dataclasses.replace(layout, graph=graph_digest(folder), digest=digest).save(folder)


def graph_digest(folder: str) -> str:
    """Compute a digest of the operations in the functions of a SavedModel, and of its assets without vocabularies.

    It counts operations with their types and their constants that are not whole numbers. It leaves out names, sizes and
    the salts of an export, so two exports of models that differ only in rows, tokens and weights have the same digest.
    It is a first sieve: what a delta makes of the old graph is compared with the new model, answer by answer.
    """
    model = saved_model_pb2.SavedModel()
    with open(os.path.join(folder, "saved_model.pb"), "rb") as file:
        model.ParseFromString(file.read())
    counted = Counter(
        _described(node)
        for graph in model.meta_graphs
        for one in graph.graph_def.library.function
        for node in one.node_def
    )
    lines = "\n".join(f"{count} {text}" for text, count in sorted(counted.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _described(node: Any) -> str:
    """Describe an operation without names and sizes."""
    facts = []
    for name in sorted(node.attr):
        value = node.attr[name]
        kind = value.WhichOneof("value")
        if name.startswith("_"):
            continue
        if kind in ("b", "f", "type"):
            facts.append(f"{name}={getattr(value, kind)}")
        if kind == "tensor" and not tf.as_dtype(value.tensor.dtype).is_integer:
            facts.append(f"{name}={hashlib.sha256(value.tensor.SerializeToString(deterministic=True)).hexdigest()}")
    return f"{node.op} {' '.join(facts)}"
