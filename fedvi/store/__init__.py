"""What must survive: the client's ledger, secrets and outbox, the server's state."""

__all__: list[str] = []
