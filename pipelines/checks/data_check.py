"""Reads the first rows of the data and describes in seconds what a run would make of each configured column."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence, Set

from components.example_gen.data_files import find_files
from components.example_gen.rows import SHOWN
from components.example_gen.sampling import Column, Sample, copies, sample
from components.example_gen.settings import Label, Settings
from components.example_gen.tally import Tally
from embedding_core.display import shown_token
from embedding_core.errors import DataError, nearest
from embedding_core.storage import file_digest
from pipelines.checks.column_codes import agreed, families, why_codes
from pipelines.config import PipelineConfig
from pipelines.config.column_rules import column_uses, private_columns
from pipelines.config.sections import data_location, eval_pattern
from pipelines.console.terminal import echo
from pipelines.pipeline import component_inputs

_LIST_SHARE = 0.3  # if at least this share of values contains a sign, it looks like a separator
_COPIED_SHARE = 0.99  # of the rows for evaluation: more that were trained on are no coincidence
_WIDTH = 60  # characters of a value that are shown
_FEW = 100  # fewer rows say nothing about how often values repeat


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataCheck:
    """The result of a check.

    Attributes:
      lines: descriptions of files, columns and rows.
      warnings: doubtful facts that a run would accept.
      refusals: what the quality gate will refuse every model for, however good it is.
      problems: errors that would end a run.
    """

    lines: tuple[str, ...]
    warnings: tuple[str, ...]
    refusals: tuple[str, ...]
    problems: tuple[str, ...]


def check_data(config: PipelineConfig, rows: int | None = None) -> DataCheck:
    """Check the first rows with ExampleGen's own readers and rules.

    Args:
      config: the configuration.
      rows: approximate number of rows to read; None is `bounds.SAMPLE_ROWS`.

    Raises:
      ConfigError: the settings break a rule of ExampleGen.
      DataError: the files do not exist or cannot be read.
    """
    settings = component_inputs.example_settings(config)
    base, pattern = data_location(config.data)
    data_format = component_inputs.data_format(config)
    data = find_files(base, pattern, data_format, settings.spans, eval_pattern(config.data))
    read = sample(data.files, data_format, settings, rows, data.eval)
    problems = [*map(str, copies(data, data_format, settings, functools.cache(file_digest)))]
    problems += _absent(read, settings, may_lack=data_format == "tfrecord")
    warnings = [*_column_warnings(config, read.columns, settings), *_eval_warnings(config, read, settings)]
    refusals: list[str] = []
    uses = _uses(config)
    lines = [_files_line([*data.files, *data.eval], read, settings)]
    if data.ignored:
        names = ", ".join(map(os.path.basename, data.ignored[:SHOWN]))
        lines.append(f"files that match and are ignored: {len(data.ignored):,}, such as {names}")
    for name in read.names:
        if name in read.columns and read.columns[name].rows:
            lines.append(_line(name, uses.get(name, "read by filters or the split"), read.columns[name], config))
    if read.tally is not None:
        paths = " and ".join(filter(None, (config.data.path, config.data.eval_path)))
        problems += _row_problems(read.tally, settings, paths, read.whole)
        lines += _tally_lines(read.tally, settings)
        if read.tally.has_too_many_bad(settings):  # what the other rows hold may follow from the bad ones
            warnings = [*_bad_warnings(read.tally, settings, read.whole)]
        elif read.whole and _needs_classes(config):
            problems += _one_class(read.tally, settings)
        else:
            warnings += _one_class(read.tally, settings)
        if read.whole and not problems:
            refusals += _few_eval_rows(config, read.tally, settings)
    return DataCheck(lines=tuple(lines), warnings=tuple(warnings), refusals=tuple(refusals), problems=tuple(problems))


def _files_line(files: Sequence[str], read: Sample, settings: Settings) -> str:
    rows = max((column.rows for column in read.columns.values()), default=0)
    which = "all" if read.whole else "the first"
    source = f"{len(read.files)} of {len(files)} files" if len(files) > 1 else files[0]
    names = [name for name in read.names if settings.shown_name(name) == name]
    others = len(read.names) - len(names)
    shown = [", ".join(names)] * bool(names) + [f"{others} other{'s' * (others > 1)}"] * bool(others)
    return f"{which} {rows:,} rows of {source}; columns: {' and '.join(shown)}"


def _absent(read: Sample, settings: Settings, *, may_lack: bool) -> Iterator[str]:
    """Yield the needed columns that are absent; if records may lack any, only those that no record of the data has."""
    names = dict.fromkeys(read.names)
    for name in settings.needed if read.whole or not may_lack else ():
        if name in read.lacking:
            if may_lack:
                continue
            file = os.path.basename(read.lacking[name])
            others = [settings.shown_name(other) for other in read.lacking if other != name]
            remedy = nearest(name, others) if others else "add it there, or leave the file out."
            yield f"column {name!r} is not in every file: {file} has none; {remedy}"
        elif name not in names and names:
            yield f"column {name!r} is missing: {nearest(name, map(settings.shown_name, names))}"


def _row_problems(tally: Tally, settings: Settings, data: str, whole: bool) -> Iterator[str]:
    """Yield the errors that would end a run; if only some rows were read, only errors that more rows cannot undo."""
    for certain, problem in tally.problems(settings, data):
        if whole or certain:
            yield str(problem)


def _bad_warnings(tally: Tally, settings: Settings, whole: bool) -> Iterator[str]:
    """Warn of too many bad rows, which end a run if the rows that were not read have as many."""
    if not whole and settings.allowed_bad_rate:
        yield (
            f"{tally.bad.count:,} of the {tally.read:,} rows that were read cannot be used, more than "
            f"`allowed_bad_rate` {settings.allowed_bad_rate:g} allows.{tally.bad.shown}"
        )


def _uses(config: PipelineConfig) -> Mapping[str, str]:
    """Describe what reads each column."""
    words: dict[str, list[str]] = {}
    for path, column, _ in column_uses(config):
        section, _, rest = path.partition(".")
        if section == "features":
            kind, _, index = rest.partition(".")
            name = getattr(config.features, kind)[int(index)].name
            words.setdefault(column, []).append(f"{kind} feature {name}")
        else:
            words.setdefault(column, []).append(section)
    histories = config.data.histories
    for column in () if histories is None else histories.read:
        words.setdefault(column, []).append("histories")
    return {column: ", ".join(parts) for column, parts in words.items()}


def _numbers(config: PipelineConfig) -> set[str]:
    """Return the columns of numbers; a text in such a column may come from a shifted row, and so be private."""
    labels = {label.column for label in config.targets.values()}  # texts, too, are binary labels
    return {column for _, column, kind in column_uses(config) if kind == "float"} - labels


def _line(name: str, uses: str, column: Column, config: PipelineConfig) -> str:
    private_names = private_columns(config)
    shifted = bool(private_names) and name in _numbers(config) and column.kind == "text"
    private = name in private_names or shifted
    shown = ", ".join(shown_token(value, private=private)[:_WIDTH] for value in column.first)
    missing = column.missing / max(1, column.rows)
    distinct = f"{column.distinct:,} distinct" if column.distinct else "no value"
    return f"{name} ({uses}): {column.kind}, {distinct}, {missing:.1%} missing" + (f"; {shown}" if shown else "")


def _tally_lines(tally: Tally, settings: Settings) -> Iterator[str]:
    rows = sum(tally.kept.values()) + tally.waiting
    rows += 0 if settings.histories is None else tally.outside + tally.short  # left out after labels were counted
    for name, labels in tally.labels.items():
        counted = sorted(labels.values.items(), key=lambda item: (-item[1], item[0]))[:10]
        values = ", ".join(f"{value} ({count:,} rows)" for value, count in counted)
        known = rows - labels.values.get(repr(None), 0)
        if values and known:
            label = settings.labels[name]
            positive = f"; {labels.positive / known:.1%} are positive" if label.kind == "binary" else ""
            yield f"label {label.column}: {values}{positive}"
    yield (
        f"rows: {tally.kept['train']:,} for train, {tally.kept['eval']:,} for eval, {sum(tally.filtered):,} filtered "
        f"out, {tally.outside:,} in neither split, {tally.bad.count:,} bad"
    )
    if 0 < tally.bad.count <= settings.allowed_bad_rate * tally.read:
        yield "set aside as bad, the first of them:"
        yield from (f"  {row}" for row in tally.bad.first)


def _needs_classes(config: PipelineConfig) -> bool:
    """Return whether training refuses rows of one class: it draws no negatives, and it is not the user's own."""
    return not config.training.draws_negatives and config.model.run_fn is None


def _one_class(tally: Tally, settings: Settings) -> Iterator[str]:
    """Describe the binary labels that have one value in all rows to train on."""
    for name, counts in tally.labels.items():
        label, rows = settings.labels[name], tally.kept["train"]
        column = tally.summaries["train"].get(label.data_column)
        if label.kind != "binary" or counts.other or column is None or not column.rows:
            continue
        if column.largest == 0 or (column.smallest == 1 and column.rows == rows):
            yield (
                f"label {label.column!r} is {column.largest:.0f} in all {column.rows:,} rows of the train split that "
                "were read: a model needs both classes, or `training.negatives`." + _remedy(label)
            )


def _few_eval_rows(config: PipelineConfig, tally: Tally, settings: Settings) -> Iterator[str]:
    """Describe the first part of the eval split that has fewer rows than the quality gate asks for."""
    rules = config.evaluation
    parts = [("the eval split", tally.kept["eval"], "min_rows", rules.min_rows)]
    for name, label in settings.labels.items():
        column = tally.summaries["eval"].get(label.data_column)
        if label.kind != "binary" or column is None:
            continue
        positives = round(column.total)
        where = f"the eval split with {f'label {name!r}' if len(settings.labels) > 1 else 'the label'}"
        for value, rows in ((0, column.rows - positives), (1, positives)):
            if rows or value or not config.training.draws_negatives:  # with drawn negatives, positives alone will do
                key = "min_rows_per_class"
                parts.append((f"{where} {value}", rows, key, rules.min_rows_per_class))
    for part, rows, key, least in parts:
        if rows < least:
            yield (
                f"{part} has {rows:,} rows, and `evaluation.{key}` is {least:,}, so every model will be refused: hold "
                "out more rows, or lower it and trust the figures less."
            )
            return


def _eval_warnings(config: PipelineConfig, read: Sample, settings: Settings) -> Iterator[str]:
    """Describe what is doubtful about the rows of `data.eval_path` beside those that are trained on."""
    if read.repeated > _COPIED_SHARE:
        yield (
            f"{read.repeated:.0%} of the rows of {config.data.eval_path!r} that were read are equal to rows that are "
            "trained on, in all columns that are read: a model cannot be judged by rows that it has seen."
        )
    for name in read.unknown:
        if settings.columns.get(name) == "token":
            yield (
                f"column {name!r} of {config.data.eval_path!r} has no value in common with the rows that are trained "
                "on: each of its tokens will be unknown; write it the same way in all files."
            )


def _remedy(label: Label) -> str:
    if not label.positive:
        return ""
    return (
        f" `label.positive` is {list(label.positive)!r}: it names values as the data writes them; a bound on a number "
        "is `label.above`."
    )


def _column_warnings(config: PipelineConfig, columns: Mapping[str, Column], settings: Settings) -> Iterator[str]:
    labels = (columns.get(label.column or "") for label in settings.labels.values())
    label = next((column for column in labels if column is not None), None)
    for feature in config.features.categorical:
        if feature.source in columns and not feature.after_transform:
            yield from _token_warnings(feature.name, feature.source, feature.separator, columns[feature.source])
    numbers = [dense for dense in config.features.dense if dense.source in columns]
    sources = {dense.source for dense in numbers}
    yield from _mixed_warnings(sources, config, columns)
    whys = agreed({name: why_codes(name, columns[name], label) for name in sources}, columns)
    for dense in numbers:
        yield from _value_warnings(dense.name, dense.source, columns[dense.source])
        why = whys[dense.source]
        if why is not None:
            yield (
                f"feature {dense.name!r}: the whole numbers of column {dense.source!r} look like codes ({why}); a "
                "dense feature reads 8 as twice 4: if they are codes, move it to `features.categorical`."
            )


def _mixed_warnings(dense: Set[str], config: PipelineConfig, columns: Mapping[str, Column]) -> Iterator[str]:
    """Warn of columns of one coding of which some are dense and some categorical."""
    tokens = {feature.source for feature in config.features.categorical}
    for family in families(columns):
        kinds = [[name for name in family if name in kind] for kind in (dense - tokens, tokens - dense)]
        if all(kinds):
            yield (
                f"columns {' and '.join(', '.join(names) for names in kinds)} have nearly the same values, but the "
                "first are dense features and the others categorical: give all of them one kind."
            )


def _value_warnings(feature: str, name: str, column: Column) -> Iterator[str]:
    if not column.distinct:
        yield f"feature {feature!r}: column {name!r} is empty in all {column.rows:,} rows that were read."
    elif column.distinct == 1 and column.rows > 1:
        yield f"feature {feature!r}: column {name!r} has one value in all rows that were read: it teaches nothing."


def _token_warnings(feature: str, name: str, separator: str | None, column: Column) -> Iterator[str]:
    yield from _value_warnings(feature, name, column)
    values = column.rows - column.missing
    if column.with_point:
        yield (
            f"feature {feature!r}: {column.with_point:,} values of column {name!r} are whole numbers with a decimal "
            f"point, such as 3.0, and 3 would be another token; `data: {{whole_numbers: [{name}]}}` reads them as 3."
        )
    if separator is None:
        for sign, share in column.several.items():
            if share >= _LIST_SHARE:
                yield (
                    f"feature {feature!r}: {share:.0%} of the values of column {name!r} contain {sign!r}: if they are "
                    f"lists, give the feature `separator: {sign!r}`; without it, each whole text is one token."
                )
                break
    elif values and "lists" not in column.kind and not _may_split(column, separator):
        yield (
            f"feature {feature!r}: `separator` is {separator!r}, and no value of column {name!r} in the rows that "
            "were read is split by it."
        )
    if separator is None and values >= _FEW and column.distinct > 0.9 * values:
        yield (
            f"feature {feature!r}: {column.distinct:,} of {values:,} values of column {name!r} are different: each row "
            "of the table is trained on one example, and most future values will be unknown."
        )


def _may_split(column: Column, separator: str) -> bool:
    """Return whether the separator splits a value; of signs that are not looked for, in the most frequent values."""
    return separator in column.several or any(separator.encode() in value for value, _ in column.frequent)


def print_check(check: DataCheck) -> None:
    """Print the lines and, on standard error, the warnings; then see `refuse`."""
    for line in check.lines:
        echo(line)
    for warning in check.warnings:
        echo(f"warning: {warning}", err=True)
    refuse(check)


def refuse(check: DataCheck) -> None:
    """Print what every model will be refused for, and raise one error with a line for every problem.

    Raises:
      DataError: a run would fail.
    """
    for refusal in check.refusals:
        echo(f"warning: {refusal}", err=True)
    if check.problems:
        raise DataError("\n".join(check.problems))
