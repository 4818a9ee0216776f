"""Steps of Opacus: run_opacus.py CASE ghost|samples.

Poisson batches are drawn by Opacus' own sampler and gathered from one tensor, without a data loader,
which would fetch records one by one. The regression has a plain loss: its maximum a posteriori.
"""

import sys
from typing import Any

import tables
import torch
import turns
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus


class Autoencoder(nn.Module):
    """784 → 400 → 50 and back; a call returns each record's negative ELBO, from one draw."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.mean, self.log_sd = (
            nn.Linear(784, 400),
            nn.Linear(400, 50),
            nn.Linear(400, 50),
        )
        self.decoder, self.logits = nn.Linear(50, 400), nn.Linear(400, 784)

    def forward(self, x: Any) -> Any:
        hidden = softplus(self.encoder(x))
        mean, log_sd = self.mean(hidden), self.log_sd(hidden)
        noise = torch.randn_like(mean)
        z = mean + noise * log_sd.exp()
        logits = self.logits(softplus(self.decoder(z)))
        fit = binary_cross_entropy_with_logits(logits, x, reduction="none").sum(dim=1)
        return fit + (0.5 * z**2 - 0.5 * noise**2 - log_sd).sum(dim=1)


class Regression(nn.Module):
    """A logistic regression on 100 covariates without intercept; returns each record's loss."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Linear(100, 1, bias=False)

    def forward(self, x: Any, y: Any) -> Any:
        return binary_cross_entropy_with_logits(self.b(x)[:, 0], y, reduction="none")


def main(name: str, clipping: str) -> None:
    """Serves turns of one candidate."""
    # With two, OpenMP waits for a core that something else has: up to 60 times as long.
    torch.set_num_threads(1)
    table = tables.TABLES[name]()
    columns = [torch.as_tensor(column) for column in table.columns]
    module = {"vae": Autoencoder, "logistic": Regression}[name]()
    # The regression's prior, N(0, 2²), in units of one record.
    decay = 0.25 / 50_000 if name == "logistic" else 0.0
    adam = torch.optim.Adam(module.parameters(), 1e-3, weight_decay=decay)
    settings = {
        "noise_multiplier": table.noise,
        "max_grad_norm": 1.0,
        "expected_batch_size": table.batch,
    }
    if clipping == "ghost":
        wrapped: Any = GradSampleModuleFastGradientClipping(module, max_grad_norm=1.0)
        optimiser: Any = DPOptimizerFastGradientClipping(adam, **settings)
    else:
        wrapped, optimiser = GradSampleModule(module), DPOptimizer(adam, **settings)
    records = len(columns[0])

    def take(steps: int) -> None:
        for rows in UniformWithReplacementSampler(
            num_samples=records, sample_rate=table.batch / records, steps=steps
        ):
            at = torch.as_tensor(rows)
            optimiser.zero_grad(set_to_none=True)
            losses = wrapped(*(column[at] for column in columns))
            if clipping == "ghost":
                DPTensorFastGradientClipping(wrapped, optimiser, losses).backward()
            else:
                losses.mean().backward()
            optimiser.step()

    turns.serve(take)


if __name__ == "__main__":
    main(*sys.argv[1:])
