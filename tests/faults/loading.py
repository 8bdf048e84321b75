"""Watches versions as a server does: polls the folder, loads what appears, sends it rows, and compares the answers.

``python -m tests.faults.loading <base> <report> <model>`` writes ``<report>.ready`` when it has begun, and the report
when it is told to stop (SIGTERM). `model` is what is pushed: every version must answer as it does.
"""

import json
import os
import signal
import sys
import time

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from tests.faults.fuzzing import EXAMPLES


def answer(folder):
    """The logits of a SavedModel for some rows, as bytes."""
    signature = tf.saved_model.load(folder).signatures["serving_default"]
    return signature(examples=tf.constant(EXAMPLES))["logit"].numpy().tobytes()


def main(base, report, model):
    """Poll until SIGTERM, then write the report."""
    expected = answer(model)
    seen, loaded, wrong, stop = set(), 0, [], []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    with open(f"{report}.ready", "w"):
        pass
    while True:
        time.sleep(0.0005)
        last = bool(stop)
        new = sorted(name for name in os.listdir(base) if name.isdigit() and name not in seen)
        for name in new if last else new[-1:]:  # the newest one, as a server does; at the end all new ones
            seen.add(name)
            problem = found(os.path.join(base, name), expected)
            loaded += problem is None
            if problem is not None and os.path.exists(os.path.join(base, name)):  # else it was removed meanwhile
                wrong.append(f"{name}: {problem}")
        if last:
            break
    with open(report, "w") as file:
        json.dump({"loaded": loaded, "wrong": wrong}, file)


def found(version, expected):
    """Return what is wrong with a version, or None if it gives the expected answer."""
    try:
        return None if answer(version) == expected else "other logits"
    except (OSError, ValueError, tf.errors.OpError) as error:
        return f"{type(error).__name__}: {str(error)[:200]}"


if __name__ == "__main__":
    main(*sys.argv[1:])
