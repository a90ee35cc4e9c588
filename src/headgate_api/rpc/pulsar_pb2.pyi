from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Expr(_message.Message):
    __slots__ = ("tp", "predicate", "op1", "op2")
    class ExprType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PREDICATE: _ClassVar[Expr.ExprType]
        AND: _ClassVar[Expr.ExprType]
        OR: _ClassVar[Expr.ExprType]
        NOT: _ClassVar[Expr.ExprType]
    PREDICATE: Expr.ExprType
    AND: Expr.ExprType
    OR: Expr.ExprType
    NOT: Expr.ExprType
    TP_FIELD_NUMBER: _ClassVar[int]
    PREDICATE_FIELD_NUMBER: _ClassVar[int]
    OP1_FIELD_NUMBER: _ClassVar[int]
    OP2_FIELD_NUMBER: _ClassVar[int]
    tp: Expr.ExprType
    predicate: Predicate
    op1: Expr
    op2: Expr
    def __init__(self, tp: _Optional[_Union[Expr.ExprType, str]] = ..., predicate: _Optional[_Union[Predicate, _Mapping]] = ..., op1: _Optional[_Union[Expr, _Mapping]] = ..., op2: _Optional[_Union[Expr, _Mapping]] = ...) -> None: ...

class Predicate(_message.Message):
    __slots__ = ("ref", "name", "op", "values", "ty")
    class MessageRef(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PROPERTY: _ClassVar[Predicate.MessageRef]
        EVENT_TIME: _ClassVar[Predicate.MessageRef]
        PUBLISH_TIME: _ClassVar[Predicate.MessageRef]
    PROPERTY: Predicate.MessageRef
    EVENT_TIME: Predicate.MessageRef
    PUBLISH_TIME: Predicate.MessageRef
    class Operator(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        EQUALS: _ClassVar[Predicate.Operator]
        NOT_EQUALS: _ClassVar[Predicate.Operator]
        IN: _ClassVar[Predicate.Operator]
        NOT_IN: _ClassVar[Predicate.Operator]
        GREATER_THAN: _ClassVar[Predicate.Operator]
        GREATER_THAN_EQUALS: _ClassVar[Predicate.Operator]
        LESS_THAN: _ClassVar[Predicate.Operator]
        LESS_THAN_EQUALS: _ClassVar[Predicate.Operator]
        STARTS_WITH: _ClassVar[Predicate.Operator]
        STARTS_WITH_IGNORE_CASE: _ClassVar[Predicate.Operator]
        CONTAINS: _ClassVar[Predicate.Operator]
        CONTAINS_IGNORE_CASE: _ClassVar[Predicate.Operator]
        DOES_NOT_CONTAIN: _ClassVar[Predicate.Operator]
        DOES_NOT_CONTAIN_IGNORE_CASE: _ClassVar[Predicate.Operator]
        CONTAINS_ANY: _ClassVar[Predicate.Operator]
        CONTAINS_NONE: _ClassVar[Predicate.Operator]
        BETWEEN: _ClassVar[Predicate.Operator]
        LIKE: _ClassVar[Predicate.Operator]
        CONTAINS_ALL: _ClassVar[Predicate.Operator]
    EQUALS: Predicate.Operator
    NOT_EQUALS: Predicate.Operator
    IN: Predicate.Operator
    NOT_IN: Predicate.Operator
    GREATER_THAN: Predicate.Operator
    GREATER_THAN_EQUALS: Predicate.Operator
    LESS_THAN: Predicate.Operator
    LESS_THAN_EQUALS: Predicate.Operator
    STARTS_WITH: Predicate.Operator
    STARTS_WITH_IGNORE_CASE: Predicate.Operator
    CONTAINS: Predicate.Operator
    CONTAINS_IGNORE_CASE: Predicate.Operator
    DOES_NOT_CONTAIN: Predicate.Operator
    DOES_NOT_CONTAIN_IGNORE_CASE: Predicate.Operator
    CONTAINS_ANY: Predicate.Operator
    CONTAINS_NONE: Predicate.Operator
    BETWEEN: Predicate.Operator
    LIKE: Predicate.Operator
    CONTAINS_ALL: Predicate.Operator
    class ValueType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STRING: _ClassVar[Predicate.ValueType]
        LONG: _ClassVar[Predicate.ValueType]
        DOUBLE: _ClassVar[Predicate.ValueType]
    STRING: Predicate.ValueType
    LONG: Predicate.ValueType
    DOUBLE: Predicate.ValueType
    REF_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TY_FIELD_NUMBER: _ClassVar[int]
    ref: Predicate.MessageRef
    name: str
    op: Predicate.Operator
    values: _containers.RepeatedScalarFieldContainer[str]
    ty: Predicate.ValueType
    def __init__(self, ref: _Optional[_Union[Predicate.MessageRef, str]] = ..., name: _Optional[str] = ..., op: _Optional[_Union[Predicate.Operator, str]] = ..., values: _Optional[_Iterable[str]] = ..., ty: _Optional[_Union[Predicate.ValueType, str]] = ...) -> None: ...
