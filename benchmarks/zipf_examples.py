"""Writes seeded tf.Examples whose string features follow a bounded Zipf law, as click logs do."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZipfData:
    """Parameters of the examples; the same parameters give the same rows.

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


def zipf(generator: np.random.Generator, distinct: int, count: int, exponent: float = 1.05) -> npt.NDArray[np.int64]:
    """Draw numbers from 0 to `distinct` - 1 by a bounded Zipf law."""
    cumulated = np.cumsum(np.arange(1, distinct + 1, dtype=np.float64) ** -exponent)
    return np.searchsorted(cumulated, generator.random(count) * cumulated[-1]).clip(max=distinct - 1)


def _cells(data: ZipfData, index: int, shard: int, rows: int) -> list[list[bytes]]:
    """Draw one feature: the tokens of each row, of eight hexadecimal digits that look hashed, as in click logs."""
    generator = np.random.default_rng([data.seed, shard, index])
    lengths = generator.integers(0, 9, rows) if data.names[index] in data.many else np.ones(rows, np.int64)
    values, inverse = np.unique(zipf(generator, data.cardinality(index), int(lengths.sum())), return_inverse=True)
    tokens = [b"%08x" % ((value * 2654435761 + index * 40503) & 0xFFFFFFFF) for value in values.tolist()]
    drawn, ends = [tokens[place] for place in inverse.tolist()], np.cumsum(lengths).tolist()
    return [drawn[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]


def write_examples(data: ZipfData, folder: pathlib.Path) -> None:
    """Write gzip TFRecord files; existing shards are kept."""
    import tensorflow as tf

    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(data.shards):
        path = folder / f"examples-{shard:05d}-of-{data.shards:05d}.gz"
        if path.exists():
            continue
        rows = len(range(shard, data.rows, data.shards))
        columns = [_cells(data, index, shard, rows) for index in range(data.features)]
        unfinished = path.with_suffix(".unfinished")
        with tf.io.TFRecordWriter(str(unfinished), "GZIP") as writer:
            for cells in zip(*columns, strict=True):
                example = tf.train.Example()
                for name, tokens in zip(data.names, cells, strict=True):
                    example.features.feature[name].bytes_list.value.extend(tokens)
                writer.write(example.SerializeToString())
        unfinished.rename(path)
