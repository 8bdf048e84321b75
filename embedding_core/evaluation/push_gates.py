"""Judges a model before a push: by rules for its eval split and its retrieval, and by the gates that users write."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from embedding_core.errors import ConfigError, EmbeddingError
from embedding_core.evaluation.label_scores import LabelScore, SplitCounts, scored_batches
from embedding_core.evaluation.retrieval_figures import RetrievalFigures
from embedding_core.evaluation.towers import NO_TOWERS
from embedding_core.quality_rules import GATE_METRICS, Rules, Threshold
from embedding_core.tasks import Task, metric_name, retrieval_index
from embedding_core.training.finished_run import RestoredRun
from embedding_core.training.training_inputs import Inputs

_DEFAULT = GATE_METRICS[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """The outcome of one rule.

    Attributes:
      name: name of the figure.
      value: measured value; None if it could not be measured.
      bound: required value, in words.
      met: whether the rule is met.
      reason: sentence that says why the rule is not met; empty if it is met.
    """

    name: str
    value: float | None
    bound: str
    met: bool
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        return dataclasses.asdict(self)


def judge(
    counts: SplitCounts,
    retrieval: RetrievalFigures | str,
    rules: Rules,
    labels: Sequence[LabelScore] = (),
    tasks: Sequence[Task] = (Task(),),
) -> list[Check]:
    """Apply the rules.

    Args:
      counts: counts of the eval split.
      retrieval: figures of the model's retrieval, or why they were not measured.
      rules: rules to apply.
      labels: scores of the model and of a constant, by label.
      tasks: what the model was trained for.

    Returns:
      The outcome of each rule that applies.
    """
    constants = [_beside_constant(score) for score in labels if score.metric not in rules.bounded_metrics]
    recalls = _recalls(retrieval, rules, needs_default=_has_unjudged(counts, rules, labels, tasks))
    return [*_floors(counts, rules, tasks[retrieval_index(tasks)].name), *constants, *recalls]


def _floors(counts: SplitCounts, rules: Rules, retrieval_label: str) -> Iterator[Check]:
    yield _floor("rows of the eval split", counts.rows, rules.min_rows, "min_rows")
    for name, label in counts.labels.items():
        may_lack_negatives = rules.draws_negatives and name == retrieval_label
        where = "" if len(counts.labels) == 1 else f" of {name!r}"
        for value, rows in ((0, label.negatives), (1, label.positives)):
            if rows is not None and (rows or value or not may_lack_negatives):
                what = f"rows of the eval split with label {value}{where}"
                yield _floor(what, rows, rules.min_rows_per_class, "min_rows_per_class")


def _floor(name: str, rows: int, least: int, key: str) -> Check:
    reason = (
        f"{name}: {rows:,}, but `evaluation.{key}` is {least:,}: hold out more rows, or lower it and trust the "
        "figures less."
    )
    return Check(
        name=name, value=rows, bound=f"at least {least:,}", met=rows >= least, reason="" if rows >= least else reason
    )


def _beside_constant(score: LabelScore) -> Check:
    constant = "the most frequent class" if score.metric.endswith("Accuracy") else "the label's mean"
    bound = f"no worse than the {score.constant:.4f} of {constant}"
    reason = (
        f"{score.metric} is {score.model:.4f}: it must be {bound}, which needs no model; train better, or set "
        f"`evaluation.thresholds.{score.metric}` to what you accept."
    )
    met = score.is_reached
    return Check(name=score.metric, value=score.model, bound=bound, met=met, reason="" if met else reason)


def _has_unjudged(counts: SplitCounts, rules: Rules, labels: Sequence[LabelScore], tasks: Sequence[Task]) -> bool:
    """Return whether no AUC judges some label with positives: it lacks negatives, or a softmax trains it."""
    judged = {score.label for score in labels}
    bounded = {task.name for task in tasks if metric_name(tasks, task, "AUC") in rules.bounded_metrics}
    return any(
        label.positives and name not in judged and not (label.negatives and name in bounded)
        for name, label in counts.labels.items()
    )


def _recalls(retrieval: RetrievalFigures | str, rules: Rules, *, needs_default: bool) -> Iterator[Check]:
    bounds = dict(rules.retrieval)
    if needs_default and not bounds and not rules.bounded_elsewhere and retrieval != NO_TOWERS:
        bounds = {_DEFAULT: Threshold(min_over_popularity=0.0)}
    for name, bound in bounds.items():
        yield from _recall(name, retrieval, bound)


def _recall(name: str, retrieval: RetrievalFigures | str, bounds: Threshold) -> Iterator[Check]:
    if isinstance(retrieval, str):
        yield _not_measured(name, retrieval)
        return
    if not retrieval.ranked:
        yield _not_measured(name, _nothing_ranked(retrieval))
        return
    least, over = bounds.min, bounds.min_over_popularity
    value, popularity = retrieval.metrics[name], retrieval.popularity[name]
    if least is not None:
        yield _bound(name, value, least, f"at least {least:g}")
    if over is not None:
        more = f" {'+' if over > 0 else '-'} {abs(over):g}" if over else ""
        yield _bound(name, value, popularity + over, f"at least popularity's {popularity:.4f}{more}")


def _not_measured(name: str, why: str) -> Check:
    return Check(name=name, value=None, bound="any", met=False, reason=f"{name} could not be measured: {why}")


def _nothing_ranked(retrieval: RetrievalFigures) -> str:
    return (
        f"no true candidate of the eval split was ranked, because {retrieval.seen_truths:,} were seen before and are "
        f"left out, and {retrieval.unknown:,} are unknown: hold out other rows, or judge without "
        "`evaluation.exclude_seen`."
    )


def _bound(name: str, value: float, least: float, words: str) -> Check:
    met = value >= least
    remedy = f"train better, or set `evaluation.thresholds.{name}` to what you accept."
    return Check(
        name=name,
        value=value,
        bound=words,
        met=met,
        reason="" if met else f"{name} is {value:.4f}: it must be {words}; {remedy}",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgedModel:
    """What a gate judges: the trained model, the rows of the eval split, and the tables.

    Attributes:
      run: the restored model, with its settings as `run.description`.
      inputs: sources of its inputs, as in training.
      eval_files: TFRecord files of the eval split.
    """

    run: RestoredRun
    inputs: Inputs
    eval_files: Sequence[str]

    @property
    def tables(self) -> Mapping[str, npt.NDArray[np.float32]]:
        """The rows of each table, float32 [rows, dim], by name."""
        return {name: variable.numpy() for name, variable in self.run.engine.embedding_tables.items()}

    def batches(self) -> Iterator[tuple[Any, Mapping[str, npt.NDArray[np.float32]]]]:
        """Yield the eval split in batches: `ids`, `dense`, `label` and `weight`, and the predictions by label's name.

        A label has its values in a column of `label`, float32 [B, labels]; NaN if a row lacks it. Predictions are
        float32 [B, width]: a probability, a number, or the probabilities of the classes.
        """
        yield from scored_batches(self.run, self.inputs, self.eval_files)


def own_checks(gates: Sequence[str], model: JudgedModel) -> list[Check]:
    """Ask each gate, and return the outcomes of its rules; a reason names the gate.

    Args:
      gates: dotted paths of classes with `judge(model: JudgedModel) -> Iterable[Check]`, made without arguments.
      model: what they judge.

    Raises:
      ConfigError: a gate fails, or gives something else than a `Check`. The model is then neither blessed nor refused.
    """
    return [_with_reason(path, check) for path in gates for check in _asked(path, model)]


def _asked(path: str, model: JudgedModel) -> list[Check]:
    module, _, name = path.rpartition(".")
    try:
        checks = list(getattr(importlib.import_module(module), name)().judge(model))
    except EmbeddingError:
        raise
    except Exception as error:
        raise ConfigError(f"gate {path!r} failed with {type(error).__name__}: {error}; correct its code.") from error
    for check in checks:
        if not isinstance(check, Check):
            raise ConfigError(f"gate {path!r} gave {check!r}: it must give `embedding_core.evaluation.Check`.")
    return [_of_python(path, check) for check in checks]


def _of_python(path: str, check: Check) -> Check:
    """Convert what NumPy computed, which JSON cannot hold."""
    try:
        value = check.value if check.value is None or isinstance(check.value, int) else float(check.value)
        return dataclasses.replace(check, value=value, met=bool(check.met))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"gate {path!r} gave {check!r}: `value` must be one number, and `met` a bool.") from error


def _with_reason(path: str, check: Check) -> Check:
    if check.met:
        return check
    reason = check.reason or f"{check.name} is {check.value}: it must be {check.bound}."
    return dataclasses.replace(check, reason=f"{path}: {reason}")
