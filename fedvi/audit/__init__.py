"""Tests a study's privacy claim on the code that would run it; one module per layer of ``fedvi audit``."""

__all__: list[str] = []
