"""A flipped bit in a sealed embedding configuration is detected, or changes nothing."""

import pytest

from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import ConfigError
from embedding_core.optimizers import Adagrad
from embedding_core.storage import sealed_json, unsealed_json

pytestmark = pytest.mark.light

CONFIG = EmbeddingConfig(
    tables=(TableConfig(name="user", vocabulary_size=8, dim=4, optimizer=Adagrad(learning_rate=0.05)),),
    features=(FeatureConfig(name="user", table="user"),),
)


def flipped(data):
    """The data with each of its bits flipped in turn."""
    for index in range(len(data)):
        for bit in range(8):
            yield data[:index] + bytes([data[index] ^ 1 << bit]) + data[index + 1 :]


def test_tables_are_read_as_they_were_sealed():
    assert EmbeddingConfig.from_json(CONFIG.to_sealed_json()) == CONFIG
    assert EmbeddingConfig.from_json(CONFIG.to_json()) == CONFIG  # as earlier releases wrote it


def test_flipped_bit_of_sealed_tables_is_found_or_harmless():
    refused = 0
    for data in flipped(CONFIG.to_sealed_json()):
        try:
            assert EmbeddingConfig.from_json(data) == CONFIG, data
        except ConfigError:
            refused += 1
    assert refused > 5000


@pytest.mark.parametrize("data", [b"", b"[]", b"7", b'"sha256"', b"null", b"{}", b'{"tables": 1, "features": []}'])
def test_what_is_not_a_configuration_is_one_error(data):
    with pytest.raises(ConfigError, match="not an embedding configuration"):
        EmbeddingConfig.from_json(data)


@pytest.mark.parametrize("data", [b"{}", b"[]", b'{"a": 1}', b'{"a": 1, "sha256": "x"}', b"\xff"])
def test_what_is_not_sealed_is_refused(data):
    with pytest.raises(ValueError):  # noqa: PT011 - the decoder raises it too
        unsealed_json(data)
    assert unsealed_json(sealed_json({"a": 1})) == {"a": 1}
