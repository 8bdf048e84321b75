"""Runs the steps of a peer in turn with other variants: once for every line of standard input."""

import sys
import time


def take_turns(what, steps, count):
    """Warm up, print `what`, and then take the steps once for every line of standard input.

    Each time it prints the mean CPU milliseconds of a step.

    Args:
      what: names and versions that identify the peer.
      steps: function that takes `count` steps.
      count: number of steps.
    """
    steps()
    print(*what, flush=True)
    for _ in sys.stdin:
        start = time.process_time()
        steps()
        print(1e3 * (time.process_time() - start) / count, flush=True)
