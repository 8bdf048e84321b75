"""The exchange with the process that compiles stacks for SparseCores; with its environment, each optimizer."""

import json

import pytest

from embedding_core.errors import ConfigError
from embedding_core.tpu_compiler import SparseCoreCompiler
from embedding_core.tpu_compiler.compilers import slice_name
from tests.support.tpu_compiler.compilers import NEEDS_SPARSE_CORE_COMPILER, SPARSE_CORE_COMPILER, python_of

pytestmark = pytest.mark.light

LIMITS = ("max_ids_per_partition", "max_unique_ids_per_partition", "required_buffer_size_per_sc")


def program(kind="Adagrad", chips=4, limit=32, length=0, **hyperparameters):
    """Describe tables a and b in one stack, and c alone."""
    optimizer = {
        "kind": kind,
        "hyperparameters": {"learning_rate": 0.1, **hyperparameters},
        "changed": list(hyperparameters),
    }
    return {
        "chips": chips,
        "sparse_cores_per_chip": 4,
        "batch_size": 256,
        "tables": {
            name: {"rows": 1000, "dim": dim, "combiner": "sum", "optimizer": optimizer}
            for name, dim in {"a": 16, "b": 16, "c": 8}.items()
        },
        "features": {name: {"table": name, "length": length if name == "c" else 0} for name in "abc"},
        "form": {
            "stack_tables": [{"stack_name": "a_b", "table_names": ["a", "b"]}],
            "update_preprocessing_parameters": {key: {"a_b": limit, "c": limit} for key in LIMITS[:2]}
            | {LIMITS[2]: {"a_b": 16 * limit, "c": 16 * limit}},
        },
    }


@pytest.fixture
def replies(tmp_path):
    """Make a program in place of the environment's Python that gives one reply after the other."""

    def made(*texts):
        for number, reply in enumerate(texts):
            (tmp_path / f"reply.{number}").write_text(json.dumps(reply))
        (tmp_path / "count").write_text("0")
        script = (
            f"cd {tmp_path}; n=$(cat count); cp reply.$n $3/reply.json; cp $3/request.json request.$n\n"
            "echo $((n + 1)) > count; echo last words >&2"
        )
        return SparseCoreCompiler(python=python_of(tmp_path, script))

    return made


@pytest.mark.parametrize(
    ("generation", "chips", "name"),
    [
        ("v5p", 4, "v5p:2x2x1"),
        ("v5p", 12, "v5p:2x2x3"),
        ("v5p", 32, "v5p:2x4x4"),
        ("v5p", 64, "v5p:4x4x4"),
        ("v6e", 1, "v6e:1x1"),
        ("v6e", 8, "v6e:2x4"),
        ("v6e", 256, "v6e:16x16"),
    ],
)
def test_slice_is_the_most_compact_box(generation, chips, name):
    assert slice_name(generation, chips) == name


def test_number_of_chips_that_no_box_has_is_refused():
    with pytest.raises(ConfigError, match="a slice of v5p does not have 10 chips"):
        slice_name("v5p", 10)


def test_process_that_ends_on_a_stack_goes_on_with_the_next(replies):
    stopped = {"stage": "compiling", "stack": "a_b", "tables": ["a", "b"], "versions": {"jax": "1"}, "stacks": {}}
    rest = {"stage": "compiled", "versions": {"jax": "1"}, "stacks": {"c": {"stage": "compiled", "tables": ["c"]}}}
    compiler = replies(stopped, rest)
    assert compiler.compile(program(), "v5p") == {
        "target": "v5p:2x2x1",
        "versions": {"jax": "1"},
        "stacks": {
            "a_b": {"stage": "stopped", "error": "last words", "tables": ["a", "b"]},
            "c": {"stage": "compiled", "tables": ["c"]},
        },
    }
    requests = [json.loads((compiler.python.parent / f"request.{n}").read_text()) for n in (0, 1)]
    assert [request["done"] for request in requests] == [[], ["a_b"]]
    assert requests[0]["versions"] == SparseCoreCompiler.pinned_versions()


def test_environment_that_is_absent_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.delenv(SparseCoreCompiler.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    assert SparseCoreCompiler.installed() is None
    with pytest.raises(ConfigError, match=r"no environment of the compiler for SparseCores.*make sparsecore-compiler"):
        SparseCoreCompiler.find()


@NEEDS_SPARSE_CORE_COMPILER
@pytest.mark.slow
@pytest.mark.parametrize(("generation", "chips"), [("v5p", 4), ("v6e", 8)])
@pytest.mark.parametrize(
    ("kind", "slots", "more"),
    [("SGD", 0, {}), ("Adagrad", 1, {}), ("AdagradMomentum", 2, {}), ("Adam", 2, {"beta_1": 0.8}), ("FTRL", 2, {})],
)
def test_every_optimizer_compiles(kind, slots, more, generation, chips):
    asked = {**program(kind, chips, **more), "sparse_cores_per_chip": 4 if generation == "v5p" else 2}
    result = SPARSE_CORE_COMPILER.compile(asked, generation)
    assert list(result["stacks"]) == ["a_b", "c"]
    for name, found in result["stacks"].items():
        assert found["stage"] == "compiled", found
        assert found["not_passed"] == {}
        rows = 2048 if name == "a_b" else 1024  # each table is padded to 1024
        held = rows * (16 if name == "a_b" else 8) * 4 * (1 + slots) // chips
        assert held <= found["shared_bytes"] <= 1.01 * held + 512
        assert found["argument_bytes"] > held
        assert found["temporary_bytes"] > 0


@NEEDS_SPARSE_CORE_COMPILER
def test_what_jax_tpu_embedding_lacks_is_said_by_name():
    result = SPARSE_CORE_COMPILER.compile(program("Adam", sum_inside_sqrt=False, length=3), "v5p")
    assert result["stacks"]["c"]["stage"] == "compiled"
    assert result["stacks"]["c"]["not_passed"] == {"c": ["sum_inside_sqrt"]}


@NEEDS_SPARSE_CORE_COMPILER
def test_optimizer_that_jax_tpu_embedding_lacks_is_said_by_name():
    result = SPARSE_CORE_COMPILER.compile(program("Rprop"), "v5p")
    assert {found["stage"] for found in result["stacks"].values()} == {"lacking"}
    assert "does not have the optimizer Rprop" in result["stacks"]["c"]["error"]


@NEEDS_SPARSE_CORE_COMPILER
@pytest.mark.slow
def test_limits_far_too_large_are_refused_in_the_compilers_words():
    result = SPARSE_CORE_COMPILER.compile(program(limit=100_000), "v5p")
    assert result["stacks"]["a_b"]["stage"] == "refused"
    assert "No viable logical replica count" in result["stacks"]["a_b"]["error"]
