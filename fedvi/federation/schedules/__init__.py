"""Who works when: each file is one schedule, named by `schedule.kind` in a study."""

from fedvi.federation.schedules.asynchronous import asynchronous
from fedvi.federation.schedules.sequential import sequential
from fedvi.federation.schedules.synchronous import synchronous

__all__ = ["asynchronous", "sequential", "synchronous"]
