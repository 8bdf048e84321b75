import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from embedding_core.errors import ConfigError
from pipelines.work_dir import held, prepare


def test_second_run_in_one_work_dir_is_refused_by_name_of_the_first(tmp_path):
    config = SimpleNamespace(work_dir=str(tmp_path / "runs"))
    with held(config):
        program = (
            "from types import SimpleNamespace; from pipelines.work_dir import held\n"
            f"with held(SimpleNamespace(work_dir={config.work_dir!r})): pass"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"process {os.getpid()}" in done.stderr


def test_work_dir_is_free_after_the_run(tmp_path):
    config = SimpleNamespace(work_dir=str(tmp_path))
    for _ in range(2):
        with held(config):
            pass


def test_work_dir_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"`work_dir` is .*file/runs.*can be written"):
        prepare(SimpleNamespace(work_dir=str(tmp_path / "file" / "runs")))
