"""Describes the result of replaying requests on two versions, and judges it by the rules."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

from embedding_core.errors import nearest
from embedding_core.evaluation import Check
from embedding_core.schema import Json
from embedding_core.shadow.answer_differences import Distribution, OutputTally
from embedding_core.shadow.shadow_rules import LatencyBounds, OutputBounds, ShadowRules


@dataclasses.dataclass(frozen=True, kw_only=True)
class VersionFigures:
    """What one version cost.

    Attributes:
      path: folder of the SavedModel.
      deltas: number of deltas that were applied to it.
      load_seconds: time that the session loader took.
      loaded_bytes: resident memory after loading.
      peak_bytes: largest resident memory.
      latency: seconds of the requests that both versions answered, in the session, without the first of each kind.
    """

    path: str
    deltas: int
    load_seconds: float
    loaded_bytes: int
    peak_bytes: int
    latency: Distribution

    def to_json(self) -> Json:
        """Return the figures as JSON values; times in milliseconds."""
        times = {name: 1000 * self.latency.quantile(share) for name, share in LATENCY_QUANTILES.items()}
        return {
            "path": self.path,
            "deltas": self.deltas,
            "load_seconds": self.load_seconds,
            "loaded_bytes": self.loaded_bytes,
            "peak_bytes": self.peak_bytes,
            "latency_ms": {"requests": self.latency.count, "mean": 1000 * self.latency.mean, **times},
        }


LATENCY_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShadowReport:
    """What two versions answered to the same requests.

    Attributes:
      old, new: what each version cost.
      requests: numbers of records: `replayed`, `rows` (that both versions answered), `other_models` by name, and
        `not_replayed` by kind of log.
      refused: numbers of rows: `old` (which the old version alone refused), `new`, `both`.
      refusals: the first refusals, each with `by`, `place`, `request` and `error`.
      outputs: figures by `<signature>/<output>`.
      slices: figures by output and slice.
      worst: rows with the largest differences, by output.
      rules: the rules.
    """

    old: VersionFigures
    new: VersionFigures
    requests: Json
    refused: Mapping[str, int]
    refusals: Sequence[Json]
    outputs: Mapping[str, OutputTally]
    slices: Sequence[Json]
    worst: Mapping[str, Sequence[Json]]
    rules: ShadowRules

    @functools.cached_property
    def checks(self) -> list[Check]:
        """The outcome of every rule."""
        return list(_checks(self))

    @property
    def passed(self) -> bool:
        """Whether every rule is met."""
        return all(check.met for check in self.checks)

    @property
    def reason(self) -> str:
        """Why rules are not met, a sentence for each; empty if all are met."""
        return " ".join(check.reason for check in self.checks if not check.met)

    def to_json(self) -> Json:
        """Return the report as JSON values."""
        return {
            "passed": self.passed,
            "reason": self.reason,
            "old": self.old.to_json(),
            "new": self.new.to_json(),
            "requests": self.requests,
            "refused": dict(self.refused),
            "refusals": list(self.refusals),
            "outputs": {name: tally.to_json() for name, tally in self.outputs.items()},
            "slices": list(self.slices),
            "worst": {name: list(rows) for name, rows in self.worst.items()},
            "rules": self.rules.to_mapping(),
            "checks": [check.to_dict() for check in self.checks],
        }


def _checks(report: ShadowReport) -> Iterator[Check]:
    rules, rows = report.rules, report.requests["rows"]
    yield _check("rows that both versions answered", rows, f"at least {rules.min_rows:,}", rows >= rules.min_rows)
    answered = rows + report.refused["new"]
    share = report.refused["new"] / answered if answered else 0.0
    first = next((refusal for refusal in report.refusals if refusal["by"] == "new"), None)
    example = "" if first is None else f"; the first is {first['place']}: {first['error']}"
    yield _check(
        "share of rows that only the new version refuses",
        share,
        f"at most {rules.max_refused:g}",
        share <= rules.max_refused,
        f" ({report.refused['new']:,} rows{example})",
    )
    yield _not_finite_check(report.outputs, rules.max_not_finite)
    for key, bounds in rules.outputs.items():
        yield from _output_checks(report.outputs, key, bounds)
    for name in LatencyBounds.model_fields:
        yield from _ratio_check(f"{name} of the latency", getattr(rules.latency, name), *_latencies(report, name))
    yield from _ratio_check("peak of memory", rules.max_memory, report.old.peak_bytes, report.new.peak_bytes)


def _not_finite_check(outputs: Mapping[str, OutputTally], bound: float) -> Check:
    shares = {
        name: output.not_finite / output.differences.count for name, output in outputs.items() if output.not_finite
    }
    worst = max(shares, key=shares.__getitem__, default="")
    share = shares.get(worst, 0.0)
    details = f" (most in {worst}: {outputs[worst].not_finite:,} rows)" if worst else ""
    name = "share of rows with NaN or infinity where the old version answers a number"
    return _check(name, share, f"at most {bound:g}", share <= bound, details)


def _latencies(report: ShadowReport, name: str) -> tuple[float, float]:
    share = LATENCY_QUANTILES[name]
    return report.old.latency.quantile(share), report.new.latency.quantile(share)


def _output_checks(outputs: Mapping[str, OutputTally], key: str, bounds: OutputBounds) -> Iterator[Check]:
    chosen = [name for name in outputs if key in (name, name.partition("/")[2])]
    if not chosen:
        known = nearest(key, outputs)
        reason = f"no replayed request has the output {key!r}, which `outputs` bounds: {known}"
        yield Check(name=key, value=None, bound="an output of a replayed request", met=False, reason=reason)
    for name in chosen:
        tally = outputs[name]
        given = {field: getattr(bounds, field) for field in OutputBounds.model_fields}
        figures = {"mean": tally.differences.mean, "max": tally.differences.largest}
        figures |= {field: tally.differences.quantile(int(field[1:]) / 100) for field in given if field[0] == "p"}
        for field, value in figures.items():
            bound = given[field]
            if bound is not None:
                yield _check(f"{field} difference of {name}", value, f"at most {bound:g}", value <= bound)
        if bounds.min_overlap is not None:
            yield _overlap_check(name, tally.overlap(), bounds.min_overlap)


def _overlap_check(name: str, overlap: float | None, least: float) -> Check:
    if overlap is None:
        reason = f"{name} has no ranked tokens: leave out its `min_overlap`."
        return Check(name=f"overlap of {name}", value=None, bound=f"at least {least:g}", met=False, reason=reason)
    return _check(f"overlap of {name}", overlap, f"at least {least:g}", overlap >= least)


def _ratio_check(name: str, bound: float | None, old: float, new: float) -> Iterator[Check]:
    if bound is None:
        return
    what = f"{name}, new to old"
    if not old:
        reason = f"{what} was not measured: replay more requests of each signature, or leave out its bound."
        yield Check(name=what, value=None, bound=f"at most {bound:g}", met=False, reason=reason)
        return
    yield _check(what, new / old, f"at most {bound:g}", new / old <= bound)


def _check(name: str, value: float, bound: str, met: bool, details: str = "") -> Check:
    reason = "" if met else f"{name}: {value:.4g}, which must be {bound}{details}."
    return Check(name=name, value=None if value == float("inf") else float(value), bound=bound, met=met, reason=reason)
