"""The declared table of metrics; every label set is bounded.

A metric is a plain number in the memory of the process that counts it: a count costs 0.1 us, where prometheus_client's
files shared between processes cost 2 to 4, on a path that has 70 us for a request. Each process writes its numbers down
(`exposition.py`), and `/metrics` of the front adds up what all have written.

Strings that producers choose are never labels. A label is either a closed set (`values`; anything else counts as
"other") or cut off at a named limit (`labels_max`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final, Generic, Literal, TypeVar

from headgate_api import limits

OTHER: Final = "other"
"""What a label's value counts as when it is not in the declared set."""

_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_COUNTS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0)

Kind = Literal["counter", "gauge", "histogram"]


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, count: float = 1) -> None:
        self.value += count


class Gauge:
    """A number as it is now; None in a process that does not say it."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float | None = None

    def set(self, value: float) -> None:
        self.value = float(value)


class Histogram:
    """How often which size was seen: by ascending upper bounds, not added up, and in one more bucket for all above."""

    __slots__ = ("buckets", "counts", "total")

    def __init__(self, buckets: tuple[float, ...] = _SECONDS) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.buckets, value)] += count
        self.total += value * count

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add what another process observed; what it counted in other buckets is left out."""
        if len(counts) == len(self.counts):
            self.counts = [old + new for old, new in zip(self.counts, counts, strict=True)]
            self.total += total


Number = TypeVar("Number", Counter, Gauge, Histogram)


class Family(Generic[Number]):
    """One declared metric; `help` says what it counts, with its unit. It has one label, or none.

    `values` are what the label may be; where there are none, `labels_max` alone bounds how many are published.
    """

    def __init__(
        self,
        make: type[Number],
        name: str,
        help: str,
        label: str = "",
        values: tuple[str, ...] = (),
        labels_max: int = 0,
        buckets: tuple[float, ...] = (),
    ) -> None:
        if name in DECLARED:
            raise ValueError(f"{name} is declared twice")
        self._make: type[Number] = make
        self.name = name
        self.help = help
        self.kind: Kind = "counter" if make is Counter else "gauge" if make is Gauge else "histogram"
        self.label = label
        self.values = values
        self.labels_max = labels_max if labels_max else len(values) + 1
        self.buckets = buckets
        self.children: dict[str, Number] = {}
        for value in values if label else ("",):
            self.children[value] = self._new()
        DECLARED[name] = self

    def _new(self) -> Number:
        return Histogram(self.buckets) if self._make is Histogram else self._make()  # type: ignore[return-value]

    @property
    def only(self) -> Number:
        """The number of a metric without label."""
        return self.children[""]

    def labels(self, value: str) -> Number:
        """The number of one label value; look it up once where it is counted often."""
        child = self.children.get(value)
        if child is None:
            if self.values or len(self.children) >= self.labels_max:
                value = OTHER
            child = self.children.setdefault(value, self._new())
        return child

    def replace(self, values: Mapping[str, float]) -> None:
        """A gauge whose labels come and go: these and no others, at most `labels_max`."""
        children: dict[str, Number] = {}
        for value, number in list(values.items())[: self.labels_max]:
            child = children[value] = self._new()
            if isinstance(child, Gauge):
                child.set(number)
        self.children = children


DECLARED: Final[dict[str, Family[Counter] | Family[Gauge] | Family[Histogram]]] = {}
"""Every metric by its name, in the order of this page."""


def _counter(name: str, text: str) -> Counter:
    return Family(Counter, name, text).only


def _counters(name: str, text: str, **label: str) -> Family[Counter]:
    """With one label, and what it may be, separated by spaces."""
    (of,) = label
    return Family(Counter, name, text, of, tuple(label[of].split()))


def _gauges(name: str, text: str, **label: str) -> Family[Gauge]:
    (of,) = label
    return Family(Gauge, name, text, of, tuple(label[of].split()))


def _of_quota(make: type[Number], name: str, text: str) -> Family[Number]:
    return Family(make, name, text, "namespace", labels_max=limits.QUOTA_NAMESPACES_SHOWN_MAX)


def _gauge(name: str, text: str) -> Gauge:
    return Family(Gauge, name, text).only


def _seconds(name: str, text: str) -> Histogram:
    return Family(Histogram, name, text, buckets=_SECONDS).only


# --- ingress -------------------------------------------------------------------------------------
EVENTS_ACCEPTED = _counter("headgate_events_accepted_total", "Events answered with 2xx: on disk")
REQUESTS_REFUSED = _counters(
    "headgate_requests_refused_total",
    "Publish requests refused, and any that were not meant for this server, by the problem's code",
    code=(
        "invalid-event event-too-large unsupported-format headers-too-large too-large too-slow publish-quota "
        "stored-bytes-quota unknown-broker method-not-allowed overloaded bodies undecoded waiting-events "
        "unavailable log-unavailable partly-stored too-many-hops too-many-descendants host-header misdirected "
        "cross-site http2 transfer-coding event-forbidden event-policy-time"
    ),
)
DEDUPLICATION_KNOWN = Family(
    Counter,
    "headgate_deduplication_known_total",
    "Events that were accepted and not stored again, as the broker has stored them within its window",
    "broker",
    labels_max=limits.BROKERS_COUNTED_MAX,
)
DEDUPLICATION_FORGOTTEN = Family(
    Counter,
    "headgate_deduplication_forgotten_total",
    "Events that were stored, and may be stored again within the window: more have come than are remembered",
    "broker",
    labels_max=limits.BROKERS_COUNTED_MAX,
)
BROKER_EVENTS_ACCEPTED = Family(
    Counter,
    "headgate_broker_events_accepted_total",
    "The same by the broker",
    "broker",
    labels_max=limits.BROKERS_COUNTED_MAX,
)
SOURCE_RECORDS_ADMITTED = _counters(
    "headgate_source_records_admitted_total", "Records of other producers' topics that became events", source=""
)
SOURCE_RECORDS_REFUSED = _counters(
    "headgate_source_records_refused_total",
    "Records of other producers' topics that are no valid event: in the topic `refused`",
    source="",
)
EVENTS_MALFORMED = _counters(
    "headgate_events_malformed_total",
    "Publish requests that held no valid CloudEvent, by what broke the rule: an attribute, the data, the message",
    reason=(
        "message specversion id source type subject time dataschema datacontenttype datacontentencoding data extension"
    ),
)
QUOTA_EVENTS = _of_quota(Counter, "headgate_quota_events_total", "Events stored for namespaces with a publish quota")
QUOTA_BYTES = _of_quota(
    Counter, "headgate_quota_bytes_total", "Bytes of the requests that stored them, as the quota counts them"
)
QUOTA_REFUSED = _of_quota(
    Counter, "headgate_quota_refused_total", "Publish requests refused because their namespace had exceeded its quota"
)
QUOTA_READERS = _of_quota(Gauge, "headgate_quota_readers", "Readers at work now, of namespaces whose quota limits them")
QUOTA_CONSUMERS = _of_quota(
    Gauge, "headgate_quota_consumers", "Consumers connected now, of namespaces whose quota limits them"
)
QUOTA_DEAD_LETTERS = _of_quota(
    Gauge, "headgate_quota_dead_letters", "Dead letters in the store, of namespaces whose quota limits them"
)
QUOTA_STORED_BYTES = _of_quota(
    Gauge, "headgate_quota_stored_bytes", "Bytes of events in the log, of namespaces whose quota limits them"
)
QUOTA_DEAD_LETTERS_WAITING = _counter(
    "headgate_quota_dead_letters_delayed_total",
    "Deliveries tried again and not given up, as their namespace has as many dead letters as its quota or share allows",
)
PLACES = _gauges(
    "headgate_places_taken",
    "Places taken of what users and namespaces share, by what they are for; of bodies bytes",
    place=(
        "watches readers publish-streams numbered-producers pulls filter-runs backtests calls refused-calls "
        "bodies undecoded inspections"
    ),
)
PLACES_REFUSED = _counters(
    "headgate_places_refused_total",
    "Requests refused as a namespace or a user had its share of such places, or as all were taken",
    by="namespace user all",
)
STORE_SECONDS = _seconds("headgate_store_seconds", "Stage stored: request's head read to its events on disk")
CONNECTIONS = _gauge("headgate_connections", "Connections of clients open now")
CONNECTIONS_CLOSED = _counters(
    "headgate_connections_closed_total",
    "Connections closed because there were too many: idle ones that made room, new ones when none was idle",
    which="idle refused",
)
TLS_HANDSHAKES_FAILED = _counter(
    "headgate_tls_handshakes_failed_total", "Connections of HTTP clients whose TLS handshake failed or did not end"
)
TLS_CERTIFICATES = _counters(
    "headgate_tls_certificates_total",
    "Changes of the files of certificate, key or CAs that each front has taken up, or refused as they do not work",
    result="loaded refused",
)

# --- auth ----------------------------------------------------------------------------------------
TOKENS_REFUSED = _counters(
    "headgate_tokens_refused_total",
    "Requests refused because nobody could be told to have made them, by the reason",
    reason=(
        "anonymous scheme malformed algorithm header key signature issuer audience expired not-yet-valid "
        "claims user unknown certificate unavailable slowed"
    ),
)
TOKENS_VERIFIED = _counters(
    "headgate_tokens_verified_total",
    "Tokens found good: of an issuer (jwt) or of the file; one that is remembered is not counted again",
    method="jwt token",
)
ISSUER_FETCHES = _counters(
    "headgate_issuer_fetches_total", "Fetches of the keys of issuers of tokens, by their end", result="fetched failed"
)
TOKEN_FILES = _counters(
    "headgate_token_files_total",
    "Changes of the file of tokens that each front has taken up, or refused as they are wrong",
    result="loaded refused",
)
AUDIT_LINES = _counters(
    "headgate_audit_lines_total", "Lines for the audit log, by what became of them", result="written dropped failed"
)

# --- log -----------------------------------------------------------------------------------------
CHUNK_RECORDS = Family(
    Histogram,
    "headgate_chunk_records",
    "Chunks written, by their records",
    "log",
    ("events", "outbox"),
    buckets=_COUNTS,
)
LOG_BYTES = _gauges("headgate_log_bytes", "Bytes on disk", log="events outbox")
LOG_RECORDS = _gauges("headgate_log_records", "Records kept", log="events outbox")
LOG_DAMAGES = _counter("headgate_log_damages_total", "Damaged places of the log that Python readers passed over")

# --- control -------------------------------------------------------------------------------------
GENERATION_DESIRED = _gauge("headgate_generation_desired", "Newest generation of filters")
TRIGGERS_PAUSED = _gauge("headgate_triggers_paused", "Triggers whose events wait because somebody has paused them")
BROKERS = _gauge("headgate_brokers", "Brokers that accept events")

# --- match ---------------------------------------------------------------------------------------
GENERATION = _gauge("headgate_generation", "Generation of filters in force")
RUNS_STARTED = _counters(
    "headgate_match_runs_total",
    "Spark queries by how their start or life ended",
    outcome="active rejected died refused link unavailable stuck",
)
RUNS = _gauges("headgate_match_runs", "Spark queries now", state="in_force starting")
TARGETS = _gauge("headgate_match_targets", "Triggers in the table of the query in force")

# --- dispatch ------------------------------------------------------------------------------------
EVENTS_EVALUATED = _counters(
    "headgate_events_evaluated_total",
    "Events that have passed the matcher, by each dispatcher: some trigger of its own may want them, or none does",
    result="wanted unwanted",
)
MATCHES = _counters(
    "headgate_matches_total", "Pairs of event and trigger by the matcher's verdict", verdict="match candidate error"
)
FILTERED = _counters(
    "headgate_filtered_total",
    "Pairs of event and trigger by the filter's value, where the matcher named the pair",
    result="matched not error",
)
DELIVERIES = _counters(
    "headgate_deliveries_total",
    "Ended deliveries",
    result="delivered failed filtered error foreign gone lost dead_lettered expired pending cancelled",
)
ATTEMPTS_FAILED = _counters(
    "headgate_attempts_failed_total",
    "Failed delivery attempts by the status, its class, or why there was no answer",
    reason=(
        "dns refused certificate tls connection timeout protocol url policy credentials handshake "
        "reply-malformed reply-overload reply-refused reply-hops reply-tree 400 401 403 404 408 409 429 500 "
        "502 503 504 1xx 2xx 3xx 4xx 5xx"
    ),
)
RETRIES = _counter("headgate_retries_total", "Attempts that were not a delivery's first")
DEAD_LETTERS = _counters(
    "headgate_dead_letters_total", "Dead letters by what became of them", result="sent stored failed redriven discarded"
)
REPLAYED = _counters(
    "headgate_replayed_total", "Events of replays by how they ended", result="delivered dead_lettered failed lost error"
)
DEAD_LETTERS_HELD = _gauges(
    "headgate_dead_letters_held", "Dead letters in the store: to be sent, or kept for a person", state="waiting kept"
)
DEAD_LETTERS_BYTES = _gauge("headgate_dead_letters_bytes", "Bytes of the events in the dead-letter store")
PENDING_EVENTS = _gauge("headgate_pending_events", "Events that wait for their time, in the store of pending events")
PENDING_BYTES = _gauge("headgate_pending_bytes", "Their bytes")
PENDING_OVERDUE = _gauge(
    "headgate_pending_overdue_seconds",
    "How long the time of the first pending event has come that is not being delivered: its trigger is paused or slow",
)
REPLIES = _counters(
    "headgate_replies_total", "Events that subscribers answered with", result="stored malformed refused looped"
)
MATCH_SECONDS = _seconds(
    "headgate_match_seconds", "Stage matched: event on disk to its match; one event of each read is measured"
)
SEND_SECONDS = _seconds("headgate_send_seconds", "Stage sent: one attempt, from its request to the end of its answer")
DELIVERY_SECONDS = _seconds("headgate_delivery_seconds", "End to end: event on disk to the subscriber's good answer")
NAMESPACE_DELIVERY_SECONDS = Family(
    Histogram,
    "headgate_namespace_delivery_seconds",
    "The same by the trigger's namespace",
    "namespace",
    labels_max=limits.NAMESPACES_COUNTED_MAX,
    buckets=_SECONDS,
)
NAMESPACE_GIVEN_UP = Family(
    Counter,
    "headgate_namespace_given_up_total",
    "Deliveries that were given up, dead letters among them, by the trigger's namespace",
    "namespace",
    labels_max=limits.NAMESPACES_COUNTED_MAX,
)
BACKLOG = _gauge("headgate_backlog_deliveries", "Deliveries in memory that have not ended")
TARGETS_LAGGING = _gauge("headgate_targets_lagging", "Triggers whose backlog is longer than their queue in memory")
ATTEMPTS = _gauges(
    "headgate_attempts", "Attempts under way, to subscribers that answer and to those that do not", side="healthy slow"
)
CIRCUITS_OPEN = _gauge("headgate_circuits_open", "Triggers whose circuit breaker is open")
BACKLOGS_NEAR_LIMIT = _gauge(
    "headgate_backlogs_near_limit", "Triggers and subscriptions whose oldest events are about to be given up"
)
TRIGGER_BACKLOG = Family(
    Gauge,
    "headgate_trigger_backlog_deliveries",
    "Deliveries in memory that have not ended, of the triggers that have most",
    "trigger",
    labels_max=limits.METRICS_TRIGGERS_MAX,
)
TRIGGER_OLDEST = Family(
    Gauge,
    "headgate_trigger_oldest_seconds",
    "Age of the oldest event not ended, of the same triggers",
    "trigger",
    labels_max=limits.METRICS_TRIGGERS_MAX,
)
FILTER_CACHE = _gauges(
    "headgate_filter_cache", "The dispatcher's cache of compiled filters since its start", what="hits misses size"
)

# --- server --------------------------------------------------------------------------------------
RESTARTS = Family(
    Counter,
    "headgate_process_restarts_total",
    "Processes that ended and were started again",
    "part",
    labels_max=limits.PROCESSES_MAX,
)
READY = Family(Gauge, "headgate_ready", "Whether a part works: 1 or 0", "part", labels_max=limits.PROCESSES_MAX)
DISK_BYTES = _gauges(
    "headgate_disk_bytes", "Bytes of the file system that the data directory is on", state="free total"
)
CERTIFICATE_EXPIRES = Family(
    Gauge,
    "headgate_tls_certificate_expires_timestamp_seconds",
    "When the server's certificate ends, in seconds since 1970, by front",
    "part",
    labels_max=limits.PROCESSES_MAX,
)
