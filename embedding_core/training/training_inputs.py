"""Parses serialized tf.Examples into the batches of a step, and calls the functions `row_loss` and `eval_metrics`.

A batch has ids, dense features, label and weight; the host parses it. A user's module may have the two functions beside
`build`.

`row_loss(task, label, output)` replaces the loss of a task. It gets the task's name, the labels `[B, 1]` (0 if missing)
and the model's outputs `[B, width]`, both float32. It returns the loss of each row, `[B, 1]`, or None for the usual
loss. The trainer applies weights, leaves out missing labels and takes the mean over all replicas, so the loss does
not depend on the kind and number of devices.

`eval_metrics(task, label, prediction, weight)` computes figures of an evaluation from numpy arrays of the rows with a
label and a weight above 0. Labels and weights are `[n]`. Predictions are as the signatures return them: `[n]`, or
`[n, classes]` for a multiclass task. It returns numbers by name, or None.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, TypeAlias, TypedDict, cast

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from typing_extensions import NotRequired

from embedding_core.columns import DTYPES, Columns, Raw, Spec, TokenTable, Values, text_of, tokens_of
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig
from embedding_core.errors import ConfigError, DataError
from embedding_core.model_inputs import row_losses
from embedding_core.tasks import Task
from embedding_core.tracing import as_written, without_internals

Transform: TypeAlias = Callable[[Raw], Mapping[str, Values]]


class Batch(TypedDict):
    """One batch of a step.

    Attributes:
      ids: int64 ragged [B, None] by feature.
      dense: float32 [B, 1] by name.
      label: float32 [B, tasks]; NaN if a row lacks one of several labels, or its class is not in the train split.
      weight: float32 [B, 1].
      rows: int32 scalar, number of rows of the global batch, of which this batch may be a part.
      softmax: see `drawn_candidates.candidate_sampler`.
      lengths: see `model_inputs.sequence_lengths`.
      share: float32 scalar, rows that were read for this batch, divided by those of a whole batch; below 1 for the last
        batch of an epoch. Only batches to train on have it.
    """

    ids: dict[str, tf.RaggedTensor]
    dense: dict[str, tf.Tensor]
    label: tf.Tensor
    weight: tf.Tensor
    rows: tf.Tensor
    softmax: NotRequired[dict[str, tf.Tensor]]
    lengths: NotRequired[dict[str, tf.Tensor]]
    share: NotRequired[tf.Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """The sources of a model's inputs.

    Attributes:
      config: tables and features; every feature has a column.
      vocabularies: file of plain tokens, one per line, by vocabulary name.
      dense: names of dense features among the outputs of `transform`.
      tasks: what the model is trained for, at least one; the `key` of a task is its label's name among these outputs.
      weight: name of the sample weight among these outputs, or None.
      raw_spec: specification of the columns that `transform` takes, as for `tf.io.parse_example`.
      transform: parsed raw columns -> dense features, label, weight and columns `after_transform`; None
        uses the columns as parsed.

    Raises:
      ConfigError: a feature has no column, there is no task, or two tasks have the same name.
    """

    config: EmbeddingConfig
    vocabularies: Mapping[str, str]
    dense: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = (Task(),)
    weight: str | None = None
    raw_spec: Mapping[str, Spec] = dataclasses.field(default_factory=dict)
    transform: Transform | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dense", tuple(self.dense))
        object.__setattr__(self, "tasks", tuple(self.tasks))
        names = [task.name for task in self.tasks]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"`tasks` are {names}: there must be at least one, each with another name.")
        for feature in self.config.features:
            if feature.column is None:
                raise ConfigError(f"`column` of feature {feature.name!r} is None: name the column its tokens are in.")

    def column_of(self, feature: FeatureConfig) -> ColumnConfig:
        """Return the column of a feature."""
        return cast(ColumnConfig, feature.column)  # never None: see __post_init__

    @functools.cached_property
    def parse(self) -> Callable[[tf.Tensor], Batch]:
        """The graph function of these inputs: tracing it takes longer than parsing ten thousand rows."""
        return RowParser(self).traced()


class RowParser:
    """Graph function from serialized tf.Examples to a `Batch`, with token tables on the host.

    It reads columns and looks up tokens with the same functions as an exported model.
    """

    def __init__(self, inputs: Inputs) -> None:
        """Load the vocabularies that the features need.

        Raises:
          ConfigError: a vocabulary has no file.
          VocabularyError: a vocabulary does not have as many tokens as its table needs.
        """
        self._inputs = inputs
        self._columns = {feature.name: inputs.column_of(feature) for feature in inputs.config.features}
        transform = inputs.transform
        # A function of the user may need AutoGraph, which is off in `__call__`; TFT's layer does not.
        is_graph = transform is None or isinstance(transform, tf.Module)
        self._transform = transform if is_graph else tf.function(transform)
        self._reader = Columns(self._columns.values(), inputs.raw_spec)
        used = {feature.table for feature in inputs.config.features}
        self._tables = {name: self._token_table(name) for name in sorted(used)}

    def traced(self) -> Callable[[tf.Tensor], Batch]:
        """Return this function as a graph: an eager call takes longer than parsing a thousand rows."""
        parse: Callable[[tf.Tensor], Batch] = tf.function(
            self.__call__, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False
        )
        return parse

    def _token_table(self, name: str) -> TokenTable | None:
        table = self._inputs.config.table(name)
        if table.vocabulary is None:
            return None
        path = self._inputs.vocabularies.get(table.vocabulary)
        if path is None:
            raise ConfigError(
                f"`vocabulary` of table {name!r} is {table.vocabulary!r}: it must be one of "
                f"{sorted(self._inputs.vocabularies)}."
            )
        return TokenTable.of(table, path)

    @as_written
    def __call__(self, serialized: tf.Tensor) -> Batch:
        """Parse serialized tf.Examples, string [B]."""
        raw = self._reader.parse(serialized)
        given = raw.dense if raw.incomplete is None else _checked_rows(raw.dense, raw.incomplete)
        made = given if self._transform is None else self._transform(given)
        rows = tf.size(serialized)
        return Batch(
            ids=self._ids(raw.categorical, made),
            dense={name: _column(made, name, "dense feature") for name in self._inputs.dense},
            label=tf.concat([self._label(task, made, rows) for task in self._inputs.tasks], 1),
            weight=_column_or_ones(made, self._inputs.weight, "weight", rows),
            rows=rows,
        )

    def _label(self, task: Task, made: Mapping[str, Values], rows: tf.Tensor) -> tf.Tensor:
        label = _column_or_ones(made, task.key, "label", rows)
        return _checked_label(label, task, may_lack=len(self._inputs.tasks) > 1)

    def _ids(self, raw: Mapping[str, Values], made: Mapping[str, Values]) -> dict[str, tf.RaggedTensor]:
        """Look up the ids of all features; int64 [B, None] by feature."""
        features = self._inputs.config.features
        values = {feature.name: self._values(feature, raw, made) for feature in features}
        single = [feature for feature in features if self._is_single(feature, values[feature.name])]
        ids = self._ids_of_single(single, values) if single else {}
        return {
            feature.name: ids[feature.name] if feature.name in ids else self._ids_of(feature, values[feature.name])
            for feature in features
        }

    def _values(self, feature: FeatureConfig, raw: Mapping[str, Values], made: Mapping[str, Values]) -> Values:
        column = self._columns[feature.name]
        source = made if column.after_transform else raw
        if column.name not in source:
            raise DataError(
                f"column {column.name!r} of feature {feature.name!r} is not in Transform's output, which has "
                f"{sorted(source)}: return it from `preprocessing_fn`, or set `after_transform` to false."
            )
        return source[column.name]

    def _ids_of(self, feature: FeatureConfig, values: Values) -> tf.RaggedTensor:
        tokens = tokens_of(self._columns[feature.name], values)
        table = self._tables[feature.table]
        if table is not None:
            return table.lookup(tokens)
        return tokens.with_flat_values(tf.strings.to_number(tokens.flat_values, tf.int64))

    def _is_single(self, feature: FeatureConfig, values: Values) -> bool:
        """Whether rows have at most one token, in a tensor [B] of the column's type, and the table has a vocabulary."""
        column = self._columns[feature.name]
        single = isinstance(values, tf.Tensor) and values.shape.rank == 1 and not column.many
        return single and values.dtype == DTYPES[column.dtype] and self._tables[feature.table] is not None

    def _ids_of_single(
        self, features: Sequence[FeatureConfig], values: Mapping[str, Values]
    ) -> dict[str, tf.RaggedTensor]:
        """Look up the ids of single-token features as `_ids_of` does, with few operations for all of them together."""
        texts = [text_of(self._columns[feature.name], values[feature.name]) for feature in features]
        tables = [cast(TokenTable, self._tables[feature.table]) for feature in features]
        ids = tf.stack([table.ids_of(text) for table, text in zip(tables, texts, strict=True)])
        known = tf.not_equal(tf.stack(texts), "")
        if not all(table.oov_rows for table in tables):
            known &= ids >= 0
        splits = tf.pad(tf.cumsum(tf.cast(known, tf.int64), axis=1), [[0, 0], [1, 0]])
        parts = tf.split(tf.boolean_mask(ids, known), splits[:, -1], num=len(features))
        return {
            feature.name: tf.RaggedTensor.from_row_splits(part, split, validate=False)
            for feature, part, split in zip(features, parts, tf.unstack(splits), strict=True)
        }


def _checked_rows(columns: Mapping[str, Values], incomplete: tf.Tensor) -> Raw:
    """Return the columns, and fail if a row lacks a required one."""
    required = [name for name, value in columns.items() if value.dtype == tf.int64]
    rule = f"a row lacks one of the columns {required}, which every row must have; first such row of its batch:"
    with tf.control_dependencies([tf.debugging.Assert(~tf.reduce_any(incomplete), [rule, tf.where(incomplete)[:1]])]):
        return {
            name: tf.nest.map_structure(tf.identity, value, expand_composites=True) for name, value in columns.items()
        }


def _column(made: Mapping[str, Values], name: str, what: str) -> tf.Tensor:
    """Return the values as float32 [B, 1]."""
    if name not in made:
        raise DataError(
            f"{what} {name!r} is not among the transformed columns, {sorted(made)}: return it from "
            "`preprocessing_fn`, or correct its name."
        )
    values = made[name]
    if isinstance(values, tf.SparseTensor | tf.RaggedTensor) or values.dtype == tf.string:
        raise DataError(
            f"{what} {name!r} is {type(values).__name__} of {values.dtype.name}: it must be one number per row; fill "
            "missing values and convert text in `preprocessing_fn`."
        )
    return tf.reshape(tf.cast(values, tf.float32), [-1, 1])


def _column_or_ones(made: Mapping[str, Values], name: str | None, what: str, rows: tf.Tensor) -> tf.Tensor:
    return tf.ones([rows, 1]) if name is None else _column(made, name, what)


def _checked_label(label: tf.Tensor, task: Task, *, may_lack: bool) -> tf.Tensor:
    """Return the label, and fail if a value breaks the rule of the task; with `may_lack`, NaN is a missing label."""
    if task.is_binary:
        fits, rule = tf.logical_or(tf.equal(label, 0.0), tf.equal(label, 1.0)), "0 or 1"
    elif task.kind == "count":
        fits, rule = tf.math.is_finite(label) & (label >= 0), "a number of at least 0"
    elif task.is_multiclass:  # NaN is a class that the train split does not have
        whole = tf.equal(label, tf.floor(label)) & (label >= 0) & (label < max(1, task.width))
        fits, rule = whole | tf.math.is_nan(label), f"the position of one of its {task.width} classes"
    else:
        fits, rule = tf.math.is_finite(label), "a finite number"
    if may_lack:
        fits |= tf.math.is_nan(label)
    message = (
        f"label `{task.key}` must be {rule} in every row: let `preprocessing_fn` return that, or leave the other rows "
        "out by a row filter; found:"
    )
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(fits), [message, label[~fits][:8]])]):
        return tf.identity(label)


# Says in one line what is wrong with rows that TensorFlow cannot read or that break a rule.

_ASSERTION = re.compile(r"assertion failed: (.*?)(?:\n|$)", re.DOTALL)
_ONE_TEXT = re.compile(r"\[([^\[\]]*)\]")
_EMPTY_LIST = re.compile(r"Key: (.*?), Index: .*Values size: 0 but output shape")


@contextlib.contextmanager
def data_errors() -> Iterator[None]:
    """Turn TensorFlow's errors about bad rows into a DataError of one line."""
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.DataLossError) as error:
        raise DataError(_rule_broken(error.message)) from error
    except tf.errors.NotFoundError as error:
        raise DataError(
            f"a file of rows is gone ({without_internals(error.message)}): if it was a temporary file, set TMPDIR "
            "to a folder that nothing empties; then start the same run again to continue."
        ) from error
    except UnicodeDecodeError as error:  # TensorFlow's message quotes a row that is not UTF-8
        raise DataError(_rule_broken(error.object.decode(errors="replace"))) from error


def _rule_broken(message: str) -> str:
    """Extract the line of TensorFlow's message that says what is wrong with the data."""
    message = without_internals(message)
    empty = _EMPTY_LIST.search(message)
    if empty:
        return (
            f"column {empty[1]!r} is an empty list in a row, where TensorFlow wants one number: leave the value out, "
            "as this project's ExampleGen does."
        )
    match = _ASSERTION.search(message)
    if not match:
        return message
    text = _ONE_TEXT.fullmatch(match[1])
    return text[1] if text else match[1]


Floats: TypeAlias = npt.NDArray[np.float64]

ARGUMENTS = {"row_loss": ("task", "label", "output"), "eval_metrics": ("task", "label", "prediction", "weight")}
"""The functions, and the names of their arguments."""


class UserFunctions:
    """The functions `row_loss` and `eval_metrics` of a user's module, if it has them."""

    def __init__(self, module: str) -> None:
        """Import the module.

        Args:
          module: dotted name of the module with `build`.

        Raises:
          ConfigError: a function does not have the arguments of `ARGUMENTS`.
        """
        self._module = module
        imported = importlib.import_module(module)
        self._row_loss = _function(imported, "row_loss")
        self._eval_metrics = _function(imported, "eval_metrics")

    @property
    def has_row_loss(self) -> bool:
        """Whether the module has a loss of its own."""
        return self._row_loss is not None

    def row_losses(self, task: Task, label: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        """Compute the loss of each row, `[B, 1]`; see `embedding_core.model_inputs.row_losses`.

        Raises:
          ConfigError: the function of the user does not return a loss for each row.
        """
        missing = tf.math.is_nan(label)
        known = tf.where(missing, tf.zeros_like(label), label)
        given = (tf.cast(part, tf.float32) for part in (known, output))  # evaluations compute with float64
        losses = None if self._row_loss is None else self._row_loss(task.name, *given)
        if losses is None:
            return row_losses(task, label, output)
        losses = tf.convert_to_tensor(losses)
        if losses.shape.rank not in (1, 2) or losses.shape[1:] not in ([], [1]):
            raise ConfigError(
                f"`row_loss` of module {self._module!r} returned the shape {losses.shape}: it must return the loss of "
                "each row, (None, 1); the trainer computes the mean."
            )
        losses = tf.cast(tf.reshape(losses, [-1, 1]), output.dtype)
        return tf.where(missing, tf.zeros_like(losses), losses)

    def metrics(self, task: Task, label: Floats, prediction: Floats, weight: Floats) -> dict[str, float]:
        """Compute the figures of a task from the rows that have its label and a weight above 0.

        Args:
          task: the task.
          label: `[n]`; NaN for a row without the label.
          prediction: `[n, width]`; width is 1 unless the task is multiclass.
          weight: `[n]`.

        Raises:
          ConfigError: the function of the user does not return a number for each name.
        """
        chosen = ~np.isnan(label) & (weight > 0)
        if self._eval_metrics is None or not chosen.any():
            return {}
        given = prediction[chosen] if task.is_multiclass else prediction[chosen, 0]
        found = self._eval_metrics(task.name, label[chosen], given, weight[chosen])
        try:
            return {str(name): float(value) for name, value in dict(found or {}).items()}
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"`eval_metrics` of module {self._module!r} returned {found!r}: it must return a number for each name, "
                "in a mapping, or None."
            ) from error


def _function(module: Any, name: str) -> Callable[..., Any] | None:
    """Return the function of that name; None if the module has no such name, or it is not a function."""
    function = getattr(module, name, None)
    if not isinstance(function, FunctionType):
        return None
    taken = tuple(inspect.signature(function).parameters)
    if taken != ARGUMENTS[name]:
        raise ConfigError(
            f"`{name}` of module {module.__name__!r} has the arguments {', '.join(taken)}: it must have "
            f"{', '.join(ARGUMENTS[name])}; rename it if it is not for the trainer."
        )
    return function
