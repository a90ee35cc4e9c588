"""Which numbers does Headgate publish? The declared table of metrics; every label set is bounded.

Several processes write (prometheus_client's multiprocess mode, files under the data directory); `/metrics` of the
ingress adds them up.
Event types, sources and other producer-chosen strings are never labels.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

_STAGE_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

# --- ingress -------------------------------------------------------------------------------------
EVENTS_ACCEPTED = Counter("headgate_events_accepted_total", "Events answered with 2xx, on disk")
REQUESTS_REFUSED = Counter("headgate_requests_refused_total", "Publish requests refused", ["status"])
COMMIT_SECONDS = Histogram("headgate_commit_seconds", "Request accepted to chunk on disk", buckets=_STAGE_SECONDS)

# --- log -----------------------------------------------------------------------------------------

# --- match ---------------------------------------------------------------------------------------
GENERATION = Gauge("headgate_generation", "Generation of filters in force", multiprocess_mode="livemostrecent")
RUNS_STARTED = Counter("headgate_match_runs_total", "Spark queries started", ["outcome"])

# --- dispatch ------------------------------------------------------------------------------------
MATCHES = Counter("headgate_matches_total", "Outbox rows by the matcher's verdict", ["verdict"])
DELIVERIES = Counter("headgate_deliveries_total", "Ended deliveries", ["result"])
ATTEMPTS_FAILED = Counter("headgate_attempts_failed_total", "Failed delivery attempts", ["reason"])
DELIVERY_SECONDS = Histogram("headgate_delivery_seconds", "Event stored to subscriber's answer", buckets=_STAGE_SECONDS)
BACKLOG = Gauge("headgate_backlog_rows", "Outbox rows not yet ended", multiprocess_mode="livemostrecent")
