"""Defines the figures of a run that `report.json`, the HTML page and the screen show."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

METRICS = ("AUC", "log loss")
"""The metrics that compare model and baselines for a binary label; the first decides."""
ERRORS = ("RMSE", "MAE")
"""The metrics that compare model and baselines for a label that is a number; the first decides."""
CLASS_METRICS = ("accuracy", "cross-entropy")
"""The metrics that compare model and baselines for a multiclass label; the first decides."""
HIGHER_IS_BETTER = (METRICS[0], CLASS_METRICS[0])

THIS_MODEL = "this model"
"""The scorer of `quality` that is not a baseline; with several labels, after the name of a label."""

Figures: TypeAlias = Mapping[str, Any]
"""Numbers, texts, lists and mappings by name, as JSON holds them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a run did: the exit code, the screen and the report say it from here. A run that fails raises instead.

    Attributes:
      pushed: whether a version of the run's model is served; if not, the model was refused.
      from_cache: whether a previous run had pushed or refused the model already.
      version: the version, with the name of its update if one was pushed; "" if the model was refused.
      destination: folder of the version.
      reason: why the model was refused: a sentence for each gate, and for each threshold that was missed.
      form: the form of the push, if an optional room adds forms to that of whole versions.
      full_push: why a whole version was pushed although it has another form.
    """

    pushed: bool
    from_cache: bool = False
    version: str = ""
    destination: str = ""
    reason: str = ""
    form: str = ""
    full_push: str = ""

    @property
    def pushed_as(self) -> str:
        """The version that was pushed, in words; with its form and why, if the model has several."""
        why = f" ({self.full_push.removesuffix('.')})" if self.full_push else ""
        return f"version {self.version}" + (f", a {self.form}{why}," if self.form else "")

    @property
    def outcome(self) -> str:
        """One sentence for the screen."""
        if not self.pushed:
            return f"nothing was pushed: {self.reason}"
        if self.from_cache:
            return f"version {self.version} is already served; nothing new was trained or pushed: {self.destination}"
        return f"pushed {self.pushed_as} to {self.destination}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The figures of one run, as `report.json` holds them.

    Attributes:
      name: name of the pipeline.
      finished: local time at which the run ended, ISO.
      seconds: wall time of all nodes.
      seconds_with_cache: `seconds`, with the time that cached outputs once took instead of the time of a cache hit.
      nodes: per node its name, state, seconds, execution id, and `made_in`: the seconds that its outputs once took.
      push: what the run did.
      query: lines of Python that send the pushed version a request; "" if the model was refused.
      metric_names: the metrics of `quality`.
      quality: per scorer (the model first, then the baselines) its metrics on the eval split.
      eval_rows: number of rows of the eval split that `quality` was measured on.
      eval_digest: digest of what chose the rows of the eval split and their labels; "" in reports of previous releases.
      quality_note: remarks on `quality` for its reader.
      quality_warnings: a sentence for each baseline that is better than the model.
      evaluation: per metric its value over all rows, bound and outcome ("met", "missed", "no bound"), and
        `nothing_left_out` if true candidates were left out of its rankings: the value with all candidates.
      slices: per slice its name and metrics.
      retrieval: metrics at K of the model and of popularity, and their queries; None if it was not measured.
      retrieval_note: how the queries were chosen, or why `retrieval` was not measured.
      gates: what gates of optional rooms measured, by node, as the files beside their blessings have it.
      health: what TableHealth measured: `action`, `tables` and `findings`; None if it is switched off.
      configuration: every setting of the run, defaults included.
      changed: the settings that `--set` changed, as dotted keys.
      curves: per curve ("loss", "auc", and the figures of the model's module) and series its (step, value) points;
        "recall" has (K, Recall@K) points.
      training_note: steps, rows and rate in words.
      chosen_by_early_stopping: whether early stopping chose the step that is exported.
      parity: per comparison of training with serving its name, largest and mean difference, tolerance and rows.
      tables: per table its name, rows, dim, combiner, optimizer, bytes and features; the largest first.
      vocabularies: per vocabulary its size, distinct tokens, coverage, digest, most frequent tokens, and how it
        extends a previous one (or None).
      drift: per feature the shares of rows and tokens that the base vocabulary does not have; empty without a base.
      further: figures of optional rooms, by name.
      labels: per label its rows in the eval split, and if it is binary the share of label 1 in both splits.
      columns: per raw column the share of missing values by split, and whether it is constant.
      features: per categorical feature the shares of empty rows and of unknown tokens by split.
      data: rows read, kept and set aside, in words.
      warm_start: what the model started from: `remap.json` of the CheckpointLoader, the `step` of the previous
        checkpoint, and under `dense` what was kept of the dense part, its optimizer and ranges; None for a cold start.
      notes: sentences that name the previous run from which this run started, and the reason.
      profile: per stage of the run what it used, as `pipelines.local.resource_use.StageUse` has it; empty without
        `--profile`.
    """

    name: str
    finished: str
    seconds: float
    seconds_with_cache: float = 0.0
    nodes: Sequence[Figures]
    push: RunResult
    query: str = ""
    metric_names: Sequence[str] = METRICS
    quality: Sequence[Figures]
    eval_rows: int
    eval_digest: str = ""
    quality_note: str
    quality_warnings: Sequence[str] = ()
    evaluation: Sequence[Figures] = ()
    slices: Sequence[Figures] = ()
    retrieval: Figures | None = None
    retrieval_note: str = ""
    gates: Mapping[str, Figures] = dataclasses.field(default_factory=dict)
    health: Figures | None = None
    configuration: Figures = dataclasses.field(default_factory=dict)
    changed: Sequence[str] = ()
    curves: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]
    training_note: str
    chosen_by_early_stopping: bool = False
    parity: Sequence[Figures]
    tables: Sequence[Figures]
    vocabularies: Sequence[Figures]
    drift: Sequence[Figures] = ()
    further: Mapping[str, Figures] = dataclasses.field(default_factory=dict)
    labels: Sequence[Figures] = ()
    columns: Sequence[Figures] = ()
    features: Sequence[Figures] = ()
    data: Figures
    warm_start: Figures | None = None
    notes: Sequence[str] = ()
    profile: Sequence[Figures] = ()

    @property
    def cached(self) -> int:
        """Number of nodes that came from the cache."""
        return sum(node["state"] == "cached" for node in self.nodes)

    @property
    def has_repeats(self) -> bool:
        """Whether true candidates were left out of rankings because they were seen."""
        return any("nothing_left_out" in row for row in self.evaluation)

    @property
    def took(self) -> str:
        """Time of the run in words."""
        if not self.cached:
            return f"{self.seconds:.1f} s"
        return (
            f"{self.seconds:.1f} s with {self.cached} of {len(self.nodes)} nodes from the cache; "
            f"{self.seconds_with_cache:.1f} s without"
        )


# Describes what happened to one node in one run.

State: TypeAlias = Literal["running", "executed", "cached", "skipped", "failed", "damaged"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeRun:
    """One node of one run.

    Attributes:
      node: id of the node.
      index, count: its position among the nodes of the pipeline, from 1, and their number.
      state: what happened to it; "damaged" if it did not run because one of its inputs is damaged.
      seconds: wall time that it took; 0 while it runs.
      execution: id of its execution in ML Metadata, or None if it has none.
    """

    node: str
    index: int
    count: int
    state: State
    seconds: float = 0.0
    execution: int | None = None


# Flattens nested figures and settings to dotted keys.


def flatten(value: Any, key: str = "", *, with_lists: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield every value with its dotted key; empty mappings count as values.

    Args:
      value: a mapping, or a value in one.
      key: the key of the value; "" for the whole mapping.
      with_lists: whether the entries of a list of mappings get keys too, made of their names; else lists are values.
    """
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from flatten(item, f"{key}.{name}" if key else str(name), with_lists=with_lists)
    elif with_lists and isinstance(value, list) and value and all(isinstance(entry, Mapping) for entry in value):
        names = [_name(item, index) for index, item in enumerate(value)]
        for index, item in enumerate(value):
            name = f"{names[index]}.{index}" if names[index] in names[:index] else names[index]
            yield from flatten(item, f"{key}.{name}", with_lists=True)
    else:
        yield key, value


def _name(item: Figures, index: int) -> str:
    """Return the name of an entry of a list: its first text, if it has one."""
    return next((value for value in item.values() if isinstance(value, str)), str(index))
