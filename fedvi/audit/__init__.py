"""Tests of the privacy claim on the code that runs; come here to add a layer to ``fedvi audit``."""

__all__: list[str] = []
