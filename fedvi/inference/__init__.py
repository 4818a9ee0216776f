"""Local inference over one client's records. This file imports nothing, so that servers need no JAX."""

__all__: list[str] = []
