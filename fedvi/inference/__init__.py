"""How one party improves a posterior; nothing is imported here, so that a server needs no JAX."""

__all__: list[str] = []
