"""Tasks, and the server's computations on their answers, in float64 NumPy, so that a server needs no JAX.

Files:

- `base`: tasks, changes of factors, and the interface of local solvers;
- `finish`: turns a released answer into a change; `whitened_changes` undoes a prior's whitening;
- `statistics`: turns noisy sums of expected statistics into a posterior, for any `conjugate` model;
- `noise_aware`: the posterior given noisy answers; `supported` measures how much curvature they support;
- `foretold`: whether the last answers are those that the reported posterior foretells;
- `coordinates`: public coordinates of a regression's columns, learnt from a survey.
"""

__all__: list[str] = []
