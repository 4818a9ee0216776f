"""What a person reads: tables, plots, and the report of a run."""

__all__: list[str] = []
