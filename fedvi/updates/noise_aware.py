"""Computes the posterior from noisy answers with a known noise level; NumPy only, since servers run it."""

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import scipy

from fedvi.expfam import tree
from fedvi.expfam.gaussian import GaussianEta
from fedvi.expfam.stacked import Alike, in_order, is_alike, is_stacked
from fedvi.typing import Eta
from fedvi.updates import coordinates
from fedvi.updates.base import Fold, Standing
from fedvi.updates.coordinates import Survey
from fedvi.updates.running_means import LEFT_OUT, weight_of_newest
from fedvi.updates.supported import Vanishing, supported_curvature, vanishing_forms
from fedvi.updates.whitened_changes import PriorFrame

__all__ = ["anew", "hidden_values", "of_changes", "of_sites"]

# The longest step in sds of the prior if there are few coordinates; else √D, the prior's own norm.
_FARTHEST = 2.0
# In sds: among many coordinates, the largest move by noise in a round seldom exceeds this.
_SELDOM = 4.0
# In sds of its noise: a mean further than this from where steps began was carried by records.
_CARRIED = 2.0
# In sds of the prior and the noise together: only records carry a mean further from the prior's.
_UNEXPECTED = 3.0
# The way from there to the optimum counts as at most 1 / this of the way that was made.
_LEAST_MADE = 0.1
# In sds of the noise in both: a mean over steps begins anew if the newest is further from it.
_ANEW = 5.0
# And if the mean's variance was this many times as large: noise led earlier steps, not their length.
_UNSURE = 4.0
# In sds of a χ²: a gradient further from its prediction than this is not explained by noise.
_RARE = 5.0


def of_sites(
    family: Any,
    fold: Fold,
    before: Standing | None,
    *,
    gradient_sd: float,
    curvature_sd: float,
    rate: float,
    floor: float,
    survey: Survey | None = None,
    vanishing: Sequence[Sequence[int]] = (),
) -> Standing:
    """Turns prior + Σ fresh sites, each with noise, into the q to hand out and the q to report.

    The first fold of surveys defines coordinates, in which all later folds are computed; later surveys
    are ignored. Where the survey learns of outcomes, the first fold with sizes of slopes rescales the
    coordinates, and a later one says how large residuals are: q then moves by no step.

    A site is (G + H m, H): gradient and curvature of a client's log likelihood at the broadcast mean m,
    both with Gaussian noise. With n clients the sums have noise of sd s = gradient_sd·√n in a
    coordinate, and u = curvature_sd·√n in one of svec(H).

    - *Curvature*: the mean H̄ of ΣH over folds, with larger weights for recent ones, projected on what is
      known in advance (``vanishing``), which reduces noise. Noise alone has eigenvalues up to
      e = u'·√(2D), where u' is the sd u after averaging (the edge of Wigner's semicircle). An eigenvalue
      λ above e becomes √(λ² − e²). Along an eigenvector below the edge, the true curvature is estimated
      from the whole spectrum (``hidden_values``), within [0, e]. The sum is cleaned, never a single site,
      because cleaning each would invent precision.
    - *Step*: m ← m + (J_0 + Ĥ)⁻¹ · (gradient of the posterior at m), where Ĥ is H̄ with eigenvalues
      raised to e, since curvature below the edge may be as large as e and too long a step diverges, and
      to κ·s·√D, which keeps the noise of one step below 1/κ in norm. An eigenvalue below −e is not noise,
      but shows a log likelihood that is not concave; there |λ| limits how far the slope is trusted. No
      step is longer than max(2, √D) sds of the prior. The gradient of a site at another m_k is carried
      to m along the cleaned H̄, because the noise of H would be multiplied by m_k − m.
    - *Prior*: if the prior has its own factor, its precision at a q that noise moved is bounded by that of
      its first fit (``_bounded``).
    - *Handed out*: m with precision J_0 + the cleaned H̄, without the widening of the report. Sites are
      expectations over this q; a q widened by noise would lead to another optimum than the pooled one.
    - *Report*: the mean of the steps, and its covariance, which has three parts along each axis of
      ``supported_curvature``. Let λ be the supported curvature along it, j that of J_0, and f the share
      of the way from the prior to the optimum that the steps have made. The parts are: the uncertainty
      given the records, 1/(λ + j); the missing share of the way, (1 − f)²·w²; and the noise in the mean
      of the steps. w² is λ/(j(λ + j)), as the prior expects, so that the prior's 1/j remains if noise
      allows no step; or the square of the way that the steps suggest, if that is larger (``_whole_way``).
      The noise in the mean is that of each gradient (s², and (1/r − 1)·λ for sites from a share r of the
      records) times what later steps left of it. Where it is more than the prior leaves to it, and the mean
      lies no further from the prior's than both allow, that part of both is taken back: nothing is
      reported that is wider than the prior but what records carried away from it.
      The mean begins anew at a step that is further from it than 5 sds of the noise in both, if the mean
      was less sure by half before: noise led the first steps far away, and they would stay in it for long.
    - *Surprise*: compares the gradient at m with its prediction by the previous gradient and the likely
      curvature along the step between them. If the log likelihood is nearly quadratic over a step, they
      differ only by noise: about 2s² a coordinate, and u'² times the squared step. If they differ by more
      than 5 sds of that χ², the steps are too long for the curvature that they trust. The largest change
      of a mean from such a difference, in sds of the report, is averaged over folds like the steps.
    - *Jitter*: the mean of T steps moves by about 2/T of the newest step's distance from it. Noise alone
      moves it by up to 4 sds of the noise in both.

    All of this is post-processing of released values.

    Args:
      family: full Gaussian.
      fold: ``posterior`` is ``known`` + Σ sites.
      before: the result of the previous fold; None at the first.
      gradient_sd: of one site, in each coordinate.
      curvature_sd: of one site, in each coordinate of svec(H): off-diagonal entries × √2.
      rate: r, the share of records that a site is computed from; 1 for all of them.
      floor: κ.
      survey: the description of surveys; None if clients send none.
      vanishing: for a regression, products of columns that are 0 in every record, see ``vanishing_forms``.

    Source: docs/proofs/noise_aware.md and updates.md §2 (sum first, project once);
    the shrinkage of eigenvalues is Gavish and Donoho (2017), arXiv:1405.7511, for the
    Frobenius norm, here of a symmetric matrix; averaging is Shamir and Zhang (2013), arXiv:1212.1824.
    """
    louder = math.sqrt(fold.noise)
    gradient_sd, curvature_sd = gradient_sd * louder, curvature_sd * louder
    at = None if before is None else before.coordinates
    if before is not None and before.prior is not None:
        fold = _with_prior(fold, before.prior)
    if survey is not None and at is None:
        return _surveyed(family, fold, gradient_sd, survey)
    told = functools.partial(
        _of_sites,
        family,
        gradient_sd=gradient_sd,
        curvature_sd=curvature_sd,
        rate=rate,
        floor=floor,
        known=vanishing_forms(vanishing, family.size, at),
    )
    if at is None or before is None:
        return told(fold, before)
    if survey is not None and survey["outcome"] is not None:
        before = _sized(before, fold, gradient_sd, survey)
        at = before.coordinates
        assert at is not None
    # A client that has sent only a survey has not given any information on θ yet.
    spoken = {*before.sites, *(set(fold.asked) - set(fold.surveys))}
    if not set(fold.asked) - set(fold.surveys):
        return before
    fold = fold._replace(
        factors={name: eta for name, eta in fold.factors.items() if name in spoken},
        asked={name: eta for name, eta in fold.asked.items() if name not in fold.surveys},
    )
    narrower = (at.spread / at.residual) ** 2 if at.residual else 1.0
    found = told(
        coordinates.fold_inward(at, fold),
        coordinates.standing_inward(at, before),
        narrower=narrower,
    )
    if survey is not None and (plan := survey["outcome"]) is not None:
        known = at.residual if plan["kind"] == "number" else at.spread
        asks = bool(plan["sizes"]) and found.steps >= plan["after"] and not known
        found = found._replace(coordinates=at._replace(sizes=asks))
    # As it was: there and back would change its last digits in every fold.
    found = coordinates.standing_outward(at, found)
    return found._replace(prior=before.prior, clipped=before.clipped)


def _surveyed(family: Any, fold: Fold, gradient_sd: float, survey: Survey) -> Standing:
    """Makes coordinates from the first surveys; q moves only to where outcomes are."""
    noise = gradient_sd * survey["unit"] * math.sqrt(len(fold.surveys))
    sums = tree.total(fold.surveys.values(), family.zeros())
    at, prior, starts = coordinates.of_survey(survey, sums, noise, fold.prior)
    # A prior with a factor of its own is not Gaussian, and stays as the study states it.
    told = prior if tree.equal(fold.known, fold.prior) else None
    if told is not None:
        fold = _with_prior(fold, told)
    q = handed_out = family.project(fold.known, fold.prior)
    if starts.any():
        mean = family.moments(q)[0]
        mean[at.constants] = starts
        handed_out = GaussianEta(q.J @ mean, q.J)
    nothing = GaussianEta(np.zeros(family.size), np.zeros((family.size, family.size)))
    return Standing(handed_out, q, nothing, folds=0, squares=0.0, coordinates=at, prior=told)


def _with_prior(fold: Fold, prior: GaussianEta) -> Fold:
    """Returns the fold with another prior in the place of its own."""
    more = tree.subtract(prior, fold.prior)
    known, posterior = tree.add(fold.known, more), tree.add(fold.posterior, more)
    return fold._replace(prior=prior, known=known, posterior=posterior)


def _sized(before: Standing, fold: Fold, gradient_sd: float, survey: Survey) -> Standing:
    """Makes coordinates from sizes of slopes, if some answers of this fold counted them."""
    at = before.coordinates
    if at is None or not at.sizes:
        return before
    counted = [
        np.concatenate([fold.surveys[name].h, np.diagonal(fold.surveys[name].J)])
        for name in sorted(fold.sized)
        # Others come late, and counted at coordinates that are gone.
        if fold.sized[name] == at.spread
    ]
    if not counted:
        return before
    noise = gradient_sd * math.sqrt(len(counted))
    at, clipped = coordinates.of_sizes(survey, at, np.sum(counted, axis=0), noise)
    return before._replace(coordinates=at, clipped=clipped)


def _of_sites(
    family: Any,
    fold: Fold,
    before: Standing | None,
    *,
    gradient_sd: float,
    curvature_sd: float,
    rate: float,
    floor: float,
    known: Vanishing | None,
    narrower: float = 1.0,
) -> Standing:
    """Implements `of_sites`, in the coordinates of its arguments.

    ``narrower`` is the variance of the noise that curvatures assume, ÷ that of residuals.
    """
    size, noise = family.size, math.sqrt(len(fold.factors))
    # The prior's own factor may make it improper temporarily, so it is projected.
    prior = family.project(fold.known, fold.prior)
    centre = family.moments(_handed_out(family, fold, before))[0]
    folds = 1 if before is None else before.folds + 1
    # Without noise there is nothing to average, and the newest step is the best.
    is_exact = gradient_sd == 0.0 and rate == 1.0
    weight = 1.0 if is_exact else weight_of_newest(folds)
    sites = tree.subtract(fold.posterior, fold.known)
    curvature = sites.J
    if before is not None:
        curvature = before.curvature.J + weight * (sites.J - before.curvature.J)
    weights = _weighed({} if before is None else before.weights, fold, weight)
    left = sum(past + standing**2 for past, standing in weights.values()) / len(weights)
    answered = _answered(family, fold, {} if before is None else before.sites)
    entry = entries = curvature_sd * noise * math.sqrt(left)
    if known is not None and entry > 0.0:
        shares = known.left_over(size)
        curvature, entries = known.fitted(curvature), entry * np.sqrt(shares)
        entry = float(np.sqrt((entries**2).mean()))
    values, vectors = np.linalg.eigh(curvature)
    edge = entry * math.sqrt(2.0 * size)
    kept = _cleaned(values, edge)
    least = floor * gradient_sd * noise * math.sqrt(size)
    # Along directions without visible curvature, a site's gradient at an older θ is applied at every fold
    # until the site is renewed, so steps are shortened by the share of sites renewed per fold.
    share = max(1, len(fold.asked)) / len(fold.factors)
    raised = np.maximum(np.abs(values), max(edge, least) / share)
    # 1 if all sites are renewed equally often; otherwise averaging leaves more noise.
    excess = max(1.0, left / float((_weights_of(folds) ** 2).sum()))
    reference = _reference(family, fold, before)
    begun = _begun(family, fold, before)
    held = believed = prior.J
    if reference is not None and not is_exact:
        pulled = _along(vectors, prior.J)
        scatter = (gradient_sd * noise) ** 2 + (1.0 / rate - 1.0) * kept
        carried, missing = _carried(folds, (kept + pulled) / (raised + pulled))
        carried = carried * scatter / (raised + pulled) ** 2 * excess
        # Along directions without information from records, q is treated as moved by noise alone.
        carried = (carried + missing / _along(vectors, reference.J)) / np.maximum(
            1.0 - missing, 1e-9
        )
        held, believed = _bounded(prior.J, reference.J, _rebuilt(0.0, vectors, carried))
    shrunk = np.clip(hidden_values(values, entry), 0.0, edge)
    likely = np.where(values > edge, kept, shrunk)
    gradient = None
    if is_exact:
        slope = fold.posterior.h - fold.posterior.J @ centre
    else:
        gradients, places = _summed(answered)
        away = places / len(answered) - centre
        gradients = gradients + vectors @ (kept * (vectors.T @ away))
        slope = prior.h - prior.J @ centre + gradients
        gradient = GaussianEta(gradients, centre)
    step = np.linalg.solve(_rebuilt(held, vectors, raised), slope)
    mean = centre + step * min(1.0, max(_FARTHEST, math.sqrt(size)) / _length(step, held))
    sharp = _rebuilt(held, vectors, likely)
    average = mean
    if before is not None and before.folds:
        average = before.curvature.h + weight * (mean - before.curvature.h)
    axes, told = vectors, likely
    if entry > 0.0:
        axes, told = supported_curvature(curvature, entries, believed)
    pulled = _along(axes, believed)
    jitter = 0.0
    if is_exact:
        missing, walk = np.zeros(size), np.zeros(size)
    else:
        stiff = _along(axes, _rebuilt(0.0, vectors, raised)) + pulled
        variance = (gradient_sd * noise) ** 2 + (1.0 / rate - 1.0) * told
        missing, walk = _made_of_steps(folds, (told + pulled) / stiff)
        walk = walk * variance / stiff**2 * excess
        newest = _carried(folds, (told + pulled) / stiff)[0] * variance / stiff**2 * excess
        if before is not None and folds > 1 + LEFT_OUT:
            # Steps that noise led far away stay in a mean for long: it begins anew once they are back.
            off = axes.T @ (mean - before.curvature.h)
            unsure = (axes * np.linalg.solve(before.reported.J, axes)).sum(axis=0)
            now = 1.0 / (told + pulled) + newest + walk
            led = (off**2 > _ANEW**2 * (newest + walk)) & (unsure > _UNSURE * now)
            if led.any():
                begun = before._replace(
                    folds=LEFT_OUT, begun=before.handed_out, gradient=None, surprise=0.0
                )
                return _of_sites(
                    family, fold, begun, gradient_sd=gradient_sd, curvature_sd=curvature_sd, rate=rate,
                    floor=floor, known=known, narrower=narrower,
                )  # fmt: skip
    way = told / (pulled * (told + pulled))
    if begun is not None and not is_exact:
        made = average - family.moments(begun)[0]
        left_over = _missing(folds, (_along(axes, _rebuilt(0.0, vectors, likely)) + pulled) / stiff)
        way = np.maximum(way, _whole_way(axes.T @ made, walk, left_over) ** 2)
    precision = 1.0 / (1.0 / (told * narrower + pulled) + missing**2 * way)
    spread = np.linalg.inv(_rebuilt(believed, axes, np.maximum(precision - pulled, 0.0)))
    # Noise alone may leave more than the prior does: what it moved is then taken back in proportion.
    made = axes.T @ (average - np.linalg.solve(believed, prior.h))
    room = np.maximum(1.0 / pulled - _along(axes, spread), 0.0)
    expected = np.abs(made) < _UNEXPECTED * np.sqrt(walk + 1.0 / pulled)
    alone = (walk > room) & expected & (reference is None)
    left_in = np.where(alone, room / np.maximum(walk, 1e-300), 1.0)
    told_mean = average - axes @ ((1.0 - left_in) * made)
    covariance = _rebuilt(spread, axes, left_in * walk)
    if not is_exact:
        # A step moves the mean by `weight` times the newest step's distance from it. A round has 1 / share
        # steps, with similar moves.
        moves = (weight / share) ** 2 * np.einsum("dk,k->d", axes**2, newest + walk)
        jitter = _SELDOM * math.sqrt(float((moves / np.diagonal(covariance)).max()))
    precision = np.linalg.inv(covariance)
    precision = (precision + precision.T) / 2.0
    surprise = earlier = 0.0
    if (
        before is not None
        and before.gradient is not None
        and gradient is not None
        and before.sites.keys() == answered.keys()
    ):
        way = centre - before.gradient.J
        off = gradient.h - before.gradient.h + vectors @ (likely * (vectors.T @ way))
        expected = 2.0 * (gradient_sd * noise) ** 2 + (entry * _length(way, np.eye(size))) ** 2
        expected += 2.0 * (1.0 / rate - 1.0) * likely.mean()
        if off @ off > expected * (size + _RARE * math.sqrt(2.0 * size)):
            moved = np.linalg.solve(_rebuilt(held, vectors, raised), off)
            surprise = float((np.abs(moved) / np.sqrt(np.diagonal(covariance))).max())
        earlier = before.surprise
    return Standing(
        handed_out=GaussianEta(sharp @ mean, sharp),
        reported=GaussianEta(precision @ told_mean, precision),
        curvature=GaussianEta(average, curvature),
        folds=folds,
        squares=left,
        weights=weights,
        sites=answered,
        reference=reference,
        begun=begun,
        coordinates=None if before is None else before.coordinates,
        gradient=gradient,
        surprise=earlier + weight * (surprise - earlier),
        jitter=jitter,
        steps=1 if before is None else max(before.steps, before.folds) + 1,
    )


def _answered(
    family: Any, fold: Fold, before: Mapping[str, GaussianEta]
) -> Mapping[str, GaussianEta]:
    """Returns each client's latest gradient, and the θ at which it was computed."""
    # Cached by memory address: many clients share one posterior, whose mean takes a matrix inverse.
    means: dict[tuple[int, int], np.ndarray] = {}
    factors = fold.factors
    if (
        is_stacked(factors)
        and _is_of_all(fold.asked, factors)
        and (not before or tuple(before) == factors.names)
    ):
        place = family.moments(fold.asked.value)[0]
        gradients = factors.etas.h - np.matmul(factors.etas.J, place)
        places = np.broadcast_to(place, gradients.shape)
        return factors.with_etas(GaussianEta(gradients, places))
    answered = dict(before)
    for name, eta in fold.asked.items():
        memory = id(eta.h), id(eta.J)
        if memory not in means:
            means[memory] = family.moments(eta)[0]
        place, site = means[memory], factors[name]
        answered[name] = GaussianEta(site.h - site.J @ place, place)
    return answered


def _summed(answered: Mapping[str, GaussianEta]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sums of the gradients and of their θ, added in order."""
    if is_stacked(answered):
        gradients, places = (in_order(np.zeros(part.shape[1:]), part) for part in answered.etas)
        return gradients, places
    gradients, places = (sum(part) for part in zip(*answered.values(), strict=True))
    return gradients, places


def hidden_values(values: np.ndarray, sd: float) -> np.ndarray:
    """Estimates the mean over the noise of v_kᵀ A v_k, for the eigenvectors v_k of A + noise, [D].

    With λ_k the eigenvalues of A + noise, it is about λ_k − 2s²·h(λ_k). Here s² = D u²/2 is the
    variance of the semicircle, and h(λ) = Σ_j (λ − λ_j) / ((λ − λ_j)² + η²) / D is the Hilbert transform
    of the spectrum, smoothed over η, 1/√D of the semicircle's radius. If A is 0, so are these.

    Args:
      values: λ, [D], ascending.
      sd: u, of the noise in one coordinate of svec.

    Source: Bun, Allez, Bouchaud and Potters (2016), Rotational invariant estimator for general noisy
    matrices, arXiv:1502.06736, its additive case.
    """
    size = len(values)
    away = values[:, None] - values[None, :]
    smoothed = max(sd * math.sqrt(2.0), 1e-150)
    transform = (away / (away**2 + smoothed**2)).mean(axis=1)
    return np.asarray(values - size * sd**2 * transform)


def _weights_of(folds: int) -> np.ndarray:
    """Returns the weight of each of the first T steps in their mean, [T]."""
    found = np.ones(1)
    for fold in range(2, folds + 1):
        weight = weight_of_newest(fold)
        found = np.append((1.0 - weight) * found, weight)
    return found


def _made_of_steps(folds: int, rate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns, for the mean of T steps, the missing share of the way and Σ of squared gradient weights.

    Each step covers the share ``rate`` of the remaining way. The gradient at step τ has the weight
    Σ_{t ≥ τ} w_t (1 − rate)^{t − τ} in the mean. Both results are [D].
    """
    weights, kept = _weights_of(folds), 1.0 - np.clip(rate, 0.0, 1.0)
    carried, squares = np.zeros_like(kept), np.zeros_like(kept)
    for weight in weights[::-1]:
        carried = weight + kept * carried
        squares = squares + carried**2
    return _missing(folds, rate), squares


def _carried(folds: int, rate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns, for the last of T steps, Σ of squared gradient weights and the missing share, [D] both."""
    kept = 1.0 - np.clip(rate, 0.0, 1.0)
    return np.asarray(sum(kept ** (2 * age) for age in range(folds))), kept**folds


def _reference(family: Any, fold: Fold, before: Standing | None) -> Eta | None:
    """Returns a Gaussian approximation of a non-Gaussian prior; None if the prior has no factor yet.

    It is the prior with its own factor as first fitted, before any client's answer: the prior's worker is
    asked before all others.
    """
    if before is not None and before.reference is not None:
        return before.reference
    if tree.equal(fold.known, fold.prior):
        return None
    # For a run that an earlier version began, or whose only client was removed, this is the current factor
    # instead, which may be improper.
    return family.project(fold.known, fold.prior)


def _bounded(
    precision: np.ndarray, reference: np.ndarray, carried: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the prior's precision, [D, D], for the q to hand out and for the q to report.

    A non-Gaussian prior has a different precision at each θ. Far out a Laplace prior has none, so a q that
    noise moved there would become ever wider. In the reference's coordinates, where R = I, let P be the
    precision at q, V the variance with which noise moved q, and W = V (I + V)⁻¹. The reported q has
    √(I − W) P √(I − W) + W: P along directions that records determine, R along those that nothing does.
    The q handed out has P + √W (I − P)₊ √W, never less than P, whose pull is real and may be steep.

    Args:
      precision: of the prior at q, [D, D], proper.
      reference: R, proper.
      carried: V in θ's coordinates.
    """
    root = np.linalg.cholesky(reference)
    inward = scipy.linalg.solve_triangular(root, precision, lower=True)
    inward = scipy.linalg.solve_triangular(root, inward.T, lower=True)
    values, vectors = np.linalg.eigh(root.T @ carried @ root)
    values = np.maximum(values, 0.0)
    drowned = _rebuilt(0.0, vectors, np.sqrt(values / (1.0 + values)))
    held = _rebuilt(0.0, vectors, np.sqrt(1.0 / (1.0 + values)))
    lacks, axes = np.linalg.eigh(np.eye(len(root)) - (inward + inward.T) / 2.0)
    raised = inward + drowned @ _rebuilt(0.0, axes, np.maximum(lacks, 0.0)) @ drowned
    believed = held @ inward @ held + drowned @ drowned
    raised, believed = (root @ part @ root.T for part in (raised, believed))
    return (raised + raised.T) / 2.0, (believed + believed.T) / 2.0


def _missing(folds: int, rate: np.ndarray) -> np.ndarray:
    """Returns only the missing share of the way, see ``_made_of_steps``; 0 without folds."""
    kept, found = 1.0 - np.clip(rate, 0.0, 1.0), np.zeros_like(rate)
    if folds:
        for weight in _weights_of(folds)[::-1]:
            found = (found + weight) * kept
    return found


def of_changes(family: Any, fold: Fold, before: Standing | None, *, noise_sd: float) -> Standing:
    """Turns prior + Σ changes, each with noise, into the q to hand out and report.

    A change is (Δh, ΔJ) with noise of sd ``noise_sd`` in every coordinate of
    ``whitened_changes.to_vector``. Folded with s, it stays in the factor for good, so the accumulated
    noise is Σ s² over all answers. In the prior's coordinates, where the prior is N(0, I), with u² the
    accumulated variance:

    - the eigenvalues of the likelihood's precision are cleaned as in ``of_sites``, which gives P;
    - the location is that of a Gaussian observation P z with covariance P from the records and
      u²(1 + ‖c‖²) from the noise, linearised at c, the mean that was handed out last: noise in ΔJ moves
      the gradient there by at most that much more, and h is reduced consistently with the precision.

    So the precision is never below the prior's, and directions dominated by noise keep the prior. All of
    this is post-processing of released values. Without noise, q is prior + Σ factors.

    Args:
      family: full or diagonal Gaussian; for the latter every coordinate is cleaned separately.
      fold: ``posterior`` is ``known`` + Σ factors.
      before: the result of the previous fold; None at the first.
      noise_sd: of one answer.

    Source: docs/proofs/noise_aware.md; the proof for this function is above.
    """
    folds = 1 if before is None else before.folds + 1
    squares = len(fold.asked) * fold.damping**2 + (0.0 if before is None else before.squares)
    found = fold.posterior
    likelihood = tree.subtract(found, fold.known)
    if noise_sd > 0.0:
        frame = PriorFrame(*family.location_root(fold.prior))
        centre = frame.location(family.moments(_handed_out(family, fold, before))[0])
        variance = noise_sd**2 * squares * fold.noise
        known, shift = frame.inward(fold.known), frame.inward(likelihood)
        drowned = variance * (1.0 + centre @ centre)
        if shift.J.ndim == 1:
            kept = _cleaned(shift.J, math.sqrt(2.0 * variance))
            linear = shift.h + (kept - shift.J) * centre
            precision = known.J + _told(kept, drowned)
            linear = known.h + kept / (kept + drowned) * linear
        else:
            values, vectors = np.linalg.eigh(shift.J)
            kept = _cleaned(values, math.sqrt(2.0 * family.size * variance))
            linear = shift.h + (_rebuilt(0.0, vectors, kept) - shift.J) @ centre
            precision = _rebuilt(known.J, vectors, _told(kept, drowned))
            linear = known.h + vectors @ (kept / (kept + drowned) * (vectors.T @ linear))
        found = frame.outward(GaussianEta(linear, precision))
    q = family.project(found, fold.prior)
    curvature = GaussianEta(np.zeros_like(likelihood.h), likelihood.J)
    return Standing(q, q, curvature, folds, squares)


def anew(standing: Standing, clients: Collection[str], noise: float) -> Standing:
    """Returns the standing from which ``of_sites`` and ``of_changes`` restart with the remaining clients.

    Used when a client is divided out. A mean over folds contains that client's earlier sites, which are
    not stored. So means restart with the next fold, from the current sites, each with its own noise in
    full. The next step starts from the q handed out last, as it could from another study's result. The
    noise of that q fades with the steps and is not counted, so after a removal widths reflect only the
    noise of the steps since.

    Args:
      standing: before the removal.
      clients: those that are left, each of which has answered.
      noise: Σ s² over their folded answers: the accumulated noise of sums of changes.
    """
    return standing._replace(
        folds=0,
        squares=noise,
        gradient=None,
        surprise=0.0,
        jitter=0.0,
        # Without sites, weights belong to running means, which are kept in the remaining factors.
        weights={}
        if standing.sites
        else {name: kept for name, kept in standing.weights.items() if name in clients},
        sites={name: site for name, site in standing.sites.items() if name in clients},
        centres={name: place for name, place in standing.centres.items() if name in clients},
    )


def _length(step: np.ndarray, precision: np.ndarray) -> float:
    """Returns ‖step‖ in units of 1/√precision; not 0."""
    return max(math.sqrt(max(float(step @ precision @ step), 0.0)), 1e-300)


def _handed_out(family: Any, fold: Fold, before: Standing | None) -> Eta:
    """Returns the q that this fold's answers started from, or an older one."""
    return family.project(fold.known, fold.prior) if before is None else before.handed_out


def _begun(family: Any, fold: Fold, before: Standing | None) -> Eta | None:
    """Returns the q from which the averaged steps began; None for a run that an earlier version began."""
    if before is None or not before.folds:
        return _handed_out(family, fold, before)
    return before.begun


def _whole_way(made: np.ndarray, variance: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Returns how far the optimum is from where steps began, as far as the steps so far show it, [D].

    Where coefficients are several sds of the prior, the prior expects too short a way.

    Args:
      made: the way to the mean of steps, [D].
      variance: of its noise, [D].
      missing: the share of the whole way that is likely missing, [D].
    """
    surely = np.maximum(np.abs(made) - _CARRIED * np.sqrt(variance), 0.0)
    return np.asarray(surely / np.maximum(1.0 - missing, _LEAST_MADE))


def _cleaned(values: np.ndarray, edge: float) -> np.ndarray:
    """Returns √(λ² − e²) for eigenvalues above the noise edge e, and 0 for the others."""
    squares = np.maximum(values**2 - edge**2, 0.0)
    return np.where(values > edge, np.sqrt(squares), 0.0)


def _weighed(
    before: Mapping[str, tuple[float, float]], fold: Fold, weight: float
) -> Mapping[str, tuple[float, float]]:
    """Returns for each client Σ w² of the sites that were replaced, and w of the current one.

    A site that is not renewed enters successive folds with the same noise, which their mean does not
    average out.
    """

    def renewed(name: str) -> tuple[float, float]:
        past, standing = before.get(name, (0.0, 0.0))
        past, standing = (1.0 - weight) ** 2 * past, (1.0 - weight) * standing
        if name in fold.asked:
            past, standing = past + standing**2, 0.0
        return past, standing + weight

    if _is_of_all(fold.asked, fold.factors) and (not before or _is_of_all(before, fold.factors)):
        return fold.asked.with_value(renewed(fold.asked.names[0]))
    return {name: renewed(name) for name in fold.factors}


def _is_of_all(alike: Mapping[str, Any], names: Mapping[str, Any]) -> TypeGuard[Alike]:
    """Whether a mapping has one value for all of these names, in their order."""
    return is_alike(alike) and alike.names == tuple(names)


def _told(values: np.ndarray, drowned: float) -> np.ndarray:
    """Returns λ²/(λ + s²): the precision from a gradient with noise of variance s²."""
    return values**2 / np.maximum(values + drowned, 1e-300)


def _along(vectors: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Returns v_kᵀ J v_k for the columns of V, [K]."""
    return np.asarray((vectors * (precision @ vectors)).sum(axis=0))


def _rebuilt(base: Any, vectors: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns base + V diag(values) Vᵀ, exactly symmetric."""
    whole = base + (vectors * values) @ vectors.T
    return np.asarray((whole + whole.T) / 2.0)
