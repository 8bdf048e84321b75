"""Writes seeded tf.Examples whose string features follow a bounded Zipf law, as click logs do.

python -m benchmarks.zipf_examples /some/folder --rows 1000000 --multivalent 5
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from collections.abc import Iterator

import numpy as np

_EXPONENT = 1.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZipfData:
    """Parameters of the examples; the same parameters give the same bytes.

    `multivalent` is the number of features that hold lists of 0 to 8 values; the others hold exactly one.
    """

    rows: int = 1_000_000
    features: int = 26
    multivalent: int = 0
    shards: int = 8
    seed: int = 7

    @property
    def names(self) -> list[str]:
        return [f"c{index:02d}" for index in range(self.features)]

    @property
    def many(self) -> list[str]:
        """The list-valued features, spread evenly, so that some have few distinct values and some many."""
        return [self.names[int((index + 0.5) * self.features / self.multivalent)] for index in range(self.multivalent)]

    def cardinality(self, index: int) -> int:
        """Return the number of distinct values of a feature: 10 to 1,000,000, evenly spaced on a log scale."""
        return round(10 ** (1 + 5 * index / max(1, self.features - 1)))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, payload: bytes) -> bytes:
    """Encode a length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _token(feature: int, value: int) -> bytes:
    """Return a token of eight hexadecimal digits that looks hashed, as in click logs."""
    return b"%08x" % ((value * 2654435761 + feature * 40503) & 0xFFFFFFFF)


def _draw(generator: np.random.Generator, cardinality: int, size: int) -> np.ndarray:
    weights = np.arange(1, cardinality + 1, dtype=np.float64) ** -_EXPONENT
    return np.searchsorted(np.cumsum(weights) / weights.sum(), generator.random(size)).clip(max=cardinality - 1)


def _feature(data: ZipfData, index: int, shard: int, rows: int) -> list[bytes]:
    """Encode one feature: for each row, its entry in the feature map of a tf.Example."""
    generator = np.random.default_rng([data.seed, shard, index])
    name = data.names[index].encode()
    lengths = generator.integers(0, 9, rows) if data.names[index] in data.many else np.ones(rows, np.int64)
    values = _draw(generator, data.cardinality(index), int(lengths.sum()))
    distinct, inverse = np.unique(values, return_inverse=True)

    def entry(cell: bytes) -> bytes:
        return _field(1, _field(1, name) + _field(2, _field(1, cell)))

    encoded = [_field(1, _token(index, int(value))) for value in distinct]
    if data.names[index] not in data.many:
        entries = [entry(cell) for cell in encoded]
        return [entries[position] for position in inverse.tolist()]
    cells, ends = [encoded[position] for position in inverse.tolist()], np.cumsum(lengths).tolist()
    return [entry(b"".join(cells[end - length : end])) for end, length in zip(ends, lengths.tolist(), strict=True)]


def serialized_examples(data: ZipfData, shard: int) -> Iterator[bytes]:
    """Yield the serialized tf.Examples of one shard."""
    rows = len(range(shard, data.rows, data.shards))
    columns = [_feature(data, index, shard, rows) for index in range(data.features)]
    for cells in zip(*columns, strict=True):
        yield _field(1, b"".join(cells))


def write_examples(data: ZipfData, folder: pathlib.Path) -> list[pathlib.Path]:
    """Write gzip TFRecord files; existing shards are kept.

    Returns:
      The paths, in the order of the shards.
    """
    import tensorflow as tf

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"examples-{shard:05d}-of-{data.shards:05d}.gz" for shard in range(data.shards)]
    for shard, path in enumerate(paths):
        if path.exists():
            continue
        unfinished = path.with_suffix(".unfinished")
        with tf.io.TFRecordWriter(str(unfinished), "GZIP") as writer:
            for record in serialized_examples(data, shard):
                writer.write(record)
        unfinished.rename(path)
    return paths


def main() -> None:
    """Write the examples into the folder given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    for field in dataclasses.fields(ZipfData):
        parser.add_argument(f"--{field.name}", type=int, default=field.default)
    arguments = vars(parser.parse_args())
    folder = arguments.pop("folder")
    print(*write_examples(ZipfData(**arguments), folder))


if __name__ == "__main__":
    main()
