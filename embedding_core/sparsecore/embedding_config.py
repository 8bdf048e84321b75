"""Declares what a program for SparseCores is compiled for: how tables are stacked, and its limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from embedding_core.errors import ConfigError, nearest
from embedding_core.schema import Positive, Section

_DEFAULT = 256  # ids, of TensorFlow


class SparseCoreEmbeddingConfig(Section):
    """The settings of TensorFlow's SparseCoreEmbeddingConfig, which 2.16 does not have yet.

    "tensorflow" in the forms of `limits_in_all_forms` has these arguments.

    Attributes:
      disable_table_stacking: whether every table is a stack of its own.
      max_ids_per_chip_per_sample: the buffer of a chip holds this number of ids for each sample of a stack.
      max_ids_per_table: `max_ids_per_partition` by name of the stack; None is 256 for each.
      max_unique_ids_per_table: `max_unique_ids_per_partition` likewise.
      allow_id_dropping: whether ids over a limit are dropped and counted; otherwise they are an error.
    """

    disable_table_stacking: bool = False
    max_ids_per_chip_per_sample: Positive = 64
    max_ids_per_table: Mapping[str, Positive] | None = None
    max_unique_ids_per_table: Mapping[str, Positive] | None = None
    allow_id_dropping: bool = False

    @classmethod
    def of(cls, given: Any) -> SparseCoreEmbeddingConfig:
        """Return a configuration of this project or of TensorFlow as one of this project; None gives the defaults.

        Raises:
          ConfigError (ValueError): it has a setting that would be ignored, or is of another class.
        """
        if given is None or isinstance(given, cls):
            return given or cls()
        try:
            values = dict(vars(given))
        except TypeError:
            raise ConfigError(
                f"`sparse_core_embedding_config` is {given!r}: it must be a SparseCoreEmbeddingConfig or None."
            ) from None
        values.pop("initialize_tables_on_host", None)  # where rows are computed changes no row here
        if not values.pop("enable_fast_table_initialization", False):
            return cls(**{name: _plain(value) for name, value in values.items()})
        raise ConfigError(
            "`enable_fast_table_initialization` is True: it would give all tables of a stack the rows of the first "
            "one's initializer; leave it False."
        )

    def limits_of(self, stacks: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Return `max_ids_per_partition` and `max_unique_ids_per_partition` of each stack.

        Raises:
          ConfigError (ValueError): the limits are of other stacks.
        """
        names = list(stacks)
        ids, unique = (
            _of_stacks(field, given, names)
            for field, given in (
                ("max_ids_per_table", self.max_ids_per_table),
                ("max_unique_ids_per_table", self.max_unique_ids_per_table),
            )
        )
        return {name: (ids[name], unique[name]) for name in names}


def _plain(value: Any) -> Any:
    """Return a setting; limits, which may be scalar tensors, as numbers."""
    return {name: int(limit) for name, limit in value.items()} if isinstance(value, Mapping) else value


def _of_stacks(field: str, given: Mapping[str, int] | None, names: list[str]) -> Mapping[str, int]:
    if given is None:
        return dict.fromkeys(names, _DEFAULT)
    for name in names:
        if name not in given:
            raise ConfigError(
                f"`{field}` has {sorted(given)}, but not the stack {name!r}, whose limit would be a guess: compute the "
                f"limits for these tables, this batch size and this slice; {nearest(name, given)}"
            )
    return given
