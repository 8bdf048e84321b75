import sys

import pytest

from embedding_core.errors import ConfigError
from embedding_core.training_config import DEFAULT_EPOCHS
from pipelines.config import SplitByHash, Threshold, load_config

pytestmark = pytest.mark.light
SOFTMAX = "\ntraining: {softmax: item}\nmodel: of_labels"
TOWERS = "{name: two_tower, arguments: {query_features: [item], candidate_features: [other]}}"


def test_defaults_need_only_data_label_and_features(load, minimal, folder):
    config = load(minimal)
    assert config.name == "my"
    assert config.data.path == str(folder / "rows.csv")
    assert config.data.format == "csv"
    assert config.split == SplitByHash()
    assert config.work_dir == str(folder / "runs" / "my")
    assert config.push_destination == str(folder / "runs" / "my" / "serving")
    assert config.model.module == "pipelines.models.ranking"


def test_short_forms_equal_long_forms(load, minimal):
    long = """
        data: {path: rows.csv}
        label: {column: bought}
        features: {categorical: [{name: item}]}
        model: {name: ranking}
        """
    assert load(minimal) == load(long)


def test_every_default_that_has_a_value_is_written_out(load, minimal, folder):
    written = load(minimal).to_mapping()
    assert written["training"]["epochs"] == DEFAULT_EPOCHS
    assert written["model"]["arguments"]["hidden_units"] == [64, 32]
    assert written["features"]["categorical"][0]["table"] == "item"
    assert written["push"]["destination"] == str(folder / "runs" / "my" / "serving")
    assert load(minimal + "training: {steps: 5}").training.epochs is None


@pytest.mark.parametrize(("source", "normalize"), [("softmax", True), ("negatives", False)])
def test_vectors_that_a_softmax_trains_have_unit_length(load, source, normalize):
    text = f"data: {{path: rows.csv}}\nlabel: {{kind: positive}}\nmodel: {TOWERS}\ntraining: {{{source}: other}}\n"
    text += "features: {categorical: [item, other]}"
    config = load(text)
    assert config.model.arguments["normalize"] is normalize
    assert load(text.replace("name: two_tower", "name: pipelines.models.two_tower")) == config
    given = load(text.replace(TOWERS, TOWERS.replace("arguments: {", "arguments: {normalize: false, ")))
    assert given.model.arguments["normalize"] is False
    if source == "softmax":
        assert (config.training.softmax.temperature, given.training.softmax.temperature) == (0.15, 1)
        given = load(text.replace("softmax: other", "softmax: {feature: other, temperature: 0.2}"))
        assert given.training.softmax.temperature == 0.2
        sequences = text.replace(TOWERS, "{name: sequential, arguments: {history: item, candidate: other}}")
        given = load(sequences.replace("[item", "[{name: item, separator: '|', max_sequence_length: 3}"))
        assert given.training.softmax.temperature == 0.1


def test_arguments_of_a_models_own_build_are_written_out(load, minimal, folder):
    (folder / "mine.py").write_text("def build(c, e, d, *, depth=3, width: int = len('ab'), rate=0.1): ...")
    config = load(minimal + "model: {name: mine, arguments: {rate: 0.5}}")
    assert config.model.arguments == {"depth": 3, "rate": 0.5}


def test_all_mistakes_come_at_once_one_line_each(mistakes):
    lines = mistakes(
        """
        data: {path: nowhere.csv}
        label: bought
        features: {categorical: [item, {name: other, separater: ","}], dense: [bought]}
        trainig: {steps: 3}
        seed: -1
        model: {name: ranking, arguments: {hiden_units: [8]}}
        """
    )
    assert len(lines) == 5
    assert lines[0].startswith("my.yaml:2: `data.path` is ")
    assert "no file has this name" in lines[0]
    assert lines[1] == "my.yaml:4: `features.categorical.1.separater` is not a known key: did you mean 'separator'?"
    assert lines[2] == "my.yaml:5: `trainig` is not a known key: did you mean 'training'?"
    assert lines[3] == "my.yaml:6: `seed` is -1: it must be a whole number of at least 0."
    assert "did you mean 'hidden_units'?" in lines[4]


def test_missing_sections_are_named(mistakes):
    lines = mistakes("seed: 3")
    assert sorted(line.split("`")[1] for line in lines) == ["data", "features", "label"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("seed: true", "whole number"),
        ("name: 2024", 'quotes: "2024"'),
        ("name: null", "is None: it must be letters, digits"),
        ("name: a/b", "letters, digits"),
        ("sample_weight: bought", "label's column"),
        ("split: {by: column, column: s, train: [a], eval: [a]}", "one split"),
        ("split: 3", "mapping"),
        ("training: {topology: 8}", "a slice's name such as v3-8"),
        ("training: {topology: v3-8, strategy: cpu}", "leave out one."),
        ("training: {topology: 2x2, strategy: tpu}", "write a slice's, such as v3-8"),
        ("training: {topology: 2x2, strategy: simulated_tpu, batch_size: 30}", "write 28 or 32"),
        ("training: {table_optimizer: adamm}", "one of sgd"),
        ("training: {decay: linear, table_optimizer: ftrl}", "set its `multiply_linear_by_learning_rate`"),
        ("training: {decay: linear, dense_optimizer: ftrl}", "`training.dense_optimizer` is 'ftrl', which"),
        ("training: {dense_optimizer: {name: ftrl, learning_rate: 0}}", "is 0.0: ftrl divides by it"),
        ("training: {negatives: {feature: itm}}", "did you mean 'item'?"),
        ("tables: {itm: {dim: 8}}", "did you mean 'item'?"),
        ("vocabularies: {itm: {min_count: 2}}", "did you mean 'item'?"),
        ("push: {rows_dtype: {itm: int8}}", "`push.rows_dtype.itm` is not a table: did you mean 'item'?"),
        ("push: {rows_dtype: {item: int4}}", "must be float32, float16 or int8, or a mapping of tables to these."),
        ("tables: {item: {initializer: {scale: .nan}}}", "finite"),
        ("evaluation: {thresholds: {AUC: {}}}", "no bound"),
        ("evaluation: {metrics: []}", "at least one metric"),
        ("evaluation: {metrics: [AUC, Recall, AUC]}", "`evaluation.metrics.2` is 'AUC', a duplicate"),
        ("evaluation: {thresholds: {AUC: {min: 90}}}", "`evaluation.thresholds.AUC.min` is 90.0: AUC is between"),
        ("evaluation: {metrics: [acc]}", "Did you mean 'BinaryAccuracy'?"),
        ("evaluation: {metrics: [AUC, xyz]}", "one of AUC, AUCPrecisionRecall"),
        ("evaluation: {thresholds: {Recall: {min: 0.1}}}", "add it there."),
        ("evaluation: {thresholds: {AUC: {min_improvement: 0}}}", "baseline"),
        ("evaluation: {baseline: pushed, thresholds: {Calibration: {min_improvement: 0}}}", "nor a lower Calibration"),
        ("evaluation: {thresholds: {AUC: {min_over_popularity: 0}}}", "only metrics at K, such as Recall@10, are"),
        ("evaluation: {thresholds: {Recall@10: {min: 0.1}}}", "`model.name` is 'ranking': leave it out"),
        ("evaluation: {metrics: [AUC, NDCG@20]}", "is 'NDCG@20', which needs a model that retrieves"),
        ("evaluation: {metrics: [hr@10]}", "Did you mean 'HitRate@10'?"),
        ("evaluation: {metrics: [NDGC@10]}", "Did you mean 'NDCG@10'?"),
        ("evaluation: {metrics: NDGC@10}", "it must be a list. Did you mean 'NDCG@10'?"),
        ("evaluation: {metrics: AUC}", "it must be a list: write [AUC]."),
        ("evaluation: {thresholds: {NDGC@10: {min: 0.1}}}", "Did you mean 'NDCG@10'?"),
        ("evaluation: {metrics: [NDCG@1001]}", "with a whole number K from 1 to 1000."),
        ("evaluation: {thresholds: {MRR@0: {min: 0}}}", "with a whole number K from 1 to 1000."),
        ("evaluation: {metrics: [gauc], user: user}", "Did you mean 'GroupAUC'?"),
        ("evaluation: {metrics: [GroupAUC]}", "`evaluation.user` is null: name the column of the user"),
        ("evaluation: {metrics: [GroupAUC], user: user, engine: tfma}", "'tfma' lacks: write vectorized"),
        ("evaluation: {user: user}", "nothing reads it: add GroupAUC"),
        ("evaluation: {slices: [[]]}", "list of columns"),
        ("class_weights: {2: 1}", "0 or 1"),
        ("model: {name: rankin}", "did you mean 'ranking'?"),
        ("model: {name: pipelines.config}", "must define `build"),
        ("model: {arguments: {hidden_units: wide}}", "Sequence[int]"),
        ("preprocessing_fn: nowhere.fn", "module 'nowhere' does not exist"),
        ("preprocessing_fn: fn", "dotted path"),
        ("gates: [MyGate]", "`gates.0` is 'MyGate': it must be the dotted path of a class, such as my_module.MyGate"),
        ("gates: [pipelines.examples.taxi.MyGate]", "no 'MyGate' at its top level"),
        ("preprocessing_fn: pipelines.examples.taxi.fn", "no 'fn' at its top level"),
    ],
)
def test_mistake_is_one_line_with_the_rule(mistake, minimal, line, words):
    assert words in mistake(minimal + line)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("label: {column: y, kind: rating}", "one of binary, regression"),
        ("label: {column: y, loss: huber}", "but `kind` is 'binary': only a regression has a choice of losses"),
        ("label: {column: y, kind: regression, huber_delta: 2}", "`loss` is 'squared': leave it out, or write huber"),
        ("label: {column: y, kind: regression, above: 3}", "`kind` is 'regression': it tells which values of a binary"),
        ("label: {column: y, kind: positive}", "each row has label 1; leave it out"),
        ("label: {kind: positive}", "it needs `training.softmax`, or `training.negatives` if it is the only label"),
        ("label: {column: y, kind: count}\nclass_weights: {0: 2}", "only the classes of one binary label have weights"),
        ("label: {column: y, kind: count}\ntraining: {negatives: item}", "`label.kind` is 'count': negatives are rows"),
        ("label: {column: y, kind: count}\ntraining: {early_stopping: auc}", "but a label is not binary: write loss"),
        ("label: {column: y, kind: regression}\nevaluation: {metrics: [AUC]}", "no label is binary"),
        ("label: {column: y, kind: count}\nevaluation: {thresholds: {AUC: {min: 0.5}}}", "], does not have it"),
        ("label: y\nlabels: {a: x}", "`labels` is given, and so is `label`"),
        ("labels: {}", "`label` is missing: name the one value to predict"),
        ("labels: {a: y, b: {column: y, kind: count}}", "which `labels.a` reads too: compute one of the two"),
        ("labels: {a b: y, c: x}", "letters, digits"),
        ("labels: {a: y, b: {kind: positive}}", "`labels.b.kind` is 'positive': it needs `training.softmax`"),
        ("labels: {a: y, b: x}" + SOFTMAX, "no label is of kind positive"),
        ("labels: {a: {kind: positive}, b: {kind: positive}}" + SOFTMAX, "as is `labels.a.kind`: every row is"),
        ("labels: {a: y, b: x}\ntraining: {negatives: item}", "there are several labels: negatives are rows"),
        ("labels: {a: y, b: x}\nevaluation: {engine: tfma}", "cannot leave out rows that lack one of several labels"),
        ("labels: {a: y, b: x}\nevaluation: {thresholds: {AUC: {min: 0.5}}}", "did you mean 'b/AUC'?"),
        (f"labels: {{a: y, b: x}}\nmodel: {TOWERS}", "has no argument `tasks`"),
        ("labels: {a: y, b: x}\nmodel: {arguments: {tasks: [a]}}", "the trainer passes it to `build`"),
        ("labels: {a: y, b: item}", "the model would see the answer"),
        ("labels: {käufe: y, b: x}", "`labels.käufe` is a label named 'käufe': a name must be letters"),
        ("label: {column: y, kind: multiclass, positive: [a]}", "`kind` is 'multiclass': it tells which values"),
        ("label: {column: y, kind: multiclass}\nevaluation: {metrics: [MeanLabel]}", "of numbers: each label is multi"),
        ("label: y\nevaluation: {metrics: [CategoricalAccuracy]}", "of multiclass labels: no label is multiclass"),
        ("label: {column: y, kind: multiclass}\nevaluation: {engine: tfma}", "a class that the train split lacks"),
        (f"label: {{column: y, kind: multiclass}}\nmodel: {TOWERS}", "has no argument `tasks`: it computes one output"),
    ],
)
def test_label_that_does_not_fit_is_one_line(mistake, folder, lines, words):
    (folder / "of_labels.py").write_text("def build(config, embeddings, dense, *, tasks): ...")
    assert words in mistake(f"data: rows.csv\nfeatures: {{categorical: [item, other]}}\n{lines}")


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ("{categorical: []}", "at least one feature"),
        ("{categorical: [{name: item, column: bought}]}", "the model would see the answer"),
        ("{categorical: [a b]}", "column: 'a b'"),
        ("{categorical: [item], dense: [{name: count, column: item}]}", "one kind"),
        ("{categorical: [{name: item, after_transform: true}]}", "`preprocessing_fn` is null"),
        ("{categorical: [{name: a, table: t, vocabulary: v}, {name: b, table: t, vocabulary: w}]}", "must agree"),
        ("{categorical: [{name: a, vocabulary: v, private: true}, {name: b, vocabulary: v}]}", "must agree"),
        ("{categorical: [{name: a, max_sequence_length: long}]}", "or one of auto"),
    ],
)
def test_features_mistake_is_one_line(mistake, features, words):
    assert words in mistake(f"data: rows.csv\nlabel: bought\nfeatures: {features}")


@pytest.mark.parametrize("key", ["multivalent: true", "separator: '|'"])
@pytest.mark.parametrize("source", ["softmax", "negatives"])
def test_candidate_of_several_tokens_is_refused(load, mistake, source, key):
    text = f"data: {{path: rows.csv, format: parquet}}\nlabel: {{kind: positive}}\nmodel: {TOWERS}\n"
    text += f"training: {{{source}: other}}\nfeatures: {{categorical: [item, {{name: other"
    load(text + "}]}")
    line = mistake(text + f", {key}}}]}}")
    assert f"`training.{source}.feature` is 'other', but a row has one candidate" in line


@pytest.mark.parametrize(
    ("query", "candidate", "words"),
    [
        ("[usr]", "[item]", "`model.arguments.query_features.0` is 'usr': it must be a feature; did you mean 'user'?"),
        ("[user, age]", "[itm]", "did you mean 'item'?"),
        ("[user]", "[]", "at least one feature; choose from user, item, age"),
        ("[user]", "[item, user]", "which is in `query_features` too"),
        ("[user]", "item", "Sequence[str]"),
    ],
)
def test_towers_are_of_known_features(load, mistake, query, candidate, words):
    text = "data: rows.csv\nlabel: bought\nfeatures: {categorical: [user, item], dense: [age]}\n"
    load(text + "model: {name: two_tower, arguments: {query_features: [user, age], candidate_features: [item]}}")
    towers = f"{{query_features: {query}, candidate_features: {candidate}}}"
    assert words in mistake(f"{text}model: {{name: two_tower, arguments: {towers}}}")


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ("{min: 0.1, min_over_popularity: -1}", None),
        ("{max: 0.5}", "a metric that is not in `evaluation.metrics` takes"),
        ("{min: 7}", "is between 0 and 1"),
        ("{min_improvement: 0.1}", "a metric that is not in `evaluation.metrics` takes"),
        ("{min: 0.1}, NDCG@3: {min: 0.1}}, metrics: [NDCG@3", None),
        ("{min: 0.1}}, exclude_seen: true, metrics: [NDCG@3", "`evaluation.user` is null and no two features share"),
        ("{min_improvement: 0.1}}, metrics: [Recall@10", "`evaluation.baseline` is null: name a baseline"),
        ("{min: 0.1}}, engine: tfma, metrics: [NDCG@3", "`evaluation.engine` 'tfma' lacks"),
    ],
)
def test_rankings_of_two_towers_take_bounds_of_their_own(load, mistake, bounds, words):
    text = "data: rows.csv\nlabel: bought\nfeatures: {categorical: [user, item]}\n"
    text += "model: {name: two_tower, arguments: {query_features: [user], candidate_features: [item]}}\n"
    text += f"evaluation: {{thresholds: {{Recall@10: {bounds}" + ("]}" if "metrics" in bounds else "}}")
    if words is None:
        over = -1.0 if "-1" in bounds else None
        assert load(text).evaluation.retrieval == {"Recall@10": Threshold(min=0.1, min_over_popularity=over)}
    else:
        assert words in mistake(text)


def test_name_of_a_label_is_one_mistake_among_others(mistakes):
    found = mistakes("data: rows.csv\nfeatures: {categorical: [item]}\nlabels: {käufe: y, b: x}\nseed: true\n")
    assert ["`labels.käufe`" in found[0], "`seed`" in found[1]] == [True, True]


def test_label_needs_column_or_key(mistakes):
    text = "data: rows.csv\nfeatures: {categorical: [item]}\nlabel: "
    assert "either `column`" in mistakes(text + "{}")[0]
    assert "`preprocessing_fn` is null" in mistakes(text + "{key: big}")[0]


def test_file_that_cannot_be_read_is_one_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "latin.yaml")


def test_file_with_a_list_or_nothing_is_refused(mistakes):
    assert "it must be a mapping" in mistakes("[1, 2]")[0]
    assert "is empty" in mistakes("")[0]


def test_folder_of_the_file_is_last_on_sys_path(load, minimal, folder):
    (folder / "my_model.py").write_text("def build(config, embeddings, dense, *, depth: int): ...")
    with pytest.raises(ConfigError, match="no default"):
        load(minimal + "model: my_model")
    load(minimal + "model: {name: my_model, arguments: {depth: 2}}")
    assert sys.path[-1] == str(folder)


def test_foreign_package_of_our_name_is_one_error(mistake, minimal, folder):
    (folder / "components").mkdir()
    (folder / "components" / "mine.py").write_text("")
    assert "our package 'components'" in mistake(minimal)


def test_foreign_package_earlier_on_sys_path_is_one_error(mistakes, minimal, tmp_path_factory, monkeypatch):
    other = tmp_path_factory.mktemp("other")
    (other / "embedding_core.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(other), *sys.path])
    assert "our package 'embedding_core'" in mistakes(minimal)[0]


def test_folder_without_python_of_our_name_is_no_package(load, minimal, folder):
    (folder / "pipelines").mkdir()
    load(minimal)


def test_python_names_of_keys_are_not_keys(mistakes, minimal):
    lines = mistakes(minimal + "row_filters: [{column: item, in_: [1]}]\n")
    assert "`row_filters.0.in_` is not a known key: did you mean 'in'?" in lines[0]


@pytest.mark.parametrize(
    ("condition", "path"), [("equals: .nan", "equals"), ("min: -.inf", "min"), ("in: [a, .inf]", "in.1")]
)
def test_numbers_of_a_row_filter_are_finite(mistake, minimal, condition, path):
    line = mistake(minimal + f"row_filters: [{{column: item, {condition}}}]\n")
    assert f"`row_filters.0.{path}` is " in line
    assert "it must be one text, finite number or boolean." in line


def test_infinite_arguments_of_a_model_are_kept(load, minimal):
    config = load(minimal + "model: {arguments: {dropout: .inf}}\n")
    assert config.to_mapping()["model"]["arguments"]["dropout"] == float("inf")
    assert "Infinity" in config.to_json()


@pytest.mark.parametrize("key", ["1", "true", "null", "2.5"])
def test_keys_that_are_not_texts_are_unknown_keys(mistake, minimal, key):
    line = mistake(minimal + f"training: {{{key}: 1}}\n")
    assert "is not a known key: choose from steps, epochs" in line


def test_file_beyond_the_bound_is_not_read(tmp_path, minimal):
    (tmp_path / "a.yaml").write_text(minimal + "#" * 2**20)
    with pytest.raises(ConfigError, match=r"a\.yaml: it has more than 1,048,576 bytes"):
        load_config(tmp_path / "a.yaml")
