"""Evaluates a trained model on its eval split: counts, ranking metrics of a retrieval model, and rules for a push."""

from embedding_core.evaluation.label_scores import (
    FeatureCounts,
    LabelCounts,
    LabelScore,
    Predictions,
    SplitCounts,
    count_and_predict,
    count_split,
    predict,
    score_labels,
)
from embedding_core.evaluation.push_gates import Check, JudgedModel, judge, own_checks
from embedding_core.evaluation.retrieval_figures import RetrievalFigures, measure_retrieval
from embedding_core.quality_rules import Rules

__all__ = [
    "Check",
    "FeatureCounts",
    "JudgedModel",
    "LabelCounts",
    "LabelScore",
    "Predictions",
    "RetrievalFigures",
    "Rules",
    "SplitCounts",
    "count_and_predict",
    "count_split",
    "judge",
    "measure_retrieval",
    "own_checks",
    "predict",
    "score_labels",
]
