"""Lists the choices of a plan: other dims of tables, and a larger batch, each made of settings that exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.planning.topology import table_bytes

_STEP = 8  # a TPU pads rows to 8 floats: a dim between two multiples takes the memory of the larger one
_BATCH_FACTOR = 4
_LARGEST = 128  # columns of a TPU's vector register


class Choice(NamedTuple):
    """What differs from the configuration.

    Attributes:
      dims: (table, dim) of each table whose dim differs, in the order of the tables.
      batch_size: rows of a global batch; None is `training.batch_size`.
    """

    dims: tuple[tuple[str, int], ...] = ()
    batch_size: int | None = None

    @property
    def words(self) -> str:
        """The choice in words."""
        by_dim: dict[int, list[str]] = {}
        for table, dim in self.dims:
            by_dim.setdefault(dim, []).append(table)
        parts = [f"dim {dim} of {', '.join(names)}" for dim, names in sorted(by_dim.items())]
        parts = ([] if self.batch_size is None else [f"batch {self.batch_size:,}"]) + parts
        return "; ".join(parts) or "as configured"

    @property
    def settings(self) -> list[str]:
        """The choice as texts for `--set`."""
        parts = [f"tables.{table}.dim={dim}" for table, dim in self.dims]
        return parts + ([] if self.batch_size is None else [f"training.batch_size={self.batch_size}"])

    @property
    def parts(self) -> tuple[Choice, ...]:
        """The choices with one of the differences each."""
        dims = tuple(Choice((one,)) for one in self.dims)
        return dims if self.batch_size is None else (*dims, Choice(batch_size=self.batch_size))

    def applied_to(self, tables: EmbeddingConfig) -> EmbeddingConfig:
        """Return the tables with the dims of the choice."""
        dims = dict(self.dims)
        return tables.replace(
            tables=tuple(one.replace(dim=dims[one.name]) if one.name in dims else one for one in tables.tables)
        )


AS_CONFIGURED = Choice()


def larger_batch(batch_size: int) -> Choice:
    """Return the choice of a larger batch."""
    return Choice(batch_size=_BATCH_FACTOR * batch_size)


def doubled(tables: EmbeddingConfig) -> Choice:
    """Return the choice of twice the dim of every table, at most 128."""
    larger = {table.name: min(_LARGEST, 2 * table.dim) for table in tables.tables if _can_change(table)}
    return Choice(tuple((one.name, larger[one.name]) for one in tables.tables if larger.get(one.name, 0) > one.dim))


def _can_change(table: TableConfig) -> bool:
    """Return whether `--set` can name the table: it takes a dot for the end of a key."""
    return "." not in table.name


def dims_of(table: TableConfig) -> tuple[int, ...]:
    """List the dim of a table, and halves of it as multiples of 8 down to 8; its dim alone if it cannot change."""
    dims = [table.dim]
    while dims[-1] > _STEP and _can_change(table):
        dims.append(_STEP * -(-dims[-1] // (2 * _STEP)))
    return tuple(dims)


def smallest(tables: EmbeddingConfig) -> Choice:
    """Return the choice of the smallest dim of every table."""
    return _choice(tables, {table.name: len(dims_of(table)) - 1 for table in tables.tables})


def singles(tables: EmbeddingConfig) -> list[Choice]:
    """Return, for each table with a smaller dim, its smallest dim alone; those that save the most bytes come first."""
    ends = {table.name: Choice(((table.name, dims_of(table)[-1]),)) for table in tables.tables if dims_of(table)[1:]}
    return sorted(ends.values(), key=lambda one: total_bytes(one.applied_to(tables)))


def total_bytes(tables: EmbeddingConfig) -> int:
    """Add up the bytes of all rows and slots, padded as on a TPU."""
    return sum(sum(table_bytes(table, padded=True)) for table in tables.tables)


def chain(tables: EmbeddingConfig, loss_of: Callable[[Choice], float | None]) -> list[Choice]:
    """List choices from the configured dims to the smallest: each step makes one table smaller, the cheapest first.

    Args:
      tables: the configured tables.
      loss_of: the loss of a choice of one dim; None if it is unknown, which leaves the table as it is.

    Returns:
      The choices, the largest first, without the configured one. A step is cheaper if it loses less for each byte that
      it saves; among equals, the step that saves the most bytes comes first.
    """
    by_name = {table.name: table for table in tables.tables}
    level = dict.fromkeys(by_name, 0)
    found = []
    while steps := list(_steps(by_name, level, loss_of)):
        _, _, name = min(steps)
        level[name] += 1
        found.append(_choice(tables, level))
    return found


def _steps(
    tables: Mapping[str, TableConfig], level: Mapping[str, int], loss_of: Callable[[Choice], float | None]
) -> Iterable[tuple[float, int, str]]:
    """Yield loss per byte, minus the bytes that are saved, and the table, for each table that can be smaller."""
    for name, table in tables.items():
        dims = dims_of(table)
        if level[name] + 1 == len(dims):
            continue
        now, smaller = (dims[level[name] + more] for more in (0, 1))
        before = loss_of(Choice(((name, now),))) if level[name] else 0.0
        after = loss_of(Choice(((name, smaller),)))
        if before is not None and after is not None:
            saved = sum(table_bytes(table.replace(dim=now), padded=True)) - sum(
                table_bytes(table.replace(dim=smaller), padded=True)
            )
            yield max(0.0, after - before) / saved, -saved, name


def _choice(tables: EmbeddingConfig, level: Mapping[str, int]) -> Choice:
    """Return the choice with the dim at the given position of each table's list."""
    return Choice(
        tuple((table.name, dims_of(table)[level[table.name]]) for table in tables.tables if level[table.name])
    )


def thinned(choices: Sequence[Choice], count: int) -> list[Choice]:
    """Return at most `count` of the choices, evenly spread, the last one among them."""
    if count >= len(choices):
        return list(choices)
    return [choices[round((at + 1) * len(choices) / count) - 1] for at in range(count)]
