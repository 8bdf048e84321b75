"""Assembles vocabularies from the messages of all workers and from those of a previous run, in parts if large."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tfx.dsl.io import fileio

from components.vocabulary_gen.counting import (
    FACTS,
    TOKENS,
    add_histograms,
    merge_counts,
    read_counts,
    write_counts,
)
from components.vocabulary_gen.counting_plan import Base, CountedFeature, CountingPlan, Evolution
from embedding_core.columns import TokenTable
from embedding_core.errors import ConfigError, DataError
from embedding_core.schema import Json
from embedding_core.vocabulary import (
    Block,
    FeatureSummary,
    Vocabulary,
    admitted_rows,
    evolved_vocabulary,
    length_percentiles,
    load_vocabularies,
    load_vocabulary,
    merge_sorted,
    no_token_left,
    representable,
    save_in_blocks,
    vocabulary_from_counts,
)

# Reads the vocabularies of a previous run, and evolves new ones from them.


def read_base(folder: str, evolution: Evolution) -> Base:
    """Read and verify the vocabularies of a previous run.

    Args:
      folder: folder of its Vocabularies artifact.
      evolution: how the new vocabularies evolve from them.

    Raises:
      VocabularyError: a vocabulary is damaged, or there is none.
    """
    known = load_vocabularies(folder)
    sizes = {name: len(vocabulary) for name, vocabulary in known.items()}
    features = (vocabulary.features for vocabulary in known.values())
    columns = {name: summary.column for summaries in features for name, summary in summaries.items()}
    return Base(folder=folder, sizes=sizes, columns=columns, evolution=evolution)


def base_tables(plan: CountingPlan) -> dict[str, TokenTable] | None:
    """Make lookup tables of the tokens of the base, by vocabulary; None without a base."""
    base = plan.base
    if base is None:
        return None
    used = {name: size for name, size in base.sizes.items() if name in plan.rules}
    return {name: TokenTable(os.path.join(base.folder, f"{name}.txt"), size, 0) for name, size in used.items()}


# Assembles vocabularies from the messages of all workers, and raises errors that only the data as a whole shows.


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
    rule = plan.rules[name]
    settings: Json = {"min_count": rule.min_count, "max_size": rule.max_size, "private": plan.is_private(name)}
    settings["features"] = summaries
    base = plan.base_of(name)
    if base is None:
        vocabulary = vocabulary_from_counts(name, tokens, counts, **settings)
    else:
        previous, evolution = load_vocabulary(base.folder, name), base.evolution.evolution_rule()
        vocabulary = evolved_vocabulary(previous, tokens, counts, **evolution, **settings)
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
    base = plan.base_of(name)
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
    multivalent = inferred if feature.multivalent is None else feature.multivalent
    return FeatureSummary(
        column=column.replace(dtype=dtype, multivalent=multivalent),
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


# Makes vocabularies that no worker can hold in memory: counts and sorts tokens in parts, then merges the parts.
#
# The hash of a token chooses its part. The counts of each part are added up separately, perhaps on another worker, and
# written as sorted blocks below the artifact's folder. One worker then merges the parts, with one block of each in
# memory at a time.

PARTS_FOLDER = "parts"
_ROWS_OF_A_BLOCK = 1 << 15


def is_part(key: str) -> bool:
    """Return whether the key of a message names one part of a vocabulary."""
    return "\n" in key


def check_parts(plan: CountingPlan) -> None:
    """Check that no setting needs a whole vocabulary on one worker.

    Raises:
      ConfigError: a vocabulary in parts has a base.
    """
    for name, rule in plan.rules.items():
        if rule.parts > 1 and plan.base_of(name) is not None:
            raise ConfigError(
                f"`vocabularies.{name}.parts` is {rule.parts}, but the vocabulary evolves from that of a previous "
                "run, which one worker has to hold: leave out `parts`, or leave out the base."
            )


def write_part(plan: CountingPlan, key: str, messages: Iterable[bytes], folder: str) -> tuple[str, Json]:
    """Add up the counts of one part, and write it sorted.

    Returns:
      The vocabulary's name, and the facts on the part that the merge needs.
    """
    name, _, number = key.partition("\n")
    rule = plan.rules[name]
    tokens, counts = merge_counts(read_counts(message[1:]) for message in messages if message[:1] == TOKENS)
    total = int(counts.sum())
    tokens, counts = representable(tokens, counts)
    facts = {"total": total, "represented": int(counts.sum()), "distinct": len(counts)}
    kept = admitted_rows(tokens, counts, rule.min_count, rule.max_size)
    path = os.path.join(folder, PARTS_FOLDER, name, number)
    fileio.makedirs(os.path.dirname(path))
    with fileio.open(path, "wb") as file:
        file.write(b"")
        for start in range(0, len(kept), _ROWS_OF_A_BLOCK):
            _write_block(file, tokens, counts, kept[start : start + _ROWS_OF_A_BLOCK])
    return name, {**facts, "kept": len(kept), "highest": int(counts.max(initial=0)), "path": path}


def _write_block(file: Any, tokens: pa.Array, counts: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> None:
    for message in write_counts(tokens.take(pa.array(rows)), counts[rows]):
        file.write(len(message).to_bytes(8, "big"))
        file.write(message)


def _blocks(path: str) -> Iterator[Block]:
    with fileio.open(path, "rb") as file:
        while size := file.read(8):
            yield read_counts(file.read(int.from_bytes(size, "big")))


def merge_parts(plan: CountingPlan, name: str, messages: Iterable[bytes], folder: str) -> Json:
    """Merge the parts of one vocabulary into its files.

    Args:
      plan: plan of the counting.
      name: name of the vocabulary.
      messages: facts of all sources, and the facts on each part that `write_part` returned, as JSON.
      folder: folder of the Vocabularies.

    Returns:
      Facts on the vocabulary for the report.

    Raises:
      DataError: a feature is absent, empty or of mixed type in the data as a whole, or a text vocabulary can hold none
        of the tokens.
      ConfigError: the thresholds leave out every token.
    """
    received, rule = list(messages), plan.rules[name]
    parts: list[Json] = [json.loads(message) for message in received if message[:1] == b"{"]
    parts.sort(key=lambda part: str(part["path"]))
    sums = {key: sum(part[key] for part in parts) for key in ("total", "represented", "distinct", "kept")}
    size = sums["kept"] if rule.max_size is None else min(sums["kept"], rule.max_size)
    features = summaries_of(plan, name, read_facts(received))
    if sums["distinct"] and not size:
        highest = max(part["highest"] for part in parts)
        raise no_token_left(name, rule.min_count, rule.max_size, sums["distinct"], highest)
    vocabulary = Vocabulary(
        name=name,
        tokens=pa.array([], pa.large_binary()),
        counts=np.zeros(0, np.int64),
        total_count=sums["total"],
        distinct=sums["distinct"],
        unrepresentable=sums["total"] - sums["represented"],
        min_count=rule.min_count,
        max_size=rule.max_size,
        private=plan.is_private(name),
        features=features,
    )
    check_any_token(name, size, vocabulary.unrepresentable)
    merged = merge_sorted([_blocks(part["path"]) for part in parts])
    facts = save_in_blocks(vocabulary, merged, size, folder)
    return {"size": size, **facts, "total_count": vocabulary.total_count, "private": vocabulary.private}
