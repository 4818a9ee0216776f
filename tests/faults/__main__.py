"""``python -m tests.faults``: plants every fault, and says which tests find it."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.faults.catalogue import FAULTS
from tests.faults.planting import look_for, plant
from tests.tiers import FAST


def main() -> int:
    """Prints a line a fault; returns 1 if any was not found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Plants faults in copies of fedvi, one at a time, and runs the tests that should "
        "find them: of the fast tier, if nothing else is asked for.",
    )
    parser.add_argument("names", nargs="*", help="faults to plant (default: all)")
    parser.add_argument("-m", dest="marks", default=FAST, help='as of pytest; "" for all tests')
    parser.add_argument("--list", action="store_true", help="say what faults there are, and stop")
    asked = parser.parse_args()
    unknown = set(asked.names) - {fault.name for fault in FAULTS}
    if unknown:
        parser.error(f"there is no fault {', '.join(sorted(unknown))}; --list names all")
    chosen = [fault for fault in FAULTS if not asked.names or fault.name in asked.names]
    not_found = 0
    for fault in chosen:
        if asked.list:
            say(f"{fault.name:40} {fault.says}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            plant(fault, Path(folder).resolve())
            search = look_for(fault.tests, Path(folder).resolve(), asked.marks)
        not_found += search.verdict != "found"
        say(f"{fault.name:40} {search.verdict:7} {search.seconds:6.1f} s  {search.by}")
    if not asked.list:
        say(f"{len(chosen) - not_found} of {len(chosen)} found")
    return int(not_found > 0)


def say(line: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
