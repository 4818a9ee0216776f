"""Times the calibration of noise for ε = 1, δ = 1e-5, q = 0.01, T = 1,000 under add_remove.

Cold is a fresh process, imports included; it is run several times and the median and best are
printed, as wall-clock time and as CPU time, which a busy machine stretches less. Cached is the same
question asked again in one process. The bars are 1 s of CPU time and 50 ms.
"""

import statistics
import subprocess
import sys
import time

COLD = """
import time
begin, used = time.perf_counter(), time.process_time()
from fedvi.privacy.accountants import pld
from fedvi.privacy.calibrate import calibrate
from fedvi.privacy.events import Gaussian, PoissonSampled, repeat

def event_of(noise):
    return repeat(PoissonSampled(0.01, Gaussian(noise)), 1_000)

noise = calibrate(event_of, pld("add_remove"), 1.0, 1e-5)
wall, cpu = time.perf_counter() - begin, time.process_time() - used
begin = time.perf_counter()
assert calibrate(event_of, pld("add_remove"), 1.0, 1e-5) == noise
print(noise, wall, cpu, time.perf_counter() - begin)
"""
REPEATS = 5


def main() -> None:
    """Prints seconds, cold and cached."""
    begin = time.perf_counter()
    rows = [
        [
            float(word)
            for word in subprocess.run(
                [sys.executable, "-c", COLD], check=True, capture_output=True, text=True
            ).stdout.split()
        ]
        for _ in range(REPEATS)
    ]
    noise, wall, cpu, cached = (list(column) for column in zip(*rows, strict=True))
    print(f"noise multiplier {noise[0]:g}; {REPEATS} fresh processes")
    for name, seconds, bar in (
        ("cold, wall", wall, "none"),
        ("cold, CPU", cpu, "1 s"),
        ("cached", cached, "0.05 s"),
    ):
        print(
            f"{name:12} median {statistics.median(seconds):8.4f} s, best {min(seconds):8.4f} s, "
            f"bar {bar}"
        )
    print(f"in all {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
