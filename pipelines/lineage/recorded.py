"""Lineage from what lies beside the artifacts (see `components.record`), where there is no ML Metadata to ask."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from components.artifact_files import RECORD_SUFFIX
from embedding_core.errors import DataError
from pipelines.lineage.graph import Execution, Node, is_fact, plain_value, upstream

__all__ = ["files_of", "read_records", "recorded_lineage"]


def read_records(folder: str) -> dict[int, Node]:
    """Every artifact that a record below the folder names, by a number of its own.

    What another project's component made has no record; it stands in the graph as an input without a producer.

    Args:
      folder: the pipeline's root, local, or an address that TensorFlow reads.

    Raises:
      DataError: there is no record.
    """
    records = sorted(_records(folder), key=lambda record: str(record["uri"]))
    if not records:
        raise DataError(f"{folder!r} has no *{RECORD_SUFFIX}: name the folder below which the pipeline wrote.")
    return _graph(records)


def recorded_lineage(uri: str) -> dict[int, Node]:
    """An artifact and everything that it was made of, as the records beside them tell, the artifact itself first.

    Args:
      uri: of the artifact; it may be of another pipeline.

    Returns:
      The nodes by numbers of their own; nothing if there is no record beside it.
    """
    found: dict[str, dict[str, Any]] = {}
    waiting = [uri.rstrip("/")]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        try:
            found[one] = _read(one + RECORD_SUFFIX)
        except DataError:
            continue
        waiting += [source["uri"].rstrip("/") for source in found[one]["inputs"]]
    graph = _graph(sorted(found.values(), key=lambda record: str(record["uri"])))
    first = [number for number, node in graph.items() if node.uri.rstrip("/") == uri.rstrip("/")]
    return upstream(graph, first[0]) if first else {}


def _graph(records: Sequence[Mapping[str, Any]]) -> dict[int, Node]:
    types = {one["uri"]: one["type"] for record in records for one in record["inputs"]}
    types.update({record["uri"]: record["type"] for record in records})
    numbers = {uri: number for number, uri in enumerate(sorted(types), start=1)}
    by_uri = {record["uri"]: record for record in records}
    return {number: _node(number, uri, types[uri], by_uri.get(uri), numbers) for uri, number in numbers.items()}


def _node(number: int, uri: str, kind: str, record: Mapping[str, Any] | None, numbers: Mapping[str, int]) -> Node:
    made = record or {"facts": {}, "inputs": []}
    return Node(
        id=number,
        type=kind,
        uri=uri,
        facts={key: plain_value(value) for key, value in made["facts"].items() if is_fact(key)},
        producer=Execution(id=0, node=record["node"], state="COMPLETE", seconds=None) if record else None,
        inputs=tuple(dict.fromkeys(numbers[one["uri"]] for one in made["inputs"])),
    )


def files_of(node: Node) -> list[dict[str, Any]]:
    """`path` and `size` of the files from outside that the artifact was made of; empty where nothing was recorded."""
    path = node.uri.rstrip("/") + RECORD_SUFFIX
    try:
        files: list[dict[str, Any]] = _read(path)["files"]
    except DataError:
        return []
    return files


def _records(folder: str) -> Iterator[dict[str, Any]]:
    for path in _walk(folder):
        if path.endswith(RECORD_SUFFIX):
            yield _read(path)


def _walk(folder: str) -> Iterator[str]:
    if "://" in folder:
        import tensorflow as tf  # only for addresses: it takes seconds to load

        for place, _, names in tf.io.gfile.walk(folder):
            yield from (os.path.join(place, name) for name in names)
        return
    for place, _, names in os.walk(folder):
        yield from (os.path.join(place, name) for name in names)


def _read(path: str) -> dict[str, Any]:
    try:
        if "://" in path:
            import tensorflow as tf

            text = tf.io.gfile.GFile(path).read()
        else:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        record: dict[str, Any] = json.loads(text)
    except (OSError, ValueError) as error:
        raise DataError(
            f"the record {path!r} cannot be read ({error}); remove it, or run the pipeline again."
        ) from error
    return record
