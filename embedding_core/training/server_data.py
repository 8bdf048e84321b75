"""The batches of a job whose workers read the rows themselves, each block of rows by the worker that trains on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from embedding_core.errors import DataError
from embedding_core.record_files import record_compression
from embedding_core.tracing import without_internals
from embedding_core.training.device_choice import Batches, Placement
from embedding_core.training.host_files import HostRows, refuse_bound_transform
from embedding_core.training.job import JobData, Sampler, TrainingJob, read_batches
from embedding_core.training.kept_rows import RowsFolder
from embedding_core.training.row_stream import records_of, require_files, require_rows, rows_in
from embedding_core.training.server_steps import EvaluatedBlocks, TrainedBlocks, coordinator
from embedding_core.training.step_blocks import BlockPlan, piece_batches


class ServerData(JobData):
    """The batches of a job as blocks of rows, see `step_blocks`; the attributes are those of `JobData`.

    A step has rows of one file, so the last step of each file may be short.
    """

    def __init__(
        self,
        job: TrainingJob,
        placement: Placement,
        folder: RowsFolder | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Let the workers count the rows; arguments and errors are those of `JobData`, and rows are not encoded."""
        refuse_bound_transform(job.inputs, "every worker")
        self._plans: dict[str, BlockPlan] = {}
        super().__init__(job, placement, None, check)

    def _plan(self, split: str) -> BlockPlan:
        if split not in self._plans:
            files, training = self._files[split], self._job.training
            self._plans[split] = BlockPlan(
                files,
                _count(files, split, self._keep.get(split)),
                training.batch_size,
                seed=training.seed,
                buffer=training.shuffle_buffer,
            )
        return self._plans[split]

    def _files_by_host(self, split: str) -> list[HostRows]:
        return [HostRows(tuple(self._files[split]), self._plan(split).rows)]

    def _steps(self, split: str) -> int:
        return self._plan(split).steps

    def _shuffled(self, split: str, start: int, before: int) -> Batches:
        whole = min(self._job.training.batch_size, self.rows)
        return TrainedBlocks(self._plan(split), self._reading(split, self._sampler, before, whole), start)

    def _once(self, split: str) -> Iterable[Any]:
        return EvaluatedBlocks(self._plan(split), self._reading(split, self._sampler_once(split), 0, None))

    def _reading(
        self, split: str, sampler: Sampler | None, before: int, whole: float | None
    ) -> Callable[[Sequence[tf.Tensor]], tf.data.Dataset]:
        """Return the function that makes the batches of a piece, in the graph of a worker."""
        training, keep, parser = self._job.training, self._keep.get(split), self._parser()
        compression = record_compression(self._files[split])

        def batches(piece: Sequence[tf.Tensor]) -> tf.data.Dataset:
            records = piece_batches(piece, compression, keep, batch_size=training.batch_size, seed=training.seed)
            numbered = records.map(lambda step, rows: (before + step, rows))
            return read_batches(numbered, parser, sampler, self._job.inputs.config, whole)

        return batches


def _reason(error: tf.errors.OpError) -> str:
    """Return the line of a worker's error that names the file; the others are about the graph."""
    lines = [line.strip() for line in error.message.splitlines() if "; " in line]
    return without_internals(lines[0] if lines else error.message)


def _count(files: Sequence[str], split: str, keep: Callable[[tf.Tensor], tf.Tensor] | None) -> list[int]:
    """Let the workers count the kept rows of each file.

    Raises:
      DataError: there are no files or no rows, a file is damaged, or a worker cannot open it.
    """
    require_files(files, split)
    compression = record_compression(files)

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)  # type: ignore[untyped-decorator]
    def count(file: tf.Tensor) -> tf.Tensor:
        return rows_in(records_of(file, compression, keep))

    workers = coordinator()
    try:
        counts = [workers.schedule(count, args=(tf.constant(name),)) for name in files]
        workers.join()
        rows = [int(one.fetch()) for one in counts]
    except (tf.errors.NotFoundError, tf.errors.DataLossError, tf.errors.PermissionDeniedError) as error:
        raise DataError(
            f"a worker cannot read the {split} split ({_reason(error)}): all tasks of the cluster "
            "need the data, the vocabularies and the work_dir at the same paths or addresses."
        ) from error
    require_rows(sum(rows), files, split)
    return rows
