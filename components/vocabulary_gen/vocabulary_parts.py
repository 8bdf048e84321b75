"""Makes vocabularies that no worker can hold in memory: counts and sorts tokens in parts, then merges the parts.

The hash of a token chooses its part. The counts of each part are added up separately, perhaps on another worker, and
written as sorted blocks below the artifact's folder. One worker then merges the parts, with one block of each in memory
at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tfx.dsl.io import fileio

from components.vocabulary_gen.assembling import check_any_token, read_facts, summaries_of
from components.vocabulary_gen.counting_plan import CountingPlan
from components.vocabulary_gen.source_counts import TOKENS
from components.vocabulary_gen.token_counts import merge_counts, read_counts, write_counts
from embedding_core.errors import ConfigError
from embedding_core.schema import Json
from embedding_core.vocabulary import (
    Block,
    Vocabulary,
    admitted_rows,
    merge_sorted,
    no_token_left,
    representable,
    save_in_blocks,
)

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
        if rule.parts > 1 and plan.has_base(name):
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
    parts = sorted((json.loads(one) for one in received if one[:1] == b"{"), key=lambda part: str(part["path"]))
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
    facts = save_in_blocks(vocabulary, merged, size, folder, open_file=fileio.open)
    return {"size": size, **facts, "total_count": vocabulary.total_count, "private": vocabulary.private}
