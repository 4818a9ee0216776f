"""Shares one of the standard splits of the concrete data out over ten clients, and keeps its test set.

    python examples/bnn/prepare.py --data FOLDER

FOLDER holds `concrete.data.txt` (or .gz), the table of the UCI repository as numbers between blanks, and
`concrete.splits.npz` with an array `test_rows` [splits, n]: which rows are for testing. Written are
`clients/client-0.csv` … and `test.csv`, which the studies of this folder read.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

from fedvi.data.splits import balanced

HERE = Path(__file__).resolve().parent
CLIENTS = 10
NAMES = ("cement", "slag", "ash", "water", "plasticizer", "coarse", "fine", "age", "strength")


def write(path, rows):
    """Writes rows [n, 9] as a CSV file with a header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(NAMES)
        writer.writerows([f"{value:g}" for value in row] for row in rows)


def main():
    """Reads, shares out, writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--data", type=Path, default=HERE / "data", help="where the files are (default %(default)s)"
    )
    add("--out", type=Path, default=HERE, help="where to write (default: beside this script)")
    add("--split", type=int, default=0, help="which of the splits (default %(default)d)")
    args = parser.parse_args()

    names = ("concrete.data.txt", "concrete.data.txt.gz")
    path = next((args.data / name for name in names if (args.data / name).exists()), None)
    if path is None:
        raise SystemExit(f"{args.data} holds no {names[0]}: see README.md for its origin")
    rows = np.loadtxt(path)  # unpacks .gz
    with np.load(args.data / "concrete.splits.npz", allow_pickle=False) as splits:
        test = splits["test_rows"][args.split]
    train = np.setdiff1d(np.arange(len(rows)), test)
    client = balanced(np.random.default_rng(args.split), len(train), CLIENTS)
    for number in range(CLIENTS):
        write(args.out / "clients" / f"client-{number}.csv", rows[train[client == number]])
    write(args.out / "test.csv", rows[test])
    sizes = np.bincount(client, minlength=CLIENTS)
    print(f"{len(train)} records over {CLIENTS} clients of {sizes.min()} to {sizes.max()}")
    print(f"{len(test)} records for testing")


if __name__ == "__main__":
    main()
