"""What the scripts of this folder share: options of a plan, and what was charged in words."""

import argparse
from typing import Any

from fedvi.privacy import statement

__all__ = ["add_plan_options", "sampling", "tell"]


def add_plan_options(
    parser: argparse.ArgumentParser, *, epsilon: float, delta: float, steps: int, rate: float
) -> None:
    """Adds the options of every script, with a script's own defaults."""
    add = parser.add_argument
    add("--epsilon", type=float, default=epsilon, help="what may be spent (default %(default)g)")
    add("--delta", type=float, default=delta, help="at which it holds (default %(default)g)")
    add("--steps", type=int, default=steps, help="how many there may be (default %(default)d)")
    add(
        "--rate",
        type=float,
        default=rate,
        help="probability that a record is in a step's batch (default %(default)g)",
    )
    add_common_options(parser)


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Adds those options that scripts have which sweep over the others, too."""
    add = parser.add_argument
    add(
        "--sampler",
        choices=("poisson", "feistel"),
        default="poisson",
        help="batches of random size, or of a fixed one at its higher price (default %(default)s)",
    )
    add(
        "--relation",
        choices=("substitute", "add_remove"),
        default="substitute",
        help="neighbouring tables differ by one record replaced, or by one more (default %(default)s)",
    )
    add(
        "--seed",
        type=int,
        help="draw all noise from this number, so that a run can be repeated; for tests and for "
        "looking around: there is no guarantee then, and the statement says so",
    )


def sampling(args: argparse.Namespace) -> dict[str, Any]:
    """Returns what `fedvi.privacy.sgd` is told of batches, neighbours and noise."""
    return {"sampler": args.sampler, "relation": args.relation, "insecure_seed": args.seed}


def tell(svi: Any) -> None:
    """Prints how steps were taken, and the statement of what they cost."""
    plan, ledger = svi.privacy, svi.ledger
    sampler = type(plan.sampler).__name__
    print(
        f"\n{plan.runs} × {plan.steps} steps on {sampler} batches at rate {plan.sampler.rate:.4g}, "
        f"clip norm {plan.clip_norm:g}, noise multiplier {plan.mechanism.noise_multiplier:.4g}\n"
    )
    claims = statement.claims(
        ledger, ledger.header.planned, plan.delta, [plan.accountant], kept=plan.kept
    )
    print(statement.to_text(claims))
