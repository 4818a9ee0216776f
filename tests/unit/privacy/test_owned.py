"""What holds a secret exists once: no copy, no pickle, no other process."""

import copy
import functools
import io
import os
import pickle  # noqa: TID251 - that it is refused is what is tested
from multiprocessing import reduction

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Trace_ELBO, autoguide

import fedvi
from fedvi import errors, models
from fedvi.client.held_keys import Held
from fedvi.client.worker import Visit, Worker
from fedvi.inference.svi import DPSVI
from fedvi.inference.vips import VIPS
from fedvi.privacy import owned, random
from fedvi.privacy.pairs import Keys, Offered

pytestmark = pytest.mark.numpyro

PLAN = {"steps": 3, "max_records": 8, "noise_multiplier": 9.0, "delta": 1e-3, "sampler": "full"}


def model(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)


class Derived(DPSVI):
    """A class of somebody else's."""


def descent(kind=DPSVI):
    optim = numpyro.optim.SGD(0.1)
    return kind(model, autoguide.AutoNormal(model), optim, Trace_ELBO(), fedvi.privacy.sgd(**PLAN))


HOLDERS = {
    "DPSVI": descent,
    "a subclass": lambda: descent(Derived),
    "VIPS": lambda: VIPS(models.linear(["x"]), fedvi.privacy.sgd(**PLAN)),
    "a root": random.secure_root,
    "an insecure root": lambda: random.insecure_root(1),
    "a worker": lambda: object.__new__(Worker),
    "a visit": lambda: Visit(None, "a", bytes(32), None, None, None),
    "mask keys": lambda: Held(None, b""),
    "private keys": lambda: Keys(bytes(32), bytes(64)),
    "an offer": lambda: Offered(b"", bytes(32)),
}


def dispatched(holder):
    """Pickles as joblib and multiprocessing do, with a table of reducers of their own."""
    pickler = pickle.Pickler(io.BytesIO())
    pickler.dispatch_table = {}
    pickler.dump(holder)


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "the oldest protocol": functools.partial(pickle.dumps, protocol=0),
    "the pickler in Python": pickle._dumps,
    "its own table": dispatched,
    "multiprocessing": reduction.ForkingPickler.dumps,
}


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("copied", COPIES)
def test_a_holder_of_a_secret_is_neither_copied_nor_pickled(holder, copied):
    with pytest.raises(errors.PrivacyError, match=r" was (copied|pickled)") as no:
        COPIES[copied](HOLDERS[holder]())
    assert no.value.hint


@pytest.mark.parametrize("what", ["update", "run", "init"])
def test_a_bound_method_takes_its_object_along_nowhere(what):
    with pytest.raises(errors.PrivacyError, match="a DPSVI was pickled"):
        pickle.dumps(functools.partial(getattr(descent(), what), 1))


class Older:
    """Pickles as an older version did: an object by its class, and its state."""

    def __init__(self, kind, state):
        self.kind, self.state = kind, state

    def __reduce__(self):
        return object.__new__, (self.kind,), self.state


@pytest.mark.parametrize("kind", [DPSVI, VIPS, random.Root])
def test_what_an_older_version_pickled_is_refused(kind):
    held = pickle.dumps(Older(kind, {"_owner": os.getpid(), "_secret": bytes(32), "secure": False}))
    with pytest.raises(errors.PrivacyError, match=f"a {kind.__name__} was unpickled"):
        pickle.loads(held)


def test_an_object_without_an_owner_is_used_by_nobody():
    with pytest.raises(errors.PrivacyError, match="or did not make it"):
        object.__new__(DPSVI)._check_owner()


@pytest.mark.filterwarnings("ignore:os.fork")  # JAX's, which the child does not call
def test_a_forked_process_differs_even_under_the_same_number(monkeypatch):
    own = owned.this_process()
    assert own == owned.this_process()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, owned.this_process().token)
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 99) != own.token
    assert len(own.token) == 16
    monkeypatch.setattr("os.getpid", lambda: own.number)
    assert own == owned.this_process()


@pytest.mark.parametrize("field", ["boot", "namespace", "started"])
def test_each_fact_of_the_kernel_tells_another_process(monkeypatch, field):
    fit, own = descent(), owned.this_process()
    if not getattr(own, field):
        pytest.skip("this system has no /proc")
    there = own._replace(**{field: type(getattr(own, field))()})
    monkeypatch.setattr(owned, "this_process", lambda: there)
    with pytest.raises(errors.PrivacyError, match="used by a process that was forked off"):
        fit.run(None, 1, np.zeros(8, np.float32))


def test_a_system_without_proc_has_the_number_and_the_token(monkeypatch):
    def missing(*_):
        raise FileNotFoundError

    monkeypatch.setattr("os.open", missing)
    monkeypatch.setattr("os.readlink", missing)
    assert owned.this_process()[2:] == (b"", "", b"")
    fit = descent()
    fit._check_owner()


def test_the_start_of_a_process_is_read_past_a_name_with_parentheses():
    stat = b"1 (a) b (c)) S " + b" ".join(b"%d" % field for field in range(4, 53))
    assert owned._started(stat) == b"22"
