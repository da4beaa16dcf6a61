"""The counts of a server, in the text format of Prometheus."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The counts of one server; any thread may count.

    Args:
        gauges: name -> its meaning, and a function that returns its value.

    Example:
        >>> metrics = Metrics({"weiss_items": ("Items in the index.", lambda: 3)})
        >>> metrics.text().splitlines()[-1]
        b'weiss_items 3.0'
    """

    def __init__(self, gauges: dict[str, tuple[str, Callable[[], float]]] | None = None) -> None:
        self._registry = own = CollectorRegistry()
        labels = ("method", "route", "status")
        self._requests = Counter("weiss_requests", "Requests answered.", labels, registry=own)
        self._seconds = Histogram(
            "weiss_request_seconds",
            "Time to the end of the answer.",
            ("route",),
            buckets=SECONDS,
            registry=own,
        )
        self._batches = Histogram(
            "weiss_batch_size", "Pictures in one forward pass.", buckets=SIZES, registry=own
        )
        for name, (meaning, value) in (gauges or {}).items():
            Gauge(name, meaning, registry=own).set_function(value)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request; ``route`` is a pattern: paths would be many, and private."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, size: int) -> None:
        """Count a forward pass of this many pictures."""
        self._batches.observe(size)

    def text(self) -> bytes:
        """Return everything in the text format of Prometheus."""
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics without the times of their creation, which nobody needs."""
        for metric in self._registry.collect():
            metric.samples = [each for each in metric.samples if not each.name.endswith("_created")]
            yield metric
