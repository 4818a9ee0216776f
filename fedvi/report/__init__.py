"""What a person reads: tables now."""

__all__: list[str] = []
