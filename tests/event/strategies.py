"""Valid events of every kind, for property tests."""

import json

from hypothesis import strategies as st

from headgate_api.event.model import DataKind, Event

_noncharacters = [chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF)]
_noncharacters += [chr(code) for code in range(0xFDD0, 0xFDF0)]
characters = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters=_noncharacters)
# Neighbours of every rule: percent signs, quotes, white space at the ends, what JSON escapes, what a scan looks for.
texts = st.one_of(
    st.text(characters),
    st.text(st.sampled_from('a%2"\\ :{}[],é\U0001f600+u03')),
    st.sampled_from(["100%", "a%20b"]),
)
CORE = ["id", "source", "type", "subject", "time", "specversion", "data", "dataschema", "schemaurl", "datacontenttype"]
names = st.text("abcxyz0189", min_size=1, max_size=20).filter(lambda name: name not in CORE)
references = st.sampled_from(["/s", "urn:x:1", "https://a.example/b?c=%20#d", "a", "//h:1/%C3%A9", "[x]@!$&'()*+,;="])
times = st.sampled_from(
    ["2018-04-05T17:31:00Z", "2018-04-05t17:31:00.123456789z", "2018-03-31T00:00:00-23:59", "0000-02-29T23:59:60+00:00"]
)
json_types = st.sampled_from(["application/json", "text/json", "application/vnd.acme.v1+JSON; charset=utf-8"])
other_types = st.sampled_from(["text/plain", "application/xml", 'text/x; a="b;\\" c"', "application/octet-stream"])
int32 = st.integers(-(2**31), 2**31 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def json_bytes(draw):
    """A JSON text in one of the styles that producers use."""
    indent, ascii_only = draw(st.sampled_from([None, 1])), draw(st.booleans())
    return json.dumps(draw(json_values), indent=indent, ensure_ascii=ascii_only).encode()


extension_values = texts | int32 | st.booleans()


@st.composite
def events(draw):
    version = draw(st.sampled_from(["1.0", "0.3"]))
    kind = draw(st.sampled_from(DataKind))
    extensions = draw(st.dictionaries(names, extension_values, max_size=4))
    content_type, data = None, None
    if kind is DataKind.NONE:
        content_type = draw(st.none() | json_types | other_types)
    elif kind is DataKind.JSON:
        content_type, data = draw(st.none() | json_types), draw(json_bytes())
    elif kind is DataKind.TEXT:
        content_type, data = draw(other_types), draw(texts.map(str.encode))
    else:
        content_type, data = draw(st.none() | other_types), draw(st.binary())
    return Event(
        version,
        draw(texts.filter(bool)),
        draw(references),
        draw(texts.filter(bool)),
        draw(st.none() | texts.filter(bool)),
        draw(st.none() | times),
        content_type,
        draw(st.none() | st.sampled_from(["https://a.example/s", "urn:x"])),
        extensions,
        kind,
        data,
    )


ascii_texts = st.text(st.sampled_from("ab1 %:{}[],'~json"), min_size=1)
ascii_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.sampled_from([0.5, 1e300]) | ascii_texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ascii_texts, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def usual_events(draw):
    """What `UsualEvents` reads at once: version 1.0, JSON data, ASCII without escapes."""
    return Event(
        "1.0",
        draw(ascii_texts),
        draw(references),
        draw(ascii_texts),
        draw(st.none() | ascii_texts),
        draw(st.none() | st.sampled_from(["2018-04-05T17:31:00Z", "2026-11-21T00:00:59.123456789Z"])),
        draw(st.none() | json_types),
        None,
        draw(st.dictionaries(st.sampled_from(["0", "class", "tenant", "partitionkey"]), ascii_texts, max_size=3)),
        DataKind.JSON,
        json.dumps(draw(ascii_values), indent=draw(st.sampled_from([None, 1]))).encode(),
    )
