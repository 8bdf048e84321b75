"""Defines the section `beam`: where the work of Beam's components is done."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from components.installed import is_installed
from embedding_core.schema import Mistakes, Section, Text

_SCHEMES = ("tcp://", "tls://")


class Beam(Section):
    """Where Beam's components (ExampleGen, StatisticsGen, Transform, VocabularyGen, Evaluator) do their work.

    Attributes:
      runner: "in_process" works in the process of the run, or in `data.workers` processes; "dask" on a Dask cluster,
        whose workers need tfx-embeddings[dask], the modules of `python_path` and the files of the run. Flink, Spark
        and Dataflow are for compiled pipelines: see `kubeflow.beam_args`.
      address: address of the Dask scheduler, such as tcp://10.0.0.5:8786.
    """

    runner: Literal["in_process", "dask"] = "in_process"
    address: Text | None = None

    def mistakes(self) -> Mistakes:
        """Yield the mistakes that involve several fields, and a missing package."""
        if self.runner == "in_process":
            if self.address is not None:
                yield "address", f"is {self.address!r}, but `beam.runner` is 'in_process': leave it out, or name dask."
            return
        if self.address is None or not self.address.startswith(_SCHEMES):
            rule = "it must be the address of a Dask scheduler, such as tcp://10.0.0.5:8786."
            yield "address", f"is {self.address!r}: {rule}"
        if not is_installed("distributed"):
            yield "runner", "is 'dask', but the package distributed is missing: install tfx-embeddings[dask]."


class BeamKeys(Section):
    """Keys that the room adds to the whole file.

    Attributes:
      beam: where the work of Beam's components is done.
    """

    beam: Beam = Field(default_factory=Beam)


def dask_address(config: object) -> str | None:
    """Return the address of the Dask scheduler if the configuration chooses Dask."""
    if isinstance(config, BeamKeys) and config.beam.runner == "dask":
        return str(config.beam.address)
    return None


KEYS = {"": BeamKeys}
