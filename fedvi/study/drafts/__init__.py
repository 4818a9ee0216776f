"""A study that is begun: its file (`drafting`), what stands beside it (`starting`), and the JSON schemas
with which editors check both (`json_schema`)."""

__all__: list[str] = []
