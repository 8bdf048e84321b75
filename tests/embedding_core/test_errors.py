"""Tests of embedding_core.errors."""

import pytest

from embedding_core.errors import nearest

pytestmark = pytest.mark.light


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("ITM", ("user", "item"), "did you mean 'item'?"),
        ("acc", ("AUC", "BinaryAccuracy"), "did you mean 'BinaryAccuracy'?"),
        ("x", ("user", "item"), "choose from user, item."),
        ("x", range(12), "choose from 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..."),
        ("x", (), "there is none to choose from."),
    ],
)
def test_nearest_known_name_or_what_there_is_to_choose_from(name, known, hint):
    assert nearest(name, known) == hint
