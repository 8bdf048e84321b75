"""Checks the rules that involve several sections. A rule runs only if the sections that it reads have no mistakes."""

from __future__ import annotations

from components.example_gen.data_files import find_files
from components.example_gen.row_selection import SplitByHash
from components.example_gen.settings import EXTENSIONS, format_of
from embedding_core.errors import ConfigError, DataError, nearest
from embedding_core.rooms import hooks
from embedding_core.schema import Mistakes
from embedding_core.storage import is_remote
from embedding_core.training_config import rate_scales_rows
from pipelines.config.column_rules import DECLARED, column_uses, label_columns, label_paths, reads
from pipelines.config.metadata_server import MetadataServer, is_server
from pipelines.config.pipeline_config import BUILT_IN_MODELS, RETRIEVAL_MODELS, PipelineConfig
from pipelines.config.sections import (
    NoFilesError,
    data_files,
    data_location,
    data_spans,
    eval_pattern,
    literal_mistakes,
    missing_spans,
)
from pipelines.config.user_modules import (
    GIVEN_BY_TRAINER,
    Argument,
    accepts,
    build_arguments,
    check_not_shadowed,
    defines,
    parse_module,
)

# Checks where versions are pushed, in which form, and which versions they are compared with.


@reads("work_dir")
def _work_dir_is_literal(config: PipelineConfig) -> Mistakes:
    yield from literal_mistakes("work_dir", config.work_dir)


@reads("push")
def _destination_is_literal(config: PipelineConfig) -> Mistakes:
    yield from literal_mistakes("push.destination", config.push.destination)


@reads("evaluation")
def _baseline_is_literal(config: PipelineConfig) -> Mistakes:
    yield from literal_mistakes("evaluation.baseline", config.evaluation.baseline)


@reads("features", "push")
def _tables_of_rows_dtype_exist(config: PipelineConfig) -> Mistakes:
    tables = dict.fromkeys(feature.table_name for feature in config.features.categorical)
    given = config.push.rows_dtype
    for name in () if isinstance(given, str) else given:
        if name not in tables:
            yield f"push.rows_dtype.{name}", f"is not a table: {nearest(name, tables)}"


# Checks the other rules that involve several sections.


@reads("metadata")
def _server_has_an_address(config: PipelineConfig) -> Mistakes:
    if config.metadata is None or not is_server(config.metadata):
        return
    try:
        MetadataServer.of(config.metadata)
    except ConfigError as error:
        yield "metadata", str(error).removeprefix("`metadata` ")


@reads("data")
def _data_is_there(config: PipelineConfig) -> Mistakes:
    data = config.data
    if "**" in data.path:
        yield "data.path", f"is {data.path!r}: `**` (folders at any depth) is not known here; use * for each folder."
        return
    try:
        formats = {format_of(file) for file in data_files(data)}
    except ConfigError as error:
        yield "data.path", str(error)
        return
    if data.format is None and len(formats) > 1:
        known = ", ".join(sorted(map(str, formats)))
        yield "data.path", f"is {data.path!r}: its files are of several formats ({known}); give a glob of one."
    if data.format is None and formats == {None}:
        known = f"is null, and {data.path!r} has none of the known extensions, {EXTENSIONS}"
        yield "data.format", f"{known}: set it to csv, tfrecord or parquet."
    if data.format is None and formats - {"csv", None} and data.changed:
        yield f"data.{data.changed[0]}", f"is given, but the files of {data.path!r} are not CSV: leave it out."


@reads("data", "split")
def _eval_data_is_there(config: PipelineConfig) -> Mistakes:
    data, path = config.data, config.data.eval_path
    if path is None:
        return
    if config.split != SplitByHash():
        rule = "all of its rows are for evaluation, and all of `data.path` for training; leave out one of the two."
        yield "data.eval_path", f"is {path!r}, and `split` is given too: {rule}"
    if "**" in path:
        yield "data.eval_path", f"is {path!r}: `**` (folders at any depth) is not known here; use * for each folder."
    elif not is_remote(path):
        try:
            known = {data.format or format_of(file) for file in data_files(data)}
            files = find_files(*data_location(data), data.format, data_spans(data), eval_pattern(data)).eval
        except NoFilesError:  # another rule reports that `data.path` has no file
            return
        except DataError as error:
            yield "data.eval_path", f"is {path!r}: {error}"
            return
        others = {format_of(file) for file in files} - known
        if data.format is None and others:
            yield "data.eval_path", f"is {path!r}: its files must be of the format of `data.path`; write them so."


@reads("data")
def _no_span_is_missing(config: PipelineConfig) -> Mistakes:
    spans = config.data.spans
    if spans is None or spans.missing != "error":
        return
    try:
        gaps = missing_spans(config.data)
    except ConfigError:  # another rule reports that no file matches
        return
    if gaps.total:
        yield (
            "data.spans.missing",
            (
                f"is 'error', and {gaps.total} spans of {config.data.path!r} have no file: {gaps}; bring their files, "
                "change `first` and `last`, or set it to warn."
            ),
        )


@reads("label", "labels", "preprocessing_fn")
def _label_is_computed(config: PipelineConfig) -> Mistakes:
    for path, label in label_paths(config):
        if label.key is not None and config.preprocessing_fn is None:
            yield f"{path}.key", f"is {label.key!r}, but `preprocessing_fn` is null: name the function that returns it."


@reads("label", "labels", "features", "preprocessing_fn")
def _label_is_not_a_feature(config: PipelineConfig) -> Mistakes:
    columns, keys = label_columns(config), [task.key for task in config.tasks]
    for kind in ("categorical", "dense"):
        for index, feature in enumerate(getattr(config.features, kind)):
            if feature.source in columns and not getattr(feature, "after_transform", False):
                yield (
                    f"features.{kind}.{index}",
                    f"reads column {feature.source!r}, the label's: the model would see the answer; remove it.",
                )
            if feature.name in keys and (kind == "dense" or getattr(feature, "after_transform", False)):
                yield (
                    f"features.{kind}.{index}.name",
                    f"is {feature.name!r}, the label's key after Transform; rename it.",
                )


@reads("label", "labels", "sample_weight")
def _weight_is_not_a_label(config: PipelineConfig) -> Mistakes:
    if config.sample_weight is not None and config.sample_weight in [
        target.column for target in config.targets.values()
    ]:
        yield "sample_weight", f"is {config.sample_weight!r}, the label's column: name the column of weights, or null."


@reads("label", "labels", "class_weights", "training")
def _label_is_binary_if_needed(config: PipelineConfig) -> Mistakes:
    tasks, training = config.tasks, config.training
    only = "there are several labels" if len(tasks) > 1 else f"`label.kind` is {tasks[0].kind!r}"
    if len(tasks) > 1 or not tasks[0].is_binary:
        if config.class_weights:
            yield "class_weights", f"is given, but {only}: only the classes of one binary label have weights."
        if training.negatives is not None:
            yield "training.negatives", f"is given, but {only}: negatives are rows of label 0; leave it out."
    stopping = training.early_stopping
    if stopping is not None and stopping.metric == "auc" and not all(task.is_binary for task in tasks):
        yield "training.early_stopping.metric", "is 'auc', but a label is not binary: write loss."
    positives = [path for path, label in label_paths(config) if label.kind == "positive"]
    for path in positives:
        if training.softmax is None and (len(tasks) > 1 or training.negatives is None):
            rule = "it needs `training.softmax`, or `training.negatives` if it is the only label."
            yield f"{path}.kind", f"is 'positive': {rule}"
        if path != positives[0]:
            yield f"{path}.kind", f"is 'positive', as is `{positives[0]}.kind`: every row is one event; remove one."


@reads("label", "labels", "class_weights", "features", "training", "model")
def _softmax_fits(config: PipelineConfig) -> Mistakes:
    training, softmax = config.training, config.training.softmax
    if softmax is None:
        return
    features = [feature.name for feature in config.features.categorical]
    if softmax.feature not in features:
        rule = f"it must be a categorical feature; {nearest(softmax.feature, features)}"
        yield "training.softmax.feature", f"is {softmax.feature!r}: {rule}"
    yield from _has_one_token(config, "training.softmax.feature", softmax.feature)
    kinds = [task.kind for task in config.tasks]
    if "positive" not in kinds and kinds != ["binary"]:
        rule = "no label is of kind positive" if len(kinds) > 1 else "the label is not one of kind positive or binary"
        yield "training.softmax", f"is given, but {rule}: leave it out."
    if config.class_weights:
        yield "class_weights", "is given, and so is `training.softmax`, which has no classes: leave it out."
    if training.early_stopping is not None and training.early_stopping.metric == "auc":
        yield "training.early_stopping.metric", "is 'auc', but `training.softmax` is given: write loss."
    if config.model.name in BUILT_IN_MODELS and config.model.name not in RETRIEVAL_MODELS:
        rule = f"it trains one of {', '.join(RETRIEVAL_MODELS)}."
        yield "training.softmax", f"is given, but `model.name` is {config.model.name!r}: {rule}"
    candidate = config.model.arguments.get("candidate_features")
    if isinstance(candidate, list | tuple) and candidate and softmax.feature not in candidate:
        rule = f"but the candidate tower reads {list(candidate)}: name the one of them that names the candidate."
        yield "training.softmax.feature", f"is {softmax.feature!r}, {rule}"
    known = [*features, *(feature.name for feature in config.features.dense)]
    for index, name in enumerate(softmax.candidate_features):
        if name not in known:
            rule = f"it must be a feature; {nearest(name, known)}"
            yield f"training.softmax.candidate_features.{index}", f"is {name!r}: {rule}"


@reads("label", "labels")
def _labels_have_columns_of_their_own(config: PipelineConfig) -> Mistakes:
    seen: dict[str, str] = {}
    for path, label in label_paths(config):
        if label.column is not None and seen.setdefault(label.column, path) != path:
            rule = f"which `{seen[label.column]}` reads too: compute one of the two in your `preprocessing_fn`."
            yield f"{path}.column", f"is {label.column!r}, {rule}"


@reads("label", "labels", "evaluation")
def _labels_that_may_lack_are_evaluated_in_one_pass(config: PipelineConfig) -> Mistakes:
    if config.evaluation.engine != "tfma":
        return
    if len(config.tasks) > 1:
        yield "evaluation.engine", "is 'tfma', which cannot leave out rows that lack one of several labels."
    elif config.tasks[0].is_multiclass:
        yield "evaluation.engine", "is 'tfma', which cannot leave out rows of a class that the train split lacks."


@reads("label", "labels", "evaluation")
def _metrics_fit_the_label(config: PipelineConfig) -> Mistakes:
    for key, mistake in config.evaluation.mistakes_for(config.tasks):
        yield f"evaluation.{key}", mistake


@reads("class_weights")
def _classes_are_numbers(config: PipelineConfig) -> Mistakes:
    for key in config.class_weights:
        if key not in ("0", "1"):
            yield f"class_weights.{key}", "is not a value of the label: it must be 0 or 1."


@reads("features", "preprocessing_fn")
def _transformed_features_exist(config: PipelineConfig) -> Mistakes:
    for index, feature in enumerate(config.features.categorical):
        if feature.after_transform and config.preprocessing_fn is None:
            yield (
                f"features.categorical.{index}.after_transform",
                "is True, but `preprocessing_fn` is null: name the function that returns the column, or read it raw.",
            )


@reads("features", "vocabularies", "tables")
def _vocabularies_and_tables_are_used(config: PipelineConfig) -> Mistakes:
    features = config.features.categorical
    for section, used in (
        ("vocabularies", [feature.vocabulary_name for feature in features]),
        ("tables", [feature.table_name for feature in features]),
    ):
        for name in getattr(config, section):
            if name not in used:
                yield f"{section}.{name}", f"belongs to no feature: {nearest(name, dict.fromkeys(used))}"


@reads("features", "label", "labels", "columns", "sample_weight", "evaluation")
def _columns_are_of_one_kind(config: PipelineConfig) -> Mistakes:
    kinds: dict[str, str] = {}
    for path, column, kind in column_uses(config):
        if column not in label_columns(config) and kinds.setdefault(column, kind) != kind:
            other = kinds[column]
            text = (
                f"reads column {column!r} as a {kind}, which is read as a {other} elsewhere: a column is of one kind; "
            )
            yield path, f"{text}derive the second from it in your `preprocessing_fn`."


@reads("features", "tables", "training")
def _no_rate_of_ftrl_falls(config: PipelineConfig) -> Mistakes:
    training, fall = config.training, "while `training.decay` is 'linear', they would fall to 0 with its rate"
    if training.decay == "none":
        return
    if training.dense_optimizer.name == "ftrl":
        yield "training.dense_optimizer", f"is 'ftrl', which scales weights: {fall}; choose another, or leave out one."
    given = {f"tables.{name}.optimizer": table.optimizer for name, table in config.tables.items()}
    for path, optimizer in {**given, "training.table_optimizer": training.table_optimizer}.items():
        if optimizer is not None and rate_scales_rows(optimizer):
            remedy = "set its `multiply_linear_by_learning_rate`, or leave out `decay`"
            yield path, f"is {optimizer.name!r}, which scales rows: {fall}; {remedy}."


@reads("features", "training")
def _negatives_are_drawn_for_a_feature(config: PipelineConfig) -> Mistakes:
    known = [feature.name for feature in config.features.categorical]
    negatives = config.training.negatives
    if negatives is None:
        return
    named = {f"candidate_features.{index}": name for index, name in enumerate(negatives.candidate_features)}
    for key, name in {"feature": negatives.feature, **named}.items():
        if name not in known:
            rule = f"it must be a categorical feature; {nearest(name, known)}"
            yield f"training.negatives.{key}", f"is {name!r}: {rule}"
    if not negatives.within_batch:  # otherwise all tokens of another row are taken
        yield from _has_one_token(config, "training.negatives.feature", negatives.feature)


def _has_one_token(config: PipelineConfig, path: str, name: str) -> Mistakes:
    """Refuse a feature of several tokens a row, of which none names the row's candidate."""
    for feature in config.features.categorical:
        if feature.name == name and (feature.multivalent or feature.separator is not None):
            key = "multivalent" if feature.multivalent else "separator"
            rule = f"but a row has one candidate, and this feature holds several tokens a row (`{key}`)"
            yield path, f"is {name!r}, {rule}: name a feature of one token a row, or leave out its `{key}`."


@reads("python_path")
def _nothing_shadows_us(config: PipelineConfig) -> Mistakes:
    try:
        check_not_shadowed(config.python_path)
    except ConfigError as error:
        yield "python_path", f"is {config.python_path!r}: {error}"


@reads("preprocessing_fn", "python_path")
def _preprocessing_function_exists(config: PipelineConfig) -> Mistakes:
    yield from _function_exists("preprocessing_fn", config.preprocessing_fn, config.python_path)


@reads("model", "python_path")
def _run_fn_exists(config: PipelineConfig) -> Mistakes:
    yield from _function_exists("model.run_fn", config.model.run_fn, config.python_path)


@reads("model", "training", "warm_start")
def _run_fn_trains_what_is_configured(config: PipelineConfig) -> Mistakes:
    if config.model.run_fn is None:
        return
    for path, given in (("warm_start", config.warm_start), ("training.softmax", config.training.softmax)):
        if given is not None:
            yield path, "is given, and so is `model.run_fn`: only the trainer's own loop does this; leave out one."


@reads("gates", "python_path")
def _gates_exist(config: PipelineConfig) -> Mistakes:
    for index, gate in enumerate(config.gates):
        yield from _function_exists(f"gates.{index}", gate, config.python_path, "class, such as my_module.MyGate")


def _function_exists(path: str, dotted: str | None, python_path: str, what: str = "") -> Mistakes:
    """Refuse a dotted path that does not lead to a function or class at the top level of a module."""
    if dotted is None:
        return
    what = what or f"function, such as my_module.{path.rpartition('.')[2]}"
    module, _, function = dotted.rpartition(".")
    try:
        if not module:
            raise ConfigError(f"it must be the dotted path of a {what}.")
        if not defines(parse_module(module, python_path), function):
            raise ConfigError(
                f"module {module!r} has no {function!r} at its top level; define it, or correct the path."
            )
    except ConfigError as error:
        yield path, f"is {dotted!r}: {error}"


@reads("model", "features")
def _towers_are_of_features(config: PipelineConfig) -> Mistakes:
    if config.model.module != BUILT_IN_MODELS["two_tower"]:
        return
    features = [feature.name for feature in config.features.categorical]
    features += [feature.name for feature in config.features.dense]
    seen: dict[str, str] = {}
    for argument in ("query_features", "candidate_features"):
        path, names = f"model.arguments.{argument}", config.model.arguments.get(argument)
        if not isinstance(names, list | tuple):
            continue  # the check of the argument's type reports it
        if not names:
            yield path, "is []: it must name at least one feature; " + nearest("", features)
        for index, name in enumerate(names):
            if not isinstance(name, str):
                continue
            if name not in features:
                yield f"{path}.{index}", f"is {name!r}: it must be a feature; {nearest(name, features)}"
            elif seen.setdefault(name, argument) != argument:
                yield f"{path}.{index}", f"is {name!r}, which is in `{seen[name]}` too: name it in one of the two."


@reads("model", "evaluation")
def _rankings_are_of_two_towers(config: PipelineConfig) -> Mistakes:
    if config.model.name not in BUILT_IN_MODELS or config.model.name in RETRIEVAL_MODELS:
        return
    evaluation, given = config.evaluation, f"needs a model that retrieves, but `model.name` is {config.model.name!r}"
    for index, name in enumerate(evaluation.metrics or ()):
        if name in evaluation.ranked:
            yield f"evaluation.metrics.{index}", f"is {name!r}, which {given}: leave it out, or write two_tower."
    for name in evaluation.retrieval:
        yield f"evaluation.thresholds.{name}", f"{given}: leave it out, or write two_tower."
    if evaluation.exclude_seen:
        yield "evaluation.exclude_seen", f"is True, which {given}: leave it out, or write two_tower."
    if evaluation.user is not None and "GroupAUC" not in (evaluation.metrics or ()):
        yield "evaluation.user", f"is {evaluation.user!r}, but nothing reads it: add GroupAUC to `evaluation.metrics`."


@reads("features", "evaluation")
def _something_was_seen(config: PipelineConfig) -> Mistakes:
    if not config.evaluation.exclude_seen or config.evaluation.user is not None:
        return
    vocabularies = [feature.vocabulary_name for feature in config.features.categorical]
    if len(set(vocabularies)) == len(vocabularies):
        rule = "`evaluation.user` is null and no two features share a vocabulary, as a history and its items would"
        yield "evaluation.exclude_seen", f"is True, but {rule}: name the column of the user."


@reads("model", "label", "labels", "python_path")
def _model_takes_its_arguments(config: PipelineConfig) -> Mistakes:
    model = config.model
    try:
        tree = parse_module(model.module, config.python_path)
    except ConfigError as error:
        yield (
            "model.name",
            f"is {model.name!r}: {error} For one that comes with us, {nearest(model.name, BUILT_IN_MODELS)}",
        )
        return
    if not defines(tree, "build"):
        yield "model.name", f"is {model.name!r}: the module must define `build(config, embeddings, dense, *, ...)`."
        return
    known = build_arguments(tree)
    if known is not None:
        yield from _arguments_fit(config, known)


def _arguments_fit(config: PipelineConfig, known: dict[str, Argument]) -> Mistakes:
    given = config.model.arguments
    for name in GIVEN_BY_TRAINER:
        if name in given:
            yield f"model.arguments.{name}", "is given: the trainer passes it to `build`; leave it out."
    if "tasks" not in known:
        rule = f"but `build` of {config.model.module!r} has no argument `tasks`: it computes one output; see ranking."
        if len(config.tasks) > 1:
            yield "labels", f"are {[task.name for task in config.tasks]}, {rule}"
        for path, label in label_paths(config) if len(config.tasks) == 1 else ():
            if label.kind == "multiclass":
                yield f"{path}.kind", f"is 'multiclass', {rule}"
    owner = f"`build` of {config.model.module!r}"
    for name, value in given.items():
        if name in GIVEN_BY_TRAINER:
            continue
        if name not in known:
            yield f"model.arguments.{name}", f"is not an argument of {owner}: {nearest(name, known)}"
        elif not accepts(known[name].annotation, value):
            rule = f"{owner} takes {known[name].annotation} there; write such a value."
            yield f"model.arguments.{name}", f"is {value!r}: {rule}"
    for name, argument in known.items():
        if argument.required and name not in given and name not in GIVEN_BY_TRAINER:
            yield f"model.arguments.{name}", f"is missing: {owner} has no default for it; give it a value."


RULES = [*DECLARED, *(rule for room in hooks("pipelines", "rules") for rule in room.RULES)]
"""All rules, those of the optional rooms included, each with the sections that it reads."""
