"""What a user reads about the stacks of tables that are compiled for SparseCores."""

from pipelines.tpu_compiler.preflight_checks import sparse_core_lines

FOUND = {
    "tables": ["a", "b"],
    "stage": "compiled",
    **dict.fromkeys(("argument_bytes", "output_bytes", "shared_bytes", "program_bytes", "planned_bytes"), 2**20),
    "temporary_bytes": 3 * 2**20,
    "not_passed": {"a": ["sum_inside_sqrt"]},
}
RESULT = {
    "stage": "compiled",
    "limits": "runs/tables/7",
    "target": "v6e:2x4",
    "versions": {"jax-tpu-embedding": "0.2.0", "libtpu": "0.0.52"},
    "stacks": {"a_b": FOUND},
}


def test_reasons_are_lines():
    lines = list(sparse_core_lines({"stage": "not compiled", "reasons": ["one", "two"]}))
    assert lines == [f"lookup and update on SparseCores: not compiled, because {reason}" for reason in ("one", "two")]


def test_stack_is_shown_beside_the_plan():
    first, stack, left = sparse_core_lines(RESULT)
    assert "jax-tpu-embedding 0.2.0, libtpu 0.0.52, for v6e:2x4), under the limits in runs/tables/7" in first
    assert "stack a_b (a, b): compiled; MiB on a chip: arguments 1.0, outputs 0.0, temporary 3.0" in stack
    assert "planned with 1.0" in stack
    assert left.strip() == "sum_inside_sqrt of the optimizer of a: jax-tpu-embedding does not have it"


def test_refusal_of_a_stack_is_shown_word_for_word():
    refused = {"stage": "refused", "error": "E3001: no\n" + "line\n" * 40, "tables": ["a", "b"]}
    lines = list(sparse_core_lines({**RESULT, "stacks": {"a_b": refused}}))
    assert lines[1].endswith("stack a_b (a, b): refused. The message, word for word:")
    assert lines[2] == "    E3001: no"
    assert lines[-1] == "    ... and 11 more lines, which `--json` writes"
