"""Serves metrics for Prometheus, all from the public transcript.

The Prometheus client is imported only if metrics are served.
"""

from collections.abc import Callable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from fedvi import errors
from fedvi.server.rpc.calls import Calls
from fedvi.server.rpc.door import Counts
from fedvi.server.watch.places import SILENT_SECONDS, Places, Served

__all__ = ["Metrics"]

_STATUSES = ("running", "paused", "stopped", "completed", "budget_exhausted", "failed")


class Metrics(Served):
    """Serves the metrics as text over HTTP until closed.

    Args:
      address: HOST:PORT; port 0 takes a free one.

    Raises:
      TransportError: the address cannot be bound.
    """

    def __init__(
        self,
        address: str,
        describe_run: Callable[[], Any],
        calls: Calls,
        connections: Callable[[], Counts],
    ) -> None:
        import prometheus_client

        host, _, port = address.rpartition(":")
        registry = prometheus_client.CollectorRegistry()
        registry.register(_Collector(describe_run, calls, connections))
        # Not start_http_server, which keeps a thread for every silent caller.
        app = prometheus_client.make_wsgi_app(registry)
        try:
            server = _Server(host.strip("[]") or "127.0.0.1", int(port), app)
        except (OSError, ValueError) as error:
            raise errors.TransportError(
                f"--metrics {address} cannot be bound: {error}",
                "expected HOST:PORT, of a free port",
            ) from error
        super().__init__(server, host, "metrics")


class _Server(Places, WSGIServer):
    def __init__(self, host: str, port: int, app: Any) -> None:
        super().__init__(host, port, _Handler)
        self.setup_environ()
        self.set_app(app)


class _Handler(WSGIRequestHandler):
    timeout = SILENT_SECONDS

    def log_message(self, format: str, *arguments: Any) -> None:
        """Keeps requests out of the log."""


class _Collector:
    def __init__(
        self, describe_run: Callable[[], Any], calls: Calls, connections: Callable[[], Counts]
    ) -> None:
        self._describe, self._calls, self._connections = describe_run, calls, connections

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        run = self._describe()
        status = GaugeMetricFamily("fedvi_run_status", "1 for what the run is.", labels=["status"])
        for name in _STATUSES:
            status.add_metric([name], float(run.status == name))
        yield status
        yield GaugeMetricFamily("fedvi_version", "Folds so far.", value=run.version)
        yield GaugeMetricFamily("fedvi_rounds", "Complete rounds.", value=run.rounds)
        yield GaugeMetricFamily("fedvi_rounds_planned", "Rounds at most.", value=run.rounds_planned)
        yield GaugeMetricFamily(
            "fedvi_uptime_seconds", "Since the start.", value=run.uptime_seconds
        )
        yield GaugeMetricFamily("fedvi_awaited", "Clients awaited now.", value=len(run.awaited))
        if run.HasField("gap"):
            text = "Largest move of a mean, or missed aim, in the last round, in posterior sds."
            yield GaugeMetricFamily("fedvi_gap", text, value=run.gap)
        if run.HasField("damping"):
            yield GaugeMetricFamily("fedvi_damping", "Step of the last fold.", value=run.damping)
        yield from self._clients(run)
        calls = CounterMetricFamily("fedvi_calls", "Calls.", labels=["method", "code"])
        for (method, code), count in sorted(dict(self._calls.calls).items()):
            calls.add_metric([method, code], count)
        yield calls
        taken = CounterMetricFamily("fedvi_answer_bytes", "Bytes of answers.", labels=["client"])
        for client, size in sorted(dict(self._calls.taken).items()):
            taken.add_metric([client], size)
        yield taken
        found = self._connections()
        text = "Connections, by whether a call over them was admitted."
        connections = GaugeMetricFamily("fedvi_connections", text, labels=["state"])
        connections.add_metric(["admitted"], found.admitted)
        connections.add_metric(["waiting"], found.waiting)
        yield connections
        text = "Connections closed, since places or time were short."
        yield CounterMetricFamily("fedvi_connections_closed", text, value=found.closed)

    def _clients(self, run: Any) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        doing = GaugeMetricFamily("fedvi_client", "1: its state.", labels=["client", "state"])
        visits = CounterMetricFamily("fedvi_client_visits", "Answers folded.", labels=["client"])
        charged = CounterMetricFamily("fedvi_client_charged", "Answers paid.", labels=["client"])
        text = "ε of all that was charged, an upper bound at the study's δ."
        epsilon = GaugeMetricFamily("fedvi_client_epsilon", text, labels=["client"])
        for client in run.clients:
            doing.add_metric([client.name, client.state], 1.0)
            visits.add_metric([client.name], client.visits)
            charged.add_metric([client.name], client.charged)
            if client.HasField("epsilon"):
                epsilon.add_metric([client.name], client.epsilon)
        yield from (doing, visits, charged, epsilon)
