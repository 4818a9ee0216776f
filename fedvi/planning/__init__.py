"""Before a run: what a study would release (`plan`), at what price (`pricing`), with what signal
(`signals`; of topics, `topics`), and which private mode suits it (`advice`). Reads no data."""

__all__: list[str] = []
