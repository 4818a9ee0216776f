"""AUC of diffprivlib's logistic regression: run_diffprivlib.py TABLE.npz SEEDS PENALTIES EPSILON…

Objective perturbation, δ = 0. Of each ε the penalty C that is best *on the test set*, of those given with
commas between them, is printed, which flatters it; the bound on a row's norm is the table's public one.
"""

import sys
import warnings

import numpy as np
from diffprivlib.models import LogisticRegression
from sklearn.metrics import roc_auc_score


def main(path: str, seeds: str, penalties: str, *epsilons: str) -> None:
    """Prints a line for each ε: mean and sd over splits and seeds, and C."""
    warnings.filterwarnings("ignore")  # of rows that it shortens to the bound, as is meant here
    table = np.load(path)
    for epsilon in map(float, epsilons):
        found = {}
        for strength in map(float, penalties.split(",")):
            scores = []
            for train, test in zip(table["train"], table["test"], strict=True):
                for seed in range(int(seeds)):
                    model = LogisticRegression(
                        epsilon=epsilon,
                        data_norm=float(table["row_norm"]),
                        C=strength,
                        fit_intercept=False,
                        random_state=seed,
                    )
                    model.fit(table["x"][train], table["y"][train].astype(int))
                    score = model.decision_function(table["x"][test])
                    scores.append(roc_auc_score(table["y"][test], score))
            found[strength] = (float(np.mean(scores)), float(np.std(scores)))
        best = max(found, key=lambda strength: found[strength])
        print(f"{epsilon:g} {found[best][0]:.4f} {found[best][1]:.4f} C={best:g}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
