"""Column summaries added up over batches of several sizes, against a summary made value by value."""

import numpy as np
import pyarrow as pa
import pytest

from components.column_summary import ColumnSummary, summaries_from_json, summaries_to_json
from components.example_gen.rows import summary_of

pytestmark = pytest.mark.light

COLUMNS = {
    "int64": [3, None, -5, 3, 2**40, None, 0],
    "float": [0.5, None, -1.5, 0.25, 1e30, None, 0.0],
    "bytes": [b"a", None, b"", b"a", b"\xff", None, b"b"],
    "list of int64": [[1, 2], [], None, [3], [4, 5, 6], [7], [7]],
    "list of bytes": [[b"x"], [], None, [b"x", b"x"], [b"x"], [b"x"], [b"x"]],
    "constant": [b"c", b"c", None, b"c", b"c", b"c", b"c"],
    "empty": [None] * 7,
}
TYPES = {
    "int64": pa.int64(),
    "float": pa.float32(),
    "list of int64": pa.large_list(pa.int64()),
    "list of bytes": pa.large_list(pa.large_binary()),
}


def slowly(rows):
    """Summarize rows one value at a time."""
    lists = [row if isinstance(row, list) else [] if row is None else [row] for row in rows]
    full = [row for row in lists if row]
    values = [value for row in full for value in row]
    numbers = [] if not values or isinstance(values[0], bytes) else [float(np.float32(v)) for v in values]
    numbers = [float(value) for value in values] if values and isinstance(values[0], int) else numbers
    return {
        "rows": len(full),
        "values": len(values),
        "fewest": min(map(len, full), default=0),
        "most": max(map(len, full), default=0),
        "smallest": min(numbers, default=None),
        "largest": max(numbers, default=None),
        "total": pytest.approx(sum(numbers)),
        "constant": len(set(values)) == 1,
    }


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("size", [1, 2, 7])
def test_summaries_of_batches_add_up_to_that_of_all_rows(name, size):
    column = pa.array(COLUMNS[name], TYPES.get(name, pa.large_binary()))
    chosen = np.array([True, True, True, False, True, True, True])
    total = ColumnSummary()
    for start in range(0, len(column), size):
        rows = slice(start, start + size)
        total.add(summary_of(column[rows], chosen[rows], known_to_differ=total.only == ""))
    expected = slowly([row for row, is_chosen in zip(COLUMNS[name], chosen, strict=True) if is_chosen])
    found = {key: getattr(total, key) for key in expected if key != "constant"}
    assert {**found, "constant": bool(total.only)} == expected


def test_summaries_survive_json():
    summary = summary_of(pa.array([1.5, 2.0], pa.float32()), np.ones(2, bool), known_to_differ=False)
    given = {"train": {"x": summary, "y": ColumnSummary()}, "eval": {}}
    assert summaries_from_json(summaries_to_json({"train": 2, "eval": 0}, given)) == ({"train": 2, "eval": 0}, given)
