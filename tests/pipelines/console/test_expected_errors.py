import pytest

from embedding_core import errors
from embedding_core.errors import DataError
from pipelines.console.expected_errors import expected_message

pytestmark = pytest.mark.light


def _raised(error, cause):
    try:
        raise error from cause
    except type(error) as caught:
        return caught


def test_own_error_is_found_behind_others():
    assert expected_message(_raised(RuntimeError("node failed"), DataError("row 3"))) == "row 3"


@pytest.mark.parametrize(
    "text",
    [
        "Traceback (most recent call last):\n  File x\nembedding_core.errors.DataError: row 3\n",
        "embedding_core.errors.DataError: row 3 [while running 'Ingest']\n",
        "Graph execution error:\nassertion failed: [DataError: row 3]\n\t [[{{node Assert}}]]",
    ],
)
def test_own_message_is_found_in_the_text_of_another_error(text):
    assert expected_message(RuntimeError(text)) == "row 3"


@pytest.mark.parametrize(
    "end", ["", "\n\t [[{{node A}}]]", " [Op:__f_1]", " [while running 'X']", r"\n\t [[{{node A}}]]"]
)
def test_message_of_a_check_may_hold_brackets(end):
    text = f"{{{{node A}}}} assertion failed: [DataError: column `x] [y`: row 3]{end}"
    assert expected_message(RuntimeError(text)) == "column `x] [y`: row 3"


@pytest.mark.parametrize("kind", [name for name in vars(errors) if name.endswith("Error")])
def test_every_class_of_ours_is_known_by_its_name(kind):
    assert expected_message(RuntimeError(f"embedding_core.errors.{kind}: row 3")) == "row 3"


@pytest.mark.parametrize("text", ["", "assertion failed: [x]", "my.DataError: row 3", "see DataError: row 3"])
def test_unforeseen_errors_are_none(text):
    assert expected_message(RuntimeError(text)) is None


def test_chain_that_goes_round_ends():
    first, two = RuntimeError("a"), RuntimeError("b")
    first.__cause__, two.__cause__ = two, first
    assert expected_message(first) is None


@pytest.mark.tfx
def test_error_of_a_beam_worker_is_found():
    beam = pytest.importorskip("apache_beam")
    from pipelines.pipeline.run_target import IN_PROCESS

    options = beam.options.pipeline_options.PipelineOptions([*IN_PROCESS])
    with pytest.raises(Exception, match="row 3") as caught, beam.Pipeline(options=options) as pipeline:
        _ = pipeline | beam.Create([1]) | beam.Map(_fail)
    assert expected_message(caught.value) == "row 3"


def _fail(_):
    raise DataError("row 3")


@pytest.mark.tfx
def test_failed_check_of_a_graph_is_found():
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_transform")
    from pipelines.preprocessing import checked_label

    label = tf.function(lambda value: checked_label(value, "bought"))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        label(tf.constant([[2.0]]))
    assert expected_message(caught.value).startswith("label `bought`: a row has none")
