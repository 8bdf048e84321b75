import os
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest

from embedding_core.errors import ConfigError
from pipelines.local.work_dir import file_permissions, prepare, run_lock

pytestmark = pytest.mark.light


def configured(work_dir, metadata=None, name="demo", permissions="owner"):
    return SimpleNamespace(
        name=name,
        work_dir=str(work_dir),
        metadata_path=str(metadata or work_dir / "metadata.sqlite"),
        permissions=permissions,
    )


def hold_in_another_process(config):
    program = (
        "from types import SimpleNamespace; from pipelines.local.work_dir import run_lock\n"
        f"with run_lock(SimpleNamespace(**{vars(config)!r})): pass"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_second_run_in_a_work_dir_is_refused_naming_the_first(tmp_path):
    config = configured(tmp_path / "runs")
    with run_lock(config):
        done = hold_in_another_process(config)
    assert done.returncode != 0
    assert f"process {os.getpid()}" in done.stderr


@pytest.mark.parametrize(("name", "refused"), [("demo", True), ("other", False)])
def test_one_store_takes_several_pipelines_and_each_name_once(tmp_path, name, refused):
    store = tmp_path / "shared.sqlite"
    with run_lock(configured(tmp_path / "a", store)):
        done = hold_in_another_process(configured(tmp_path / "b", store, name))
    assert ("`name` is 'demo': another run uses it" in done.stderr) == refused == (done.returncode != 0)


def test_work_dir_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"`work_dir` is .*file/runs.*can be written"):
        prepare(configured(tmp_path / "file" / "runs"))


def test_lock_that_is_a_link_is_refused_and_its_target_untouched(tmp_path):
    target = tmp_path / "precious"
    target.write_text("precious")
    (tmp_path / ".lock").symlink_to(target)
    with pytest.raises(ConfigError, match=r"\.lock' is a symbolic link: it must be a file; remove the link"):
        prepare(configured(tmp_path))
    assert target.read_text() == "precious"


@pytest.mark.parametrize(("permissions", "folder", "file"), [("owner", 0o700, 0o600), ("group", 0o750, 0o640)])
def test_work_dir_and_files_have_the_configured_permissions(tmp_path, permissions, folder, file):
    before = os.umask(0o022)
    config = configured(tmp_path / "runs", permissions=permissions)
    prepare(config)
    with file_permissions(config):
        (tmp_path / "runs" / "data").write_text("data")
    assert os.umask(before) == 0o022  # the umask is restored
    assert stat.S_IMODE((tmp_path / "runs").stat().st_mode) == folder
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "runs").iterdir()} == {file}
