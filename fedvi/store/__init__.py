"""Durable stores: the client's ledger, secrets and outbox, and tools that the server's store shares."""

__all__: list[str] = []
