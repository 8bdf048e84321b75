"""Declares the section `follow`: how spans are trained as they arrive."""

from __future__ import annotations

from embedding_core.schema import Positive, PositiveNumber, Section


class Follow(Section):
    """How `tfx-embeddings follow` runs the pipeline on spans as they arrive.

    Attributes:
      poll_seconds: seconds from one look for new files to the next.
      spans_per_run: largest number of spans that one run reads; null reads all that have arrived. The first run, which
        starts cold, reads all in either case.
      full_run_every: number of runs from one that analyses its data again, with Transform, to the next. The runs in
        between keep the TransformGraph of the run that they start from, which a delta push needs.
      keep_runs: number of the newest runs whose artifacts and reports are kept. The files of older ones are removed
        from `work_dir`; their lineage, the pushed versions and the reports of these stay.
      wait_seconds: longest time to wait while another command uses `work_dir`, in seconds; after it, `follow` ends with
        an error that names the process.
    """

    poll_seconds: PositiveNumber = 5.0
    spans_per_run: Positive | None = None
    full_run_every: Positive = 100
    keep_runs: Positive = 20
    wait_seconds: PositiveNumber = 3600.0
