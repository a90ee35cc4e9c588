"""Whether the tests notice when the product breaks: real faults, put in one at a time, and the tests that catch them.

python -m scripts.mutants [--list] [--all] [NAME...]

It is run by hand, in a clean checkout. Each mutant changes one place of one file; the file is as it was when the tests
have ended, whatever happened. A mutant that no test catches is a hole in the tests: write the test that is missing.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

REPOSITORY: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = REPOSITORY / "src" / "headgate"
PYTEST: Final = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:tests.gate", "--timeout=120",
                 "-m", "not slow")  # fmt: skip
"""The tests of `make test`. `tests.gate` would put the costly ones first; here they come last."""
ENDS_S: Final = 300
_CATCHER: Final = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault.

    Attributes:
        name: Unique.
        file: Below `src/headgate`, or of another package below `src`; its folder is the room.
        text: Stands in the file exactly once.
        instead: What stands there in the mutant.
        broken: What is wrong then.
        tests: Paths or ids, separated by blanks, in the order in which they are asked: cheap ones first.
    """

    name: str
    file: str
    text: str
    instead: str
    broken: str
    tests: str

    @property
    def room(self) -> str:
        """`log`, `filter/cel`, `backend/kafka`; a room of `headgate_api` counts as that of the server with its name."""
        folders = Path(self.file.removeprefix("headgate_api/")).parent.parts or ("headgate_api",)
        return "/".join(folders[: 2 if folders[0] in ("filter", "backend", "objects") else 1])

    @property
    def path(self) -> Path:
        """The file."""
        return (SOURCE.parent if self.file.startswith("headgate_") else SOURCE) / self.file


# fmt: off
MUTANTS: Final = (
    Mutant("window-forgotten", "ingress/deduplication.py", "is not None and found[1] >= since_us", "is not None",
           "an event that comes after its window is left out", "tests/ingress/test_deduplication.py"),
    Mutant("half-a-hash", "ingress/deduplication.py", "while at > 0 and at % HASH_BYTES:", "while False:",
           "the end of one hash and the beginning of the next one are a third one",
           "tests/ingress/test_deduplication.py"),
    Mutant("twice-in-a-chunk", "ingress/deduplication.py", "row = earlier.setdefault(hash_, new)", "row = new",
           "an event that is in a chunk twice is stored twice", "tests/ingress/test_deduplication.py"),
    Mutant("lost-and-silent", "ingress/deduplication.py", "self.lack(windows, chunk.append_time_us)", "pass",
           "a log that has lost some of a window promises it all the same", "tests/ingress/test_deduplication.py"),
    Mutant("read-before-fenced", "backend/kafka/window_writer.py",
           "        appends = self._partition.fence()\n        try:\n            self._catch_up()\n",
           "        self._catch_up()\n        appends = self._partition.fence()\n        try:\n",
           "what an owner stored between the look of the next one and its fence is stored again",
           "tests/simulation/test_once_schedules.py"),
    Mutant("unseen-behind-open", "backend/kafka/window_writer.py", "return found if found >= 0 else committed",
           "return found if found >= 0 else self.end()",
           "who takes over passes over what is stored behind an open transaction", "tests/backend/test_kafka_once.py"),
    Mutant("number-of-nothing", "backend/kafka/window_writer.py",
           "if newest and isinstance(stored, Sifted) and stored.was_there and all(stored.was_there):", "if False:",
           "a producer is told less than it was acknowledged, where all of its events were known by their ids",
           "tests/backend/test_window_writer.py"),
    Mutant("opened-and-replaced", "backend/kafka/once.py",
           "            await producing.check_newest()\n            if not moved:", "            if not moved:",
           "an older stream is opened behind a newer one", "tests/backend/test_kafka_numbered.py"),
    Mutant("read-again", "backend/kafka/source.py",
           "if record.offset > self._known(broker.identity, producer).get(admitted.partition, -1):", "if True:",
           "a record that is read again is stored again when its window is over", "tests/backend/test_source_once.py"),
    Mutant("offsets-of-another", "backend/kafka/source.py",
           "self._admin.topic_id(record.topic)", "record.topic",
           "records of a topic that was made anew are taken for those of the one before",
           "tests/backend/test_source_once.py"),
    Mutant("any-pass", "backend/kafka/server_pass.py", 'hmac.compare_digest(found.metadata or "", _hash(word))', "True",
           "anybody may hand events to a front that nobody has judged", "tests/backend/test_kafka_once.py"),
    Mutant("forged-root", "event/hops.py", "ATTRIBUTES: Final = (HOPS, ROOT)", "ATTRIBUTES: Final = (HOPS,)",
           "a producer may send the root of an event, which is the broker's own", "tests/ingress/test_hops.py"),
    Mutant("decoded-twice", "headgate_api/event/http.py", "value = unquote_to_bytes(value)",
           "value = unquote_to_bytes(unquote_to_bytes(value))",
           "header values are percent-decoded twice", "tests/event/test_rules.py tests/event/test_properties.py"),
    Mutant("wrong-side-of-utc", "headgate_api/event/rfc3339.py", 'if sign == "-":', 'if sign == "+":',
           "an offset from UTC counts in the wrong direction", "tests/event/test_rfc3339.py"),
    Mutant("batch-of-one-more", "headgate_api/event/json_format.py", "len(fast) <= limits.BATCH_EVENTS_MAX:",
           "len(fast) <= limits.BATCH_EVENTS_MAX + 1:",
           "the fast path takes one event too many", "tests/event/test_rules.py"),
    Mutant("rounds-of-nests", "filter/cel/budget.py", "max(min(rounds * items, ROUNDS_MAX), 1.0)",
           "max(min(items, ROUNDS_MAX), 1.0)",
           "macros in macros are counted as if they stood alone",
           "tests/filter/test_hostile.py::test_the_rounds_of_a_macro_in_a_macro_are_multiplied"),
    Mutant("repeated-once", "filter/cel/budget.py", "int(found[3]) if found[3] else low + 1)", "low)",
           "a{1,1000} counts as one a", "tests/filter/test_hostile.py::test_the_size_of_a_pattern"),
    Mutant("overlap", "filter/cel/like.py", "range(1, min(len(start), len(end)) + 1)",
           "range(1, min(len(start), len(end)))",
           "LIKE 'a%a' holds for 'a'", "tests/filter/test_jms.py tests/filter/test_wildcards.py"),
    Mutant("equal-conditions", "filter/compile/desugar.py",
           "(right, unless) if comparison is Comparison.EQ else (unless, right)",
           "(unless, right) if comparison is Comparison.EQ else (right, unless)",
           "a == b of two conditions is matched as a != b", "tests/filter/test_compiler.py"),
    Mutant("candidate-is-match", "filter/compile/compiler.py", "exact=not conjunction.dropped,", "exact=True,",
           "what the matcher cannot compare is not asked of cel-cpp any more", "tests/filter/test_exactness.py"),
    Mutant("affix-cut", "filter/compile/compiler.py", "if length == len(text) and", "if length <= len(text) and",
           "of a long prefix only the part that is indexed is compared",
           "tests/filter/test_compiler.py tests/filter/test_exactness.py"),
    Mutant("any-value", "filter/dialects/attributes.py", "if wanted else Has(CE, name)", 'if wanted else Has(CE, "id")',
           "an empty value accepts an event without the attribute",
           "tests/filter/test_dialects.py tests/filter/test_conformance.py"),
    Mutant("not-between", "filter/dialects/jms/to_cel.py", "((Op.LT, low), (Op.GT, high))",
           "((Op.LE, low), (Op.GT, high))", "NOT BETWEEN holds at the lower bound", "tests/filter/test_jms.py"),
    Mutant("wildcard-overlap", "filter/dialects/eventpattern/to_cel.py", "literal(len(first) + len(last))",
           "literal(max(len(first), len(last)))",
           "the wildcard 'ab*ba' takes 'aba'", "tests/filter/test_eventpattern.py"),
    Mutant("newest-skipped", "filter/skipping/prune.py", "(low is None or low <= found[1])",
           "(low is None or low < found[1])",
           "a chunk whose newest event is as old as the bound is skipped", "tests/filter/test_prune.py"),
    Mutant("union-of-ranges", "filter/skipping/prune.py", "    if None in ranges:\n        return None\n    known",
           "    known",
           "an alternative without a time does not keep its chunks from being skipped", "tests/filter/test_prune.py"),
    Mutant("escaped-slash", "filter/skipping/literals.py", r"""re.compile(r'["\\/\x00-\x1f\x7f]')""",
           r"""re.compile(r'["\\\x00-\x1f\x7f]')""",
           "data that writes / as \\/ is skipped",
           "tests/scan/test_scan.py::test_a_text_is_found_however_its_data_writes_it"),
    Mutant("number-at-bound", "filter/skipping/literals.py", "pc.greater_equal(found, self.least)",
           "pc.greater(found, self.least)",
           "a chunk with a number at the bound is skipped", "tests/filter/test_numbers.py"),
    Mutant("bound-ruled-out", "filter/cel/ast.py", "Comparison.LT, operator.ge)", "Comparison.LT, operator.gt)",
           "the quick look rules out a number at the bound", "tests/filter/test_candidates.py"),
    Mutant("union-before-storing", "filter/tools/union.py", "if PUBLISH_TIME not in one.cel:\n",
           "if one.cel:\n",
           "a source leaves out events for a time of storing that it cannot know", "tests/filter/test_union.py"),
    Mutant("wrong-decider", "filter/tools/trace.py", '("true" if isinstance(at.node, Or) else "false")',
           '("false" if isinstance(at.node, Or) else "true")',
           "the trace names another part than the one that decided", "tests/filter/test_trace.py"),
    Mutant("unsynced", "log/writer.py", "            files.fdatasync(self._fd)\n", "            pass\n",
           "events are acknowledged before they are synced", "tests/log/test_failures.py tests/log/test_writer.py"),
    Mutant("published-early", "log/writer.py", "        self._write(parts)\n        self._append",
           "        self._committed.publish(first + count)\n        self._write(parts)\n        self._append",
           "readers see records that are not on disk", "tests/log/test_failures.py tests/log/test_writer.py"),
    Mutant("damage-cut-off", "log/recovery.py",
           "    if behind is not None:\n        raise CorruptChunkError(path, good.end",
           "    if behind is not None and not behind:\n        raise CorruptChunkError(path, good.end",
           "good chunks behind a damaged one are cut off as a torn tail",
           "tests/log/test_recovery.py"),
    Mutant("retained-too-little", "log/retention.py", "if segments[index + 1][0] > floor_offset:",
           "if segments[index][0] > floor_offset:",
           "retention removes a segment that the floor lies in", "tests/log/test_retention.py"),
    Mutant("unfiltered-untold", "log/bloom.py", "k, len(valued) != len(distinct))", "k, False)",
           "a chunk does not say that it has events without a filter value", "tests/log/test_bloom.py"),
    Mutant("queue-leaks", "log/group_commit.py",
           "                self._release(submit)\n                submit.fail(error)\n",
           "                submit.fail(error)\n",
           "what could not be stored keeps its room in the queue", "tests/log/test_commit.py"),
    Mutant("end-included", "scan/scan.py", "bisect_left(offsets, end))", "bisect_left(offsets, end) + 1)",
           "a scan hands out the event at its end", "tests/scan/test_scan.py tests/backend/test_embedded_scan.py"),
    Mutant("counted-again", "scan/counting.py", "yield max(begin, start), behind", "yield begin, behind",
           "the next page counts a part of a window once more", "tests/inspect/test_backtest.py"),
    Mutant("broker-retention", "scan/source.py", "max(offset, kept[partition])", "min(offset, kept[partition])",
           "readers see events that the broker keeps no more", "tests/scan/test_retained.py"),
    Mutant("gap-of-one", "outbox/takeover.py", "if first.start > state.watermark:",
           "if first.start > state.watermark + 1:",
           "a run that begins one event too late takes over: the event is lost",
           "tests/outbox/test_takeover.py tests/simulation/test_outbox_schedules.py"),
    Mutant("past-the-limit", "outbox/takeover.py", "passed if state.limit is None else min(passed, state.limit)",
           "passed",
           "the watermark passes rows that are held", "tests/outbox/test_takeover.py tests/outbox/test_link.py"),
    Mutant("uncut-generation", "outbox/takeover.py",
           "Accepted(partition, owner.generations[0][1], rows[:cut], end)",
           "Accepted(partition, owner.generations[1][1], rows[:cut], end)",
           "events below a change of filters are those of the newer generation", "tests/outbox/test_takeover.py"),
    Mutant("active-too-early", "outbox/takeover.py",
           "min(self._partitions[partition].contenders[0].generations[0][1] for partition in run.owned)",
           "max(self._partitions[partition].contenders[0].generations[0][1] for partition in run.owned)",
           "a trigger is Ready while a partition is still matched without it",
           "tests/outbox/test_takeover.py tests/simulation/test_schedules.py"),
    Mutant("change-beside-a-start", "match/generations.py", "return self._candidate is not None or self._change",
           "return (self._candidate is not None and self._in_force is None) or self._change",
           "filters are in force by the older run, and the newer one takes over with those of before",
           "tests/match/test_matcher.py"),
    Mutant("batch-in-pieces", "delivery/attempts.py", "if attempt is not None and rules.ordered:", "if False:",
           "an ordered batch of which a part is not due yet after a restart goes out in another order",
           "tests/delivery/test_restart.py"),
    Mutant("step-too-late", "objects/kinds/routing.py", "for later in self.steps[number:]",
           "for later in self.steps[number + 1 :]", "a change is passed over by whoever follows the routing table",
           "tests/objects/test_store.py tests/objects/test_store_stateful.py tests/server/test_routing_cache.py"),
    Mutant("stale-rows", "match/key_specs.py", "return TableChange(gone | _keys(made), _patterns(made))",
           "return TableChange(_keys(made), _patterns(made))", "a deleted filter goes on to match",
           "tests/match/test_generations.py"),
    Mutant("durable-at-once", "outbox/writer.py", "if position <= self.durable:", "if position <= self.end:",
           "what waits for rows to be durable does not wait",
           "tests/outbox/test_writer.py tests/delivery/test_ahead_of_the_disk.py"),
    Mutant("any-token", "outbox/link.py", "if not hmac.compare_digest(token, self._link.token):", "if not token:",
           "anybody on this machine may send matches", "tests/outbox/test_link.py"),
    Mutant("two-runs", "match/generations.py", "            if older is not None:\n                self._stop(older)\n",
           "            pass\n", "the run before the one in force goes on", "tests/match/test_generations.py"),
    Mutant("change-beside", "match/spark_runner.py", "if number != self._last:", "if self._last is None:",
           "a run whose plan is another one goes on to rows that it cannot read", "tests/match/test_runner.py"),
    Mutant("resume-at-end", "match/generations.py", "self._start(link, link.resume)",
           "self._start(link, self._runner.ends)",
           "events that no run has matched are left out after a restart", "tests/match/test_generations.py"),
    Mutant("highest-resume", "match/driver_link.py", "min(offset, lowest.get(partition, offset))",
           "max(offset, lowest.get(partition, offset))",
           "a run begins where the fastest dispatcher is", "tests/match/test_driver_links.py"),
    Mutant("shared-error", "match/dataframe.py", '.when(some("refuted"), False)', ".otherwise(False)",
           "a filter of which only cel-cpp knows is false where many filters compare the same",
           "tests/match/test_exact.py"),
    Mutant("shared-first", "match/key_specs.py", "taken |= (bit > 0) << index", "taken |= bit > 0",
           "a row loses another comparison than the one that is made for all", "tests/match/test_generations.py"),
    Mutant("shared-unbounded", "match/key_specs.py", "if len(self.bits) < SHARED_ATOMS_MAX:", "if True:",
           "what many filters compare gets a bit that there is not", "tests/match/test_generations.py"),
    Mutant("coarse-is-exact", "match/key_specs.py", "exact=signature.exact and whole,", "exact=signature.exact,",
           "rows over the limit of keys count as decided",
           "tests/match/test_key_limit.py::test_rows_that_are_looked_up_by_less_are_candidates"),
    Mutant("unsigned-tail", "match/keys.py", 'f"{len(value) - whole}b"', 'f"{len(value) - whole}B"',
           "the check of a key that is no ASCII is another one than Spark's",
           "tests/match/test_rows_of_plans.py tests/match/test_dataframe.py tests/match/test_exact.py"),
    Mutant("wrong-audience", "auth/json_web_tokens.py", '"verify_jti": False}',
           '"verify_jti": False, "verify_aud": False}',
           "a token that is meant for somebody else is accepted", "tests/auth/test_hostile_tokens.py"),
    Mutant("broker-token", "auth/event_policies.py", "return wanted[:4] != PUBLISH[:4] or broker",
           "return wanted[:4] == PUBLISH[:4] and broker",
           "a token for one broker is good for the whole API", "tests/auth/test_audiences.py"),
    Mutant("all-names", "auth/rules.py", "(bool(other.names) and other.names <= self.names)",
           "other.names <= self.names",
           "who may see one object by its name may give away the right to see all",
           "tests/auth/test_authorizer.py tests/objects/test_rbac.py"),
    Mutant("granted-without-ceiling", "auth/rules.py", 'self.ceiling in ("", other.ceiling)', "True",
           "somebody below a ceiling grants the right without it", "tests/objects/test_ceilings.py"),
    Mutant("counters-below-ceiling", "stream/follow.py", "if request.ceiling else replace(counters)",
           "if False else replace(counters)",
           "a reader below a ceiling is told how many events were looked at", "tests/server/test_ceilings.py"),
    Mutant("found-above-ceiling", "inspect/find.py", "if search.ceiling and not (found", "if False and not (found",
           "why finds an event that somebody has no right to", "tests/server/test_ceilings.py"),
    Mutant("row-before-ceiling", "delivery/verdicts.py", "return gives(target.filter.ceiling, event)",
           "return True or gives(target.filter.ceiling, event)",
           "what was matched before a ceiling came is delivered", "tests/delivery/test_ceiling.py"),
    Mutant("letter-above-ceiling", "deadletters/sink_sender.py",
           "event is not None and gives(target.filter.ceiling, event)", "event is not None",
           "a dead letter is redriven to who has no right to its event", "tests/delivery/test_ceiling.py"),
    Mutant("letter-of-others", "deadletters/own.py", "event is not None and gives(ceiling, event)", "event is not None",
           "dead letters of other events are shown below a ceiling",
           "tests/server/test_ceilings_of_what_is_kept.py"),
    Mutant("letter-of-no-right", "objects/api/grants.py", "user, SUBSCRIBE.on(broker)) if may else NOTHING",
           "user, SUBSCRIBE.on(broker))", "who has no right to a broker sees what is kept of its events",
           "tests/server/test_ceilings_of_what_is_kept.py"),
    Mutant("letter-as-sent", "deadletters/store.py", "self.original or self.event", "self.event",
           "a transform makes a dead letter somebody else's", "tests/server/test_ceilings_of_what_is_kept.py"),
    Mutant("letter-judged-before", "deadletters/own.py", "        self._rights.refresh()\n", "",
           "dead letters are judged by the right that somebody had", "tests/server/test_ceilings_of_what_is_kept.py"),
    Mutant("letter-ids-count", "deadletters/api.py", "else own.ids.shown(found.id)", "else found.id",
           "ids tell how many dead letters others have", "tests/server/test_ceilings_of_what_is_kept.py"),
    Mutant("letter-answer", "deadletters/api.py", "own is None or not found.is_shared", "True",
           "the answer to other events is shown", "tests/server/test_ceilings_of_what_is_kept.py"),
    Mutant("letter-to-wider", "server/authorization.py", "            await self._of_target(user, wanted, entry)\n"
           "        if access in", "            pass\n        if access in",
           "dead letters go to a trigger that gets events of others", "tests/server/test_ceilings_of_what_is_kept.py"),
    Mutant("letter-in-trace", "inspect/find.py", "id=ids.shown(letter.id)", "id=letter.id",
           "a trace tells how many dead letters others have", "tests/server/test_partition_owners.py"),
    Mutant("replay-above-ceiling", "replay/api.py", 'asked.filter else "", ceiling)', 'asked.filter else "", "")',
           "a replay of a user below a ceiling sends other events", "tests/server/test_ceilings_of_replays.py"),
    Mutant("replay-of-others", "replay/api.py", "if rights.knows(", "if True or rights.knows(",
           "replays that count other events are shown below a ceiling", "tests/server/test_ceilings_of_replays.py"),
    Mutant("replay-without-right", "replay/sender.py", "return gives(ceiling, event) and (", "return True or (",
           "a replay goes on when its right is gone", "tests/replay/test_rights.py"),
    Mutant("remembered-too-long", "auth/authenticator.py",
           "min(found.ends_s + CLOCK_SKEW_S - self._clock_s(), TOKEN_CACHED_S_MAX)", "TOKEN_CACHED_S_MAX",
           "a token that has expired is remembered as good", "tests/auth/test_authenticator.py"),
    Mutant("free-groups", "auth/user.py", "    for group in groups:\n        yield",
           "    for group in groups[1:]:\n        yield",
           "acting as a member of the first group needs no right", "tests/auth/test_impersonation.py"),
    Mutant("shared-field", "objects/kinds/managers.py", "- given.keys() - kept:", "- given.keys():",
           "a field goes that another manager still applies", "tests/objects/test_server_side_apply.py"),
    Mutant("finalizers-passed", "objects/store/writes.py", "        if old.metadata.finalizers:\n            return",
           "        if old.metadata.finalizers and old.metadata.deletion_timestamp:\n            return",
           "a delete does not wait for finalizers", "tests/objects/test_finalizers.py"),
    Mutant("metadata-service", "objects/kinds/egress.py", "        return (address.ipv4_mapped,)\n",
           "        return (address,)\n",
           "::ffff:169.254.169.254 reaches the metadata service of a cloud", "tests/objects/test_egress.py"),
    Mutant("older-generation", "objects/store/rows.py", "SET value = max(value, ?) WHERE name = 'active_generation'",
           "SET value = ? WHERE name = 'active_generation'",
           "a matcher that comes late takes a newer generation back", "tests/objects/test_store.py"),
    Mutant("ready-too-early", "objects/kinds/status.py", "if inputs.active_generation < inputs.needs:",
           "if inputs.active_generation < inputs.needs - 1:",
           "a trigger is Ready before its filter is in force", "tests/objects/test_status.py"),
    Mutant("out-of-the-selector", "objects/api/watch.py", 'return "DELETED" if before else None', "return None",
           "a watch by labels does not say that an object has lost them", "tests/objects/test_api.py"),
    Mutant("binding-for-nothing", "objects/api/grants.py",
           "        self._judge_rules(author, key_of(binding), access_rules(found.rules))\n", "        pass\n",
           "who may bind gives away rights that he has not himself",
           "tests/system/test_two_teams.py::test_nobody_gives_what_he_does_not_have"),
    Mutant("without-the-others", "objects/views/shared_quotas.py",
           "return self._counted[resource](namespace) + others >= limit",
           "return self._counted[resource](namespace) >= limit",
           "what other processes hold does not count for a quota", "tests/ingress/test_stored_bytes.py"),
    Mutant("another-brokers-age", "objects/views/copies.py",
           "served is not None and served.identity == identity else None",
           "served is not None else None",
           "events of a deleted broker are kept as long as the new one says", "tests/objects/test_served.py"),
    Mutant("hop-too-many", "ingress/publish_http.py",
           "    if hops > limits.HOPS_MAX:", "    if hops > limits.HOPS_MAX + 1:",
           "a loop goes on for one hop too many", "tests/ingress/test_hops.py"),
    Mutant("not-given-back", "ingress/intake.py", "self._descendants.give_back(tree, len(events))", "pass",
           "descendants count that were not stored", "tests/ingress/test_hops.py"),
    Mutant("stored-twice", "ingress/producers.py", "return number <= self.newest", "return number < self.newest",
           "the newest event of a numbered producer is stored once more",
           "tests/ingress/test_publish_rpc.py tests/backend/test_embedded_numbered.py"),
    Mutant("ahead-of-what-is-known", "ingress/producers.py", "await asyncio.wait(waiting)", "await asyncio.sleep(0)",
           "a snapshot of producers lacks numbers below its positions", "tests/ingress/test_publish_rpc.py"),
    Mutant("refused-bytes-count", "ingress/intake.py", "quota.take(-len(events), -size_bytes)", "pass",
           "what was not stored counts for the quota", "tests/ingress/test_publish_quota.py"),
    Mutant("acknowledged-early", "ingress/partitions.py",
           "stored = await self._commits[partition].enqueue(entries, size_bytes)",
           "stored, _ = 0, self._commits[partition].enqueue(entries, size_bytes)",
           "an event is acknowledged before it is stored",
           "tests/ingress/test_partitions.py tests/ingress/test_real_log.py"),
    Mutant("room-for-bodies", "ingress/publish_http.py", "grow(len(piece))", "grow(0)",
           "a body that comes in pieces takes no room", "tests/ingress/test_app.py"),
    Mutant("no-429", "delivery/retry.py", "frozenset({404, 408, 409, 429})", "frozenset({404, 408, 409})",
           "a subscriber that asks for a pause loses the event", "tests/delivery/test_retry.py"),
    Mutant("one-retry-less", "delivery/retry.py", "failures <= spec.retry", "failures < spec.retry",
           "the last retry is not made", "tests/delivery/test_retry.py"),
    Mutant("permit-leaks", "delivery/permits.py", "        self.counts.release(state.slow, attempt.size_bytes)\n", "",
           "an attempt that has ended keeps its permit", "tests/delivery/test_isolation.py"),
    Mutant("cursors-ahead", "delivery/cursors.py",
           "self._when_durable(change.position, lambda: self._write(change))", "self._write(change)",
           "cursors pass rows that a crash takes back", "tests/delivery/test_ahead_of_the_disk.py"),
    Mutant("hop-too-few", "delivery/attempt_service.py", "hops_of(to.event) + 1", "hops_of(to.event)",
           "replies that answer each other never end", "tests/delivery/test_replies.py"),
    Mutant("order-lost", "delivery/lifecycle.py",
           "        if self._keys.enter(key, delivery):\n            return True\n",
           "        if self._keys.enter(key, delivery) or delivery.failures:\n            return True\n",
           "an event that is tried again goes out beside another one of its key",
           "tests/delivery/test_lifecycle.py tests/delivery/test_order_and_batches.py"),
    Mutant("one-dead-letter-more", "deadletters/store.py", "count >= count_max or ", "count > count_max or ",
           "the store of dead letters takes one too many", "tests/deadletters/test_sink_sender.py"),
    Mutant("decision-undone", "deadletters/store.py",
           'run(f"{_DELETE} AND state = ? RETURNING {_GONE}", (one.id, one.began))',
           'run(f"{_DELETE} RETURNING {_GONE}", (one.id,))',
           "a redrive is lost when an attempt for the sink ends", "tests/deadletters/test_sink_sender.py"),
    Mutant("storing-leaks", "deadletters/writing.py", "            drop(self._storing, namespace)\n",
           "            pass\n",
           "dead letters count twice for the quota", "tests/deadletters/test_quota.py"),
    Mutant("store-for-one", "deadletters/writing.py", "return has_share(self.held(namespace), free) or ",
           "return ",
           "one namespace fills the store of dead letters for all", "tests/deadletters/test_quota.py"),
    Mutant("early", "delivery/verdicts.py", "return due_us <= self._clock_us()", "return True",
           "an event goes out before its time", "tests/deadletters/test_pending.py"),
    Mutant("overtaken", "delivery/attempts.py", " and not self._pending.has_before(state.target.id, due_us)", "",
           "an event goes out before others whose time came first", "tests/deadletters/test_pending.py"),
    Mutant("reply-without-door", "ingress/event_gate.py", "if is_from_elsewhere and", "if False and",
           "who may only subscribe publishes by a reply", "tests/ingress/test_event_gate.py"),
    Mutant("pending-with-its-dead-letter", "deadletters/store.py", "if dead_letter.pending:", "if not dead_letter:",
           "the dead letter of what waited is left out, as its row is there", "tests/deadletters/test_pending.py"),
    Mutant("names-hang-all", "delivery/resolver.py", 'FairThreads(limits.DNS_THREADS_MAX, "dns", hangs=True)',
           'FairThreads(limits.DNS_THREADS_MAX, "dns")',
           "names of one namespace that hang delay all others", "tests/delivery/test_resolver.py"),
    Mutant("decoded-on-the-loop", "ingress/publish_rpc.py", "len(request.events) <= limits.DECODE_EVENTS_INLINE",
           "request.events",
           "a message of a thousand small events holds the loop", "tests/ingress/test_publish_rpc.py"),
    Mutant("paused-redrive", "deadletters/sink_sender.py", "target.paused and queue.state is DeadLetterState.REDRIVING",
           "target.paused and queue.state is DeadLetterState.KEPT",
           "a paused trigger gets dead letters that are redriven", "tests/deadletters/test_sink_sender.py"),
    Mutant("last-not-acknowledged", "subscriptions/consumers.py", "event.turn <= last.turn", "event.turn < last.turn",
           "ack up to an event leaves out the event itself", "tests/subscriptions/test_cursor.py"),
    Mutant("ack-of-before", "subscriptions/consumers.py", "position if epoch == self._saved.epoch else _NOWHERE",
           "position",
           "an ack from before a seek ends what the seek has brought again", "tests/subscriptions/test_seek.py"),
    Mutant("ack-not-on-disk", "subscriptions/service.py",
           "may be room again\n        await self._registry.save(state)\n        return done",
           "may be room again\n        self._registry.changed(state)\n        return done",
           "an acknowledgement is answered before it is on disk",
           "tests/subscriptions/test_cursor.py::test_an_acknowledgement_is_on_disk_when_it_is_answered"),
    Mutant("one-delivery-more", "subscriptions/consumers.py", "event.deliveries >= rules.max_deliveries",
           "event.deliveries > rules.max_deliveries",
           "an event is handed out once more than maxDeliveries", "tests/subscriptions/test_max_deliveries.py"),
    Mutant("attempts-forgotten", "replay/sender.py",
           "            await self._stored(self._store.advance, run.id, run.progress())\n",
           "", "a restart gives the events of a replay all their attempts anew", "tests/replay/test_sender.py"),
    Mutant("replay-out-of-order", "replay/sender.py", "1 if to.rules.ordered else to.rules.parallelism",
           "to.rules.parallelism",
           "a replay to an ordered trigger sends events side by side", "tests/replay/test_sender.py"),
    Mutant("ended-twice", "replay/store.py", "WHERE id = ? AND state = 'running'\", (state", 'WHERE id = ?", (state',
           "a replay that is done becomes a cancelled one", "tests/replay/test_sender.py tests/replay/test_api.py"),
    Mutant("zombie", "backend/kafka/outbox_takeover.py",
           "            if run <= self._newest_run:\n                return []\n", "",
           "a run that is over comes back", "tests/backend/test_outbox_takeover.py"),
    Mutant("late-report", "backend/kafka/runs.py", "= max(before, stage)", "= stage",
           "a report that comes late takes a run back", "tests/backend/test_run_ledger.py"),
    Mutant("one-place-for-all", "backend/kafka/source.py", 'found.key or f"{found.topic}/{found.partition}"',
           "found.key or found.topic",
           "records without a key all go to one partition", "tests/backend/test_source_records.py"),
    Mutant("held-unkept", "retention/floor.py", "                if held.partition in offsets:",
           "                if held.partition not in offsets:",
           "retention takes events that consumers have", "tests/retention/test_floor.py"),
    Mutant("lag-unkept", "delivery/cursors.py", "self.pending[0] if self.pending else self.lag_from",
           "self.pending[0] if self.pending else None",
           "retention takes the backlog of a slow trigger", "tests/retention/test_floor.py"),
    Mutant("given-up-untold", "retention/expiry.py", "            if state.target.id in told:\n",
           "            if _oldest(state) < position:\n",
           "events are given up before anybody was told", "tests/retention/test_expiry.py"),
    Mutant("index-says-all", "inspect/log_follower.py", "self._low[partition] = max(below, self.low(partition))",
           "self._low[partition] = max(below - _BLOCK, self.low(partition))",
           "a search leaves out events that the index has given up", "tests/inspect/test_log_follower.py"),
    Mutant("names-for-all", "inspect/api.py", "self._seen(key, ceiling) if may_look else None",
           "self._seen(key, ceiling)",
           "who may not read the catalogue learns names from lint", "tests/inspect/test_unseen_names.py"),
    Mutant("chunk-left-out", "log/reader.py", "            yield entry\n            at = entry.first_offset\n",
           "            yield entry\n            at = entry.first_offset - 1\n",
           "the list of chunks leaves chunks out", "tests/inspect/test_chunks.py"),
    Mutant("old-flows", "inspect/catalogue.py", "                if flow.last_us >= not_before_us\n", "",
           "the catalogue shows flows that no reader sees any more", "tests/inspect/test_catalogue.py"),
    Mutant("behind-the-end", "headgate_api/positions.py", "if offset > ends[partition]:",
           "if offset > ends[partition] + 1:",
           "a reader may begin behind the end of the log", "tests/log/test_positions.py"),
    Mutant("narrow-margin", "headgate_api/backtest.py", "_student(windows - 1)", "_Z",
           "few windows give too narrow an interval", "tests/inspect/test_backtest_margin.py"),
    Mutant("credits-unspent", "stream/follow.py", "                    credits.take(count)\n",
           "                    pass\n",
           "a slow reader is sent more than it asked for", "tests/stream/test_read_rpc.py"),
    Mutant("readers-leak", "stream/follow.py", "        with self._quota.held(namespace), self._places",
           "        self._quota.take(namespace)\n        with self._places",
           "a reader that is closed counts for the quota", "tests/stream/test_readers_quota.py"),
    Mutant("joined-json", "headgate_api/rpc/events.py",
           "        if [bytes(element) for element in _decode_elements(body)] != texts:\n            return False\n",
           "", "two halves of a JSON text pass as two events' data", "tests/rpc/test_events.py"),
    Mutant("nanoseconds", "headgate_api/rpc/events.py", 'match[2].ljust(9, "0")', 'match[2].rjust(9, "0")',
           "milliseconds become nanoseconds", "tests/rpc/test_events.py"),
    Mutant("commits-unsynced", "storage/commit.py", 'connection.execute("PRAGMA synchronous = FULL")',
           'connection.execute("PRAGMA synchronous = NORMAL")',
           "dead letters and acknowledgements are answered before they are synced",
           "tests/storage/test_commit_record.py"),
    Mutant("commits-uncounted", "storage/commit.py", "self._record.committed(number)", "pass",
           "a start does not see that commits are gone", "tests/storage/test_commit_record.py"),
    Mutant("unbound-secret", "storage/keyring.py", 'return f"{path}\\n{uid}".encode()', 'return f"{uid}".encode()',
           "a stored Secret opens under another name", "tests/objects/test_secrets.py"),
    Mutant("half-a-report", "storage/files.py", 'temporary = path.with_name(f".{path.name}.{os.getpid()}")',
           "temporary = path",
           "a reader sees a part of a file that is being written", "tests/storage/test_whole_file.py"),
    Mutant("counters-begin-anew", "observe/exposition.py", "                child.inc(old)\n", "                pass\n",
           "counters fall when a process is restarted", "tests/observe/test_metrics.py"),
    Mutant("negative-rates", "observe/history.py", "return now - was if now >= was else now", "return now - was",
           "rates are negative after a restart", "tests/observe/test_history.py"),
    Mutant("labels-unbounded", "observe/metrics.py", "if self.values or len(self.children) >= self.labels_max:",
           "if self.values:",
           "labels grow with what producers send", "tests/observe/test_metrics.py"),
    Mutant("open-beside-tls", "server/listening.py", "if not (address.is_tls and is_known)", "if not is_known",
           "a plain port counts as closed because the TLS port asks for certificates", "tests/server/test_open.py"),
    Mutant("layout-unsynced", "server/datadir.py", '(*new.rglob("*"), new, data)', "(data,)",
           "the new directories of dispatchers are put in place before they are on disk",
           "tests/server/test_layout.py"),
    Mutant("moved-too-far", "server/repartition.py", "{p: min(old.watermarks.get(p, 0) for old in olds)",
           "{p: max(old.watermarks.get(p, 0) for old in olds)",
           "with another number of dispatchers events are lost", "tests/server/test_repartition.py"),
    Mutant("cut-answer", "server/peers/local_http.py",
           '        await send({"type": "http.response.body", "body": b""})',
           '    await send({"type": "http.response.body", "body": b""})',
           "an answer that broke off passes for the whole", "tests/server/test_proxy.py"),
    Mutant("world-readable", "storage/files.py", "os.umask(0o077)", "os.umask(0o022)",
           "other users read events and objects", "tests/server/test_datadir.py"),
    Mutant("more-than-the-manifest", "backup/restoring.py", "    if found:\n        raise",
           "    if len(found) > 1:\n        raise",
           "a backup may hold a file that its manifest does not name", "tests/backup/test_backup.py"),
    Mutant("cursors-last", "backup/capture.py",
           "(own.cursors)  # first: what it says has ended must be in the others\n"
           "    for path in (own.subscriptions, own.dead_letters, own.replays):",
           "(own.replays)\n    for path in (own.subscriptions, own.dead_letters, own.cursors):",
           "cursors are copied behind what has ended by them: a restored server loses deliveries",
           "tests/backup/test_backup.py::test_what_comes_later_in_the_flow_is_taken_first"),
    Mutant("unsynced-backup", "backup/writing.py", "            file.flush()\n            os.fsync(file.fileno())\n",
           "            file.flush()\n", "a backup that is told to be there may be lost with power",
           "tests/backup/test_backup.py::test_a_backup_is_on_disk_when_it_has_its_name"),
    Mutant("before-the-seek", "headgate_client/consumer.py", "            self._buffer.clear()\n", "",
           "a consumer is handed what came before a seek", "tests/client/test_consumer.py"),
    Mutant("position-too-far", "headgate_client/reader.py", "in reversed(self._events):", "in self._events:",
           "who reads on at the position misses events", "tests/client/test_reader.py"),
    Mutant("refusal-untold", "headgate_client/producer.py", "self._refused = self._refused or error", "pass",
           "flush does not say that something was not stored", "tests/client/test_producer.py"),
    Mutant("old-labels-win", "headgate_cli/objects.py", "kept | given if", "given | kept if",
           "apply does not change a label that is there", "tests/objects/test_cli_objects.py"),
    Mutant("discarded-unasked", "headgate_cli/redelivery.py", 'if not yes and not typer.confirm("discard',
           'if yes and not typer.confirm("discard',
           "dead letters are discarded without a question",
           "tests/test_command.py::test_dead_letters_are_discarded_by_who_means_it"),
    Mutant("wet-run", "headgate_cli/redelivery.py", 'body=body | {"dryRun": dry_run})', "body=body)",
           "a dry run of a replay sends the events", "tests/test_command.py::test_a_dry_run_of_a_replay_is_one"),
)
# fmt: on


class MutantError(Exception):
    """A mutant cannot be tried."""


def check(mutant: Mutant) -> None:
    """Raises MutantError where its text does not stand in its file exactly once."""
    count = mutant.path.read_text().count(mutant.text)
    if count != 1:
        raise MutantError(f"{mutant.name}: its text stands {count} times in {mutant.file}, not once: {mutant.text!r}")


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """The mutant in its file; at the end of the block the file is as it was, also for Python's compiled modules."""
    check(mutant)
    path = mutant.path
    if subprocess.check_output(["git", "status", "--porcelain", "--", path], cwd=REPOSITORY):
        raise MutantError(f"{mutant.name}: {mutant.file} has changes that are not committed")
    before, stat = path.read_bytes(), path.stat()
    try:
        path.write_text(path.read_text().replace(mutant.text, mutant.instead))
        yield
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def catcher(mutant: Mutant, *, every: bool) -> str:
    """The test that fails with the mutant; empty when all pass."""
    selected = () if every else ("-m", "not slow")
    environment = {**os.environ, "HEADGATE_TEST_DEPTH": "all" if every else "gate"}
    command = [sys.executable, *PYTEST, *selected, *mutant.tests.split()]
    with (
        applied(mutant),
        subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        try:
            output, _ = process.communicate(timeout=ENDS_S)
        except subprocess.TimeoutExpired:  # a thread of a test that has failed may never end
            process.kill()
            output, _ = process.communicate()
            output += f"\nFAILED in {ENDS_S} s nothing ended\n"
        except KeyboardInterrupt:
            process.wait()  # it has heard of it, too, and stops what it started
            raise
    if process.returncode == 0:
        return ""
    found = _CATCHER.search(output)
    if found is None:
        raise MutantError(f"{mutant.name}: pytest ended with {process.returncode}:\n{output}")
    return found[1]


def chosen(names: Sequence[str]) -> list[Mutant]:
    """The mutants of these names or rooms; all without any."""
    known = {mutant.name for mutant in MUTANTS} | {mutant.room for mutant in MUTANTS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise MutantError(f"no mutant and no room: {', '.join(unknown)}")
    return [mutant for mutant in MUTANTS if not names or mutant.name in names or mutant.room in names]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 when a mutant survived, 2 when one could not be tried."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.mutants",
        description=__doc__.split("\n")[0],
        epilog="example: python -m scripts.mutants log hop-too-few",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="names of mutants or rooms; all without any")
    parser.add_argument("--list", action="store_true", help="print the mutants, and try none")
    parser.add_argument("--all", action="store_true", help="ask what `make test-all` asks, too")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupted)
    survived = 0
    try:
        for mutant in chosen(given.names):
            place = f"{mutant.room:16} {mutant.name:24}"
            if given.list:
                print(f"{place} {mutant.broken}", flush=True)
                continue
            started = time.monotonic()
            caught = catcher(mutant, every=given.all)
            survived += not caught
            verdict = f"caught by {caught}" if caught else f"SURVIVED: {mutant.broken}"
            print(f"{place} {time.monotonic() - started:5.1f} s  {verdict}", flush=True)
    except MutantError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is written when Python ends
        return 1
    return 1 if survived else 0


def _interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
