"""Wraps TensorFlow's own classes for a real TPU, to give them checked copies of the caller's configurations."""

from __future__ import annotations

import tensorflow as tf

from embedding_core.engines.hardware_configs import copied_configs
from embedding_core.feature_specs import FeatureConfigs
from embedding_core.translate import GivenOptimizer, model_of


class HardwareTPUEmbedding(tf.tpu.experimental.embedding.TPUEmbedding):
    """TensorFlow's own class on a real TPU (V1), given copies of the caller's configurations."""

    def __init__(
        self,
        feature_config: FeatureConfigs,
        optimizer: GivenOptimizer,
        pipeline_execution_with_tensor_core: bool = False,
    ):
        model_of(feature_config, optimizer, needs_optimizer=True)  # refuses what TensorFlow would silently accept
        super().__init__(*copied_configs(feature_config, optimizer), pipeline_execution_with_tensor_core)
