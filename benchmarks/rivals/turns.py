"""What each candidate does: takes so many steps as a line of its input says, and times them."""

import sys
import time
from collections.abc import Callable


def serve(take: Callable[[int], None]) -> None:
    """Answers each line of standard input, a number of steps, with the seconds that they took.

    Two numbers: of the clock, and of the processor in all threads. ``take`` returns when the steps are
    done. The first line is the warm-up, compilation and all.
    """
    for line in sys.stdin:
        steps = int(line)
        began, used = time.perf_counter(), time.process_time()
        take(steps)
        print(time.perf_counter() - began, time.process_time() - used, flush=True)
