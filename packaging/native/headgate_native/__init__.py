"""The compiled part of a Headgate server, which goes without it: two loops over the bytes of a JSON text.

What they find the server finds without them, slower: `headgate_api.event.json_text` has both ways.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

# PyDLL keeps the GIL: giving it up and waiting for it takes longer than such a call.
_library = ctypes.PyDLL(str(Path(__file__).with_name("plain_json.so")))
_is_plain, _containers = _library.headgate_is_plain, _library.headgate_containers
_is_plain.argtypes = _containers.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
_is_plain.restype, _containers.restype = ctypes.c_bool, ctypes.c_size_t


def is_plain(text: bytes) -> bool:
    """True: the text is JSON (RFC 8259) within bounds that make it the same to every parser. False: perhaps it is, too.

    It is printable ASCII without a backslash. No object has a name twice, or more than 64 members. No name is longer
    than 255 bytes. No number has more than 200 characters or an exponent of more than 2 digits. Arrays and objects are
    not nested deeper than 32, and there are not more than 10,000.
    """
    return _is_plain(text, len(text))  # type: ignore[no-any-return]


def containers(text: bytes) -> int:
    """How many bytes of the text are `[` or `{`."""
    return _containers(text, len(text))  # type: ignore[no-any-return]
