"""Defines `tfx-embeddings shadow`, which replays recorded requests on two versions and compares their answers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from components.installed import require_package
from components.shadow.keys import log_files, shadow_of
from embedding_core.errors import CheckpointError, ConfigError
from embedding_core.rooms import hooks
from embedding_core.shadow.shadow_rules import ShadowRules
from pipelines.commands.shared_options import FINDINGS, AsJson
from pipelines.console.quiet import load_tensorflow
from pipelines.console.terminal import SafeConsole, echo

if TYPE_CHECKING:
    from embedding_core.shadow.replay import VersionProcess
    from embedding_core.shadow.request_rows import Visibility

_INSTALL = "install it in the release of your TensorFlow, or tfx-embeddings[tfx]"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(shadow)


def shadow(
    old: Annotated[str, typer.Argument(metavar="OLD", help="Folder of the version served now.", show_default=False)],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Folder of the version to judge.", show_default=False)],
    requests: Annotated[
        str, typer.Argument(metavar="REQUESTS", help="Request log, or a glob of such files.", show_default=False)
    ],
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Take the bounds from the section `shadow` of this YAML file.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the section, such as latency.p95=1.5."),
    ] = None,
    public: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="Show the values of this column even if a version does not say that they are public."
        ),
    ] = None,
    secret_variable: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Environment variable of the secret that updates of a version need."),
    ] = None,
    out: Annotated[str | None, typer.Option(metavar="FOLDER", help="Folder for the page and its JSON.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay recorded requests on two versions: differences of answers, refusals, latency and memory.

    A version that has updates answers with all of them applied, as a server does.

    Exit code 4: the new version does not keep to a bound.
    """
    require_package("tensorflow_serving", "`shadow` needs tensorflow-serving-api, which is not installed", _INSTALL)
    rules = _rules(config, overrides or [])
    for version in (old, new):
        _require_model(version)
    log_files(requests)
    if out is not None:
        _make_folder(out)
    load_tensorflow()
    from components.shadow.request_log import read_requests
    from embedding_core.shadow.replay import VersionProcess, replay
    from pipelines.shadow.page import print_shadow, save_shadow

    shown = _public(old).both(_public(new)).with_columns(public or ())
    with VersionProcess(old) as first, VersionProcess(new) as second:
        for process in (first, second):
            _apply_updates(process, secret_variable)
        report = replay((first, second), read_requests(requests), rules, shown)
    figures = report.to_json()
    if out is not None:
        save_shadow(figures, out)
    if as_json:
        echo(json.dumps(figures, indent=1))
    else:
        print_shadow(figures, SafeConsole(highlight=False))
    if not report.passed:
        raise typer.Exit(FINDINGS)


def _apply_updates(version: VersionProcess, secret_variable: str | None) -> None:
    """Apply the updates that were pushed for a version, if there are any.

    Raises:
      ConfigError: the secret is not set.
      CheckpointError: an update is missing or damaged.
      EmbeddingError: the version refuses an update, as it does if the secret is another one.
    """
    import tensorflow as tf

    def ask(signature: str, inputs: Mapping[str, Any]) -> Any:
        tensors = {
            key: tf.make_tensor_proto(value, tf.int64 if isinstance(value, int) else tf.string).SerializeToString()
            for key, value in inputs.items()
        }
        return version.ask(signature, tensors, (), f"the updates of {version.path!r}")

    for room in hooks("components", "client"):
        version.deltas += room.apply_updates(version.path, ask, secret_variable)


def _rules(config: Path | None, overrides: Sequence[str]) -> ShadowRules:
    """Read the rules from the section of a configuration, or from `--set` alone.

    Raises:
      ConfigError: the configuration has no such section, or a value breaks its rule.
    """
    if config is not None:
        from pipelines.config import load_config

        section = shadow_of(load_config(config, [f"shadow.{override}" for override in overrides]))
        if section is None:
            raise ConfigError(f"`--config` is {os.fspath(config)!r}, which has no section `shadow`: add it.")
        return section.rules()
    from pipelines.config.loading import apply_overrides

    mistakes: list[str] = []
    values = apply_overrides(ShadowRules, {}, overrides, {}, mistakes)
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return ShadowRules.from_mapping(values)


def _require_model(version: str) -> None:
    """Refuse a folder without a SavedModel.

    Raises:
      ConfigError: there is none.
    """
    from components.pusher.served import MODEL
    from embedding_core.storage import exists

    if not exists(os.path.join(version, MODEL)):
        raise ConfigError(f"{version!r} has no {MODEL!r}: give the folder of one version, such as served/1790000000.")


def _public(version: str) -> Visibility:
    """Return what a version says may be shown: nothing if it is not a version that EmbeddingPusher published."""
    from components.pusher.served import read_facts
    from embedding_core.shadow.request_rows import Visibility

    try:
        facts = read_facts(version).get("public")
    except CheckpointError:
        return Visibility()
    return Visibility() if facts is None else Visibility.from_json(facts)


def _make_folder(out: str) -> None:
    try:
        os.makedirs(out, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"`--out` is {out!r}, which cannot be made ({error}): name another folder.") from error
