"""A finished run: read from its folder, checked against its ledgers, and presented. Which file to open:

- the outcome of a run: `run_record` (of a simulation or a server), `outcome` (of a simulation),
  `posterior`, `influence` (of a site), `one_shot`; `baselines` to compare with;
- stored runs: `run_folder` and `finished` (a folder, without and with JAX), `result_json` (written and
  read), `report_ledgers` and `ledger_files` (its ledgers, verified and priced anew);
- presentation: `reporting` (the page and its other forms), `exports` (files for other tools),
  `draws` (of named parameters);
- public records: `public_files`, `new_records`, `evaluation` (with `scores`) and
  `held_out` (how well they are predicted), `predictions`;
- synthetic records: `synthesis`, with `ancestral` for NumPyro models.

A model itself defines what it can predict or draw (`fedvi.models.capabilities`, `fedvi.models.outcomes`):
no file here names a model.
"""

__all__: list[str] = []
