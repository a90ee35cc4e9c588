"""The log beside the simplest model of it, a list: appends, accidents and reopenings in any order."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate.log.directory import LogDirectory, Partition
from headgate.log.reader import PartitionReader, RecordLookup
from headgate.log.writer import Encoded
from tests.log.support import CODECS, batch, find, last_segment, open_writer
from tests.support import examples

VALUES = st.sampled_from(["a", "b", "c", "größe", "", None])


class LogModel(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="log-model-")
        self.directory = Path(self.folder.name) / "0"
        self.chunks: list[tuple[int, list[str | None], str]] = []  # first offset, filter values, text
        self.writer = open_writer(self.directory)
        self.follower = PartitionReader(Partition(self.directory, "stop"), start=0)
        self.followed = 0

    @property
    def end(self) -> int:
        return self.chunks[-1][0] + len(self.chunks[-1][1]) if self.chunks else 0

    @rule(values=st.lists(VALUES, min_size=1, max_size=40), text=st.text(st.characters(exclude_categories=["Cs"])))
    def append(self, values, text) -> None:
        first = self.end
        assert self.writer.append(Encoded(batch(range(first, first + len(values)), text), values)) == first
        self.chunks.append((first, values, text))

    @rule(codec=st.sampled_from(CODECS), bloom_bytes=st.integers(16, 255), segment_bytes_max=st.integers(1, 20_000))
    def reopen(self, **options) -> None:
        self.writer.close()
        self.writer = open_writer(self.directory, **options)

    @precondition(lambda self: self.chunks)
    @rule(torn=st.binary(min_size=1, max_size=300))
    def die_while_appending(self, torn) -> None:
        self.writer.close()
        path = last_segment(self.directory)
        path.write_bytes(path.read_bytes() + torn)
        self.writer = open_writer(self.directory)
        assert self.writer.recovered.cut_bytes == len(torn)

    @rule()
    def follow(self) -> None:
        while (chunk := self.follower.read()) is not None:
            assert chunk.first_offset == self.followed
            self.followed = chunk.next_offset
        assert self.followed == self.end

    @precondition(lambda self: self.chunks)
    @rule(data=st.data(), wanted=st.frozensets(VALUES.filter(bool), max_size=2), match_unfiltered=st.booleans())
    def read(self, data, wanted, match_unfiltered) -> None:
        start = data.draw(st.integers(0, self.end))
        must = {
            first
            for first, values, _ in self.chunks
            if first + len(values) > start and (wanted & set(values) or (match_unfiltered and not all(values)))
        }
        with PartitionReader(Partition(self.directory, "stop"), start=start) as reader:
            got = {}
            while (chunk := reader.read(wanted=wanted, match_unfiltered=match_unfiltered)) is not None:
                got[chunk.header.first_offset] = chunk
                assert chunk.batch.column("n").to_pylist() == list(range(chunk.first_offset, chunk.next_offset))
            assert reader.position == self.end
        assert must <= got.keys()

    @precondition(lambda self: self.chunks)
    @rule(data=st.data())
    def find(self, data) -> None:
        lookup = RecordLookup(LogDirectory(self.directory.parent, "stop"), cache_bytes_max=20_000)
        for offset in data.draw(st.lists(st.integers(0, self.end - 1), max_size=20)):
            found = find(lookup, 0, offset)
            assert found.batch.column("n")[found.row].as_py() == offset
            text = next(text for first, values, text in self.chunks if offset < first + len(values))
            assert found.batch.column("text")[found.row].as_py() == text
        lookup.close()

    @invariant()
    def published_is_what_was_acknowledged(self) -> None:
        if hasattr(self, "writer"):
            assert self.writer.next_offset == self.follower.committed_offset() == self.end

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.writer.close()
            self.follower.close()
            self.folder.cleanup()


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(max_examples=examples(60), stateful_step_count=30)
