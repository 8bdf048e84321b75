"""Compares a training step of 26 tables: this project's Keras layers, TensorFlow Recommenders', keras-rs' and torch.

    python -m benchmarks.keras_layer FOLDER [--cases adagrad-16-onehot ...] [--into docs/benchmarks.md] [--torch PYTHON]
    python -m benchmarks.keras_layer FOLDER --keras3 [...]  # the layer for Keras 3, beside those of others

All variants of a case run on one core. In every round they take turns, a block of steps each, in an order that
changes, so that other load on the machine affects all of them alike. A second run creates them in the opposite order,
because the time also depends on where their memory was allocated. Torch runs in the Python that `--torch` names, in a
process that waits for its turn.

Figures are CPU times: the median over the rounds, with minimum and maximum. A ratio is the median of the rounds'
ratios. Results are kept in FOLDER, one file per case; the table has all cases found there.
"""

import argparse
import importlib.metadata
import json
import os
import platform
from pathlib import Path

from benchmarks import keras_layer_steps as steps
from benchmarks.measuring import in_new_process, ratio, show, spread, table

CASES = [
    f"{optimizer}-{dim}-{kind}"
    for kind in ("onehot", "ragged")
    for dim in (16, 64)
    for optimizer in ("sgd", "adagrad", "adam")
]
PEERS = Path(__file__).with_name("peers")
CORE = max(os.sched_getaffinity(0))
COLUMNS = {  # a ratio of two variants each
    "`keras`, of TFRS": ("keras", "tfrs"),
    "`engine`, of TFRS": ("engine", "tfrs"),
    "PyTorch, of TFRS": ("torch", "tfrs"),
}
COLUMNS_OF_KERAS_3 = {
    "keras-rs, of TFRS": ("keras-rs", "tfrs"),
    "`keras`, of TFRS": ("keras3", "tfrs"),
    "`keras`, of tf_keras": ("keras3", "keras"),
    "without update, of tf_keras": ("gradient3", "gradient"),
    "`engine`, of tf_keras": ("engine3", "engine"),
}


def variants_of(case, given):
    """Return the variants of a case by name: None if it runs in the measuring process, else the command of a peer."""
    if given.keras3:
        base = "tfrs adagrad" if case.startswith("adam") else "tfrs"
        names = [base, "gradient", "gradient3", "keras", "keras3", "engine", "engine3", "keras-rs"]
    elif not case.startswith("adam"):
        names = ["tfrs", "keras", "engine"]
    elif case == "adam-16-onehot":  # TFRS' Adam updates every row in each step: it is slow, and one case is enough
        names = ["tfrs", "engine", "tfrs adagrad"]
    else:
        names = ["engine", "tfrs adagrad"]
    variants = dict.fromkeys(names)
    if given.torch:
        variants["torch"] = [given.torch, str(PEERS / "torch_step.py")]
    return variants


def measure(case, given):
    """Measure a case with its variants created in both orders, and write the results into the folder."""
    name, dim, kind = case.split("-")
    file = ids_file(given, kind)
    variants = list(variants_of(case, given).items())
    runs = [
        in_new_process(steps.measure_case, (name, int(dim), kind), dict(order), file, given.rounds, core=CORE)
        for order in (variants, variants[::-1])
    ]
    found = {variant: runs[0]["times"][variant] + runs[1]["times"][variant] for variant, _ in variants}
    kept = {"times": found, "versions": runs[0]["versions"], "load": os.getloadavg()[1]}
    (given.folder / f"{case}.json").write_text(json.dumps(kept))


def ids_file(given, kind):
    """Return the file of ids that every variant reads; write it if it does not exist."""
    file = given.folder / f"ids-{kind}-{given.rows}.npz"
    if not file.exists():
        steps.write_ids(file, kind, steps.sizes(given.rows))
    return str(file)


def row_of(case, kept, columns):
    """Return the cells of a case: TFRS' time, and the ratios; the base of Adam is TFRS' Adagrad."""
    times = kept["times"]
    times = {**times, "tfrs": times.get("tfrs adagrad") or times["tfrs"]}
    ratios = [ratio(times[own], times[base]).partition(" ")[0] if own in times else "" for own, base in columns]
    return [case, spread(times["tfrs"]), *ratios]


def report(folder, columns):
    """Return the table of all cases in the folder, with a line on the setting before it and one on memory after it."""
    kept = {case: json.loads(file.read_text()) for case in CASES if (file := folder / f"{case}.json").exists()}
    packages = ("tensorflow", "tensorflow-recommenders", "tf-keras", "keras", "keras-rs")
    packages = packages if columns is COLUMNS_OF_KERAS_3 else packages[:2]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    versions += sorted({version for result in kept.values() for version in result["versions"].values()})
    loads = [result["load"] for result in kept.values()]
    machine = f"{os.cpu_count()} cores, one used, Python {platform.python_version()}; {', '.join(versions)}; "
    machine += f"load {min(loads):.1f} to {max(loads):.1f}.\n"
    rows = [row_of(case, figures, columns.values()) for case, figures in kept.items()]
    text = machine + "\n" + table(["case", "TFRS, CPU ms a step", *columns], rows)
    memory = folder / "memory.json"
    if memory.exists():
        parts = [f"{name} {factor:.2f}" for name, factor in json.loads(memory.read_text()).items()]
        text += f"\nPeak memory in engine mode over that of tables and slots, dim 64: {', '.join(parts)}.\n"
    return text


def main():
    """Measure the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=5_280_000)
    parser.add_argument("--rounds", type=int, default=8, help="in each of the two orders")
    parser.add_argument("--cases", nargs="*", default=CASES, choices=CASES)
    parser.add_argument("--memory", nargs="*", default=["sgd", "adagrad", "adam"], help="optimizers to measure it of")
    parser.add_argument("--torch", help="a Python that has torch")
    parser.add_argument("--keras3", action="store_true", help="compare the layer for Keras 3; needs keras-rs")
    parser.add_argument("--into", type=Path, help="file that holds the marks, such as docs/benchmarks.md")
    given = parser.parse_args()
    given.folder = given.folder.absolute()
    given.folder.mkdir(parents=True, exist_ok=True)
    for case in given.cases:
        measure(case, given)
    if given.memory:
        file = ids_file(given, "onehot")
        found = {name: in_new_process(steps.measure_memory, name, 64, file, core=CORE) for name in given.memory}
        (given.folder / "memory.json").write_text(json.dumps(found))
    columns, name = (COLUMNS_OF_KERAS_3, "keras 3 layer") if given.keras3 else (COLUMNS, "keras layer")
    show(report(given.folder, columns), given.into, name)


if __name__ == "__main__":
    main()
