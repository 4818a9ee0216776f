"""The server's files: `durable` (its state), split by `state_cells` into the tables of `schema`;
`journal` (the operational log), `uploads` (answers that are on their way), `backup`."""

__all__: list[str] = []
