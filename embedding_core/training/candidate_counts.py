"""Counts the tokens of one feature, if the vocabulary's counts include other features."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from embedding_core.training.row_stream import batches_by_file
from embedding_core.training.training_inputs import Inputs, RowParser

Counts = npt.NDArray[np.int64]

_BATCH = 4096


def candidate_counts(
    inputs: Inputs, feature: str, files: Sequence[str], of_vocabularies: Mapping[str, Counts]
) -> Counts | None:
    """Return how often a feature has each token, int64 [tokens]; None if its vocabulary has no counts.

    If no other feature shares the vocabulary, these are the counts of the vocabulary. Otherwise, those counts include
    the tokens of the other features, such as a history, so the rows are read once more and counted. Both count all rows
    of the train split, the validation part too.

    Args:
      inputs: sources of the model's inputs.
      feature: the feature that names the candidate, or whose tokens are drawn as negatives.
      files: TFRecord files of the train split.
      of_vocabularies: counts by vocabulary.
    """
    config = inputs.config
    vocabulary = config.table_of(feature).vocabulary or ""
    sharing = [one for one in config.features if config.table_of(one.name).vocabulary == vocabulary]
    if vocabulary not in of_vocabularies or len(sharing) == 1:
        return of_vocabularies.get(vocabulary)
    parse = RowParser(dataclasses.replace(inputs, config=config.of_features([feature]), dense=())).traced()
    counts = np.zeros(len(of_vocabularies[vocabulary]), np.int64)
    for _, serialized in batches_by_file(files, _BATCH):
        ids = parse(serialized)["ids"][feature].flat_values.numpy()
        counts += np.bincount(ids[ids < len(counts)], minlength=len(counts))
    return counts
