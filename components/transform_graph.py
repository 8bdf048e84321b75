"""Finds the numeric inputs of a model, and the raw columns that each output of Transform needs."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
import tensorflow_transform as tft
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx.utils import io_utils

from components.compat import tracked_by_transform_layer
from embedding_core.columns import DenseInputs, Values
from embedding_core.errors import DataError
from embedding_core.storage import folder_digests, json_digest

# Finds the arguments of a traced function that each of its outputs depends on.

Nodes: TypeAlias = Mapping[str, Any]
"""NodeDefs of a graph or of a function in its library, by name."""
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def needed_arguments(function: tf.types.experimental.ConcreteFunction) -> dict[str, set[int]]:
    """Return the numbers of the flat arguments that each output depends on, by output.

    Control dependencies do not count, as in TensorFlow Transform. The outputs of a function call are followed
    separately into the function; an output of any other operation depends on all of its inputs.

    Args:
      function: function that returns a dictionary; its arguments are numbered as `tf.nest.flatten` orders them.
    """
    graph = function.graph.as_graph_def()
    walk = _Walk({definition.signature.name: definition for definition in graph.library.function})
    captured = len(function.captured_inputs)
    arguments = function.inputs[: len(function.inputs) - captured]
    numbers = {tensor.op.name: number for number, tensor in enumerate(arguments)}
    nodes = {node.name: node for node in graph.node}
    flat = iter(function.outputs)
    return {
        name: {
            numbers[source]
            for _ in tf.nest.flatten(value, expand_composites=True)
            for source in walk.sources(nodes, [next(flat).name])
            if source in numbers
        }
        for name, value in sorted(function.structured_outputs.items())
    }


class _Walk:
    """Walks from tensors back to the nodes that have no inputs."""

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._functions = functions
        self._arguments: dict[tuple[str, int], list[int]] = {}

    def sources(self, nodes: Nodes, tensors: Sequence[str]) -> set[str]:
        """Return the names of the nodes without inputs (and of arguments, in a function) that tensors depend on."""
        reached, ends, todo = set[str](), set[str](), list(tensors)
        while todo:
            tensor = todo.pop()
            if tensor in reached or tensor.startswith("^"):
                continue
            reached.add(tensor)
            name, output = _node_and_output(tensor)
            inputs = self._inputs_of(nodes[name], output) if name in nodes else []
            todo.extend(inputs)
            if not inputs:
                ends.add(name)
        return ends

    def _inputs_of(self, node: Any, output: int) -> list[str]:
        inputs = [name for name in node.input if not name.startswith("^")]
        if node.op not in _CALLS:
            return inputs
        return [inputs[number] for number in self._arguments_of(node.attr["f"].func.name, output)]

    def _arguments_of(self, name: str, output: int) -> list[int]:
        """Return the numbers of the arguments that an output of a function in the library needs."""
        key = (name, output)
        if key not in self._arguments:
            function = self._functions[name]
            returned = function.ret[function.signature.output_arg[output].name]
            sources = self.sources({node.name: node for node in function.node_def}, [returned])
            arguments = [argument.name for argument in function.signature.input_arg]
            self._arguments[key] = [number for number, argument in enumerate(arguments) if argument in sources]
        return self._arguments[key]


def _node_and_output(tensor: str) -> tuple[str, int]:
    """Split a tensor's name (`node`, `node:0` or, in a function, `node:output:0`) into node and index of the output.

    The `output` part can be dropped: the index is used for calls only, and all outputs of a call are named `output`.
    """
    name, *rest = tensor.split(":")
    return name, int(rest[-1]) if rest else 0


# Finds the numeric inputs: outputs of Transform with the raw columns that they need, or columns of the schema.

Spec: TypeAlias = Mapping[str, Any]
"""How columns are parsed: by column name, a class of `tf.io` such as `FixedLenFeature`."""
Range: TypeAlias = Mapping[str, Any]
"""The range of a dense feature: its fields by name."""
_MOST_CLASSES = 10_000  # the model computes a logit of each class for every row
_RANGE_FIELDS = ("mean", "deviation", "limit", "values", "implausible")


def open_transform_graph(uri: str, outputs: Collection[str], names: Collection[str] | None = None) -> DenseInputs:
    """Return the inputs that Transform computes, with the raw columns that they need and no others.

    Training asks for dense features, label and weight. Serving asks for dense features alone, so it never needs the
    columns that only the label is computed from.

    Args:
      uri: address of a TransformGraph artifact.
      outputs: names of the outputs to compute: dense features, label, weight, columns `after_transform`.
      names: the outputs that are the model's dense inputs; None for all.

    Raises:
      DataError: `preprocessing_fn` did not return one of the outputs.
    """
    digest = _digest(uri)
    graph = _open(uri, digest)
    wanted, known = set(outputs), set(graph.transformed_feature_spec())
    unknown = sorted(wanted - known)
    if unknown:
        raise DataError(
            f"Transform has no output {unknown[0]!r}, it has {sorted(known)}: return it from `preprocessing_fn`, or "
            "correct its name."
        )
    needed = _needed_columns(uri, digest)
    columns = {column for name in wanted for column in needed[name]}
    raw = graph.raw_feature_spec()
    spec = {name: feature for name, feature in raw.items() if name in columns}
    unused = {name: raw[name] for name in set(raw).difference(*needed.values())}
    chosen = tuple(outputs if names is None else names)
    return DenseInputs(names=chosen, spec=spec, transform=_Transform(graph.transform_features_layer(), unused))


class _Transform(tf.Module):
    """Calls TFT's layer without its Keras wrapper, which would be traced and converted at each call and export."""

    def __init__(self, layer: Any, unused: Spec) -> None:
        super().__init__()
        # What no output needs; TFT would make twenty operations for each column in every graph.
        dtypes = {name: kind.dtype for name, kind in unused.items() if isinstance(kind, tf.io.VarLenFeature)}

        def compute(raw: Mapping[str, Values]) -> Mapping[str, Values]:
            empty = {dtype: tf.sparse.from_dense(tf.zeros([1, 0], dtype)) for dtype in {*dtypes.values()}}
            outputs: Mapping[str, Values] = layer.call({**{name: empty[dtypes[name]] for name in dtypes}, **raw})
            return outputs

        self._compute = compute
        self._loaded = tracked_by_transform_layer(layer)  # what a SavedModel must hold for the layer to run

    def __call__(self, raw: Mapping[str, Values]) -> Mapping[str, Values]:
        return self._compute(raw)


def _digest(uri: str) -> str:
    """Compute the digest of the graph and its assets, so that a changed graph at the same address is loaded again."""
    return json_digest(folder_digests(os.path.join(uri, tft.TFTransformOutput.TRANSFORM_FN_DIR)))


@functools.lru_cache(maxsize=4)  # a run opens its graph 8 times
def _open(uri: str, digest: str) -> tft.TFTransformOutput:
    """Open the graph; the returned object keeps the layer that it loads."""
    return tft.TFTransformOutput(uri)


@functools.lru_cache(maxsize=4)
def _needed_columns(uri: str, digest: str) -> dict[str, set[str]]:
    """Trace the graph once, and return the raw columns that TFT needs to compute each output."""
    graph = _open(uri, digest)
    layer, spec = graph.transform_features_layer(), graph.raw_feature_spec()
    parse = tf.function(lambda examples: tf.io.parse_example(examples, spec), autograph=False)
    raw = parse.get_concrete_function(tf.TensorSpec([None], tf.string)).structured_outputs
    traced = tf.function(layer.call, autograph=False).get_concrete_function(raw)
    column_of = [name for name in sorted(raw) for _ in tf.nest.flatten(raw[name], expand_composites=True)]
    return {name: {column_of[number] for number in numbers} for name, numbers in needed_arguments(traced).items()}


def read_classes(uri: str, key: str) -> tuple[str, ...]:
    """Read the classes of a multiclass label, in the order of its ids.

    Args:
      uri: address of a TransformGraph artifact.
      key: name of the label among Transform's outputs, and of its vocabulary.

    Raises:
      DataError: the vocabulary does not exist, or does not have 2 to 10,000 classes.
    """
    graph = _open(uri, _digest(uri))
    if graph.vocabulary_file_by_name(key) is None:
        raise DataError(
            f"Transform has no classes of the label {key!r}: compute its ids with "
            "`pipelines.preprocessing.class_ids` in your `preprocessing_fn`."
        )
    classes = tuple(token.decode("utf-8") for token in graph.vocabulary_by_name(key))
    if not 2 <= len(classes) <= _MOST_CLASSES:
        shown = f" ({classes[0]!r})" if len(classes) == 1 else ""
        raise DataError(
            f"the label {key!r} has {len(classes):,} classes{shown} in the train split: a multiclass label has 2 to "
            f"{_MOST_CLASSES:,}; check its column, or train retrieval by `training.softmax`."
        )
    return classes


def range_output(name: str) -> str:
    """Name the output of Transform that holds the range of a dense feature, `_RANGE_FIELDS` in each row."""
    return f"{name}.range"


def recorded_range(feature: Mapping[str, Any], ranges: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the range that a previous model recorded for a dense feature; None if it does not apply.

    Args:
      feature: name, column and `log1p` of the feature.
      ranges: ranges of the previous model by feature; it applies if column and `log1p` are the same.
    """
    span = ranges.get(feature["name"])
    same = span is not None and all(span.get(key) == feature[key] for key in ("column", "log1p"))
    return span if same else None


def read_ranges(uri: str, names: Collection[str]) -> dict[str, dict[str, float]]:
    """Read the range of each dense feature; features that a `preprocessing_fn` scales itself are left out.

    Args:
      uri: address of a TransformGraph artifact.
      names: names of the dense features.

    Returns:
      `_RANGE_FIELDS` by feature, as values that float32 holds exactly.
    """
    known = _open(uri, _digest(uri)).transformed_feature_spec()
    outputs = {name: range_output(name) for name in names if range_output(name) in known}
    if not outputs:
        return {}
    source = open_transform_graph(uri, tuple(outputs.values()))
    made = source.outputs(tf.io.parse_example([_row_of_zeros(source.spec)], source.spec))
    rows = {name: made[output].numpy()[0] for name, output in outputs.items()}
    return {name: dict(zip(_RANGE_FIELDS, map(float, row), strict=True)) for name, row in rows.items()}


def range_problems(ranges: Mapping[str, Range]) -> dict[str, str]:
    """Describe problems of dense features, by name: features without information, values that count as missing."""
    problems = {name: " ".join(_problems(span)) for name, span in ranges.items()}
    return {name: text for name, text in problems.items() if text}


def _problems(span: Range) -> Iterator[str]:
    if not span["values"]:
        yield "No row of the train split has a value: it is 0 in every row."
    elif not span["deviation"]:
        yield f"It is constant ({span['mean']:g}) in the rows that its range is from: it is 0 in every row."
    if span["implausible"]:
        yield (
            f"{span['implausible']:,.0f} of {span['values']:,.0f} values are larger than {span['limit']:g}, far beyond "
            "the others: they count as missing."
        )


def _row_of_zeros(spec: Spec) -> bytes:
    """Make a serialized tf.Example with a value in every column that must have one."""
    features = {}
    for name, column in spec.items():
        if isinstance(column, tf.io.FixedLenFeature) and column.default_value is None:
            size = tf.TensorShape(column.shape).num_elements()
            features[name] = {
                tf.int64: lambda n: tf.train.Feature(int64_list=tf.train.Int64List(value=[0] * n)),
                tf.float32: lambda n: tf.train.Feature(float_list=tf.train.FloatList(value=[0.0] * n)),
                tf.string: lambda n: tf.train.Feature(bytes_list=tf.train.BytesList(value=[b""] * n)),
            }[column.dtype](size)
    serialized: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    return serialized


def number_columns(schema_file: str, names: Collection[str]) -> dict[str, tf.io.FixedLenFeature]:
    """Specify raw columns of one number per row: a missing float is NaN, and an integer must not be missing.

    Args:
      schema_file: path of a `schema.pbtxt`.
      names: names of the columns.

    Raises:
      DataError: a column is not in the schema, or does not hold numbers.
    """
    schema = io_utils.parse_pbtxt_file(schema_file, schema_pb2.Schema())
    types = {feature.name: feature.type for feature in schema.feature}
    return {name: _number_column(name, types.get(name)) for name in dict.fromkeys(names)}


def _number_column(name: str, kind: int | None) -> tf.io.FixedLenFeature:
    if kind == schema_pb2.INT:
        return tf.io.FixedLenFeature([], tf.int64)
    if kind == schema_pb2.FLOAT:
        return tf.io.FixedLenFeature([], tf.float32, default_value=float("nan"))
    given = "not in the schema" if kind is None else "not a column of numbers"
    raise DataError(f"column {name!r} is {given}: name a column of numbers, or compute it with Transform.")
