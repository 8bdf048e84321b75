"""Makes the plan of a configuration: for each slice its choices, their memory and loss, and how to take one over."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.planning.topology import Topology, table_bytes
from embedding_core.schema import Json
from pipelines.choices.choice import (
    AS_CONFIGURED,
    Choice,
    chain,
    dims_of,
    doubled,
    larger_batch,
    singles,
    smallest,
    thinned,
)
from pipelines.choices.losses import loss_of
from pipelines.choices.memory import Compiled, Need, need_of, pareto_front, size_words, what_would_fit
from pipelines.config import PipelineConfig

if TYPE_CHECKING:
    from pipelines.choices.measured import Measured  # it imports TFX

_SHOWN_WITHOUT_RUNS = 4
_NOTED = 0.01  # share of the budget from which temporary bytes are worth a note
_FLOAT16_TOLERANCE = 1e-3  # float16 rounds rows to 11 bits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Offer:
    """A choice on a slice.

    Attributes:
      choice: what differs from the configuration, in words.
      settings: the texts for `--set` that take it over.
      command: the command that runs it.
      batch_size: rows of a global batch.
      table_bytes: bytes of tables and slots on the fullest core, by the plan.
      planned_bytes: with gradients and padded copies of the tables, on a slice whose program has them.
      compiler: what the TPU compiler says, see `Compiled.of`; None if it was not asked.
      served_bytes: bytes of the served rows, in the type of `push.rows_dtype`.
      stacks: number of stacks of tables on SparseCores, or None.
      loss: how much worse its short runs are, with `noise` and `source`; None if it is unknown.
      noise: half width of the 95% confidence interval of the difference.
      source: "measured", "estimated" or "unknown".
      fits: whether it fits in the budget.
      front: whether no other choice has fewer bytes and no larger loss; by the compiler's bytes, if it was asked.
    """

    choice: str
    settings: Sequence[str]
    command: str
    batch_size: int
    table_bytes: int
    planned_bytes: int
    compiler: Json | None
    served_bytes: int
    stacks: int | None
    loss: float | None
    noise: float | None
    source: str
    fits: bool
    front: bool

    @property
    def core_bytes(self) -> int:
        """Bytes on the fullest core: by the compiler if it compiled the program, else by the plan."""
        return (self.compiler or {}).get("core_bytes") or self.planned_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlicePlan:
    """The choices on one slice.

    Attributes:
      name: name of the slice.
      chips: number of chips.
      cores: number of devices with separate memory.
      budget: bytes of a core that may be used.
      placement: "sharded" or "replicated": the slice decides it, and no setting.
      offers: the choices, the one as configured first.
      best: position of the recommended choice: of those that fit and were trained, the one that loses least, with the
        fewest bytes; if none of them was trained, the first that fits; None if none fits.
      untrained: position of a choice that should lose less, or as much with fewer bytes, and was not trained; or None.
      remedy: what would fit, if none does.
    """

    name: str
    chips: int
    cores: int
    budget: int
    placement: str
    offers: Sequence[Offer]
    best: int | None
    untrained: int | None
    remedy: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan, as `plan.json` holds it.

    Attributes:
      name: name of the pipeline.
      sizes: source of the numbers of rows.
      tables: rows, possible dims, optimizer and bytes of each table, the largest first.
      slices: the plan of each slice.
      figure: figure that the losses are of: "AUC", "loss", or "" without short runs.
      deviation: standard deviation of the figure over the seeds; None without short runs.
      rows: in words, what the short runs were trained on.
      runs: the short runs.
      seconds: time of the short runs.
      float16: the texts for `--set` that halve the served rows; empty if they are not float32.
      notes: remarks for the reader.
    """

    name: str
    sizes: str
    tables: Sequence[Json]
    slices: Sequence[SlicePlan]
    figure: str = ""
    deviation: float | None = None
    rows: str = ""
    runs: Sequence[Json] = ()
    seconds: float = 0.0
    float16: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def difference(self) -> str:
        """Name of the difference that is shown for each choice."""
        return f"loss of {self.figure}" if self.figure == "AUC" else "increase of the loss" if self.figure else "loss"


def make_plan(
    config: PipelineConfig,
    tables: EmbeddingConfig,
    slices: Sequence[Topology],
    *,
    sizes: str,
    file: Path,
    overrides: Sequence[str] = (),
    budget: int | None = None,
    measured: Measured | None = None,
    rows: str = "",
    measure_more: Callable[[Sequence[Choice]], Measured | None] | None = None,
    compiled: Compiled | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Plan the choices of a configuration on slices.

    A choice is recommended because short runs measured its loss. If the best one was not trained, it is trained, and
    the slices are planned again, until the best ones were trained or no runs are left.

    Args:
      config: the configuration.
      tables: the tables that it would train.
      slices: the slices.
      sizes: source of the numbers of rows.
      file: the YAML file, for commands.
      overrides: the `--set` of the plan's own command.
      budget: bytes of a core that may be used; None is all of a core's memory.
      measured: the short runs; None without any.
      rows: in words, what the short runs were trained on.
      measure_more: trains choices and returns the short runs with theirs; None if nothing more was trained.
      compiled: compiles programs; None leaves the memory to the plan.
      say: shows a line to the user.
    """
    budgets = [one.bytes_per_core if budget is None else min(budget, one.bytes_per_core) for one in slices]
    planner = _Planner(config, tables, file, overrides, measured, compiled, say)
    planned = list(map(planner.plan, slices, budgets))
    while measure_more is not None and (wanted := planner.untrained(planned)):
        more = measure_more(wanted)
        if more is None:
            break
        measured = more
        planner = _Planner(config, tables, file, overrides, measured, compiled, say)
        planned = list(map(planner.plan, slices, budgets))
    losses = None if measured is None else measured.losses
    return Plan(
        name=config.name,
        sizes=sizes,
        tables=sorted(map(_table, tables.tables), key=lambda one: -one["bytes"]),
        slices=planned,
        figure="" if measured is None else measured.figure,
        deviation=None if losses is None else losses.deviation,
        rows=rows,
        runs=[] if measured is None else [dataclasses.asdict(one) for one in measured.runs],
        seconds=0.0 if measured is None else measured.seconds,
        float16=_float16(config),
        notes=[note for one in planned for note in _compiler_notes(one)],
    )


def _float16(config: PipelineConfig) -> list[str]:
    if config.push.rows_dtype != "float32":
        return []
    tolerance = [] if config.push.tolerance >= _FLOAT16_TOLERANCE else [f"push.tolerance={_FLOAT16_TOLERANCE:g}"]
    return ["push.rows_dtype=float16", *tolerance]


def _table(table: TableConfig) -> Json:
    return {
        "table": table.name,
        "rows": table.vocabulary_size,
        "dims": list(dims_of(table)),
        "optimizer": type(table.optimizer).__name__,
        "bytes": sum(table_bytes(table, padded=True)),
    }


def _choices(config: PipelineConfig, tables: EmbeddingConfig, measured: Measured | None) -> list[Choice]:
    """List the choices to compare: as configured, combinations of dims, single tables, a larger batch, trained ones."""
    steps = chain(tables, loss_of(None if measured is None else measured.losses))
    batch = larger_batch(config.training.batch_size)
    if measured is None:
        return [AS_CONFIGURED, *thinned(steps, _SHOWN_WITHOUT_RUNS), batch]
    dims = dict.fromkeys([AS_CONFIGURED, *steps, smallest(tables), *singles(tables), doubled(tables)])
    batches = [one._replace(batch_size=batch.batch_size) for one in dims]
    return list(dict.fromkeys([*dims, *batches, *measured.losses.measured]))


class _Planner:
    """Plans slices, one after the other."""

    def __init__(
        self,
        config: PipelineConfig,
        tables: EmbeddingConfig,
        file: Path,
        overrides: Sequence[str],
        measured: Measured | None,
        compiled: Compiled | None,
        say: Callable[[str], None],
    ) -> None:
        self._config, self._tables, self._compiled, self._say = config, tables, compiled, say
        self._choices = _choices(config, tables, measured)
        self._losses = [None if measured is None else measured.losses.of(one) for one in self._choices]
        self._failed = frozenset() if measured is None else measured.losses.failed
        self._command = ["tfx-embeddings", "run", str(file), *_as_options(overrides)]

    def plan(self, slice_: Topology, budget: int) -> SlicePlan:
        """Plan one slice."""
        batch = self._config.training.batch_size
        dtype = self._config.push.rows_dtype
        needs = [need_of(one, self._tables, slice_, batch, dtype) for one in self._choices]
        bytes_of = {at: need.core_bytes for at, need in enumerate(needs)}
        front = self._front(bytes_of)
        trained = self._front({at: count for at, count in bytes_of.items() if self._is_measured(at)})
        compiled = {at: self._compile(at, slice_, needs[at]) for at in self._to_compile(front, trained)}
        by_compiler = {at: result["core_bytes"] for at, result in compiled.items() if result["core_bytes"]}
        front = self._front(by_compiler) if by_compiler else front
        offers = [
            self._offer(at, slice_, needs[at], compiled.get(at), budget, front=at in front) for at in range(len(needs))
        ]
        best, untrained = self._best(offers)
        return SlicePlan(
            name=slice_.name,
            chips=slice_.chips,
            cores=slice_.cores,
            budget=budget,
            placement=slice_.placement,
            offers=offers,
            best=best,
            untrained=untrained,
            remedy="" if best is not None else what_would_fit(self._tables, slice_, budget),
        )

    def untrained(self, planned: Iterable[SlicePlan]) -> list[Choice]:
        """Return the choices that the plans would recommend if they were trained."""
        return list(dict.fromkeys(self._choices[one.untrained] for one in planned if one.untrained is not None))

    def _is_measured(self, at: int) -> bool:
        loss = self._losses[at]
        return loss is not None and loss.source == "measured"

    def _front(self, bytes_of: Mapping[int, int]) -> set[int]:
        """Return the positions of the choices on the front, of those whose bytes are given."""
        known = [at for at in bytes_of if self._losses[at] is not None]
        points = [(bytes_of[at], self._counted(at), len(self._choices[at].parts)) for at in known]
        return {known[position] for position in pareto_front(points)}

    def _counted(self, at: int) -> float:
        loss = self._losses[at]
        return 0.0 if loss is None else loss.counted

    def _to_compile(self, front: set[int], trained: set[int]) -> list[int]:
        """Return the positions of the choices that the compiler is asked for: without losses all of them.

        Args:
          front: the front.
          trained: the front of the choices that were trained.
        """
        if self._compiled is None:
            return []
        batch = self._choices.index(larger_batch(self._config.training.batch_size))
        return sorted({0, batch, *front, *trained}) if front else list(range(len(self._choices)))

    def _compile(self, at: int, slice_: Topology, need: Need) -> Json:
        compiled = cast("Compiled", self._compiled)
        result = compiled.of(self._choices[at], slice_, need.batch_size)
        self._say(
            f"TPU compiler, {slice_.name}: {self._choices[at].words}: {result['stage']}, {result['seconds']:.1f} s"
        )
        return result

    def _offer(
        self, at: int, slice_: Topology, need: Need, compiled: Json | None, budget: int, *, front: bool
    ) -> Offer:
        choice, loss = self._choices[at], self._losses[at]
        settings = self._settings(choice, slice_, need)
        used = (compiled or {}).get("core_bytes") or need.core_bytes
        refused = compiled is not None and compiled["stage"] in ("refused", "stopped")
        return Offer(
            choice=choice.words,
            settings=settings,
            command=shlex.join([*self._command, *_as_options(settings)]),
            batch_size=need.batch_size,
            table_bytes=need.table_bytes,
            planned_bytes=need.core_bytes,
            compiler=compiled,
            served_bytes=need.served_bytes,
            stacks=need.stacks,
            loss=None if loss is None else loss.value,
            noise=None if loss is None else loss.noise,
            source="unknown" if loss is None else loss.source,
            fits=used <= budget and not refused,
            front=front,
        )

    def _settings(self, choice: Choice, slice_: Topology, need: Need) -> list[str]:
        """Return the texts for `--set`; a batch that the slice cannot divide is replaced by the next larger one."""
        changed = need.batch_size != self._config.training.batch_size
        one = choice._replace(batch_size=need.batch_size if changed else None)
        strategy = (
            ["training.strategy=auto"] if self._config.training.strategy in ("cpu", "gpu", "parameter_server") else []
        )
        return [*strategy, f"training.topology={slice_.name}", *one.settings]

    def _best(self, offers: Sequence[Offer]) -> tuple[int | None, int | None]:
        """Return the position of the recommended offer, and that of a better one that was not trained.

        Along the front, a smaller loss takes more bytes, so that no other offer with a known loss is better.
        """
        fitting = [at for at, offer in enumerate(offers) if offer.fits]
        if not fitting or not any(self._losses):
            return (fitting[0] if fitting else None), None
        known = [at for at in fitting if self._losses[at] is not None]
        on_front = [at for at in known if offers[at].front]
        unknown = [at for at in fitting if self._choices[at] not in self._failed] or fitting
        winner = min(on_front or known or unknown[:1], key=lambda at: self._rank(at, offers[at]))
        if self._is_measured(winner):
            return winner, None
        trained = [at for at in known if self._is_measured(at)]
        trained = [at for at in trained if offers[at].compiler is not None] or trained
        return min(trained, key=lambda at: self._rank(at, offers[at]), default=winner), winner

    def _rank(self, at: int, offer: Offer) -> tuple[float, int, int]:
        """Return what the better choice has less of: loss, bytes, differences."""
        return self._counted(at), offer.core_bytes, len(self._choices[at].parts)


def _as_options(settings: Sequence[str]) -> list[str]:
    return [part for one in settings for part in ("--set", one)]


def _compiler_notes(planned: SlicePlan) -> list[str]:
    """Note how much more than tables and slots the compiler needs, if the tables are in its program and it matters."""
    first = planned.offers[0].compiler
    if first is None or not first["tables_inside"] or first["temporary_bytes"] < _NOTED * planned.budget:
        return []
    note = (
        f"{planned.name}, as configured: beside tables and slots of {size_words(first['table_bytes'])}, the compiler "
        f"needs {size_words(first['temporary_bytes'])} of temporary values (the plan: at most "
        f"{size_words(planned.offers[0].planned_bytes - first['table_bytes'])}). On a slice without embedding hardware "
        "it copies tables into a layout with padded columns, such as 64 to 128."
    )
    return [note]
