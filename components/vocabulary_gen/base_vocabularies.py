"""Reads the vocabularies of a previous run, and evolves new ones from them."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tfx.dsl.io import fileio

from components.artifact_files import read_vocabularies
from components.vocabulary_gen.counting_plan import Base, CountingPlan
from components.vocabulary_gen.vocabulary_rules import Evolution
from embedding_core.columns.ids import TokenTable
from embedding_core.vocabulary import (
    FeatureSummary,
    Vocabulary,
    evolved_vocabulary,
    load_vocabulary,
    vocabulary_from_counts,
)


def read_base(folder: str, evolution: Evolution) -> Base:
    """Read and verify the vocabularies of a previous run.

    Args:
      folder: folder of its Vocabularies artifact.
      evolution: how the new vocabularies evolve from them.

    Raises:
      VocabularyError: a vocabulary is damaged, or there is none.
    """
    known = read_vocabularies(folder)
    sizes = {name: len(vocabulary) for name, vocabulary in known.items()}
    features = (vocabulary.features for vocabulary in known.values())
    columns = {name: summary.column for each in features for name, summary in each.items()}
    return Base(folder=folder, sizes=sizes, columns=columns, evolution=evolution)


def base_tables(plan: CountingPlan) -> dict[str, TokenTable] | None:
    """Make lookup tables of the tokens of the base, by vocabulary; None without a base."""
    if plan.base is None:
        return None
    names = [name for name in plan.rules if plan.has_base(name)]
    return {name: TokenTable(os.path.join(plan.base.folder, f"{name}.txt"), plan.base.sizes[name], 0) for name in names}


def make_vocabulary(
    plan: CountingPlan,
    name: str,
    tokens: pa.Array,
    counts: npt.NDArray[np.int64],
    features: Mapping[str, FeatureSummary],
) -> Vocabulary:
    """Make a vocabulary from counted tokens; evolve the vocabulary of that name in the base, if there is one.

    Args:
      plan: the plan of the counting.
      name: name of the vocabulary.
      tokens: [n] large_binary, each token once.
      counts: [n] int64.
      features: summary of each feature that feeds the vocabulary, by name.

    Raises:
      ConfigError: the thresholds leave out every token.
      VocabularyError: the base's vocabulary is damaged.
    """
    rule, private = plan.rules[name], plan.is_private(name)
    make = functools.partial(vocabulary_from_counts, name)
    if plan.base is not None and plan.has_base(name):
        base = load_vocabulary(plan.base.folder, name, open_file=fileio.open)
        make = functools.partial(evolved_vocabulary, base, **plan.base.evolution.evolution_rule())
    return make(tokens, counts, min_count=rule.min_count, max_size=rule.max_size, private=private, features=features)
