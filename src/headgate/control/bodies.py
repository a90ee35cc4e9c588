"""What did the client send? Bodies, bounded, from JSON or YAML to plain values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node

from headgate.control.errors import MalformedObjectError
from headgate.limits import OBJECT_NODES_MAX

JSON_TYPES: Final = frozenset({"", "application/json", "application/merge-patch+json"})
YAML_TYPES: Final = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})


class _Constructor(SafeConstructor):
    """Values as JSON has them: a date stays the text that was written."""


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)


class _PlainConstructor(_Constructor):
    """No merge keys: each copies what it names, and a chain of them ten times more for every 65 bytes."""

    def flatten_mapping(self, node: MappingNode) -> None:
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise ConstructorError(None, None, "merge keys (<<) are not supported", key.start_mark)


class _BoundedComposer(Composer):
    """Stops at OBJECT_NODES_MAX values: to parse the rest of a body would take seconds."""

    def __init__(self, loader: YAML | None = None) -> None:
        super().__init__(loader=loader)
        self._values = 0

    def compose_node(self, parent: Node | None, index: object) -> Node:
        is_key = parent is not None and index is None
        self._values += not is_key
        if self._values > OBJECT_NODES_MAX:
            mark = self.parser.peek_event().start_mark
            raise ComposerError(None, None, f"it has more than {OBJECT_NODES_MAX} values (OBJECT_NODES_MAX)", mark)
        node: Node = super().compose_node(parent, index)
        return node


def media_type(header: str) -> str:
    """The type of a Content-Type header without parameters, in lower case."""
    return header.partition(";")[0].strip().lower()


def decode_json(body: bytes) -> object:
    """A JSON document.

    Raises:
        MalformedObjectError: It is none, or it nests too deep.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedObjectError(f"the body is no JSON: {error}") from error


def decode_yaml(body: bytes) -> object:
    """The only document of a YAML stream.

    Raises:
        MalformedObjectError: It is no YAML, not exactly one document, has merge keys or too many values.
    """
    documents = list(_documents(body, _PlainConstructor, _BoundedComposer))
    if len(documents) != 1:
        raise MalformedObjectError(f"the body holds {len(documents)} documents, expected one")
    return documents[0]


def decode_json_or_yaml(body: bytes) -> object:
    """A document that may be either; most clients that may send YAML send JSON, which is read a hundred times faster.

    Raises:
        MalformedObjectError: It is neither.
    """
    if body.lstrip().startswith(b"{"):
        with suppress(MalformedObjectError):
            return decode_json(body)
    return decode_yaml(body)


def yaml_documents(body: bytes) -> Iterator[object]:
    """The documents of a YAML stream that are not empty, a file of the caller's own; JSON is YAML too.

    Raises:
        MalformedObjectError: It is no YAML; the message says where.
    """
    return _documents(body, _Constructor, Composer)


def _documents(body: bytes, constructor: type[_Constructor], composer: type[Composer]) -> Iterator[object]:
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor, yaml.Composer = constructor, composer
    try:
        for document in yaml.load_all(body.decode("utf-8-sig")):
            if document is not None:
                yield document
    except UnicodeDecodeError as error:
        raise MalformedObjectError(f"the text is no UTF-8: {error.reason} at byte {error.start}") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise MalformedObjectError(f"the text is no YAML: {error.problem or error.context}{place}") from error
    except (YAMLError, RecursionError, ValueError, TypeError) as error:
        # ValueError, TypeError: tags that do not fit their value (!!int x), unhashable keys.
        raise MalformedObjectError(f"the text is no YAML: {error}") from error
