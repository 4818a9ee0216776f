"""Finds clients that have been quiet for longer than usual, from the times of their calls; only a hint."""

from fedvi.server.core.protocol import OVER, ServerState

__all__ = ["Calls"]

# Compiling a first answer takes a minute or two.
_AT_LEAST_SECONDS = 120.0
_TIMES_USUAL = 3.0
_REMEMBERED = 20


class Calls:
    """Remembers when each client called; lost when the server restarts.

    A client is quiet while it computes, and in the middle of a long poll. So its usual pause is the longest
    of its recent ones, and it counts as silent after three times as long, and after two minutes at least.

    Args:
      now: the time of the start, in seconds of the server's monotonic clock.
    """

    def __init__(self, now: float) -> None:
        self._started = now
        self._last: dict[str, float] = {}
        # Tuples are replaced as a whole, since other threads read them.
        self._pauses: dict[str, tuple[float, ...]] = {}

    def hear(self, client: str, now: float) -> None:
        """Notes a call."""
        if client in self._last:
            recent = self._pauses.get(client, ())[1 - _REMEMBERED :]
            self._pauses[client] = (*recent, now - self._last[client])
        self._last[client] = now

    def usual(self, client: str) -> float | None:
        """Returns the longest of a client's recent pauses, in seconds; None before the second call."""
        return max(self._pauses.get(client, ()), default=None)

    def silent(self, state: ServerState, now: float) -> frozenset[str]:
        """Returns the clients that have been quiet for much longer than usual and are not away.

        A client that never called is not silent, unless it holds a task from before a restart.
        """
        if state.status in OVER:
            return frozenset()
        taking_part = (self._last.keys() | state.tasks.keys()) - state.away.keys()
        return frozenset(name for name in taking_part if self._is_silent(name, now))

    def _is_silent(self, client: str, now: float) -> bool:
        usual = _TIMES_USUAL * (self.usual(client) or 0.0)
        return now - self._last.get(client, self._started) > max(_AT_LEAST_SECONDS, usual)
