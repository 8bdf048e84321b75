"""Checks the key `metadata`: each mistake is one error that names its key."""

import pytest

from embedding_core.errors import ConfigError

pytestmark = pytest.mark.light


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ("postgres://me@host/db", "it must be the path of a sqlite file, or mysql://<user>@<host>:<port>/<database>"),
        ("mysql://host:3306/db", "`metadata` is 'mysql://host:3306/db': it must be"),
        ("mysql://me@host:port/db", "`metadata` is not an address"),
        ("mysql://me@host/db/more", "it must be the path"),
        ("mysql://me:pass@host/db", "holds a password: put it into the environment variable METADATA_PASSWORD"),
    ],
)
def test_a_mistake_in_the_address_of_the_metadata_is_one_error(load, minimal, metadata, said):
    with pytest.raises(ConfigError) as error:
        load(minimal + f"metadata: {metadata}\n")
    assert said in str(error.value)
    assert "pass@" not in str(error.value)


def test_the_address_of_a_server_is_kept_as_it_is(load, minimal):
    assert load(minimal + "metadata: mysql://me@host/lineage\n").metadata_path == "mysql://me@host/lineage"
