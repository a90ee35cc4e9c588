from headgate_api.rpc import cloudevents_pb2 as _cloudevents_pb2
from headgate_api.rpc import pulsar_pb2 as _pulsar_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PublishRequest(_message.Message):
    __slots__ = ("open", "sequence", "events", "filter_values")
    class Open(_message.Message):
        __slots__ = ("broker", "producer")
        BROKER_FIELD_NUMBER: _ClassVar[int]
        PRODUCER_FIELD_NUMBER: _ClassVar[int]
        broker: str
        producer: str
        def __init__(self, broker: _Optional[str] = ..., producer: _Optional[str] = ...) -> None: ...
    OPEN_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    FILTER_VALUES_FIELD_NUMBER: _ClassVar[int]
    open: PublishRequest.Open
    sequence: int
    events: _containers.RepeatedCompositeFieldContainer[_cloudevents_pb2.CloudEvent]
    filter_values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, open: _Optional[_Union[PublishRequest.Open, _Mapping]] = ..., sequence: _Optional[int] = ..., events: _Optional[_Iterable[_Union[_cloudevents_pb2.CloudEvent, _Mapping]]] = ..., filter_values: _Optional[_Iterable[str]] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("opened", "acknowledged", "refused")
    class Opened(_message.Message):
        __slots__ = ("next_sequence",)
        NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
        next_sequence: int
        def __init__(self, next_sequence: _Optional[int] = ...) -> None: ...
    class Acknowledged(_message.Message):
        __slots__ = ("first", "last", "duplicates")
        FIRST_FIELD_NUMBER: _ClassVar[int]
        LAST_FIELD_NUMBER: _ClassVar[int]
        DUPLICATES_FIELD_NUMBER: _ClassVar[int]
        first: int
        last: int
        duplicates: int
        def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., duplicates: _Optional[int] = ...) -> None: ...
    class Refused(_message.Message):
        __slots__ = ("first", "last", "problem")
        FIRST_FIELD_NUMBER: _ClassVar[int]
        LAST_FIELD_NUMBER: _ClassVar[int]
        PROBLEM_FIELD_NUMBER: _ClassVar[int]
        first: int
        last: int
        problem: Problem
        def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., problem: _Optional[_Union[Problem, _Mapping]] = ...) -> None: ...
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    opened: PublishResponse.Opened
    acknowledged: PublishResponse.Acknowledged
    refused: PublishResponse.Refused
    def __init__(self, opened: _Optional[_Union[PublishResponse.Opened, _Mapping]] = ..., acknowledged: _Optional[_Union[PublishResponse.Acknowledged, _Mapping]] = ..., refused: _Optional[_Union[PublishResponse.Refused, _Mapping]] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("code", "detail", "hint", "retriable")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    RETRIABLE_FIELD_NUMBER: _ClassVar[int]
    code: str
    detail: str
    hint: str
    retriable: bool
    def __init__(self, code: _Optional[str] = ..., detail: _Optional[str] = ..., hint: _Optional[str] = ..., retriable: _Optional[bool] = ...) -> None: ...

class Filter(_message.Message):
    __slots__ = ("filter", "filters", "cel", "expression")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    CEL_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    filter: str
    filters: str
    cel: str
    expression: _pulsar_pb2.Expr
    def __init__(self, filter: _Optional[str] = ..., filters: _Optional[str] = ..., cel: _Optional[str] = ..., expression: _Optional[_Union[_pulsar_pb2.Expr, _Mapping]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("open", "credits")
    class Open(_message.Message):
        __slots__ = ("broker", "first", "first_expression", "filter_values", "match_unfiltered", "filter", "follow")
        BROKER_FIELD_NUMBER: _ClassVar[int]
        FROM_FIELD_NUMBER: _ClassVar[int]
        FIRST_FIELD_NUMBER: _ClassVar[int]
        FIRST_EXPRESSION_FIELD_NUMBER: _ClassVar[int]
        FILTER_VALUES_FIELD_NUMBER: _ClassVar[int]
        MATCH_UNFILTERED_FIELD_NUMBER: _ClassVar[int]
        FILTER_FIELD_NUMBER: _ClassVar[int]
        FOLLOW_FIELD_NUMBER: _ClassVar[int]
        broker: str
        first: str
        first_expression: _pulsar_pb2.Expr
        filter_values: _containers.RepeatedScalarFieldContainer[str]
        match_unfiltered: bool
        filter: Filter
        follow: bool
        def __init__(self, broker: _Optional[str] = ..., first: _Optional[str] = ..., first_expression: _Optional[_Union[_pulsar_pb2.Expr, _Mapping]] = ..., filter_values: _Optional[_Iterable[str]] = ..., match_unfiltered: _Optional[bool] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ..., follow: _Optional[bool] = ..., **kwargs) -> None: ...
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    open: ReadRequest.Open
    credits: int
    def __init__(self, open: _Optional[_Union[ReadRequest.Open, _Mapping]] = ..., credits: _Optional[int] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("events", "progress")
    class Read(_message.Message):
        __slots__ = ("event", "partition", "offset")
        EVENT_FIELD_NUMBER: _ClassVar[int]
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        event: _cloudevents_pb2.CloudEvent
        partition: int
        offset: int
        def __init__(self, event: _Optional[_Union[_cloudevents_pb2.CloudEvent, _Mapping]] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[ReadResponse.Read]
    progress: Progress
    def __init__(self, events: _Optional[_Iterable[_Union[ReadResponse.Read, _Mapping]]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("position", "at_end", "chunks_read", "chunks_skipped", "chunks_false_positive", "events_scanned", "events_matched", "filter_errors", "events_missed", "events_corrupt")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    AT_END_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_READ_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_SKIPPED_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FALSE_POSITIVE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_SCANNED_FIELD_NUMBER: _ClassVar[int]
    EVENTS_MATCHED_FIELD_NUMBER: _ClassVar[int]
    FILTER_ERRORS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_MISSED_FIELD_NUMBER: _ClassVar[int]
    EVENTS_CORRUPT_FIELD_NUMBER: _ClassVar[int]
    position: str
    at_end: bool
    chunks_read: int
    chunks_skipped: int
    chunks_false_positive: int
    events_scanned: int
    events_matched: int
    filter_errors: int
    events_missed: int
    events_corrupt: int
    def __init__(self, position: _Optional[str] = ..., at_end: _Optional[bool] = ..., chunks_read: _Optional[int] = ..., chunks_skipped: _Optional[int] = ..., chunks_false_positive: _Optional[int] = ..., events_scanned: _Optional[int] = ..., events_matched: _Optional[int] = ..., filter_errors: _Optional[int] = ..., events_missed: _Optional[int] = ..., events_corrupt: _Optional[int] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("open", "credits", "ack", "ack_up_to", "nack", "number")
    class Open(_message.Message):
        __slots__ = ("subscription", "consumer")
        SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
        CONSUMER_FIELD_NUMBER: _ClassVar[int]
        subscription: str
        consumer: str
        def __init__(self, subscription: _Optional[str] = ..., consumer: _Optional[str] = ...) -> None: ...
    class Nack(_message.Message):
        __slots__ = ("ids", "delay_s")
        IDS_FIELD_NUMBER: _ClassVar[int]
        DELAY_S_FIELD_NUMBER: _ClassVar[int]
        ids: _containers.RepeatedScalarFieldContainer[str]
        delay_s: float
        def __init__(self, ids: _Optional[_Iterable[str]] = ..., delay_s: _Optional[float] = ...) -> None: ...
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    ACK_UP_TO_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    open: SubscribeRequest.Open
    credits: int
    ack: _containers.RepeatedScalarFieldContainer[str]
    ack_up_to: str
    nack: SubscribeRequest.Nack
    number: int
    def __init__(self, open: _Optional[_Union[SubscribeRequest.Open, _Mapping]] = ..., credits: _Optional[int] = ..., ack: _Optional[_Iterable[str]] = ..., ack_up_to: _Optional[str] = ..., nack: _Optional[_Union[SubscribeRequest.Nack, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class SubscribeResponse(_message.Message):
    __slots__ = ("events", "acknowledged", "stale", "epoch", "active", "settled")
    class Received(_message.Message):
        __slots__ = ("ack_id", "event", "deliveries", "partition", "offset")
        ACK_ID_FIELD_NUMBER: _ClassVar[int]
        EVENT_FIELD_NUMBER: _ClassVar[int]
        DELIVERIES_FIELD_NUMBER: _ClassVar[int]
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        ack_id: str
        event: _cloudevents_pb2.CloudEvent
        deliveries: int
        partition: int
        offset: int
        def __init__(self, ack_id: _Optional[str] = ..., event: _Optional[_Union[_cloudevents_pb2.CloudEvent, _Mapping]] = ..., deliveries: _Optional[int] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[SubscribeResponse.Received]
    acknowledged: int
    stale: _containers.RepeatedScalarFieldContainer[str]
    epoch: int
    active: bool
    settled: int
    def __init__(self, events: _Optional[_Iterable[_Union[SubscribeResponse.Received, _Mapping]]] = ..., acknowledged: _Optional[int] = ..., stale: _Optional[_Iterable[str]] = ..., epoch: _Optional[int] = ..., active: _Optional[bool] = ..., settled: _Optional[int] = ...) -> None: ...

class SeekRequest(_message.Message):
    __slots__ = ("subscription", "to", "first", "last", "first_expression", "last_expression", "after")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    FIRST_EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    LAST_EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    to: str
    first: str
    last: str
    first_expression: _pulsar_pb2.Expr
    last_expression: _pulsar_pb2.Expr
    after: bool
    def __init__(self, subscription: _Optional[str] = ..., to: _Optional[str] = ..., first: _Optional[str] = ..., last: _Optional[str] = ..., first_expression: _Optional[_Union[_pulsar_pb2.Expr, _Mapping]] = ..., last_expression: _Optional[_Union[_pulsar_pb2.Expr, _Mapping]] = ..., after: _Optional[bool] = ...) -> None: ...

class SeekResponse(_message.Message):
    __slots__ = ("events_scanned", "events_total", "done", "position", "epoch")
    EVENTS_SCANNED_FIELD_NUMBER: _ClassVar[int]
    EVENTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    events_scanned: int
    events_total: int
    done: bool
    position: str
    epoch: int
    def __init__(self, events_scanned: _Optional[int] = ..., events_total: _Optional[int] = ..., done: _Optional[bool] = ..., position: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ("subscription",)
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    def __init__(self, subscription: _Optional[str] = ...) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ("processed", "accepted", "rejected", "errors", "lost", "acknowledged", "redelivered", "expired", "backlog", "candidates", "unacknowledged", "oldest_unacknowledged", "epoch", "consumer", "history_left")
    PROCESSED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    UNACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    OLDEST_UNACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    HISTORY_LEFT_FIELD_NUMBER: _ClassVar[int]
    processed: int
    accepted: int
    rejected: int
    errors: int
    lost: int
    acknowledged: int
    redelivered: int
    expired: int
    backlog: int
    candidates: int
    unacknowledged: int
    oldest_unacknowledged: str
    epoch: int
    consumer: str
    history_left: int
    def __init__(self, processed: _Optional[int] = ..., accepted: _Optional[int] = ..., rejected: _Optional[int] = ..., errors: _Optional[int] = ..., lost: _Optional[int] = ..., acknowledged: _Optional[int] = ..., redelivered: _Optional[int] = ..., expired: _Optional[int] = ..., backlog: _Optional[int] = ..., candidates: _Optional[int] = ..., unacknowledged: _Optional[int] = ..., oldest_unacknowledged: _Optional[str] = ..., epoch: _Optional[int] = ..., consumer: _Optional[str] = ..., history_left: _Optional[int] = ...) -> None: ...

class AnalyzeRequest(_message.Message):
    __slots__ = ("subscription", "filter")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    filter: Filter
    def __init__(self, subscription: _Optional[str] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ...) -> None: ...

class AnalyzeResponse(_message.Message):
    __slots__ = ("events", "accepted", "rejected", "errors", "complete")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    events: int
    accepted: int
    rejected: int
    errors: int
    complete: bool
    def __init__(self, events: _Optional[int] = ..., accepted: _Optional[int] = ..., rejected: _Optional[int] = ..., errors: _Optional[int] = ..., complete: _Optional[bool] = ...) -> None: ...
