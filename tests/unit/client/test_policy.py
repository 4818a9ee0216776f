"""The policy: whatever a study asks, a site releases no more than it allows."""

import hashlib

import pytest

from fedvi import errors
from fedvi.client.guard import Guard, Lifetime
from fedvi.client.policy import Policy, Request, load_policy, parse_policy
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.accountants import pld
from fedvi.privacy.events import NOTHING, Gaussian, PoissonSampled, Unprotected, repeat
from fedvi.privacy.sums import Sums
from fedvi.updates.base import Task
from tests.plug_ins import declare

ROUND = Gaussian(30.0)
REQUEST = Request(
    model="logistic",
    solver="dp_optimisation",
    sampler="full",
    mechanism="gaussian",
    accountant="pld",
    relation="substitute",
    view="message",
    unit="record",
    rounds=10,
    planned=repeat(ROUND, 10),
)
RUN = {"epsilon": 1.0, "delta": 1e-5}
LIFE = {"epsilon": 1.0, "delta": 1e-5, "relation": "substitute"}


def policy(run=None, **sections) -> Policy:
    return parse_policy({"run": {**RUN, **(run or {})}, **sections})


def test_a_study_within_every_line_is_allowed():
    policy(
        run={"noise_multiplier": 30.0, "rounds": 10, "steps": 10},
        allow={"models": ["logistic"], "relations": ["substitute"], "views": ["message"]},
    ).check(REQUEST)


@pytest.mark.parametrize(
    ("given", "request_", "expected"),
    [
        ({"run": {"epsilon": 0.5}}, {}, "epsilon 0.76"),
        ({"run": {"noise_multiplier": 30.1}}, {}, "noise_multiplier 30, expected at least 30.1"),
        ({"run": {"rounds": 9}}, {}, "10 rounds, expected at most 9"),
        ({"run": {"steps": 9}}, {}, "10 noised sums, expected at most 9"),
        ({"allow": {"relations": ["add_remove"]}}, {}, "relation 'substitute'"),
        ({"allow": {"views": []}}, {}, "view 'message' is not allowed, expected none at all"),
        ({"allow": {"units": ["patient"]}}, {}, "unit 'record'"),
        ({"allow": {"models": ["linear"]}}, {}, "model 'logistic'"),
        ({"allow": {"solvers": ["glm"]}}, {}, "solver 'dp_optimisation'"),
        ({"allow": {"samplers": ["poisson"]}}, {}, "sampler 'full'"),
        ({"allow": {"mechanisms": []}}, {}, "mechanism 'gaussian'"),
        ({"allow": {"accountants": ["rdp"]}}, {}, "accountant 'pld'"),
        ({}, {"accountant": "fourier"}, "accountant 'fourier' is not allowed"),
        ({}, {"accountant": "mine"}, "accountant 'mine' is not allowed"),
        ({}, {"model": "mine"}, "custom code that is not in"),
        ({}, {"planned": Unprotected("a factor")}, "without protection"),
        ({}, {"planned": PoissonSampled(0.1, PoissonSampled(0.1, ROUND))}, "no price here"),
        ({}, {"planned": Gaussian(0.0)}, "epsilon inf"),
        ({"life": LIFE}, {"unit": "patient"}, "unit 'patient' cannot be charged"),
    ],
)
def test_each_line_refuses_what_exceeds_it(given, request_, expected):
    with pytest.raises(errors.PolicyRefused) as caught:
        policy(**given).check(REQUEST._replace(**request_))
    assert expected in caught.value.message


@pytest.mark.parametrize("allow", [{}, {"trusts_server": True}, {"views": ["message"]}])
def test_a_floor_of_sums_holds_whether_or_not_the_study_is_judged_by_them(allow):
    asked = REQUEST._replace(
        planned=Gaussian(500.0), view="aggregate", sums=Sums(3, colluding=1), mechanism=""
    )
    policy(allow={"least_reporting": 3, **allow}).check(asked)
    with pytest.raises(errors.PolicyRefused, match="sums of 3 sites are not allowed, expected 4"):
        policy(allow={"least_reporting": 4, **allow}).check(asked)


def test_every_violated_line_is_listed():
    with pytest.raises(errors.PolicyRefused) as caught:
        policy(run={"epsilon": 0.5, "rounds": 1}, allow={"models": []}).check(REQUEST)
    for part in ("epsilon", "10 rounds", "model 'logistic'"):
        assert part in caught.value.message


def test_the_site_prices_the_plan_itself_tables_included():
    exact = pld("substitute").epsilon(REQUEST.planned, 1e-5)
    policy(run={"epsilon": exact}).check(REQUEST)
    with pytest.raises(errors.PolicyRefused, match="epsilon"):
        policy(run={"epsilon": exact}).check(REQUEST._replace(table_distance=1e-9))


# Custom code.


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that must not be run by looking at it."""
    path = tmp_path / "site_models.py"
    path.write_text("raise SystemExit('was run')\n")
    points = {"hospital": "site_models:hospital"}
    declare(tmp_path, models=points, solvers=points)
    monkeypatch.syspath_prepend(str(tmp_path))
    return path


def custom(**entry):
    return policy(allow={"custom": [entry]})


def test_custom_code_is_allowed_by_exact_name_and_digest(module):
    digest = hashlib.sha256(module.read_bytes()).hexdigest()
    asked = REQUEST._replace(model="hospital", solver="hospital")
    custom(name="hospital").check(asked)
    custom(name="hospital", sha256=digest).check(asked)
    with pytest.raises(errors.PolicyRefused, match="custom code"):
        custom(name="other").check(asked)
    module.write_text("pass\n")
    with pytest.raises(errors.PolicyRefused, match=f"expected {digest}"):
        custom(name="hospital", sha256=digest).check(asked)


def test_a_digest_of_what_is_not_there_or_no_file_is_refused(tmp_path, monkeypatch):
    declare(tmp_path, models={"absent": "no_such_module_here:f", "inside": "sys:f"})
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("absent", "inside", "not_installed"):
        asked = REQUEST._replace(model=name)
        with pytest.raises(errors.PolicyRefused, match="no file was found"):
            custom(name=name, sha256="0" * 64).check(asked)


# The file.


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({}, "policy.run is missing"),
        ({"run": {"epsilon": 1.0}}, "policy.run.delta is missing"),
        ({"run": {**RUN, "epsilon": 0.0}}, "policy.run.epsilon is 0.0, expected greater than 0"),
        ({"run": {**RUN, "epsilon": "1"}}, "policy.run.epsilon is '1'"),
        ({"run": {**RUN, "epsilon": float("inf")}}, "policy.run.epsilon is inf"),
        ({"run": {**RUN, "epsilom": 1.0}}, "policy.run.epsilom: unknown key"),
        ({"run": {**RUN, "accountant": "fourier"}}, "policy.run.accountant holds 'fourier'"),
        ({"run": RUN, "allow": {"accountants": ["moments"]}}, "holds 'moments'"),
        ({"run": RUN, "allow": {"models": ["logistics"]}}, "holds 'logistics'"),
        ({"run": RUN, "allow": {"custom": [{"name": "x:y"}]}}, "policy.allow.custom.0.name"),
        ({"run": RUN, "life": {"epsilon": 1.0, "delta": 1e-5}}, "policy.life.relation is missing"),
    ],
)
def test_a_policy_that_says_what_it_cannot_mean_is_refused(raw, expected):
    with pytest.raises(errors.ConfigError) as caught:
        parse_policy(raw)
    assert expected in caught.value.message
    assert caught.value.hint


def test_all_that_is_wrong_with_a_policy_is_named_at_once_with_its_lines(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(
        "[run]\nepsilom = 1.0\ndelta = 0.7\n"
        '[allow]\nunits = "record"\nmodels = ["linear", "logistics", "lineal"]\n'
        '[[allow.custom]]\nname = "x:y"\n'
    )
    with pytest.raises(errors.ConfigError) as caught:
        load_policy(path)
    assert {one.message for one in caught.value.each} == {
        "policy.run.epsilom: unknown key (line 2)",
        "policy.run.delta is 0.7, expected less than 0.5 (line 3)",
        "policy.allow.units is 'record', expected a list (line 5)",
        "policy.allow.models holds 'logistics', which is no built-in (line 6)",
        "policy.allow.models holds 'lineal', which is no built-in (line 6)",
        "policy.allow.custom.0.name is 'x:y', expected the name of an installed plug-in (line 8)",
    }
    assert all(one.hint for one in caught.value.each)


def test_a_policy_is_read_from_its_file(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text('[run]\nepsilon = 1.0\ndelta = 1e-5\n[allow]\nmodels = ["linear"]\n')
    assert load_policy(path).allow.models == ["linear"]
    for content in (b"[run", b"\xff"):
        path.write_bytes(content)
        with pytest.raises(errors.ConfigError, match="not valid TOML"):
            load_policy(path)
    with pytest.raises(errors.ConfigError, match="cannot read"):
        load_policy(tmp_path / "none.toml")


# For life.


def task(number):
    return Task(f"north/{number}", "north", number, 0, None, None, 1.0)


class Kept:
    """A ledger for life in memory."""

    place = "memory"

    def __init__(self, ledger):
        self.ledger = ledger

    def extended(self, extend):
        self.ledger = extend(self.ledger)
        return self.ledger


def lifetime(site_policy, **header):
    opened = ledgers.open_ledger(site_policy.lifetime_header()._replace(**header))
    return Lifetime(site_policy, Kept(opened))


def test_the_lifetime_outlasts_studies_and_refuses_what_exceeds_it():
    site = policy(life=LIFE)
    life = lifetime(site)
    admitted = 0
    with pytest.raises(errors.BudgetExceeded, match="cap of 'this site'"):  # noqa: PT012
        for study in range(10):
            guard = Guard(site, REQUEST, f"study {study}", life)
            for number in range(10):
                guard.admit(task(number), ROUND, repeat(ROUND, number))
                admitted += 1
    assert admitted > 10
    assert ledgers.reservations(life.ledger) == admitted
    assert life.spend().epsilon <= 1.0
    ledgers.verify(life.ledger)


def test_a_crash_between_both_ledgers_counts_too_often_never_too_seldom():
    site = policy(life=LIFE)
    life = lifetime(site)
    guard = Guard(site, REQUEST, "study", life)
    for attempt in range(1, 4):  # the study's own ledger never heard of the first two
        guard.admit(task(0), ROUND, NOTHING)
        assert ledgers.spent(life.ledger) == repeat(ROUND, attempt)


def test_nothing_is_admitted_that_could_not_be_stored():
    class Full(Kept):
        def extended(self, extend):
            raise OSError("disk full")

    site = policy(life=LIFE)
    guard = Guard(site, REQUEST, "study", Lifetime(site, Full(lifetime(site).ledger)))
    with pytest.raises(OSError, match="disk full"):
        guard.admit(task(0), ROUND, NOTHING)


def test_a_release_that_was_not_planned_is_refused():
    site = policy()
    guard = Guard(site, REQUEST, "study")
    guard.admit(task(0), ROUND, NOTHING)
    for event in (Gaussian(20.0), repeat(ROUND, 11), Unprotected("a factor")):
        with pytest.raises(errors.PolicyRefused, match="goes beyond the plan"):
            guard.admit(task(0), event, NOTHING)


def test_the_plan_that_was_checked_is_all_that_is_admitted_whatever_the_study_s_budget():
    guard = Guard(policy(), REQUEST, "study")
    for number in range(10):
        guard.admit(task(number), ROUND, repeat(ROUND, number))
    with pytest.raises(errors.PolicyRefused, match="goes beyond the plan"):
        guard.admit(task(10), ROUND, repeat(ROUND, 10))


OPEN = REQUEST._replace(
    planned=repeat(Unprotected("a factor"), 10),
    sampler="",
    mechanism="",
    accountant="",
)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "allow.unprotected is not true"),
        ({"allow": {"unprotected": True}}, None),
        # What else the policy says holds all the same.
        ({"allow": {"unprotected": True}, "run": {"rounds": 9}}, "10 rounds, expected at most 9"),
        (
            {"allow": {"unprotected": True}, "run": {"noise_multiplier": 0.1}},
            "expected at least 0.1",
        ),
        ({"allow": {"unprotected": True, "models": []}}, "model 'logistic' is not allowed"),
        ({"allow": {"unprotected": True}, "life": LIFE}, "cannot be charged to the lifetime"),
    ],
)
def test_an_open_study_is_allowed_by_name_alone_and_never_beside_a_cap_for_life(given, words):
    if words is None:
        policy(**given).check(OPEN)
        return
    with pytest.raises(errors.PolicyRefused, match=words):
        policy(**given).check(OPEN)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "allow.unprotected is not true"),
        ({"allow": {"unprotected": True}}, None),
        (
            {"allow": {"unprotected": True}, "run": {"noise_multiplier": 0.1}},
            "noise_multiplier 0, expected at least 0.1",
        ),
        ({"allow": {"unprotected": True}, "life": LIFE}, "cannot be charged to the lifetime"),
    ],
)
def test_noise_of_an_open_study_has_no_price_since_it_follows_from_the_seed(given, words):
    noised = REQUEST._replace(unprotected=True)
    if words is None:
        policy(**given).check(noised)
        return
    with pytest.raises(errors.PolicyRefused, match=words):
        policy(**given).check(noised)


@pytest.mark.parametrize("allow", ["unprotected", "simulated_noise"])
def test_one_permission_is_not_the_other(allow):
    asked = {"unprotected": REQUEST._replace(simulated=True), "simulated_noise": OPEN}
    with pytest.raises(errors.PolicyRefused):
        policy(allow={allow: True}).check(asked[allow])


def test_noise_that_guarantees_nothing_is_refused_unless_it_is_allowed():
    simulated = REQUEST._replace(simulated=True)
    with pytest.raises(errors.PolicyRefused, match="simulated_noise is not true"):
        policy().check(simulated)
    policy(allow={"simulated_noise": True}).check(simulated)


@pytest.mark.parametrize("what", ["family", "schedule"])
def test_a_family_and_a_schedule_of_the_study_s_own_are_custom_code_too(what):
    own = REQUEST._replace(**{what: "mine"})
    with pytest.raises(errors.PolicyRefused, match=f"{what} 'mine' is custom code"):
        policy().check(own)
    policy(allow={"custom": [{"name": "mine"}]}).check(own)


def test_tables_are_charged_for_life():
    site = policy(life=LIFE)
    with pytest.raises(errors.PolicyRefused, match="ledger for life charges"):
        Guard(site, REQUEST._replace(table_distance=1e-15), "study", lifetime(site))
    coarse = lifetime(site, table_distance=2e-9)
    coarse.admit("study/0", ROUND)
    with pytest.raises(errors.BudgetExceeded, match="tables"):
        coarse.admit("study/1", ROUND)
    # e^ε of such a cap is no float.
    wide = policy(life=LIFE | {"epsilon": 800.0})
    lifetime(wide).admit("study/0", ROUND)
    with pytest.raises(errors.BudgetExceeded, match="tables"):
        lifetime(wide, table_distance=1e-20).admit("study/0", ROUND)


def test_a_lifetime_needs_its_own_ledger():
    site = policy(life=LIFE)
    with pytest.raises(errors.ConfigError, match="no ledger for life"):
        Guard(site, REQUEST, "study")
    with pytest.raises(errors.ConfigError, match=r"no section \[life\]"):
        policy().lifetime_header()
    of_a_study = {"study_digest": "ab12", "epsilon": None, "delta": None}
    for change in ({"unit": "patient"}, {"relation": "add_remove"}, of_a_study):
        with pytest.raises(errors.LedgerError, match="expected 'lifetime'"):
            lifetime(site, **change)
