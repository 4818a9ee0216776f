"""What clients and server agree on, as pure values and functions: messages, progress, folding."""

__all__: list[str] = []
