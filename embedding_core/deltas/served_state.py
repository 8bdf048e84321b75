"""Reads what a version serves that deltas can change, computes its digest, and loads a version as a server does.

The digest is over rows by token, not over files: two exports of one training have the same digest, and so has a version
after the deltas that make it equal to such an export, although its rows are in other places.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf
from typing_extensions import Self

from embedding_core.columns import TokenTable
from embedding_core.errors import CheckpointError
from embedding_core.schema import Json
from embedding_core.serving.table_blocks import lines_of
from embedding_core.storage import file_digest, read_json, scratch_folder

# Looks up the rows of tokens in an exported model whose vocabularies change while it is served.
#
# The tokens of the export are in the static table of `TokenTable`. Tokens that came or went since then are in three
# variables, sorted by a hash, which a lookup searches first. They are variables, and not a hash table of TensorFlow,
# because two loads of one SavedModel in a process would share such a table.

GONE = -1
"""The row of a token that went: it is unknown from then on."""
NO_TOKEN = b"\n"
"""The first entry of every list of changed tokens, which is never empty: no token contains a line break."""
_HASHES = 2**63 - 1
_CPU = "/device:CPU:0"


def hashes_of(tokens: tf.Tensor) -> tf.Tensor:
    """Compute the hashes that the lists of changed tokens are sorted by, int64 of at least 0."""
    return tf.strings.to_hash_bucket_fast(tokens, _HASHES)


class ChangingTokenTable(TokenTable):
    """Maps tokens to rows of one table; deltas add, move and remove tokens.

    Attributes:
      hashes: int64 `[n]`, ascending: the hash of each changed token, after the least int64 for `NO_TOKEN`.
      changed: string `[n]`, the changed tokens.
      places: int64 `[n]`, their rows in the table; `GONE` for a token that went.
    """

    def __init__(self, vocabulary_file: str | os.PathLike[str], vocabulary_size: int, oov_rows: int) -> None:
        """Load the vocabulary of the export.

        Raises:
          VocabularyError: the file does not hold exactly `vocabulary_size - oov_rows` tokens.
        """
        super().__init__(vocabulary_file, vocabulary_size, oov_rows)
        with tf.device(_CPU):
            self.hashes = tf.Variable([tf.int64.min], shape=[None], dtype=tf.int64, trainable=False, name="hashes")
            self.changed = tf.Variable([NO_TOKEN], shape=[None], dtype=tf.string, trainable=False, name="changed")
            self.places = tf.Variable([GONE], shape=[None], dtype=tf.int64, trainable=False, name="places")

    def ids_of(self, tokens: tf.Tensor) -> tf.Tensor:
        """Look up the rows of tokens `[N]`: int64 `[N]`, -1 for an unknown token that has no row.

        A lookup that runs while a delta is written may read the three variables at different times, and is repeated.
        It must not fail, so positions are clipped to each of them.
        """
        found = tf.searchsorted(self.hashes.read_value(), hashes_of(tokens))
        same = tf.equal(_at(self.changed, found), tokens)
        exported = tf.constant(GONE, tf.int64) if self._table is None else self._table.lookup(tokens)
        row = tf.where(same, _at(self.places, found), exported)
        return tf.where(row < 0, self.unknown_ids(tokens), row)

    def _default(self) -> int:
        """Return -1 always: the number of tokens may not be in the graph, except as a `size_constant`."""
        return GONE

    def merged(self, tokens: tf.Tensor, places: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Merge changes with those that are there, without writing them.

        Args:
          tokens: string `[m]`, each token once.
          places: int64 `[m]`.

        Returns:
          New values of `hashes`, `changed` and `places`; and whether they can be written, bool: a token may not be
          given twice, or have the hash of another one.
        """
        given = hashes_of(tokens)
        hashes = tf.concat([given, self.hashes.read_value()], 0)
        order = tf.argsort(hashes, stable=True)  # of equal hashes, the given one comes first
        hashes = tf.gather(hashes, order)
        changed = tf.gather(tf.concat([tokens, self.changed.read_value()], 0), order)
        rows = tf.gather(tf.concat([places, self.places.read_value()], 0), order)
        repeated = tf.equal(hashes[1:], hashes[:-1])
        sound = tf.reduce_all(tf.logical_not(repeated) | tf.equal(changed[1:], changed[:-1]))
        once = tf.equal(tf.size(tf.unique(given).y), tf.size(given))
        kept = tf.concat([[True], tf.logical_not(repeated)], 0)
        return (*(tf.boolean_mask(values, kept) for values in (hashes, changed, rows)), sound & once)


def _at(variable: tf.Variable, places: tf.Tensor) -> tf.Tensor:
    values = variable.read_value()
    return tf.gather(values, tf.minimum(places, tf.size(values) - 1))


LAYOUT = "assets.extra/deltas.json"
"""The file of a version that says where its tables are, and which export it is; it does not hold the secret."""
Array: TypeAlias = npt.NDArray[Any]
_FORMAT = 2  # of this file, and of the content of deltas (`content.write_content`)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableLayout:
    """The place of a table in an exported model.

    Attributes:
      name: name of the table.
      block: name of the variable that holds its rows.
      start: position of its first row there.
      tokens: number of tokens at the export, which have the first rows; None for a table of raw ids.
      oov_rows: number of rows for unknown tokens, which come next.
      capacity: number of all rows, including spare ones at the end.
      vocabulary: sha256 of its file of tokens; None if it has no tokens.
    """

    name: str
    block: str
    start: int
    tokens: int | None
    oov_rows: int
    capacity: int
    vocabulary: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """What one export says about itself, for the deltas that follow.

    Attributes:
      tables: the tables.
      dense: dtype and shape of each dense variable.
      checksum_key: two numbers drawn at the export, the key of the checksum of its deltas. A delta of another export
        therefore has a wrong checksum.
      fixed: what deltas do not carry: a digest of each part by its name (`embedding_core.deltas.export.fixed_parts`).
      digest: digest of the exported state.
    """

    tables: tuple[TableLayout, ...]
    dense: tuple[tuple[str, tuple[int, ...]], ...]
    checksum_key: tuple[int, int]
    fixed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    digest: str = ""

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the layout into the folder of a SavedModel."""
        path = os.path.join(folder, LAYOUT)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"format": _FORMAT, **dataclasses.asdict(self)}, file, indent=1)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Layout:
        """Read the layout of a version.

        Raises:
          CheckpointError: there is none, or it cannot be read: no delta can be applied to the version.
        """
        path = os.path.join(folder, LAYOUT)
        try:
            return cls._of(read_json(path))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path!r} cannot be read ({error}): the version does not take deltas; push with `push.deltas`."
            ) from error

    @classmethod
    def _of(cls, facts: Json) -> Layout:
        if facts["format"] != _FORMAT:
            raise ValueError(
                f"its `format` is {facts['format']!r}, this release reads {_FORMAT}: the release that wrote it reads it"
            )
        return cls(
            tables=tuple(TableLayout(**table) for table in facts["tables"]),
            dense=tuple((dtype, tuple(shape)) for dtype, shape in facts["dense"]),
            checksum_key=(int(facts["checksum_key"][0]), int(facts["checksum_key"][1])),
            fixed=facts["fixed"],
            digest=str(facts["digest"]),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableState:
    """The rows and tokens of a table.

    Attributes:
      rows: `[capacity, dim]` in the type that is served, in the order of the variable.
      tokens: large_binary `[n]`; None for a table of raw ids.
      places: int64 `[n]`, the row of each token.
      unknown: int64, the rows of unknown tokens, or all rows of a table of raw ids.
    """

    rows: Array
    tokens: pa.LargeBinaryArray | None
    places: npt.NDArray[np.int64]
    unknown: npt.NDArray[np.int64]

    def digest(self) -> bytes:
        """Compute the sha256 of the rows by token, in the order of the tokens' bytes, and of the other rows."""
        found = hashlib.sha256(f"{self.rows.dtype} {self.rows.shape[1]} {len(self.unknown)} ".encode())
        if self.tokens is not None:
            order = pc.array_sort_indices(self.tokens)
            ordered = self.tokens.take(order)
            found.update(f"{len(ordered)} ".encode())
            for buffer in _bytes_of(ordered):
                found.update(buffer.tobytes())
            found.update(self.rows[self.places[order.to_numpy()]].tobytes())
        found.update(self.rows[self.unknown].tobytes())
        return found.digest()


def _bytes_of(tokens: pa.LargeBinaryArray) -> tuple[Array, Array]:
    """Return the lengths of tokens and all their bytes; the array must not be a slice."""
    _, offsets, data = tokens.buffers()
    ends = np.frombuffer(offsets, np.int64)[: len(tokens) + 1]
    return np.diff(ends), np.frombuffer(data or b"", np.uint8)[: ends[-1]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServedState:
    """Everything that deltas can change.

    Attributes:
      layout: the export that it is a state of.
      tables: by name.
      dense: the dense variables in order.
    """

    layout: Layout
    tables: Mapping[str, TableState]
    dense: tuple[Array, ...]

    @property
    def size(self) -> int:
        """The number of bytes of rows and dense weights, without spare rows."""
        rows = sum((len(table.places) + len(table.unknown)) * table.rows[:1].nbytes for table in self.tables.values())
        return rows + sum(value.nbytes for value in self.dense)

    def digest(self) -> str:
        """Compute the digest of tables, tokens and dense weights, in hexadecimal digits."""
        found = hashlib.sha256()
        for name in sorted(self.tables):
            found.update(f"{name} ".encode() + self.tables[name].digest())
        for value in self.dense:
            found.update(f"{value.dtype} {value.shape} ".encode() + value.tobytes())
        return found.hexdigest()


def state_of(
    layout: Layout,
    blocks: Mapping[str, Array],
    tokens: Mapping[str, Sequence[bytes]],
    dense: Sequence[Array],
    changed: Mapping[str, tuple[Sequence[bytes], Array]] | None = None,
) -> ServedState:
    """Put a state together.

    Args:
      layout: layout of the export.
      blocks: the variables of rows by name.
      tokens: the tokens of the export by table.
      dense: the dense variables.
      changed: tokens that came or went since the export and their rows, -1 for those that went, by table;
        None if none did.
    """
    tables = {}
    for table in layout.tables:
        rows = blocks[table.block][table.start : table.start + table.capacity]
        if table.tokens is None:
            tables[table.name] = TableState(
                rows=rows, tokens=None, places=np.zeros(0, np.int64), unknown=np.arange(table.capacity)
            )
            continue
        names, rows_of = (changed or {}).get(table.name, ((), np.zeros(0, np.int64)))
        exported = pa.array(tokens.get(table.name, ()), pa.large_binary())
        known, places = with_changes(exported, np.arange(len(exported)), names, rows_of)
        unknown = np.arange(table.tokens, table.tokens + table.oov_rows)
        tables[table.name] = TableState(rows=rows, tokens=known, places=places, unknown=unknown)
    return ServedState(layout=layout, tables=tables, dense=tuple(dense))


def with_changes(
    tokens: pa.LargeBinaryArray, places: npt.NDArray[np.int64], changed: Sequence[bytes], rows: Array
) -> tuple[pa.LargeBinaryArray, npt.NDArray[np.int64]]:
    """Add, move and remove tokens; changed tokens come last.

    Args:
      tokens: large_binary `[n]`.
      places: int64 `[n]`, the row of each token.
      changed: the tokens that came, moved or went.
      rows: the row of each of them, -1 for one that went.
    """
    if not changed:
        return tokens, places
    last = pa.array(changed, pa.large_binary())
    same = pc.is_in(tokens, value_set=last).to_numpy(zero_copy_only=False)
    there = rows >= 0
    return (
        pa.concat_arrays([tokens.filter(pa.array(~same)), last.filter(pa.array(there))]),
        np.concatenate([places[~same], rows[there].astype(np.int64)]),
    )


def read_state(version: str | os.PathLike[str], variables: str | os.PathLike[str] | None = None) -> ServedState:
    """Read the state of an exported model.

    Args:
      version: folder of the SavedModel.
      variables: prefix of another checkpoint of its variables, such as a server's; None for those of the export.

    Raises:
      CheckpointError: the model does not take deltas, or a file is missing.
    """
    layout = Layout.load(version)
    reader = tf.train.load_checkpoint(os.fspath(variables or os.path.join(version, "variables", "variables")))
    blocks = {name: _read(reader, f"tables/{_escaped(name)}") for name in {table.block for table in layout.tables}}
    tokens, changed, files = {}, {}, _vocabularies(os.path.join(version, "assets"))
    for table in layout.tables:
        if table.tokens is None:
            continue
        if table.vocabulary is not None:
            tokens[table.name] = read_tokens(files, table.vocabulary, version)
        of_table = f"token_tables/{_escaped(table.name)}"
        names, places = _read(reader, f"{of_table}/changed"), _read(reader, f"{of_table}/places")
        real = names != NO_TOKEN
        changed[table.name] = (names[real].tolist(), places[real])
    dense = [_read(reader, f"dense_variables/{number}") for number in range(len(layout.dense))]
    return state_of(layout, blocks, tokens, dense, changed)


def _vocabularies(assets: str) -> dict[str, str]:
    """Return the files of assets by their sha256."""
    paths = [os.path.join(assets, name) for name in (os.listdir(assets) if os.path.isdir(assets) else ())]
    return {file_digest(path)["sha256"]: path for path in paths if os.path.isfile(path)}


def read_tokens(files: Mapping[str, str], digest: str, version: str | os.PathLike[str]) -> list[bytes]:
    """Read the tokens of a vocabulary, found by the sha256 of its file.

    Raises:
      CheckpointError: the version does not have that file.
    """
    if digest not in files:
        raise CheckpointError(
            f"{os.fspath(version)!r} has no vocabulary of sha256 {digest}: it is damaged; publish the model again."
        )
    return lines_of(files[digest])


def _read(reader: Any, key: str) -> Array:
    value: Array = reader.get_tensor(f"{key}/.ATTRIBUTES/VARIABLE_VALUE")
    return value


def _escaped(name: str) -> str:
    """Write a name as TensorFlow's checkpoints do."""
    return name.replace(".", "..").replace("/", ".S")


# Loads an exported model as a server does, in a session of this process, to apply deltas to it and to compare answers.
#
# Each session has its own variables and vocabularies; two loads with `tf.saved_model.load` would share vocabularies.

_v1 = tf.compat.v1


class LoadedVersion:
    """A SavedModel in a session: call signatures by name, read the state that is served. Close it after use."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Load the SavedModel."""
        self._folder = os.fspath(folder)
        self._session = _v1.Session(graph=tf.Graph(), config=_v1.ConfigProto(device_count={"GPU": 0}))
        with self._session.graph.as_default():
            self._meta = _v1.saved_model.load(self._session, ["serve"], self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the memory of the model."""
        self._session.close()

    @property
    def signatures(self) -> frozenset[str]:
        """The names of the signatures."""
        return frozenset(name for name in self._meta.signature_def if not name.startswith("__"))

    def call(self, signature: str, **inputs: Any) -> dict[str, Any]:
        """Call a signature with arrays or scalars by name, and return arrays by name."""
        definition = self._meta.signature_def[signature]
        feed = {definition.inputs[name].name: value for name, value in inputs.items()}
        answers: dict[str, Any] = self._session.run(
            {name: output.name for name, output in definition.outputs.items()}, feed_dict=feed
        )
        return answers

    def answer(self, signature: str, rows: Any) -> dict[str, Any]:
        """Call a signature with serialized tf.Examples, or with tensors by name."""
        if isinstance(rows, Mapping):
            return self.call(signature, **rows)
        (name,) = self._meta.signature_def[signature].inputs
        return self.call(signature, **{name: np.asarray(list(rows), object)})

    def reset(self) -> None:
        """Restore the variables of the export, as loading the version again would."""
        saver = self._meta.saver_def
        prefix = os.path.join(self._folder, "variables", "variables")
        self._session.run(saver.restore_op_name, feed_dict={saver.filename_tensor_name: prefix})

    def state(self) -> ServedState:
        """Read what is served now, through a checkpoint of the session's variables."""
        with scratch_folder("state") as folder:
            prefix = os.path.join(folder, "variables")
            saver = self._meta.saver_def
            self._session.run(saver.save_tensor_name, feed_dict={saver.filename_tensor_name: prefix})
            return read_state(self._folder, prefix)
