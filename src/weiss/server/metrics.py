"""What a server counts of itself, in the text format that Prometheus reads.

Three kinds are enough: counters that only grow, histograms of seconds and of sizes, and gauges that
are looked up when somebody asks. Written by the event loop and by the embedding thread alike.
"""

import bisect
import threading
from collections.abc import Callable, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)
Labels = tuple[tuple[str, str], ...]


class Histogram:
    """How many values fell below each of some bounds.

    Args:
        bounds: upper ends of the buckets, ascending; a value equal to one is in its bucket.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """The counts of one server.

    Args:
        gauges: name -> what it means, and a function that says how much it is now.

    Example:
        >>> metrics = Metrics({"weiss_items": ("Items in the index.", lambda: 3)})
        >>> print(metrics.text().splitlines()[-1])
        weiss_items 3
    """

    def __init__(self, gauges: dict[str, tuple[str, Callable[[], float]]] | None = None) -> None:
        self.gauges = gauges or {}
        self._lock = threading.Lock()
        self._requests: dict[Labels, int] = {}
        self._seconds: dict[Labels, Histogram] = {}
        self._batches = Histogram(SIZES)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered.

        Args:
            method: GET or POST.
            route: the pattern that it matched, never what stood in its place: few, and no secrets.
            status: of the answer.
            seconds: from its first line to the end of the answer.
        """
        route_label = ("route", route)
        labels: Labels = (("method", method), route_label, ("status", str(status)))
        with self._lock:
            self._requests[labels] = self._requests.get(labels, 0) + 1
            if (route_label,) not in self._seconds:
                self._seconds[(route_label,)] = Histogram(SECONDS)
            self._seconds[(route_label,)].add(seconds)

    def batch(self, size: int) -> None:
        """Count a forward pass of so many pictures."""
        with self._lock:
            self._batches.add(size)

    def text(self) -> str:
        """Return everything in Prometheus' text format."""
        with self._lock:
            lines = _head("weiss_requests_total", "counter", "Requests answered.")
            for labels, count in sorted(self._requests.items()):
                lines.append(_line("weiss_requests_total", labels, count))
            lines += _head("weiss_request_seconds", "histogram", "Time to the end of the answer.")
            for labels, histogram in sorted(self._seconds.items()):
                lines += _histogram("weiss_request_seconds", labels, histogram)
            lines += _head("weiss_batch_size", "histogram", "Pictures in one forward pass.")
            lines += _histogram("weiss_batch_size", (), self._batches)
        for name, (meaning, value) in self.gauges.items():
            lines += [*_head(name, "gauge", meaning), _line(name, (), value())]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


def _line(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(said)}"' for key, said in labels)
    return f"{name}{{{inside}}} {_number(value)}" if inside else f"{name} {_number(value)}"


def _number(value: float) -> str:
    """Return a number without losing digits of large counts."""
    return str(int(value)) if value == int(value) else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _histogram(name: str, labels: Labels, histogram: Histogram) -> list[str]:
    lines, below = [], 0
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        below += count
        lines.append(_line(f"{name}_bucket", (*labels, ("le", str(bound))), below))
    return [
        *lines,
        _line(f"{name}_sum", labels, histogram.total),
        _line(f"{name}_count", labels, below),
    ]
