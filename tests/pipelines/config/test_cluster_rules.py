"""Checks the section `beam` and the key `metadata`: each mistake is one error that names its key."""

import pytest

from embedding_core.errors import ConfigError

pytestmark = pytest.mark.light
DASK = ("beam.runner=dask", "beam.address=tcp://10.0.0.5:8786")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["beam.runner=flink"], "`beam.runner` is 'flink': it must be one of in_process, dask"),
        (["beam.runner=dask"], "`beam.address` is None: it must be the address of a Dask scheduler"),
        (["beam.runner=dask", "beam.address=10.0.0.5:8786"], "`beam.address` is '10.0.0.5:8786': it must be"),
        (["beam.address=tcp://10.0.0.5:8786"], "but `beam.runner` is 'in_process': leave it out, or name dask"),
        ([*DASK, "data.workers=2"], "`data.workers` is 2, but `beam.runner` is 'dask'"),
        (
            [*DASK, "kubeflow={image: x, pipeline_root: 'gs://b/x', beam_args: [--runner=FlinkRunner]}"],
            "`kubeflow.beam_args` is given, but `beam.runner` is 'dask': leave out one of the two",
        ),
    ],
)
def test_a_mistake_in_beam_is_one_error(load, minimal, overrides, said):
    with pytest.raises(ConfigError) as error:
        load(minimal, *overrides)
    assert said in str(error.value)


def test_dask_without_its_package_says_what_to_install(load, minimal, monkeypatch):
    from pipelines.config import pipeline_config

    monkeypatch.setattr(pipeline_config, "is_installed", lambda _: False)
    with pytest.raises(ConfigError, match=r"distributed is missing: install tfx-embeddings\[dask\]"):
        load(minimal, *DASK)


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
