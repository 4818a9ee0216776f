"""Schedules: which clients work when; one file each, chosen by `schedule.kind` in a study.

Each can be a stage of a script; see `fedvi.federation.script`.
"""

from fedvi.federation.schedules.asynchronous import asynchronous
from fedvi.federation.schedules.buffered_asynchronous import buffered_asynchronous
from fedvi.federation.schedules.sequential import sequential
from fedvi.federation.schedules.synchronous import synchronous

__all__ = ["asynchronous", "buffered_asynchronous", "sequential", "synchronous"]
