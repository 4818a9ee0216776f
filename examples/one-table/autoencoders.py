"""Variational autoencoders of pictures, in Flax."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from flax import linen
from numpyro.contrib.module import flax_module

from fedvi import errors

__all__ = ["convolutional_vae", "dense_vae"]

Pair = tuple[Callable[..., None], Callable[..., None]]


def dense_vae(pixels: int = 784, *, hidden: int = 400, latent: int = 50) -> Pair:
    """Makes a variational autoencoder of fully connected layers: pixels → hidden → latent and back.

    z ~ N(0, I) and x ~ Bernoulli(decoder(z)); q(z | x) = N(mean, sd²) from the encoder. One hidden layer
    each way, softplus between. With 784, 400 and 50 there are 688,884 parameters. ``DPSVI`` clips dense
    layers without forming a gradient a record.

    Args:
      pixels, hidden, latent: sizes of the layers, at least 1.

    Returns:
      (model, guide): NumPyro functions of x [n, pixels] in 0 … 1, with the record plate ``records``.

    Raises:
      ModelError: if a size is no positive integer; from model and guide, if x has another shape.

    Source: the network of NumPyro's example, taken over by Prediger et al. (2022), arXiv:2103.11648,
    Section 5.1.

    >>> model, guide = dense_vae()
    """
    _check_sizes(pixels=pixels, hidden=hidden, latent=latent)
    return _vae(_DenseEncoder(hidden, latent), _DenseDecoder(hidden, pixels), (pixels,), latent)


def convolutional_vae(side: int = 28, *, channels: int = 8, latent: int = 20) -> Pair:
    """Makes a variational autoencoder of two convolutions each way, each of stride 2 and 3 × 3 pixels.

    side² → (side/2)²·channels → (side/4)²·2·channels → latent, and back by transposed convolutions; the
    rest is as in ``dense_vae``. With 28, 8 and 20 there are 50,345 parameters. ``DPSVI`` forms a gradient
    a record here, so memory for a batch of B records is B × parameters × 4 bytes and more: keep both
    small, or work in smaller batches.

    Args:
      side: of the square pictures, a multiple of 4.
      channels: of the outer convolution; the inner one has twice as many.
      latent: the length of z.

    Returns:
      (model, guide): NumPyro functions of x [n, side, side] in 0 … 1, with the record plate
      ``records``.

    Raises:
      ModelError: as ``dense_vae``, and if ``side`` is no multiple of 4.

    >>> model, guide = convolutional_vae()
    """
    _check_sizes(side=side, channels=channels, latent=latent)
    if side % 4:
        raise errors.ModelError(f"side is {side}, expected a multiple of 4", "pad the pictures")
    encoder = _ConvolutionalEncoder(channels, latent)
    return _vae(encoder, _ConvolutionalDecoder(side, channels), (side, side), latent)


class _DenseEncoder(linen.Module):
    hidden: int
    latent: int

    @linen.compact
    def __call__(self, x: Any) -> tuple[Any, Any]:
        inner = linen.softplus(linen.Dense(self.hidden)(x))
        return linen.Dense(self.latent)(inner), jnp.exp(linen.Dense(self.latent)(inner))


class _DenseDecoder(linen.Module):
    hidden: int
    pixels: int

    @linen.compact
    def __call__(self, z: Any) -> Any:
        inner = linen.softplus(linen.Dense(self.hidden)(z))
        return linen.Dense(self.pixels)(inner)


class _ConvolutionalEncoder(linen.Module):
    channels: int
    latent: int

    @linen.compact
    def __call__(self, x: Any) -> tuple[Any, Any]:
        inner = x[..., None]
        for channels in (self.channels, 2 * self.channels):
            inner = linen.softplus(linen.Conv(channels, (3, 3), strides=(2, 2))(inner))
        inner = inner.reshape(*inner.shape[:-3], -1)
        return linen.Dense(self.latent)(inner), jnp.exp(linen.Dense(self.latent)(inner))


class _ConvolutionalDecoder(linen.Module):
    side: int
    channels: int

    @linen.compact
    def __call__(self, z: Any) -> Any:
        corner, channels = self.side // 4, 2 * self.channels
        inner = linen.softplus(linen.Dense(corner * corner * channels)(z))
        inner = inner.reshape(*inner.shape[:-1], corner, corner, channels)
        inner = linen.softplus(linen.ConvTranspose(self.channels, (3, 3), strides=(2, 2))(inner))
        return linen.ConvTranspose(1, (3, 3), strides=(2, 2))(inner)[..., 0]


def _vae(encoder: Any, decoder: Any, shape: tuple[int, ...], latent: int) -> Pair:
    def check(x: Any) -> None:
        if x.shape[1:] != shape:
            wanted = ", ".join(map(str, shape))
            raise errors.ModelError(f"x has shape {x.shape}, expected [n, {wanted}]")

    def model(x: Any) -> None:
        check(x)
        decode = flax_module("decoder", decoder, input_shape=(1, latent))
        with numpyro.plate("records", x.shape[0]):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([latent]).to_event(1))
            pixels = dist.Bernoulli(logits=decode(z)).to_event(len(shape))
            numpyro.sample("x", pixels, obs=x)

    def guide(x: Any) -> None:
        check(x)
        encode = flax_module("encoder", encoder, input_shape=(1, *shape))
        with numpyro.plate("records", x.shape[0]):
            mean, sd = encode(x)
            numpyro.sample("z", dist.Normal(mean, sd).to_event(1))

    return model, guide


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise errors.ModelError(f"{name} is {size!r}, expected an integer of at least 1")
