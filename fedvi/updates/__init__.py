"""Tasks, and what a server makes of their answers: NumPy in float64, so that a server needs no JAX.

Which file to open:

- `base`: a task, a change of a factor, and what a local solver is;
- `finish`: a released answer becomes a change; `whitened_changes` undoes a prior's whitening;
- `statistics`: noisy sums of expected statistics become a posterior, for any `conjugate` model;
- `noise_aware`: the posterior that noisy answers leave; `supported` says how much curvature they support;
- `coordinates`: public coordinates of a regression's columns, and the survey that they are learnt from.
"""

__all__: list[str] = []
