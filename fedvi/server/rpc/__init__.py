"""The server's side of gRPC: `service` (for clients) and `admin` (for operators), behind `door` (which
accepts connections) and `access` (who may call); `dispatcher` (runs the coordinator in one thread), `calls`
(reads calls and turns errors into statuses), `silence` (clients that are quiet
for long), `health`, `sockets`."""

__all__: list[str] = []
