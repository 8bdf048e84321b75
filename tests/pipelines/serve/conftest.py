"""The small model of this folder's tests, loaded."""

import pytest


@pytest.fixture(scope="module")
def version(tmp_path_factory):
    from pipelines.serve.rest_form import Version
    from tests.pipelines.serve.small_model import push_model

    folder = tmp_path_factory.mktemp("small")
    push_model(folder / "model", folder / "serving", 7)
    return Version(str(folder / "serving"), 7)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    from pipelines.serve.table_rows import TableRows
    from tests.pipelines.serve.small_model import write_checkpoint

    return TableRows(write_checkpoint(tmp_path_factory.mktemp("tables") / "checkpoint"))
