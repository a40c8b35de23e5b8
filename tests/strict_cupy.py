"""A stand-in for CuPy's arrays that is as strict as they are: they are not NumPy's, they do not mix with NumPy's, and
they are copied to the host only by `get`, `asnumpy`, `tolist`, or as one number, which is counted."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import fake_cupy
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from torsor.parallel.engine import ScheduleRunner

WAITS = Counter()  # how often the host waited for the device, and why


class Array(NDArrayOperatorsMixin):
    """An array on the device."""

    def __init__(self, x):
        self.inner = np.asarray(x)

    def __dlpack_device__(self):
        return (2, 0)

    @property
    def data(self):
        return SimpleNamespace(ptr=self.inner.ctypes.data)

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        if method != "__call__" or ufunc.signature not in (None, "(n?,k),(k,m?)->(n?,m?)"):
            raise TypeError(f"CuPy has no {ufunc.__name__}.{method}")
        if out:
            options["out"] = tuple(inside(x) for x in out)
        return outside(ufunc(*(inside(x) for x in inputs), **options))

    def __array_function__(self, function, types, args, options):
        if function in (np.asarray, np.array):  # with like=
            return Array(function(*args, **options))
        return outside(function(*inside(args), **inside(options)))

    def __getattr__(self, name):
        if name in ("shape", "ndim", "dtype", "size", "nbytes", "strides", "flags"):
            return getattr(self.inner, name)
        if name in ("real", "imag"):
            return Array(getattr(self.inner, name))
        if name in (
            "copy",
            "conj",
            "dot",
            "all",
            "argmax",
            "any",
            "sum",
            "max",
            "min",
            "ravel",
            "reshape",
            "astype",
            "transpose",
        ):
            return lambda *args, **options: outside(getattr(self.inner, name)(*inside(args), **inside(options)))
        raise AttributeError(f"CuPy's arrays have no {name}")

    def __len__(self):
        return len(self.inner)

    def __iter__(self):
        return (Array(x) for x in self.inner)

    def __getitem__(self, index):
        return Array(self.inner[inside(index)])

    def __setitem__(self, index, value):
        self.inner[inside(index)] = inside(value)

    def get(self):
        WAITS["copies"] += 1
        return self.inner.copy()

    def tolist(self):
        WAITS["copies"] += 1
        return self.inner.tolist()

    def _number(self, kind):
        WAITS["numbers"] += 1
        return kind(self.inner)

    def item(self):
        return self._number(lambda x: x.item())

    def __float__(self):
        return self._number(float)

    def __bool__(self):
        return self._number(bool)

    def __int__(self):
        return self._number(int)

    __index__ = __int__


def inside(x):
    """What an argument holds; arrays of the host are refused."""
    if isinstance(x, Array):
        return x.inner
    if isinstance(x, np.ndarray) and x.ndim:
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if isinstance(x, dict):
        return {key: inside(value) for key, value in x.items()}
    return type(x)(map(inside, x)) if isinstance(x, list | tuple) else x


def outside(x):
    """A result on the device."""
    if isinstance(x, np.ndarray | np.generic):
        return Array(x)
    return type(x)(map(outside, x)) if isinstance(x, list | tuple) else x


def asarray(x, dtype=None):
    return Array(np.array(x.inner if isinstance(x, Array) else x, dtype))


class Function(fake_cupy.Function):
    def __call__(self, grid, block, arguments, shared_mem=0):
        super().__call__(grid, block, [inside(x) for x in arguments], shared_mem)


class Cupy(fake_cupy.Cupy):
    def __init__(self):
        super().__init__()
        self.ndarray, self.asarray, self.asnumpy = Array, asarray, lambda x: x.get()
        self.float64 = np.float64
        self.empty = lambda shape, dtype=float: Array(np.full(shape, np.nan, dtype))
        self.zeros = lambda shape, dtype=float: Array(np.zeros(shape, dtype))
        self.broadcast_to = lambda x, shape: Array(np.broadcast_to(x.inner, shape))
        self.ascontiguousarray = lambda x: Array(np.ascontiguousarray(x.inner))
        self.bincount = lambda x, weights, size: Array(np.bincount(x.inner, weights.inner, size))

    def _module(self, code, options):
        self.functions.append(Function(code))
        return SimpleNamespace(get_function=lambda name: self.functions[-1])


class DeviceEngine:
    """The levels of a chain on arrays of the device, by the engine of the host."""

    def __init__(self, plan):
        self.engine = ScheduleRunner(plan)

    def run(self, inputs, outputs):
        return [Array(x) for x in self.engine.run({name: inside(x) for name, x in inputs.items()}, outputs)]


def install(monkeypatch):
    """torsor finds this CuPy, and runs its levels on the host."""
    stand_in = Cupy()
    fake_cupy.install(monkeypatch, stand_in)
    monkeypatch.setattr("torsor.parallel.device.cupy", lambda: stand_in)
    monkeypatch.setattr("torsor.parallel.device.DeviceScheduleRunner", DeviceEngine)
    return stand_in
