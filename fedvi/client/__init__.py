"""The client: pulls a task, guards its budget, solves, records, pushes."""

__all__: list[str] = []
