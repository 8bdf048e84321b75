"""Declares the arguments, options and exit codes that several commands share."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embedding_core.errors import ConfigError

if TYPE_CHECKING:
    from pipelines.config import PipelineConfig

_OPTION = inspect.Parameter.KEYWORD_ONLY
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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AssumedTokens = Annotated[
    int | None,
    typer.Option(
        "--assume",
        metavar="TOKENS",
        min=1,
        help="Size of vocabularies that have no `max_size`; by default the tokens of the data are counted.",
    ),
]


def with_options_of(functions: Sequence[Callable[..., Any]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the keyword-only parameters of functions to a command, as options.

    Returns:
      A decorator of the command, whose first parameter is not an option: it receives the functions, with what the
      user gave for their options.
    """

    def extend(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        added = [
            [option for option in inspect.signature(each, eval_str=True).parameters.values() if option.kind is _OPTION]
            for each in functions
        ]

        @functools.wraps(command)
        def extended(**given: Any) -> None:
            bound = [
                functools.partial(each, **{option.name: given.pop(option.name) for option in options})
                for each, options in zip(functions, added, strict=True)
            ]
            command(bound, **given)

        parameters = [*list(signature.parameters.values())[1:], *itertools.chain(*added)]
        vars(extended)["__signature__"] = signature.replace(parameters=parameters)
        return extended

    return extend


def refuse_beside(option: str, **others: object) -> None:
    """Refuse options that have no effect beside another one; None is an option that is not given.

    Raises:
      ConfigError: one of them is given.
    """
    for name, value in others.items():
        if value is not None:
            raise ConfigError(f"`{option}` is given, and so is `--{name.replace('_', '-')}`: leave out one of them.")


def load_checked(config: Path, overrides: Sequence[str] | None) -> PipelineConfig:
    """Load a configuration, and check it by ExampleGen's own rules too."""
    from pipelines.config import load_config
    from pipelines.pipeline.component_inputs import example_settings

    checked = load_config(config, overrides or ())
    example_settings(checked)
    return checked


# Names the exit codes of commands, beside 0, 1 after an error and 2 after wrong usage.

NOTHING_PUSHED = 3
FINDINGS = 4  # of `preflight`; of `shadow`: a bound is missed
PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: try again
STOPPED = 130  # as shells report Ctrl-C
