"""Small studies whose audits several tests run: each uses code that others do not."""

from pathlib import Path
from typing import Any

__all__ = ["STUDIES", "study", "written"]

_COLUMNS = """
[data.schema]
x = { type = "number", bounds = [-2, 2], center = 0, scale = 1 }
z = { type = "level", levels = ["a", "b", "rare"] }
"""

_LINEAR = 'y = { type = "number", bounds = [-3, 3], center = 0, scale = 1 }\n'
_LOGISTIC = 'y = { type = "binary" }\n'

_TEXT = """
[study]
name = "{name}"
seed = 1
[model]
kind = "{model}"
formula = "y ~ x + z"
{model_more}
[family]
{family}
[solver]
{solver}
[schedule]
kind = "synchronous"
rounds = {rounds}
[privacy]
epsilon = {epsilon}
delta = 1e-5
unit = "{unit}"
relation = "{relation}"
accountant = "{accountant}"
disjoint = true
{privacy_more}
[data]
max_records = {max_records}
{data_more}
"""


_USUAL: dict[str, Any] = {
    "name": "small",
    "model": "linear",
    "family": 'kind = "full_gaussian"',
    "solver": 'kind = "site_release"\nclip_norm = 1.0',
    "rounds": 2,
    "epsilon": 4.0,
    "unit": "record",
    "relation": "substitute",
    "accountant": "pld",
    "privacy_more": "",
    "max_records": 40,
    "model_more": "",
    "data_more": "",
}


def study(clients: int = 2, **changed: Any) -> str:
    """Returns the text of a study of ``y ~ x + z``, as ``_USUAL`` but for what is ``changed``."""
    assert changed.keys() <= _USUAL.keys(), changed
    settings = _USUAL | changed
    text = _TEXT.format(**settings) + _COLUMNS
    text += _LOGISTIC if settings["model"] == "logistic" else _LINEAR
    return text + "".join(f'[[clients]]\nname = "c{index}"\n' for index in range(clients))


def written(folder: Path, text: str) -> Path:
    """Writes a study into a folder."""
    path = folder / "study.toml"
    path.write_text(text)
    return path


_DESCENT = 'kind = "dp_optimisation"\nsteps = 5\ndraws = 2'

STUDIES = {
    "site_release": study(),
    "surveyed": study(
        model="logistic", solver='kind = "site_release"', rounds=8, epsilon=8.0, max_records=4000
    ),
    "aggregate": study(
        clients=5,
        privacy_more='view = "aggregate"\nleast_reporting = 4\ncolluding = 1',
    ),
    "poisson": study(
        model="logistic",
        solver=_DESCENT + '\nnoise_multiplier = 3.0\nsampler = { kind = "poisson", rate = 0.2 }',
        relation="add_remove",
        rounds=3,
    ),
    "rdp": study(solver=_DESCENT, accountant="rdp"),
    "fixed size": study(solver=_DESCENT + '\nsampler = { kind = "feistel", batch = 10 }'),
    "low rank": study(
        model="logistic",
        family='kind = "low_rank_gaussian"\nrank = 2',
        solver=_DESCENT,
    ),
    "vips": study(model="logistic", solver='kind = "vips"\nclip_norm = 1.0'),
    "parts": study(
        solver='kind = "virtual_clients"\nparts = 4\nsteps = 20',
        data_more='id_column = "id"',
        epsilon=8.0,
    ),
    "in blocks": study(max_records=200_000),
    "client": study(
        solver='kind = "perturbed_update"\nsteps = 20',
        unit="client",
        epsilon=8.0,
    ),
}
"""By what each is there for."""
