"""The server: a pure step over requests, and the process around it. Which file to open:

- `app` (the process), `file_exchange` (files in place of calls), `coordinator` (save before reply), `logs`;
- `core/`: the protocol, as pure functions without a clock, a file or a socket;
- `store/`: the state on disk;
- `rpc/`: gRPC services and access control;
- `watch/`: logs, metrics and the browser page, whose files are in `assets/`.
"""

__all__: list[str] = []
