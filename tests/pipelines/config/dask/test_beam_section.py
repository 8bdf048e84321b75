"""Checks the section `beam`: each mistake is one error that names its key."""

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
    from components.dask import keys

    monkeypatch.setattr(keys, "is_installed", lambda _: False)
    with pytest.raises(ConfigError, match=r"distributed is missing: install tfx-embeddings\[dask\]"):
        load(minimal, *DASK)
