"""Says what decided about a model: its scores beside the baselines', the verdict, and whether its loss rose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from embedding_core.quality_rules import NOTHING_LEFT_OUT
from pipelines.report.run_report import HIGHER_IS_BETTER, THIS_MODEL, Figures, Report

FLAT = 0.005
"""Smallest relative change of a loss that counts as a change."""
STOPPING = "`training.early_stopping`"
LESS_OVERFITTING = "a lower learning rate, `training.embedding_l2`, or smaller tables"

Scores = Mapping[str, Mapping[str, float | None]]


def comparison(report: Report) -> tuple[list[str], Scores]:
    """Return the metrics that compare the model with the baselines, and the scores by scorer, the model's first.

    A retrieval model has the metrics of its rankings first; a metric that no scorer has is left out.
    """
    scores = {row["scorer"]: dict(row["metrics"]) for row in report.quality}
    retrieval: Figures = report.retrieval or {}
    label = _ranked_label(report, [_label(scorer) for scorer in scores if scorer.endswith(THIS_MODEL)])
    popularity = f"popularity of {retrieval.get('feature')}"
    for scorer, key in (
        (THIS_MODEL, "metrics"),
        (popularity, "popularity"),
        (THIS_MODEL + NOTHING_LEFT_OUT, "nothing_left_out"),
        (popularity + NOTHING_LEFT_OUT, "popularity_nothing_left_out"),
    ):
        if retrieval.get(key):
            scores.setdefault(label + scorer, {}).update(retrieval[key])
    names = dict.fromkeys([*retrieval.get("metrics", ()), *report.metric_names])
    return [name for name in names if any(row.get(name) is not None for row in scores.values())], scores


def verdict(report: Report) -> str:
    """Say in one sentence what happened to the model, how it compares with the best baseline, and its bounds."""
    push = report.push
    outcome = f"Pushed {push.pushed_as.removesuffix(',')}" if push.pushed else "Refused"
    if push.pushed and push.from_cache:
        outcome = f"Version {push.version} is already served, and nothing new was trained or pushed"
    bounds = [row for row in report.evaluation if row["bound"]]
    missed = [f"{row['metric']} ({row['bound']})" for row in bounds if row["outcome"] == "missed"]
    judged = "every bound is met" if bounds else "no bound was set"
    if not push.pushed and not missed:  # by another gate
        outcome, judged = "Refused for the reason below", ""
    if missed:
        judged = f"missed {len(missed)} of {len(bounds)} bounds: {', '.join(missed)}"
    return f"{outcome}: {'; '.join(filter(None, [headline(report), judged]))}."


def headline(report: Report) -> str:
    """Say what the main metric of each label is, beside that of its best baseline, in one line."""
    names, scores = comparison(report)
    clauses = []
    for label in [_label(scorer) for scorer in scores if scorer.endswith(THIS_MODEL)]:
        of_label = {scorer.removeprefix(label): row for scorer, row in scores.items() if scorer.startswith(label)}
        model = of_label.pop(THIS_MODEL)
        known = {name: value for name in [*names, *model] if (value := model.get(name)) is not None}
        if not known:
            clauses.append(f"{label}{next(iter(model))} cannot be computed")
            continue
        metric, value = next(iter(known.items()))
        values = {scorer: row.get(metric) for scorer, row in of_label.items() if not scorer.endswith(NOTHING_LEFT_OUT)}
        clauses.append(label + _compared(metric, value, values))
    return "; ".join(clauses)


def _compared(metric: str, value: float, baselines: Mapping[str, float | None]) -> str:
    """Write a metric of the model beside that of the best baseline."""
    known = {scorer: other for scorer, other in baselines.items() if other is not None}
    if not known:
        return f"{metric} {figure_text(value)}"
    is_higher_better = metric in HIGHER_IS_BETTER or "@" in metric
    best = (max if is_higher_better else min)(known, key=lambda scorer: known[scorer])
    shown, other = figure_text(value), figure_text(known[best])
    word = "better than" if (value > known[best]) == is_higher_better else "worse than"
    return f"{metric} {shown}, {'equal to' if shown == other else word} the {other} of the {best}"


def _label(scorer: str) -> str:
    """Return the part of a scorer's name before that of the scorer itself: empty, or "<label>: "."""
    return scorer.removesuffix(THIS_MODEL) if scorer.endswith(THIS_MODEL) else ""


def _ranked_label(report: Report, labels: Sequence[str]) -> str:
    """Return the label whose rankings `retrieval` has, as `embedding_core.tasks.retrieval_index` chooses it."""
    kinds = {f"{name}: ": label["kind"] for name, label in (report.configuration.get("labels") or {}).items()}
    return next((label for label in labels if kinds.get(label) == "positive"), next(iter(labels), ""))


def rise(points: Sequence[tuple[float, float]]) -> str:
    """Say from where to where a loss rose after its least value; empty if it did not."""
    if len(points) < 2:
        return ""
    (at, least), (end, last) = min(points, key=lambda point: point[1]), points[-1]
    if last <= least + FLAT * abs(least):
        return ""
    return f"rose from {least:.4f} at step {at:,} to {last:.4f} at step {end:,}"


def overfitting(report: Report) -> str:
    """Say that the loss of rows that were not trained on rose, and what helps; empty if it did not rise."""
    loss = report.curves.get("loss", {})
    held_back = "validation" if loss.get("validation") else "eval"
    rose = rise(loss.get(held_back, ()))
    if not rose:
        return ""
    stopped = held_back == "validation" and report.chosen_by_early_stopping
    remedy = "early stopping chose the step that is exported" if stopped else f"use {STOPPING}, {LESS_OVERFITTING}"
    return f"The {held_back} loss {rose}: the model overfits, or its learning rate is too high; {remedy}."


def figure_text(value: float | None) -> str:
    """Format a whole number above 1 without decimals, any other number with four, and None as a dash."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value > 1 and float(value).is_integer() else f"{value:.4f}"
