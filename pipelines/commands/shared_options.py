"""Declares the arguments, options and exit codes that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file of the pipeline.", show_default=False)]
Override = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, such as training.batch_size=512."),
]
Slice = Annotated[
    str | None,
    typer.Option(
        "--slice", "--topology", metavar="SLICE", help="The TPU slice, such as v5e-4; by default `training.topology`."
    ),
]
TableConfigsFolder = Annotated[
    Path | None,
    typer.Option(
        "--table-configs", metavar="FOLDER", help="TableConfigs of a run; by default of the last run, if any."
    ),
]
AssumedTokens = Annotated[
    int, typer.Option("--assume", metavar="TOKENS", min=1, help="Size of vocabularies that have no `max_size`.")
]
CompilerPython = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Python of the environment with the TPU compiler; by default TPU_COMPILER_PYTHON, or what `make "
        "tpu-compiler` made in this folder.",
    ),
]
SparseCorePython = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Python of the environment with the compiler for SparseCores; by default SPARSECORE_COMPILER_PYTHON, or "
        "what `make sparsecore-compiler` made in this folder.",
    ),
]


# Names the exit codes of commands, beside 0, 1 after an error and 2 after wrong usage.

NOTHING_PUSHED = 3
FINDINGS = 4  # of `preflight`; of `shadow`: a bound is missed
PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: try again
STOPPED = 130  # as shells report Ctrl-C
