"""The server: a pure step over requests, and what surrounds it. Which file to open:

- `app` (the process), `file_exchange` (files in place of calls), `coordinator` (save before reply), `logs`;
- `core/`: what happens, without a clock, a file or a socket;
- `store/`: what lasts;
- `rpc/`: who calls, and who may;
- `watch/`: what people are told; its page is in `assets/`.
"""

__all__: list[str] = []
