"""Tests `serve` over HTTP: a trained model's answers to the bit, errors, newer versions, the command and its end."""

import ast
import base64
import contextlib
import html
import http.client
import json
import os
import re
import select
import shutil
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from components.pusher.publish import keep_newest, roll_back
from embedding_core.errors import ConfigError
from pipelines.commands import cli
from pipelines.config import load_config
from pipelines.serve import http_server
from pipelines.serve.http_server import LookServer
from tests.pipelines.commands.exit_code import exit_code
from tests.pipelines.serve.small_model import push_model
from tests.support.tf_examples import example

pytestmark = pytest.mark.tfx

COLUMNS = {"item": [f"i{number}" for number in range(25)], "shop": [f"s{number % 6}" for number in range(25)]}
COLUMNS["price"] = [0.5 * number for number in range(25)]
ROWS = [
    example({"item": item.encode(), "shop": shop.encode(), "price": price})
    for item, shop, price in zip(*COLUMNS.values(), strict=True)
]


@contextlib.contextmanager
def serving(config):
    with LookServer(config, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path, body=None, **headers):
    """Return the status of an answer, and its JSON or text."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(server.address + path, data, headers), timeout=60) as answer:
            code, kind, content = answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        code, kind, content = error.code, error.headers["Content-Type"], error.read()
    return code, json.loads(content) if kind == "application/json" else content.decode()


@pytest.fixture(scope="module")
def days(ranking_days):
    with serving(ranking_days.config()) as server:
        yield server


def small_pipeline(folder):
    """Return the configuration of a pipeline that pushed one small version, and whose metadata is gone."""
    (folder / "rows.csv").write_text("item,bought\na,1\n")
    (folder / "my.yaml").write_text("data: rows.csv\nlabel: bought\nfeatures: {categorical: [item]}\n")
    push_model(folder / "model", folder / "runs/my/serving", 7)
    return load_config(folder / "my.yaml", [f"work_dir={folder / 'runs/my'}"])


@pytest.fixture
def small(tmp_path):
    return small_pipeline(tmp_path)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(small_pipeline(tmp_path_factory.mktemp("small"))) as server:
        yield server


def logits(path, rows=ROWS):
    return tf.saved_model.load(str(path)).signatures["serving_default"](examples=tf.constant(rows))["logit"].numpy()


def encoded(rows):
    return [{"b64": base64.b64encode(row).decode()} for row in rows]


def test_answers_equal_those_of_the_trained_version(days, ranking_days):
    expected = logits(ranking_days.version())
    path = f"/v1/models/my/versions/{ranking_days.version().name}:predict"
    for address in (path, "/v1/models/my:predict"):
        code, answer = ask(days, address, {"instances": encoded(ROWS)})
        assert (code, answer["model_version"]) == (200, ranking_days.version().name)
        assert np.array([row["logit"] for row in answer["predictions"]], np.float32).tobytes() == expected.tobytes()


def test_columns_equal_those_of_the_trained_version(days, ranking_days):
    raw = tf.saved_model.load(str(ranking_days.version())).signatures["raw"]
    specs = raw.structured_input_signature[1]
    wanted = raw(**{name: tf.constant(COLUMNS[name], spec.dtype) for name, spec in specs.items()})
    code, answer = ask(days, "/v1/models/my:predict", {"signature_name": "raw", "inputs": COLUMNS})
    assert code == 200
    for name in ("logit", "probability"):
        assert np.array(answer["outputs"][name], np.float32).tobytes() == wanted[name].numpy().tobytes()


def test_models_and_status(days, ranking_days):
    number = ranking_days.version().name
    assert ask(days, "/v1/models") == (200, {"models": ["my"]})
    for path in ("/v1/models/my", f"/v1/models/my/versions/{number}"):
        code, answer = ask(days, path)
        assert (code, answer["ready"], answer["model_version_status"][0]["version"]) == (200, True, number)


@pytest.mark.parametrize(
    ("path", "body", "code", "words"),
    [
        ("/v1/models/my:predict", b"{", 400, "the request is not JSON"),
        ("/v1/models/my:predict", {"instances": []}, 400, "at least one row"),
        ("/v1/models/my:predict", None, 404, "GET '/v1/models/my:predict' is not a request"),
        ("/v1/models/my", b"", 404, "POST '/v1/models/my' is not a request"),
        ("/v1/models/my:classify", b"{}", 404, "is not a request that this server answers"),
        ("/v1/models/x", None, 404, "of 'x' is not served"),
        ("/v1/models/my/versions/5:predict", b"{}", 404, "version 5 of 'my' is not served"),
        ("/favicon.ico", None, 404, "is not a request that this server answers"),
        ("/", b"\xff", 400, "codec can't decode"),
    ],
)
def test_wrong_request_is_one_json_error(server, path, body, code, words):
    status, answer = ask(server, path, body)
    assert (status, list(answer)) == (code, ["error"])
    assert words in answer["error"]


def test_errors_of_the_protocol_are_json_too(server):
    port = server.server_address[1]
    lengths = {"x": 411, "-1": 411, "67108865": 413}
    for method, headers, code in (
        ("PUT", {}, 501), ("POST", {}, 411), *(("POST", {"Content-Length": text}, lengths[text]) for text in lengths)
    ):  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.putrequest(method, "/v1/models/my:predict")
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        assert (answer.status, list(json.load(answer))) == (code, ["error"])
        connection.close()


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost:1", "Origin": "http://127.0.0.1:1"}, 403),
        ({"Host": "localhost:1", "Origin": "http://localhost:1"}, 200),
    ],
)
def test_pages_of_others_are_refused(server, headers, code):
    """A page of another site could send a request from a browser on this machine, such as one that changes tables."""
    status, answer = ask(server, "/v1/models/my:predict", {"inputs": ["abc"]}, **headers)
    assert (status, "error" in answer) == (code, code != 200)


def test_request_that_ends_early_is_an_error(server):
    with socket.create_connection(server.server_address, timeout=60) as client:
        client.sendall(b"POST / HTTP/1.0\r\nContent-Length: 10\r\n\r\nabc")
        client.shutdown(socket.SHUT_WR)
        head, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 408")
    assert json.loads(body) == {"error": "the request ended after 3 of 10 bytes."}


def test_request_that_never_ends_is_not_read_for_ever(server, monkeypatch):
    """Each byte arrives in time, and all of them do not."""
    monkeypatch.setattr(http_server._Handler, "timeout", 0.5)
    with socket.create_connection(server.server_address) as client, contextlib.suppress(ConnectionError):
        client.sendall(b"POST / HTTP/1.0\r\nContent-Length: 1000000\r\n\r\n")
        for _ in range(100_000):
            if select.select([client], [], [], 0.01)[0]:
                return
            client.sendall(b"x")
        pytest.fail("the request is still read")


def test_page_shows_rows_and_neighbours_of_the_trained_tables(days, ranking_days):
    code, page = ask(days, "/?table=item")
    assert (code, "Rows in item" in page, 'role="alert"' in page) == (200, True, False)
    code, page = ask(days, "/?table=item&token=i12")
    assert (code, "Neighbours in item" in page, page.count("<tr>")) == (200, True, 12)
    folder = ranking_days.artifact("CheckpointRetriever", "embedding_checkpoint")
    tokens = (folder / "vocabularies/item.txt").read_text().split()
    rows = tf.train.load_checkpoint(f"{folder}/tables").get_tensor("item")[: len(tokens)].astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    nearest = np.argsort(-(rows @ rows[tokens.index("i12")]))[:11]
    places = [page.index(f">{tokens[row]}</a>") for row in nearest]
    assert places == sorted(places)


def test_request_of_the_page_is_answered(days):
    form = urllib.parse.urlencode({"request": json.dumps({"instances": encoded(ROWS[:2])})}).encode()
    code, page = ask(days, "/", form)
    assert (code, page.count("&#34;logit&#34;")) == (200, 2)


def test_page_offers_the_row_that_the_report_shows(days, ranking_days):
    request = json.loads(html.unescape(re.search(r"(?s)<textarea.*?>(.*)</textarea>", ask(days, "/")[1])[1]))
    query = ranking_days.reports[-1].query
    shown = re.findall(r'"(\w+)": tf.constant\((.*)\),  #', query)
    assert list(request["instances"][0].items()) == [(name, ast.literal_eval(value)[0]) for name, value in shown]
    assert ask(days, "/v1/models/my:predict", request)[0] == 200


def test_two_tower_offers_a_request_for_top_k(two_tower):
    with serving(two_tower.config()) as server:
        code, page = ask(server, "/")
        assert (code, "&#34;signature_name&#34;: &#34;top_k&#34;" in page) == (200, True)
        request = {"signature_name": "top_k", "instances": [{"user": "u1"}]}
        code, answer = ask(server, "/v1/models/my:predict", request)
        assert code == 200
        assert answer["predictions"][0]["tokens"][0].startswith("i")


def test_newer_version_takes_over_while_requests_are_answered(small, tmp_path, capsys):
    """No request fails, and each is answered to the bit by the version that it names, also after a rollback."""
    base = small.push_destination
    request, seen, expected = {"inputs": ["abcd"]}, [], {}

    def taken_over(server, number):
        wait_for(server, number)
        signature = tf.saved_model.load(f"{base}/{number}").signatures["serving_default"]
        expected[str(number)] = signature(examples=tf.constant(request["inputs"]))["length"].numpy().tobytes()
        seen.append(ask(server, "/v1/models/my:predict", request))

    with serving(small) as server:
        taken_over(server, 7)
        done = threading.Event()

        def keep_asking():
            while not done.is_set():
                seen.append(ask(server, "/v1/models/my:predict", request))

        threads = [threading.Thread(target=keep_asking) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number, added in ((8, 0.1), (9, 0.7)):
            push_model(tmp_path / f"model{number}", base, number, added)
            taken_over(server, number)
        copy = roll_back(base).version
        keep_newest(base, 1)
        taken_over(server, copy)
        done.set()
        for thread in threads:
            thread.join()
    assert {code for code, _ in seen} == {200}
    given = {(answer["model_version"], np.array(answer["outputs"], np.float32).tobytes()) for _, answer in seen}
    assert given == {*expected.items()}
    assert (expected[str(copy)], len({*expected.values()})) == (expected["8"], 3)
    assert "version 8\nversion 9\n" in capsys.readouterr().out


def wait_for(server, number, seconds=120):
    """Wait until a version answers."""
    end = time.monotonic() + seconds
    while server.version.number != number:
        assert time.monotonic() < end, f"version {number} was not taken over"
        time.sleep(0.05)


def test_version_that_is_being_copied_is_taken_when_it_is_whole(small, capsys):
    server, base = LookServer(small, 0), Path(small.push_destination)
    server.server_close()
    (base / "9").mkdir()
    server.look()
    assert (server.version.number, capsys.readouterr().err) == (7, "")  # a folder without a model
    shutil.copy(base / "7/saved_model.pb", base / "9")
    server.look()
    server.look()
    assert server.version.number == 7
    assert capsys.readouterr().err.count("version 9 is not loaded, 7 still answers") == 1
    shutil.copytree(base / "7", base / "9", dirs_exist_ok=True)
    server.look()
    assert server.version.number == 9


def test_page_without_metadata_says_what_is_missing(server):
    code, page = ask(server, "/")
    assert (code, "a training that the metadata of &#39;my&#39; does not know" in page) == (200, True)


@pytest.fixture
def command(small, monkeypatch):
    """Return the arguments of the command, which Ctrl-C ends as soon as it serves."""
    monkeypatch.setattr(cli, "silence", lambda: None)

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(LookServer, "serve_forever", interrupted)
    return "serve", f"{small.work_dir}/../../my.yaml", "--set", f"work_dir={small.work_dir}"


def test_command_says_what_it_is_and_ctrl_c_ends_it(command, capsys):
    assert exit_code(*command, "--port", "0") == 130
    out, err = capsys.readouterr()
    first, second = out.splitlines()
    assert first.startswith("version 7: http://127.0.0.1:")
    assert "/v1/models/my:predict answers" in first
    assert second.startswith("A look, not a server for production")
    assert err == ""


def test_damaged_version_is_one_error(command, small, capsys):
    Path(small.push_destination, "7/saved_model.pb").write_bytes(b"x")
    assert exit_code(*command, "--port", "0") == 1
    error = capsys.readouterr().err
    assert "serving/7' cannot be loaded (" in error
    assert "): publish the model again." in error
    assert len(error.splitlines()) == 1


def test_port_in_use_is_one_error(command, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert exit_code(*command, "--port", port) == 1
    assert f"error: `--port` is {port}: Address already in use; give another one, or 0" in capsys.readouterr().err


def test_folder_without_a_version_is_one_error(small):
    empty = load_config(f"{small.work_dir}/../../my.yaml", [f"work_dir={small.work_dir}2"])
    with pytest.raises(ConfigError, match=r"has no version: push one with `tfx-embeddings run`"):
        LookServer(empty, 0)
    for moment, name in enumerate(("refused-20260102T030406", "7", "refused-20260102T030405")):
        report = Path(empty.work_dir, "reports", name)
        report.mkdir(parents=True)
        os.utime(report, (moment, moment))
    with pytest.raises(ConfigError, match=r"the last run was refused, and '.*/refused-20260102T030405' says why; push"):
        LookServer(empty, 0)
