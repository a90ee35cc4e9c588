"""Functions in Python as cel-cpp calls them, so that nothing of a call stays in memory.

cel-expr-python 0.1.3 makes a tuple of the arguments and never gives it back, nor the result: each call would keep some
hundred bytes for good, and lists as a whole. Here a function gets that very tuple, as functions in C do, and gives the
binding's reference back. The result's is given back at the thread's next call: by then the binding has copied it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, Final

_METH_VARARGS: Final = 1
_call_one_arg: Final = ctypes.cast(ctypes.pythonapi.PyObject_CallOneArg, ctypes.c_void_p)
_new_function: Final = ctypes.pythonapi.PyCFunction_NewEx
_new_function.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
_new_function.restype = ctypes.py_object
_give_back: Final = ctypes.pythonapi.Py_DecRef
_give_back.argtypes = (ctypes.py_object,)
_give_back.restype = None


class _MethodDef(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("method", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class _Last(threading.local):
    """What the last call in this thread returned, to which the binding still has a reference."""

    result: object = None
    is_kept = False


_LAST: Final = _Last()
_METHODS: Final[list[_MethodDef]] = []
"""Functions point to theirs."""


def callback(compute: Callable[..., Any]) -> Callable[..., Any]:
    """A function for `cel.Overload` alone: whoever else calls it loses what belongs to him."""

    def call(arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401 - whatever the function makes
        _give_back(arguments)
        if _LAST.is_kept:
            _LAST.is_kept = False
            _give_back(_LAST.result)
        _LAST.result = result = compute(*arguments)
        _LAST.is_kept = True
        return result

    # `PyObject_CallOneArg(call, arguments)` has the signature of a C function in the object `call`.
    method = _MethodDef(compute.__name__.encode(), _call_one_arg, _METH_VARARGS, None)
    _METHODS.append(method)
    made: Callable[..., Any] = _new_function(ctypes.addressof(method), call, None)
    return made
