"""How a peer takes its turns: it says what it is, and then takes its steps for every line of its input."""

import sys
import time


def take_turns(what, steps, count):
    """Warm up, print what this is, and then for every line the CPU milliseconds of one of so many steps."""
    steps()
    print(*what, flush=True)
    for _ in sys.stdin:
        start = time.process_time()
        steps()
        print(1e3 * (time.process_time() - start) / count, flush=True)
