"""What a request may cost where there are many sites: it looks neither at all tasks nor at all matrices."""

import asyncio
import types

import numpy as np
import pytest

from fedvi import expfam
from fedvi.expfam import tree
from fedvi.server.core import state as states
from fedvi.server.rpc import service
from fedvi.transport import bundle

SITES, SIZE = 60, 200  # a diagonal factor of 3.2 KB


def task_of(posterior, factor):
    return types.SimpleNamespace(posterior=posterior, factor=factor)


def test_packing_a_round_looks_a_few_times_at_what_is_held_and_keeps_little_else(monkeypatch):
    looks = []
    monkeypatch.setattr(
        service, "_arrays_of", lambda eta, of=service._arrays_of: (looks.append(eta), of(eta))[1]
    )
    monkeypatch.setattr(service, "_LOOK_BYTES", 100_000)
    family = expfam.diagonal_gaussian(SIZE)
    dispatcher = types.SimpleNamespace(state=types.SimpleNamespace(tasks={}))

    async def rounds():
        service_ = service.Federation(dispatcher, None, None, None)
        for count in range(1, 6):
            posterior = tree.freeze(family.isotropic(1.0 / count))
            tasks = {
                f"c{site}": task_of(posterior, tree.freeze(family.isotropic(1.0 + site)))
                for site in range(SITES)
            }
            dispatcher.state.tasks = tasks
            looks.clear()
            for task in tasks.values():
                for eta in (task.posterior, task.factor):
                    assert (await service_._bundle(eta)) == bundle.of_eta(eta)
            # Each is looked up once; some 190 KB are packed in a round, and cost two or three looks at all.
            assert len(looks) <= 2 * SITES + 3 * 2 * SITES
            held = sum(made.manifest.size for _, made in service_._bundles.values())
            there = (SITES + 1) * 2 * SIZE * 8
            assert held <= there + 100_000 + 2 * SIZE * 8

    asyncio.run(rounds())


class Counting:
    """A family that counts projections."""

    def __init__(self, family):
        self.family, self.count = family, 0

    def project(self, eta, floor):
        self.count += 1
        return self.family.project(eta, floor)


@pytest.fixture
def spec():
    family = expfam.full_gaussian(3)
    return types.SimpleNamespace(family=Counting(family), prior=family.isotropic(2.0))


def served(spec, posterior):
    return states.served(spec, types.SimpleNamespace(standing=None, posterior=posterior))


def test_a_posterior_is_tested_once_for_all_tasks_of_a_round(spec):
    family = spec.family.family
    for count in range(1, 4):
        posterior = tree.freeze(family.isotropic(1.0 / count))
        for _ in range(10):
            assert served(spec, posterior) is posterior
        # The tree that holds the arrays may be another one.
        assert served(spec, type(posterior)(*posterior)).J is posterior.J
        assert spec.family.count == count


def test_an_improper_posterior_is_projected_and_never_taken_for_one_that_is_gone(spec):
    family, generator = spec.family.family, np.random.default_rng(0)
    for _ in range(50):
        good = tree.freeze(family.isotropic(float(generator.uniform(0.5, 2.0))))
        assert served(spec, good) is good
        del good  # its memory is free for the next one
        bad = tree.freeze(tree.scale(family.isotropic(1.0), -1.0))
        assert family.is_proper(served(spec, bad))
        assert served(spec, bad) is not bad


def test_a_posterior_that_may_still_change_is_not_remembered(spec):
    posterior = spec.family.family.isotropic(1.0)
    assert posterior.J.flags.writeable
    served(spec, posterior)
    posterior.J[...] *= -1.0
    assert served(spec, posterior) is not posterior
