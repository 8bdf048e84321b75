"""Proves what a two-tower model serves besides its logit: the vectors of its towers, and the best candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from components.pusher.trained_model import Trained
from embedding_core.columns.ids import TokenTable
from embedding_core.proof.parity import Inputs, Outputs, ParityReport, compare
from embedding_core.proof.top_k import Answers, answers_with, best_of_all, compare_answers, filters_of
from embedding_core.serving import columns_of, named_inputs
from embedding_core.serving.served_state import lines_of
from embedding_core.top_k_config import TopK

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
