"""Gives a user's own run_fn the data, the tables and the model of the pipeline, for Keras' `fit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfx.components.trainer.fn_args_utils import FnArgs

from components.trainer.run import open_training, write_outputs
from embedding_core.training.keras_run import EmbeddingModel, KerasRun


class TrainerRun(KerasRun):
    """One training by a user's own `run_fn(fn_args)`, the function that TFX's Trainer calls.

    The function makes the model, fits it and writes it::

        def run_fn(fn_args):
            run = TrainerRun(fn_args)
            with run.scope():
                model = run.keras_model()
                model.compile("adam", tf_keras.losses.BinaryCrossentropy(from_logits=True))
                fitted = model.fit(run.train_data(), epochs=2, steps_per_epoch=run.steps_per_epoch)
            run.write(model, fitted.history)

    Attributes:
      config: tables and features.
      tasks: what the model is trained for, with the classes of multiclass labels.
    """

    def __init__(self, fn_args: FnArgs) -> None:
        """Open the artifacts.

        Args:
          fn_args: the argument of `run_fn`, made by the executor of EmbeddingTrainer.

        Raises:
          EmbeddingError: an artifact or a setting is invalid, or a setting needs the trainer's own loop.
        """
        self._fn_args = fn_args
        self._opened = open_training(fn_args)
        self.config, self.tasks = self._opened.config, self._opened.job.inputs.tasks
        super().__init__(self._opened.job)

    def write(self, model: EmbeddingModel, curves: Mapping[str, Sequence[float]]) -> None:
        """Write all that the nodes after the trainer need: the ModelRun, and the SavedModel with its signatures.

        Args:
          model: the trained model; see `KerasRun.save`.
          curves: `History.history` of Keras.

        Raises:
          EmbeddingError: the model was not trained, is not finite, or cannot be exported.
        """
        result = self.save(model, self._fn_args.model_run_dir, curves)
        write_outputs(self._fn_args, self._opened, result)
