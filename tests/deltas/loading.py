"""Asks a model from threads while deltas are applied to it, and compares every answer with that of its state."""

import dataclasses
import threading
import time

import numpy as np


@dataclasses.dataclass
class Seen:
    """What the threads saw: answers, errors, torn answers, states, and seconds of each answer by the phase."""

    answers: int = 0
    errors: list = dataclasses.field(default_factory=list)
    torn: int = 0
    states: set = dataclasses.field(default_factory=set)
    before: list = dataclasses.field(default_factory=list)
    during: list = dataclasses.field(default_factory=list)


def ask_while_written(model, requests, rows, expected, *, answers, threads=8, signature="serving_default", pause=0.0):
    """Apply `requests` in order while threads ask for the answers to random parts of `rows`.

    After each delta, until every state was seen, it waits for an answer to a request that was sent after the delta.

    Args:
      model: has `call` and `answer`.
      requests: inputs of `apply_delta`.
      rows: serialized tf.Examples.
      expected: arrays by output, by digest.
      answers: how many answers to take in all; a tenth of them before the first delta is applied.
      pause: seconds between two deltas.

    Returns:
      What was seen, and the seconds that each delta took.
    """
    seen, lock, taken, writing = Seen(), threading.Lock(), [0], threading.Event()
    done = threading.Event()

    def ask(number):
        draw = np.random.default_rng(number)
        while True:
            with lock:
                if taken[0] >= answers and done.is_set():
                    return
                taken[0] += 1
            start, size = int(draw.integers(0, len(rows) - 8)), int(draw.integers(1, 9))
            begin = time.perf_counter()
            try:
                got = model.answer(signature, rows[start : start + size])
            except Exception as error:
                with lock:
                    seen.errors.append(error)
                continue
            spent = time.perf_counter() - begin
            digests = {bytes(answered) for answered in got.pop("model_digest")}
            (digest,) = digests if len(digests) == 1 else (b"several",)
            right = digest in expected and all(
                close(got[name], expected[digest][name][start : start + size]) for name in got
            )
            with lock:
                seen.answers += 1
                seen.torn += not right
                seen.states.add(digest)
                (seen.during if writing.is_set() else seen.before).append(spent)

    workers = [threading.Thread(target=ask, args=[number]) for number in range(threads)]
    for worker in workers:
        worker.start()
    while taken[0] < answers // 10:
        time.sleep(0.01)
    writing.set()
    spent = []
    for request in requests:
        begin = time.perf_counter()
        answer = model.call("apply_delta", **request)
        spent.append(time.perf_counter() - begin)
        assert answer["applied"] == 1, answer
        time.sleep(pause)
        enough = seen.answers + threads + 1  # as many as there are threads may have been sent before
        while len(seen.states) < len(expected) and seen.answers < enough and not seen.errors:
            time.sleep(0.001)
    done.set()
    for worker in workers:
        worker.join()
    return seen, spent


def close(got, wanted):
    """Return whether answers are the same but for the order in which a batch of another size is multiplied."""
    return got.shape == wanted.shape and np.allclose(got, wanted, rtol=1e-4, atol=1e-5)
