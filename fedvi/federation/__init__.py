"""The protocol shared by clients and server, as pure values and functions: messages, progress, folding."""

__all__: list[str] = []
