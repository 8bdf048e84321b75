"""Measures how much the outputs of an exported signature differ from those of training, also on edge cases.

One side is the lookup and the dense model as training ran them. The other is the SavedModel, loaded
by a fresh Python process that imports only TensorFlow. Both get the same rows.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig
from embedding_core.errors import ParityError
from embedding_core.record_files import open_records
from embedding_core.storage import scratch_folder

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
Outputs: TypeAlias = dict[str, npt.NDArray[Any]]
Gaps: TypeAlias = npt.NDArray[np.float64]
Marks: TypeAlias = npt.NDArray[np.bool_]
Inputs: TypeAlias = Sequence[bytes] | Mapping[str, Any]
EVALUATED = "evaluated"
"""Prefix of the names of outputs that are compared with those of the evaluated model; all others are with training."""
_PROGRAM = Path(__file__).with_name("scoring.py")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference of one output from its expected value.

    Attributes:
      name: name of the output, as ``<signature>/<output>``.
      rows: number of compared rows.
      max_abs: largest absolute difference; infinite if shapes or texts differ, or only one side is NaN.
      mean_abs: mean absolute difference of all entries; 0 if there are none.
      non_finite: number of entries that are NaN or infinite on either side.
      within: whether there are rows, and every entry is finite and differs by at most
        ``tolerance * max(1, |expected|)``.
      tolerance: largest allowed difference, absolute below 1 and relative above.
    """

    name: str
    rows: int
    max_abs: float
    mean_abs: float
    non_finite: int
    within: bool
    tolerance: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParityReport:
    """The verdict over all compared outputs: `passed` only if each is within the tolerance.

    Attributes:
      tolerance: largest allowed difference, absolute below 1 and relative above.
      differences: one per output.
      broken: largest difference by violated rule, keyed ``<feature>: <rule>``.
    """

    tolerance: float
    differences: tuple[Difference, ...]
    broken: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether something was compared, and everything is within the tolerance."""
        return bool(self.differences) and all(item.within for item in self.differences)

    @property
    def max_abs(self) -> float:
        """The largest absolute difference of all outputs."""
        return max((item.max_abs for item in self.differences), default=float("inf"))

    @property
    def rows(self) -> int:
        """The largest number of rows that any output was compared on."""
        return max((item.rows for item in self.differences), default=0)

    @property
    def reason(self) -> str:
        """Why the comparison did not pass, in one line; empty if it passed."""
        if self.passed:
            return ""
        if not self.differences:
            return "nothing was compared: no rows were given."
        worst = max((item for item in self.differences if not item.within), key=lambda item: item.max_abs)
        other = "the evaluated model" if worst.name.startswith(f"{EVALUATED}/") else "training"
        difference = f"differs by {worst.max_abs:.3g} from {other}"
        if worst.non_finite and worst.max_abs <= worst.tolerance:  # the same infinity or NaN on both sides
            difference = f"is not finite, as in {other},"
        return (
            f"{worst.name} {difference} on {worst.rows} rows "
            f"({worst.non_finite} entries not finite); the tolerance is {worst.tolerance:g}{self._broken_rules}."
        )

    @property
    def _broken_rules(self) -> str:
        if not self.broken:
            return ""
        first = max(self.broken, key=lambda rule: self.broken[rule])
        more = f", and {len(self.broken) - 1} more" if len(self.broken) > 1 else ""
        return f"; broken rule: {first}{more}"

    def merged(self, *others: ParityReport) -> ParityReport:
        """Merge the outputs of this report and others into one report."""
        differences = tuple(item for report in (self, *others) for item in report.differences)
        broken: dict[str, float] = {}
        for report in (self, *others):
            for rule, gap in report.broken.items():
                broken[rule] = max(gap, broken.get(rule, 0.0))
        return dataclasses.replace(self, differences=differences, broken=broken)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "passed": self.passed,
            "reason": self.reason,
            "rows": self.rows,
            "max_abs": json_number(self.max_abs),
            "tolerance": self.tolerance,
            "broken": {rule: json_number(gap) for rule, gap in self.broken.items()},
            "differences": {
                item.name: {
                    "rows": item.rows,
                    "max_abs": json_number(item.max_abs),
                    "mean_abs": json_number(item.mean_abs),
                    "non_finite": item.non_finite,
                    "within": item.within,
                    "tolerance": item.tolerance,
                }
                for item in self.differences
            },
        }


def json_number(value: float) -> float | str:
    """Return the number; infinity and NaN, which JSON does not have, as text."""
    return value if np.isfinite(value) else str(value)


def compare(
    expected: Arrays, actual: Arrays, *, tolerance: float, signature: str, rules: Sequence[str] | None = None
) -> ParityReport:
    """Compare outputs with their expected values, by name.

    Args:
      expected: arrays of training, by output name; [rows, ...].
      actual: arrays of the exported signature, by the same names; a missing array differs by infinity,
        additional arrays are ignored.
      tolerance: largest allowed difference, absolute below 1 and relative above.
      signature: prefix of the names in the report.
      rules: the rule that each row tests, for the report's `broken`; None leaves `broken` empty.
    """
    differences, broken = [], dict[str, float]()
    for name, left in expected.items():
        gap, non_finite = gaps(left, actual.get(name))
        allowed = tolerance * np.maximum(1.0, np.zeros(left.shape) if is_text(left) else np.abs(_numbers(left)))
        over = (gap > allowed) | non_finite
        differences.append(_difference(f"{signature}/{name}", gap, non_finite, over, tolerance))
        for row in map(int, np.unique(np.nonzero(over)[0])):
            rule = rules[row] if rules is not None else ""
            broken[rule] = max(float(gap[row].max(initial=0.0)), broken.get(rule, 0.0))
    return ParityReport(tolerance=tolerance, differences=tuple(differences), broken={} if rules is None else broken)


def gaps(expected: npt.ArrayLike, actual: npt.ArrayLike | None) -> tuple[Gaps, Marks]:
    """Compute the absolute difference of each entry, and whether one or both of its values are not finite.

    The difference is infinite if the shapes or texts differ, only one value is NaN, or `actual` is None.
    """
    if is_text(expected) or (actual is not None and is_text(actual)):
        return _gaps_of_texts(np.asarray(expected), np.asarray(actual))
    left, right = _numbers(expected), _numbers(np.nan if actual is None else actual)
    if left.shape != right.shape:
        return np.full(left.shape, np.inf), np.zeros(left.shape, bool)
    with np.errstate(invalid="ignore"):  # infinity minus infinity, which counts as equal
        gap = np.where((left == right) | (np.isnan(left) & np.isnan(right)), 0.0, np.abs(left - right))
    return np.where(np.isnan(gap), np.inf, gap), ~np.isfinite(left) | ~np.isfinite(right)


def _numbers(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    return np.asarray(values, np.float64)


def is_text(values: npt.ArrayLike) -> bool:
    """Return whether an array holds texts."""
    return np.asarray(values).dtype.kind in "OSU"


def _gaps_of_texts(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> tuple[Gaps, Marks]:
    same = left == right if left.shape == right.shape else np.zeros(left.shape, bool)
    return np.where(same, 0.0, np.inf), np.zeros(left.shape, bool)


def _difference(name: str, gap: Gaps, non_finite: Marks, over: Marks, tolerance: float) -> Difference:
    return Difference(
        name=name,
        rows=len(gap),
        max_abs=float(gap.max(initial=0.0)),
        mean_abs=float(gap.mean()) if gap.size else 0.0,
        non_finite=int(non_finite.sum()),
        within=len(gap) > 0 and not over.any(),
        tolerance=tolerance,
    )


def score_signatures(
    saved_model_dir: str | os.PathLike[str],
    requests: Mapping[str, Inputs],
    *,
    batch_size: int = 512,
    timeout: float = 900.0,
) -> dict[str, Outputs]:
    """Score rows with a SavedModel in an isolated Python process that imports TensorFlow alone.

    Args:
      saved_model_dir: folder of the SavedModel.
      requests: by name of a signature, serialized tf.Examples if it has one input, or its tensors by name, [rows, ...].
      batch_size: rows per call.
      timeout: seconds to wait for the process.

    Returns:
      The outputs of each signature, [rows, ...].

    Raises:
      ParityError: the SavedModel does not load, lacks a signature, fails on the rows or exceeds the timeout, or there
        are no rows; the message says which.
    """
    with scratch_folder("score") as folder:
        folders = {signature: Path(folder, signature) for signature in requests}
        for signature, inputs in requests.items():
            _write(signature, inputs, folders[signature])
        # -I: the child must not find this project through the working directory or PYTHONPATH.
        model = os.fspath(saved_model_dir)
        _run([sys.executable, "-I", str(_PROGRAM), model, str(batch_size), *map(str, folders.values())], model, timeout)
        return {signature: _read(path) for signature, path in folders.items()}


def _run(command: list[str], model: str, timeout: float) -> None:
    reading, writing = os.pipe()  # the child ends when `writing` closes, even if this process is killed
    try:
        done = subprocess.run(  # noqa: S603
            command,
            env=scoring_environment(),
            stdin=reading,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ParityError(
            f"scoring with {model!r} took over {timeout:g} s: raise `timeout`, or pass fewer rows."
        ) from error
    finally:
        os.close(reading)
        os.close(writing)
    if done.returncode:
        raise ParityError(
            f"{model!r} failed in a fresh process (exit code {done.returncode}): {error_line(done.stderr)}"
        )


def scoring_environment() -> dict[str, str]:
    """Return the environment of a process that scores on the CPU, where the exported model looks up.

    The parent may still hold the accelerator.
    """
    return {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}


def error_line(text: str) -> str:
    """Return the exception line of a traceback, and TensorFlow's message line after it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    exceptions = [number for number, line in enumerate(lines) if re.match(r"[\w.]+(Error|Exception)\b", line)]
    if not exceptions:
        return lines[-1] if lines else "it printed nothing; it was killed or crashed."
    message = [line for line in lines[exceptions[-1] + 1 :] if not line.startswith(("[[", "Detected", "<stack"))]
    return " ".join([lines[exceptions[-1]], *message[:1]])


def _write(signature: str, inputs: Inputs, folder: Path) -> None:
    by_name = inputs if isinstance(inputs, Mapping) else {"": np.asarray(list(inputs), object)}
    if not all(len(value) for value in by_name.values()):
        raise ParityError(f"there are no rows to score with signature {signature!r}: pass at least one.")
    tensors = {name: tf.convert_to_tensor(value) for name, value in by_name.items()}
    folder.mkdir()
    for number, tensor in enumerate(tensors.values()):
        (folder / f"{number}.in").write_bytes(tf.io.serialize_tensor(tensor).numpy())
    (folder / "inputs.json").write_text(json.dumps({name: tensor.dtype.name for name, tensor in tensors.items()}))


def _read(folder: Path) -> Outputs:
    dtypes = json.loads((folder / "outputs.json").read_text())
    return {
        name: tf.io.parse_tensor((folder / f"{number}.out").read_bytes(), getattr(tf, dtype)).numpy()
        for number, (name, dtype) in enumerate(dtypes.items())
    }


# Makes edge cases: inputs that the eval split rarely has, but that servers receive.

Values: TypeAlias = "list[bytes] | list[int] | list[float]"

_UNKNOWN_TOKEN = b"no such token 5b1f"

# The rule that each case tests. In other projects, training and serving lookups are known to differ in these rules.
_MISSING = "a row without ids gives zeros, and the batch keeps it"
_UNKNOWN = "an unknown token goes to the out-of-vocabulary rows"
_INVALID = "an id outside the table follows `invalid_id`"
_DUPLICATE = "duplicate ids count as often as they occur"
_OVERLONG = "a sequence is cut and padded with zeros, a long list is combined whole"
_TEXT = "a token is its bytes, in any encoding"
_NUMBER = "a number becomes its shortest decimal text"
_BOUNDARY = "the first and the last row are looked up like any other"


class EdgeCase(NamedTuple):
    """A serialized tf.Example, the feature whose column was changed, and the rule that the change tests."""

    row: bytes
    feature: str
    rule: str


def read_rows(files: Sequence[str], limit: int) -> list[bytes]:
    """Read the first `limit` serialized tf.Examples of TFRecord files; names ending in .gz are gzipped."""
    rows: list[bytes] = []
    for name in sorted(files):
        rows.extend(open_records([name]).take(limit - len(rows)).as_numpy_iterator())
        if len(rows) >= limit:
            break
    return rows


def edge_cases(rows: Sequence[bytes], config: EmbeddingConfig, spare: Collection[str] = ()) -> list[EdgeCase]:
    """Make variants of rows, each with other values in the column of one categorical feature.

    For each feature, as far as its kind allows: a missing value, an empty one, an unknown token, a duplicate token,
    text that is not ASCII or not UTF-8, a token with a line feed, an over-long token, over-long lists; for raw ids the
    first and the last row, and ids outside the table if the feature's `invalid_id` does not stop training.

    Args:
      rows: serialized tf.Examples; each variant starts from one of them.
      config: tables and features.
      spare: columns to leave unchanged, because they are used for more than tokens.

    Returns:
      The cases; empty without rows.
    """
    cases: list[EdgeCase] = []
    for feature in config.features if rows else ():
        column = feature.column
        if column is None or column.after_transform or column.name in spare:
            continue
        table = config.table_of(feature.name)
        tests = _of_tokens(feature, column) if table.vocabulary else _of_ids(feature, column, table.vocabulary_size)
        for rule, values in tests:
            cases.append(EdgeCase(_with(rows[len(cases) % len(rows)], column.name, values), feature.name, rule))
    return cases


def _with(row: bytes, column: str, values: Values) -> bytes:
    """Replace the values in one column of a row; without values, remove the column."""
    example = tf.train.Example.FromString(row)
    example.features.feature.pop(column, None)
    feature = example.features.feature[column] if values else tf.train.Feature()
    if values:
        kinds = {bytes: feature.bytes_list, int: feature.int64_list, float: feature.float_list}
        kinds[type(values[0])].value.extend(values)
    result: bytes = example.SerializeToString()
    return result


def _of_ids(feature: FeatureConfig, column: ColumnConfig, rows: int) -> Iterator[tuple[str, Values]]:
    """Yield raw ids; include ids outside the table only if they do not stop training."""
    yield _MISSING, []
    yield from ((_BOUNDARY, [number]) for number in (0, rows - 1))
    if feature.invalid_id != "error":
        yield from ((_INVALID, [number]) for number in (-1, rows, 2**31, 2**40))
    if column.multivalent:
        yield _DUPLICATE, _list(rows - 1, 2)
        yield _OVERLONG, _list(0, feature.max_sequence_length + 300)


def _of_tokens(feature: FeatureConfig, column: ColumnConfig) -> Iterator[tuple[str, Values]]:
    yield _MISSING, []
    if column.dtype == "float32":
        yield from ((_NUMBER, [number]) for number in (1e30, -0.0))
        yield _MISSING, [float("nan")]
        return
    unknown: bytes | int = _UNKNOWN_TOKEN if column.dtype == "string" else 2**62
    yield _UNKNOWN, _list(unknown)
    yield from _texts() if column.dtype == "string" else ((_NUMBER, [number]) for number in (-1, 0))
    long = feature.max_sequence_length + 300
    if column.multivalent:
        yield _DUPLICATE, _list(unknown, 2)
        yield _OVERLONG, _list(unknown, long)
    if column.separator is not None:
        separator = column.separator.encode()
        yield _DUPLICATE, [separator.join([_UNKNOWN_TOKEN] * 2)]
        yield _OVERLONG, [separator.join([_UNKNOWN_TOKEN] * long)]
        yield _MISSING, [separator * 3]


def _texts() -> Iterator[tuple[str, Values]]:
    yield _MISSING, [b""]
    odd = (b"\xc5\xbelu\xc5\xa5 \xe6\x97\xa5\xe6\x9c\xac", b"\xff\xfe", b" padded ", b"line\nfeed", b"x" * 66000)
    yield from ((_TEXT, [text]) for text in odd)


def _list(value: Any, count: int = 1) -> Values:
    return [value] * count
