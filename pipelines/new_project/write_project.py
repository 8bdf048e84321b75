"""Makes the folder of a new project: the files of the template, and the configuration guessed from the data."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path

from embedding_core.errors import ConfigError
from embedding_core.storage import is_remote, whole_file
from pipelines.checks.data_check import DataCheck, check_data
from pipelines.checks.early_checks import check_data_settings
from pipelines.config import config_from_mapping, load_config
from pipelines.config.paths import resolve
from pipelines.config.yaml_text import parse_yaml
from pipelines.new_project.column_guess import guess_columns
from pipelines.new_project.config_text import config_text
from pipelines.new_project.data_look import look_at
from pipelines.new_project.label_guess import guess_label

CONFIG = "pipeline.yaml"
"""The name of the configuration in the folder."""

_PLACEHOLDER = "{{PIPELINE_NAME}}"  # of the templates of TFX, whose command `tfx template copy` copies ours too
_TEXTS = (".ipynb", ".md", ".py", ".yaml")


def template_folder() -> Path:
    """Return the folder of the template, for `tfx template copy --model`."""
    return Path(str(resources.files("pipelines"))) / "templates" / "project"


def write_project(folder: Path, data: str | None, label: str | None) -> DataCheck | None:
    """Write the files of a project.

    Args:
      folder: the project's folder; its name becomes that of the pipeline.
      data: path of the data; None takes the demo's data and its configuration.
      label: column of the label; None guesses it.

    Returns:
      what `validate --data` finds in the rows by the new configuration; None for the demo's.

    Raises:
      ConfigError: a file exists already, there is no such data, or no column can be a feature or a label.
      DataError: the data cannot be read.
    """
    name = re.sub(r"[^A-Za-z0-9_]+", "_", folder.absolute().name).strip("_")[:100] or "my_project"
    files = {path.name: path for path in sorted(template_folder().iterdir()) if path.is_file()}
    texts = {file: source.read_text(encoding="utf-8") for file, source in files.items()}
    texts = {file: text.replace(_PLACEHOLDER, name) if file.endswith(_TEXTS) else text for file, text in texts.items()}
    with _named(folder):
        _check_new(folder, texts)
    if data is not None:
        texts[CONFIG] = _guessed(folder, name, data, label)
    with _named(folder):
        _write(folder, texts)
    if data is None:
        return None
    config = load_config(folder / CONFIG)
    return check_data(config, check_data_settings(config))


@contextlib.contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Name the folder in an error of the file system."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{str(folder)!r} cannot be written ({error.strerror}): name a folder on a disk with space."
        ) from error


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write the files whole, the configuration last: until then the command may be repeated."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(texts, key=lambda file: file == CONFIG):
        with whole_file(folder / file) as half:
            Path(half).write_text(texts[file], encoding="utf-8")


def _check_new(folder: Path, texts: Mapping[str, str]) -> None:
    """Refuse a folder that has another file of a name of ours; ours may be there if the command was killed."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{str(folder)!r} is a file: name a new folder for the project.")
    there = [file for file in texts if (folder / file).exists() and not _is_ours(folder / file, texts[file])]
    if there:
        raise ConfigError(f"{str(folder)!r} has {', '.join(there)} already: nothing was written; name another folder.")


def _is_ours(path: Path, text: str) -> bool:
    return path.name != CONFIG and path.is_file() and path.read_bytes() == text.encode()


def _guessed(folder: Path, name: str, data: str, label: str | None) -> str:
    """Return the text of the configuration, which was checked."""
    look = look_at(data)
    guesses = guess_columns(look.columns)
    found = guess_label(look.columns, guesses, label)
    if not any(guess.role == "categorical" and guess.column != found.column for guess in guesses):
        columns = ", ".join(list(look.columns)[:10])
        raise ConfigError(
            f"`--data` is {data!r}: no column besides the label looks like tokens to embed ({columns}), and a model of "
            "this project needs at least one; write a configuration by hand."
        )
    text = config_text(name, _path_in(folder, data), look, found, guesses)
    config_from_mapping(parse_yaml(text, CONFIG).values, folder)
    return text


def _path_in(folder: Path, data: str) -> str:
    """Return the path as the configuration has it: relative if the data is in the project's folder."""
    if is_remote(data) or data.startswith("package:"):
        return data
    path = resolve(data, os.getcwd())
    inside = os.path.join(folder.absolute(), "")
    return path.removeprefix(inside) if path.startswith(inside) else path
