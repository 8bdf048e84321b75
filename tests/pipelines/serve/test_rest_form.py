"""Tests answers in TensorFlow Serving's REST form on a small model: values to the bit, and one error for a mistake."""

import base64
import json
import re

import numpy as np
import pytest
import tensorflow as tf

from pipelines.serve.rest_form import RequestError, json_of, predict, status

PRICES = np.array([0.1, 1e-40, 16777217.0, -3.4e38], np.float32)
COLUMNS = {"item": [["a", "b"], ["ü", ""], ["", ""], ["c", "d"]], "number": [1, -(2**63), 2**53 + 1, 0]}
COLUMNS["price"] = PRICES.tolist()
ROWS = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
ITEMS = [row[0] for row in COLUMNS["item"]]
RAW = {"item": [["a"]], "number": [1], "price": [1.0]}


def b64(data):
    return {"b64": base64.b64encode(data).decode()}


def sent(answer):
    """Return an answer as a client reads it."""
    return json.loads(json.dumps(answer))


def test_columns_equal_the_signature(version):
    answer = sent(predict(version, {"signature_name": "raw", "inputs": COLUMNS}))
    outputs = answer["outputs"]
    assert answer["model_version"] == "7"
    tensors = {name: tf.constant(column) for name, column in COLUMNS.items() if name != "number"}
    expected = version.call("raw", {**tensors, "number": tf.constant(COLUMNS["number"], tf.int64)})
    assert np.array(outputs["score"], np.float32).tobytes() == expected["score"].tobytes()
    assert outputs["next"] == [2, -(2**63) + 1, 2**53 + 2, 1]
    assert outputs["item"] == ITEMS
    assert outputs["item_bytes"] == [b64(item.encode()) for item in ITEMS]


def test_rows_equal_columns(version):
    columns = predict(version, {"signature_name": "raw", "inputs": COLUMNS})["outputs"]
    rows = predict(version, {"signature_name": "raw", "instances": ROWS})["predictions"]
    assert rows == [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_only_input_and_only_output_need_no_name(version):
    texts = [b"\xff\0", b"", b"abcde"]
    expected = version.call("serving_default", {"examples": tf.constant(texts)})["length"].tolist()
    values = [b64(text) for text in texts]
    named = {"inputs": {"examples": values}}, {"instances": [{"examples": value} for value in values]}
    for request in ({"inputs": values}, {"instances": values}, *named):
        answer = sent(predict(version, request))
        assert answer.get("outputs", answer.get("predictions")) == expected


def test_bytes_that_are_not_text_come_back_as_base64(version):
    inputs = {**RAW, "item": [[b64(b"\xff")]]}
    assert predict(version, {"signature_name": "raw", "inputs": inputs})["outputs"]["item"] == [b64(b"\xff")]


def test_numbers_that_are_not_finite_are_names_as_in_javascript(version):
    text = '{"signature_name": "raw", "inputs": {"item": [["a"]], "number": [1], "price": [%s]}}'
    for value in ("NaN", "Infinity", "-Infinity"):
        assert f'"score": [{value}]' in json.dumps(predict(version, json_of(text % value)))


def test_signature_without_inputs_answers_columns_alone(version):
    assert predict(version, {"signature_name": "counters", "inputs": {}})["outputs"] == [1, 2]
    with pytest.raises(RequestError, match="does not return a row for each row"):
        predict(version, {"signature_name": "counters", "instances": [{}]})


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ([1], 'JSON object with either "instances"'),
        ({}, 'either "instances", a list of rows, or "inputs"'),
        ({"instances": [""], "inputs": [""]}, "either"),
        ({"inputs": [""], "signature_name": "rwa"}, r"'rwa': version 7 has \['counters', 'raw', 'serving_default'\]"),
        ({"inputs": [""], "signature_name": ["raw"]}, r"`signature_name` is \['raw'\]"),
        ({"instances": []}, "at least one row"),
        ({"instances": "x"}, "at least one row"),
        ({"instances": [{"b64": "*"}]}, "input 'examples' must be string of the shape"),
        ({"instances": [{"b64": 1}]}, r"keys \['b64'\]"),
        ({"instances": [{"examples": {"b65": ""}}]}, r"keys \['b65'\]"),
        ({"instances": [{"b65": ""}]}, r"row 0 of `instances` has \['b65'\]: .* takes an object with \['examples'\]"),
        ({"inputs": "x"}, r"input 'examples' has the shape \(\): it must be string of the shape \[n\]"),
        ({"inputs": [None]}, "input 'examples' must be string"),
        ({"inputs": [1]}, "input 'examples' must be string"),
        ({"inputs": ["bad"]}, "signature 'serving_default' refuses the request: .*bad row"),
        ({"inputs": "x", "signature_name": "raw"}, "`inputs` has str: signature 'raw' takes an object"),
        ({"instances": [ROWS[0], {"item": ["a"]}], "signature_name": "raw"}, "row 1 of `instances`"),
        ({"inputs": {**RAW, "number": [1.5]}, "signature_name": "raw"}, "input 'number' must be int64"),
        ({"inputs": {**RAW, "number": [2**63]}, "signature_name": "raw"}, "input 'number' must be int64"),
        (
            {"inputs": {**RAW, "number": [True]}, "signature_name": "raw"},
            "'number' must be int64 .*: true in it is a bool",
        ),
        ({"inputs": {**RAW, "price": [False]}, "signature_name": "raw"}, "'price' must be float32 .*: false in it is"),
        (
            {"inputs": {**RAW, "price": [1e39]}, "signature_name": "raw"},
            "'price' must be float32 .*: a number in it is too",
        ),
        ({"inputs": {**RAW, "price": [10**400]}, "signature_name": "raw"}, "input 'price' must be float32"),
        ({"inputs": {**RAW, "price": ["1"]}, "signature_name": "raw"}, "input 'price' must be float32"),
        ({"inputs": {**RAW, "item": [["a"], []]}, "signature_name": "raw"}, r"shape \[n, n\]: .*"),
    ],
)
def test_wrong_request_has_one_clear_error(version, request_, words):
    with pytest.raises(RequestError, match=words) as caught:
        predict(version, request_)
    assert (caught.value.status, len(str(caught.value).splitlines())) == (400, 1)


@pytest.mark.parametrize("text", ["{", "", b"\xff", "[" * 100_000])
def test_text_that_is_not_json_is_refused(text):
    with pytest.raises(RequestError, match="the request is not JSON"):
        json_of(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"inputs": [-1e400]}', "the number -1e400: it is too large; write Infinity"),
        ('{"inputs": [{"a": 1, "b": 2, "a": 1}]}', "the key 'a' twice in an object: give it once"),
    ],
)
def test_json_that_loses_a_value_is_refused(text, words):
    with pytest.raises(RequestError, match=words):
        json_of(text)


def test_status_is_that_of_the_real_servers(version):
    shown = status(version, "m")
    assert (shown["name"], shown["ready"]) == ("m", True)
    assert shown["model_version_status"][0]["state"] == "AVAILABLE"
    assert re.fullmatch("[0-9]+", shown["model_version_status"][0]["version"])


def test_version_is_loaded_as_tensorflow_loads_it(version):
    assert {name: set(specs) for name, specs in version.inputs.items()} == {
        "raw": {"item", "price", "number"}, "serving_default": {"examples"}, "counters": set(),
    }  # fmt: skip
    assert version.inputs["raw"]["item"].dtype == tf.string
