"""An address that TensorFlow has no file system for is one error before anything is read or written."""

import pytest

from embedding_core.errors import ConfigError
from pipelines.config import load_config
from pipelines.local.run_local import run
from pipelines.local.storage_errors import check_file_systems


def configuration(folder, *overrides):
    (folder / "rows.csv").write_text("item,bought\na,1\n")
    (folder / "my.yaml").write_text("data: rows.csv\nlabel: bought\nfeatures: {categorical: [item]}\n")
    return load_config(folder / "my.yaml", overrides)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("data.path=s3://bucket/rows.csv", "data.path"),
        ("push.destination=s3://bucket/serving", "push.destination"),
        ("warm_start=s3://bucket/checkpoint", "warm_start.checkpoint"),
        ("vocabulary_evolution=s3://bucket/vocabularies", "vocabulary_evolution.base"),
    ],
)
def test_address_of_s3_is_refused_by_its_key(tmp_path, override, key):
    with pytest.raises(ConfigError, match=rf"`{key}` is 's3://bucket/\w+.*no file system for s3://, only for .*gs://"):
        check_file_systems(configuration(tmp_path, override))


def test_addresses_of_google_storage_and_paths_pass(tmp_path):
    check_file_systems(configuration(tmp_path, "push.destination=gs://bucket/serving"))


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_work_dir_is_a_folder(tmp_path, scheme):
    with pytest.raises(ConfigError, match=rf"`work_dir` is '{scheme}://bucket/runs': it must be a folder;"):
        configuration(tmp_path, f"work_dir={scheme}://bucket/runs")


@pytest.mark.tfx
def test_run_refuses_it_before_it_writes(tmp_path):
    with pytest.raises(ConfigError, match=r"`push\.destination`"):
        run(configuration(tmp_path, "push.destination=s3://bucket/serving"), printed=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my.yaml", "rows.csv"]
