"""A variational autoencoder of pictures whose weights tell little about any one of them.

    python examples/one-table/vae.py --data mnist
    python examples/one-table/vae.py --data fashion-mnist --epochs 20 --epsilon 2
    python examples/one-table/vae.py --data mnist --epochs 20 --noise-multiplier 1.5
    python examples/one-table/vae.py --data mnist --kind convolutional

MNIST or Fashion-MNIST, in the folder of its four gzip files in IDX format; pixels are made 0 or 1 once,
at random. The dense network is that of d3p (arXiv:2103.11648, Section 5.1), 784-400-50, with 688,884
parameters. Printed is the negative ELBO of a test picture in nats: lower is better.

A dense epoch takes seconds on two cores. Convolutions are clipped by a gradient a record, which takes
several times as long as their plain gradient, and memory for a batch of them.
"""

import argparse
import gzip
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from autoencoders import convolutional_vae, dense_vae
from numpyro.infer import SVI, Trace_ELBO
from telling import add_common_options, sampling, tell

import fedvi

SIDE = 28


def pictures(folder, part, count, seed):
    """Reads binary pictures [n, 28, 28] from a gzip file in IDX format."""
    raw = gzip.decompress((Path(folder) / f"{part}-images-idx3-ubyte.gz").read_bytes())
    magic, total, rows, columns = np.frombuffer(raw, ">i4", 4)
    if (magic, rows, columns) != (2051, SIDE, SIDE):
        raise SystemExit(f"{part}: magic {magic}, {rows} × {columns}, expected 2051 and 28 × 28")
    grey = np.frombuffer(raw, np.uint8, offset=16).reshape(total, SIDE, SIDE)[:count]
    return (np.random.default_rng(seed).random(grey.shape) < grey / 255.0).astype(np.float32)


def plain_fit(model, guide, optim, x, batch, steps, seed=0):
    """Takes steps of NumPyro's SVI on random batches; returns the SVI and its last state."""
    svi = SVI(model, guide, optim, Trace_ELBO())

    @jax.jit
    def run(state, x, keys):
        def step(state, key):
            rows = jax.random.randint(key, (batch,), 0, x.shape[0])
            return svi.update(state, x[rows])[0], None

        return jax.lax.scan(step, state, keys)[0]

    state = svi.init(jax.random.key(seed), x[:batch])
    return svi, run(state, x, jax.random.split(jax.random.key(seed + 2), steps))


def main():
    """Fits and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--data", required=True, metavar="FOLDER", help="with train-images-idx3-ubyte.gz and t10k-…"
    )
    add("--kind", choices=("dense", "convolutional"), default="dense", help="(default %(default)s)")
    add("--epochs", type=float, default=3.0, help="passes over the records (default %(default)g)")
    add("--epsilon", type=float, help="what may be spent (default 1)")
    add("--noise-multiplier", type=float, help="noise std ÷ clip norm, in place of --epsilon")
    add("--delta", type=float, default=1e-5, help="at which it holds (default %(default)g)")
    add("--batch", type=int, default=128, help="expected size (default %(default)d)")
    add("--clip-norm", type=float, default=10.0, help="as in d3p (default %(default)g)")
    add("--learning-rate", type=float, default=1e-3, help="of Adam (default %(default)g)")
    add("--records", type=int, default=60_000, help="take the first only (default %(default)d)")
    add(
        "--held-out",
        type=int,
        default=0,
        metavar="N",
        help="judge by the last N of them, fitted on the others, and leave the test pictures alone: to "
        "choose a clip norm or a learning rate by",
    )
    add_common_options(parser)
    args = parser.parse_args()

    if args.epsilon is not None and args.noise_multiplier is not None:
        parser.error("--epsilon and --noise-multiplier: one follows from the other, give one")
    if not 0 <= args.held_out < args.records:
        parser.error(f"--held-out is {args.held_out}, expected at least 0 and below --records")
    budget = {"noise_multiplier": args.noise_multiplier}
    if args.noise_multiplier is None:
        budget = {"epsilon": 1.0 if args.epsilon is None else args.epsilon}

    x = pictures(args.data, "train", args.records, seed=0)
    if args.held_out:
        x, test, judged = x[: -args.held_out], x[-args.held_out :], "held-out"
    else:
        judged = "test"
        test = pictures(args.data, "t10k", max(args.records // 6, 1), seed=1)
    if args.kind == "dense":
        model, guide = dense_vae()
        x, test = (part.reshape(len(part), -1) for part in (x, test))
    else:
        model, guide = convolutional_vae()
    x, test = jnp.asarray(x), jnp.asarray(test)
    steps = max(round(args.epochs * len(x) / args.batch), 1)
    optim = numpyro.optim.Adam(args.learning_rate)

    begin = time.perf_counter()
    plain, state = plain_fit(model, guide, optim, x, args.batch, steps)
    loss = float(plain.evaluate(state, test)) / len(test)
    sizes = [leaf.size for leaf in jax.tree.leaves(plain.get_params(state))]
    print(f"{args.kind}: {sum(sizes):,} parameters, {len(x):,} pictures, {steps} steps")
    seconds = time.perf_counter() - begin
    print(
        f"not private  {loss:7.2f} nats a {judged} picture   ({seconds:.0f} s, compilation included)"
    )

    plan = fedvi.privacy.sgd(
        **budget,
        delta=args.delta,
        steps=steps,
        batch=args.batch,
        max_records=len(x),
        clip_norm=args.clip_norm,
        **sampling(args),
    )
    svi = fedvi.DPSVI(model, guide, optim, Trace_ELBO(), plan)
    begin = time.perf_counter()
    start = svi.init(jax.random.key(0), x)
    # `reveal`, since the pictures of the test are nobody's secret here.
    before = svi.evaluate(start, test).reveal() / len(test)
    result = svi.run(jax.random.key(0), steps, x, init_state=start, progress_bar=False)
    loss = svi.evaluate(result.state, test).reveal() / len(test)
    seconds = time.perf_counter() - begin
    print(
        f"private      {loss:7.2f} nats a {judged} picture   ({seconds:.0f} s, compilation included)"
    )
    print(f"untrained    {before:7.2f} nats a {judged} picture")
    tell(svi)


if __name__ == "__main__":
    main()
