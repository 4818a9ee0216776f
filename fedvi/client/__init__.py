"""The client: fetches tasks, guards its budget, solves, seals and sends answers."""

__all__: list[str] = []
