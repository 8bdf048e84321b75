"""Exports a model that takes deltas: its layout, its digest, its guarded signatures and `apply_delta`."""

from __future__ import annotations

import collections
import dataclasses
import graphlib
import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf import saved_model_pb2

from embedding_core.columns import SIZE_CONSTANT
from embedding_core.config import EmbeddingConfig
from embedding_core.deltas.graph import DeltaState, apply_signature, random_key
from embedding_core.deltas.protocol import APPLY_DELTA, require_secret
from embedding_core.deltas.served_state import ChangingTokenTable, Layout, ServedState, TableLayout, state_of
from embedding_core.errors import ConfigError
from embedding_core.serving.serving_module import ExportForm, ServingModule
from embedding_core.serving.table_blocks import lines_of, vocabulary_file
from embedding_core.storage import file_digest

_UNCHANGED = ("counters", "transform_features", "transform_labels")
"""Signatures that read nothing that deltas change."""
_LARGEST_TABLE = 2**31


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaExport(ExportForm):
    """Exports a model that takes deltas, with the signature `apply_delta`.

    Attributes:
      secret: what a request must give to change the model, at least 16 bytes. Only salted hashes of it are written.
      spare_rows: share of the tokens of each table that spare rows are exported for, which new tokens get.
      min_spare_rows: the least number of spare rows of a table.
    """

    token_table = ChangingTokenTable

    secret: bytes = dataclasses.field(repr=False)
    spare_rows: float = 0.1
    min_spare_rows: int = 64

    def __post_init__(self) -> None:
        """Refuse a secret that is easily guessed."""
        require_secret(self.secret)

    def rows_to_come(self, config: EmbeddingConfig) -> dict[str, int]:
        """Return the number of spare rows by table; tables of raw ids have none."""
        tokens = {table.name: table.vocabulary_size - table.oov_rows for table in config.tables if table.vocabulary}
        return {name: max(self.min_spare_rows, math.ceil(self.spare_rows * count)) for name, count in tokens.items()}

    def signatures(
        self, module: ServingModule, signatures: Mapping[str, Any], vocabularies: Mapping[str, str]
    ) -> dict[str, Any]:
        """Let signatures answer from one state and say which, and add `apply_delta`.

        Raises:
          ConfigError: the model has an index of candidates, which deltas would not change.
        """
        layout = _layout_of(module, vocabularies)
        if "top_k" in signatures:
            raise ConfigError(
                "deltas do not change the index of candidates that `top_k` searches: set `push.deltas: false` for this "
                "model, or leave the signature `top_k` out."
            )
        state = DeltaState(layout)
        state.digest.assign(_state(module, layout, vocabularies).digest())
        module.deltas = state
        guarded = {
            name: signature if name in _UNCHANGED else state.guarded(signature)
            for name, signature in signatures.items()
        }
        return {**guarded, APPLY_DELTA: apply_signature(module, state, self.secret)}

    def save(self, module: ServingModule, folder: str) -> None:
        """Write the layout of a model that was saved to a folder, with the digests of its graph and its state."""
        state: DeltaState = module.deltas
        digest = state.digest.numpy().decode()
        dataclasses.replace(state.layout, fixed=fixed_parts(folder, module.config), digest=digest).save(folder)


def _layout_of(module: ServingModule, vocabularies: Mapping[str, str]) -> Layout:
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
    dense = tuple((variable.dtype.name, tuple(map(int, variable.shape))) for variable in module.dense_variables)
    return Layout(tables=tuple(tables), dense=dense, checksum_key=random_key())


def _state(module: ServingModule, layout: Layout, vocabularies: Mapping[str, str]) -> ServedState:
    tokens = {
        table.name: lines_of(vocabulary_file(table, vocabularies))
        for table in module.config.tables
        if table.vocabulary is not None
    }
    blocks = {name: np.asarray(block) for name, block in module.tables.items()}
    return state_of(layout, blocks, tokens, [variable.numpy() for variable in module.dense_variables])


def fixed_parts(folder: str, config: EmbeddingConfig) -> dict[str, str]:
    """Describe all that a SavedModel computes answers with and that deltas do not carry.

    Deltas carry rows, tokens and dense weights. Everything else is described to the last bit: operations with all their
    attributes and constants, assets, tables of the graph, other variables. Two exports of models that differ only in
    rows, tokens and weights have the same description.

    Objects are called by their paths from the model, and operations by what they are computed from: their names and
    those of variables depend on what the process made before. Constants that give the place and size of a table
    (`size_constant`) are left out, since tokens that came change them; the features say which table each of them is of.
    Of `apply_delta`, everything is left out: a server applies deltas with the graph that it has.

    Returns:
      The kind and the digest of each object by its path, and of the values of each variable by its key.
    """
    features = repr(config.features)
    return {"features": f"configuration {_digest(features)}", **_Objects(folder).described(), **_other_values(folder)}


_IS_SIZE = re.compile(rf"(.*/)?{SIZE_CONSTANT}(_\d+)?")
_NOT_FOLLOWED = re.compile(r"signatures/apply_delta|token_tables/[^/]+/_table")
_CARRIED_ROWS = re.compile(r"tables/[^/]+")
_CARRIED_VALUES = ("tables/", "token_tables/", "dense_variables/", "deltas/")
_OF_PROCESS = frozenset(("config_proto", "_config_proto", "_class", "_gradient_op_type", "_output_shapes"))
"""Attributes that say how and where a graph was made, or that follow from others."""
_NAMES_OF_RESOURCES = ("HashTableV2", "VarHandleOp")
"""Operations whose `shared_name` holds the path of a file or a number of the process."""


def _digest(*texts: str | bytes) -> str:
    found = hashlib.sha256()
    for text in texts:
        content = text.encode() if isinstance(text, str) else text
        found.update(b"%d " % len(content) + content)
    return found.hexdigest()


def _other_values(folder: str) -> dict[str, str]:
    """Describe the variables of a SavedModel that deltas do not carry."""
    reader = tf.train.load_checkpoint(os.path.join(folder, "variables", "variables"))
    described = {}
    for key in sorted(reader.get_variable_to_shape_map()):
        if key != "_CHECKPOINTABLE_OBJECT_GRAPH" and not key.startswith(_CARRIED_VALUES):
            value = np.asarray(reader.get_tensor(key))
            bits = repr(value.tolist()) if value.dtype == object else value.tobytes()
            name = key.partition("/.ATTRIBUTES")[0]
            described[f"values of {name}"] = f"variable {_digest(str(value.dtype), str(value.shape), bits)}"
    return described


class _Objects:
    """The objects of a SavedModel, by their paths."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        model = saved_model_pb2.SavedModel()
        with open(os.path.join(folder, "saved_model.pb"), "rb") as file:
            model.ParseFromString(file.read())
        (graph,) = model.meta_graphs
        self._graph, self._assets = graph.object_graph_def, graph.asset_file_def
        self._nodes = {node.name: node for node in graph.graph_def.node}
        self._functions = _Functions(graph.graph_def.library.function)
        self._paths = {0: ""}

    def described(self) -> dict[str, str]:
        """Describe all objects."""
        for references in (self._held, self._references):  # what an object holds has the path that the program gives it
            queue = collections.deque(self._paths)
            while queue:
                number = queue.popleft()
                for name, other in references(number):
                    if other not in self._paths:
                        self._paths[other] = f"{self._paths[number]}/{name}".lstrip("/")
                        queue.append(other)
        return {path or "model": self._described(number, path) for number, path in self._paths.items()}

    def _described(self, number: int, path: str) -> str:
        node = self._graph.nodes[number]
        kind = str(node.WhichOneof("kind"))
        if _NOT_FOLLOWED.fullmatch(path):
            return kind
        edges = [f"{name}: {self._paths[other]}" for name, other in self._references(number)]
        return f"{kind} {_digest(node.registered_name, *edges, *self._facts(kind, path, getattr(node, kind)))}"

    def _held(self, number: int) -> list[tuple[str, int]]:
        """Return the objects that an object holds, by name."""
        if _NOT_FOLLOWED.fullmatch(self._paths[number]):
            return []
        return sorted((child.local_name, child.node_id) for child in self._graph.nodes[number].children)

    def _references(self, number: int) -> list[tuple[str, int]]:
        """Return the objects that an object holds, and those that its functions read, by name."""
        if _NOT_FOLLOWED.fullmatch(self._paths[number]):
            return []
        return self._held(number) + [
            (f"{trace}.{place}", other)
            for trace, name in enumerate(_concrete_functions(self._graph.nodes[number]))
            for place, other in enumerate(self._graph.concrete_functions[name].bound_inputs)
        ]

    def _facts(self, kind: str, path: str, value: Any) -> list[str | bytes]:
        if kind == "asset":
            name = self._assets[value.asset_file_def_index].filename
            return [file_digest(os.path.join(self._folder, "assets", name))["sha256"]]
        if kind == "constant":
            return [_bits(self._nodes[value.operation].attr["value"])]
        if kind == "variable":
            shape = [axis.size for axis in value.shape.dim]
            return [str(value.dtype), str(shape[1:] if _CARRIED_ROWS.fullmatch(path) else shape), value.device]
        if kind in ("function", "bare_concrete_function"):
            names = value.concrete_functions if kind == "function" else [value.concrete_function_name]
            keywords = [] if kind == "function" else value.argument_keywords
            outputs = [_text(self._graph.concrete_functions[name].output_signature) for name in names]
            return [*keywords, *outputs, *(self._functions.digest(name) for name in names)]
        return [_bits(value)]


def _concrete_functions(node: Any) -> list[str]:
    kind = node.WhichOneof("kind")
    if kind == "bare_concrete_function":
        return [node.bare_concrete_function.concrete_function_name]
    return list(node.function.concrete_functions) if kind == "function" else []


def _bits(message: Any) -> bytes:
    content: bytes = message.SerializeToString(deterministic=True)
    return content


def _text(message: Any) -> str:
    """Describe a message with mappings, sorted by key; the order in its bytes depends on the version of protobuf."""
    content: str = text_format.MessageToString(message, as_one_line=True)
    return content


class _Functions:
    """The functions of a graph; computes digests of what they compute, which do not depend on names."""

    def __init__(self, functions: Iterable[Any]) -> None:
        self._functions = {function.signature.name: function for function in functions}
        self._digests: dict[str, str] = {}

    def digest(self, name: str) -> str:
        """Compute the digest of a function."""
        if name not in self._digests:
            self._digests[name] = self._of(self._functions[name])
        return self._digests[name]

    def _of(self, function: Any) -> str:
        arguments = function.signature.input_arg
        digests = {argument.name: f"argument {place}" for place, argument in enumerate(arguments)}
        nodes = {node.name: node for node in function.node_def}
        try:
            ordered = _in_order(nodes)
        except graphlib.CycleError:  # a loop of TensorFlow 1
            return _digest(_text(function))
        for name in ordered:
            digests[name] = self._of_operation(nodes[name], digests)
        outputs = [_source(function.ret[output.name], digests) for output in function.signature.output_arg]
        return _digest(
            *(str(argument.type) for argument in arguments),
            *outputs,
            *sorted(digests[name] for name in function.control_ret.values()),
            *sorted(digests[name] for name in nodes),  # those that only have an effect, too
            *self._attributes("", function.attr),
        )

    def _of_operation(self, node: Any, digests: Mapping[str, str]) -> str:
        inputs = [_source(name, digests) for name in node.input if not name.startswith("^")]
        after = sorted(digests[name[1:]] for name in node.input if name.startswith("^"))
        size = node.op == "Const" and _IS_SIZE.fullmatch(node.name) is not None
        op = node.op if node.op not in self._functions else self.digest(node.op)
        attributes = ["its place or size"] if size else self._attributes(node.op, node.attr)
        return _digest(op, node.device, str(len(inputs)), *inputs, *after, *attributes)

    def _attributes(self, op: str, attributes: Mapping[str, Any]) -> list[str | bytes]:
        texts: list[str | bytes] = []
        for name in sorted(attributes):
            if name in _OF_PROCESS or (name == "shared_name" and op in _NAMES_OF_RESOURCES):
                continue
            value = attributes[name]
            called = [value.func] if value.HasField("func") else list(value.list.func)
            texts += [name, *([self._called(function) for function in called] or [_bits(value)])]  # type: ignore[list-item]
        return texts

    def _called(self, function: Any) -> str:
        return _digest(self.digest(function.name), *self._attributes("", function.attr))


def _in_order(nodes: Mapping[str, Any]) -> list[str]:
    """Order operations so that each comes after its inputs."""
    inputs = {
        name: {source.lstrip("^").partition(":")[0] for source in node.input} & nodes.keys()
        for name, node in nodes.items()
    }
    return list(graphlib.TopologicalSorter(inputs).static_order())


def _source(text: str, digests: Mapping[str, str]) -> str:
    """Describe an input: the operation or argument that it comes from, and which output of it."""
    name, _, output = text.partition(":")
    return f"{digests[name]} {output}"
