"""Small studies whose audits several tests run: each uses code that others do not."""

from pathlib import Path

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


def study(
    name: str = "small",
    *,
    model: str = "linear",
    family: str = 'kind = "full_gaussian"',
    solver: str = 'kind = "site_release"\nclip_norm = 1.0',
    rounds: int = 2,
    epsilon: float = 4.0,
    unit: str = "record",
    relation: str = "substitute",
    accountant: str = "pld",
    privacy_more: str = "",
    max_records: int = 40,
    clients: int = 2,
    model_more: str = "",
    data_more: str = "",
) -> str:
    """Returns the text of a study of ``y ~ x + z`` over clients without files."""
    settings = {k: v for k, v in locals().items() if k != "clients"}
    text = _TEXT.format(**settings) + _COLUMNS + (_LOGISTIC if model == "logistic" else _LINEAR)
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
        privacy_more="",
    ),
}
"""By what each is there for."""
