"""What `fedvi init` says of a file's records: what the study has of them, and what it leaves out."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedvi.study.drafts import declarations
from fedvi.study.drafts.drafting import Answers

if TYPE_CHECKING:
    from fedvi.data.guess import Guess

__all__ = ["name_shown", "not_written", "what_was_read"]

_NAMED = 6
# Part of a path → what it is, and the flag that declares it.
_PARTS = {
    "levels": ("levels of {}", "--column {}=level:FIRST,SECOND"),
    "true": ("cells that mean true and false of {}", "--column {}=binary:TRUE/FALSE"),
    "type": ("the type of {}", "--column {}=TYPE:…"),
    "missing": ("the rule for missing cells of {}", "--missing {}=RULE"),
    "missing_values": ("cells that mean missing of {}", "--missing-values {}=CELL,…"),
}
_KEYS = {
    "model.formula": ("the columns of the formula", "--formula"),
    "privacy.unit": ("the unit", "--unit"),
    "data.unit_column": ("the column with the unit", "--unit-column"),
}
_FOLLOWING = ("solver.clip_norm", "schedule.rounds")


def name_shown(source: Path) -> str:
    """Returns a file's name, as a comment in a study can hold it."""
    from fedvi.data.schema import is_printable

    name = source.absolute().name
    return name if name and all(map(is_printable, name)) else "the file"


def what_was_read(answers: Answers, read: Iterable[str]) -> str:
    """Says which keys of a draft follow from a file's records, and how to declare them; "" if none does."""
    read = tuple(read)
    if not read:
        return ""
    parts, flags = [], []
    for key, (words, flag) in _KEYS.items():
        if key in read:
            parts.append(words)
            flags.append(flag)
    for key, (words, flag) in _PARTS.items():
        names = [path.split(".")[2] for path in read if path.endswith(f".{key}")]
        if names:
            parts.append(words.format(", ".join(names)))
            # The levels of a column declare its type, too.
            named = [name for name in names if flag.format(name).partition(":")[0] not in flags]
            if key == "type":
                known = {path.split(".")[2] for path in read if path.endswith((".levels", ".true"))}
                named = [name for name in named if name not in known]
            flags += [flag.format(name) for name in named]
    following = [path.partition(".")[2] for path in _FOLLOWING if path in read]
    if following:
        parts.append(f"by the number of coefficients, {' and '.join(following)}")
    return (
        f"{answers.mark}, and marked so in study.toml: {'; '.join(parts)}. They are data, and no privacy "
        "loss is charged for them: replace them by what a protocol or a code book says, or declare them, "
        f"which then stands whatever the file holds: {' '.join(flags)}"
    )


def not_written(name: str, guess: "Guess | None", table: Mapping[str, Any]) -> str:
    """Says which cells of a column are neither declared nor mean missing; "" if none is.

    It gives no number of records. Texts and amounts, which may tell who somebody is, are not shown.
    """
    from fedvi.data.guess import spelt
    from fedvi.data.schema import as_level
    from fedvi.data.suggest import may_be_codes, words_for_missing

    kind = table.get("type")
    bare = {"true": [1], "false": [0]} if kind == "binary" else {}
    declared = declarations.cells_of(bare | dict(table))
    if guess is None or not (declared or kind in ("number", "count")):
        return ""
    known = {spelt(as_level(cell)) for cell in declared}
    known |= {spelt(as_level(str(cell))) for cell in table.get("missing_values", ())}
    if declared:
        found = [*(cell for cell, _ in guess.values), *guess.marks]
        listed = guess.kind in ("binary", "level") or may_be_codes(guess)
    else:
        found, listed = words_for_missing(guess, "number"), True
    # Sorted, so that their order does not tell which are frequent.
    others = sorted((cell for cell in found if cell not in known), key=str.casefold)
    if not others:
        return ""
    shown = "other cells"
    if listed:
        shown = ", ".join(map(_legible, others[:_NAMED]))
        shown += " and more" if len(others) > _NAMED else ""
    return (
        f"{name}: the file also has {shown}, which you did not declare. It is not written into the study: "
        "records with it are left out, or have a missing cell if you name it in the study's missing_values"
    )


def _legible(cell: str) -> str:
    from fedvi.data.schema import is_printable

    return cell if all(map(is_printable, cell)) else ascii(cell)
