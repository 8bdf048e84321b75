import tensorflow as tf

from embedding_core.training.row_stream import Passes


def test_passes_are_equal_and_come_from_one_iterator():

    def numbers():
        yield from range(5)

    passes = Passes(tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], tf.int64)), 5)
    for _ in range(3):
        assert [int(number) for number in passes] == [0, 1, 2, 3, 4]
    one, other = iter(passes), iter(passes)
    assert [int(next(one)) for _ in range(3)] == [0, 1, 2]
    assert [int(number) for number in other] == [0, 1, 2, 3, 4]
    assert [int(number) for number in passes] == [0, 1, 2, 3, 4]


def test_a_pass_that_is_left_is_not_continued():
    passes = Passes(tf.data.Dataset.range(4), 4)
    for number in passes:
        if number == 1:
            break
    assert [int(number) for number in passes] == [0, 1, 2, 3]
