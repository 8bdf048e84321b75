"""Stacks of tables on SparseCores in the preflight. Tests that need the compiler skip if it is not installed."""

import functools

import numpy as np
import pytest

from embedding_core.optimizers import Adagrad
from embedding_core.planning.topology import GIB, memory_plan, named_topology
from embedding_core.preflight import PipelineStep, preflight
from embedding_core.preflight.preflight_run import Program
from embedding_core.sparse_cores import Ids, LimitCounter, limits_in_all_forms, slice_of, stacks_of
from embedding_core.tpu_compiler import SparseCoreCompiler, SparseCores
from embedding_core.tpu_compiler.compiler_check import program_of, sparse_core_check
from embedding_core.training_config import TrainingConfig
from tests.support.tables import config_of
from tests.support.tpu_compiler.compilers import NEEDS_SPARSE_CORE_COMPILER, SPARSE_CORE_COMPILER

ROWS = 256
SIZES = dict.fromkeys(("argument_bytes", "output_bytes", "shared_bytes", "temporary_bytes", "program_bytes"), 2**20)


def config(rows=5000, rate=0.1):
    settings = {"vocabulary_size": rows, "optimizer": Adagrad(learning_rate=rate)}
    return config_of(**{name: {"dim": dim, **settings} for name, dim in (("user", 16), ("item", 16), ("word", 8))})


def limits(tables, topology="v5p-8", rows=ROWS):
    """Compute the limits of two batches of random ids."""
    slice_, random = slice_of(named_topology(topology)), np.random.default_rng(0)
    counters = [
        LimitCounter(tables, slice_, rows, stacks_of(tables, slice_, rows, by_combiner=apart))
        for apart in (False, True)
    ]
    for _ in range(2):
        batch = {feature.name: Ids(random.integers(0, 5000, rows), np.arange(rows + 1)) for feature in tables.features}
        for counter in counters:
            counter.add(batch)
    return {
        "topology": topology,
        "chips": slice_.chips,
        "sparse_cores_per_chip": slice_.per_chip,
        "batch_size": rows,
        "forms": limits_in_all_forms(*(counter.limits() for counter in counters)),
    }


class Replying(SparseCoreCompiler):
    """Gives the reply of every stack in place of a compiler, and keeps what it was asked."""

    def compile(self, program, generation):
        self.asked.append((program, generation))
        return {
            "target": "v5p:2x2x1",
            "versions": {},
            "stacks": {name: dict(stack) for name, stack in self.reply.items()},
        }


@pytest.fixture
def replying():
    def made(**stacks):
        compiler = Replying(python="unused")
        object.__setattr__(compiler, "reply", stacks)
        object.__setattr__(compiler, "asked", [])
        return compiler

    return made


def checked(given, tables=None, topology="v5p-8", rows=ROWS):
    tables, slice_ = tables or config(), named_topology(topology)
    program = Program(None, tables, slice_, rows, "V2", memory_plan(tables, slice_))
    return sparse_core_check(program, given)[:2]


def test_without_limits_and_environment_both_are_said():
    result, findings = checked(SparseCores(None, None, "no run has computed the limits"))
    assert result["stage"] == "not compiled"
    assert result["reasons"][0] == "no run has computed the limits"
    assert "make sparsecore-compiler" in result["reasons"][1]
    assert findings == ()


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({"topology": "v5p-16"}, "are for v5p-8 and 256 rows in a batch with negatives, not for v5p-16 and 256"),
        ({"rows": 512}, "not for v5p-8 and 512"),
        ({"tables": config().replace(tables=config().tables[:2], features=config().features[:2])}, "for the tables"),
    ],
)
def test_limits_of_another_program_are_not_used(replying, more, found):
    compiler = replying()
    result, _ = checked(SparseCores(compiler, limits(config()), "folder"), **more)
    assert found in result["reasons"][0]
    assert compiler.asked == []


def test_stacks_are_beside_the_plan(replying):
    compiler = replying(
        item_user={"stage": "compiled", "tables": ["item", "user"], **SIZES},
        word={"stage": "compiled", "tables": ["word"], **SIZES},
    )
    given = limits(config())
    result, findings = checked(SparseCores(compiler, given, "folder"))
    assert findings == ()
    assert (result["stage"], result["limits"]) == ("compiled", "folder")
    assert result["stacks"]["item_user"]["planned_bytes"] == 2 * result["stacks"]["word"]["planned_bytes"] * 2
    assert compiler.asked == [(program_of(config(), given), "v5p")]
    assert compiler.asked[0][0]["tables"]["word"]["optimizer"]["changed"] == ["learning_rate"]


def test_learning_rate_function_is_a_number_in_the_program():
    made = program_of(config(rate=lambda: 0.5), limits(config()))
    assert made["tables"]["user"]["optimizer"]["hyperparameters"]["learning_rate"] == 0.01


@pytest.mark.parametrize(
    ("stage", "error", "found"),
    [
        ("refused", "E3001 No viable logical replica count\n\nmore", "refuses it (v5p:2x2x1): E3001 No viable"),
        ("stopped", "signal 6 ended it", "did not finish (v5p:2x2x1): signal 6"),
        ("lacking", "jax-tpu-embedding does not have the optimizer X", "does not have the optimizer X"),
    ],
)
def test_stack_that_does_not_compile_is_a_finding(replying, stage, error, found):
    compiler = replying(word={"stage": stage, "error": error, "tables": ["word"]})
    _, (finding,) = checked(SparseCores(compiler, limits(config()), "folder"))
    assert finding.kind == "tpu"
    assert "stack 'word' (tables 'word')" in finding.what
    assert found in finding.rule
    assert "more" not in finding.rule


def test_stacks_that_do_not_fit_together_are_a_finding(replying):
    large = {"stage": "compiled", **SIZES, "argument_bytes": 50 * GIB}
    compiler = replying(item_user={**large, "tables": ["item", "user"]}, word={**large, "tables": ["word"]})
    _, (finding,) = checked(SparseCores(compiler, limits(config()), "folder"))
    assert finding.kind == "memory"
    assert "2 stacks of tables and slots: 100.0" in finding.what


@NEEDS_SPARSE_CORE_COMPILER
@pytest.mark.parametrize("topology", ["v5p-8", "v6e-8"])
def test_preflight_compiles_the_stacks(topology):
    tables = config(rows=200_000)
    given = SparseCores(SPARSE_CORE_COMPILER, limits(tables, topology), "folder")
    step = PipelineStep(model="pipelines.models.ranking", dense=["d"], arguments={}, training=TrainingConfig(steps=10))
    report = preflight(
        tables,
        named_topology(topology),
        batch_size=ROWS,
        make_step=step,
        own_tables=True,
        checks={"sparse_cores": functools.partial(sparse_core_check, given=given)},
    )
    assert report.green, report.findings
    assert list(report.further["sparse_cores"]["stacks"]) == ["item_user", "word"]
    for found in report.further["sparse_cores"]["stacks"].values():
        assert found["stage"] == "compiled"
        assert 1 <= found["argument_bytes"] / found["planned_bytes"] <= 1.05
