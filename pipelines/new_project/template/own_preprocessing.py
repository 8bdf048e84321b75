"""Your own function for Transform; `preprocessing_fn: own_preprocessing.preprocessing_fn` in pipeline.yaml uses it."""

import tensorflow as tf

from pipelines import preprocessing
from pipelines.preprocessing import Inputs, Settings


def preprocessing_fn(inputs: Inputs, custom_config: Settings) -> dict[str, tf.Tensor]:
    """Return what the default function returns; add or change entries here.

    Args:
      inputs: raw columns by name.
      custom_config: the dense features and labels of pipeline.yaml.

    Returns:
      float32 tensors [B, 1] by name: dense features, labels and the sample weight.
    """
    return preprocessing.preprocessing_fn(inputs, custom_config)
