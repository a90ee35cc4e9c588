"""What key extraction reads of an event: the columns of the log before it, and of each operand's value after it.

SQL NULL stands for "no value of this type"; whether there is a value at all is a field of its own (`mismatch`, `has`).
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.event.attributes import CONTEXT_ATTRIBUTES
from headgate.filter.cel.attribute_names import TIME_TEXT
from headgate.filter.compile.plan import Form, Operand, Root


@dataclass(frozen=True, slots=True)
class OperandColumns:
    """The columns of one operand's value.

    Attributes:
        text: The string, NULL when it is none.
        number: The number as double, NULL when it is none.
        flag: The boolean, NULL when it is none.
        is_null: Whether it is JSON's null, NULL when there is no value.
        mismatch: FALSE when there is a value, else NULL: the value of `==` with another type.
        has: CEL's has(): NULL when the parent is not an object.
        doubt: Whether only cel-cpp knows the value; all others are NULL then. Never NULL.
        items: Of a form of many values, these; else NULL.
    """

    text: str
    number: str
    flag: str
    is_null: str
    mismatch: str
    has: str
    doubt: str
    items: str

    @classmethod
    def of(cls, column: str) -> OperandColumns:
        """The fields of a struct column, as `keys/Value.java` has them."""
        return cls(*(f"{column}.{name}" for name in cls.__slots__))


def columns_of(operand: Operand) -> tuple[str, ...]:
    """The columns of the log that hold an operand."""
    if operand.root is Root.DATA:
        return ("data",)
    if operand.root is Root.PUBLISH_TIME:
        return ("append_time_us",)
    if operand.form is Form.TIME:
        return ("time", "time_us")
    if operand.form is Form.NAMED:
        return ("extensions",)
    attribute = attribute_of(operand)
    return (attribute,) if attribute in CONTEXT_ATTRIBUTES else ("extensions",)


def attribute_of(operand: Operand) -> str:
    """The attribute whose value is read: filters have another name for the text of `ce.time`."""
    return "time" if operand.path[0] == TIME_TEXT else operand.path[0]
