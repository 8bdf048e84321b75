"""Assembles vocabularies from the messages of all workers, and raises errors that only the data as a whole shows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from components.vocabulary_gen.base_vocabularies import make_vocabulary
from components.vocabulary_gen.counting_plan import Base, CountedFeature, CountingPlan
from components.vocabulary_gen.source_counts import FACTS, TOKENS, add_histograms
from components.vocabulary_gen.token_counts import merge_counts, read_counts
from embedding_core.config import ColumnConfig
from embedding_core.errors import DataError
from embedding_core.schema import Json
from embedding_core.vocabulary import FeatureSummary, Vocabulary, length_percentiles


def assemble_vocabulary(plan: CountingPlan, name: str, messages: Iterable[bytes]) -> Vocabulary:
    """Make one vocabulary from the messages of all sources, in any order, and from the base if there is one.

    Raises:
      DataError: a feature is absent, empty or of mixed type in the data as a whole, or a text vocabulary can hold none
        of the tokens.
      ConfigError: the thresholds leave out every token.
      VocabularyError: the base is damaged.
    """
    received = list(messages)
    summaries = summaries_of(plan, name, read_facts(received))
    tokens, counts = merge_counts(read_counts(message[1:]) for message in received if message[:1] == TOKENS)
    vocabulary = make_vocabulary(plan, name, tokens, counts, summaries)
    check_any_token(name, len(vocabulary), vocabulary.unrepresentable)
    return vocabulary


def read_facts(messages: Iterable[bytes]) -> list[Json]:
    """Read the facts on features from all messages on a vocabulary."""
    return [json.loads(message[1:]) for message in messages if message[:1] == FACTS]


def summaries_of(plan: CountingPlan, name: str, facts: list[Json]) -> dict[str, FeatureSummary]:
    """Summarize each feature that feeds a vocabulary.

    Raises:
      DataError: a feature is absent, empty or of mixed type in the data as a whole.
    """
    base = plan.base if plan.has_base(name) else None
    return {
        feature.name: _summary(feature, [fact for fact in facts if fact["feature"] == feature.name], base)
        for feature in plan.feeding(name)
    }


def check_any_token(name: str, size: int, unrepresentable: int) -> None:
    """Check that a vocabulary is not empty.

    Raises:
      DataError: it is empty, because a text vocabulary can hold none of its tokens.
    """
    if not size:
        raise DataError(
            f"vocabulary {name!r} has no token that a text vocabulary can hold: all {unrepresentable} hold a line "
            "feed, carriage return or NUL; encode the values otherwise."
        )


def _summary(feature: CountedFeature, facts: list[Json], base: Base | None) -> FeatureSummary:
    column, histogram = feature.column, np.zeros(1, np.int64)
    for fact in facts:
        histogram = add_histograms(histogram, np.asarray(fact["histogram"], np.int64))
    rows, widest = int(histogram.sum()), max((fact["widest"] for fact in facts), default=0)
    token_count = int(histogram @ np.arange(len(histogram)))
    before = None if base is None else base.columns.get(feature.name)
    known = before.dtype if before is not None and feature.may_be_empty else None
    dtype = _dtype(feature, facts, rows, known)
    if not token_count and known is None:
        raise DataError(
            f"feature {feature.name!r}: column {column.name!r} is empty in all {rows} rows: remove the feature, or "
            "write its values."
        )
    # In the rows of a small span, a column of several values may happen to have one at most.
    inferred = widest > 1 or (before is not None and before.multivalent)
    column_config = ColumnConfig(
        name=column.name,
        dtype=dtype,
        multivalent=inferred if feature.multivalent is None else feature.multivalent,
        separator=column.separator,
        after_transform=column.after_transform,
        private=column.private,
    )
    return FeatureSummary(
        column=column_config,
        rows=rows,
        missing=int(histogram[0]),
        token_count=token_count,
        lengths=length_percentiles(histogram),
        new_rows=None if base is None else sum(fact["new_rows"] for fact in facts),
        new_tokens=None if base is None else sum(fact["new_tokens"] for fact in facts),
    )


def _dtype(feature: CountedFeature, facts: list[Json], rows: int, known: str | None) -> Any:
    """Return the dtype of the column; `known` if no row has a value.

    Raises:
      DataError: no row has a value and `known` is None, or the dtype is not the same everywhere.
    """
    seen: dict[str, str] = {}
    for dtype, place in sorted((item for fact in facts for item in fact["dtypes"].items()), key=lambda item: item[1]):
        seen.setdefault(dtype, place)
    if not seen and known is not None:
        return known
    if not seen:
        raise DataError(
            f"feature {feature.name!r}: column {feature.column.name!r} has no value in any of the {rows} rows: "
            "correct its name, or remove the feature."
        )
    if len(seen) > 1:
        places = ", ".join(f"{dtype} in {place}" for dtype, place in seen.items())
        raise DataError(
            f"feature {feature.name!r}: column {feature.column.name!r} is of mixed type: {places}: write it with one "
            "type everywhere."
        )
    return next(iter(seen))


def assemble_sources(messages: Iterable[bytes]) -> Json:
    """Add up the facts on all sources.

    Returns:
      "rows" and "bad_rows": their numbers; "bad": list of {"source", "row", "reason"}, at most a thousand per source;
      "problems": messages on sources that cannot be used. Both lists are in the order of the sources.
    """
    facts = sorted((json.loads(message[1:]) for message in messages), key=lambda fact: str(fact["source"]))
    return {
        "rows": sum(fact["rows"] for fact in facts),
        "bad_rows": sum(fact["bad_rows"] for fact in facts),
        "bad": [{"source": f["source"], "row": row, "reason": reason} for f in facts for row, reason in f["bad"]],
        "problems": [fact["problem"] for fact in facts if fact["problem"] is not None],
    }
