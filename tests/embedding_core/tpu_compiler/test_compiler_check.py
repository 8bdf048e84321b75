"""The program of a core through Google's TPU compiler. Tests that need the compiler skip if it is not installed."""

import functools
import json
import resource
from pathlib import Path

import pytest
import tensorflow as tf

from embedding_core.optimizers import FTRL, SGD, Adagrad, Adam
from embedding_core.planning.topology import memory_plan, named_topology
from embedding_core.preflight import PipelineStep, Step, preflight
from embedding_core.tpu_compiler import TpuCompiler
from embedding_core.tpu_compiler.compiler_check import compiler_check
from embedding_core.training_config import TrainingConfig
from tests.support.tables import config_of
from tests.support.tpu_compiler.compilers import NEEDS_TPU_COMPILER, TPU_COMPILER, python_of

COMPILED = {
    "stage": "compiled",
    "versions": {"libtpu": "0"},
    **dict.fromkeys(("argument_bytes", "output_bytes", "shared_bytes", "temporary_bytes", "program_bytes"), 2**30),
}


def config(rows=1000, dim=16):
    return config_of(user={"vocabulary_size": rows, "dim": dim, "optimizer": Adagrad(learning_rate=0.1)})


def report(tables=None, topology="v2-8", *, batch=64, compiler=TPU_COMPILER, model=None, **arguments):
    if model is None:
        model, arguments = "pipelines.models.ranking", {"hidden_units": [8], "cross_layers": 0}
    step = PipelineStep(model=model, dense=["d"], arguments=arguments, training=TrainingConfig(steps=10))
    given = {"batch_size": batch, "make_step": step, "own_tables": True, "checks": checks(compiler)}
    return preflight(tables or config(), named_topology(topology), **given)


def checks(compiler):
    return {"compiler": functools.partial(compiler_check, compiler=compiler)}


def planted(kind, monkeypatch, **more):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return report(model="planted_for_compiler", kind=kind, **more)


@pytest.fixture
def replying(tmp_path):
    """Make a program in place of the environment's Python that gives one reply."""

    def made(reply):
        (tmp_path / "reply.json").write_text(json.dumps(reply))
        return TpuCompiler(python=python_of(tmp_path, f"cp {tmp_path}/reply.json $3"))

    return made


@pytest.mark.parametrize(("temporary", "found"), [(2, []), (6, ["memory"])])
def test_tables_outside_of_the_program_count_beside_it(replying, temporary, found):
    """A core of v2 has 8 GiB; arguments, program and temporary values are 2 GiB and `temporary`, a table's share 1."""
    compiler = replying({**COMPILED, "temporary_bytes": temporary * 2**30})
    made = report(config(rows=2**26, dim=16), compiler=compiler)
    assert [finding.kind for finding in made.findings] == found
    result = made.further["compiler"]
    assert (result["total_bytes"], result["planned_bytes"]) == ((2 + temporary) * 2**30, 2**30)
    assert result["left_out"] == ["RecvTPUEmbeddingActivations", "SendTPUEmbeddingGradients"]


def test_tables_inside_of_the_program_count_once(replying):
    made = report(config(rows=2**25, dim=16), "v5e-4", compiler=replying({**COMPILED, "temporary_bytes": 6 * 2**30}))
    assert made.green
    assert made.further["compiler"]["tables_inside"]
    assert "XLA compiled for a CPU" not in made.meaning


def test_refusal_names_the_operation_and_the_line(replying, monkeypatch):
    error = 'UNIMPLEMENTED: no such thing: metadata={op_name="import/model/planted/Bitcast" source_line=1}\n\nmore'
    made = planted("operation", monkeypatch, compiler=replying({"stage": "refused", "versions": {}, "error": error}))
    (finding,) = made.findings
    assert "model/planted/Bitcast (" in finding.what
    assert "planted_for_compiler.py:9)" in finding.what
    assert "UNIMPLEMENTED: no such thing" in finding.rule
    assert "more" not in finding.rule
    assert made.further["compiler"]["error"] == error


def test_program_that_tensorflow_cannot_lower_is_not_compiled(monkeypatch, replying):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "preflight")
    made = report(model="planted", kind="texts", compiler=replying({"stage": "must not run"}))
    assert made.further["compiler"] == {"stage": "not lowered"}
    assert "kernel" in {finding.kind for finding in made.findings}


@NEEDS_TPU_COMPILER
@pytest.mark.parametrize(("topology", "inside"), [("v3-8", False), ("v5e-4", True), ("v6e-8", False)])
def test_pipelines_step_compiles_with_tables_of_the_planned_size(topology, inside):
    made = report(config(rows=200_003, dim=20), topology)
    assert made.green, made.findings
    assert made.further["compiler"]["tables_inside"] is inside
    assert made.further["compiler"]["operations"]
    if not inside:
        assert made.further["compiler"]["argument_bytes"] < 0.1 * made.further["compiler"]["planned_bytes"]
    else:
        assert made.further["compiler"]["unknown_sizes"] > 0  # widths of ragged ids
        assert 1 <= made.further["compiler"]["argument_bytes"] / made.further["compiler"]["planned_bytes"] <= 1.05


@NEEDS_TPU_COMPILER
def test_own_step_compiles():
    def make_step(embedding, rows):
        weights = tf.Variable(tf.zeros([16, 1]))

        def on_core(batch):
            embedding.enqueue(batch)
            with tf.GradientTape() as tape:
                activations = embedding.dequeue()
                tape.watch(activations)
                loss = tf.reduce_mean(tf.square(tf.matmul(activations["user"], weights) - 1.0))
            for_tables, for_weights = tape.gradient(loss, (activations, weights))
            embedding.apply_gradients(for_tables)
            weights.assign_sub(0.1 * for_weights)

        return Step(on_core, {"user": tf.TensorSpec([rows, 1], tf.int64)})

    made = preflight(config(), named_topology("v4-8"), batch_size=64, make_step=make_step, checks=checks(TPU_COMPILER))
    assert made.green, made.findings
    assert made.further["compiler"]["stage"] == "compiled"
    assert made.further["compiler"]["operations"]["fusion"] >= 1


@NEEDS_TPU_COMPILER
def test_operation_that_a_tpu_lacks_is_refused_with_its_line(monkeypatch):
    made = planted("operation", monkeypatch, topology="v3-8")
    (finding,) = [candidate for candidate in made.findings if candidate.kind == "tpu"]
    assert "planted_for_compiler.py:9)" in finding.what
    assert "UNIMPLEMENTED" in made.further["compiler"]["error"]


@pytest.mark.slow
@NEEDS_TPU_COMPILER
@pytest.mark.parametrize("topology", ["v2-8", "v3-8", "v4-8", "v5e-4", "v5p-8", "v6e-8"])
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("operation", "element types, XLA encountered an HLO for which this rewriting is not implemented"),
        ("dtype", "Unexpected operand type for FFT: c128"),
        ("shape", 'CustomCall "Cholesky" is not supported to have a dynamic dimension'),
    ],
)
def test_planted_mistakes_are_refused_on_every_generation(kind, error, topology, monkeypatch):
    made = planted(kind, monkeypatch, topology=topology)
    assert made.further["compiler"]["stage"] == "refused"
    assert error in made.further["compiler"]["error"]
    assert "tpu" in [finding.kind for finding in made.findings]


@pytest.mark.slow
@NEEDS_TPU_COMPILER
@pytest.mark.parametrize(
    ("kind", "rows", "green"),
    [("activations", 31_000, True), ("activations", 40_000, False), ("constant", 31_000, False)],
)
def test_activations_and_constants_that_do_not_fit_are_refused(kind, rows, green, monkeypatch):
    made = planted(kind, monkeypatch, batch=8 * rows)
    assert made.green is green
    if not green:
        assert "RESOURCE_EXHAUSTED" in made.further["compiler"]["error"]
        assert "HLO temp" in made.further["compiler"]["error"]


@pytest.mark.slow
@NEEDS_TPU_COMPILER
@pytest.mark.parametrize("rows", [80_000_000, 400_000_000])
def test_too_large_tables_are_refused_and_take_no_memory_here(rows):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made = report(config(rows=rows, dim=32), "v5e-4")
    assert [finding.kind for finding in made.findings] == ["memory", "tpu"]
    assert "RESOURCE_EXHAUSTED" in made.further["compiler"]["error"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2 * 2**20  # KiB; the tables are 20 GB or more


def largest_that_fits(dims, optimizer):
    """Return tables of equal bytes with these dims, as large as a plan for v5e-4 says that they fit."""

    def tables(values):
        rows = [max(1, values // dim) | 1 for dim in dims]
        sizes = zip(rows, dims, strict=True)
        settings = [{"vocabulary_size": count, "dim": dim, "optimizer": optimizer} for count, dim in sizes]
        return config_of(**{f"t{n}": given for n, given in enumerate(settings)})

    low, high = 0, 2**33
    while high - low > 2**16:
        middle = (low + high) // 2
        fits = memory_plan(tables(middle), named_topology("v5e-4"))["fits"]
        low, high = (middle, high) if fits else (low, middle)
    return tables(low - 2**23)  # 32 MiB for the step


@pytest.mark.slow
@NEEDS_TPU_COMPILER
@pytest.mark.parametrize(
    ("dims", "optimizer"),
    [
        *(([dim], Adagrad()) for dim in (8, 32, 40, 64, 96, 128, 192)),
        *(([dim], Adam()) for dim in (16, 64, 96)),
        *(([64], optimizer) for optimizer in (SGD(), FTRL())),
        *((dims, Adagrad()) for dims in ([16] * 4, [64] * 2, [64] * 4, [96] * 4, [16, 64], [1, 12, 100])),
        ([64] * 4, Adam()),
    ],
    ids=str,
)
def test_largest_tables_that_a_plan_fits_compile(dims, optimizer):
    """The plan's bound of gradients and padded copies is enough, and tables and slots are as large as planned."""
    made = report(largest_that_fits(dims, optimizer), "v5e-4", batch=1024)
    assert made.memory["fits"]
    assert made.green, made.findings
    assert made.further["compiler"]["argument_bytes"] == pytest.approx(made.memory["fullest_core_bytes"], rel=0.05)
