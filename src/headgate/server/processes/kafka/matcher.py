"""The matcher of a deployment on Kafka: it stands by, or starts the queries that match."""

from __future__ import annotations

from contextlib import closing

from headgate.backend.kafka.matcher_leadership import MatcherHooks, serve_kafka
from headgate.backend.kafka.objects import open_cache
from headgate.server import child, ready
from headgate.server.peers import instance
from headgate.server.processes import matcher
from headgate.server.processes.matcher import MatcherStop


def run(context: child.Context) -> None:
    """Matches or stands by until told to stop."""
    matcher.run(context, _match)


def _match(context: child.Context, stop: MatcherStop, report: ready.PartReport) -> None:
    settings = context.settings
    with closing(open_cache(settings.data / "control.db", stop.asked.is_set)) as filters:
        serve_kafka(
            config=context.on_kafka,
            filters=filters,
            scratch=settings.run_directory / "spark",
            stop=stop.asked,
            hooks=MatcherHooks(on_ready=report.ready, on_note=report.note, on_step=report.beat),
            on_started=stop.started,
            heap_mib=settings.jvm_memory_mb,
            name=instance.advertised_url(settings),
        )
