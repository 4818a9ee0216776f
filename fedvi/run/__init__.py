"""Builds and runs a federation from a study.

Which file to open: `loading` (records), `site` (a worker), `server_plan` (what a server reads, without
JAX), `simulate` (all of them in one process), `changes` (who leaves and joins), `compiled` (the cache of
compiled code).
"""

__all__: list[str] = []
