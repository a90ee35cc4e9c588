from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Expr(_message.Message):
    __slots__ = ("predicate",)
    PREDICATE_FIELD_NUMBER: _ClassVar[int]
    AND_FIELD_NUMBER: _ClassVar[int]
    OR_FIELD_NUMBER: _ClassVar[int]
    NOT_FIELD_NUMBER: _ClassVar[int]
    predicate: Predicate
    def __init__(self, predicate: _Optional[_Union[Predicate, _Mapping]] = ..., **kwargs) -> None: ...

class Exprs(_message.Message):
    __slots__ = ("operands",)
    OPERANDS_FIELD_NUMBER: _ClassVar[int]
    operands: _containers.RepeatedCompositeFieldContainer[Expr]
    def __init__(self, operands: _Optional[_Iterable[_Union[Expr, _Mapping]]] = ...) -> None: ...

class Predicate(_message.Message):
    __slots__ = ("property", "event_time", "publish_time", "type", "operator", "values")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        TYPE_UNSPECIFIED: _ClassVar[Predicate.Type]
        STRING: _ClassVar[Predicate.Type]
        LONG: _ClassVar[Predicate.Type]
        DOUBLE: _ClassVar[Predicate.Type]
    TYPE_UNSPECIFIED: Predicate.Type
    STRING: Predicate.Type
    LONG: Predicate.Type
    DOUBLE: Predicate.Type
    class Operator(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OPERATOR_UNSPECIFIED: _ClassVar[Predicate.Operator]
        EQUALS: _ClassVar[Predicate.Operator]
        NOT_EQUALS: _ClassVar[Predicate.Operator]
        IN: _ClassVar[Predicate.Operator]
        NOT_IN: _ClassVar[Predicate.Operator]
        GREATER_THAN: _ClassVar[Predicate.Operator]
        GREATER_THAN_OR_EQUAL: _ClassVar[Predicate.Operator]
        LESS_THAN: _ClassVar[Predicate.Operator]
        LESS_THAN_OR_EQUAL: _ClassVar[Predicate.Operator]
        BETWEEN: _ClassVar[Predicate.Operator]
        LIKE: _ClassVar[Predicate.Operator]
        STARTS_WITH: _ClassVar[Predicate.Operator]
        STARTS_WITH_IGNORE_CASE: _ClassVar[Predicate.Operator]
        CONTAINS: _ClassVar[Predicate.Operator]
        CONTAINS_ALL: _ClassVar[Predicate.Operator]
        CONTAINS_ANY: _ClassVar[Predicate.Operator]
        CONTAINS_NONE: _ClassVar[Predicate.Operator]
    OPERATOR_UNSPECIFIED: Predicate.Operator
    EQUALS: Predicate.Operator
    NOT_EQUALS: Predicate.Operator
    IN: Predicate.Operator
    NOT_IN: Predicate.Operator
    GREATER_THAN: Predicate.Operator
    GREATER_THAN_OR_EQUAL: Predicate.Operator
    LESS_THAN: Predicate.Operator
    LESS_THAN_OR_EQUAL: Predicate.Operator
    BETWEEN: Predicate.Operator
    LIKE: Predicate.Operator
    STARTS_WITH: Predicate.Operator
    STARTS_WITH_IGNORE_CASE: Predicate.Operator
    CONTAINS: Predicate.Operator
    CONTAINS_ALL: Predicate.Operator
    CONTAINS_ANY: Predicate.Operator
    CONTAINS_NONE: Predicate.Operator
    PROPERTY_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_TIME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    property: str
    event_time: EventTime
    publish_time: PublishTime
    type: Predicate.Type
    operator: Predicate.Operator
    values: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, property: _Optional[str] = ..., event_time: _Optional[_Union[EventTime, _Mapping]] = ..., publish_time: _Optional[_Union[PublishTime, _Mapping]] = ..., type: _Optional[_Union[Predicate.Type, str]] = ..., operator: _Optional[_Union[Predicate.Operator, str]] = ..., values: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...

class EventTime(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PublishTime(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Value(_message.Message):
    __slots__ = ("string_value", "long_value", "double_value")
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    LONG_VALUE_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_VALUE_FIELD_NUMBER: _ClassVar[int]
    string_value: str
    long_value: int
    double_value: float
    def __init__(self, string_value: _Optional[str] = ..., long_value: _Optional[int] = ..., double_value: _Optional[float] = ...) -> None: ...
