"""The table of wrong inputs: what each is answered with, to the word, and by which exit code.

A sentence names the field, the value that was found and what is expected; the hint says what to do. To
change a sentence, change it here too: a reader of this table is the first to stumble over it.
"""

import contextlib
import datetime
import re
import socket
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings

from fedvi import errors
from fedvi.cli.main import main
from fedvi.study.build import assemble
from fedvi.study.config import parse_study
from tests.pki import authority_in, party

STUDY = """\
[study]
name = "small"
seed = 3
[model]
kind = "logistic"
formula = "died ~ age + stage"
[prior]
scale = 2.5
[solver]
kind = "site_release"
clip_norm = 2.0
[schedule]
kind = "synchronous"
rounds = 2
[privacy]
epsilon = 1.0
delta = 1e-5
unit = "record"
relation = "substitute"
[data]
max_records = 20
[data.schema.died]
type = "binary"
[data.schema.age]
type = "number"
bounds = [18, 100]
[data.schema.stage]
type = "level"
levels = ["low", "high"]
[[clients]]
name = "north"
data = "north.csv"
[[clients]]
name = "south"
data = "south.csv"
"""
PROMISE = 'epsilon = 1.0\ndelta = 1e-5\nunit = "record"\nrelation = "substitute"\n'
SOLVER = 'kind = "site_release"\nclip_norm = 2.0\n'
SCHEDULE = 'kind = "synchronous"\nrounds = 2'
CLIENTS = STUDY[STUDY.index("[[clients]]") :]
# Of a study that promises nothing, which may refuse a record and say why.
OPEN = {PROMISE: 'protection = "none"\n', SOLVER: 'kind = "glm"\n', "max_records = 20\n": ""}
RECORDS = "died,age,stage\n1,50,low\n0,20,high\n1,77,low\n"
NOW, DAY = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)


class Wrong(NamedTuple):
    """One wrong input and its answer.

    Attributes:
      what: is wrong.
      said: the whole sentence, but for the line that it is about; "…" at its end stands for words of a
        library.
      hint: what follows it; empty for the messages of the command line's parser.
      changes: replacements in the text of the study.
      files: of the folder, beside the study and its records; None takes one away.
      command: what is run.
      code: the exit code.
    """

    what: str
    said: str
    hint: str = ""
    changes: Mapping[str, str] = {}
    files: Mapping[str, str | bytes | None] = {}
    command: str = "check {study}"
    code: int = 2


TABLE = [
    Wrong(
        "misspelt section",
        changes={"[model]": "[modle]"},
        said="modle: unknown key",
        hint=(
            "did you mean `model`? known: `aggregation`, `clients`, `data`, `family`, `model`, `prior`, "
            "`privacy`, `schedule`, `simulation`, `solver`, `study`"
        ),
    ),
    Wrong(
        "misspelt key",
        changes={"seed = 3": "sed = 3"},
        said="study.sed: unknown key",
        hint="did you mean `seed`? known: `name`, `seed`",
    ),
    Wrong(
        "misspelt key of a kind",
        changes={"clip_norm = 2.0": "clip_nrom = 2.0"},
        said="solver.clip_nrom: unknown key for kind 'site_release'",
        hint=(
            "did you mean `clip_norm`? known: `clip_norm`, `curvature_share`, `draws`, `floor`, "
            "`nodes`"
        ),
    ),
    Wrong(
        "misspelt key of a column",
        changes={"bounds = [18, 100]": "bonds = [18, 100]"},
        said="data.schema.age.bonds: unknown key of a number column",
        hint=(
            "did you mean `bounds`? known: `bounds`, `center`, `column`, `expected`, `missing`, "
            "`missing_values`, `outside`, `scale`, `type`, `unit`"
        ),
    ),
    Wrong(
        "misspelt key of a client",
        changes={'data = "south.csv"': 'file = "south.csv"'},
        said="clients[1].file: unknown key",
        hint="known: `added`, `data`, `expected_records`, `latency_seconds`, `name`",
    ),
    Wrong(
        "text for a number",
        changes={"epsilon = 1.0": 'epsilon = "1"'},
        said="privacy.epsilon is '1', expected a number",
        hint=(
            "epsilon is the largest privacy loss, above 0: 1 is a common promise. To promise "
            'nothing write protection = "none"'
        ),
    ),
    Wrong(
        "fraction for a whole number",
        changes={"rounds = 2": "rounds = 2.5"},
        said="schedule.rounds is 2.5, expected a whole number",
        hint="write it without quotes and without a decimal point",
    ),
    Wrong(
        "text for a number of a kind",
        changes={"clip_norm = 2.0": 'clip_norm = "2"'},
        said="solver.clip_norm is '2', expected a number, or \"auto\"",
        hint="write it without quotes; `inf` is a number too",
    ),
    Wrong(
        "true for a number",
        changes={"max_records = 20": "max_records = true"},
        said="data.max_records is True, expected a whole number",
        hint=(
            'declare the largest number of records (of patients, with unit = "patient") at any '
            "client, at most 10^8"
        ),
    ),
    Wrong(
        "table for a key",
        changes={'name = "small"': 'name = { first = "small" }'},
        said="study.name is {'first': 'small'}, expected a text",
        hint="write numbers, true and false without quotes, and texts in quotes",
    ),
    Wrong(
        "key for a table",
        changes={"[prior]\nscale = 2.5\n": "", "[study]": "prior = 2.5\n[study]"},
        said="prior is 2.5, expected a table [prior]",
        hint=(
            "write a section's name in brackets on a line of its own, and its keys on the lines "
            "below"
        ),
    ),
    Wrong(
        "not a number",
        changes={"epsilon = 1.0": "epsilon = nan"},
        said="privacy.epsilon is nan, expected a finite number",
        hint=(
            "epsilon is the largest privacy loss, above 0: 1 is a common promise. To promise "
            'nothing write protection = "none"'
        ),
    ),
    Wrong(
        "number too large",
        changes={"seed = 3": "seed = 99999999999999999999"},
        said="study.seed is 99999999999999999999, expected at most 9223372036854775807 in size",
        hint="whole numbers have 64 bits; write a larger number with a decimal point",
    ),
    Wrong(
        "name with a blank",
        changes={'name = "small"': 'name = "my study"'},
        said=(
            "study.name is 'my study', expected a letter or digit, then letters, digits, `.`, `_` "
            "or `-`"
        ),
        hint="the name becomes part of file names",
    ),
    Wrong(
        "epsilon 0",
        changes={"epsilon = 1.0": "epsilon = 0"},
        said="privacy.epsilon is 0, expected greater than 0",
        hint=(
            "epsilon is the largest privacy loss, above 0: 1 is a common promise. To promise "
            'nothing write protection = "none"'
        ),
    ),
    Wrong(
        "epsilon negative",
        changes={"epsilon = 1.0": "epsilon = -1.0"},
        said="privacy.epsilon is -1.0, expected greater than 0",
        hint=(
            "epsilon is the largest privacy loss, above 0: 1 is a common promise. To promise "
            'nothing write protection = "none"'
        ),
    ),
    Wrong(
        "delta 1",
        changes={"delta = 1e-5": "delta = 1"},
        said="privacy.delta is 1, expected less than 0.5",
        hint="delta is far below 1 / number of records, such as 1e-5",
    ),
    Wrong(
        "promise without delta",
        changes={"delta = 1e-5\n": ""},
        said="privacy.delta is missing",
        hint=(
            'a private study names epsilon, delta, unit ("record", "patient" or "client") and '
            'relation ("add_remove" or "substitute"); a study without protection says so: '
            'protection = "none"'
        ),
    ),
    Wrong(
        "no promise and epsilon",
        changes={PROMISE: 'protection = "none"\nepsilon = 1.0\n'},
        said='privacy.epsilon is given beside protection = "none"',
        hint="leave out one of the two",
    ),
    Wrong(
        "misspelt relation",
        changes={'relation = "substitute"': 'relation = "substitue"'},
        said="privacy.relation is 'substitue', expected 'add_remove' or 'substitute'",
        hint="did you mean `substitute`? known: `add_remove`, `substitute`",
    ),
    Wrong(
        "client as a unit",
        changes={'unit = "record"': 'unit = "hospital"'},
        said="privacy.unit is 'hospital', expected 'record', 'patient' or 'client'",
        hint="known: `client`, `patient`, `record`",
    ),
    Wrong(
        "patient without column",
        changes={'unit = "record"': 'unit = "patient"'},
        said='data.unit_column is missing beside privacy.unit = "patient"',
        hint=(
            'name the column that says whose a row is, such as unit_column = "patient_id"; if '
            'every patient has one row, promise unit = "record"'
        ),
    ),
    Wrong(
        "historical accountant",
        changes={"epsilon = 1.0": 'epsilon = 1.0\naccountant = "fourier"'},
        said="privacy.accountant is 'fourier', which is not in fedvi.privacy.accountants",
        hint="known: `advanced`, `linear`, `pld`, `rdp`, `zcdp`",
    ),
    Wrong(
        "unknown mechanism",
        changes={"epsilon = 1.0": 'epsilon = 1.0\nmechanism = "laplace"'},
        said=(
            "privacy.mechanism is 'laplace', which is not in fedvi.privacy.mechanisms, and no plug-in of "
            "that name is installed"
        ),
        hint=(
            "known: `discrete_gaussian`, `gaussian`, `rounded_gaussian`; "
            "code of your own is a plug-in: docs/add/plug-in.md"
        ),
    ),
    Wrong(
        "unknown model",
        changes={'kind = "logistic"': 'kind = "logit"'},
        said=(
            "model.kind is 'logit', which is not in fedvi.models, and no plug-in of "
            "that name is installed"
        ),
        hint=(
            "did you mean `logistic`? known: `binomial`, `bnn_classification`, "
            "`bnn_regression`, `discrete_network`, `factor_analysis`, "
            "`gaussian_mixture`, `hidden_markov`, `latent_dirichlet`, `linear`, "
            "`linear_unknown_noise`, `logistic`, `multinomial`, `multivariate_linear`, "
            "`negative_binomial`, `numpyro_model`, `overdispersed_counts`, `poisson`, "
            "`sigmoid_belief_network`, "
            "`survival`; code of your own is a plug-in: docs/add/plug-in.md"
        ),
    ),
    Wrong(
        "unknown solver",
        changes={'kind = "site_release"': 'kind = "site_relase"'},
        said=(
            "solver.kind is 'site_relase', which is not in fedvi.inference.solvers, and no plug-in of "
            "that name is installed"
        ),
        hint=(
            "did you mean `site_release`? known: `dp_optimisation`, `exact`, `glm`, `gradient`, "
            "`local_averaging`, `perturbed_update`, `site_release`, `vips`, `virtual_clients`; "
            "code of your own is a plug-in: docs/add/plug-in.md"
        ),
    ),
    Wrong(
        "unknown schedule",
        changes={'kind = "synchronous"': 'kind = "parallel"'},
        said=(
            "schedule.kind is 'parallel', which is not in fedvi.federation.schedules, and no plug-in of "
            "that name is installed"
        ),
        hint=(
            "known: `asynchronous`, `buffered_asynchronous`, `scripted`, `sequential`, "
            "`synchronous`; code of your own is a plug-in: docs/add/plug-in.md"
        ),
    ),
    Wrong(
        "unknown family",
        changes={"[prior]": '[family]\nkind = "gaussian"\n[prior]'},
        said=(
            "family.kind is 'gaussian', which is not in fedvi.expfam, and no plug-in of "
            "that name is installed"
        ),
        hint=(
            "did you mean `full_gaussian`? known: `diagonal_gaussian`, `dirichlet`, `dirichlets`, "
            "`full_gaussian`, `gamma`, `low_rank_gaussian`, `normal_gamma_rows`, `normal_wishart`, "
            "`product`; "
            "code of your own is a plug-in: docs/add/plug-in.md"
        ),
    ),
    Wrong(
        "unknown sampler",
        changes={"clip_norm = 2.0": 'clip_norm = 2.0\nsampler = "poison"'},
        said=(
            "solver.sampler.kind is 'poison', which is not in fedvi.privacy.sampling, and no plug-in of "
            "that name is installed"
        ),
        hint=(
            "did you mean `poisson`? known: `feistel`, `full`, `poisson`; "
            "code of your own is a plug-in: docs/add/plug-in.md"
        ),
    ),
    Wrong(
        "sampler without rate",
        changes={"clip_norm = 2.0": 'clip_norm = 2.0\nsampler = "poisson"'},
        said="solver.sampler.rate is missing for kind 'poisson'",
        hint="add `rate = …`",
    ),
    Wrong(
        "rate above 1",
        changes={"clip_norm = 2.0": 'clip_norm = 2.0\nsampler = { kind = "poisson", rate = 2.0 }'},
        said="[solver.sampler]: sampling rate is 2.0, expected a number strictly between 0 and 1",
        hint='to take every record in every step write `sampler = "full"`',
    ),
    Wrong(
        "model by its address",
        changes={
            'kind = "logistic"': 'kind = "my_lab.models:hospital"',
            "[prior]\nscale = 2.5\n": "",
        },
        said=(
            "model.kind is 'my_lab.models:hospital', which names code by module and attribute: no file "
            "may, and nothing was run ({d}/study.toml, line 5)"
        ),
        hint=(
            "write a built-in name; or make the code a plug-in (docs/add/plug-in.md), name it here, "
            'such as "hospital", and allow it: `--allow-code hospital`, or `[[allow.custom]]` in a '
            'policy; from Python pass the object: parts={"hospital": …}'
        ),
    ),
    Wrong(
        "solver without protection",
        changes={SOLVER: 'kind = "glm"\n'},
        said=(
            "solver.kind is 'glm', which releases without protection, but [privacy] promises "
            "differential privacy"
        ),
        hint='use a private solver such as "dp_optimisation", or protection = "none"',
    ),
    Wrong(
        "noise below the budget",
        changes={"clip_norm = 2.0": "clip_norm = 2.0\nnoise_multiplier = 0.5"},
        said=(
            "solver.noise_multiplier is 0.5, which accountant 'pld' cannot price: no finite "
            "epsilon holds at delta 1e-05 under substitute: the tables that noise is drawn from are "
            "7.81e-18 away from its exact law, and 1 + e^epsilon times that must stay below delta, "
            "as it does up to an epsilon of about 27.9"
        ),
        hint="10.56 is enough; left out, noise_multiplier is calibrated to the budget",
    ),
    Wrong(
        "negative noise",
        changes={"clip_norm = 2.0": "clip_norm = 2.0\nnoise_multiplier = -1"},
        said=(
            "solver.noise_multiplier is -1, expected a finite number of at least 0 and at most "
            "1e+09"
        ),
        hint="leave it out: it is then calibrated to the budget",
    ),
    Wrong(
        "clip norm 0",
        changes={"clip_norm = 2.0": "clip_norm = 0"},
        said="solver.clip_norm is 0, expected a number from 1e-15 to 1e+15",
        hint=(
            "it bounds what one record contributes; 1 is a good start. Without protection it may "
            "be inf"
        ),
    ),
    Wrong(
        "negative rounds",
        changes={"rounds = 2": "rounds = -2"},
        said="schedule.rounds is -2, expected at least 1",
        hint="rounds are passes over all clients; ten are a good start",
    ),
    Wrong(
        "no rounds",
        changes={"rounds = 2\n": ""},
        said="schedule.rounds is missing for kind 'synchronous'",
        hint="add `rounds = …`",
    ),
    Wrong(
        "quorum beyond the clients",
        changes={"rounds = 2": "rounds = 2\nquorum = 3"},
        said="schedule.quorum is 3, expected a whole number from 1 to 2, the number of clients",
        hint="with fewer clients present the run waits; left out, it is half of them",
    ),
    Wrong(
        "deadline of nobody",
        changes={"rounds = 2": "rounds = 2\ndeadline_seconds = { nroth = 60 }"},
        said="schedule.deadline_seconds.nroth: no client of the study",
        hint="did you mean `north`? known: `default`, `north`, `south`",
    ),
    Wrong(
        "stage over nobody",
        changes={
            SCHEDULE: 'kind = "scripted"\n'
            'stages = [{ kind = "sequential", over = ["nroth"], rounds = 1 }]'
        },
        said="schedule.stages[0].over names 'nroth', which is no client of the study",
        hint="did you mean `north`? known: `north`, `south`",
    ),
    Wrong(
        "stage without end",
        changes={
            SCHEDULE: 'kind = "scripted"\nstages = [{ kind = "synchronous", until = "converged" }]'
        },
        said='schedule.stages[0].tolerance is missing, or 0, beside until = "converged"',
        hint="add `tolerance = …`, the gap in posterior sds at which to stop, such as 0.01",
    ),
    Wrong(
        "no max_records",
        changes={"max_records = 20\n": ""},
        said="data.max_records is missing",
        hint=(
            "a private study declares the largest number of records at any client, as public "
            'knowledge: batches and the claim are sized for it. With unit = "patient" it counts '
            "patients, not rows"
        ),
    ),
    Wrong(
        "max_records 0",
        changes={"max_records = 20": "max_records = 0"},
        said="data.max_records is 0, expected greater than or equal to 1",
        hint=(
            'declare the largest number of records (of patients, with unit = "patient") at any '
            "client, at most 10^8"
        ),
    ),
    Wrong(
        "no bounds",
        changes={"bounds = [18, 100]\n": ""},
        said="data.schema.age.bounds: missing, expected [lowest, highest]",
        hint="state bounds that are known without looking at the data, such as [18, 100] for age",
    ),
    Wrong(
        "bounds turned round",
        changes={"bounds = [18, 100]": "bounds = [100, 18]"},
        said="data.schema.age.bounds: [100, 18], expected [lowest, highest]",
        hint="state bounds that are known without looking at the data, such as [18, 100] for age",
    ),
    Wrong(
        "one level",
        changes={'levels = ["low", "high"]': 'levels = ["low"]'},
        said="data.schema.stage.levels: ['low'], expected two or more different names",
        hint="list each level once; the first is the reference",
    ),
    Wrong(
        "type of nothing",
        changes={'type = "level"': 'type = "factor"'},
        said='data.schema.stage.type: "factor", expected one of "binary", "count", "level", "number"',
        hint="known: `binary`, `count`, `level`, `number`",
    ),
    Wrong(
        "refusing in a private study",
        changes={"bounds = [18, 100]": 'bounds = [18, 100]\nmissing = "refuse"'},
        said=(
            'data.schema.age.missing: "refuse" in a private study, expected { impute = VALUE }, '
            '"indicator" or "drop"'
        ),
        hint=(
            'whether a private study runs may not depend on one record; "drop" lets the record '
            "count as zero"
        ),
    ),
    Wrong(
        "imputing outside the bounds",
        changes={"bounds = [18, 100]": "bounds = [18, 100]\nmissing = { impute = 0 }"},
        said="data.schema.age.missing.impute: 0, expected a number within the bounds [18, 100]",
        hint="impute a public constant, in the unit of the file",
    ),
    Wrong(
        "undeclared column in formula",
        changes={"died ~ age + stage": "died ~ age + weight"},
        said="model.formula: `weight` is not declared under [data.schema]",
        hint="known: `age`, `died`, `stage`",
    ),
    Wrong(
        "misspelt column in formula",
        changes={"died ~ age + stage": "died ~ aeg + stage"},
        said="model.formula: `aeg` is not declared under [data.schema]",
        hint="did you mean `age`? known: `age`, `died`, `stage`",
    ),
    Wrong(
        "formula without response",
        changes={"died ~ age + stage": "age + stage"},
        said="model.formula: 'age + stage', expected one response, then `~`",
        hint=(
            "a formula reads `response ~ term + term`, where a term is a, a:b, a*b, a/b or (a + "
            "b)**2"
        ),
    ),
    Wrong(
        "open parenthesis in formula",
        changes={"died ~ age + stage": "died ~ (age + stage"},
        said="model.formula: a bracket in 'died ~ (age + stage' is not closed, or not opened",
        hint=(
            "a formula reads `response ~ term + term`, where a term is a, a:b, a*b, a/b or (a + "
            "b)**2"
        ),
    ),
    Wrong(
        "fitted transform",
        changes={"died ~ age + stage": "died ~ scale(age) + stage"},
        said=(
            "model.formula: the call `scale(...)` in 'died ~ scale(age) + stage' would be fitted "
            "to the data: means and sds of the records would leave with the result"
        ),
        hint="declare public `center` and `scale` under [data.schema.NAME], and write the name alone",
    ),
    Wrong(
        "spline with fitted knots",
        changes={"died ~ age + stage": "died ~ bs(age, df=4) + stage"},
        said=(
            "model.formula: `df` in the call `bs(...)` of 'died ~ bs(age, df=4) + stage' would be "
            "fitted to the data: knots would be quantiles of the records"
        ),
        hint=(
            "state knots that are known without the data, such as bs(age, knots=[45.33, 72.67], "
            "lower_bound=18, upper_bound=100)"
        ),
    ),
    Wrong(
        "response of the wrong type",
        changes={'kind = "logistic"': 'kind = "poisson"'},
        said=(
            "model.formula: the response 'died' is binary, but kind 'poisson' needs a count, a "
            'column of type = "count"'
        ),
        hint='declare data.schema.died.type = "count", or use kind = "linear" or kind = "logistic"',
    ),
    Wrong(
        "level as a response",
        changes={"died ~ age + stage": "stage ~ age"},
        said=(
            "model.formula: the response 'stage' is a column of levels, but kind 'logistic' needs "
            "a binary one"
        ),
        hint='declare data.schema.stage.type = "binary", or use kind = "multinomial"',
    ),
    Wrong(
        "no formula",
        changes={'formula = "died ~ age + stage"\n': ""},
        said="model.formula is missing for kind 'logistic'",
        hint='write e.g. formula = "disease ~ age + sex"',
    ),
    Wrong(
        "two clients alike",
        changes={'name = "south"': 'name = "North"'},
        said="clients: the name 'north' stands twice",
        hint="give every client its own name; upper and lower case count as the same",
    ),
    Wrong(
        "reserved client",
        changes={'name = "south"': 'name = "prior"'},
        said="clients: the name 'prior' is reserved",
        hint="choose another name",
    ),
    Wrong(
        "client without name",
        changes={'name = "south"\n': ""},
        said="clients[1].name is missing",
        hint="add `name = …` under its [[clients]]",
    ),
    Wrong(
        "no clients",
        changes={CLIENTS: ""},
        said="clients is missing",
        hint="add a [[clients]] entry with a name for each site",
    ),
    Wrong(
        "separator of two",
        changes={"[data]": '[data]\nseparator = ", "'},
        said="data.separator is ', ', expected one character",
        hint='use ",", ";" or "\\t"; blanks around a cell are taken off anyway',
    ),
    Wrong(
        "no study",
        files={"study.toml": None},
        said="no study file at {d}/study.toml",
        hint="give the path of a .toml file",
    ),
    Wrong(
        "study is a folder",
        command="check {d}",
        said="Invalid value for 'STUDY': File '{d}' is a directory.",
    ),
    Wrong(
        "study is no TOML",
        changes={"seed = 3": "seed 3"},
        said=(
            "{d}/study.toml is not valid TOML: Expected '=' after a key in a key/value pair (at "
            "line 3, column 6)"
        ),
        hint=(
            "sections are written [section], keys are written key = value and stand once, texts "
            '"in quotes"'
        ),
    ),
    Wrong(
        "text without quotes",
        changes={'name = "small"': "name = small"},
        said="{d}/study.toml is not valid TOML: Invalid value (at line 2, column 8)",
        hint=(
            "sections are written [section], keys are written key = value and stand once, texts "
            '"in quotes"'
        ),
    ),
    Wrong(
        "key twice",
        changes={"seed = 3": "seed = 3\nseed = 4"},
        said="{d}/study.toml is not valid TOML: Cannot overwrite a value (at line 4, column 9)",
        hint=(
            "sections are written [section], keys are written key = value and stand once, texts "
            '"in quotes"'
        ),
    ),
    Wrong(
        "study is no UTF-8",
        files={"study.toml": b"\xff\xfe\x00"},
        said="{d}/study.toml is not a text file in UTF-8",
        hint="save it again in that encoding",
    ),
    Wrong(
        "empty study",
        files={"study.toml": ""},
        said=(
            "7 things are wrong:\n"
            "- study is missing\n  add a section [study] with a name\n"
            '- model is missing\n  add a section [model] with kind = "logistic" and a formula\n'
            '- solver is missing\n  add a section [solver] with a kind, such as "dp_optimisation"\n'
            '- schedule is missing\n  add a section [schedule] with kind = "synchronous" and rounds\n'
            "- privacy is missing\n  add a section [privacy] with epsilon, delta, unit and relation; a "
            'study without protection says so: protection = "none"\n'
            "- data is missing\n  add a [data.schema.NAME] section for each column that the model uses\n"
            "- clients is missing\n  add a [[clients]] entry with a name for each site"
        ),
        hint="correct them all: what depends on them is checked after that",
    ),
    Wrong(
        "no data file",
        command="simulate {study} --quiet",
        files={"north.csv": None},
        said="{d}/north.csv: cannot be read (No such file or directory)",
        hint="paths are relative to the folder of the study file",
    ),
    Wrong(
        "empty data file",
        command="simulate {study} --quiet",
        files={"north.csv": ""},
        said="{d}/north.csv: the file is empty, expected a line with the names of the columns",
        hint="is this the right file? a file without header needs `data.columns`",
    ),
    Wrong(
        "header alone, open",
        command="simulate {study} --quiet",
        changes=OPEN,
        files={"north.csv": "died,age,stage\n"},
        said="north: the shard is empty, expected at least one record",
        hint="take this client out of the study, or check that its file is complete",
    ),
    Wrong(
        "data is a folder",
        command="simulate {study} --quiet",
        changes={'data = "north.csv"': 'data = "."'},
        said="{d}: no file in this folder ends in .parquet",
        hint="name the folder whose parts lie side by side; those of further folders are not read",
    ),
    Wrong(
        "missing column",
        command="simulate {study} --quiet",
        files={"north.csv": "died,age,stages\n1,50,low\n0,20,high\n1,77,low\n"},
        said="{d}/north.csv: no column `stage` in the first line",
        hint="did you mean `stages`? known: `age`, `died`, `stages`",
    ),
    Wrong(
        "other separator",
        command="simulate {study} --quiet",
        files={"north.csv": "died;age;stage\n1;50;low\n0;20;high\n1;77;low\n"},
        said="{d}/north.csv: no column `died` in the first line, which has semicolons between the names",
        hint=(
            "save the file again with the separator of the study, and with decimal points; or, if the "
            "files of all sites have it, change `data.separator`"
        ),
    ),
    Wrong(
        "latin-1, open",
        command="simulate {study} --quiet",
        changes=OPEN,
        files={"north.csv": b"died,age,stage\n1,50,l\xf6w\n0,20,high\n1,77,l\xf6w\n"},
        said="north: record 1: column `stage` holds 'löw', which is no declared level",
        hint=(
            "did you mean `low`? known: `high`, `low`; declare it with `codes` or `missing_values` of "
            '[data.schema.stage], or set `outside` = "drop"'
        ),
    ),
    Wrong(
        "utf-16",
        command="simulate {study} --quiet",
        files={"north.csv": RECORDS.encode("utf-16")},
        said="{d}/north.csv: a text in UTF-16",
        hint="save it again as CSV in UTF-8",
    ),
    Wrong(
        "no header",
        command="simulate {study} --quiet",
        files={"north.csv": "1,50,low\n0,20,high\n1,77,low\n"},
        said="{d}/north.csv: no column `died` in the first line",
        hint=(
            "is this the right `data.separator`? does the file begin with the names of its "
            "columns? if it has none, list them in `data.columns`; if it calls them otherwise, say "
            'so with `column`, such as column = "Age (years)" under [data.schema.age]'
        ),
    ),
    Wrong(
        "undeclared level, open",
        command="simulate {study} --quiet",
        changes=OPEN,
        files={"north.csv": "died,age,stage\n1,50,low\n0,20,medium\n1,77,low\n"},
        said="north: record 2: column `stage` holds 'medium', which is no declared level",
        hint=(
            "known: `high`, `low`; declare it with `codes` or `missing_values` of "
            '[data.schema.stage], or set `outside` = "drop"'
        ),
    ),
    Wrong(
        "decimal comma, open",
        command="simulate {study} --quiet",
        changes=OPEN,
        files={"north.csv": 'died,age,stage\n1,"50,5",low\n0,20,high\n1,77,low\n'},
        said="north: record 1: column `age` holds '50,5', expected a number",
        hint=(
            "if it means missing, list it in `data.schema.age.missing_values`; decimals are "
            "written with a point"
        ),
    ),
    Wrong(
        "missing cell, open",
        command="simulate {study} --quiet",
        changes=OPEN,
        files={"north.csv": "died,age,stage\n1,,low\n0,20,high\n1,77,low\n"},
        said="north: record 1: column `age` holds '', which means missing",
        hint=(
            'declare what to do: `data.schema.age.missing` = { impute = VALUE }, "indicator" or '
            '"drop"'
        ),
    ),
    Wrong(
        "row too long, open",
        command="simulate {study} --quiet",
        changes=OPEN,
        files={"north.csv": "died,age,stage\n1,50,low\n0,20,high\n1,77,low\n1,2,low,4\n"},
        said="{d}/north.csv: line 5 has more cells than the 3 columns",
        hint=(
            "is a separator or a quote inside a cell? put such cells in double quotes, and check "
            "`data.separator`. R's write.table writes no name over the names of rows: use "
            "write.csv(table, file, row.names = FALSE). Other programs end each record with a separator: "
            "take it out"
        ),
    ),
    Wrong(
        "out is there",
        command="simulate {study} --quiet --out {d}/out",
        files={"out/x": ""},
        said="--out {d}/out exists and is not an empty folder",
        hint="name a new folder",
    ),
    Wrong(
        "out in no folder",
        command="simulate {study} --quiet --out {d}/no/out",
        said="--out {d}/no/out: the folder {d}/no does not exist",
        hint="make it first",
    ),
    Wrong(
        "removing nobody",
        command="simulate {study} --quiet --remove nroth=1",
        said="remove names 'nroth', which is no client of the study",
        hint="did you mean `north`? known: `north`, `south`",
    ),
    Wrong(
        "remove without rounds",
        command="simulate {study} --quiet --remove north",
        said="--remove is 'north', expected CLIENT=ROUNDS, once for a client",
        hint="e.g. --remove north=2, for after two rounds",
    ),
    Wrong(
        "unknown command",
        command="simulat {study}",
        said="no command 'simulat'; did you mean `simulate`? `fedvi --help` lists them",
    ),
    Wrong(
        "unknown option",
        command="simulate {study} --quite",
        said="No such option '--quite'. (Did you mean one of: '--life', '--out', '--quiet'?)",
    ),
    Wrong(
        "no argument",
        command="check",
        said="Missing argument 'STUDY'.",
    ),
    Wrong(
        "policy misspelt",
        command="check {study} --policy {d}/policy.toml",
        files={"policy.toml": "[run]\nepsilom = 1.0\ndelta = 1e-5\n"},
        said="policy.run.epsilom: unknown key",
        hint=(
            "did you mean `epsilon`? known: `accountant`, `delta`, `epsilon`, `noise_multiplier`, "
            "`rounds`, `steps`"
        ),
    ),
    Wrong(
        "policy wrong type",
        command="check {study} --policy {d}/policy.toml",
        files={"policy.toml": '[run]\nepsilon = "1"\ndelta = 1e-5\n'},
        said="policy.run.epsilon is '1', expected a number",
        hint="write numbers without quotes, and texts in quotes",
    ),
    Wrong(
        "policy empty",
        command="check {study} --policy {d}/policy.toml",
        files={"policy.toml": ""},
        said="policy.run is missing",
        hint="add a section [run] with epsilon and delta, the caps on each study",
    ),
    Wrong(
        "no policy",
        command="check {study} --policy {d}/policy.toml",
        said="cannot read the policy {d}/policy.toml: No such file or directory",
        hint="give the path of a .toml file",
    ),
    Wrong(
        "policy is no TOML",
        command="check {study} --policy {d}/policy.toml",
        files={"policy.toml": "[run\n"},
        said=(
            "{d}/policy.toml is not valid TOML: Expected ']' at the end of a table declaration (at "
            "line 1, column 5)"
        ),
        hint=(
            "sections are written [section], keys are written key = value and stand once, texts "
            '"in quotes"'
        ),
    ),
    Wrong(
        "policy refuses",
        command="check {study} --policy {d}/policy.toml",
        files={"policy.toml": "[run]\nepsilon = 0.5\ndelta = 1e-5\n"},
        code=5,
        said=(
            "the policy of this site refuses the study: epsilon 0.999149 at delta 1e-05 (pld, "
            "substitute), expected at most 0.5"
        ),
        hint="change the study, or let whoever owns the data change the policy",
    ),
    Wrong(
        "policy unknown solver",
        command="check {study} --policy {d}/policy.toml",
        files={
            "policy.toml": '[run]\nepsilon = 1.0\ndelta = 1e-5\n[allow]\nsolvers = ["site_relase"]\n'
        },
        said="policy.allow.solvers holds 'site_relase', which is no built-in",
        hint=(
            "did you mean `site_release`? known: `dp_optimisation`, `exact`, `glm`, `gradient`, "
            "`local_averaging`, `perturbed_update`, `site_release`, `vips`, `virtual_clients`; "
            "code from elsewhere is allowed by [[allow.custom]]"
        ),
    ),
    Wrong(
        "policy of nobody",
        command="simulate {study} --quiet --policy nroth={d}/policy.toml",
        files={"policy.toml": "[run]\nepsilon = 1.0\ndelta = 1e-5\n"},
        said="--policy names client 'nroth', which the study does not have",
        hint="did you mean `north`? known: `north`, `south`",
    ),
    Wrong(
        "policy without client",
        command="simulate {study} --quiet --policy {d}/policy.toml",
        files={"policy.toml": "[run]\nepsilon = 1.0\ndelta = 1e-5\n"},
        said="--policy is '{d}/policy.toml', expected CLIENT=FILE",
        hint="e.g. --policy north=north.toml",
    ),
    Wrong(
        "unknown client",
        command="client {study} --as nroth --server localhost:7443",
        said="--as is 'nroth', which the study does not have",
        hint="did you mean `north`? known: `north`, `south`",
    ),
    Wrong(
        "client without server",
        command="client {study} --as north --state {d}/state",
        said="--server and --task are missing",
        hint="give --server HOST:PORT, or the file that was carried here with --task FILE",
    ),
    Wrong(
        "bad address",
        command="client {study} --as north --server localhost --give-up-after 0 --state {d}/state",
        said="the server's address is 'localhost', expected HOST:PORT",
        hint="such as fedvi.example.org:7443 or [2001:db8::1]:7443",
    ),
    Wrong(
        "port too large",
        command="client {study} --as north --server localhost:99999 --give-up-after 0 --state {d}/state",
        said="the server's address is 'localhost:99999', expected HOST:PORT",
        hint="such as fedvi.example.org:7443 or [2001:db8::1]:7443",
    ),
    Wrong(
        "clear text beyond loopback",
        command="client {study} --as north --server 192.0.2.1:7443 --give-up-after 0 --state {d}/state",
        said="--server is 192.0.2.1:7443, another machine, and --tls is not given",
        hint="name the folder that `fedvi enroll` made with --tls; --insecure sends in clear text",
    ),
    Wrong(
        "no certificate",
        command="client {study} --as north --server 192.0.2.1:7443 --tls {d}/tls --state {d}/state",
        said="{d}/tls/cert.pem: the certificate cannot be read: No such file or directory",
        hint="`fedvi enroll` makes these files; name their folder with --tls",
    ),
    Wrong(
        "nobody listens",
        command=(
            "client {study} --as north --server 127.0.0.1:{free} --give-up-after 0 --state "
            "{d}/state"
        ),
        code=3,
        said="gave up after 0 seconds: the server cannot be reached (…",
        hint="`fedvi doctor` looks for the reason",
    ),
    Wrong(
        "port in use",
        changes=OPEN,
        command="server {study} --listen 127.0.0.1:{busy} --state {d}/state",
        code=3,
        said=(
            "127.0.0.1:{busy} cannot be bound: another process has the port, or it is not this "
            "machine's"
        ),
        hint="is another server running there? name another port; 0 takes a free one",
    ),
    Wrong(
        "listen nowhere",
        command="server {study} --listen 7443 --state {d}/state",
        said="--listen is '7443', expected HOST:PORT with a port up to 65535",
        hint="such as 0.0.0.0:7443 or [::]:7443; port 0 takes a free one",
    ),
    Wrong(
        "listen in clear text",
        command="server {study} --listen 0.0.0.0:7443 --state {d}/state",
        said="--listen 0.0.0.0:7443 can be reached from other machines, and there is no --tls",
        hint=(
            "give --tls, the folder of the server's certificates; or --insecure, and everybody can "
            "read and change what is sent"
        ),
    ),
    Wrong(
        "server without key",
        command="server {study} --listen 127.0.0.1:0 --tls {d}/tls --state {d}/state",
        said="{d}/tls/cert.pem: the certificate cannot be read: No such file or directory",
        hint="`fedvi enroll` makes these files; name their folder with --tls",
    ),
    Wrong(
        "evaluate nothing",
        command="evaluate {d}/run {d}/north.csv",
        said="{d}/run holds neither study.json nor plan.json, expected the folder of a run",
        hint="name the folder of `fedvi simulate --out`, or of a server's --state",
    ),
    Wrong(
        "status of nothing",
        command="status {d}/state",
        code=3,
        said="no server runs on {d}/state: nobody listens on its admin.sock",
        hint="name the folder of a server that runs on this machine, or use --server; of one that has "
        "ended, `fedvi status` shows what it saved; of a simulation, `fedvi report` shows all",
    ),
    Wrong(
        "ledger of nothing",
        command="ledger verify {d}/ledger",
        said="no ledger at {d}/ledger",
        hint="give a .jsonl file, a client's or a server's folder, or the folder of a run",
    ),
    Wrong(
        "backup of nothing",
        command="backup {d}/state --to {d}/copy",
        said="{d}/state holds no server's state: state.sqlite is not there",
        hint="give the folder that `fedvi server` was started with",
    ),
    Wrong(
        "export without state",
        command="export {study} --to {d}/out --state {d}/state",
        said="Missing option '--tls'.",
    ),
    Wrong(
        "import of nothing",
        command="import {study} {d}/north-0.result --state {d}/state",
        said="Missing option '--tls'.",
    ),
    Wrong(
        "enroll bad name",
        command="enroll ../north --dir {d}/tls",
        said=(
            "the name '../north' is none, expected up to 64 letters, digits, '.', '_' or '-', a "
            "letter or digit first"
        ),
        hint="a client's name is that of its [[clients]] entry in the study",
    ),
    Wrong(
        "sign nothing",
        command="ca sign {d}/request.pem --ca {d}/ca",
        said="{d}/request.pem: the request cannot be read: No such file or directory",
        hint="give the request.pem that `fedvi enroll` made",
    ),
    Wrong(
        "ca twice",
        command="ca init {d}/ca --name X",
        files={"ca/ca.pem": "x"},
        said="{d}/ca/ca.pem is there already, and is not overwritten",
        hint="name another file",
    ),
    Wrong(
        "init without clients",
        command="init {d}/new --yes --formula y~x",
        said="--clients is missing, and there is nobody to ask",
        hint="give --clients, or run `fedvi init` on a terminal without --yes",
    ),
    Wrong(
        "privacy eps 0",
        command="privacy {study} --epsilon 0",
        said="privacy.epsilon is 0.0, expected greater than 0",
        hint=(
            "epsilon is the largest privacy loss, above 0: 1 is a common promise. To promise "
            'nothing write protection = "none"'
        ),
    ),
    Wrong(
        "json schema of nothing",
        command="init --json-schema server",
        said="Invalid value for '--json-schema': 'server' is not one of 'study', 'policy'.",
    ),
    Wrong(
        "another's certificate",
        command=(
            "client {study} --server 127.0.0.1:{free} --give-up-after 0 --state {d}/state --as "
            "south --tls {tls}/north"
        ),
        code=4,
        said="the certificate in {tls}/north is of 'north', expected 'south' as --as says",
        hint="give --tls the folder of this client",
    ),
    Wrong(
        "expired certificate",
        command=(
            "client {study} --server 127.0.0.1:{free} --give-up-after 0 --state {d}/state --as "
            "north --tls {tls}/old"
        ),
        code=4,
        said="{tls}/old/cert.pem: the certificate of 'old' expired on {when}; it is {when} here",
        hint=(
            "ask the authority for `fedvi ca renew`, and install what comes back with `fedvi "
            "enroll`"
        ),
    ),
    Wrong(
        "a server's certificate",
        command=(
            "client {study} --server 127.0.0.1:{free} --give-up-after 0 --state {d}/state --as "
            "north --tls {tls}/server"
        ),
        code=4,
        said="the certificate of 'server' in {tls}/server has the role server, expected client",
        hint="enrol with --role client in a folder of its own",
    ),
    Wrong(
        "server with a client's certificate",
        command="server {study} --listen 127.0.0.1:0 --state {d}/state --tls {tls}/north",
        code=4,
        said="the certificate of 'north' in {tls}/north has the role client, expected server",
        hint="enrol with --role server in a folder of its own",
    ),
    Wrong(
        "wrong fingerprint",
        command=(
            "enroll north --dir {tls}/north --certificate {tls}/north/cert.pem --ca "
            "{tls}/ca/ca.pem --fingerprint "
            "0000000000000000000000000000000000000000000000000000000000000000"
        ),
        code=4,
        said=(
            "the authority's fingerprint is {hex}, expected "
            "0000000000000000000000000000000000000000000000000000000000000000"
        ),
        hint="do not install it: ask the authority for ca.pem again, by another way",
    ),
    Wrong(
        "certificate of another key",
        command="enroll north --dir {tls}/north --certificate {tls}/south/cert.pem",
        code=4,
        said="{tls}/south/cert.pem is of 'south', expected 'north'",
        hint="give the certificate that came back for this party's own request",
    ),
    Wrong(
        "signing another name",
        command="ca sign {tls}/north/request.pem --ca {tls}/ca --name south",
        code=4,
        said="the request is of 'north', expected 'south'",
        hint="is it the request of another party? --name says whose it must be",
    ),
    Wrong(
        "signing another role",
        command="ca sign {tls}/north/request.pem --ca {tls}/ca --role server",
        code=4,
        said="the request of 'north' asks for the role client, expected server",
        hint="if it is meant to be one, say so: --role client",
    ),
    Wrong(
        "revoking nobody",
        command="ca revoke nroth --ca {tls}/ca",
        said="'nroth' is not on the roster",
        hint="did you mean `north`? known: `north`, `old`, `server`, `south`",
    ),
    Wrong(
        "server without a name to be reached by",
        command="enroll server --role server --dir {d}/tls",
        said="a server needs the names under which clients reach it, and --host was not given",
        hint="give --host for each: a DNS name or an IP address, without the port",
    ),
    Wrong(
        "task that is none",
        command="client {study} --as north --task {d}/north-0.task --state {d}/state --tls {tls}/north",
        files={"north-0.task": "x"},
        code=1,
        said="{d}/north-0.task is something else, expected a task file",
        hint="sites are given task files, and send result files back",
    ),
    Wrong(
        "result that is none",
        command=(
            "import {study} {d}/north-0.result --state {d}/state --tls {tls}/server --roster "
            "{d}/roster.json"
        ),
        files={"north-0.result": "x", "roster.json": "{}"},
        said="{d}/roster.json: the roster cannot be read: it is no roster",
        hint="copy the authority's roster.json there, or name it with --roster",
    ),
    Wrong(
        "promise with a table of its own",
        changes={"clip_norm = 2.0": 'clip_norm = 2.0\nkind = "glm"'},
        said="{d}/study.toml is not valid TOML: Cannot overwrite a value (at line 12, column 13)",
        hint=(
            "sections are written [section], keys are written key = value and stand once, texts "
            '"in quotes"'
        ),
    ),
    Wrong(
        "delta above 1 for privacy",
        command="privacy {study} --delta 2",
        said="privacy.delta is 2.0, expected less than 0.5",
        hint="delta is far below 1 / number of records, such as 1e-5",
    ),
    Wrong(
        "predictions over a file",
        command="predict {d}/run {d}/north.csv --out {d}/old.csv",
        files={"old.csv": "x"},
        said="{d}/old.csv is there already, and is not overwritten",
        hint="give another --out",
    ),
    Wrong(
        "predictions over what another file was made of",
        command="predict {d}/run {d}/north.csv --out {d}/old.csv",
        files={"old.csv.json": "x"},
        said="{d}/old.csv.json is there already, and is not overwritten",
        hint="give another --out",
    ),
    Wrong(
        "one of several sets over a file",
        command="synthesise {d}/run --sets 3 --out {d}/old.csv",
        files={"old-2.csv": "x"},
        said="{d}/old-2.csv is there already, and is not overwritten",
        hint="give another --out",
    ),
    Wrong(
        "draws over a file",
        command="posterior {d}/run --to {d}/new.csv --to {d}/old.nc",
        files={"old.nc": "x"},
        said="{d}/old.nc is there already, and is not overwritten",
        hint="give another --to",
    ),
    Wrong(
        "a table over a file",
        command="posterior {d}/run --summary {d}/old.csv",
        files={"old.csv": "x"},
        said="{d}/old.csv is there already, and is not overwritten",
        hint="give another --summary",
    ),
    Wrong(
        "a picture of an evaluation over a file",
        command="evaluate {d}/run {d}/north.csv --plot {d}/old.svg",
        files={"old.svg": "x"},
        said="{d}/old.svg is there already, and is not overwritten",
        hint="give another --plot",
    ),
    Wrong(
        "a picture of prices over a file",
        command="privacy {study} --plot {d}/old.svg",
        files={"old.svg": "x"},
        said="{d}/old.svg is there already, and is not overwritten",
        hint="give another --plot",
    ),
    Wrong(
        "a picture of a plan over a file",
        command="plan {study} --plot {d}/old.svg",
        files={"old.svg": "x"},
        said="{d}/old.svg is there already, and is not overwritten",
        hint="give another --plot",
    ),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Identities, a port that is taken and one that is free."""
    tls = tmp_path_factory.mktemp("tls")
    root = authority_in(tls / "ca", at=NOW - 60 * DAY)
    for name in ("north", "south"):
        party(root, name)
    party(root, "server", "server", ("localhost",))
    party(root, "old", days=10, at=NOW - 50 * DAY)
    with socket.socket() as busy, socket.socket() as free:
        for taken in (busy, free):
            taken.bind(("127.0.0.1", 0))
        busy.listen()
        # Bound, and nobody listens: whoever dials is refused, and no other process can take it.
        yield {"tls": tls, "busy": busy.getsockname()[1], "free": free.getsockname()[1]}


def write(folder: Path, wrong: Wrong) -> None:
    text = STUDY
    for old, new in wrong.changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    files = {"study.toml": text, "north.csv": RECORDS, "south.csv": RECORDS, **wrong.files}
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


def run(arguments: list[str]) -> Result:
    """Runs the command in this process; a traceback is never an answer."""
    result = CliRunner().invoke(main, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def answer(text: str, names: Mapping[str, Any]) -> tuple[str, str]:
    """Returns sentence and hint, with what differs from run to run by its name."""
    for name, value in names.items():
        text = text.replace(f":{value}" if isinstance(value, int) else str(value), f"{{{name}}}")
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "{when}", text)
    text = re.sub(r"\b(?!0{64})[0-9a-f]{64}\b", "{hex}", text)
    text = re.sub(r" \(line \d+\)$", "", text, flags=re.M)
    found = re.search(r"^[Ee]rror: (.*?)(?:\n\nhint: (.*))?\Z", text.strip(), re.S | re.M)
    assert found is not None, text
    return found[1].strip(), (found[2] or "").strip()


@pytest.mark.nightly(only=("port in use",))
@pytest.mark.parametrize("wrong", TABLE, ids=[wrong.what for wrong in TABLE])
def test_a_wrong_input_gets_its_sentence(
    wrong: Wrong, tmp_path: Path, places: dict[str, Any]
) -> None:
    write(tmp_path, wrong)
    names = {"study": tmp_path / "study.toml", "d": tmp_path, **places}
    done = run([word.format(**names) for word in wrong.command.split()])
    assert done.exit_code == wrong.code, done.output
    said, hint = answer(done.stderr, {"d": tmp_path, **places})
    expected = wrong.said.replace(":{busy}", "{busy}").replace(":{free}", "{free}")
    if expected.endswith("…"):
        said = said[: len(expected) - 1] + "…"
    assert (said, hint) == (expected, wrong.hint)


def test_the_table_is_long_and_says_each_thing_once() -> None:
    assert len(TABLE) >= 100
    assert len({wrong.what for wrong in TABLE}) == len(TABLE)
    for wrong in TABLE:
        # The parser of the command line has no hints, but names the option and what it takes.
        assert wrong.hint or "--help" in wrong.said or re.match(_PARSER, wrong.said), wrong.what


_PARSER = r"Invalid value for|Missing (option|argument)|No such option|no command"


def test_a_delta_near_one_record_in_all_is_warned_of(tmp_path: Path) -> None:
    write(tmp_path, Wrong("", "", changes={"delta = 1e-5": "delta = 0.05"}))
    done = run(["check", str(tmp_path / "study.toml")])
    assert done.exit_code == 0
    assert (
        "warning: privacy.delta is 0.05, not below 1 / data.max_records = 0.05: to publish a record "
        "picked at random would keep such a promise. Choose delta far below, such as 0.001"
    ) in done.stderr


# What no table foresees: any value in the place of any other.


def places_in(raw: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    )
    found = [at] if at else []
    for key, value in inner:
        found += places_in(value, (*at, key))
    return found


RAW = tomllib.loads(STUDY)
VALUES = st.one_of(
    st.none(),  # stands for "taken away"
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["none", "full", "poisson", "scripted", "vips", "a:b", "died ~", "~ age", "1e400"]
    ),
    st.lists(st.integers(-2, 200), max_size=3),
    st.lists(st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(-1, 2), max_size=2),
    st.sampled_from(
        [{"kind": "poisson", "rate": 0.5}, {"kind": "feistel", "batch": 3}, [[]], [{}]]
    ),
)
WORDS = ("kind", "rate", "steps", "rounds", "stages", "floor", "quorum", "damping", "site_effect")


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.sampled_from(places_in(RAW)), VALUES), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from(sorted(RAW)), st.sampled_from(WORDS), VALUES), max_size=1),
)
def test_no_study_ends_in_a_traceback(changes: list[Any], additions: list[Any]) -> None:
    raw = tomllib.loads(STUDY)
    for at, value in changes:
        table = raw
        for key in at[:-1]:
            if not isinstance(table, dict | list) or not _has(table, key):
                break
            table = table[key]
        else:
            if isinstance(table, dict | list) and _has(table, at[-1]):
                if value is None:
                    del table[at[-1]]
                else:
                    table[at[-1]] = value
    for section, key, value in additions:
        if value is not None and isinstance(raw.get(section), dict):
            raw[section][key] = value
    with contextlib.suppress(errors.FedviError):  # and nothing else
        assemble(parse_study(raw))


def _has(table: Any, key: Any) -> bool:
    return key in table if isinstance(table, dict) else isinstance(key, int) and key < len(table)
