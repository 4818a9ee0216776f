"""Lists all planted faults, grouped by what they break."""

from fedvi.audit.faults.at_clients import AT_CLIENTS
from fedvi.audit.faults.in_prices import IN_PRICES
from fedvi.audit.faults.in_releases import IN_RELEASES

__all__ = ["FAULTS"]

FAULTS = (*AT_CLIENTS, *IN_PRICES, *IN_RELEASES)
"""Faults of clients and their stores; of prices and ledgers; of noise, batches and clips."""
