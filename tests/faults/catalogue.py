"""The planted faults that the tests must find: one for each past bug or new promise."""

import dataclasses

__all__ = ["FAULTS", "Fault"]


@dataclasses.dataclass(frozen=True)
class Fault:
    """One mistake that somebody could make, and the tests that are there to find it.

    Attributes:
      name: of the fault, for the command line.
      says: what is wrong, and for whom.
      file: where it is planted, below ``fedvi/``.
      right: text that the file has exactly once.
      wrong: what stands in its place.
      tests: what pytest is asked to run: files, or single tests where a file takes long.
    """

    name: str
    says: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


def _fault(name: str, file: str, right: str, wrong: str, says: str, *tests: str) -> Fault:
    return Fault(name, says, file, right, wrong, tuple(f"tests/{test}" for test in tests))


_PRIVACY = (
    _fault(
        "noise-times-0.7",
        "privacy/mechanisms/_alias.py",
        "noised.append(leaf + part.astype(leaf.dtype))",
        "noised.append(leaf + (part * 7 // 10).astype(leaf.dtype))",
        "The noise of every release has 0.7 of the sd that is paid for.",
        "statistical/test_noise.py",
    ),
    _fault(
        "mask-ignored-in-a-clipped-sum",
        "inference/clipping.py",
        "usable = mask & jnp.isfinite(everything.norm())",
        "usable = jnp.isfinite(everything.norm())",
        "Rows that hold no record count as one.",
        "unit/inference/test_per_record.py",
        "unit/inference/test_svi.py",
    ),
    _fault(
        "substitution-priced-as-removal",
        "privacy/base.py",
        "substitute=self.substitute / self.clip_norm,",
        "substitute=self.add_remove / self.clip_norm,",
        "Records that are exchanged move a sum twice as far as is paid for.",
        "unit/privacy/test_mechanisms.py",
        "contracts/test_solvers.py",
    ),
    _fault(
        "divided-by-the-realised-batch",
        "inference/svi_steps.py",
        "mean = jax.tree.map(lambda part: part / plan.sampler.rate, total)",
        "mean = jax.tree.map(\n"
        "                lambda part: part * self.records / jnp.maximum(batch.mask.sum(), 1), total\n"
        "            )",
        "How many records are in a batch is private, and a step shows it.",
        "unit/inference/test_svi.py::"
        "test_a_step_is_divided_by_the_public_rate_and_not_by_how_many_were_drawn",
    ),
    _fault(
        "records-sampled-more-often",
        "privacy/sampling/poisson.py",
        "gap = jnp.where(stays, column, jnp.asarray(alias)[column])",
        "gap = jnp.where(stays, column, jnp.asarray(alias)[column]) * 4 // 5",
        "Batches are larger than the rate that is paid for.",
        "contracts/test_samplers.py",
        "statistical/test_samplers.py",
    ),
    _fault(
        "sampling-priced-at-half-the-rate",
        "privacy/sampling/poisson.py",
        "return events.PoissonSampled(self.rate, inner, self.overflow)",
        "return events.PoissonSampled(self.rate / 2, inner, self.overflow)",
        "A record is in a batch twice as often as is paid for.",
        "contracts/test_samplers.py",
        "unit/privacy/test_poisson.py",
    ),
    _fault(
        "sums-priced-without-colluders",
        "privacy/sums.py",
        "return self.noises - self.colluding if left > 0 else left",
        "return self.noises if left > 0 else left",
        "Clients that tell their noise to the observer are counted as if they kept it.",
        "unit/privacy/test_aggregate_price.py",
    ),
    _fault(
        "curvature-left-out-of-the-norm",
        "inference/solvers/site_release.py",
        "kept = jnp.minimum(1.0, limit / jnp.maximum(norm, _LEAST))\n\n        def weighed",
        "kept = jnp.minimum(1.0, limit / jnp.maximum(jnp.abs(first) * jnp.sqrt(square), _LEAST))\n\n"
        "        def weighed",
        "A record's curvature is not clipped with its gradient.",
        "unit/inference/test_site_release.py",
        "contracts/test_solvers.py",
    ),
    _fault(
        "survey-that-clips-nothing",
        "inference/column_sums.py",
        "kept = jnp.minimum(1.0, limit / jnp.maximum(norm, _LEAST))",
        "kept = jnp.ones_like(norm)",
        "A long row moves the sums of columns by more than is paid for.",
        "unit/inference/test_site_release.py",
        "contracts/test_sensitivity.py",
    ),
    _fault(
        "weights-that-look-at-the-outcome",
        "models/outcomes/bernoulli.py",
        "return jax.nn.sigmoid(jnp.abs(jnp.asarray(linear_predictor)))",
        "return jnp.abs(self.derivatives(linear_predictor, y)[1])",
        "Rare outcomes are weighed down more than common ones, and coefficients biased.",
        "unit/inference/test_site_release.py",
    ),
    _fault(
        "patients-that-are-clipped-alone",
        "inference/weights.py",
        "kept = _kept(first**2 + second**2, clip_norm)[:, None]",
        "kept = jnp.ones((len(first), 1))",
        "Coefficients of patients with several rows are biased away from zero.",
        "unit/inference/test_site_release.py",
    ),
    _fault(
        "outcomes-that-weigh-themselves",
        "inference/weights.py",
        "others = model.plausible(mean, row)",
        "others = {name: part[None] for name, part in row.items()}",
        "Rare levels are weighed down more than common ones, and coefficients biased.",
        "unit/inference/test_site_release.py",
    ),
    _fault(
        "hidden-curvature-as-it-is-seen",
        "updates/noise_aware.py",
        "return np.asarray(values - size * sd**2 * transform)",
        "return np.asarray(values)",
        "Intervals rest on curvature that noise alone made.",
        "unit/updates/test_noise_aware.py",
    ),
    _fault(
        "way-as-long-as-the-prior-expects",
        "updates/noise_aware.py",
        "way = np.maximum(way, _whole_way(axes.T @ made, walk, left_over) ** 2)",
        "way = np.maximum(way, 0.0)",
        "Intervals miss coefficients that are several sds of the prior away.",
        "unit/updates/test_noise_aware.py",
    ),
    _fault(
        "unknown-correlations-taken-for-none",
        "updates/supported.py",
        "return vectors, values**2 / np.maximum(values + _DOUBT * lost, _LEAST)",
        "return vectors, values",
        "Intervals are as narrow as if noisy curvature were the true one.",
        "unit/updates/test_supported.py",
    ),
    _fault(
        "off-diagonal-curvature-doubled",
        "inference/solvers/site_release.py",
        "twice = exact.astype(np.float32)",
        "twice = np.where(rows == columns, 1.0, 2.0).astype(np.float32)",
        "Norms are not those of the matrix, and the server reads too much correlation.",
        "unit/inference/test_site_release.py",
    ),
    _fault(
        "weights-beyond-float32",
        "inference/solvers/site_release.py",
        "found = jnp.clip(found, -_LARGE, _LARGE)",
        "found = jnp.clip(found, -jnp.inf, jnp.inf)",
        "One record near zero makes a whole block of others count as nothing.",
        "unit/inference/test_site_release.py",
    ),
    _fault(
        "batches-as-long-as-there-are-records",
        "privacy/bounded.py",
        "if not least <= rows <= most:",
        "if rows < 0:",
        "One record more may change what everybody is clipped to.",
        "contracts/test_sensitivity.py::test_no_sum_takes_a_batch_of_another_size_than_its_sampler_draws",
    ),
    _fault(
        "one-key-for-sampling-and-noise",
        "inference/solvers/site_release.py",
        'key_of(purpose) for purpose in ("sampling", "guide", "noise")',
        'key_of(purpose) for purpose in ("noise", "guide", "noise")',
        "What was sampled tells something of the noise.",
        "contracts/test_solvers.py",
    ),
    _fault(
        "labels-of-keys-run-together",
        "privacy/random.py",
        'message += kind + len(text).to_bytes(4, "big") + text',
        "message += kind + text",
        "Two labels that read the same side by side share a key.",
        "unit/privacy/test_random.py",
    ),
    _fault(
        "budget-a-tenth-too-generous",
        "privacy/ledger.py",
        "if cost <= budget.epsilon:",
        "if cost <= 1.1 * budget.epsilon:",
        "A release goes out that the budget does not allow.",
        "unit/privacy/test_ledger.py",
    ),
    _fault(
        "composition-forgets-one-release",
        "privacy/accountants/rdp.py",
        "terms.append(count * _divergence(atom, self.relation, order))",
        "terms.append(max(count - 1, 1) * _divergence(atom, self.relation, order))",
        "k releases cost what k − 1 do.",
        "unit/privacy/test_rdp.py",
    ),
    _fault(
        "a-person-at-several-sites-costs-one",
        "privacy/joint_claims.py",
        "tuple(compose(*each) for each in",
        "tuple(each[0] for each in",
        "Sites that may hold the same person claim together what one of them costs.",
        "unit/privacy/test_statement.py",
        "unit/privacy/test_aggregate_price.py",
    ),
    _fault(
        "ledger-that-was-cut-and-glued",
        "privacy/_chain.py",
        "if entry.previous_hash != previous:",
        "if not entry.previous_hash:",
        "An entry may be taken out of a ledger unseen.",
        "unit/privacy/test_ledger.py",
    ),
    _fault(
        "detection-without-delta",
        "privacy/statement.py",
        "math.exp(min(epsilon, 700.0)) * false_alarms + delta,",
        "math.exp(min(epsilon, 700.0)) * false_alarms,",
        "`fedvi privacy` and advice say that a record is found less often than it can be.",
        "unit/privacy/test_advising.py",
    ),
)

_PROTOCOL = (
    _fault(
        "a-secret-for-two-releases",
        "client/worker.py",
        "secret = self._root.secret(self.client, release_id)",
        'secret = self.__dict__.setdefault("_first", self._root.secret(self.client, release_id))',
        "The difference of two releases has no noise left.",
        "unit/client/test_worker.py",
    ),
    _fault(
        "a-retry-draws-fresh-noise",
        "client/worker.py",
        "Visit(self._solver, release_id, secret, before",
        "Visit(self._solver, release_id, self._root.secret(release_id, len(self._info)), before",
        "An interrupted release is computed again with noise of another secret.",
        "unit/client/test_worker.py",
    ),
    _fault(
        "records-read-before-they-are-paid-for",
        "client/worker.py",
        "pending = self._taken_up(task, before) or self._reserved(task)\n"
        "        release_id, secret = pending.release_id, pending.secret\n"
        "        shard = self._shard()",
        "shard = self._shard()\n"
        "        pending = self._taken_up(task, before) or self._reserved(task)\n"
        "        release_id, secret = pending.release_id, pending.secret",
        "Records are read though no budget is left.",
        "unit/client/test_worker.py",
    ),
    _fault(
        "a-secret-kept-after-sealing",
        "store/sqlite.py",
        'write("DELETE FROM pending")\n            write("DELETE FROM state")\n            if state',
        'write("DELETE FROM state")\n            if state',
        "Whoever steals the disk strips the noise off what was sent.",
        "contracts/test_stores.py",
        "unit/store/test_sqlite.py",
    ),
    _fault(
        "a-second-answer-is-taken",
        "server/core/protocol.py",
        "if only not in (None, digest):\n        _, event = codec.decode(request.payload)",
        "if only is not None and not digest:\n        _, event = codec.decode(request.payload)",
        "A client sends other bytes for a task that it was charged for once.",
        "unit/server/test_protocol.py",
    ),
    _fault(
        "an-answer-to-another-task",
        "server/core/protocol.py",
        "    if task is None or task.task_id != request.task_id:\n"
        "        raise errors.ProtocolError(\n"
        '            f"client {request.client!r} answered',
        "    if task is None:\n"
        "        raise errors.ProtocolError(\n"
        '            f"client {request.client!r} answered',
        "An answer to an older posterior is folded as if it were today's.",
        "unit/server/test_protocol.py",
    ),
    _fault(
        "the-price-of-an-answer-is-not-checked",
        "server/core/protocol.py",
        "    if event != spec.costs[client]:",
        "    if event is None:",
        "A client answers with less noise than the study says.",
        "unit/server/test_protocol.py",
    ),
    _fault(
        "the-server-does-not-charge",
        "server/core/protocol.py",
        "        state = state._replace(ledgers=kept.put(state.ledgers, name, book))\n"
        "    return state._replace(tasks=kept.put(state.tasks, name, task)), Offer(task)",
        "    return state._replace(tasks=kept.put(state.tasks, name, task)), Offer(task)",
        "The server's ledger does not know of a task that it handed out.",
        "unit/server/test_protocol.py",
    ),
    _fault(
        "any-role-may-sign",
        "transport/identity.py",
        "if role not in (None, found.role):",
        "if role == found.name:",
        "A client's certificate signs what only the server may.",
        "unit/transport/test_identity.py",
    ),
)

_FAMILIES = (
    _fault(
        "damping-left-out",
        "federation/fold.py",
        "stacked.added(factors, deltas, damping, keep)",
        "stacked.added(factors, deltas, 1.0, keep)",
        "The server's steps are longer than it says.",
        "properties/test_federation.py",
        "unit/server/test_turns.py",
        "unit/server/test_protocol.py",
        "unit/server/test_clean_factors.py",
        "unit/server/test_aggregate_rounds.py",
        "unit/server/test_durable.py",
    ),
    _fault(
        "no-cavity",
        "updates/base.py",
        "return tree.subtract(task.posterior, task.factor)",
        "return task.posterior",
        "A client's records count again at every visit.",
        "unit/inference/test_solvers.py",
        "contracts/test_solvers.py",
    ),
    _fault(
        "divergence-with-a-wrong-sign",
        "expfam/gaussian.py",
        "xp.linalg.slogdet(eta_q.J)[1] - xp.linalg.slogdet(eta_p.J)[1]",
        "xp.linalg.slogdet(eta_p.J)[1] - xp.linalg.slogdet(eta_q.J)[1]",
        "KL divergences of full Gaussians are wrong, and may be negative.",
        "contracts/test_families.py",
    ),
    _fault(
        "half-left-out-of-a-mean",
        "expfam/gaussian.py",
        "return GaussianEta(location, -0.5 * (1.0 / eta.J + location**2))",
        "return GaussianEta(location, -(1.0 / eta.J + location**2))",
        "Mean parameters of diagonal Gaussians belong to other members.",
        "contracts/test_families.py",
    ),
    _fault(
        "digamma-of-the-wrong-sum",
        "expfam/dirichlet.py",
        "special.digamma(alpha) - special.digamma(total)",
        "special.digamma(alpha) - special.digamma(alpha).sum(axis=-1, keepdims=True)",
        "Expected log probabilities of a Dirichlet are wrong.",
        "contracts/test_families.py",
    ),
    _fault(
        "rate-left-out-of-a-curvature",
        "updates/finish.py",
        "(triangle(size)[2] * weight * rate)",
        "(triangle(size)[2] * weight)",
        "Sites that sample report too few records.",
        "unit/inference/test_site_release.py",
    ),
    _fault(
        "noise-of-one-site-for-all",
        "updates/noise_aware.py",
        "size, noise = family.size, math.sqrt(len(fold.factors))",
        "size, noise = family.size, 1.0",
        "Intervals of many sites are as narrow as if one had added noise.",
        "unit/updates/test_noise_aware.py",
    ),
    _fault(
        "polya-gamma-mean-doubled",
        "models/regression_statistics.py",
        "jnp.tanh(0.5 * safe) / (2.0 * safe)",
        "jnp.tanh(0.5 * safe) / safe",
        "Logistic regression by statistics ends at another posterior.",
        "unit/models/test_regression_statistics.py",
    ),
    _fault(
        "steps-that-weigh-alike",
        "updates/running_means.py",
        "_EMPHASIS = 1.0",
        "_EMPHASIS = 0.0",
        "Slow early steps count as much as late ones, and plans take the noise of other weights.",
        "unit/updates/test_running_means.py",
        "unit/updates/test_noise_aware.py",
    ),
)

_RESULTS = (
    _fault(
        "interval-of-another-level",
        "results/predictions.py",
        "return (1.0 - self.level) / 2.0, (1.0 + self.level) / 2.0",
        "return 1.0 - self.level, self.level",
        "An interval of 95 % holds 90 %.",
        "unit/results/test_predictions.py",
    ),
    _fault(
        "prediction-at-the-mean-alone",
        "results/predictions.py",
        "nodes = mean + points[:, None] * sd + offset",
        "nodes = mean + 0.0 * points[:, None] * sd + offset",
        "A predicted probability does not know how unsure the coefficients are.",
        "unit/results/test_predictions.py",
    ),
    _fault(
        "ratio-that-is-none",
        "study/spec/coefficients.py",
        'f"{ratio}_{what}": _exp(value) if read[index].is_ratio else None',
        'f"{ratio}_{what}": float(value) if read[index].is_ratio else None',
        "An odds ratio is printed as its logarithm.",
        "unit/study/test_coefficients.py",
    ),
    _fault(
        "numbers-beyond-their-bounds",
        "data/load.py",
        "return _Cell(_scaled(column, min(max(value, low), high)))",
        "return _Cell(_scaled(column, max(value, low)))",
        "A value above its declared bound is used as it is.",
        "unit/data/test_load.py",
    ),
    _fault(
        "outcome-without-its-own-noise",
        "models/outcomes/normal.py",
        "return np.hypot(unit * sd, self.noise_scale * unit)",
        "return unit * sd",
        "An interval of a new outcome is only as wide as one of its mean.",
        "unit/results/test_predictions.py",
    ),
    _fault(
        "counts-that-scatter-too-little",
        "models/outcomes/counts.py",
        "return np.asarray(scipy.stats.nbinom.cdf(y, shape, shape / (shape + means)))",
        "return np.asarray(scipy.stats.poisson.cdf(y, means))",
        "Intervals of overdispersed counts are those of Poisson counts.",
        "unit/results/test_predictions.py",
    ),
    _fault(
        "survival-that-stops-at-the-first-cut",
        "models/outcomes/hazard.py",
        "passed = passed + hazard * (high - low)",
        "passed = passed + 0.0 * hazard * (high - low)",
        "Synthetic times forget the hazard that they have lived through.",
        "unit/results/test_synthesis.py",
    ),
    _fault(
        "records-of-the-likeliest-level",
        "models/outcomes/categorical.py",
        "return [np.argmax(logits + random.gumbel(size=logits.shape), axis=1)]",
        "return [np.argmax(logits, axis=1)]",
        "Synthetic levels are always the most probable one.",
        "unit/results/test_synthesis.py",
    ),
    _fault(
        "components-drawn-alike",
        "models/mixture_statistics.py",
        'component = random.choice(self.components, count, p=shares(at["weights"]))',
        "component = random.choice(self.components, count)",
        "Synthetic records of a mixture have its components in equal parts.",
        "unit/results/test_generative.py",
    ),
    _fault(
        "likelihood-of-all-draws-together",
        "results/held_out.py",
        "float(total.mean() - math.log(draws))",
        "float(total.mean())",
        "Held-out log-likelihood grows with the number of draws.",
        "unit/results/test_held_out.py",
    ),
    _fault(
        "curvature-of-a-count-doubled",
        "models/outcomes/counts.py",
        "jax.lax.lgamma(y + 1.0), y - slope, -curvature",
        "jax.lax.lgamma(y + 1.0), y - slope, -2.0 * curvature",
        "The curvature of a Poisson count is twice that of its likelihood.",
        "unit/models/test_regressions.py",
    ),
    _fault(
        "quantile-one-too-low",
        "models/outcomes/base.py",
        "        return high\n    mean = weights @ means",
        "        return low\n    mean = weights @ means",
        "The ends of an interval of a count are one too low.",
        "unit/models/test_outcomes.py",
        "unit/results/test_predictions.py",
    ),
    _fault(
        "nodes-that-weigh-alike",
        "results/evaluation.py",
        "scipy.special.logsumexp(found + shares[:, None], axis=0)",
        "scipy.special.logsumexp(found - math.log(_NODES), axis=0)",
        "A likelihood is averaged over the nodes of the quadrature without their weights.",
        "unit/results/test_evaluation.py",
    ),
    _fault(
        "records-that-do-not-count-are-scored",
        "results/evaluation.py",
        "kept = {name: column[source.valid] for name, column in source.records.items()}",
        "kept = dict(source.records)",
        "Test records outside the schema are predicted, as rows of zeros.",
        "unit/results/test_evaluation.py",
    ),
    _fault(
        "synthetic-sets-of-one-seed",
        "results/synthesis.py",
        "np.random.SeedSequence(seed).spawn(sets)",
        "[np.random.SeedSequence(seed)] * sets",
        "Synthetic sets reuse one key: they differ by their draw of the parameters alone.",
        "unit/results/test_synthesis.py",
    ),
    _fault(
        "a-site-behind-a-sum-is-told",
        "results/run_record.py",
        "if run.is_summed or len(run.names)",
        "if len(run.names)",
        "Of a study that publishes sums alone, the result says what one site contributed.",
        "integration/test_aggregate_cli.py",
    ),
    _fault(
        "state-of-a-newer-version-taken-up",
        "server/store/schema.py",
        "unknown = sorted({field for field, _, _ in rows} - state_cells.CELLS.keys())",
        "rows = [row for row in rows if row[0] in state_cells.CELLS]\n    unknown: list[str] = []",
        "A server goes on from a part of what a newer version of fedvi stored.",
        "unit/server/test_durable.py",
    ),
)

_MASKS = (
    _fault(
        "masks-of-32-bits",
        "privacy/pairs.py",
        'return HKDFExpand(hashes.SHA256(), KEY_BYTES, b"fedvi mask 1" + task).derive(secret)',
        'return HKDFExpand(hashes.SHA256(), 4, b"fedvi mask 1" + task).derive(secret) + bytes(28)',
        "A server tries all masks of a pair in an hour, and has each answer.",
        "unit/audit/test_masked.py",
    ),
    _fault(
        "one-mask-for-all-tasks",
        "privacy/pairs.py",
        'b"fedvi mask 1" + task)',
        'b"fedvi mask 1" + task[:0])',
        "The difference of two masked messages is that of two answers.",
        "unit/privacy/test_masks.py",
    ),
    _fault(
        "a-mask-that-serves-twice",
        "client/masking.py",
        "if task.visit <= answered:",
        "if task.visit < answered:",
        "A server that repeats a task has two answers behind one mask.",
        "unit/client/test_masking.py",
    ),
    _fault(
        "a-visit-under-another-name",
        "client/masking.py",
        'if task.task_id != f"{self._client}/{task.visit}":',
        'if not task.task_id.startswith(f"{self._client}/"):',
        "The same, by tasks whose names hide which visit they are of.",
        "unit/client/test_masking.py",
    ),
    _fault(
        "masks-of-one-sign",
        "privacy/masks.py",
        "words -= _stream(key, nothing, words.dtype)",
        "words += _stream(key, nothing, words.dtype)",
        "Masks do not cancel, and no sum is read.",
        "unit/privacy/test_masks.py",
    ),
    _fault(
        "masks-that-are-not-chacha20",
        "privacy/masks.py",
        "encryptor.update(nothing)",
        'np.random.Generator(np.random.PCG64(int.from_bytes(key, "little"))).bytes(len(nothing))',
        "Masks cancel, and a few known numbers of one tell the others.",
        "unit/privacy/test_masks.py",
    ),
    _fault(
        "a-sum-that-is-read-anyway",
        "privacy/masks.py",
        "if whole[len(whole) - GUARD :].any():",
        "if not whole.size:",
        "What is left of masks that do not cancel is folded as if it were a sum.",
        "unit/privacy/test_masks.py",
    ),
    _fault(
        "an-answer-that-is-sealed-without-its-mask",
        "client/worker.py",
        "payload = self._mask(visit.task, payload)",
        "self._mask(visit.task, payload)",
        "Every answer leaves as it is.",
        "unit/client/test_masking.py",
    ),
    _fault(
        "keys-that-nobody-vouches-for",
        "client/signed_keys.py",
        "signer.signer_of(name, content, signature)",
        '"0" * 64',
        "A server puts keys of its own in the place of every other site's.",
        "unit/client/test_masking.py",
    ),
    _fault(
        "one-of-two-key-exchanges",
        "privacy/pairs.py",
        ".derive(agreed + shared)",
        ".derive(agreed)",
        "Who breaks X25519 alone has all masks.",
        "unit/privacy/test_masks.py",
    ),
    _fault(
        "a-split-view-of-the-keys",
        "privacy/pairs.py",
        "if not shared or not hmac.compare_digest(tag, expected):",
        "if not shared:",
        "Two sites that were shown different keys go on, and what they mask does not cancel.",
        "unit/privacy/test_masks.py",
    ),
    _fault(
        "a-roster-that-is-not-pinned",
        "client/masking.py",
        'if held.board not in ("", board):',
        "if not board:",
        "A server changes who takes part when a site is started again.",
        "unit/client/test_masking.py",
    ),
    _fault(
        "a-policy-whose-roster-is-not-asked",
        "client/masking.py",
        "if self._pinned not in (None, roster):",
        "if not roster:",
        "A site masks with whomever the authority signs.",
        "unit/client/test_masking.py",
    ),
    _fault(
        "another-key-under-a-name-that-is-known",
        "client/masking.py",
        "if held.known.get(member.name, member.identity) != member.identity:",
        "if not member.identity:",
        "When a site joins, somebody else takes the name of a site that was there before.",
        "unit/client/test_joining.py",
    ),
    _fault(
        "keys-of-an-epoch-before",
        "client/signed_keys.py",
        '("of the epoch", of_epoch, epoch),',
        '("of the epoch", epoch, epoch),',
        "A server shows keys that a site signed before another joined, and erased since.",
        "unit/client/test_joining.py",
    ),
    _fault(
        "a-layer-too-few-for-the-missing",
        "privacy/top_up.py",
        "return count\n        raise",
        "return count - 1\n        raise",
        "A sum without some sites has less noise than it is priced for.",
        "unit/privacy/test_top_up.py",
        "unit/client/test_opening.py",
    ),
    _fault(
        "a-secret-that-is-opened-though-a-site-is-missing",
        "client/opening.py",
        "    if outside:",
        "    if not inside:",
        "The server draws, and takes off, the layers of noise that the sum needs.",
        "unit/client/test_opening.py",
    ),
    _fault(
        "layers-of-half-the-noise",
        "privacy/top_up.py",
        "[np.where(keeps, column, entry & 0xFFFF)]",
        "[np.where(keeps, column, entry & 0xFFFF)] // 2",
        "Noise that makes up for missing sites has half the sd that it should.",
        "unit/privacy/test_top_up.py",
    ),
)

FAULTS: tuple[Fault, ...] = (*_PRIVACY, *_PROTOCOL, *_FAMILIES, *_RESULTS, *_MASKS)
"""By area: privacy, protocol, families and inference, results, masks."""
