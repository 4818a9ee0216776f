"""Which private mode suits a study, and whether its signal would drown; come here to change the advice.

Reads no data: everything follows from public numbers. What is said is an estimate, not a promise.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.experiment import factories
from fedvi.experiment.build import Assembly
from fedvi.experiment.config import KindSection
from fedvi.expfam.gaussian import DiagonalGaussian, FullGaussian
from fedvi.inference import solvers as solver_kinds
from fedvi.inference.prior_frame import prior_frame
from fedvi.inference.units import unit_model
from fedvi.models.glm import GeneralisedLinearModel
from fedvi.privacy import calibrate, events, mechanisms, sampling

__all__ = ["Mode", "Outlook", "PublicNumbers", "Signal", "outlook", "signal", "suggested_clip_norm"]

_TYPICAL_CURVATURE = 0.1
"""p(1 − p) of a yes or no is ¼ at most, and about this where a regression tells them apart."""

# The spread of an average over T rounds in which round t weighs about t²: 9/5 that of equal weights.
_EMPHASIS = 9.0 / 5.0
# A clip norm at the typical length of a gradient shortens half of them, which biases what they say.
_ROOM = 2.0
# A mode is recommended instead of the study's own only if it is better by this factor.
_CLEARLY = 1.1
# `site_release` is recommended before a mode of a ratio up to this part higher.
_SLOWER = 0.5
# So many rounds are enough for steps shortened by noise.
_ROUNDS = 20
# Below this share of the way to the answer, a plan is said to have too few rounds.
_SHORT_OF_ROUNDS = 0.5


class PublicNumbers(NamedTuple):
    """What a signal-to-noise ratio is estimated from; nothing else of a study matters to it.

    Attributes:
      coefficients: D, the number of θ's coordinates.
      records: N, the declared largest number of records (or units) of a client.
      clients: M.
      rounds: T.
      prior_sd: s₀, the median of the prior's sds.
      curvature: w, what a record tells of a coefficient whose column has variance 1, as a precision:
        1/σ² of a linear model, ¼ at most of a logistic one.
      correlated: whether q is a full Gaussian, of which D(D+1)/2 curvatures leave instead of D.
    """

    coefficients: int
    records: int
    clients: int
    rounds: int
    prior_sd: float = 1.0
    curvature: float = _TYPICAL_CURVATURE
    correlated: bool = True


class Signal(NamedTuple):
    """How far the signal stands out of the noise; about 1 is where it drowns.

    Attributes:
      coefficients: the prior's sd of a coefficient ÷ the sd that noise leaves on it.
      curvature: what the records tell of a direction's precision ÷ what noise looks like there.
      travelled: the share of the way from the prior to the answer that the rounds allow, in (0, 1].
    """

    coefficients: float
    curvature: float
    travelled: float


class Mode(NamedTuple):
    """One way to run the study for the same promise.

    Attributes:
      solver: its kind.
      current: whether the study is written so.
      noise_multiplier: that the promise asks for; None if the mode is not offered.
      clip_norm: the study's, or the one to try; None if the mode is not offered.
      signal: None if the mode is not offered, or nothing is known of it.
      summed: ``signal.coefficients`` if only the sum of the clients' answers were seen; None where
        noise may not be shared (``fedvi.privacy.views``).
      note: why it is not offered, or what it needs besides; or empty.
    """

    solver: str
    current: bool
    noise_multiplier: float | None
    clip_norm: float | None
    signal: Signal | None
    summed: float | None
    note: str


@dataclasses.dataclass(frozen=True)
class Outlook:
    """What `fedvi check` and `fedvi privacy` say about a private study's modes.

    Attributes:
      numbers: what all of it is estimated from.
      modes: the private solvers, in alphabetical order.
      recommended: one of them; None if none has a ratio.
      reason: why, in a sentence or two.
      warnings: what drowns in the study as it is written; empty if nothing does.
    """

    numbers: PublicNumbers
    modes: tuple[Mode, ...]
    recommended: str | None
    reason: str
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        plain = dataclasses.asdict(self)
        plain["numbers"] = self.numbers._asdict()
        plain["modes"] = [
            mode._asdict() | {"signal": mode.signal and mode.signal._asdict()}
            for mode in self.modes
        ]
        plain["warnings"] = list(self.warnings)
        return plain


def signal(
    kind: str,
    numbers: PublicNumbers,
    noise_multiplier: float,
    clip_norm: float,
    rate: float = 1.0,
    **settings: Any,
) -> Signal:
    """Estimates signal-to-noise ratios of a private mode, P/n, from public numbers.

    What is assumed: columns that are standardised and hardly correlated, so that a record adds w to
    the precision of each coefficient (``PublicNumbers``) and has a gradient of length √(w·D), the
    root of the trace of its Fisher information; as many records at every client as declared. Fewer
    records, and columns that go together, drown sooner. What clipping biases is not counted. Nothing
    here is a bound.

    In the prior's coordinates (θ in its sds) the prior's precision is 1. All records add M·p to it,
    p = s₀²·N·w. Of that, P is left after clipping and in T rounds; n is the sd of the noise on the
    same numbers, of h in a coordinate. So n / P is the sd, in the prior's sds, that noise leaves on
    a coefficient where P is large, and where P/n < 1 the prior says more than the release does. The
    noise on a precision, seen as a matrix, has eigenvalues up to about its sd × √(2D) (Wigner's
    semicircle), × 1 for a diagonal; the ratio of curvatures is P to that.

    - `site_release`: a record's (g, c·H) has a length of √(wD + c²w²D²), so that
      a = min(1, C / that) of it is kept. The sum over M sites has noise of z·C·√M / rate in a
      round, z the noise multiplier, and its average over T rounds (9/5)/T times the variance.
      P = a·M·p·f, n = s₀·z·C·√(9M/5T) / rate, that of the curvature s₀·n / c. The floor κ shortens a
      step to P₁ / (P₁ + κ·s₀·√D·n₁), P₁ = 1 + a·M·p and n₁ the noise of one round; f is how far T
      such steps come, on the same average. With μ-Gaussian privacy z = k·√T / μ, so that
      n = (k/μ)·s₀·C·√(9M/5): rounds cost nothing but time.
    - `dp_optimisation`: a client's climb must find its own way, P = a·p, a = min(1, C / √(wD)); the
      answers are averaged within a visit, over S steps: n = s₀·z·C / (rate·√S), and z pays for all
      S·T. On the log-scales noise is n / s₀, and their signal stands in D of D(D+1)/2 numbers.
    - changes, clipped whole: the change that a client's records ask for is √(2D)·p long, in h and
      J together. In T visits T·C of it passes, so P = M·p·f with f = min(1, T·C·G / (√(2D)·p)),
      where G is the number of parts that are clipped one by one and added up: K for
      `virtual_clients`, α for `perturbed_update`, 1 for `local_averaging`. Noise adds up from visit
      to visit: n = z·C·√(T·M)·W, W being α for `perturbed_update`, 1 / K for `local_averaging`
      and 1 for `virtual_clients`; the entries of J have the same noise. The mean is J⁻¹h, so that
      coefficients stand out no more than curvatures do: both ratios are that of the curvature.

    Args:
      kind: of the solver.
      numbers: what is public of the study.
      noise_multiplier: z.
      clip_norm: C.
      rate: of the sampler.
      settings: of the solver, such as ``steps``, ``parts``, ``floor`` or ``alpha``; those left out
        have its defaults.

    Raises:
      ConfigError: nothing is known of such a solver.

    Source: specs/pvi.md §2 and its amendments; the docstrings of the solvers and of ``noise_aware``.

    >>> adult = PublicNumbers(coefficients=108, records=2_442, clients=10, rounds=50)
    >>> found = signal("site_release", adult, 52.78, 2.0)
    >>> found.coefficients > 1.0 > found.curvature
    True
    """
    estimate = _known(kind)
    return estimate(numbers, noise_multiplier, clip_norm, rate, _defaults(kind) | settings)


def suggested_clip_norm(kind: str, numbers: PublicNumbers, **settings: Any) -> float:
    """Returns a clip norm to try: what suits records that are as ``signal`` assumes.

    For gradients it is twice their typical length: below that length signal and noise fall together
    and clipping biases what it shortens; above, noise alone grows. Typical is √(wD) for
    `dp_optimisation`; for `site_release` the C at which √(wD + c²w²D²) = C, c = 4·√r / C, which is
    C² = wD·(1 + √(1 + 64·r)) / 2, r = share / (1 − share). Changes are so noisy that there it is the
    least that lets all of one pass in T rounds, √(2D)·p / (T·G). Rows of 0 and 1 are shorter than
    standardised ones, and ask for less.

    Raises:
      ConfigError: nothing is known of such a solver.

    >>> suggested_clip_norm("dp_optimisation", PublicNumbers(40, 1_000, 4, 10))
    4.0
    """
    _known(kind)
    settings = _defaults(kind) | settings
    length = numbers.curvature * numbers.coefficients
    if kind == "site_release":
        return _ROOM * math.sqrt(length * (1.0 + math.sqrt(1.0 + 64.0 * _odds(settings))) / 2.0)
    if kind == "dp_optimisation":
        return _ROOM * math.sqrt(length)
    return _change(numbers) / (numbers.rounds * _gain(kind, settings))


def outlook(assembly: Assembly) -> Outlook | None:
    """Estimates how every private mode would do at a study's promise, and recommends one.

    Each mode is priced as `fedvi check` prices the study's own: its noise is calibrated to the
    promise, by the study's accountant, for the study's rounds. What the study does not say of other
    modes has its default, but for the clip norm, which is ``suggested_clip_norm``.

    Returns:
      None if the study promises nothing, declares no largest number of records, or has another
      family than a Gaussian one.
    """
    study, budget = assembly.study, assembly.budget
    family, most = assembly.family, study.data.max_records
    if study.privacy.promise is None or budget is None or most is None:
        return None
    if not isinstance(family, FullGaussian | DiagonalGaussian):
        return None
    numbers = PublicNumbers(
        coefficients=assembly.model.size,
        records=most,
        clients=len(assembly.clients),
        rounds=assembly.schedule.rounds,
        prior_sd=_prior_sd(assembly),
        curvature=_curvature(assembly.model),
        correlated=isinstance(family, FullGaussian),
    )
    kinds = [
        kind
        for kind in solver_kinds.__all__
        if "mechanism" in factories.parameters(getattr(solver_kinds, kind))
    ]
    modes = tuple(_mode(assembly, numbers, kind) for kind in kinds)
    recommended, reason = _recommended(assembly, numbers, modes)
    own = next((mode for mode in modes if mode.current), None)
    warnings = () if own is None else _warnings(own)
    return Outlook(numbers, modes, recommended, reason, warnings)


def _fresh(
    numbers: PublicNumbers, noise: float, clip_norm: float, rate: float, settings: Mapping[str, Any]
) -> Signal:
    size, clients, rounds = numbers.coefficients, numbers.clients, numbers.rounds
    weight = 4.0 / clip_norm * math.sqrt(_odds(settings))
    length = numbers.curvature * size
    kept = min(1.0, clip_norm / math.hypot(math.sqrt(length), weight * length))
    told = kept * clients * _told(numbers)
    once = numbers.prior_sd * noise * clip_norm * math.sqrt(clients) / rate
    damped = float(settings["floor"]) * numbers.prior_sd * math.sqrt(size) * once
    left, times = damped / (1.0 + told + damped), np.arange(1.0, rounds + 1.0)
    travelled = 1.0 - float((times**2 * left**times).sum() / (times**2).sum())
    averaged = once * math.sqrt(min(1.0, _EMPHASIS / rounds))
    edge = numbers.prior_sd * averaged / weight * _edge(numbers)
    return Signal(told * travelled / averaged, told / edge, travelled)


def _climbed(
    numbers: PublicNumbers, noise: float, clip_norm: float, rate: float, settings: Mapping[str, Any]
) -> Signal:
    size = numbers.coefficients
    kept = min(1.0, clip_norm / math.sqrt(numbers.curvature * size))
    told = kept * _told(numbers)
    left = noise * clip_norm / (rate * math.sqrt(float(settings["steps"])))
    spread = math.sqrt((size + 1) / 2.0) if numbers.correlated else 1.0
    return Signal(told / (numbers.prior_sd * left), told / (left * spread), 1.0)


def _changed(kind: str) -> Callable[..., Signal]:
    def found(
        numbers: PublicNumbers,
        noise: float,
        clip_norm: float,
        rate: float,
        settings: Mapping[str, Any],
    ) -> Signal:
        passed = numbers.rounds * clip_norm * _gain(kind, settings)
        travelled = min(1.0, passed / _change(numbers))
        told = numbers.clients * _told(numbers) * travelled
        weight = {"local_averaging": 1.0 / settings.get("parts", 1), "virtual_clients": 1.0}
        left = noise * clip_norm * math.sqrt(numbers.rounds * numbers.clients)
        left *= weight.get(kind, settings.get("alpha", 1.0))
        ratio = told / (left * _edge(numbers))
        return Signal(ratio, ratio, travelled)

    return found


_SIGNALS: dict[str, Callable[..., Signal]] = {
    "dp_optimisation": _climbed,
    "local_averaging": _changed("local_averaging"),
    "perturbed_update": _changed("perturbed_update"),
    "site_release": _fresh,
    "virtual_clients": _changed("virtual_clients"),
}


def _known(kind: str) -> Callable[..., Signal]:
    if kind not in _SIGNALS:
        raise errors.ConfigError(
            f"solver {kind!r} has no estimate of its signal", errors.did_you_mean(kind, _SIGNALS)
        )
    return _SIGNALS[kind]


def _defaults(kind: str) -> dict[str, Any]:
    """The settings of a solver that a study may leave out."""
    known = inspect.signature(getattr(solver_kinds, kind)).parameters.values()
    return {item.name: item.default for item in known if item.default is not item.empty}


def _told(numbers: PublicNumbers) -> float:
    """p: the precision that a client's records add to the prior's, which is 1."""
    return numbers.prior_sd**2 * numbers.records * numbers.curvature


def _change(numbers: PublicNumbers) -> float:
    """How long the change is that a client's records ask for, in the prior's coordinates.

    J is p·I, of norm p·√D; h is J times a coefficient vector about as long as the prior's, √D.
    """
    return math.sqrt(2.0 * numbers.coefficients) * _told(numbers)


def _gain(kind: str, settings: Mapping[str, Any]) -> float:
    gains = {"virtual_clients": "parts", "perturbed_update": "alpha"}
    return float(settings[gains[kind]]) if kind in gains else 1.0


def _edge(numbers: PublicNumbers) -> float:
    return math.sqrt(2.0 * numbers.coefficients) if numbers.correlated else 1.0


def _odds(settings: Mapping[str, Any]) -> float:
    share = float(settings["curvature_share"])
    return share / (1.0 - share)


def _prior_sd(assembly: Assembly) -> float:
    root = prior_frame(assembly.family, assembly.model).root
    return float(np.median(np.linalg.norm(root, axis=1) if root.ndim == 2 else root))


def _curvature(model: Any) -> float:
    """What a record tells of a coefficient: known of a linear model, else that of a yes or no."""
    scale = model.noise_scale if isinstance(model, GeneralisedLinearModel) else None
    return _TYPICAL_CURVATURE if scale is None else scale**-2.0


def _mode(assembly: Assembly, numbers: PublicNumbers, kind: str) -> Mode:
    """Builds, prices and judges one mode of the study."""
    study, budget = assembly.study, assembly.budget
    assert budget is not None
    current = kind == study.solver.kind
    settings = dict(study.solver.arguments) if current else {}
    for name in ("sampler", "noise_multiplier", "clip_norm"):
        settings.pop(name, None)
    sampler, note = assembly.sampler, ""
    if current:
        solver = assembly.solvers[assembly.clients[0]]
        noise, clip_norm = assembly.noise_multiplier, solver.clip_norm
        assert noise is not None
        assert clip_norm is not None
    else:
        clip_norm = suggested_clip_norm(kind, numbers) if kind in _SIGNALS else 1.0
        try:
            sampler, cost = _cost(assembly, kind, clip_norm)
            noise = calibrate.calibrate(
                lambda noise: events.repeat(_renoised(cost, noise), numbers.rounds),
                budget.accountant,
                budget.epsilon,
                budget.delta,
            )
        except errors.FedviError as error:
            return Mode(kind, False, None, None, None, None, error.message)
        if "parts" in _defaults(kind) and study.data.identity_column is None:
            note = "needs data.id_column"
    found = None
    if kind in _SIGNALS:
        found = signal(kind, numbers, noise, clip_norm, sampler.rate, **settings)
    # Fresh statistics alone hold no noise of their client's from a round before.
    shared = kind == "site_release" and found is not None
    summed = found.coefficients * math.sqrt(numbers.clients) if shared and found else None
    return Mode(kind, current, noise, clip_norm, found, summed, note)


def _cost(assembly: Assembly, kind: str, clip_norm: float) -> tuple[Any, events.Event]:
    """Returns another solver's sampler and what a visit of it costs, at some noise.

    It keeps the study's sampler, or takes whole shards where it has no use for batches.

    Raises:
      FedviError: what the solver refuses.
    """
    study = assembly.study
    most = study.data.max_records
    assert most is not None
    factory = factories.find("privacy", study.privacy.mechanism, mechanisms, "mechanism")
    mechanism = factories.call(
        "privacy.mechanism",
        KindSection(kind=study.privacy.mechanism),
        factory,
        {"noise_multiplier": assembly.noise_multiplier or 1.0},
    )
    model = unit_model(assembly.model) if assembly.grouped else assembly.model

    def cost(sampler: Any) -> events.Event:
        make = getattr(solver_kinds, kind)
        return make(assembly.family, model, sampler, mechanism, clip_norm=clip_norm).cost

    sampler = assembly.sampler or sampling.full(most)
    try:
        return sampler, cost(sampler)
    except errors.SolverError:
        if sampler.rate == 1.0:
            raise
        return sampling.full(most), cost(sampling.full(most))


def _renoised(event: Any, noise: float) -> events.Event:
    """Returns what the same sums cost at another noise multiplier: shifts are in clip norms.

    Raises:
      UnsupportedEvent: what a mechanism from outside says it does.
    """
    match event:
        case events.PoissonSampled() | events.WithoutReplacement() | events.Repeated():
            return dataclasses.replace(event, inner=_renoised(event.inner, noise))
        case events.Gaussian() | events.DiscreteGaussian():
            return dataclasses.replace(event, noise_multiplier=noise)
        case _:
            raise errors.UnsupportedEvent(
                f"a visit costs a {type(event).__name__}, expected noised sums",
                "only what such mechanisms cost can be priced at another noise",
            )


def _recommended(
    assembly: Assembly, numbers: PublicNumbers, modes: tuple[Mode, ...]
) -> tuple[str | None, str]:
    """Picks the mode whose coefficients stand out most, if that is clearly more than the study's."""
    regular = isinstance(assembly.model, GeneralisedLinearModel)
    able = {
        mode.solver: mode.signal.coefficients
        for mode in modes
        # The curvature of another likelihood may have any sign, and no Newton step follows it.
        if mode.signal is not None and (regular or mode.solver != "site_release" or mode.current)
    }
    if not able:
        return None, "none of the modes that are known can run this study"
    best = max(able, key=lambda kind: able[kind])
    # Gradient steps stop early, which the ratio does not see: at 10.5 against 13.9 their posterior was
    # 40 to 60 times as far, in nats, from that of the pooled records (docs/modes.md).
    if regular and able.get("site_release", 0.0) >= max(1.0, _SLOWER * able[best]):
        best = "site_release"
    own = next((mode.solver for mode in modes if mode.current and mode.solver in able), None)
    if own not in (None, "dp_optimisation") and able[own] * _CLEARLY >= able[best]:
        best = own
    why = {
        "site_release": "every visit releases fresh sums at the common q, whose noise averages out "
        "over rounds and clients",
        "dp_optimisation": "it takes gradients of any model, and what records are too few to tell "
        "stays as it was",
        "local_averaging": "the noise on a mean over parts falls with their number",
        "virtual_clients": "the signal grows with the number of parts, and noise is added once",
        "perturbed_update": "it releases one change a visit",
    }
    others = ", ".join(
        f"{kind} {value:.2g}"
        for kind, value in sorted(able.items(), key=lambda item: -item[1])
        if kind != best
    )
    reason = f"{best} promises most, about {able[best]:.2g} to 1 on a coefficient: {why[best]}" + (
        f" (others: {others})" if others else ""
    )
    if best == own:
        reason = reason.replace("promises most", "is as good as any", 1)
    if best == "site_release" and numbers.rounds < _ROUNDS:
        reason += f"; {_ROUNDS} rounds and more would cost it nothing but time"
    if not regular:
        reason += "; the model is no regression that fedvi knows, so all ratios are rough"
    if able[best] < 1.0:
        reason += "; but the noise drowns it too"
    return best, reason


def _warnings(own: Mode) -> tuple[str, ...]:
    if own.signal is None:
        return ()
    found = own.signal
    mend = "more records, fewer coefficients, larger ε, or the same records at fewer sites"
    said = []
    if found.coefficients < 1.0:
        said.append(
            "the noise probably drowns single coefficients (signal to noise about "
            f"{found.coefficients:.2g}), which would stay about the prior's, moved by noise, though "
            f"what many columns say together may stand out; to mend it: {mend}"
        )
    elif found.curvature < 1.0:
        said.append(
            "the noise probably drowns how precisely single directions are known (signal to noise "
            f"about {found.curvature:.2g}), and intervals would be too wide, or as of columns that do "
            f"not go together; to mend it: {mend}"
        )
    if found.travelled < _SHORT_OF_ROUNDS:
        said.append(
            f"the rounds come about {found.travelled:.0%} of the way to the answer; to mend it: "
            + (
                "more rounds"
                if own.solver == "site_release"
                else "a larger clip_norm, or more rounds"
            )
        )
    return tuple(said)
