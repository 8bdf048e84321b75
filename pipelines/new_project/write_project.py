"""Makes the folder of a new project: the files of the template, and the configuration guessed from the data."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from components.example_gen.sampling import Column, value_texts
from components.example_gen.values import instant
from embedding_core.display import printable
from embedding_core.errors import ConfigError
from embedding_core.storage import is_remote, whole_file
from pipelines.checks.column_codes import is_whole
from pipelines.checks.data_check import DataCheck, check_data
from pipelines.config import config_from_mapping
from pipelines.config.loading import parse_yaml, yaml_of
from pipelines.config.sections import resolve
from pipelines.new_project.column_guess import (
    Guess,
    LabelGuess,
    facts,
    feature_names,
    guess_columns,
    guess_label,
    read_by_towers,
)
from pipelines.new_project.data_look import DataLook, look_at

# Writes the guessed configuration as YAML, with the reason of each guess in a comment.

_PLAIN = re.compile(r"\w[\w./ \-]*(?<! )")  # text that means itself, also inside of brackets
_COLUMN = 60  # where comments begin, if the line is short enough
_MANY = 1_000  # tokens; a vocabulary of more leaves out those that occur once
_LEAST_BAD_RATE = 0.01
_EVAL_ROWS = 500  # with fewer rows in all, the eval split has fewer than `evaluation.min_rows`


def config_text(
    name: str, path: str, look: DataLook, label: LabelGuess, guesses: Sequence[Guess], eval_path: str | None = None
) -> str:
    """Return the text of the YAML file.

    Args:
      name: name of the pipeline.
      path: path of the data, as the file shall have it.
      look: what the data's first rows hold.
      label: the guessed label.
      guesses: the role of each column; the label's own role is ignored.
      eval_path: path of the rows for evaluation alone, if there are any.
    """
    features = [guess for guess in guesses if guess.column != label.column]
    names = feature_names([guess.column for guess in features])
    lines = [
        *_header(look),
        f"name: {_flow(name)}",
        "",
        *_data(path, eval_path, look, features),
        "",
        *_label(label, look),
        *(_split(features, look) if eval_path is None else ()),
        "",
        *_features(features, names),
        *_vocabularies(features, names, look),
        *_model(label, names),
        *_left_out(features, look),
        *(_few_rows(look) if eval_path is None else ()),
    ]
    return "\n".join(lines) + "\n"


def _header(look: DataLook) -> Iterator[str]:
    rows = f"all {look.rows:,}" if look.whole else f"the first {look.rows:,}"
    of = f" of {len(look.files)} files" if len(look.files) > 1 else ""
    yield f"# Written by `tfx-embeddings init` from {rows} rows{of}. A comment that begins with `guess:` marks a guess:"
    yield "# correct what is wrong, then run `tfx-embeddings validate` on this file, with --data for the columns."


def _data(path: str, eval_path: str | None, look: DataLook, features: Sequence[Guess]) -> Iterator[str]:
    yield "data:"
    yield f"  path: {_flow(path)}"
    if eval_path is not None:
        yield f"  eval_path: {_flow(eval_path)}"
    for key, value in look.section.items():
        yield _with_comment(f"  {key}: {_flow(value)}", f"guess: {look.reasons[key]}")
    tokens = [guess.column for guess in features if guess.role == "categorical"]
    pointed = [name for name in tokens if look.columns[name].with_point and is_whole(look.columns[name])]
    if pointed:
        yield _with_comment(f"  whole_numbers: {_flow(pointed)}", "guess: 3.0 is the token 3")
    if look.bad:
        rate = max(_LEAST_BAD_RATE, math.ceil(200 * look.bad / look.rows) / 100)
        yield _with_comment(
            f"  allowed_bad_rate: {min(rate, 0.5):g}", f"guess: {look.bad:,} of these rows cannot be read"
        )


def _label(label: LabelGuess, look: DataLook) -> Iterator[str]:
    yield f"# guess: {printable(label.why)}"
    if label.column is not None:
        yield f"#   {printable(label.column)}: {facts(look.columns[label.column])}"
    given = label.label
    yield f"label: {_flow(given['column'] if set(given) == {'column'} else given)}"
    if label.only_with_label:
        condition = {"column": label.column, "present": True}
        yield _with_comment(f"row_filters: [{_flow(condition)}]", "guess: rows without a label teach nothing")


def _split(features: Sequence[Guess], look: DataLook) -> Iterator[str]:
    """Suggest a split by time in a comment: the first rows do not say which moment divides all rows well."""
    for column in [guess.column for guess in features if guess.role == "time"][:1]:
        before = _late(look.columns[column])
        if before is not None:
            example = {"by": "time", "column": column, "before": before}
            yield f"# A fifth of the rows is held out by chance. To hold out the latest rows: split: {_flow(example)}"


def _late(column: Column) -> str | None:
    """Return a day or a second before which about 80% of the rows are; None if there is none."""
    moments = []
    for text in (text for piece in column.pieces for text in value_texts(piece).drop_null().to_pylist()):
        with contextlib.suppress(ValueError, OverflowError):
            moments.append(instant(text.decode("utf-8", "replace")))
    if not moments:  # as of times of the day
        return None
    moments.sort()
    late = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=moments[len(moments) * 4 // 5])
    texts = (late.date().isoformat(), late.isoformat(timespec="seconds"))
    return next((text for text in texts if instant(text) > moments[0]), None)


def _features(features: Sequence[Guess], names: Mapping[str, str]) -> Iterator[str]:
    yield "features:"
    for role in ("dense", "categorical"):
        chosen = [guess for guess in features if guess.role == role]
        if chosen:
            yield f"  {role}:"
        for guess in chosen:
            name = names[guess.column]
            column = {} if name == guess.column else {"column": guess.column}
            given = {"name": name, **column, **guess.options}
            yield _with_comment(f"    - {_flow(name if set(given) == {'name'} else given)}", f"guess: {guess.why}")


def _vocabularies(features: Sequence[Guess], names: Mapping[str, str], look: DataLook) -> Iterator[str]:
    large = {
        str(guess.options.get("vocabulary", names[guess.column])): look.columns[guess.column].distinct
        for guess in features
        if guess.role == "categorical" and look.columns[guess.column].distinct > _MANY
    }
    if large:
        yield ""
        yield "vocabularies:"
    for name, distinct in large.items():
        line = f"  {_flow(name)}: {_flow({'min_count': 2})}"
        yield _with_comment(line, f"guess: {distinct:,} tokens; one that occurs once is learned from one row")


def _model(label: LabelGuess, names: Mapping[str, str]) -> Iterator[str]:
    if label.model is None:
        return
    arguments = {key: [names[name] for name in given] for key, given in label.model["arguments"].items()}
    yield ""
    yield "# guess: a retrieval model is pushed only if it ranks better than popularity does"
    yield f"model: {_flow({**label.model, 'arguments': arguments})}"
    if label.softmax is not None:
        yield f"training: {_flow({'softmax': names[label.softmax]})}"


def _left_out(features: Sequence[Guess], look: DataLook) -> Iterator[str]:
    left_out = [(guess.column, guess.why) for guess in features if guess.role in ("left_out", "time")]
    left_out += look.unreadable.items()
    if left_out:
        yield ""
        yield "# Columns that are left out:"
    for column, why in left_out:
        yield f"#   {printable(column)}: guess: {printable(why)}"


def _few_rows(look: DataLook) -> Iterator[str]:
    if look.whole and look.rows < _EVAL_ROWS:
        yield ""
        yield f"# The data has {look.rows:,} rows, so its eval split has fewer than 100: a model judged on them is not"
        yield "# pushed. To push one to try things out: evaluation: {min_rows: 1, min_rows_per_class: 1}"


def _with_comment(line: str, comment: str) -> str:
    return f"{line}{' ' * max(2, _COLUMN - len(line))}# {printable(comment)}"


def _flow(value: Any) -> str:
    """Write a value as YAML on one line, which `parse_yaml` reads back unchanged."""
    if isinstance(value, str):
        plain = bool(_PLAIN.fullmatch(value)) and yaml_of({"k": value}) == f"k: {value}\n"
        if plain or value.isprintable():
            return value if plain else json.dumps(value, ensure_ascii=False)
        return yaml.safe_dump(value, default_style='"', width=math.inf).strip()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(str(key))}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()


CONFIG = "pipeline.yaml"
"""The name of the configuration in the folder."""

_PLACEHOLDER = "{{PIPELINE_NAME}}"  # of the templates of TFX, whose command `tfx template copy` copies ours too
_TEXTS = (".ipynb", ".md", ".py", ".yaml")


def template_folder() -> Path:
    """Return the folder of the template, for `tfx template copy --model`."""
    return Path(__file__).parent / "template"


def write_project(folder: Path, data: str | None, label: str | None, eval_data: str | None = None) -> DataCheck | None:
    """Write the files of a project.

    Args:
      folder: the project's folder; its name becomes that of the pipeline.
      data: path of the data; None takes the demo's data and its configuration.
      label: column of the label; None guesses it.
      eval_data: path of the rows for evaluation alone; None holds out rows of `data`.

    Returns:
      what was decided and what `validate --data` finds in the rows by the new configuration; None for the demo's.

    Raises:
      ConfigError: a file exists already, there is no such data, no column can be a feature or a label, or `eval_data`
        is given without `data`.
      DataError: the data cannot be read.
    """
    if eval_data is not None and data is None:
        raise ConfigError(f"`--eval` is {eval_data!r}, and there is no `--data`: give the rows for training too.")
    name = re.sub(r"[^A-Za-z0-9_]+", "_", folder.absolute().name).strip("_")[:100] or "my_project"
    files = {path.name: path for path in sorted(template_folder().iterdir()) if path.is_file()}
    texts = {file: source.read_text(encoding="utf-8") for file, source in files.items()}
    texts = {file: text.replace(_PLACEHOLDER, name) if file.endswith(_TEXTS) else text for file, text in texts.items()}
    with _named(folder):
        _check_new(folder, texts)
    if data is None:
        with _named(folder):
            _write(folder, texts)
        return None
    texts[CONFIG] = _guessed(folder, name, data, label, eval_data)
    config = config_from_mapping(parse_yaml(texts[CONFIG], CONFIG).values, folder)
    check = check_data(config)  # before a file is written: `init` may be repeated if it fails
    with _named(folder):
        _write(folder, texts)
    label = "none, rows are positive events"
    if config.label is not None and config.label.column is not None:
        label = f"{config.label.column} ({config.label.kind})"
    model = "two towers" if config.model.name == "two_tower" else "ranking"
    return dataclasses.replace(check, lines=(f"label: {label}; model: {model}", *check.lines))


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
        raise ConfigError(
            f"{str(folder)!r} is a file: name a new folder for the project, and give data with `--data`, such as "
            f"`init my_project --data {folder}`."
        )
    there = [file for file in texts if (folder / file).exists() and not _is_ours(folder / file, texts[file])]
    if there:
        raise ConfigError(f"{str(folder)!r} has {', '.join(there)} already: nothing was written; name another folder.")


def _is_ours(path: Path, text: str) -> bool:
    return path.name != CONFIG and path.is_file() and path.read_bytes() == text.encode()


def _guessed(folder: Path, name: str, data: str, label: str | None, eval_data: str | None) -> str:
    """Return the text of the configuration."""
    look = look_at(data)
    guesses = guess_columns(look.columns, whole=look.whole)
    guessed = guess_label(look.columns, guesses, label)
    if guessed.column is not None:
        guesses = guess_columns(look.columns, look.columns[guessed.column], whole=look.whole)
    guesses = read_by_towers(guesses, guessed)
    if not any(guess.role == "categorical" and guess.column != guessed.column for guess in guesses):
        columns = ", ".join(list(look.columns)[:10])
        raise ConfigError(
            f"`--data` is {data!r}: no column besides the label looks like tokens to embed ({columns}), and a model of "
            "this project needs at least one; write a configuration by hand."
        )
    eval_path = None if eval_data is None else _path_in(folder, eval_data)
    return config_text(name, _path_in(folder, data), look, guessed, guesses, eval_path)


def _path_in(folder: Path, data: str) -> str:
    """Return the path as the configuration has it: relative if the data is in the project's folder."""
    if is_remote(data) or data.startswith("package:"):
        return data
    path = resolve(data, os.getcwd())
    inside = os.path.join(folder.absolute(), "")
    return path.removeprefix(inside) if path.startswith(inside) else path
