import pytest
import tensorflow as tf

from embedding_core.columns import TokenTable
from embedding_core.errors import VocabularyError


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "v.txt"
    path.write_bytes("b\na\nä\n".encode())
    return path


def test_tokens_get_line_numbers_and_unknown_ones_are_dropped(vocabulary):
    ids = TokenTable(vocabulary, 3, 0).lookup(tf.ragged.constant([["a", "zzz", "ä"], ["b"], ["?"], []]))
    assert ids.to_list() == [[1, 2], [0], [], []]


def test_unknown_tokens_get_the_id_of_a_static_vocabulary_table(vocabulary):
    unknown = tf.constant(["x", "y", "zz", "a"])
    keys = tf.lookup.KeyValueTensorInitializer(["b", "a", "ä"], tf.range(3, dtype=tf.int64))
    expected = tf.lookup.StaticVocabularyTable(keys, 4).lookup(unknown)
    assert TokenTable(vocabulary, 7, 4).ids_of(unknown).numpy().tolist() == expected.numpy().tolist()


def test_empty_vocabulary_sends_every_token_to_its_oov_row(tmp_path):
    (tmp_path / "v.txt").write_bytes(b"")
    assert TokenTable(tmp_path / "v.txt", 1, 1).ids_of(tf.constant(["a"])).numpy().tolist() == [0]


@pytest.mark.parametrize("rows", [2, 4])
def test_vocabulary_of_other_length_is_refused(vocabulary, rows):
    with pytest.raises(VocabularyError, match="holds 3 tokens"):
        TokenTable(vocabulary, rows, 0)


def test_saved_table_takes_its_vocabulary_along(vocabulary, tmp_path):
    table = TokenTable(vocabulary, 4, 1)
    table.serve = tf.function(table.ids_of, input_signature=[tf.TensorSpec([None], tf.string)])
    tf.saved_model.save(table, str(tmp_path / "saved"))
    vocabulary.unlink()
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    assert loaded.serve(tf.constant(["ä", "new"])).numpy().tolist() == [2, 3]
