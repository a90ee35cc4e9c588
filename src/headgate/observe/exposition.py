"""The metrics page: each process writes its metrics to a file, the front reads them all.

One JSON file a part under `run/metrics/`, replaced at once every second. A process that starts takes up the counters of
its predecessor (kill -9 loses the last second); gauges of a file that was not written for METRICS_STALE_S are not
shown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate, chain
from pathlib import Path
from typing import Final

import msgspec
import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headgate.observe.metrics import DECLARED, Counter, Gauge, Histogram
from headgate.storage.files import replace_whole
from headgate_api.limits import METRICS_STALE_S, METRICS_WRITE_S

_log = structlog.get_logger(__name__)


class _Distribution(msgspec.Struct, array_like=True):
    counts: list[int]
    total: float


class ProcessMetrics(msgspec.Struct):
    """One process's numbers: metric name -> label value ("" for none) -> number."""

    written_at: float
    counters: dict[str, dict[str, float]] = {}
    gauges: dict[str, dict[str, float]] = {}
    histograms: dict[str, dict[str, _Distribution]] = {}


_decode: Final = msgspec.json.Decoder(ProcessMetrics).decode


def process_metrics(now: float) -> ProcessMetrics:
    """This process's numbers; what was never touched is left out, as another process counts it."""
    page = ProcessMetrics(now)
    for name, family in DECLARED.items():
        children: list[tuple[str, Counter | Gauge | Histogram]] = list(family.children.items())
        for label, child in children:
            if isinstance(child, Counter):
                if child.value:
                    page.counters.setdefault(name, {})[label] = child.value
            elif isinstance(child, Histogram):
                if any(child.counts):
                    distribution = _Distribution(list(child.counts), child.total)
                    page.histograms.setdefault(name, {})[label] = distribution
            elif child.value is not None:
                page.gauges.setdefault(name, {})[label] = child.value
    return page


class Publisher:
    """Writes this process's numbers into `run/metrics`, in a thread of its own; `clock` is seconds since 1970."""

    def __init__(self, directory: Path, part: str, *, clock: Callable[[], float] = time.time) -> None:
        self._path = directory / f"{part}.json"
        self._clock = clock
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Take up the predecessor's counters and write every METRICS_WRITE_S."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        before = read(self._path)
        if before is not None:
            _take_up(before)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self.write()

    def write(self) -> None:
        """Replace the file; a disk that refuses costs a line in the log, nothing else."""
        page = process_metrics(self._clock())
        try:
            with self._lock:
                replace_whole(self._path, msgspec.json.encode(page))
        except OSError as error:
            _log.warning("metrics were not written", error=str(error))

    def _run(self) -> None:
        while not self._stop.wait(METRICS_WRITE_S):
            self.write()


def read(path: Path) -> ProcessMetrics | None:
    """A process's file; None when there is none that can be read."""
    try:
        return _decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def read_all(directory: Path) -> list[ProcessMetrics]:
    """What the processes of this server have written in `run/metrics`; blocks some milliseconds."""
    return [page for path in sorted(directory.glob("*.json")) if (page := read(path)) is not None]


def _take_up(before: ProcessMetrics) -> None:
    kept: list[tuple[str, Mapping[str, float | _Distribution]]] = [*before.counters.items(), *before.histograms.items()]
    for name, numbers in kept:
        family = DECLARED.get(name)
        for label, old in numbers.items() if family else ():
            child = family.labels(label) if family and family.label else family and family.only
            if isinstance(child, Counter) and not isinstance(old, _Distribution):
                child.inc(old)
            elif isinstance(child, Histogram) and isinstance(old, _Distribution):
                child.add(old.counts, old.total)


class _Pages(Collector):
    """All processes' numbers, added up, in the order in which they are declared."""

    def __init__(self, pages: list[ProcessMetrics], now: float) -> None:
        self._pages = pages
        self._now = now

    def collect(self) -> Iterator[Metric]:
        for name, family in DECLARED.items():
            labels = [family.label] if family.label else []
            if family.kind == "gauge":
                gauge = GaugeMetricFamily(name, family.help, labels=labels)
                for label, value in self._gauges(name).items():
                    gauge.add_metric([label][: len(labels)], value)
                yield gauge
            elif family.kind == "counter":
                counter = CounterMetricFamily(name.removesuffix("_total"), family.help, labels=labels)
                counted = [page.counters.get(name, {}) for page in self._pages]
                for label in dict.fromkeys(chain(family.children, *counted)):
                    counter.add_metric([label][: len(labels)], sum(one.get(label, 0.0) for one in counted))
                yield counter
            else:
                histogram = HistogramMetricFamily(name, family.help, labels=labels)
                for label in family.children:
                    buckets, total = self._distribution(name, label, family.buckets)
                    histogram.add_metric([label][: len(labels)], buckets, total)
                yield histogram

    def _gauges(self, name: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for page in self._pages:
            if self._now - page.written_at <= METRICS_STALE_S:
                for label, value in page.gauges.get(name, {}).items():
                    found[label] = found.get(label, 0.0) + value
        return found

    def _distribution(self, name: str, label: str, bounds: tuple[float, ...]) -> tuple[list[tuple[str, float]], float]:
        found = Histogram(bounds)
        for page in self._pages:
            distribution = page.histograms.get(name, {}).get(label)
            if distribution is not None:
                found.add(distribution.counts, distribution.total)
        below = map(float, accumulate(found.counts))
        return list(zip([*map(str, bounds), "+Inf"], below, strict=True)), found.total


def page(directory: Path, *, clock: Callable[[], float] = time.time) -> bytes:
    """`/metrics` in Prometheus' text format, of the files in `run/metrics`."""
    registry = CollectorRegistry()
    registry.register(_Pages(read_all(directory), clock()))
    return generate_latest(registry)
