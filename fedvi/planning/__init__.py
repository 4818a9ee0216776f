"""Plans a run without data: what a study would release (`plan`), at what price (`pricing`), with what
signal (`signals`; for topics, `topics`), and which private mode suits it (`advice`)."""

__all__: list[str] = []
