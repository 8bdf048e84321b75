"""The report of a run: its figures, one self-contained HTML file, and the same figures as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from pipelines.report.baselines import METRICS
from pipelines.report.charts import line_chart

__all__ = ["Report", "figure_text", "flat_settings", "keep_report", "parity_line", "save_report"]

_CURVES = {"loss": "loss (binary cross-entropy)", "auc": "AUC"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The figures of one run, as `report.json` holds them.

    Attributes:
      name: of the pipeline.
      finished: local time at which the run ended, ISO.
      seconds: wall time of all nodes.
      seconds_with_cache: the same, with the time that it once took to make what came from the cache.
      nodes: per node its name, state, seconds, execution id, and `made_in`: the seconds of what came from the cache.
      push: `pushed`, `version`, `destination`, `reason`, and `query`, the lines of Python that ask the version.
      metric_names: the metrics of `quality`.
      quality: per scorer (the model first, then the baselines) its metrics on the eval split.
      eval_rows: how many rows those are.
      quality_note: what a reader of `quality` has to know.
      evaluation: per metric its value over all rows, bound and outcome ("met", "missed", "no bound").
      slices: per slice its name and metrics.
      retrieval: Recall@k of the model and of popularity, and on which rows; None if it was not measured.
      retrieval_note: how the rows were chosen, or why it was not measured.
      configuration: every setting of the run, defaults included.
      changed: the settings that `--set` changed, as dotted keys.
      curves: per curve ("loss", "auc") and series its (step, value) points.
      training_note: steps, rows and rate in words.
      parity: per comparison its name, largest difference, tolerance and rows.
      tables: per table its name, rows, dim, combiner, optimizer, bytes and features; the largest first.
      vocabularies: per vocabulary its size, distinct tokens, coverage, digest, its most frequent tokens, and how it
        came out of an earlier one (None without).
      drift: per feature the shares of rows and tokens that an earlier vocabulary does not have; empty without one.
      labels: rows of each label in the eval split, and the share of label 1 in both splits.
      columns: per raw column the share of missing values by split, and whether it is constant.
      features: per categorical feature the shares of empty rows and of unknown tokens by split.
      data: rows read, kept and set aside, in words.
      warm_start: what the model started from: `remap.json` of the CheckpointLoader, the `step` of the earlier
        checkpoint, and under `dense` what became of dense part, its optimizer and ranges, as `start_dense` reports it;
        None without one.
      notes: which earlier run it started from and why, a sentence each.
    """

    name: str
    finished: str
    seconds: float
    seconds_with_cache: float = 0.0
    nodes: Sequence[Mapping[str, Any]]
    push: Mapping[str, Any]
    metric_names: Sequence[str] = METRICS
    quality: Sequence[Mapping[str, Any]]
    eval_rows: int
    quality_note: str
    evaluation: Sequence[Mapping[str, Any]] = ()
    slices: Sequence[Mapping[str, Any]] = ()
    retrieval: Mapping[str, Any] | None = None
    retrieval_note: str = ""
    configuration: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    changed: Sequence[str] = ()
    curves: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]
    training_note: str
    parity: Sequence[Mapping[str, Any]]
    tables: Sequence[Mapping[str, Any]]
    vocabularies: Sequence[Mapping[str, Any]]
    drift: Sequence[Mapping[str, Any]] = ()
    labels: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    columns: Sequence[Mapping[str, Any]] = ()
    features: Sequence[Mapping[str, Any]] = ()
    data: Mapping[str, Any]
    warm_start: Mapping[str, Any] | None = None
    notes: Sequence[str] = ()

    @property
    def cached(self) -> int:
        """How many nodes came from the cache."""
        return sum(node["state"] == "cached" for node in self.nodes)

    @property
    def took(self) -> str:
        """The time of the run in words."""
        if not self.cached:
            return f"{self.seconds:.1f} s"
        return (
            f"{self.seconds:.1f} s with {self.cached} of {len(self.nodes)} nodes from the cache; "
            f"{self.seconds_with_cache:.1f} s without"
        )


def parity_line(report: Report) -> str:
    """What was compared with training, in one line."""
    worst = max(row["difference"] for row in report.parity)
    rows = max(row["rows"] for row in report.parity)
    return f"training equals serving: {len(report.parity)} outputs, {rows:,} rows, at most {worst:.3g} apart"


def save_report(report: Report, folder: str) -> str:
    """Write `report.html` and `report.json` into the folder; returns the path of the former."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "report.html")
    _write(path, _html(report))
    _write(os.path.join(folder, "report.json"), json.dumps(dataclasses.asdict(report), indent=1))  # last: it is whole
    return path


def keep_report(report: Report, folder: str) -> str:
    """Save the report under what the run came to: `<folder>/<version>`, or `<folder>/refused-<time>`.

    A version's report is that of the run that pushed it: a later run that finds it in the cache leaves it as it is.

    Returns:
      The folder of the report.
    """
    pushed, moment = report.push["pushed"], report.finished.replace(":", "").replace("-", "")
    kept = os.path.join(folder, str(report.push["version"]) if pushed else f"refused-{moment}")
    made_here = any(node["node"] == "EmbeddingPusher" and node["state"] == "executed" for node in report.nodes)
    if made_here or not os.path.exists(os.path.join(kept, "report.json")):
        save_report(report, kept)
    return kept


def _write(path: str, text: str) -> None:
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)


def _html(report: Report) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pipelines"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters.update(share=_share, figure=figure_text)
    charts = [
        {"title": title, "svg": line_chart(report.curves[name], x_label="step")}
        for name, title in _CURVES.items()
        if any(report.curves.get(name, {}).values())
    ]
    html: str = environment.get_template("report.html.jinja").render(
        report=report,
        charts=charts,
        settings=flat_settings(report.configuration),
        parity=parity_line(report) if report.parity else "",
    )
    return html


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def figure_text(value: float | None) -> str:
    """A count as it is, any other figure with four digits; a dash for none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value > 1 and float(value).is_integer() else f"{value:.4f}"


def flat_settings(configuration: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The settings by dotted key; lists, and mappings without keys, are values."""
    found: dict[str, Any] = {}
    for key, value in configuration.items():
        if isinstance(value, Mapping) and value:
            found.update(flat_settings(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found
