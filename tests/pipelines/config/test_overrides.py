import pytest

pytestmark = pytest.mark.light


def test_set_reaches_below_a_short_form(load, minimal):
    config = load(minimal + "model: ranking", "model.arguments.cross_layers=3", "data.allowed_bad_rate=0.1")
    assert config.model.arguments["cross_layers"] == 3
    assert config.data.allowed_bad_rate == 0.1


def test_set_takes_list_positions_and_appends(load, minimal):
    config = load(minimal, "features.categorical.0.private=true", "features.categorical.1=shop")
    assert [feature.name for feature in config.features.categorical] == ["item", "shop"]
    assert config.features.categorical[0].private


def test_set_value_is_yaml_and_the_last_one_counts(load, minimal):
    config = load(minimal, "evaluation.slices=[item, [item, shop]]", "seed=1", "seed=2")
    assert config.evaluation.slices == (("item",), ("item", "shop"))
    assert config.seed == 2


def test_set_mistakes_name_the_override_and_come_together(mistakes, minimal):
    lines = mistakes(minimal, "seed", "features.categorical.7=x", "seed=[", "sed=3", "label.column.x=1")
    assert len(lines) == 5
    assert all(line.startswith("--set ") for line in lines)
    assert any("did you mean 'seed'?" in line for line in lines)


def test_set_mends_a_mistake_of_the_file(load, minimal):
    assert load(minimal + "seed: -1", "seed=1").seed == 1


def test_set_starts_a_list_that_the_file_does_not_have(load, minimal):
    config = load(minimal, "features.dense.0=price", "row_filters.0.column=item", "row_filters.0.present=true")
    assert config.features.dense[0].name == "price"
    assert config.row_filters[0].present is True


def test_set_of_one_hyperparameter_keeps_the_default_optimizer(load, minimal):
    optimizer = load(minimal, "training.table_optimizer.learning_rate=0.02").training.table_optimizer
    assert (optimizer.name, optimizer.learning_rate) == ("adagrad", 0.02)


@pytest.mark.parametrize("changes", [["name=sgd", "learning_rate=0.02"], ["learning_rate=0.02", "name=sgd"]])
def test_set_of_another_optimizer_starts_from_its_own_defaults(load, minimal, changes):
    config = load(minimal, *(f"training.table_optimizer.{change}" for change in changes))
    assert config.training.table_optimizer.learning_rate == 0.02
    assert config.training.table_optimizer.name == "sgd"


def test_set_reaches_below_the_short_form_of_an_optimizer(load, minimal):
    text = minimal + "training: {table_optimizer: sgd}\ntables: {item: {optimizer: adam}}\n"
    config = load(text, "training.table_optimizer.learning_rate=0.02", "tables.item.optimizer.learning_rate=0.3")
    assert config.training.table_optimizer.name == "sgd"
    assert config.tables["item"].optimizer.name == "adam"
    assert config.tables["item"].optimizer.learning_rate == 0.3


def test_set_of_a_sign_of_yaml_says_how_to_quote_it(load, mistake, minimal):
    line = mistake(minimal, "data.delimiter=,")
    assert line.endswith("""needs quotes: '","'.""")
    assert load(minimal, 'data.delimiter=","').data.delimiter == ","


def test_set_is_named_if_it_made_the_value_around_it_wrong(mistake, minimal):
    line = mistake(minimal, "training.table_optimizer.lerning_rate=3")
    path = "training.table_optimizer.lerning_rate"
    assert line == f"--set '{path}=3': `{path}` is not a known key: did you mean 'learning_rate'?"


def test_set_inside_a_key_that_the_file_does_not_have_is_named(mistake, minimal):
    line = mistake(minimal, "tables.item.optimizer.learning_rate=1")
    assert line.startswith("--set 'tables.item.optimizer.learning_rate=1': `tables.item.optimizer.name` is missing: ")
