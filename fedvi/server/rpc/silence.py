"""Knows who has not been heard of for longer than usual: a guess from the times of calls, for people."""

from fedvi.server.core.protocol import OVER, ServerState

__all__ = ["Calls"]

# Compiling a first answer takes a minute or two.
_AT_LEAST_SECONDS = 120.0
_TIMES_USUAL = 3.0
_REMEMBERED = 20


class Calls:
    """When each client called; forgotten when the server restarts.

    A client is quiet while it computes, and in the middle of a long poll. So what is usual is the longest
    of its recent pauses, and it counts as silent after three times as long, and two minutes at least.

    Args:
      now: the time of the start, in seconds of the server's monotonic clock.
    """

    def __init__(self, now: float) -> None:
        self._started = now
        self._last: dict[str, float] = {}
        # Replaced as a whole: others than the event loop read it.
        self._pauses: dict[str, tuple[float, ...]] = {}

    def hear(self, client: str, now: float) -> None:
        """Notes a call."""
        if client in self._last:
            recent = self._pauses.get(client, ())[1 - _REMEMBERED :]
            self._pauses[client] = (*recent, now - self._last[client])
        self._last[client] = now

    def usual(self, client: str) -> float | None:
        """Returns how long a client is quiet at most, as a rule, in seconds; None at first."""
        return max(self._pauses.get(client, ()), default=None)

    def silent(self, state: ServerState, now: float) -> frozenset[str]:
        """Returns who has been quiet for much longer than usual, of those who take part.

        Who never came is no more silent than it was, unless it holds a task since before a restart.
        """
        if state.status in OVER:
            return frozenset()
        taking_part = (self._last.keys() | state.tasks.keys()) - state.away.keys()
        return frozenset(name for name in taking_part if self._is_silent(name, now))

    def _is_silent(self, client: str, now: float) -> bool:
        usual = _TIMES_USUAL * (self.usual(client) or 0.0)
        return now - self._last.get(client, self._started) > max(_AT_LEAST_SECONDS, usual)
