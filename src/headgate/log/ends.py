"""First and next offsets of all partitions of a log; the files stay open between calls."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from headgate.log.directory import LogDirectory
from headgate.log.reader import PartitionReader


class LogEnds:
    """Where the partitions of the log begin and end."""

    def __init__(self, log: LogDirectory) -> None:
        self._log = log
        self._readers: dict[int, PartitionReader] = {}

    def partitions(self) -> list[int]:
        """Numbers of the partitions there are."""
        return self._log.partitions()

    def end_offset(self, partition: int) -> int:
        """Offset behind the last durable event."""
        return self._reader(partition).committed_offset()

    def first_offset(self, partition: int) -> int:
        """First offset kept."""
        return self._reader(partition).first_offset()

    def close(self) -> None:
        """Close the files."""
        for reader in self._readers.values():
            reader.close()

    def _reader(self, partition: int) -> PartitionReader:
        reader = self._readers.get(partition)
        if reader is None:
            reader = self._readers[partition] = PartitionReader(self._log.partition(partition), start=0)
        return reader


def end_offsets(log: LogDirectory, partitions: Iterable[int]) -> dict[int, int]:
    """Where some partitions end now; `LogEnds` is for who asks again and again."""
    with closing(LogEnds(log)) as ends:
        return {partition: ends.end_offset(partition) for partition in partitions}
