"""How outcomes are distributed: each file is one kind of outcome, with all that is asked of it.

Nothing is imported here, so that a server, which needs only ``accepted``, needs no JAX.
"""

__all__: list[str] = []
