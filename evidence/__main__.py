"""Runs claims, writes the page, or checks it; see the package."""

import argparse
import functools
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from evidence import base, claims, page

BUILD = base.ROOT / "build" / "evidence"


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 where the page and the result files disagree."""
    parser = argparse.ArgumentParser(prog="python -m evidence", description=__doc__)
    parser.add_argument("claim", nargs="*", help="names of claims; left out, all")
    parser.add_argument("--quick", action="store_true", help="a cut version, into build/evidence")
    parser.add_argument("--check", action="store_true", help="run nothing, compare page and files")
    parser.add_argument("--again", action="store_true", help="run what has a result already")
    parser.add_argument(
        "--jobs", type=int, default=1, help="parts of a claim at a time, or with --quick claims (1)"
    )
    parser.add_argument("--machine", default=base.default_machine(), help="its class, for the file")
    parser.add_argument("--build", type=Path, default=BUILD, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, default=base.DATA, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if unknown := set(given.claim) - set(claims.ALL):
        parser.error(f"no claim {', '.join(sorted(unknown))}; there are {', '.join(claims.ALL)}")
    chosen = [name for name in claims.ALL if not given.claim or name in given.claim]
    if given.check:
        return _check(chosen if given.claim else [])
    # What one seed compiled the next one loads.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(given.build / "compiled"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    complete = functools.partial(
        base.complete,
        results=given.build / "quick" if given.quick else page.RESULTS,
        build=given.build,
        data=given.data,
        is_quick=given.quick,
        is_again=given.again,
        machine=given.machine,
    )
    if given.quick and given.jobs > 1:
        # Most cut versions have a single part, so claims are what can run side by side.
        with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
            list(pool.map(complete, chosen))
    else:
        for name in chosen:
            complete(name, jobs=given.jobs)
    if given.quick:
        page.write(given.build / "evidence.md", given.build / "quick")
        print(f"the cut version's page: {given.build / 'evidence.md'}")
    else:
        page.write()
    return 0


def _check(chosen: list[str]) -> int:
    wrong = page.check()
    for line in wrong:
        print(line)
    if wrong:
        print("\nhint: `make evidence` writes the page anew, of the result files")
        return 1
    for name in claims.ALL:
        claim, path = base.load(name), page.RESULTS / f"{name}.json"
        result = base.read(path)
        if result is None:
            print(f"{name}: not run yet")
            continue
        found = page.numbers(claim, result)
        where = path.relative_to(base.ROOT)
        print(f"{name}: {len(found)} numbers and a table from {where}, {result.made['command']}")
        for label, text in found.items() if name in chosen else ():
            print(f"  {label} = {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
