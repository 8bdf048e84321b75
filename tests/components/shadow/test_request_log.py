"""Reads request logs: those of a server, of several kinds, compressed, and damaged."""

import pytest
from tensorflow_serving.apis import prediction_log_pb2

from components.shadow.keys import log_sizes
from components.shadow.request_log import read_requests
from embedding_core.errors import ConfigError, DataError
from embedding_core.shadow.answering import array_of
from tests.components.shadow.logs import predict_log
from tests.support.tf_examples import write_rows

pytestmark = pytest.mark.tfx

RECORDS = [predict_log("raw", word=[b"a", b"b"]), predict_log(model="other", examples=[b"x"]), predict_log(word=[b"c"])]


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_requests_are_read_in_order(tmp_path, compression):
    path = write_rows(tmp_path / "log", RECORDS, compression)
    first, second, third = read_requests(path)
    assert (first.place, first.model, first.signature) == (f"{path}, record 1", "m", "raw")
    assert array_of(first.inputs["word"]).tolist() == [b"a", b"b"]
    assert (second.model, third.signature) == ("other", "serving_default")


def test_output_filter_is_read(tmp_path):
    log = prediction_log_pb2.PredictionLog.FromString(RECORDS[0])
    log.predict_log.request.output_filter.append("score")
    (request,) = read_requests(write_rows(tmp_path / "log", [log.SerializeToString()]))
    assert request.outputs == ("score",)


OTHER_KINDS = ["classify_log", "regress_log", "predict_streamed_log", "multi_inference_log", "session_run_log"]


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_other_kinds_are_named(tmp_path, kind):
    log = prediction_log_pb2.PredictionLog()
    request = getattr(log, kind).request
    if kind == "multi_inference_log":
        request.tasks.add().model_spec.name = "m"
    elif kind == "predict_streamed_log":
        request.add().model_spec.name = "m"
    else:
        request.model_spec.name = "m"
    (found,) = read_requests(write_rows(tmp_path / "log", [log.SerializeToString()]))
    assert (found.kind, found.model, found.inputs) == (kind, "m", None)


def test_glob_reads_every_file_in_order(tmp_path):
    for number in (2, 1):
        write_rows(tmp_path / f"log-{number}", [RECORDS[number]])
    assert [request.model for request in read_requests(str(tmp_path / "log-*"))] == ["other", "m"]
    sizes = log_sizes(str(tmp_path / "log-*"))
    assert [size["path"] for size in sizes] == [str(tmp_path / "log-1"), str(tmp_path / "log-2")]
    assert sizes[0]["size"] == (tmp_path / "log-1").stat().st_size


def test_missing_log_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"no file matches .*no-log': give a request log"):
        next(read_requests(str(tmp_path / "no-log")))


def flipped(content):
    return content[:-6] + bytes([content[-6] ^ 1]) + content[-5:]


@pytest.mark.parametrize(
    ("records", "compression", "damage", "message"),
    [
        (RECORDS, "", flipped, r"log is damaged at record 3 \(its checksum differs\)"),
        (RECORDS, "", lambda content: content[:-9], "log is cut off within record 3"),
        (RECORDS * 50, "GZIP", lambda content: content[:-20], "is truncated or damaged"),
        ([RECORDS[0], b""], "", lambda content: content, "record 2 is not a `PredictionLog`"),
        ([RECORDS[0], b"\xff\xff\xff"], "", lambda content: content, "record 2 is not a `PredictionLog`"),
        ([], "", lambda content: b"user,item\n1,2\n" * 10, "is not a TFRecord file, or is damaged at record 1"),
    ],
    ids=["flipped", "cut", "cut gzip", "empty record", "other record", "other file"],
)
def test_damaged_log_is_named_by_the_record(tmp_path, records, compression, damage, message):
    path = tmp_path / "log"
    write_rows(path, records, compression)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=message):
        list(read_requests(str(path)))


def test_input_that_says_it_is_huge_is_named(tmp_path):
    log = prediction_log_pb2.PredictionLog.FromString(predict_log(word=[b"a"]))
    log.predict_log.request.inputs["word"].tensor_shape.dim[0].size = 2**40
    with pytest.raises(DataError, match="record 1: input 'word' says that it has 1,099,511,627,776 values"):
        list(read_requests(write_rows(tmp_path / "log", [log.SerializeToString()])))
