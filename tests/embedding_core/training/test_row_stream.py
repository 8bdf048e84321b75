import pytest
import tensorflow as tf

from embedding_core.training.row_stream import Passes, batches_once
from tests.support.tf_examples import write_rows


def test_passes_are_equal_and_come_from_one_iterator():

    def numbers():
        yield from range(5)

    passes = Passes(tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], tf.int64)), 5)
    for _ in range(3):
        assert [int(number) for number in passes] == [0, 1, 2, 3, 4]
    first, other = iter(passes), iter(passes)
    assert [int(next(first)) for _ in range(3)] == [0, 1, 2]
    assert [int(number) for number in other] == [0, 1, 2, 3, 4]
    assert [int(number) for number in passes] == [0, 1, 2, 3, 4]


def test_a_pass_that_is_left_is_not_continued():
    passes = Passes(tf.data.Dataset.range(4), 4)
    for number in passes:
        if number == 1:
            break
    assert [int(number) for number in passes] == [0, 1, 2, 3]


@pytest.mark.parametrize("rows", [[2, 0, 5, 1, 4, 4], [0, 0, 1, 7, 0, 2, 3]])
def test_rows_of_four_files_alternate(rows, tmp_path):
    """A previous release read the files in parallel; the runs that it began are resumed in the same order."""
    files = []
    for number, count in enumerate(rows):
        files.append(write_rows(tmp_path / f"{number}", [b"%d:%d" % (number, row) for row in range(count)]))
    parallel = list(tf.data.TFRecordDataset(files, num_parallel_reads=4).as_numpy_iterator())
    for keep in (None, lambda records: tf.strings.regex_full_match(records, b".*[0-3]")):
        batches = list(batches_once(files, 2, keep=keep).as_numpy_iterator())
        kept = [row for row in parallel if keep is None or row[-1:] <= b"3"]
        assert [row for _, batch in batches for row in batch] == kept
