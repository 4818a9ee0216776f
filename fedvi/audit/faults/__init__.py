"""Plausible mistakes in fedvi's code, which ``fedvi audit --self-test`` plants in memory."""

from fedvi.audit.faults.catalogue import FAULTS
from fedvi.audit.faults.fault import Fault
from fedvi.audit.faults.planting import planted

__all__ = ["FAULTS", "Fault", "planted"]
