"""`jms`: a selector of JMS (Jakarta Messaging 3.1, section 3.8.1), which is the condition of an SQL-92 WHERE.

    JMSType = 'car' AND color = 'blue' AND weight > 2500

A name is a context attribute or extension, as it stands; headers are found by `names.py`. The data cannot be asked,
and strings and numbers never convert. A selector is unknown where a property is missing: then it does not match, and
nor does its negation; in CEL that is false and no error.
"""

from __future__ import annotations

from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.unparse import unparse
from headgate.filter.dialects.jms.names import Attribute, meaning
from headgate.filter.dialects.jms.parser import LEXICON, parse
from headgate.filter.dialects.jms.to_cel import translate
from headgate.filter.dialects.sql_tokens import Kind, tokens


def jms(value: object, field: str) -> str:
    """CEL text of a selector of strict JMS; the FilterError for any other has its place."""
    if not isinstance(value, str):
        raise FilterError("must be a string", field=field)
    try:
        return unparse(translate(value, parse(value)))
    except FilterError as error:
        raise error.at_field(field) from None


def names_in(selector: str) -> tuple[str, ...]:
    """Names of the attributes that a valid selector reads, each once."""
    found = (meaning(token.text) for token in tokens(selector, LEXICON) if token.kind is Kind.NAME)
    return tuple(dict.fromkeys(one.name for one in found if isinstance(one, Attribute)))
