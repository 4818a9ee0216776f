"""Distributions of outcomes: each file defines one kind of outcome with all of its methods.

This file imports nothing, so that a server, which needs only ``accepted``, needs no JAX.
"""

__all__: list[str] = []
