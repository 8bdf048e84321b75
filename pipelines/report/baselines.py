"""Measures the baselines that the model is compared with, in the same run and on the same rows.

The first is the label's mean (for a multiclass label, the classes' shares of the rows). The second is a regression on
the same features, one-hot encoded: logistic for classes, Poisson for a count, and ridge for any other number. The
strength of its regularisation is chosen on a part of the train split. The third, which the configuration must ask for,
is scikit-learn's gradient boosting of trees. If the train split has positive rows only (negatives are drawn while
training), none can be fitted: the baseline is then the candidate's popularity.

The scores of the baselines are kept in a file: a training on the same rows does not measure them again.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse
import sklearn
import tensorflow as tf
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.metrics import log_loss, mean_absolute_error, mean_poisson_deviance, mean_squared_error, roc_auc_score
from threadpoolctl import threadpool_limits

from components import progress
from components.evaluator.own_metrics import are_most_probable, class_log_losses
from embedding_core.evaluation import Predictions
from embedding_core.schema import Json
from embedding_core.storage import file_digest, read_json, whole_file
from embedding_core.tasks import Task, retrieval_index
from embedding_core.training.drawn_candidates import candidate_counts
from embedding_core.training.encoded_rows import rows_key
from embedding_core.training.row_stream import batches_once
from embedding_core.training.training_inputs import Batch, Inputs
from pipelines.config.metrics import Baseline
from pipelines.report.run_report import CLASS_METRICS, ERRORS, METRICS, THIS_MODEL

_MAX_ROWS = 200_000  # of each split: more would not change a digit that is shown
_BATCH = 4096
_STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # values of C, scikit-learn's inverse regularisation (default 1)
_ALPHAS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # values of alpha, for ridge and Poisson regression
_MAX_TREE_ROWS = 50_000  # of the train split: trees take longest
_OTHER_TOKENS = 254  # the code of all tokens after the most frequent ones: scikit-learn takes 255 categories
_HELD_BACK = 5  # one in this many rows of the train split is held back to compare the strengths

_TREES = "gradient-boosted trees"
_PROGRESS = "baselines"

Floats: TypeAlias = npt.NDArray[np.float64]
_Features: TypeAlias = Callable[[Inputs, Batch], Floats]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """How well one scorer does on the eval rows.

    Attributes:
      scorer: description of the scorer.
      label: name of the label, if there are several; else "".
      metrics: values by name of `METRICS`, `ERRORS` or `CLASS_METRICS`; None if undefined for the scorer or the rows.
      note: remark on the scorer for the reader; may be empty.
    """

    scorer: str
    metrics: Mapping[str, float | None]
    note: str = ""
    label: str = ""

    @property
    def shown(self) -> str:
        """The scorer, after the name of its label."""
        return f"{self.label}: {self.scorer}" if self.label else self.scorer


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Rows:
    """Rows of a split: with all labels as read, or with one label as `of` returns them."""

    features: scipy.sparse.csr_matrix | Floats  # [rows, columns]
    label: Floats  # [rows, labels]; after `of`, [rows]
    weight: Floats  # [rows]

    def of(self, at: int) -> _Rows:
        """Return the rows that have the label at position `at`, with this label alone."""
        known = ~np.isnan(self.label[:, at])
        return _Rows(features=self.features[known], label=self.label[known, at], weight=self.weight[known])


class Compared(NamedTuple):
    """The scores of model and baselines.

    Attributes:
      scores: those of a label, the model's first, then those of the next label.
      rows: number of eval rows.
      is_kept: whether the baselines were measured for a previous model.
    """

    scores: list[Score]
    rows: int
    is_kept: bool


def compare_with_baselines(
    inputs: Inputs,
    *,
    train_files: Sequence[str],
    eval_files: Sequence[str],
    predictions: Predictions,
    candidate: str | None,
    counts: Mapping[str, npt.NDArray[np.int64]],
    asked: Sequence[Baseline],
    kept: str,
    made_by: Json,
) -> Compared:
    """Score the model and the baselines on the eval split.

    Args:
      inputs: how rows are read, as in training.
      train_files: TFRecord files of the train split.
      eval_files: files of the eval split.
      predictions: what the model predicts for the rows of the eval split.
      candidate: the feature whose popularity is the baseline if the train split has one class.
      counts: count of each token in the train split, by vocabulary.
      asked: the baselines to measure.
      kept: file that keeps the scores of the baselines.
      made_by: JSON value that identifies the transform of `inputs`.
    """
    code = [
        file_digest(inspect.getfile(part)) for part in (compare_with_baselines, are_most_probable, candidate_counts)
    ]
    method = [code, sklearn.__version__, [task.name for task in inputs.tasks]]
    key = rows_key(inputs, [*train_files, *eval_files], made_by, candidate, method, list(asked))
    known = _kept_scores(kept, key)
    baselines = _measured(inputs, train_files, eval_files, candidate, counts, asked) if known is None else known
    if known is None:
        with whole_file(kept) as path, open(path, "w", encoding="utf-8") as file:
            json.dump({"key": key, "scores": [dataclasses.asdict(score) for score in baselines]}, file, indent=1)
    read = np.arange(len(predictions.weight)) < -(-_MAX_ROWS // _BATCH) * _BATCH
    scores = []
    for at, task in enumerate(inputs.tasks):
        label = _label_shown(inputs, at)
        judged = read & ~np.isnan(predictions.label[:, at])
        model = _score_of_model(task, *predictions.of(inputs.tasks, at, judged))
        scores += [dataclasses.replace(model, label=label), *(score for score in baselines if score.label == label)]
    return Compared(scores, int(read.sum()), known is not None)


def _kept_scores(path: str, key: str) -> list[Score] | None:
    """Read the kept scores of the baselines; None if they were measured on other rows."""
    try:
        kept: Json = read_json(path)
        return [Score(**score) for score in kept["scores"]] if kept["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or another release wrote it
        return None


def _label_shown(inputs: Inputs, at: int) -> str:
    return inputs.tasks[at].name if len(inputs.tasks) > 1 else ""


def _score_of_model(task: Task, label: Floats, weight: Floats, predicted: Floats) -> Score:
    """Score predictions, `[rows, width]`."""
    rows = _Rows(features=scipy.sparse.csr_matrix((len(label), 0)), label=label, weight=weight)
    if task.is_multiclass:
        return _score_of_classes(THIS_MODEL, predicted, rows)
    return (_score if task.is_binary else _errors)(THIS_MODEL, predicted[:, 0], rows)


def _measured(
    inputs: Inputs,
    train_files: Sequence[str],
    eval_files: Sequence[str],
    candidate: str | None,
    counts: Mapping[str, npt.NDArray[np.int64]],
    asked: Sequence[Baseline],
) -> list[Score]:
    """Fit the baselines, and score them on the eval split; arguments as in `compare_with_baselines`."""
    progress.begin(_PROGRESS, None)
    train, held_out = _read(inputs, train_files), _read(inputs, eval_files)
    scores = []
    # The solver multiplies many short vectors: BLAS threads wait for each other 20 times as long as they compute.
    with threadpool_limits(1, user_api="blas"):
        for at, task in enumerate(inputs.tasks):
            compare = _compared_classes if task.is_binary or task.is_multiclass else _compared_errors
            of_task = compare(task, asked, train.of(at), held_out.of(at))
            scores += [dataclasses.replace(score, label=_label_shown(inputs, at)) for score in of_task]
    at = retrieval_index(inputs.tasks)
    seen = None
    if candidate is not None and not _has_both_classes(train.of(at)):
        seen = candidate_counts(inputs, candidate, train_files, counts)
    if candidate is not None and seen is not None:
        judge = held_out.of(at)
        popularity = np.zeros(0)
        if _has_both_classes(judge):
            popularity = _popularity(inputs, eval_files, candidate, seen)[~np.isnan(held_out.label[:, at])]
        score = _score(f"popularity of {candidate}", popularity, judge, probability=False)
        scores.append(dataclasses.replace(score, label=_label_shown(inputs, at)))
    return [*scores, *(_scores_of_trees(inputs, train_files, eval_files, counts) if "trees" in asked else ())]


def _has_both_classes(rows: _Rows) -> bool:
    return len(np.unique(rows.label)) > 1


def _compared_classes(task: Task, asked: Sequence[Baseline], train: _Rows, held_out: _Rows) -> list[Score]:
    """Score the label's mean (or the classes' shares of the rows), and a logistic regression."""
    score = _score_of_classes if task.is_multiclass else _score
    scores: list[Score] = []
    if not _has_both_classes(train) or not train.weight.any():
        return scores
    if "mean" in asked:
        prior, name = _shares(task, train, len(held_out.label)), "mean of the label"
        scores.append(score("shares of the classes" if task.is_multiclass else name, prior, held_out))
    if "regression" in asked:
        model, is_chosen = _regression(train)
        predicted = _by_class(task, model, held_out)
        regression = score("logistic regression, one-hot", predicted, held_out)
        tried = _STRENGTHS if is_chosen else ()
        scores.append(dataclasses.replace(regression, note=_strength_note(f"C = {model.C:g}", tried, "log loss")))
    return scores


def _shares(task: Task, train: _Rows, rows: int) -> Floats:
    """Return the label's mean, `[rows]`, or the classes' shares of a multiclass label, `[rows, classes]`."""
    if not task.is_multiclass:
        return np.full(rows, np.average(train.label, weights=train.weight))
    counts = np.bincount(train.label.astype(np.int64), train.weight, minlength=task.width)
    return np.tile(counts / counts.sum(), (rows, 1))


def _by_class(task: Task, model: LogisticRegression | HistGradientBoostingClassifier, rows: _Rows) -> Floats:
    """Return the probability of label 1, or of each class, `[rows, classes]`; 0 for a class that no fitted row has."""
    predicted = _predictions(model.predict_proba, rows)
    if not task.is_multiclass:
        return predicted[:, -1]
    of_all = np.zeros((len(rows.label), task.width))
    of_all[:, model.classes_.astype(np.int64)] = predicted
    return of_all


def _predictions(predict: Callable[[Any], Floats], rows: _Rows) -> Floats:
    """Predict the rows; scikit-learn refuses to predict none."""
    return predict(rows.features) if len(rows.label) else np.zeros((0, 1))


def _score_of_classes(scorer: str, predicted: Floats, rows: _Rows) -> Score:
    """Score probabilities `[rows, classes]` as the Evaluator's metrics do."""
    if not rows.weight.any():
        return Score(scorer=scorer, metrics=dict.fromkeys(CLASS_METRICS))
    values = (
        float(np.average(of_rows(rows.label, predicted), weights=rows.weight))
        for of_rows in (are_most_probable, class_log_losses)
    )
    return Score(scorer=scorer, metrics=dict(zip(CLASS_METRICS, values, strict=True)))


def _compared_errors(task: Task, asked: Sequence[Baseline], train: _Rows, held_out: _Rows) -> list[Score]:
    """Score the label's mean and a regression, for a label that is a number."""
    scores: list[Score] = []
    if not train.weight.any():
        return scores
    if "mean" in asked:
        mean = np.full_like(held_out.label, np.average(train.label, weights=train.weight))
        scores.append(_errors("mean of the label", mean, held_out))
    if "regression" in asked:
        name = "Poisson regression" if task.kind == "count" else "ridge regression"
        model, strength, is_chosen = _number_regression(task, train)
        error = _errors(f"{name}, one-hot", _predictions(model.predict, held_out), held_out)
        tried = _ALPHAS if is_chosen else ()
        scores.append(dataclasses.replace(error, note=_strength_note(f"alpha = {strength:g}", tried, "error")))
    return scores


def _number_regression(task: Task, train: _Rows) -> tuple[Ridge | PoissonRegressor, float, bool]:
    """Fit the regression with the alpha that has the smallest error on held-back rows.

    Returns:
      The regression, this alpha, and whether there were enough rows to choose it.
    """
    held_back = _held_back(train)
    fit_on, judge = _some(train, ~held_back), _some(train, held_back)
    kind = PoissonRegressor if task.kind == "count" else Ridge
    loss = mean_poisson_deviance if task.kind == "count" else mean_squared_error
    # PoissonRegressor divides the loss by the sum of the weights, Ridge does not.
    scale = 1.0 / max(1.0, float(train.weight.sum())) if task.kind == "count" else 1.0
    best, least = _ALPHAS[-1], math.inf
    for alpha in _ALPHAS if len(judge.label) and judge.weight.any() and fit_on.weight.any() else ():
        model = kind(alpha=alpha * scale).fit(fit_on.features, fit_on.label, sample_weight=fit_on.weight)
        error = float(loss(judge.label, model.predict(judge.features), sample_weight=judge.weight))
        if error < least:
            best, least = alpha, error
    model = kind(alpha=best * scale).fit(train.features, train.label, sample_weight=train.weight)
    return model, best, least < math.inf


def _errors(scorer: str, predicted: Floats, rows: _Rows) -> Score:
    if not rows.weight.any():
        return Score(scorer=scorer, metrics=dict.fromkeys(ERRORS))
    squared = float(mean_squared_error(rows.label, predicted, sample_weight=rows.weight))
    absolute = float(mean_absolute_error(rows.label, predicted, sample_weight=rows.weight))
    return Score(scorer=scorer, metrics=dict(zip(ERRORS, (math.sqrt(squared), absolute), strict=True)))


def _held_back(train: _Rows) -> npt.NDArray[np.bool_]:
    """Draw the rows on which a regularisation is judged, with a fixed seed, so that a rerun draws the same rows."""
    drawn: npt.NDArray[np.bool_] = np.random.default_rng(0).permutation(len(train.label)) % _HELD_BACK == 0
    return drawn


def _batches(inputs: Inputs, files: Sequence[str], most: int = _MAX_ROWS) -> Iterator[Batch]:
    read = 0
    for _, serialized in batches_once(list(files), _BATCH):
        yield inputs.parse(serialized)
        rows = int(tf.size(serialized))
        read += rows
        progress.advance(_PROGRESS, rows)
        if read >= most:
            return


def _read(inputs: Inputs, files: Sequence[str], features_of: _Features | None = None, most: int = _MAX_ROWS) -> _Rows:
    """Read rows with one-hot features, or those of a function."""
    features, labels, weights = [], [], []
    for batch in _batches(inputs, files, most):
        features.append((features_of or _one_hot)(inputs, batch))
        labels.append(batch["label"].numpy())
        weights.append(batch["weight"].numpy()[:, 0])
    return _Rows(
        features=np.concatenate(features) if features_of else scipy.sparse.vstack(features, format="csr"),
        label=np.concatenate(labels).astype(np.float64),
        weight=np.concatenate(weights).astype(np.float64),
    )


def _one_hot(inputs: Inputs, batch: Batch) -> scipy.sparse.csr_matrix:
    """Build [B, sum of the tables' rows + dense]: counts of ids by feature, then the dense values."""
    blocks = []
    for feature in inputs.config.features:
        ids = batch["ids"][feature.name]
        splits, values = ids.row_splits.numpy(), ids.flat_values.numpy()
        shape = (len(splits) - 1, inputs.config.table_of(feature.name).vocabulary_size)
        blocks.append(scipy.sparse.csr_matrix((np.ones(len(values)), values, splits), shape=shape))
    blocks += [scipy.sparse.csr_matrix(batch["dense"][name].numpy()) for name in inputs.dense]
    return scipy.sparse.hstack(blocks, format="csr")


def _ranks(inputs: Inputs, counts: Mapping[str, npt.NDArray[np.int64]]) -> dict[str, npt.NDArray[np.int64]]:
    """Return the rank of each id by its count, by table; the ids of an extended vocabulary are in another order."""
    ranks = {}
    for table in inputs.config.tables:
        of_ids = counts.get(table.vocabulary or "")
        if of_ids is not None:
            order = np.argsort(-of_ids, kind="stable")
            ranks[table.name] = np.arange(table.vocabulary_size)
            ranks[table.name][order] = np.arange(len(order))
    return ranks


def _codes(ranks: Mapping[str, npt.NDArray[np.int64]], inputs: Inputs, batch: Batch) -> Floats:
    """Return [B, features + dense]: the rank of the first id, or `_OTHER_TOKENS`, or NaN; then the dense values."""
    columns = []
    for feature in inputs.config.features:
        first = batch["ids"][feature.name].to_tensor(-1, shape=[None, 1]).numpy()[:, 0]
        of_table = ranks.get(feature.table)
        rank = first if of_table is None else of_table[first]
        columns.append(np.where(first < 0, np.nan, np.minimum(rank, _OTHER_TOKENS)))
    columns += [batch["dense"][name].numpy()[:, 0] for name in inputs.dense]
    codes: Floats = np.stack(columns, axis=1).astype(np.float64)
    return codes


def _scores_of_trees(
    inputs: Inputs,
    train_files: Sequence[str],
    eval_files: Sequence[str],
    counts: Mapping[str, npt.NDArray[np.int64]],
) -> Iterator[Score]:
    """Fit trees for each label with scikit-learn's defaults, without early stopping, and score them."""
    codes = functools.partial(_codes, _ranks(inputs, counts))
    train = _read(inputs, train_files, codes, _MAX_TREE_ROWS)
    held_out = _read(inputs, eval_files, codes)
    progress.advance(_PROGRESS, 0, "fitting trees")
    settings = {"categorical_features": range(len(inputs.config.features)), "early_stopping": False, "random_state": 0}
    note = (
        f"The trees are scikit-learn's HistGradientBoosting on {len(train.label):,} rows of the train split, and tell "
        f"the {_OTHER_TOKENS} most frequent tokens of a column apart."
    )
    for at, task in enumerate(inputs.tasks):
        fit_on, judge, label = train.of(at), held_out.of(at), _label_shown(inputs, at)
        if not _has_both_classes(fit_on) or not fit_on.weight.any():
            continue
        if task.is_binary or task.is_multiclass:
            model = HistGradientBoostingClassifier(**settings)
            predicted = _by_class(task, model.fit(fit_on.features, fit_on.label, fit_on.weight), judge)
            score = (_score_of_classes if task.is_multiclass else _score)(_TREES, predicted, judge)
        else:
            loss = "poisson" if task.kind == "count" else "squared_error"
            model = HistGradientBoostingRegressor(loss=loss, **settings)
            model.fit(fit_on.features, fit_on.label, fit_on.weight)
            predicted = _predictions(model.predict, judge)
            score = _errors(_TREES, predicted, judge)
        yield dataclasses.replace(score, label=label, note=note)


def _regression(train: _Rows) -> tuple[LogisticRegression, bool]:
    """Fit the regression of the best strength on all rows, starting from the fit that chose the strength.

    Returns:
      The regression, and whether there were enough rows to choose its strength.
    """
    model = _of_best_strength(train)
    is_chosen = hasattr(model, "classes_")
    known = getattr(model, "classes_", train.label)
    if len(known) < len(np.unique(train.label)):  # all rows of a class were held back: the start lacks it
        model.set_params(warm_start=False)
    return model.fit(train.features, train.label, sample_weight=train.weight), is_chosen


def _of_best_strength(train: _Rows) -> LogisticRegression:
    """Choose the C with the lowest log loss on a part of the train split that the regression is not fitted on.

    The search starts with the strongest regularisation, and each fit starts from the previous one, until the loss no
    longer falls: the weakest regularisations take longest and are rarely fitted.

    Returns:
      The regression with this C, fitted on the rows that are not held back; unfitted if there are too few rows.
    """
    held_back = _held_back(train)
    fit_on, judge = _some(train, ~held_back), _some(train, held_back)
    best = model = LogisticRegression(max_iter=1000, warm_start=True)
    judge = _some(judge, np.isin(judge.label, fit_on.label))  # a rare class may have held-back rows only
    if min(len(np.unique(fit_on.label)), len(np.unique(judge.label))) < 2 or not judge.weight.any():
        return best
    least = math.inf
    for strength in _STRENGTHS:
        progress.advance(_PROGRESS, 0, f"fitting the regression with C = {strength:g}")
        model.set_params(C=strength).fit(fit_on.features, fit_on.label, sample_weight=fit_on.weight)
        predicted = model.predict_proba(judge.features)
        loss = float(log_loss(judge.label, predicted, sample_weight=judge.weight, labels=model.classes_))
        if loss >= least:
            break
        best, least = copy.deepcopy(model), loss
    return best


def _some(rows: _Rows, chosen: npt.NDArray[np.bool_]) -> _Rows:
    return _Rows(features=rows.features[chosen], label=rows.label[chosen], weight=rows.weight[chosen])


def _strength_note(strength: str, tried: Sequence[float], measure: str) -> str:
    """Say how a strength was chosen; `tried` is empty if it was not."""
    if not tried:
        return f"The regression has scikit-learn's {strength}: the train split has too few rows to choose among others."
    return (
        f"The regression has scikit-learn's {strength}, chosen among {tried[0]:g} to {tried[-1]:g} by the {measure} of "
        f"one in {_HELD_BACK} rows of the train split, and is then fitted on all of them."
    )


def _popularity(inputs: Inputs, files: Sequence[str], candidate: str, counts: npt.NDArray[np.int64]) -> Floats:
    by_id = np.zeros(inputs.config.table_of(candidate).vocabulary_size)
    by_id[: len(counts)] = counts
    sums = [
        tf.reduce_sum(tf.ragged.map_flat_values(lambda ids: tf.gather(by_id, ids), batch["ids"][candidate]), axis=1)
        for batch in _batches(inputs, files)
    ]
    return np.concatenate([part.numpy() for part in sums])


def _score(scorer: str, predicted: Floats, rows: _Rows, *, probability: bool = True) -> Score:
    if not _has_both_classes(rows) or not rows.weight.any():
        return Score(scorer=scorer, metrics=dict.fromkeys(METRICS))
    auc = float(roc_auc_score(rows.label, predicted, sample_weight=rows.weight))
    loss = float(log_loss(rows.label, predicted, sample_weight=rows.weight)) if probability else None
    return Score(scorer=scorer, metrics={"AUC": auc, "log loss": loss})
