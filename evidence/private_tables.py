"""The tables of `private_logistic.py`, scaled by public bounds and levels alone."""

import csv
import gzip
import io
import pathlib
from typing import NamedTuple

import numpy as np

from evidence import adult

DATA = pathlib.Path(__file__).resolve().parent.parent.parent / "shared" / "data"

# Of 30 measurements, from the description that scikit-learn prints of the data set.
LOWEST = (
    *(6.981, 9.71, 43.79, 143.5, 0.053, 0.019, 0.0, 0.0, 0.106, 0.05),
    *(0.112, 0.36, 0.757, 6.802, 0.002, 0.002, 0.0, 0.0, 0.008, 0.001),
    *(7.93, 12.02, 50.41, 185.2, 0.071, 0.027, 0.0, 0.0, 0.156, 0.055),
)  # fmt: skip
HIGHEST = (
    *(28.11, 39.28, 188.5, 2501.0, 0.163, 0.345, 0.427, 0.201, 0.304, 0.097),
    *(2.873, 4.885, 21.98, 542.2, 0.031, 0.135, 0.396, 0.053, 0.079, 0.03),
    *(36.04, 49.54, 251.2, 4254.0, 0.223, 1.058, 1.252, 0.291, 0.664, 0.208),
)  # fmt: skip

# Bounds of what is counted, from the data set's paper (Strack et al., 2014) and its code book.
COUNTED = {
    "time_in_hospital": (1, 14),
    "num_lab_procedures": (1, 132),
    "num_procedures": (0, 6),
    "num_medications": (1, 81),
    "number_diagnoses": (1, 16),
}
VISITS = {"number_outpatient": 42, "number_emergency": 76, "number_inpatient": 21}
DIAGNOSES = ("diag_1", "diag_2", "diag_3")
# ICD-9 codes of the chapters that the paper tells apart; all others are one more level.
CHAPTERS = (
    ("circulatory", ((390, 460), (785, 786))),
    ("respiratory", ((460, 520), (786, 787))),
    ("digestive", ((520, 580), (787, 788))),
    ("diabetes", ((250, 251),)),
    ("injury", ((800, 1000),)),
    ("musculoskeletal", ((710, 740),)),
    ("genitourinary", ((580, 630), (788, 789))),
    ("neoplasms", ((140, 240),)),
)
# Weight is missing in 97 of 100 encounters.
LEFT_OUT = {"encounter_id", "patient_nbr", "weight", "readmitted"}
# Discharged to a hospice, or dead: nobody of these comes back.
GONE = {"11", "13", "14", "19", "20", "21"}


class Table(NamedTuple):
    """x [N, D] with an intercept, y in {0, 1}, and ‖x‖ of a typical record, known beforehand.

    ``fixed`` is how many rows at the start are for training by an official split; 0 if there is none.
    """

    x: np.ndarray
    y: np.ndarray
    row_norm: float
    fixed: int = 0


def breast_cancer() -> Table:
    """569 tumours: logarithms, or roots where 0 occurs, scaled by published bounds to within ±2."""
    text = (DATA / "breast-cancer-wisconsin" / "wdbc.data").read_text()
    rows = [line.split(",") for line in text.splitlines() if line]
    value = np.array([row[2:] for row in rows], dtype=float)
    has_zero = np.array(LOWEST) == 0.0
    low, high, x = (
        np.where(has_zero, np.sqrt(part), np.log(np.maximum(part, 1e-9)))
        for part in (np.array(LOWEST), np.array(HIGHEST), value)
    )
    y = np.array([row[1] == "M" for row in rows], dtype=float)
    x = np.clip((x - (low + high) / 2) / ((high - low) / 4), -2.0, 2.0)
    return Table(np.column_stack([x, np.ones(len(y))]), y, np.sqrt(31.0))


def census() -> Table:
    """Adult by its official split: 5 numbers and 8 categorical columns, D = 108."""
    x, y = adult.design()
    return Table(x, y, np.sqrt(14.0), fixed=32_561)


def readmission() -> Table:
    """Diabetes 130-US: the first encounter of each patient who may come back; back within 30 days?

    Levels are those of the code book; diagnoses are told apart by chapter.
    """
    path = DATA / "diabetes-130-us" / "diabetic_data.csv.gz"
    read = csv.DictReader(io.StringIO(gzip.decompress(path.read_bytes()).decode()))
    all_rows = sorted(read, key=lambda row: int(row["encounter_id"]))
    rows = list({row["patient_nbr"]: row for row in reversed(all_rows)}.values())
    rows = [row for row in rows if row["discharge_disposition_id"] not in GONE]
    columns = []
    for name, (low, high) in COUNTED.items():
        value = np.array([float(row[name]) for row in rows])
        columns.append((value - (low + high) / 2) / ((high - low) / 4))
    for name, high in VISITS.items():
        value = np.array([float(row[name]) for row in rows])
        columns.append(2.0 * np.log1p(value) / np.log1p(high))
    named = [name for name in rows[0] if name not in {*LEFT_OUT, *COUNTED, *VISITS}]
    for name in named:
        cells = np.array([row[name] for row in rows])
        if name in DIAGNOSES:
            cells = np.array([chapter(cell) for cell in cells])
        columns += [(cells == level).astype(float) for level in sorted(set(cells))]
    y = np.array([row["readmitted"] == "<30" for row in rows], dtype=float)
    x = np.stack([*columns, np.ones(len(rows))], axis=1)
    return Table(x, y, np.sqrt(1.0 + len(COUNTED) + len(VISITS) + len(named)))


def chapter(code: str) -> str:
    """Returns what an ICD-9 code is about."""
    if not code[:1].isdigit():
        return "other"
    number = float(code)
    for name, ranges in CHAPTERS:
        if any(first <= number < last for first, last in ranges):
            return name
    return "other"


TABLES = {"breast-cancer": breast_cancer, "adult": census, "readmission": readmission}
