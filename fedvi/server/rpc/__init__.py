"""The server's side of gRPC: `service` (for clients) and `admin` (for operators), behind `access` (who may
call); `dispatcher` (the one thread that the coordinator runs in), `calls` (errors become statuses),
`health`, `sockets`."""

__all__: list[str] = []
