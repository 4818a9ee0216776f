"""The autoencoders: sizes, likelihoods and the bound on a record's gradient, against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from autoencoders import convolutional_vae, dense_vae
from numpyro import handlers
from numpyro.infer import SVI, Trace_ELBO

import fedvi
from fedvi.errors import ModelError

pytestmark = pytest.mark.numpyro

SMALL = {
    "dense": (lambda: dense_vae(12, hidden=5, latent=3), (12,)),
    "convolutional": (lambda: convolutional_vae(8, channels=2, latent=3), (8, 8)),
}


def pictures(shape, count=6):
    return (np.random.default_rng(0).random((count, *shape)) < 0.4).astype(np.float32)


def parameters(pair, x):
    svi = SVI(*pair, numpyro.optim.Adam(0.01), Trace_ELBO())
    return svi.get_params(svi.init(jax.random.key(0), x))


@pytest.mark.nightly(only=("convolutional_vae-shape1-50345",))
@pytest.mark.parametrize(
    ("make", "shape", "count"),
    [
        # 784·400 + 400, twice 400·50 + 50; 50·400 + 400, 400·784 + 784.
        (dense_vae, (784,), 314_000 + 2 * 20_050 + 20_400 + 314_384),
        # Encoder 9·8 + 8, 9·8·16 + 16, twice 784·20 + 20; decoder 20·784 + 784,
        # 9·16·8 + 8, 9·8 + 1.
        (convolutional_vae, (28, 28), 80 + 1_168 + 2 * 15_700 + 16_464 + 1_160 + 73),
    ],
)
def test_networks_have_the_parameters_that_their_docstrings_say(make, shape, count):
    leaves = jax.tree.leaves(parameters(make(), pictures(shape, 2)))
    assert sum(leaf.size for leaf in leaves) == count
    assert count in (688_884, 50_345)


@pytest.mark.nightly
def test_the_dense_network_is_the_one_of_the_formula():
    make, shape = SMALL["dense"]
    model, guide = make()
    x = pictures(shape)
    params = parameters((model, guide), x)

    def softplus(a):
        return np.logaddexp(0.0, a)

    def dense(layers, name, a):
        return a @ np.asarray(layers[name]["kernel"]) + np.asarray(layers[name]["bias"])

    encoder, decoder = params["encoder$params"], params["decoder$params"]
    hidden = softplus(dense(encoder, "Dense_0", x))
    z = dense(encoder, "Dense_1", hidden)
    sites = handlers.trace(handlers.substitute(guide, params)).get_trace
    with handlers.seed(rng_seed=0):
        found = sites(x)["z"]["fn"].base_dist
    # Float32 on one side.
    np.testing.assert_allclose(found.loc, z, rtol=1e-4, atol=1e-5)
    sd = np.exp(dense(encoder, "Dense_2", hidden))
    np.testing.assert_allclose(found.scale, sd, rtol=1e-4)
    logits = dense(decoder, "Dense_1", softplus(dense(decoder, "Dense_0", z)))
    expected = (x * logits - softplus(logits)).sum(axis=1)
    trace = handlers.trace(
        handlers.substitute(model, {**params, "z": jnp.asarray(z, jnp.float32)})
    ).get_trace(x)
    np.testing.assert_allclose(trace["x"]["fn"].log_prob(x), expected, rtol=1e-4)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", SMALL)
def test_no_picture_moves_a_step_by_more_than_twice_the_clip_norm(kind):
    make, shape = SMALL[kind]
    model, guide = make()
    x = pictures(shape)
    plan = fedvi.privacy.sgd(
        noise_multiplier=0.0, clip_norm=0.5, steps=1, max_records=len(x), sampler="full",
        insecure_seed=1,
    )  # fmt: skip
    ends = []
    for last in (x[-1], 1.0 - x[-1]):
        # With a rate of 1, a step is the clipped sum of gradients. The codes of all others stay.
        svi = fedvi.DPSVI(model, guide, numpyro.optim.SGD(1.0), Trace_ELBO(), plan)
        x = np.concatenate([x[:-1], last[None]])
        state, _ = svi.update(svi.init(jax.random.key(0), x), x)
        ends.append(np.concatenate([np.ravel(a) for a in jax.tree.leaves(svi.get_params(state))]))
    assert 0.1 < np.linalg.norm(ends[0] - ends[1]) <= 1.0 + 1e-5


@pytest.mark.parametrize("kind", SMALL)
def test_pictures_of_another_shape_are_refused(kind):
    make, _ = SMALL[kind]
    for function in make():
        with pytest.raises(ModelError, match=r"x has shape \(2, 7\), expected \[n, "):
            handlers.seed(function, 0)(np.zeros((2, 7), np.float32))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dense_vae(0), "pixels is 0, expected an integer of at least 1"),
        (lambda: dense_vae(hidden=True), "hidden is True"),
        (lambda: dense_vae(latent=-1), "latent is -1"),
        (lambda: convolutional_vae(30), "side is 30, expected a multiple of 4"),
        (lambda: convolutional_vae(channels=0), "channels is 0"),
    ],
)
def test_sizes_out_of_range_are_refused(make, message):
    with pytest.raises(ModelError, match=message):
        make()
