"""What a server keeps on its disk: `durable` (its state), as `state_cells` of the tables of `schema`;
`journal` (the operational log), `uploads` (answers that are on their way), `backup`."""

__all__: list[str] = []
