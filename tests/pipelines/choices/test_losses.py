import pytest
from scipy import stats

from pipelines.choices.choice import AS_CONFIGURED, Choice
from pipelines.choices.losses import Losses, loss_of

pytestmark = pytest.mark.light

ITEM, SHOP = Choice((("item", 8),)), Choice((("shop", 8),))
FIGURES = {AS_CONFIGURED: [0.90, 0.91, 0.92], ITEM: [0.80, 0.81, 0.82], SHOP: [0.901, 0.911, 0.921]}


def losses(figures=FIGURES, **options):
    return Losses(figures, **{"higher_is_better": True, "configured": {"item": 32, "shop": 16}, **options})


def test_noise_is_that_of_a_difference_of_means():
    found = losses().of(ITEM)
    assert losses().deviation == pytest.approx(0.01)
    assert (found.value, found.source) == (pytest.approx(0.1), "measured")
    assert found.noise == pytest.approx(stats.t.ppf(0.975, 6) * 0.01 * (2 / 3) ** 0.5)
    assert found.counted == found.value


def test_difference_within_the_noise_counts_as_none():
    found = losses().of(SHOP)
    assert found.value == pytest.approx(-0.001)
    assert found.counted == 0.0


def test_of_a_loss_less_is_better():
    assert losses(higher_is_better=False).of(ITEM).value == pytest.approx(-0.1)


def test_combination_is_estimated_by_the_losses_of_its_parts_that_are_not_noise():
    both = losses().of(Choice((("item", 8), ("shop", 8))))
    assert (both.value, both.source) == (pytest.approx(0.1), "estimated")
    assert both.noise == pytest.approx(stats.t.ppf(0.975, 6) * 0.01 * (2 / 3 + 4 / 3) ** 0.5)


def test_part_that_loses_counts_however_many_others_lose_nothing():
    """Twenty tables without a loss do not hide the one that has a loss in the noise of their sum."""
    many = {Choice(((f"t{number}", 8),)): FIGURES[SHOP] for number in range(20)}
    small = {**FIGURES, ITEM: [0.87, 0.88, 0.89], **many}
    found = losses(small, configured={"item": 32, "shop": 16, **{f"t{number}": 16 for number in range(20)}})
    combined = found.of(Choice((("item", 8), *(one.dims[0] for one in many))))
    assert combined.noise > combined.value == pytest.approx(0.03)
    assert combined.counted == combined.value


def test_larger_batch_with_measured_dims_loses_what_the_dims_lose():
    both = Choice((("item", 8), ("shop", 8)))
    lost = {**FIGURES, ITEM: FIGURES[SHOP], both: [0.80, 0.81, 0.82], Choice(batch_size=512): FIGURES[SHOP]}
    found = losses(lost).of(both._replace(batch_size=512))
    assert (found.value, found.source) == (pytest.approx(0.1), "estimated")


def test_combination_that_lost_more_than_its_parts_is_shared_by_its_tables():
    """No table alone loses something measurable, and together they do."""
    names = [f"t{number}" for number in range(4)]
    alone = {Choice(((name, 8),)): FIGURES[SHOP] for name in names}
    least = Choice(tuple((name, 8) for name in names))
    found = losses({**FIGURES, **alone, least: [0.80, 0.81, 0.82]}, configured=dict.fromkeys(names, 16))
    assert found.of(Choice(least.dims[:2])).value == pytest.approx(0.05)
    assert found.of(Choice(least.dims[:1])).counted == 0.0


def test_no_estimate_is_below_a_measured_combination_that_the_choice_contains():
    both = Choice((("item", 16), ("shop", 8)))
    found = losses({**FIGURES, ITEM: FIGURES[SHOP], both: [0.80, 0.81, 0.82]})
    assert found.of(Choice((("item", 8), ("shop", 8)))).value == pytest.approx(0.1)


def test_gain_counts_as_none():
    better = losses({**FIGURES, ITEM: [0.95, 0.96, 0.97]}).of(ITEM)
    assert better.value < -better.noise
    assert better.counted == 0.0


def test_failed_choice_is_unknown_though_its_parts_are_measured():
    both = Choice((("item", 8), ("shop", 8)))
    assert losses({**FIGURES, both: []}).of(both) is None


def test_measured_combination_replaces_its_estimate():
    both = Choice((("item", 8), ("shop", 8)))
    assert losses({**FIGURES, both: [0.7, 0.71, 0.72]}).of(both).source == "measured"


def test_dim_between_is_estimated_in_proportion():
    found = losses().of(Choice((("item", 16),)))
    assert (found.value, found.source) == (pytest.approx(0.1 * 16 / 24), "estimated")


def test_choice_with_an_unmeasured_part_is_unknown():
    assert losses().of(Choice((("item", 8), ("user", 8)))) is None
    assert losses().of(Choice(batch_size=512)) is None
    assert loss_of(losses())(Choice(batch_size=512)) is None


def test_one_seed_or_no_configured_run_gives_no_losses():
    assert losses({AS_CONFIGURED: [0.9], ITEM: [0.8]}).of(ITEM) is None
    assert losses({ITEM: [0.8, 0.9]}).of(ITEM) is None


def test_chain_is_asked_for_counted_losses():
    assert loss_of(losses())(ITEM) == pytest.approx(0.1)
    assert loss_of(losses())(SHOP) == 0.0
    assert loss_of(None)(ITEM) == 0.0
