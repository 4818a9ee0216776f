"""What happens at a server, as pure functions: `state` (its types), `protocol` (the step), `turns` (folds,
deadlines), `membership` (who joins and leaves), `sum_rounds` (of which the sum alone is published),
`run_events` (what changed, in sentences), `prices` (ε beside each fold)."""

__all__: list[str] = []
