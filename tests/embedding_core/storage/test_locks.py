import pytest

from embedding_core.storage import locked_folder

pytestmark = pytest.mark.light


def test_second_holder_does_not_wait_unless_asked(tmp_path):
    with locked_folder(str(tmp_path), wait=False) as first, locked_folder(str(tmp_path), wait=False) as second:
        assert (first, second) == (True, False)


@pytest.mark.parametrize("name", ["missing", "file", "link"])
def test_what_is_not_a_folder_is_not_held(tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    with locked_folder(str(tmp_path / name), wait=True) as held:
        assert not held


def test_error_of_the_block_is_not_taken_for_a_lock_that_is_held(tmp_path):
    with pytest.raises(BlockingIOError, match="a pipe is full"), locked_folder(str(tmp_path), wait=False):
        raise BlockingIOError("a pipe is full")
