"""Drafts a new study: what is said of columns (`declarations`), its file (`drafting`), the files beside it
(`starting`), and the JSON schemas with which editors check both (`json_schema`)."""

__all__: list[str] = []
