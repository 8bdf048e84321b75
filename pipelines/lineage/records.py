"""Reads lineage from the records beside the artifacts (see `components.lineage_record`), without ML Metadata."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from components.artifact_files import RECORD_SUFFIX
from embedding_core.errors import DataError
from embedding_core.storage import is_remote, read_json
from pipelines.lineage.graph import Execution, Node, is_fact, plain_value, upstream

Json: TypeAlias = dict[str, Any]


def read_records(folder: str) -> dict[int, Node]:
    """Return, by number, every artifact that a record below the folder names.

    An artifact that another project's component made has no record: in the graph it is an input without a producer.

    Args:
      folder: the pipeline's root: a local folder, or an address that TensorFlow can read.

    Raises:
      DataError: records are missing, or one cannot be read.
    """
    records = sorted(_records(folder), key=lambda record: str(record["uri"]))
    if not records:
        raise DataError(f"{folder!r} has no *{RECORD_SUFFIX}: give the folder that the pipeline wrote to.")
    return _graph(records)


def recorded_lineage(uri: str) -> dict[int, Node]:
    """Return an artifact, then everything that it was made of, by following the records beside the artifacts.

    Args:
      uri: address of the artifact, which may belong to another pipeline.

    Returns:
      The numbered nodes; empty without a record beside the artifact.
    """
    records: dict[str, Json] = {}
    waiting = [uri.rstrip("/")]
    while waiting:
        one = waiting.pop()
        record = {} if one in records else json_if_readable(one + RECORD_SUFFIX)
        if record:
            records[one] = record
            waiting += [source["uri"].rstrip("/") for source in record["inputs"]]
    graph = _graph(sorted(records.values(), key=lambda record: str(record["uri"])))
    first = [number for number, node in graph.items() if node.uri.rstrip("/") == uri.rstrip("/")]
    return upstream(graph, first[0]) if first else {}


def _graph(records: Sequence[Json]) -> dict[int, Node]:
    types = {one["uri"]: one["type"] for record in records for one in record["inputs"]}
    types.update({record["uri"]: record["type"] for record in records})
    numbers = {uri: number for number, uri in enumerate(sorted(types), start=1)}
    by_uri = {record["uri"]: record for record in records}
    return {number: _node(number, uri, types[uri], by_uri.get(uri), numbers) for uri, number in numbers.items()}


def _node(number: int, uri: str, kind: str, record: Json | None, numbers: Mapping[str, int]) -> Node:
    made = record or {"facts": {}, "inputs": []}
    return Node(
        id=number,
        type=kind,
        uri=uri,
        facts={key: plain_value(value) for key, value in made["facts"].items() if is_fact(key)},
        producer=Execution(id=0, node=record["node"], state="COMPLETE", seconds=None) if record else None,
        inputs=tuple(dict.fromkeys(numbers[one["uri"]] for one in made["inputs"])),
    )


def files_of(node: Node) -> list[Json]:
    """Return `path` and `size` of the external files that the artifact was made of; empty if none were recorded."""
    files: list[Json] = json_if_readable(node.uri.rstrip("/") + RECORD_SUFFIX).get("files", [])
    return files


def json_if_readable(path: str) -> Json:
    """Return the content of a JSON file; an empty mapping if it was deleted, is damaged or cannot be read."""
    try:
        return _read(path)
    except DataError:
        return {}


def _records(folder: str) -> Iterator[Json]:
    for path in _walk(folder):
        if path.endswith(RECORD_SUFFIX):
            yield _read(path)


def _walk(folder: str) -> Iterator[str]:
    walk = os.walk
    if is_remote(folder):
        import tensorflow as tf  # only for addresses: it takes seconds to load

        walk = tf.io.gfile.walk
    for parent, _, names in walk(folder):
        yield from (os.path.join(parent, name) for name in names)


def _read(path: str) -> Json:
    try:
        return dict(read_json(path))
    except (OSError, TypeError, ValueError) as error:
        raise DataError(
            f"the record {path!r} cannot be read ({error}); remove it, or run the pipeline again."
        ) from error
