"""Reads request logs: those of a server, of several kinds, compressed, and damaged."""

import pytest
from tensorflow_serving.apis import prediction_log_pb2

from components.shadow.keys import log_sizes
from components.shadow.request_log import read_requests
from embedding_core.errors import ConfigError, DataError
from embedding_core.shadow.answering import array_of
from tests.components.shadow.logs import predict_log, write_log

pytestmark = pytest.mark.tfx

RECORDS = [predict_log("raw", word=[b"a", b"b"]), predict_log(model="other", examples=[b"x"]), predict_log(word=[b"c"])]


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_requests_are_read_in_order(tmp_path, compression):
    path = write_log(tmp_path / "log", RECORDS, compression)
    first, second, third = read_requests(path)
    assert (first.place, first.model, first.signature) == (f"{path}, record 1", "m", "raw")
    assert array_of(first.inputs["word"]).tolist() == [b"a", b"b"]
    assert (second.model, third.signature) == ("other", "serving_default")


def test_output_filter_is_read(tmp_path):
    log = prediction_log_pb2.PredictionLog.FromString(RECORDS[0])
    log.predict_log.request.output_filter.append("score")
    (request,) = read_requests(write_log(tmp_path / "log", [log.SerializeToString()]))
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
    (found,) = read_requests(write_log(tmp_path / "log", [log.SerializeToString()]))
    assert (found.kind, found.model, found.inputs) == (kind, "m", None)


def test_glob_reads_every_file_in_order(tmp_path):
    for number in (2, 1):
        write_log(tmp_path / f"log-{number}", [RECORDS[number]])
    assert [one.model for one in read_requests(str(tmp_path / "log-*"))] == ["other", "m"]
    sizes = log_sizes(str(tmp_path / "log-*"))
    assert [one["path"] for one in sizes] == [str(tmp_path / "log-1"), str(tmp_path / "log-2")]
    assert sizes[0]["size"] == (tmp_path / "log-1").stat().st_size


def test_missing_log_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="no-log', and the file does not exist: give a request log"):
        next(read_requests(str(tmp_path / "no-log")))


def test_damaged_record_is_named_by_its_number(tmp_path):
    path = tmp_path / "log"
    write_log(path, RECORDS)
    content = bytearray(path.read_bytes())
    content[-6] ^= 1
    path.write_bytes(content)
    requests = read_requests(str(path))
    next(requests), next(requests)
    with pytest.raises(DataError, match=r"log is damaged at record 3 \(its checksum differs\)"):
        next(requests)


def test_truncated_record_is_named_by_its_number(tmp_path):
    path = tmp_path / "log"
    write_log(path, RECORDS)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="log is cut off within record 3"):
        list(read_requests(str(path)))


def test_truncated_gzip_file_is_an_error(tmp_path):
    path = tmp_path / "log.gz"
    write_log(path, RECORDS * 50, "GZIP")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="is truncated or damaged"):
        list(read_requests(str(path)))


@pytest.mark.parametrize("record", [b"", b"\xff\xff\xff"], ids=["empty", "bytes"])
def test_record_of_another_kind_is_named_by_its_number(tmp_path, record):
    with pytest.raises(DataError, match="record 2 is not a `PredictionLog`"):
        list(read_requests(write_log(tmp_path / "log", [RECORDS[0], record])))


def test_file_of_another_kind_is_an_error(tmp_path):
    (tmp_path / "log").write_text("user,item\n1,2\n" * 10)
    with pytest.raises(DataError, match="is not a TFRecord file, or is damaged at record 1"):
        list(read_requests(str(tmp_path / "log")))


def test_input_that_says_it_is_huge_is_named(tmp_path):
    log = prediction_log_pb2.PredictionLog.FromString(predict_log(word=[b"a"]))
    log.predict_log.request.inputs["word"].tensor_shape.dim[0].size = 2**40
    with pytest.raises(DataError, match="record 1: input 'word' says that it has 1,099,511,627,776 values"):
        list(read_requests(write_log(tmp_path / "log", [log.SerializeToString()])))
