"""Generated from protos/ by `make protos`; change the .proto files, never these."""

__all__: list[str] = []
