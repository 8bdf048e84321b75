"""Makes a plan from the data: draws rows, counts vocabularies, trains, compiles, and writes the page."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from components.example_gen.settings import Settings
from embedding_core.config import EmbeddingConfig
from embedding_core.planning.topology import Topology
from embedding_core.tpu_compiler import TpuCompiler
from pipelines.checks.planned_tables import planned_tables
from pipelines.choices.memory import Compiled
from pipelines.choices.plan import Plan, make_plan
from pipelines.choices.plan_page import save_plan
from pipelines.choices.sample import sample_rows
from pipelines.config import PipelineConfig
from pipelines.config.feature_sections import ASSUMED_TOKENS
from pipelines.console.large_imports import collector_paused
from pipelines.console.quiet import load_tensorflow
from pipelines.local.work_dir import file_permissions, plan_lock

if TYPE_CHECKING:
    from pipelines.choices.measured import Measured, Measurement

Say = Callable[[str], None]


class ShortRunOptions(NamedTuple):
    """How many short runs are made, and on what.

    Attributes:
      runs: largest number of runs.
      rows: largest number of rows of a run.
      seeds: number of seeds of each choice.
    """

    runs: int
    rows: int
    seeds: int


class PlanRequest(NamedTuple):
    """What is planned.

    Attributes:
      config: the configuration.
      settings: ExampleGen's settings, made from it.
      file: its YAML file.
      overrides: the `--set` of the command.
      slices: the slices.
      budget: bytes of a core that may be used; None is all of a core's memory.
      table_configs: see `planned_tables`.
      assumed_tokens: see `planned_tables`; None counts the vocabularies if rows are read anyway.
      folder: folder of the page and of kept results.
    """

    config: PipelineConfig
    settings: Settings
    file: Path
    overrides: Sequence[str]
    slices: Sequence[Topology]
    budget: int | None
    table_configs: Path | None
    assumed_tokens: int | None
    folder: str


def plan_slices(request: PlanRequest, short: ShortRunOptions | None, compiler: TpuCompiler | None, say: Say) -> Plan:
    """Make a plan and write `plan.html` and `plan.json`; what a previous call did is not repeated.

    Args:
      request: what is planned.
      short: the short runs; None compares the memory alone.
      compiler: the TPU compiler; None leaves the memory to the plan.
      say: shows a line to the user.

    Raises:
      EmbeddingError: the input of the user is wrong, another command uses the folder, or the configured model cannot
        be trained.
    """
    config = request.config
    with file_permissions(config), plan_lock(request.folder):
        if short is not None or compiler is not None:
            with collector_paused():
                load_tensorflow()
        trained = _train(request, short, say) if short is not None else None
        tables, sizes = _planned(request) if trained is None else (trained.tables, trained.sizes)
        plan = make_plan(
            config,
            tables,
            request.slices,
            sizes=sizes,
            file=request.file,
            overrides=request.overrides,
            budget=request.budget,
            measured=None if trained is None else trained.measured,
            rows="" if trained is None else trained.rows,
            measure_more=None if trained is None else trained.measurement.measure_more,
            compiled=None if compiler is None else Compiled(config, tables, sizes, compiler, request.folder),
            say=say,
        )
        for path in save_plan(plan, request.folder):
            say(f"plan: {path}")
    return plan


def _planned(request: PlanRequest) -> tuple[EmbeddingConfig, str]:
    return planned_tables(request.config, request.table_configs, request.assumed_tokens or ASSUMED_TOKENS)


class _Trained(NamedTuple):
    tables: EmbeddingConfig
    sizes: str
    measurement: Measurement
    measured: Measured
    rows: str


def _train(request: PlanRequest, short: ShortRunOptions, say: Say) -> _Trained:
    """Draw the rows, plan the tables, and make the short runs."""
    with collector_paused():
        from pipelines.choices.measured import Measurement  # they import TFX
        from pipelines.choices.short_runs import ShortRuns

    config = request.config
    sample = sample_rows(config, request.settings, short.rows, os.path.join(request.folder, "rows"), say)
    rows = f"all {sample.rows:,} rows" if sample.whole else f"{sample.rows:,} of {sample.of:,} rows, drawn at random"
    short_runs = ShortRuns(config, sample, request.folder)
    if request.table_configs is None and request.assumed_tokens is None:
        say(f"counting the vocabularies in {sample.of:,} rows; `--table-configs` and `--assume` spare it")
        tables, sizes = short_runs.counted_tables(), f"vocabularies counted in all {sample.of:,} rows"
    else:
        tables, sizes = _planned(request)
    say(f"short runs: at most {short.runs}, {short.seeds} seeds for each choice, on {rows}")
    seeds = range(config.seed, config.seed + short.seeds)
    measurement = Measurement(short_runs, tables, seeds=seeds, most=short.runs, say=say)
    measured = measurement.measure(config.training.batch_size)
    say(f"short runs: {len(measured.runs)} in {measured.seconds:,.0f} s, {measured.kept} of them in previous commands")
    return _Trained(tables, sizes, measurement, measured, rows)
