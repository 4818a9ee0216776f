"""The server: a pure step over requests, and a coordinator that locks, persists and replies."""

__all__: list[str] = []
