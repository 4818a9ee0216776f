"""What leaves and what it costs: the one door between data and the world.

The names live in the modules (``fedvi.privacy.release``, ``.events``, ``.ledger``, …); nothing is
imported here, so that accountants stay free of JAX.
"""

__all__: list[str] = []
