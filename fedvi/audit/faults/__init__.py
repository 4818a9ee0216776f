"""Mistakes that somebody could make, planted in memory by ``fedvi audit --self-test``."""

from fedvi.audit.faults.catalogue import FAULTS
from fedvi.audit.faults.fault import Fault
from fedvi.audit.faults.planting import planted

__all__ = ["FAULTS", "Fault", "planted"]
