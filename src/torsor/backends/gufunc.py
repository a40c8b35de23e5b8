"""An address of machine code as a NumPy generalised ufunc: broadcasting, casting, `out=` and threads for free."""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

# indices in NumPy's table of C functions (numpy/ufuncobject.h), unchanged since NumPy 1.8
_FROM_FUNC_AND_SIGNATURE = 31
_TYPE_NUMBER: dict[str, int] = {name: np.dtype(name).num for name in ("float32", "float64")}


@functools.cache
def _make() -> Any:
    """PyUFunc_FromFuncAndDataAndSignature."""
    table = importlib.import_module("numpy._core._multiarray_umath")._UFUNC_API
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    functions = ctypes.cast(get(table, None), ctypes.POINTER(ctypes.c_void_p))
    prototype = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int,
        ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p,
    )  # fmt: skip
    return prototype(functions[_FROM_FUNC_AND_SIGNATURE])


def signature(shapes: Sequence[tuple[int, ...]]) -> str:
    """The signature of a function with arrays of these shapes; the last is its result."""
    *inputs, output = (f"({','.join(map(str, shape))})" for shape in shapes)
    return f"{','.join(inputs)}->{output}"


class _UFunc(ctypes.Structure):
    """The first fields of a PyUFuncObject after its object header (numpy/ufuncobject.h, part of NumPy's ABI)."""

    _fields_ = (
        ("numbers", ctypes.c_int * 4), ("functions", ctypes.c_void_p), ("data", ctypes.c_void_p),
        ("ntypes", ctypes.c_int), ("reserved", ctypes.c_int), ("name", ctypes.c_char_p), ("types", ctypes.c_void_p),
        ("doc", ctypes.c_char_p), ("memory", ctypes.c_void_p), ("object", ctypes.c_void_p),
    )  # fmt: skip


def gufunc(address: int, data: int, signature: str, dtype: str, name: str, doc: str, owned: Any) -> Any:
    """A gufunc that runs the code at an address and keeps `owned` alive.

    `data` is passed to the code at every call.
    """
    inputs, outputs = signature.split("->")
    nin, nout = inputs.count("("), outputs.count("(")
    functions = (ctypes.c_void_p * 1)(address)
    datas = (ctypes.c_void_p * 1)(data)
    types = (ctypes.c_ubyte * (nin + nout))(*[_TYPE_NUMBER[dtype]] * (nin + nout))
    texts = tuple(ctypes.c_char_p(text.encode()) for text in (name, doc, signature))
    ufunc = _make()(
        ctypes.addressof(functions), ctypes.addressof(datas), ctypes.addressof(types), 1, nin, nout,
        -1, texts[0], texts[1], 0, texts[2],
    )  # fmt: skip
    # NumPy releases `object` with the ufunc; it is null unless np.frompyfunc made the ufunc
    owner = ctypes.py_object((owned, functions, datas, types, texts))
    field = _UFunc.from_address(id(ufunc) + object.__basicsize__)
    assert (field.object, field.name) == (None, texts[0].value), "NumPy's PyUFuncObject has another layout"
    ctypes.pythonapi.Py_IncRef(owner)
    field.object = id(owner.value)
    return ufunc


def entry_of(ufunc: Any) -> tuple[int, int]:
    """The addresses of a gufunc's inner loop and of its data, valid while the gufunc lives."""
    field = _UFunc.from_address(id(ufunc) + object.__basicsize__)
    places = (ctypes.cast(x, ctypes.POINTER(ctypes.c_void_p))[0] for x in (field.functions, field.data))
    address, data = (place or 0 for place in places)
    return address, data
