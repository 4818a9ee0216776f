"""A run that is over: read from its folder, checked against its ledgers, and told. Which file to open:

- what a run came to: `outcome`, `posterior`, `influence` (of a site), `one_shot`; `baselines` beside it;
- what was kept: `finished` (a folder), `result_json`, `report_ledgers` and `ledger_files`
  (its ledgers, verified and priced anew);
- what is told: `reporting` (the page and its other forms), `exports` (files for other tools), `draws`
  (of named parameters);
- records that nobody needs to protect: `public_files`, `new_records`, `evaluation` (with `scores`) and
  `held_out` (how well they are predicted), `predictions`;
- records that are made: `synthesis`, with `ancestral` for NumPyro models.

What a model can tell, or draw, it says itself (`fedvi.models.capabilities`, `fedvi.models.outcomes`): no
file here names one.
"""

__all__: list[str] = []
