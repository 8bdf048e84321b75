"""Replays requests on two versions in turns, each in a process of its own, and compares what they answer."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy.typing as npt
from typing_extensions import Self

from embedding_core.errors import CheckpointError, DataError, nearest
from embedding_core.evaluation import Check
from embedding_core.proof.parity import error_line, scoring_environment
from embedding_core.rooms import hooks
from embedding_core.schema import Json
from embedding_core.shadow.answer_differences import Distribution, OutputTally, Tally, compare_answers
from embedding_core.shadow.answering import array_of, read_message, write_message
from embedding_core.shadow.request_rows import RequestRows, Visibility
from embedding_core.shadow.shadow_rules import LatencyBounds, OutputBounds, ShadowRules

# Describes the result of replaying requests on two versions, and judges it by the rules.


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


# Holds one version of a model in a process of its own, and sends it requests.

_PROGRAM = Path(__file__).with_name("answering.py")
_LONGEST_ERROR = 500
_TIMEOUT = 900.0  # seconds for an answer
_STATE_OUTPUTS = {name for room in hooks("embedding_core", "protocol") for name in room.STATE_OUTPUTS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer of a version.

    Attributes:
      outputs: arrays by output name; None if the version refused the request.
      error: why it was refused; "" if it was answered.
      quotes: whether the error is a message of the graph, which may quote the request.
      seconds: time that the session took; None if the request was refused or is the first of its kind.
    """

    outputs: Mapping[str, npt.NDArray[Any]] | None = None
    error: str = ""
    quotes: bool = False
    seconds: float | None = None


class VersionProcess:
    """A version of a model in a process of its own; a context manager, which ends the process.

    Attributes:
      path: folder of the SavedModel.
      load_seconds: time that the session loader took.
      loaded_bytes: resident memory after loading, of TensorFlow and the model.
      peak_bytes: largest resident memory that was read so far.
      deltas: number of deltas that were applied to it.

    Raises:
      CheckpointError: the version does not load, or the process takes too long, or ends.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._timed_out = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        # -I: the child must not find this project through the working directory or PYTHONPATH.
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", str(_PROGRAM), self.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=scoring_environment(),
        )
        self.load_seconds = 0.0
        self.loaded_bytes = self.peak_bytes = self.deltas = 0

    def __enter__(self) -> Self:
        try:
            facts, _ = self._received("loading")
        except BaseException:
            self._end()
            raise
        self.load_seconds, self.loaded_bytes = facts["load_seconds"], facts["loaded_bytes"]
        self.peak_bytes = self.loaded_bytes
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def ask(self, signature: str, inputs: Mapping[str, bytes], outputs: Sequence[str], what: str) -> Answer:
        """Send a request, and wait for the answer.

        Args:
          signature: name of the signature.
          inputs: serialized TensorProto by input name.
          outputs: names of the outputs; empty for all.
          what: name of the request in errors.

        Raises:
          CheckpointError: the process ended or took too long.
        """
        try:
            write_message(self._process.stdin, {"signature": signature, "outputs": list(outputs)}, inputs)  # type: ignore[arg-type]
        except OSError:
            raise self._failure(what) from None
        facts, parts = self._received(what)
        # The kernel's counters of memory are approximate: a later reading of the peak can be below an earlier one.
        self.peak_bytes = max(self.peak_bytes, facts["peak_bytes"])
        if "error" in facts:
            return Answer(error=facts["error"][:_LONGEST_ERROR], quotes=facts["quotes"])
        arrays = {name: array_of(part) for name, part in parts.items()}
        return Answer(outputs=arrays, seconds=facts["seconds"])

    def _received(self, what: str) -> tuple[dict[str, Any], dict[str, bytes]]:
        timer = threading.Timer(_TIMEOUT, self._kill)
        timer.start()
        try:
            message = read_message(self._process.stdout)  # type: ignore[arg-type]
        finally:
            timer.cancel()
        if message is None:
            raise self._failure(what)
        return message

    def _kill(self) -> None:
        self._timed_out = True
        self._process.kill()

    def _failure(self, what: str) -> CheckpointError:
        code = self._process.wait()
        if self._timed_out:
            return CheckpointError(f"{self.path!r} took over {_TIMEOUT:g} s ({what}): check that the machine is free.")
        self._stderr.seek(0)
        text = error_line(self._stderr.read().decode(errors="replace"))
        return CheckpointError(
            f"the process of {self.path!r} ended (exit code {code}, {what}): {text} Give the folder of a SavedModel "
            "that TensorFlow loads, and enough memory for two versions."
        )

    def _end(self) -> None:
        """End the process: it ends by itself when its standard input closes."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:  # the process is gone, and with it what was not yet written
                    continue
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()


# Replays requests on two versions in turns, and compares what they answer.

_MOST_REFUSALS = 20
_REPORT_EVERY = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """A recorded request.

    Attributes:
      place: file and number of its record.
      model: name of the served model.
      kind: kind of the record, such as `predict_log`.
      signature: name of the signature.
      inputs: serialized TensorProto by input name; None for a kind that is not replayed.
      outputs: names of the outputs that were asked for; empty for all.
    """

    place: str
    model: str
    kind: str
    signature: str = "serving_default"
    inputs: Mapping[str, bytes] | None = None
    outputs: tuple[str, ...] = ()


def replay(
    versions: tuple[VersionProcess, VersionProcess],
    requests: Iterable[Request],
    rules: ShadowRules,
    public: Visibility,
    report: Callable[[int], None] = lambda done: None,
    *,
    other_k: bool = False,
) -> ShadowReport:
    """Replay requests on two versions, whose processes run.

    One request at a time is sent, to the one version and then to the other; they take turns in being first. Memory
    does not grow with the number of requests.

    Args:
      versions: the version that is served, and the one that would replace it.
      requests: the recorded requests.
      rules: what the new version must keep to.
      public: what may be shown.
      report: called with the number of replayed requests from time to time.
      other_k: whether the new version ranks another number of candidates on purpose; see `compare_answers`.

    Raises:
      DataError: the log is damaged, holds requests for several models, or none that can be replayed.
      CheckpointError: the process of a version ends.
    """
    run = _Replay(versions, rules, public, other_k)
    for request in _chosen(requests, rules.model, run):
        run.add(request)
        if run.replayed % _REPORT_EVERY == 0:
            report(run.replayed)
    if not run.replayed:
        raise DataError(f"the log has no request that can be replayed ({run.left_out()}): give one with predict_log.")
    return run.result()


def _chosen(requests: Iterable[Request], model: str | None, run: _Replay) -> Iterable[Request]:
    """Yield the requests to replay, and count the others.

    Raises:
      DataError: no model is named, and the log has requests for two.
    """
    first: Request | None = None
    for request in requests:
        if model is None and first is not None and request.model != first.model:
            raise DataError(
                f"{request.place} is for the model {request.model!r}, and {first.place} for {first.model!r}: name the "
                "model to replay in `model`."
            )
        first = first or request
        if model is not None and request.model != model:
            run.other_models[request.model] += 1
        elif request.inputs is None:
            run.not_replayed[request.kind] += 1
        else:
            yield request
    if model is not None and not run.replayed and run.other_models:
        raise DataError(f"`model` is {model!r}, and the log has no request for it: {nearest(model, run.other_models)}")


class _Replay:
    """The figures of a replay so far."""

    def __init__(
        self, versions: tuple[VersionProcess, VersionProcess], rules: ShadowRules, public: Visibility, other_k: bool
    ) -> None:
        self.versions, self.rules, self.public, self._other_k = versions, rules, public, other_k
        self.tally = Tally(rules.slices, rules.worst_rows, public)
        self.latency = (Distribution(), Distribution())
        self.replayed = self.rows = 0
        self.other_models: Counter[str] = Counter()
        self.not_replayed: Counter[str] = Counter()
        self.refused = {"old": 0, "new": 0, "both": 0}
        self.refusals: list[Json] = []

    def add(self, request: Request) -> None:
        """Replay a request; if one version alone refuses it, replay its rows one by one.

        If that version answers each of the rows, it refuses the request as a whole, and all its rows count as refused.
        """
        inputs = request.inputs or {}
        answers = self._answers(request, inputs)
        self.replayed += 1
        rows = _rows_of(inputs)
        if _one_refuses(answers) and rows is not None and (rows.count or 0) > 1:
            refuses = 0 if answers[0].outputs is None else 1
            singles = [rows.input_of(row) for row in range(rows.count or 0)]
            answered = [self._answers(request, single) for single in singles]
            if all(pair[refuses].outputs is not None for pair in answered):
                self._add_rows(request, rows, answers)
                return
            for row, (single, both) in enumerate(zip(singles, answered, strict=True)):
                self._add_rows(request, _rows_of(single), both, first=row)
            return
        if all(answer.seconds is not None for answer in answers):
            for latency, answer in zip(self.latency, answers, strict=True):
                latency.add(answer.seconds or 0.0)
        self._add_rows(request, rows, answers)

    def _answers(self, request: Request, inputs: Mapping[str, bytes]) -> tuple[Answer, Answer]:
        order = (0, 1) if self.replayed % 2 == 0 else (1, 0)
        answers = {
            version: self.versions[version].ask(request.signature, inputs, request.outputs, request.place)
            for version in order
        }
        old, new = (_without_digest(answers[version]) for version in (0, 1))
        return old, _without_lost_outputs(old, new)

    def _add_rows(
        self, request: Request, rows: RequestRows | None, answers: tuple[Answer, Answer], first: int | None = None
    ) -> None:
        """Add the answers to the rows of a request, or to its row `first` alone."""
        old, new = answers
        count = 1 if rows is None else rows.count or 0
        if old.outputs is None or new.outputs is None:
            place = request.place if first is None else f"{request.place}, row {first + 1}"
            self._refuse(place, rows, answers, max(count, 1))
            return
        if rows is None or not all(_has_rows(output, count) for output in old.outputs.values()):
            self.not_replayed["answers without a row for each row of the request"] += 1
            return
        lost = next((name for name in old.outputs if not _has_rows(new.outputs[name], count)), None)
        if lost is not None:  # a client that reads the answer to its row would fail
            shape = list(new.outputs[lost].shape)
            error = f"output {lost!r} has the shape {shape}: it must have an answer for each of {count} rows."
            self._add_rows(request, rows, (old, Answer(error=error)), first)
            return
        self.rows += count
        both = old.outputs, new.outputs
        changes = compare_answers(*both, other_k=self._other_k)
        self.tally.add(request.signature, (request.place, first or 0), rows, changes, both)

    def _refuse(self, place: str, rows: RequestRows | None, answers: tuple[Answer, Answer], count: int) -> None:
        old, new = answers
        by = "both" if old.outputs is None and new.outputs is None else "old" if old.outputs is None else "new"
        self.refused[by] += count
        if sum(refusal["by"] == by for refusal in self.refusals) < _MOST_REFUSALS:
            shown = {} if rows is None or not rows.count else rows.shown(0, self.public)
            error = self._shown_error(new if new.error else old)
            self.refusals.append({"by": by, "place": place, "request": shown, "error": error})

    def _shown_error(self, answer: Answer) -> str:
        """Return the error of a refusal; of a message that may quote a private value, only the class."""
        if not answer.quotes or self.public.answers:
            return answer.error
        return f"{answer.error.partition(':')[0]} (its message may quote the request, so it is not shown)"

    def left_out(self) -> str:
        """Say what was not replayed, in words."""
        counts = {**self.not_replayed, **{f"for {name!r}": count for name, count in self.other_models.items()}}
        return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "it is empty"

    def result(self) -> ShadowReport:
        """Return the judged report."""
        old, new = (
            VersionFigures(
                path=version.path,
                deltas=version.deltas,
                load_seconds=version.load_seconds,
                loaded_bytes=version.loaded_bytes,
                peak_bytes=version.peak_bytes,
                latency=latency,
            )
            for version, latency in zip(self.versions, self.latency, strict=True)
        )
        requests = {
            "replayed": self.replayed,
            "rows": self.rows,
            "other_models": dict(self.other_models),
            "not_replayed": dict(self.not_replayed),
        }
        return ShadowReport(
            old=old,
            new=new,
            requests=requests,
            refused=self.refused,
            refusals=self.refusals,
            outputs=self.tally.outputs,
            slices=self.tally.slices(),
            worst=self.tally.worst(),
            rules=self.rules,
        )


def _has_rows(output: npt.NDArray[Any], count: int) -> bool:
    return output.ndim > 0 and len(output) == count


def _one_refuses(answers: tuple[Answer, Answer]) -> bool:
    return (answers[0].outputs is None) != (answers[1].outputs is None)


def _without_digest(answer: Answer) -> Answer:
    """Leave out outputs that say which state answered, which two versions never have in common."""
    if answer.outputs is None or _STATE_OUTPUTS.isdisjoint(answer.outputs):
        return answer
    outputs = {name: value for name, value in answer.outputs.items() if name not in _STATE_OUTPUTS}
    return dataclasses.replace(answer, outputs=outputs)


def _without_lost_outputs(old: Answer, new: Answer) -> Answer:
    """Return the new answer, as a refusal if it lacks an output of the old one: a client that reads it would fail."""
    lost = sorted(set(old.outputs or {}) - set(new.outputs or {}))
    if new.outputs is None or not lost:
        return new
    return Answer(error=f"there is no output {lost[0]!r}: the new version has {', '.join(sorted(new.outputs))}.")


def _rows_of(inputs: Mapping[str, bytes]) -> RequestRows | None:
    """Return the rows of a request; None if an input is not a tensor, which the versions refuse."""
    try:
        rows = RequestRows({name: array_of(value) for name, value in inputs.items()})
    except Exception:  # a message from outside: TensorFlow raises many classes for what it cannot read
        return None
    return rows if rows.count is not None else None
