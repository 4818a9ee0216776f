"""Makes the JSON schemas of a study and of a policy, for editors.

They are generated from the code that reads these files: the sections' fields, and for each ``kind`` the
arguments of its function. They find misspelt keys, wrong types and unknown kinds; ``fedvi check`` checks
relations between sections.
"""

import collections.abc
import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any

from fedvi import expfam, models
from fedvi.client.policy import Policy
from fedvi.federation import schedules
from fedvi.federation.script import scripted
from fedvi.inference import solvers
from fedvi.models.outcomes.accepted import ACCEPTED
from fedvi.privacy import accountants, mechanisms, sampling
from fedvi.study import factories, site_effects
from fedvi.study.config import Study

__all__ = ["policy_schema", "study_schema"]

_DIALECT = "http://json-schema.org/draft-07/schema#"
_Schema = dict[str, Any]
# Arguments that a study cannot give, because they follow from the rest of it.
_SUPPLIED = ("family", "foreseen", "max_records", "mechanism", "model", "sampler", "size", "unit")
_OF_THE_FORMULA = ("follow_up", "levels", "names", "offset", "outcomes")


def study_schema() -> _Schema:
    """Returns the JSON schema (draft 7) of ``study.toml``, as plain values."""
    schema = _plain(Study.model_json_schema(by_alias=True))
    sections = schema["properties"]
    sections["model"] = _kinds(
        "What is inferred; a function of your own takes its own keys.",
        {kind: _model(kind) for kind in (*models.NAMED, *models.FUNCTIONS)},
    )
    sections["family"] = _kinds(
        "The family of q; full_gaussian if left out.",
        {kind: _table(getattr(expfam, kind)) for kind in expfam.__all__},
    )
    sections["solver"] = _kinds(
        "How a site answers a task; docs/modes.md says which suits what.",
        {kind: _solver(kind) for kind in solvers.__all__},
    )
    sections["schedule"] = _kinds("Who works when.", _schedules())
    sections["privacy"] = _privacy(sections["privacy"])
    columns = sections["data"]["properties"]["schema"]
    columns["additionalProperties"] = _column()
    samplers = {name: _table(getattr(sampling, name)) for name in sampling.__all__}
    return _titled("study", "What all sites of a federation agree on.", schema) | {
        "definitions": {
            "sampler": {
                "anyOf": [_named(sampling.__all__), _kinds("A kind with its keys.", samplers)]
            },
            "stage": _stage(),
        },
    }


def policy_schema() -> _Schema:
    """Returns the JSON schema (draft 7) of ``policy.toml``, as plain values."""
    schema = _plain(Policy.model_json_schema())
    run, allow = schema["properties"]["run"], schema["properties"]["allow"]["properties"]
    run["properties"]["accountant"]["enum"] = list(accountants.__all__)
    for key, known in {
        "views": ("message",),
        "units": ("record", "patient", "client"),
        "models": models.NAMED,
        "solvers": solvers.__all__,
        "samplers": sampling.__all__,
        "mechanisms": mechanisms.__all__,
        "accountants": accountants.__all__,
    }.items():
        allow[key]["items"] = {"enum": list(known)}
    return _titled("policy", "What a site allows, whatever a study or a server asks.", schema)


def _titled(what: str, description: str, schema: _Schema) -> _Schema:
    head = {"$schema": _DIALECT, "title": f"fedvi {what}", "description": description}
    return head | {key: value for key, value in schema.items() if key not in head}


# Sections that are models of pydantic


def _plain(schema: _Schema) -> _Schema:
    """Inlines definitions, and drops what TOML cannot express or is not used."""
    definitions = schema.pop("$defs", {})

    def resolve(value: Any, inside_properties: bool = False) -> Any:
        if isinstance(value, list):
            return [resolve(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            target = definitions[value["$ref"].rpartition("/")[2]]
            return resolve({**target, **{k: v for k, v in value.items() if k != "$ref"}})
        some = [item for item in value.get("anyOf", []) if item != {"type": "null"}]
        if len(some) == 1 and not inside_properties:
            value = {**some[0], **{k: v for k, v in value.items() if k != "anyOf"}}
            return resolve(value)
        left_out = () if inside_properties else ("title", "default")
        found = {
            key: resolve(item, key == "properties" and not inside_properties)
            for key, item in value.items()
            if key not in left_out
        }
        if not inside_properties and value.get("default") not in (None, [], {}):
            default = value["default"]
            if isinstance(default, bool | int | float | str):
                found["default"] = default
        if not inside_properties and isinstance(found.get("description"), str):
            found["description"] = _words(found["description"])
        return found

    return resolve(schema)


def _words(docstring: str) -> str:
    """Returns the first paragraph of a docstring, on one line and without markup."""
    first = inspect.cleandoc(docstring).partition("\n\n")[0]
    return re.sub(r"``([^`]*)``", r"\1", " ".join(first.split()))


def _privacy(section: _Schema) -> _Schema:
    properties = section["properties"]
    properties["accountant"]["enum"] = list(accountants.__all__)
    properties["mechanism"] = _named(mechanisms.__all__) | {
        "description": properties["mechanism"].get("description", "")
    }
    promise = ("epsilon", "delta", "unit", "relation")
    return {
        **section,
        "required": [],
        "if": {"properties": {"protection": {"const": "none"}}, "required": ["protection"]},
        "then": {"properties": {key: {"not": {}} for key in promise}},
        "else": {"required": list(promise)},
    }


# Sections whose keys are the arguments of the function named by `kind`


def _kinds(description: str, kinds: Mapping[str, _Schema]) -> _Schema:
    """Describes a section by its kinds; that of a plug-in takes any key.

    All keys are also listed together, without types, for completion in editors.
    """
    every: _Schema = {}
    for table in kinds.values():
        for key, found in table["properties"].items():
            words = {"description": found["description"]} if "description" in found else {}
            every.setdefault(key, words)
    kind = _named(kinds) | {
        "description": "One of the built-in ones, or the name of an installed plug-in, such as my_lab.mine."
    }
    return {
        "type": "object",
        "description": description,
        "properties": {"kind": kind, **every},
        "required": ["kind"],
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": name}}, "required": ["kind"]},
                "then": {**table, "properties": {"kind": True, **table["properties"]}},
            }
            for name, table in kinds.items()
        ],
    }


# The name of a plug-in. With a dot, so that an editor tells it from a misspelt built-in name; a study that
# is read needs none.
_PLUG_IN = r"^[^:\s]+\.[^:\s]+$"


def _named(kinds: Collection[str]) -> _Schema:
    return {"anyOf": [{"enum": sorted(kinds)}, {"type": "string", "pattern": _PLUG_IN}]}


def _model(kind: str) -> _Schema:
    factory = getattr(models, kind)
    if kind in models.FUNCTIONS:
        # Its first arguments are the records of a formula.
        table = _table(factory, ("x", "y"))
        table["properties"]["formula"] = {
            "type": "string",
            "description": 'Such as "y ~ age + sex".',
        }
        return table
    if kind not in ACCEPTED:
        return _table(factory)
    table = _table(factory, _OF_THE_FORMULA)
    table["properties"] |= {
        "formula": {"type": "string", "description": 'Such as "disease ~ age + sex".'},
        **{key: {"description": "Effects that stay at their site."} for key in site_effects.KEYS},
    }
    table["required"].append("formula")
    return table


def _solver(kind: str) -> _Schema:
    factory = getattr(solvers, kind)
    table = _table(factory)
    if "mechanism" in factories.parameters(factory):
        table["properties"] |= {
            "noise_multiplier": {
                "type": "number",
                "minimum": 0,
                "description": "Noise std ÷ clip_norm; left out, it is calibrated to [privacy].",
            },
            "sampler": {
                "description": "Which records are in a sum.",
                "allOf": [{"$ref": "#/definitions/sampler"}],
            },
        }
    return table


def _schedules() -> dict[str, _Schema]:
    seconds = {"type": "number", "exclusiveMinimum": 0}
    common: _Schema = {
        "damping": {
            "description": "Step of the server; left out, it chooses.",
            "anyOf": [{"const": "adaptive"}, {"type": "number"}],
        },
        "deadline_seconds": {
            "description": "How long a missing site is waited for; one number, or a table by client.",
            "anyOf": [seconds, {"type": "object", "additionalProperties": seconds}],
        },
        "quorum": {
            "description": "With fewer sites present the run waits.",
            "type": "integer",
            "minimum": 1,
        },
    }
    kinds = {name: _table(getattr(schedules, name)) for name in schedules.__all__}
    kinds["scripted"] = _table(scripted)
    stages = {"type": "array", "items": {"$ref": "#/definitions/stage"}, "minItems": 1}
    kinds["scripted"]["properties"]["stages"] = stages
    for table in kinds.values():
        table["properties"] |= common
    return kinds


def _stage() -> _Schema:
    """Describes one stage of a script, which is a built-in schedule."""
    kinds = {name: _table(getattr(schedules, name)) for name in schedules.__all__}
    for table in kinds.values():
        table["properties"] |= {
            "over": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "until": {"const": "converged"},
        }
    stage = _kinds("One schedule after the other.", kinds)
    stage["properties"]["kind"] = {"enum": sorted(kinds)}
    return stage


def _table(factory: Callable[..., Any], supplied: Collection[str] = ()) -> _Schema:
    """Describes a factory's arguments, without those that a study cannot give."""
    words = _arguments(inspect.getdoc(factory) or "")
    properties, required = {}, []
    for name, parameter in inspect.signature(factory).parameters.items():
        if name in _SUPPLIED or name in supplied:
            continue
        found = _type(parameter.annotation)
        if name in words:
            found["description"] = words[name]
        if parameter.default is parameter.empty:
            required.append(name)
        elif isinstance(parameter.default, bool | int | float | str):
            found["default"] = parameter.default
        properties[name] = found
    return {"properties": properties, "required": required, "additionalProperties": False}


def _arguments(docstring: str) -> dict[str, str]:
    """Reads the first sentence on each argument from a Google-style docstring."""
    match = re.search(r"^(?:Args|Attributes):\n((?:[ ]+.*\n?|\n)+)", docstring, re.MULTILINE)
    if match is None:
        return {}
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=  \S)", match[1]):
        names, colon, text = block.strip().partition(":")
        if colon:
            sentence = re.split(r"(?<=[^.])\. (?=[A-Z`])", " ".join(text.split()))[0]
            for name in names.split(","):
                found[name.strip()] = _words(sentence).removesuffix(".")
    return found


_TYPES: dict[Any, _Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
}


def _type(annotation: Any) -> _Schema:
    """Describes a Python type by its values in TOML; anything, if unknown."""
    if annotation in _TYPES:
        return dict(_TYPES[annotation])
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if origin in (typing.Union, types.UnionType):
        some = [_type(item) for item in inner if item is not type(None)]
        if {"type": "number"} in some:
            some = [item for item in some if item != {"type": "integer"}]
        return some[0] if len(some) == 1 else {} if {} in some else {"anyOf": some}
    if origin in (list, tuple, collections.abc.Sequence):
        items = _type(inner[0]) if inner and inner[0] is not Ellipsis else {}
        return {"type": "array", "items": items}
    if origin in (dict, collections.abc.Mapping):
        return {"type": "object", "additionalProperties": _type(inner[1])}
    return {}


# Columns


def _column() -> _Schema:
    """Describes ``[data.schema.NAME]``."""
    cells = {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1}
    number = {"type": "number"}
    bounds = {"type": "array", "items": number, "minItems": 2, "maxItems": 2}
    outside: _Schema = {"enum": ["drop", "refuse"]}
    common: _Schema = {
        "column": {"type": "string", "description": "What the files call it."},
        "missing": {
            "description": "What a missing cell is.",
            "anyOf": [
                {"enum": ["indicator", "drop", "refuse"]},
                {
                    "type": "object",
                    "properties": {"impute": {}},
                    "required": ["impute"],
                    "additionalProperties": False,
                },
            ],
        },
        "missing_values": {**cells, "minItems": 0, "description": "Cells that mean missing."},
        "expected": {
            "description": "What is believed of the column, for `fedvi plan` alone.",
            "type": "object",
            "properties": dict.fromkeys(("mean", "sd", "share", "missing", "auc"), number)
            | {
                "shares": {"type": "array", "items": number},
                "correlations": {"type": "object", "additionalProperties": number},
            },
            "additionalProperties": False,
        },
    }
    unit = {"type": "string", "description": "Of the file's numbers, for tables and reports."}
    limits = bounds | {"description": "Lowest and highest, as in the file: public knowledge."}
    kinds: dict[str, _Schema] = {
        "number": {
            "bounds": limits,
            "center": number | {"description": "What becomes 0; the middle of the bounds."},
            "scale": number | {"description": "What becomes 1; half the width of the bounds."},
            "outside": {"enum": ["clip", "drop", "refuse"]},
            "unit": unit,
        },
        "count": {"bounds": limits, "outside": {"enum": ["clip", "drop", "refuse"]}, "unit": unit},
        "level": {
            "levels": cells | {"description": "All that may occur; the first is the reference."},
            "codes": {"type": "object", "description": "Cell of the file → level."},
            "outside": outside,
        },
        "binary": {
            "true": cells,
            "false": cells,
            "outside": outside,
            "words": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 2,
                "maxItems": 2,
                "description": "What true and false mean, for reports.",
            },
        },
    }
    required = {"number": ["bounds"], "count": ["bounds"], "level": ["levels"], "binary": []}
    every: _Schema = {key: {} for table in kinds.values() for key in table} | common
    return {
        "type": "object",
        "description": "What a column may hold, by public knowledge.",
        "properties": {"type": {"enum": sorted(kinds)}, **every},
        "required": ["type"],
        "allOf": [
            {
                "if": {"properties": {"type": {"const": kind}}, "required": ["type"]},
                "then": {
                    "properties": {"type": True, **table, **common},
                    "required": required[kind],
                    "additionalProperties": False,
                },
            }
            for kind, table in kinds.items()
        ],
    }
