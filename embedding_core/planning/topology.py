"""Describes named TPU slices, and plans the memory of tables and slots on their hosts and cores.

The row blocks are TensorFlow's (`tpu_embedding_v2.py`): each of n hosts holds ``rows // n`` rows and the first
``rows % n`` hosts one more; the same rule divides a host's block among its cores. Rows are float32, padded to a
multiple of 8 floats; every slot is as large as its table. HBM sizes are those of Cloud TPU's system
architecture pages. The plan does not include the memory of the dense part.

On a generation without embedding hardware (v5e) TensorFlow keeps a whole copy of every table on each core, and Keras
trains it with a gradient as large as the table. The TPU compiler copies tables whose columns do not fill its vectors of
128 floats into a layout in which they do. `_copy_bytes` bounds the memory of both; docs/preflight.md has measurements.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.errors import ConfigError
from embedding_core.optimizers import SGD, Adagrad
from embedding_core.schema import Json

_FLOAT_BYTES = 4
_PADDING = 8
_LANES = 128  # floats of a vector of the TensorCore
_NOT_COPIED = 32  # columns; the compiler (libtpu 0.0.17) does not pad tables of so few
GIB = 2**30
_RESERVED = GIB // 4  # of a core of v5e: the compiler has 15.75 GiB of 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
    """A slice of hosts and cores.

    Attributes:
      name: name at Cloud TPU, such as "v3-32".
      hosts: number of hosts.
      cores_per_host: number of devices with separate memory per host (the two TensorCores of a v4 chip are one).
      bytes_per_core: HBM of one such device, in bytes.
      placement: "sharded" row blocks, or "replicated" whole tables.
      sparse_cores: number of SparseCores of each such device; 0 if programs do not address them (v4) or it has none.
      cores_per_chip: number of such devices of a chip.
    """

    name: str
    hosts: int
    cores_per_host: int
    bytes_per_core: int
    placement: Literal["sharded", "replicated"] = "sharded"
    sparse_cores: int = 0
    cores_per_chip: int = 1

    @property
    def cores(self) -> int:
        """Number of devices with separate memory."""
        return self.hosts * self.cores_per_host

    @property
    def chips(self) -> int:
        """Number of chips."""
        return self.cores // self.cores_per_chip


class _Generation(NamedTuple):
    counted_per_core: int  # how much one device with separate memory adds to the number in a slice's name
    cores_per_host: int
    single_host: tuple[int, ...]  # the numbers of cores of single-host slices
    gib_per_core: int
    placement: Literal["sharded", "replicated"]
    sparse_cores: int = 0
    cores_per_chip: int = 1


_GENERATIONS: Mapping[str, _Generation] = {
    "v2": _Generation(1, 8, (8,), 8, "sharded", cores_per_chip=2),
    "v3": _Generation(1, 8, (8,), 16, "sharded", cores_per_chip=2),
    "v4": _Generation(2, 4, (4,), 32, "sharded"),
    "v5e": _Generation(1, 4, (1, 4, 8), 16, "replicated"),
    "v5p": _Generation(2, 4, (4,), 95, "sharded", 4),
    "v6e": _Generation(1, 4, (1, 4, 8), 32, "sharded", 2),
}


def named_topology(name: str) -> Topology:
    """Look up a slice by its name: "v2-8", "v3-32", "v4-8", "v5e-4", "v5p-8", "v6e-8", ...

    Raises:
      ConfigError: an unknown generation, or a size that is not a whole number of hosts.
    """
    match = re.fullmatch(r"(v\d+[a-z]*)-(\d+)", name.replace("v5litepod", "v5e"))
    generation = _GENERATIONS.get(match.group(1)) if match else None
    if match is None or generation is None:
        raise ConfigError(
            f"`topology` is {name!r}: it must be a generation ({', '.join(_GENERATIONS)}), a dash and a size, "
            "such as 'v3-8' or 'v5e-4'."
        )
    cores, rest = divmod(int(match.group(2)), generation.counted_per_core)
    per_host = cores if cores in generation.single_host else generation.cores_per_host
    if cores < per_host or rest or cores % per_host:
        step = generation.cores_per_host * generation.counted_per_core
        raise ConfigError(f"`topology` is {name!r}: {match.group(1)} comes in multiples of {step}; pass one of them.")
    return Topology(
        name=name,
        hosts=cores // per_host,
        cores_per_host=per_host,
        bytes_per_core=generation.gib_per_core * GIB,
        placement=generation.placement,
        sparse_cores=generation.sparse_cores,
        cores_per_chip=generation.cores_per_chip,
    )


class Shape(NamedTuple):
    """The shape of a slice that the simulated TPU emulates.

    Attributes:
      hosts: number of hosts.
      cores_per_host: number of cores of each host.
      placement: "sharded" row blocks, or "replicated" whole tables.
      sparse_cores: number of SparseCores of each core; 0 without.
    """

    hosts: int
    cores_per_host: int
    placement: Literal["sharded", "replicated"]
    sparse_cores: int = 0


def shape_of(name: str) -> Shape:
    """Parse the name of a slice, such as "v3-8", or hosts x cores per host, such as "2x4", for sharded tables.

    Raises:
      ConfigError: the name has neither form.
    """
    match = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", name)
    if match:
        return Shape(int(match[1]), int(match[2]), "sharded")
    try:
        topology = named_topology(name)
    except ConfigError as error:
        raise ConfigError(f"{error} The simulated TPU also takes hosts x cores per host, such as '2x4'.") from None
    return Shape(topology.hosts, topology.cores_per_host, topology.placement, topology.sparse_cores)


def row_blocks(rows: int, parts: int) -> list[int]:
    """Compute how many rows each part holds: ``rows // parts``, and one more in the first ``rows % parts``."""
    quotient, rest = divmod(rows, parts)
    return [quotient + (part < rest) for part in range(parts)]


def table_bytes(table: TableConfig, *, rows: int | None = None, padded: bool = False) -> tuple[int, int]:
    """Compute the bytes of the table's values and of all its slots, for all its rows or a given number of them."""
    dim = -(-table.dim // _PADDING) * _PADDING if padded else table.dim
    values = (table.vocabulary_size if rows is None else rows) * dim * _FLOAT_BYTES
    return values, values * len(table.optimizer.slots if table.optimizer else ())


def memory_plan(config: EmbeddingConfig, topology: Topology) -> Json:
    """Plan the memory of the tables on a topology, as a JSON object.

    Returns:
      "tables": rows on each host and bytes on the fullest core, by table; "host_bytes": the total
      of each host; "fullest_core_bytes" of tables and slots and "bytes_per_core" (the budget); "copy_bytes": on a
      slice without embedding hardware, a bound of what a core's program needs for gradients and padded copies of
      tables, else 0; "fits": whether there is room for both; "over_budget": the largest tables, in order, without which
      the tables and slots of the rest would fit.
    """
    sharded = topology.placement == "sharded"
    copies = 1 if sharded else topology.cores_per_host
    tables: dict[str, Json] = {}
    host_bytes = [0] * topology.hosts
    for table in config.tables:
        all_rows = table.vocabulary_size
        blocks = row_blocks(all_rows, topology.hosts) if sharded else [all_rows] * topology.hosts
        core_rows = row_blocks(blocks[0], topology.cores_per_host)[0] if sharded else all_rows
        tables[table.name] = {
            "rows_per_host": blocks,
            "fullest_core_rows": core_rows,
            "fullest_core_bytes": _held_bytes(table, core_rows, sharded=sharded),
        }
        for host, rows in enumerate(blocks):
            host_bytes[host] += copies * _held_bytes(table, rows, sharded=sharded)
    core_bytes = {name: table["fullest_core_bytes"] for name, table in tables.items()}
    over = _over_budget(core_bytes, topology.bytes_per_core)
    copied = 0 if sharded else _copy_bytes(config.tables)
    available = topology.bytes_per_core - (0 if sharded else _RESERVED)
    return {
        **dataclasses.asdict(topology),
        "tables": tables,
        "host_bytes": host_bytes,
        "fullest_core_bytes": sum(core_bytes.values()),
        "copy_bytes": copied,
        "fits": sum(core_bytes.values()) + copied <= available,
        "over_budget": over,
    }


def _held_bytes(table: TableConfig, rows: int, *, sharded: bool) -> int:
    """Compute the bytes of rows and slots."""
    if sharded:
        return sum(table_bytes(table, rows=rows, padded=True))
    slots = len(table.optimizer.slots) if table.optimizer else 0
    slots += isinstance(table.optimizer, SGD)  # Keras' SGD always has a slot for the momentum
    return _whole_bytes(table, rows) * (1 + slots)


def _whole_bytes(table: TableConfig, rows: int) -> int:
    """Compute the bytes of a table's rows in the TPU compiler's layout: 1, 2, 4 or a multiple of 8 columns."""
    dim = 1 << (table.dim - 1).bit_length() if table.dim < _PADDING else -(-table.dim // _PADDING) * _PADDING
    return rows * dim * _FLOAT_BYTES


def _copy_bytes(tables: Sequence[TableConfig]) -> int:
    """Bound the memory that a core without embedding hardware needs beside tables and slots.

    The bound is the largest gradient, one padded copy of every table whose columns are padded, and for optimizers with
    one slot two more of the largest.
    """
    gradients, padded_copies, extra = [0], [], [0]
    for table in tables:
        gradients.append(_whole_bytes(table, table.vocabulary_size))
        if table.dim > _NOT_COPIED and table.dim % _LANES:
            copy = table.vocabulary_size * -(-table.dim // _LANES) * _LANES * _FLOAT_BYTES
            padded_copies.append(copy)
            extra.append(2 * copy if isinstance(table.optimizer, SGD | Adagrad) else 0)
    return max(gradients) + sum(padded_copies) + max(extra)


def _over_budget(core_bytes: Mapping[str, int], budget: int) -> list[str]:
    left, removed = sum(core_bytes.values()), []
    for name in sorted(core_bytes, key=lambda name: (-core_bytes[name], name)):
        if left <= budget:
            break
        removed.append(name)
        left -= core_bytes[name]
    return removed
