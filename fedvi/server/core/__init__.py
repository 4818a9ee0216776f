"""The server's logic as pure functions: `state` (its types), `protocol` (the step), `turns` (folds,
deadlines), `membership` (clients that join and leave), `sum_rounds` (rounds that publish only a sum),
`run_events` (what changed, in sentences), `prices` (ε beside each fold)."""

__all__: list[str] = []
