"""First and next offsets of all partitions of a log; the files stay open between calls."""

from __future__ import annotations

from pathlib import Path

from headgate.log.reader import PartitionReader


def partitions_of(directory: Path) -> list[int]:
    """Numbers of a log's partitions; none of a log that is not written yet."""
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())


class LogEnds:
    """Where the partitions of the log begin and end.

    Args:
        directory: Directory of the partitions.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._readers: dict[int, PartitionReader] = {}

    def partitions(self) -> list[int]:
        """Numbers of the partitions there are."""
        return partitions_of(self._directory)

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
            reader = self._readers[partition] = PartitionReader(self._directory / str(partition), start=0)
        return reader
