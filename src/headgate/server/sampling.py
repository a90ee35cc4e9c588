"""The front's gauges, sampled once a second, away from the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from headgate.limits import METRICS_WRITE_S
from headgate.log.writer import PartitionWriter
from headgate.observe import metrics
from headgate.server.tls import CertificateKeeper

_log = structlog.get_logger(__name__)


async def sample(
    writers: Sequence[PartitionWriter],
    *,
    part: str,
    connections: Callable[[], int],
    certificate: CertificateKeeper | None,
    on_sample: Callable[[], None],
) -> None:
    """Sets the front's gauges until it is cancelled.

    Args:
        writers: This front's partitions of the event log; none where Kafka has them.
        part: The front's name.
        connections: How many clients are connected.
        certificate: The server's; None without TLS.
        on_sample: Called at every sample: the loop turns.
    """
    while True:
        on_sample()
        metrics.CONNECTIONS.set(connections())
        if certificate is not None:
            metrics.CERTIFICATE_EXPIRES.labels(part).set(certificate.ends_s())
        if not writers:
            await asyncio.sleep(METRICS_WRITE_S)
            continue
        metrics.LOG_RECORDS.labels("events").set(sum(w.next_offset - w.first_offset for w in writers))
        try:
            size_bytes = await asyncio.to_thread(lambda: sum(map(bytes_on_disk, writers)))
            metrics.LOG_BYTES.labels("events").set(size_bytes)
        except OSError as error:
            _log.debug("gauges not sampled", error=str(error))
        await asyncio.sleep(METRICS_WRITE_S)


def bytes_on_disk(writer: PartitionWriter) -> int:
    """Bytes of a partition's segments."""
    return sum(path.stat().st_size for path in writer.directory.glob("*.seg"))
