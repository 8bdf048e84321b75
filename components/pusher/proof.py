"""Proves before a push that the copy to be published, the evaluated model and training agree."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from components.base_executor import files_below
from components.pusher.push_section import Push
from components.pusher.served import model_digests, verify_version
from components.pusher.trained_model import Sources, Trained, load_trained
from embedding_core.columns import TokenTable
from embedding_core.errors import CheckpointError, ParityError
from embedding_core.model_inputs import is_two_tower
from embedding_core.proof.parity import (
    EdgeCase,
    Inputs,
    Outputs,
    ParityReport,
    compare,
    edge_cases,
    read_rows,
    score_signatures,
)
from embedding_core.proof.top_k import Answers, answers_with, best_of_all, compare_answers, filters_of
from embedding_core.rows_dtype import RowsDtype
from embedding_core.schema import Json
from embedding_core.serving import columns_of, named_inputs
from embedding_core.serving.table_blocks import lines_of
from embedding_core.top_k_config import TopK

# Proves what a two-tower model serves besides its logit: the vectors of its towers, and the best candidates.

_TOWERS = ("query", "candidate")
_TOP_K, _FILTERED = "top_k", "top_k_filtered"


class RetrievalProof:
    """The requests to a two-tower model's signatures, and the comparison of what they return.

    Attributes:
      requests: inputs by signature.
    """

    def __init__(
        self, trained: Trained, rows: Sequence[bytes], expected: Mapping[str, Outputs], settings: TopK
    ) -> None:
        """Make the requests.

        Args:
          trained: the model as training computes it.
          rows: serialized tf.Examples.
          expected: what training computes for these rows, from `Trained.score`.
          settings: settings of `top_k` that the model was exported with.
        """
        named = {tower: _named(trained, tower, rows) for tower in _TOWERS}
        named = {tower: (tensors, kept) for tower, (tensors, kept) in named.items() if kept}
        self._expected = {tower: expected[tower]["vector"][kept] for tower, (_, kept) in named.items()}
        self.requests: dict[str, Inputs] = {tower: tensors for tower, (tensors, _) in named.items()}
        self._answers: dict[str, Answers] = {}
        feature = trained.candidate_feature
        if feature is None or "query" not in named:
            return
        self._table = trained.config.table_of(feature)
        file = trained.files[str(self._table.vocabulary)]
        self._ids = TokenTable.of(self._table, file)
        queries, candidates, tensors = self._expected["query"], trained.candidate_vectors(), named["query"][0]
        self._exact = settings.approximate.lists_of(len(candidates)) is None
        scores, best = best_of_all(queries, candidates, settings.k)
        filters = filters_of(best, len(candidates))
        self._answers[_TOP_K] = Answers(queries, candidates, scores)
        self._answers[_FILTERED] = answers_with(filters, queries, candidates, settings.k)
        self.requests[_TOP_K] = tensors
        self.requests[_FILTERED] = {**tensors, **filters.tokens(lines_of(file))}

    def compare(self, served: Mapping[str, Outputs], tolerance: float) -> tuple[list[ParityReport], dict[str, float]]:
        """Compare the outputs of the signatures.

        Returns:
          The differences, and by signature the share of the best candidates that an approximate search found. The
          shares are empty for an exact search, whose scores are compared rank by rank.
        """
        reports = [
            compare({"vector": vectors}, served[tower], tolerance=tolerance, signature=f"training/{tower}")
            for tower, vectors in self._expected.items()
        ]
        recall = {}
        for name, wanted in self._answers.items():
            report, recall[name] = compare_answers(
                wanted,
                served[name],
                self._ids.ids_of(tf.constant(served[name]["tokens"])).numpy(),
                exact=self._exact,
                tolerance=tolerance,
                signature=f"training/{name}",
            )
            reports.append(report)
        return reports, {} if not self._answers or self._exact else recall


def _named(trained: Trained, tower: str, rows: Sequence[bytes]) -> tuple[dict[str, npt.NDArray[Any]], list[int]]:
    """Return the named tensors of a tower, and the positions of the rows that fit into them."""
    known = {feature.name for feature in trained.config.features}
    names = getattr(trained.model, f"{tower}_features")
    config = trained.config.of_features(name for name in names if name in known)
    columns = columns_of(config, trained.dense, with_dense=any(name not in known for name in names))
    return named_inputs(columns, rows)


# Proves before a push that the model to be published agrees with training, and with the evaluated model.

_SERVED, _VECTORS, _RAW, _ROUNDED = "serving_default", "embeddings", "raw", "rounded"
_REAL = "rows of the split: what is served is what was trained"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proof:
    """The differences and the recall that were measured.

    Attributes:
      report: differences by output: `training/...`, `training/embeddings/<feature>`, and `raw/...` for the signature
        of named tensors; `evaluated/...` unless the files are those that were evaluated; `training/query/vector`,
        `training/candidate/vector`, `training/top_k/...` and `training/top_k_filtered/...` of a two-tower model. If
        rows are rounded, `rounded/embeddings/<feature>` is the difference from training's lookup with the rounded rows.
      rows: number of rows of the split that were compared.
      edge_rows: number of generated edge cases that were also compared.
      recall: by signature, the share of the best candidates that an approximate search found; empty if exact.
      min_recall: the least share allowed.
      rounded: the tables whose rows are rounded, with their types.
    """

    report: ParityReport
    rows: int
    edge_rows: int
    recall: Mapping[str, float] = dataclasses.field(default_factory=dict)
    min_recall: float = 0.0
    rounded: Mapping[str, RowsDtype] = dataclasses.field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether everything is within the tolerance, and the approximate search finds enough."""
        return not self.reason

    @property
    def reason(self) -> str:
        """Why the proof failed, in one line; empty if it passed."""
        low = [name for name, share in self.recall.items() if share < self.min_recall]
        if not self.report.passed or not low:
            return f"{self.report.reason}{self._rounding}"
        return (
            f"{low[0]} found {self.recall[low[0]]:.4f} of the best candidates, and `push.top_k.approximate.min_recall` "
            f"is {self.min_recall:g}: raise `probes`, or search exactly (`when: never`)."
        )

    @property
    def _rounding(self) -> str:
        """The remedy if nothing but the rounding of rows exceeds the tolerance."""
        exact = [item.within for item in self.report.differences if item.name.startswith(f"{_ROUNDED}/")]
        if self.report.passed or not exact or not all(exact):
            return ""
        types = ", ".join(f"{name!r} as {dtype}" for name, dtype in self.rounded.items())
        return f" Rows are rounded ({types}): raise `push.tolerance`, or serve more of these tables as float32."

    def to_dict(self) -> Json:
        """Return the figures as JSON values."""
        figures = {**self.report.to_dict(), "eval_rows": self.rows, "edge_rows": self.edge_rows}
        return {**figures, "passed": self.passed, "reason": self.reason, "recall": dict(self.recall)}


def prove(
    exported: str,
    evaluated: str | None,
    trained: Trained,
    rows: Sequence[bytes],
    tolerance: float,
    top_k: TopK | None = None,
    dtypes: Mapping[str, RowsDtype] | None = None,
) -> Proof:
    """Score rows and their edge cases with training, the exported and the evaluated model, and compare the scores.

    If rows are served rounded, `trained` gets the same rows at the end, and looks up once more. The served vectors must
    be the same as these, within the default tolerance if `tolerance` is larger.

    Args:
      exported: folder of the serving-only SavedModel; loaded in a fresh process.
      evaluated: folder of the SavedModel that the Evaluator judged, loaded in another process; None if `exported` has
        its files, which the caller compared.
      trained: the model as training computes it.
      rows: serialized tf.Examples.
      tolerance: the largest difference allowed.
      top_k: settings of the export; None leaves out the signatures that only a two-tower model has.
      dtypes: types of the served rows by table; None if they are unknown.

    Raises:
      ParityError: rows are missing, or one of the SavedModels does not load or score.
    """
    if not rows:
        raise ParityError("the eval split has no rows: nothing can be compared, and nothing is pushed.")
    edges = edges_of(trained, rows)
    every = [*rows, *(edge.row for edge in edges)]
    rules = [_REAL] * len(rows) + [f"{edge.feature}: {edge.rule}" for edge in edges]
    tensors, kept = named_inputs(columns_of(trained.config, trained.dense), every)
    # Two processes, and never one for both: TensorFlow shares vocabularies of the same file name within a process.
    requests: dict[str, Inputs] = {_SERVED: every, _VECTORS: every}
    if kept:
        requests[_RAW] = tensors
    with ThreadPoolExecutor(max_workers=2) as pool:
        judging = None if evaluated is None else pool.submit(score_signatures, evaluated, {_SERVED: every})
        if top_k is None or not is_two_tower(trained.model):
            retrieval, serving = None, pool.submit(score_signatures, exported, requests)
            expected = trained.score(every)
        else:  # the requests depend on the expected answers
            expected = trained.score(every)
            retrieval = RetrievalProof(trained, every, expected, top_k)
            serving = pool.submit(score_signatures, exported, requests | retrieval.requests)
        served = serving.result()
    same = functools.partial(compare, tolerance=tolerance, rules=rules)
    parts = [
        same(expected[_SERVED], served[_SERVED], signature="training"),
        same(expected[_VECTORS], served[_VECTORS], signature="training/embeddings"),
    ]
    if judging is not None:
        parts.append(same(judging.result()[_SERVED], served[_SERVED], signature="evaluated"))
    if kept:
        wanted = {name: value[kept] for name, value in expected[_SERVED].items()}
        parts.append(same(wanted, served[_RAW], signature=_RAW, rules=[rules[row] for row in kept]))
    more, recall = ([], {}) if retrieval is None else retrieval.compare(served, tolerance)
    lossy: dict[str, RowsDtype] = {name: dtype for name, dtype in (dtypes or {}).items() if dtype != "float32"}
    if lossy:
        trained.round_rows(lossy)
        again, closely = trained.score(every)[_VECTORS], min(tolerance, Push().tolerance)
        parts.append(same(again, served[_VECTORS], signature=f"{_ROUNDED}/{_VECTORS}", tolerance=closely))
    return Proof(
        report=parts[0].merged(*parts[1:], *more),
        rows=len(rows),
        edge_rows=len(edges),
        recall=recall,
        min_recall=0.0 if top_k is None else top_k.approximate.min_recall,
        rounded=lossy,
    )


def edges_of(trained: Trained, rows: Sequence[bytes]) -> list[EdgeCase]:
    """Make the edge cases that a model is compared on besides rows of the split."""
    return edge_cases(rows, trained.config, () if trained.dense is None else tuple(trained.dense.spec))


def rows_below(folders: Sequence[str], limit: int) -> list[bytes]:
    """Read the first serialized tf.Examples of the folders of a split."""
    return read_rows(files_below(folders), limit)


def prove_again(version: str, rows: int, tolerance: float) -> Proof:
    """Repeat the proof of a published version, from the artifacts that it was made of.

    Args:
      version: folder of the version; verified first.
      rows: how many rows of the split are compared.
      tolerance: the largest difference allowed.

    Raises:
      CheckpointError: the version is damaged, or does not say what it was made of.
      EmbeddingError: an artifact that it was made of is gone, or was changed.
    """
    facts = verify_version(version)["facts"]
    made_of = facts.get("sources")
    if made_of is None:
        raise CheckpointError(f"{version!r} does not say what it was made of: EmbeddingPusher did not publish it.")
    evaluated, folders = made_of.pop("evaluated"), made_of.pop("examples")
    copied = model_digests(version) == model_digests(evaluated)
    top_k = TopK.from_mapping(facts["top_k"]) if "top_k" in facts else None  # versions of earlier releases lack it
    trained, dtypes = load_trained(Sources(**made_of)), facts.get("rows_dtype")  # which earlier releases lack
    scored = None if copied else evaluated
    return prove(version, scored, trained, rows_below(folders, rows), tolerance, top_k, dtypes)
