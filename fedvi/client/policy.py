"""Reads a site's policy, and checks studies against its caps and conditions.

A policy is a file of the site's own (TOML). It is checked twice: `Policy.check` once, before a study
is built or a record is read, and `Guard.admit` before each release, against the ledger for life.

    [run]                        # each study by itself
    epsilon = 1.0
    delta = 1e-5
    noise_multiplier = 0.8       # the smallest that is allowed
    rounds = 100
    steps = 100000               # noised sums

    [life]                       # all studies together
    site = "north hospital"
    epsilon = 4.0
    delta = 1e-5
    unit = "record"
    relation = "substitute"

    [allow]                      # a key that is left out allows every built-in
    relations = ["substitute"]
    views = ["message"]
    units = ["record", "patient"]
    models = ["logistic", "linear"]

    unprotected = false          # studies of protection = "none"; never beside [life]
    simulated_noise = false      # float or seeded noise, which guarantees nothing
    trusts_server = false        # whether a study of view "aggregate" is priced by its sums over sites
    roster = "…"                 # the only sites to mask answers with; masked studies are priced by sums
    least_reporting = 6          # how many answers a published sum must hold

    [[allow.custom]]             # code from elsewhere: an installed plug-in, by its exact name
    name = "hospital"
    sha256 = "…"                 # of the module's file; may be left out
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pydantic

from fedvi import errors, expfam, models, plugins
from fedvi.data.line_numbers import with_lines
from fedvi.federation import schedules
from fedvi.inference import solvers
from fedvi.privacy import accountants, mechanisms, sampling
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.delta_parts import noised_releases, smallest_noise, with_tables
from fedvi.privacy.events import RELATIONS, Event, Relation, Unprotected, counts
from fedvi.privacy.filter import RdpFilter, rdp_filter
from fedvi.privacy.sums import Sums, in_sum, with_sums

__all__ = ["Policy", "Request", "load_policy", "parse_policy"]


class Request(NamedTuple):
    """What a study asks of a site, as plain values; made from the study file, not from server messages.

    Args:
      model, family, schedule, solver, sampler, mechanism, accountant: kinds, built-in or of a plug-in;
        the sampler, mechanism or accountant is empty where the study has none.
      relation, view, unit: of the claim.
      rounds: the largest number of answers.
      planned: the event of all of them, as messages.
      sums: the sizes of sums under the view "aggregate"; None under the view "message".
      secure: whether answers are masked, so that the server sees only sums.
      table_distance: distance of one release's noise from its exact distribution.
      simulated: whether noise is drawn in floating point or from a known seed, which guarantees nothing.
      unprotected: whether the study has protection = "none"; its noise, if any, follows from its seed.
    """

    model: str
    solver: str
    sampler: str
    mechanism: str
    accountant: str
    relation: Relation
    view: str
    unit: str
    rounds: int
    planned: Event
    table_distance: float = 0.0
    simulated: bool = False
    unprotected: bool = False
    family: str = "full_gaussian"
    schedule: str = "synchronous"
    sums: Sums | None = None
    secure: bool = False


class _Section(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False
    )


def _named(kind: str) -> pydantic.AfterValidator:
    """Returns what refuses a name that is no built-in of a kind.

    Neither historical accountants nor those of plug-ins are: budgets need certified bounds.
    """

    def check(value: str) -> str:
        if value not in _BUILT_IN[kind]:
            hint = errors.did_you_mean(value, _BUILT_IN[kind])
            if kind not in ("accountants", "relations"):
                hint += "; code from elsewhere is allowed by [[allow.custom]]"
            raise ValueError(hint)
        return value

    return pydantic.AfterValidator(check)


class _Run(_Section):
    """``[run]``: caps on one study, priced by the site's own ``accountant``."""

    epsilon: float = pydantic.Field(gt=0.0, description="Largest privacy loss of one study.")
    delta: float = pydantic.Field(gt=0.0, lt=0.5, description="At which epsilon is priced.")
    accountant: Annotated[str, _named("accountants")] = pydantic.Field(
        default="pld", description="What this site prices studies with, whatever they say."
    )
    noise_multiplier: float | None = pydantic.Field(
        default=None, gt=0.0, description="The smallest that is allowed."
    )
    rounds: int | None = pydantic.Field(
        default=None, ge=1, description="Largest number of answers of this site."
    )
    steps: int | None = pydantic.Field(
        default=None, ge=1, description="Largest number of noised sums."
    )


class _Life(_Section):
    """``[life]``: the cap on all studies together, for one unit and relation.

    ``site`` is the site's name in its ledger for life; studies may use another name.
    """

    site: str = pydantic.Field(
        default="this site", min_length=1, description="Its name in its ledger for life."
    )
    epsilon: float = pydantic.Field(
        gt=0.0, description="Largest privacy loss over all studies together."
    )
    delta: float = pydantic.Field(gt=0.0, lt=0.5, description="At which it is priced.")
    unit: str = pydantic.Field(
        default="record", min_length=1, description="What is protected over all studies."
    )
    relation: Relation = pydantic.Field(description="What a neighbour is, over all studies.")


class _Custom(_Section):
    """``[[allow.custom]]``: a plug-in, by the exact name of its entry point."""

    name: str = pydantic.Field(
        pattern=r"^[^:\s]+$", description="Of the plug-in's entry point, such as hospital."
    )
    sha256: str | None = pydantic.Field(
        default=None, pattern=r"^[0-9a-f]{64}$", description="Of the module's file."
    )


class _Allow(_Section):
    """``[allow]``: what may be used; a list that is left out allows every built-in of its kind.

    The exception is the unit "client", whose price may say nothing about a record: a site must list it.
    """

    relations: list[Relation] | None = None
    views: list[Annotated[str, _named("views")]] | None = None
    units: list[Annotated[str, _named("units")]] | None = None
    models: list[Annotated[str, _named("models")]] | None = None
    solvers: list[Annotated[str, _named("solvers")]] | None = None
    samplers: list[Annotated[str, _named("samplers")]] | None = None
    mechanisms: list[Annotated[str, _named("mechanisms")]] | None = None
    accountants: list[Annotated[str, _named("accountants")]] | None = None
    custom: list[_Custom] = pydantic.Field(default=[], description="Code from outside fedvi.")
    unprotected: bool = pydantic.Field(
        default=False,
        description='Whether studies of protection = "none" are allowed, which send exact statistics.',
    )
    simulated_noise: bool = pydantic.Field(
        default=False, description="Whether noise that guarantees nothing is allowed."
    )
    trusts_server: bool = pydantic.Field(
        default=False, description="Whether the server is trusted to publish sums over sites alone."
    )
    roster: str | None = pydantic.Field(
        default=None,
        pattern=r"^[0-9a-f]{64}$",
        description="Digest of the sites with whom alone this one masks its answers.",
    )
    least_reporting: int | None = pydantic.Field(
        default=None,
        ge=2,
        description="The smallest number of sites whose answers may be published as one sum.",
    )


_VIEWS = ("message", "aggregate")

_UNITS = ("record", "patient", "client")

# An ε for the unit "client" may say nothing about a record, so a site must list "client" itself.
_UNITS_LEFT_OUT = ("record", "patient")

_BUILT_IN: dict[str, tuple[str, ...]] = {
    "relations": RELATIONS,
    "views": _VIEWS,
    "units": _UNITS,
    # A user's NumPyro function is a kind of its own; its wrapper `numpyro_model` is not one.
    "models": (*models.NAMED, *models.FUNCTIONS),
    "solvers": tuple(solvers.__all__),
    "samplers": tuple(sampling.__all__),
    "mechanisms": tuple(mechanisms.__all__),
    "accountants": tuple(accountants.__all__),
    "families": tuple(expfam.__all__),
    "schedules": (*schedules.__all__, "scripted"),
}


class Policy(_Section):
    """What a site allows; from ``load_policy`` or ``parse_policy``."""

    run: _Run
    life: _Life | None = None
    allow: _Allow = _Allow()

    @property
    def code(self) -> dict[str, str | None]:
        """The plug-ins that the policy allows → the SHA-256 of their module's file, or None."""
        return {entry.name: entry.sha256 for entry in self.allow.custom}

    def check(self, request: Request) -> None:
        """Refuses a study that exceeds any line of the policy; reads no data, runs no custom code.

        Call ``check_code`` first: the plan in ``request`` needs a built study, and building imports code.

        Raises:
          PolicyRefused: lists every violated line, with what was asked and what is allowed.
        """
        found = [*self._kinds(request), *self._caps(request)]
        if found:
            raise errors.PolicyRefused(
                f"the policy of this site refuses the study: {'; '.join(found)}",
                hint="change the study, or let whoever owns the data change the policy",
            )

    def check_code(self, kinds: Mapping[str, str]) -> None:
        """Refuses code from outside fedvi that is not on the allow-list; runs none of it.

        Call it before a study is built: building imports the code that a study names. A digest covers
        only the module's file. It covers neither the file's imports nor a compiled copy placed beside it
        by somebody who can write there.

        Args:
          kinds: section of the study → the plug-in, or part from Python, that it names; built-in kinds are
            left to ``check``.

        Raises:
          PolicyRefused: names each section and function.
        """
        found = [line for what, name in kinds.items() for line in self._custom(what, name)]
        if found:
            raise errors.PolicyRefused(
                f"the policy of this site refuses the study: {'; '.join(found)}",
                hint="look at that code, then add it to [[allow.custom]] with its SHA-256",
            )

    def lifetime_filter(self) -> RdpFilter:
        """Returns the filter for ``[life]``; a part of δ is reserved for the tables of noise.

        Raises:
          ConfigError: the policy has no section [life].
        """
        life = self._life()
        return rdp_filter(life.epsilon, life.delta * (1 - ledgers.TABLES_SHARE), life.relation)

    def lifetime_header(self, table_distance: float = 0.0) -> ledgers.Header:
        """Returns the header of the ledger for life.

        Args:
          table_distance: the largest ``table_distance`` of any study to be charged to it.

        Raises:
          ConfigError: the policy has no section [life].
        """
        life = self._life()
        return ledgers.lifetime_header(
            life.site,
            life.unit,
            life.relation,
            table_distance,
            epsilon=life.epsilon,
            delta=life.delta,
        )

    def _life(self) -> _Life:
        if self.life is None:
            raise errors.ConfigError(
                "the policy has no section [life]", "add epsilon, delta and relation for life"
            )
        return self.life

    def _kinds(self, request: Request) -> Iterable[str]:
        if request.simulated and not self.allow.simulated_noise:
            yield (
                "noise is drawn in floating point or from a known seed, which guarantees nothing, "
                "and allow.simulated_noise is not true"
            )
        for what, key in (("family", "families"), ("schedule", "schedules")):
            if getattr(request, what) not in _BUILT_IN[key]:
                yield from self._custom(what, getattr(request, what))
        asked = {
            "relations": request.relation,
            # A site that does not trust the server judges single messages, whatever the study promises.
            "views": request.view if self._sums_of(request) else "message",
            "units": request.unit,
            "models": request.model,
            "solvers": request.solver,
            "samplers": request.sampler,
            "mechanisms": request.mechanism,
            "accountants": request.accountant,
        }
        for field, value in asked.items():
            if not value:
                continue
            own = ("relations", "views", "units", "accountants")
            if field not in own and value not in _BUILT_IN[field]:
                yield from self._custom(field.removesuffix("s"), value)
                continue
            allowed = getattr(self.allow, field)
            if allowed is None:
                allowed = _UNITS_LEFT_OUT if field == "units" else _BUILT_IN[field]
            if value not in allowed:
                yield (
                    f"{field.removesuffix('s')} {value!r} is not allowed, expected "
                    f"{' or '.join(map(repr, allowed)) or 'none at all'}"
                    f"{self._why_single(request) if field == 'views' else ''}"
                )

        # This holds even if the study is judged by single messages, since its sums are published.
        floor, sums = self.allow.least_reporting, request.sums
        if floor is not None and sums is not None and sums.least_reporting < floor:
            yield (
                f"sums of {sums.least_reporting} sites are not allowed, expected {floor} or more"
            )

    def _sums_of(self, request: Request) -> Sums | None:
        """Returns the sums that a study is judged by; None if it is judged by single messages."""
        views = self.allow.views
        masked = request.secure and self.allow.roster is not None
        trusted = self.allow.trusts_server or masked
        return request.sums if trusted and (views is None or "aggregate" in views) else None

    def _why_single(self, request: Request) -> str:
        """Says why a study of sums is judged by single messages; empty if it is not."""
        if request.sums is None or self._sums_of(request) is not None:
            return ""
        if request.secure:
            return (
                ", for single messages: masks count where allow.roster names the sites that mask their "
                'answers, with "aggregate" among allow.views'
            )
        return (
            ", for single messages: the server is not trusted, since allow.trusts_server is not true "
            'with "aggregate" among allow.views'
        )

    def _custom(self, what: str, name: str) -> Iterable[str]:
        entry = next((entry for entry in self.allow.custom if entry.name == name), None)
        if entry is None:
            yield f"{what} {name!r} is custom code that is not in [[allow.custom]]"
        elif entry.sha256 is not None:
            plug_in = plugins.installed(what, name)
            found = None if plug_in is None else plugins.source_digest(plug_in.module)
            if found != entry.sha256:
                yield (
                    f"{what} {name!r} has SHA-256 {found or 'unknown: no file was found'}, expected "
                    f"{entry.sha256}"
                )

    def _caps(self, request: Request) -> Iterable[str]:
        run = self.run
        unprotected = request.unprotected or any(
            isinstance(atom, Unprotected) for atom in counts(request.planned)
        )
        if unprotected and not self.allow.unprotected:
            yield "the study releases without protection, and allow.unprotected is not true"
            return
        if run.rounds is not None and request.rounds > run.rounds:
            yield f"{request.rounds} rounds, expected at most {run.rounds}"
        steps = noised_releases(request.planned)
        if run.steps is not None and steps > run.steps:
            yield f"{steps} noised sums, expected at most {run.steps}"
        sums = self._sums_of(request)
        priced = request.planned if sums is None else in_sum(request.planned, sums.honest)
        noise = 0.0 if unprotected else smallest_noise(priced)
        if run.noise_multiplier is not None and noise < run.noise_multiplier:
            yield f"noise_multiplier {noise:g}, expected at least {run.noise_multiplier:g}"
        # Exact statistics have no price, so that no cap for life could hold beside them.
        if not unprotected:
            yield from self._price(request)
        elif self.life is not None:
            yield "releases without protection cannot be charged to the lifetime"
        if self.life is not None and request.unit != self.life.unit:
            yield (
                f"unit {request.unit!r} cannot be charged to the lifetime of unit "
                f"{self.life.unit!r}"
            )

    def _price(self, request: Request) -> Iterable[str]:
        """Prices the plan with the site's own accountant, not by the study's statement."""
        run = self.run
        sums = self._sums_of(request)
        priced = with_sums(getattr(accountants, run.accountant)(request.relation), sums)
        accountant = with_tables(priced, request.table_distance)
        try:
            epsilon = accountant.epsilon(request.planned, run.delta)
        except errors.PrivacyError as error:
            yield f"the plan has no price here: {error.message}"
            return
        if epsilon > run.epsilon:
            # Where single messages are refused as such, that line has said why they are judged.
            views, why = self.allow.views, self._why_single(request)
            seen = why if views is None or "message" in views else why.partition(":")[0]
            yield (
                f"epsilon {epsilon:.6g} at delta {run.delta:g} ({accountant.name}, "
                f"{request.relation}), expected at most {run.epsilon:g}{seen}"
            )


def load_policy(path: Path) -> Policy:
    """Reads and validates a policy file.

    Raises:
      ConfigError: names the line, the key, the value found and the value expected; or all of them.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        raw = tomllib.loads(text)
    except OSError as error:
        raise errors.ConfigError(
            f"cannot read the policy {path}: {error.strerror}", "give the path of a .toml file"
        ) from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or nested too deeply
        raise errors.ConfigError(
            f"{path} is not valid TOML: {error}",
            "sections are written [section], keys are written key = value and stand once, "
            'texts "in quotes"',
        ) from None
    try:
        return parse_policy(raw)
    except errors.ConfigError as error:
        raise with_lines(error, text, "policy.") from None


def parse_policy(raw: dict[str, Any]) -> Policy:
    """Validates the tables of a policy.

    Raises:
      ConfigError: names the key, the value found and the value expected; or all of these errors.

    >>> parse_policy({"run": {"epsilon": 1.0, "delta": 1e-5}}).run.accountant
    'pld'
    """
    try:
        return Policy.model_validate(raw)
    except pydantic.ValidationError as failure:
        raise errors.as_one(map(_explain, errors.worth_telling(failure.errors()))) from None


def _explain(problem: Any) -> errors.ConfigError:
    """Turns one of the validator's problems into our error."""
    location, kind = problem["loc"], problem["type"]
    path = "policy." + ".".join(str(part) for part in location)
    if kind == "extra_forbidden":
        hint = errors.did_you_mean(str(location[-1]), _known_keys(location[:-1]))
        return errors.ConfigError(f"{path}: unknown key", hint)
    if kind == "missing":
        add = f"add `{location[-1]} = …`"
        if location == ("run",):
            add = "add a section [run] with epsilon and delta, the caps on each study"
        return errors.ConfigError(f"{path} is missing", add)
    if kind == "value_error":
        field = path.rstrip("0123456789").removesuffix(".")
        hint = str(problem["ctx"]["error"])
        return errors.ConfigError(
            f"{field} holds {problem['input']!r:.100}, which is no built-in", hint
        )
    expected, hint = _SHAPES.get(kind, (errors.in_words(problem["msg"]), ""))
    if kind == "string_pattern_mismatch":
        if location[-1] == "name":
            expected = "the name of an installed plug-in"
            hint = "code has no address of module:function in any file; see docs/add/plug-in.md"
        else:
            expected = "64 digits 0-9 and a-f"
    hint = hint or "write numbers without quotes, and texts in quotes"
    return errors.ConfigError(f"{path} is {problem['input']!r:.100}, expected {expected}", hint)


_SHAPES = {
    "list_type": ("a list", 'write a list in brackets: ["record"]'),
    "model_type": (
        "a table",
        "write [section] on a line of its own, and its keys on the lines below",
    ),
}


def _known_keys(location: tuple[Any, ...]) -> list[str]:
    sections: dict[tuple[Any, ...], type[_Section]] = {
        (): Policy,
        ("run",): _Run,
        ("life",): _Life,
        ("allow",): _Allow,
    }
    return list(sections.get(location, _Custom).model_fields)
