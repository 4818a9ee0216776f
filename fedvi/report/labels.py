"""Makes readable labels of coefficients' names: "age 0 to 9" for "age[[0-10)]"."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from fedvi.typing import INTERCEPT, LOG_SCALE

__all__ = ["is_effect", "label", "labels", "level_label", "relabelled"]

_INTERVAL = re.compile(
    r"([\[(])\s*(-?\d+(?:\.\d+)?|-∞|-inf)\s*(?:,|-|–|to)\s*(-?\d+(?:\.\d+)?|∞|inf)\s*([\])])"
)
_FUNCTION = re.compile(r"(\w+)\((\w+).*?\)(?:\[(\d+)\])?$", re.DOTALL)
_POWERS = {"2": "squared", "3": "cubed"}
_CURVES = {"bs": "curve", "cr": "curve", "ns": "curve", "poly": "polynomial"}
_BASELINE = "baseline "


def is_effect(name: str) -> bool:
    """Says whether a coefficient is compared with 0: no intercept, baseline or spread of sites.

    >>> [is_effect(name) for name in ("age", "(Intercept)", "baseline (0, 90]", "log τ: age")]
    [True, False, False, False]
    """
    return not (name.endswith(INTERCEPT) or name.startswith((f"{_BASELINE}(", LOG_SCALE)))


def label(name: str) -> str:
    """Returns a readable label for a coefficient of a formula.

    >>> [label(name) for name in ("age[[0-10)]", "sex[male]", "admission_type", "chol[missing]")]
    ['age 0 to 9', 'sex male', 'admission type', 'chol missing']
    >>> [label(name) for name in ("(Intercept)", "age:sex[m]", "bmi[(18.5, 25]]", "age[[90-∞)]")]
    ['intercept', 'age × sex m', 'bmi above 18.5 to 25', 'age 90 or more']
    >>> [label(name) for name in ("bs(iss)[1]", "I(age**2)", "log(crp)", "baseline (0, 90]")]
    ['iss, curve, part 1', 'age squared', 'log of crp', 'baseline above 0 to 90']
    >>> label("late: (Intercept)"), label("log τ: (Intercept)")
    ('late: intercept', 'how far sites differ: intercept (log τ)')
    """
    if name.startswith(LOG_SCALE):
        return f"how far sites differ: {label(name.removeprefix(LOG_SCALE))} (log τ)"
    if name.startswith(_BASELINE):
        return f"baseline {level_label(name.removeprefix(_BASELINE))}"
    outcome, colon, rest = name.rpartition(": ")
    if colon and outcome.count("[") == outcome.count("]"):
        return f"{_words(outcome)}: {label(rest)}"
    if name == INTERCEPT:
        return "intercept"
    return " × ".join(map(_part, _parts(name)))


def labels(names: Sequence[str]) -> dict[str, str]:
    """Returns name → label; names that would share a label stay as they are.

    >>> labels(["sex[m]", "age_70", "age[70]"])
    {'sex[m]': 'sex m', 'age_70': 'age_70', 'age[70]': 'age[70]'}
    """
    found = {name: label(name) for name in names}
    counts = Counter(found.values())
    return {name: shown if counts[shown] == 1 else name for name, shown in found.items()}


def relabelled(text: str, labels: Mapping[str, str]) -> str:
    """Replaces names by labels in a sentence.

    >>> relabelled("age[[0-10)], sex_of: wide", {"age[[0-10)]": "age 0 to 9", "sex": "gender"})
    'age 0 to 9, sex_of: wide'
    """
    names = sorted((name for name, shown in labels.items() if shown != name), key=len, reverse=True)
    if not names:
        return text
    known = "|".join(map(re.escape, names))
    return re.sub(rf"(?<![\w\[:])(?:{known})(?![\w\[])", lambda match: labels[match[0]], text)


def _parts(name: str) -> list[str]:
    """Splits an interaction at its colons, except within brackets."""
    found, depth = [""], 0
    for sign in name:
        depth += (sign in "[(") - (sign in "])")
        if sign == ":" and depth == 0:
            found.append("")
        else:
            found[-1] += sign
    # With unbalanced brackets, as in some levels' names, nothing is split.
    return found if depth == 0 and all(found) else [name]


def _part(text: str) -> str:
    function = _FUNCTION.fullmatch(text)
    if function is not None:
        kind, column, number = function.groups()
        power = re.fullmatch(r"I\(\s*(\w+)\s*\*\*\s*(\d+)\s*\)", text)
        if power is not None:
            return f"{_words(power[1])} {_POWERS.get(power[2], f'to the power of {power[2]}')}"
        if number is not None:
            return f"{_words(column)}, {_CURVES.get(kind, kind)}, part {number}"
        return f"{kind} of {_words(column)}" if re.fullmatch(rf"{kind}\(\w+\)", text) else text
    column, bracket, level = text.partition("[")
    if bracket and level.endswith("]") and column.isidentifier():
        return f"{_words(column)} {level_label(level[:-1])}"
    return _words(text) if text.isidentifier() else text


def level_label(text: str) -> str:
    """Writes a level; an interval of numbers becomes "from to".

    >>> level_label("[0-10)"), level_label("stage_II")
    ('0 to 9', 'stage II')
    """
    found = _INTERVAL.fullmatch(text.strip())
    if found is None:
        return _words(text)
    opens, low, high, closes = found.groups()
    whole = "." not in low + high
    if low in ("-∞", "-inf"):
        return f"up to {high}" if closes == "]" else f"under {high}"
    if high in ("∞", "inf"):
        return f"{low} or more" if opens == "[" else f"above {low}"
    first = low if opens == "[" else f"above {low}"
    if closes == "]":
        return f"{first} to {high}"
    # For integers, the largest value below 10 is 9.
    return f"{first} to {int(high) - 1}" if whole else f"{first} to under {high}"


def _words(text: str) -> str:
    return text.replace("_", " ").strip() or text
