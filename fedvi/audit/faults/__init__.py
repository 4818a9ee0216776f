"""Plausible mistakes in fedvi's code, which ``fedvi audit --self-test`` plants in memory."""

from fedvi.audit.faults.at_clients import AT_CLIENTS
from fedvi.audit.faults.fault import Fault
from fedvi.audit.faults.in_prices import IN_PRICES
from fedvi.audit.faults.in_releases import IN_RELEASES
from fedvi.audit.faults.planting import planted

__all__ = ["FAULTS", "Fault", "planted"]

FAULTS = (*AT_CLIENTS, *IN_PRICES, *IN_RELEASES)
"""Faults of clients and their stores; of prices and ledgers; of noise, batches and clips."""
