"""Tests plans of given figures of short runs: their front, commands, page and text."""

import dataclasses
import html.parser
import io
import itertools
import json
import re
import shlex

import pytest
from rich.console import Console

from embedding_core.planning.topology import GIB
from pipelines.choices.choice import AS_CONFIGURED, Choice, larger_batch, smallest
from pipelines.choices.losses import Losses
from pipelines.choices.memory import parse_slices
from pipelines.choices.plan import make_plan
from pipelines.choices.plan_page import plan_html, save_plan
from pipelines.choices.plan_screen import loss_words, print_plan, shown_offers
from pipelines.config import load_config
from tests.pipelines.choices.test_choice import tables

pytestmark = pytest.mark.light

TABLES = tables(item=(4_000_000, 64), shop=(1000, 16))
ITEM, SHOP = Choice((("item", 8),)), Choice((("shop", 8),))
FIGURES = {
    AS_CONFIGURED: [0.90, 0.91, 0.92],
    smallest(TABLES): [0.80, 0.81, 0.82],
    larger_batch(256): [0.70, 0.71, 0.72],
    ITEM: [0.801, 0.811, 0.821],
    SHOP: [0.901, 0.911, 0.921],
}


@dataclasses.dataclass(frozen=True)
class Runs:
    losses: Losses
    figure: str = "AUC"
    runs: tuple[()] = ()
    seconds: float = 12.0


def runs(figures):
    return Runs(Losses(figures, higher_is_better=True, configured={"item": 64, "shop": 16}))


@pytest.fixture
def file(tmp_path):
    (tmp_path / "rows.csv").write_text("item,shop,bought\na,b,1\n")
    (tmp_path / "my file.yaml").write_text(
        "data: rows.csv\nlabel: bought\nfeatures: {categorical: [item, shop]}\nname: my\n"
    )
    return tmp_path / "my file.yaml"


@pytest.fixture
def planned(file):
    def plan(*overrides, slices="v3-8,v5e-4,v6e-8", figures=FIGURES, budget=None, measure_more=None):
        measured = None if figures is None else runs(figures)
        return make_plan(
            load_config(file, overrides),
            TABLES,
            parse_slices(slices),
            sizes="given",
            file=file,
            overrides=overrides,
            budget=budget,
            measured=measured,
            measure_more=measure_more,
            rows="all 100 rows",
        )

    return plan


def by_choice(planned):
    return {offer.choice: offer for offer in planned.offers}


def test_front_has_what_loses_nothing_with_the_fewest_bytes_and_then_what_is_smaller(planned):
    (found, *_) = planned().slices
    front = sorted((offer for offer in found.offers if offer.front), key=lambda offer: -offer.table_bytes)
    assert by_choice(found)["dim 8 of shop"].front
    assert by_choice(found)["dim 8 of item, shop"].front
    assert not found.offers[0].front
    assert found.offers[found.best].choice == "dim 8 of shop"
    assert all(first.loss < last.loss for first, last in itertools.pairwise(front))


def test_dim_between_is_an_estimate_and_says_so(planned):
    found = by_choice(planned().slices[0])
    between = found["dim 8 of shop; dim 32 of item"]
    assert between.source == "estimated"
    assert loss_words(between).endswith(" estimated")
    assert found["dim 8 of item, shop"].source == "measured"


def test_difference_within_the_noise_is_not_called_one(planned):
    found = by_choice(planned().slices[0])
    assert re.fullmatch(r"0 ±0\.\d{4}", loss_words(found["dim 8 of shop"]))
    assert re.fullmatch(r"\+0\.1000 ±0\.\d{4}", loss_words(found["dim 8 of item, shop"]))


def test_every_command_is_one_that_the_configuration_accepts(planned, file):
    for one in planned("training.strategy=cpu").slices:
        for offer in one.offers:
            program, verb, path, *options = shlex.split(offer.command)
            assert (program, verb, path) == ("tfx-embeddings", "run", str(file))
            settings = [text for option, text in zip(options[::2], options[1::2], strict=True) if option == "--set"]
            taken = load_config(path, settings)
            assert taken.training.topology == one.name
            assert taken.training.batch_size == offer.batch_size
            dims = {name: table.dim for name, table in taken.tables.items()}
            assert all(f"tables.{name}.dim={dim}" in offer.settings for name, dim in dims.items())


def test_served_rows_of_half_the_size_are_settings_too(planned, file):
    plan = planned(slices="v3-8")
    taken = load_config(file, plan.float16)
    assert (taken.push.rows_dtype, taken.push.tolerance) == ("float16", 1e-3)
    halved = planned(*plan.float16, slices="v3-8")
    assert halved.float16 == []
    assert halved.slices[0].offers[0].served_bytes * 2 == plan.slices[0].offers[0].served_bytes


def test_without_runs_choices_are_compared_by_bytes(planned):
    (found,) = planned(slices="v5e-4", figures=None).slices
    assert {offer.source for offer in found.offers} == {"unknown"}
    assert found.offers[found.best].choice == "as configured"
    assert len(shown_offers(found)) == len(found.offers)


def test_budget_leaves_out_what_is_too_large(planned):
    plan = planned(slices="v5e-4,v3-8", budget=GIB)
    replicated, sharded = plan.slices
    assert not replicated.offers[0].fits
    # 32 columns fit without their gradient
    assert replicated.offers[replicated.untrained].choice == "dim 8 of shop; dim 16 of item"
    assert sharded.offers[0].fits


def test_choice_that_fits_is_recommended_though_its_loss_is_unknown(planned):
    lost = {choice: figures for choice, figures in FIGURES.items() if choice in (AS_CONFIGURED, larger_batch(256))}
    (found,) = (plan := planned(slices="v5e-4", figures=lost, budget=GIB)).slices
    best = found.offers[found.best]
    assert (best.fits, best.source, found.remedy) == (True, "unknown", "")
    out = io.StringIO()
    print_plan(plan, Console(file=out, width=200))
    assert f"of the choices that fit, no loss is known; the first is {best.choice}" in out.getvalue()
    assert {offer.choice for offer in found.offers if offer.fits} <= {offer.choice for offer in shown_offers(found)}


def test_choice_is_trained_before_it_is_recommended(planned):
    asked = []

    def measure_more(choices):
        asked.extend(choices)
        return runs({**FIGURES, **dict.fromkeys(asked, FIGURES[SHOP])})

    (found,) = planned(slices="v5e-4", budget=GIB, measure_more=measure_more).slices
    assert asked == [Choice((("item", 16), ("shop", 8)))]
    best = found.offers[found.best]
    assert (best.choice, best.source, found.untrained) == ("dim 8 of shop; dim 16 of item", "measured", None)


def test_without_runs_left_the_best_that_was_trained_is_recommended(planned):
    (found,) = (plan := planned(slices="v5e-4", budget=GIB)).slices
    assert found.offers[found.best].source == "measured"
    assert found.offers[found.untrained].choice == "dim 8 of shop; dim 16 of item"
    out = io.StringIO()
    print_plan(plan, Console(file=out, width=200))
    assert "not trained, because no runs were left, and perhaps better: dim 8 of shop; dim 16 of item" in out.getvalue()
    assert "perhaps better" in plan_html(plan)


def test_loss_as_figure_is_not_called_a_loss_of_loss(planned):
    plan = dataclasses.replace(planned(slices="v3-8"), figure="loss")
    out = io.StringIO()
    print_plan(plan, Console(file=out, width=200))
    assert "increase of the loss" in out.getvalue()
    assert "loss of loss" not in out.getvalue() + plan_html(plan)


def test_if_nothing_fits_the_plan_says_what_would(planned):
    (found,) = planned(slices="v2-8", budget=2**20).slices
    assert found.best is None
    assert "of the rows" in found.remedy


def test_budget_is_at_most_the_memory_of_a_core(planned):
    assert planned(slices="v2-8", budget=64 * GIB).slices[0].budget == 8 * GIB


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.loaded = []

    def handle_starttag(self, tag, attributes):
        self.loaded += [value for name, value in attributes if name in ("src", "href") and not value.startswith("#")]


def test_page_and_json_have_the_same_content(planned, tmp_path):
    plan = planned()
    page, path = save_plan(plan, str(tmp_path))
    with open(path, encoding="utf-8") as file:
        assert json.load(file) == json.loads(json.dumps(dataclasses.asdict(plan)))
    with open(page, encoding="utf-8") as file:
        text = file.read()
    links = Links()
    links.feed(text)
    assert links.loaded == []
    assert text.count("<svg") == 3
    assert all(f"{one.name}: " in text for one in plan.slices)
    assert "more choices, estimated and not on the front, are in plan.json" in text


def test_page_without_runs_says_so(planned):
    text = plan_html(planned(figures=None, budget=2**10))
    assert "No short runs were made" in text
    assert "No choice fits" in text
    assert "<svg" not in text


def test_text_fits_a_terminal_and_ends_with_the_command(planned):
    out = io.StringIO()
    plan = planned(slices="v3-8")
    print_plan(plan, Console(file=out, width=90))
    lines = out.getvalue().splitlines()
    assert lines[-1] == plan.slices[0].offers[plan.slices[0].best].command
    assert all(len(line) <= 90 for line in lines[-8:-2] if "±" in line)
    assert any(line.startswith("* dim 8 of shop ") for line in lines)
