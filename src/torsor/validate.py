"""Checks of arguments: each function returns the converted argument, or raises an error that names it."""

from __future__ import annotations

import inspect
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping
from math import inf, isfinite, prod
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.errors import ArgumentError

Array = NDArray[Any]

NO_VMAP = (
    "torsor's functions take batches of states themselves: call them outside vmap, jit and grad, or make functions for "
    "these, and for tensors with gradients, by torsor.jax.function or torsor.torch.function"
)


class _Short(reprlib.Repr):
    """Short forms; a function's is its name."""

    def repr_function(self, x: Any, level: int) -> str:
        return str(x.__name__)


_short = _Short()
_short.maxstring = _short.maxother = 80
_short.maxlevel = 3


def shown(x: Any) -> str:
    """A value as messages show it: never long; never raises an error."""
    try:
        return _short.repr(x)
    except Exception:
        return f"a {type(x).__name__}"


def refused_function(function: Any, what: str, known: Iterable[str]) -> ArgumentError:
    """The error for what is none of the functions `known`, which are named after `what`."""
    names = list(known)
    if isinstance(function, str) and function in names:
        return ArgumentError(f"{function!r} is only a name: give the function, ts.{function}")
    return ArgumentError(f"{shown(function)} {what}: {', '.join(names)}")


def brief(message: object) -> str:
    """A message that quotes its argument, shortened in the middle if it is long."""
    text = str(message)
    return text if len(text) <= 1000 else f"{text[:500]} ... {text[-400:]}"


# ---- arrays ----


def array(name: str, x: Any) -> Array:
    """x as a NumPy array of any dtype; masked arrays and ragged lists are refused."""
    if masked(x):
        raise ArgumentError(f"{name} is a masked array; torsor has no missing values: fill it with x.filled(...)")
    try:
        return np.asarray(x)
    except ValueError:
        raise ArgumentError(f"{name} must be an array, not a ragged list") from None
    except Exception as error:  # whatever an object's own conversion raises
        hint = f". {NO_VMAP}" if hasattr(x, "__dlpack__") else ""
        raise ArgumentError(f"{name} must be an array, not {shown(x)}: {error}{hint}") from None


def real_array(name: str, x: Any, *shapes: tuple[int, ...], finite: bool = True) -> Array:
    """x as a float64 array of one of these shapes (any shape if none is given)."""
    found = x if type(x) is np.ndarray else array(name, x)
    if found.dtype.kind not in "iuf":
        raise ArgumentError(f"{name} must be numbers, not {found.dtype}: {shown(x)}")
    if shapes and found.shape not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ArgumentError(f"{name} must have shape {wanted}, not {found.shape}")
    if found.dtype != np.float64:
        with np.errstate(over="ignore"):  # a long double may exceed a double
            found = found.astype(np.float64)
    if finite and not np.isfinite(found).all():
        raise ArgumentError(f"{name} must be finite; it holds a NaN or an infinity")
    return found


def integer_array(name: str, x: Any, dtype: Any) -> Array:
    """A copy of x as integers of this dtype; numbers beyond its range are refused, not wrapped."""
    found = array(name, x)
    if found.dtype.kind not in "iu":
        raise ArgumentError(f"{name} must hold integers, not {found.dtype}")
    limits = np.iinfo(dtype)
    if found.size and not limits.min <= int(found.min()) <= int(found.max()) <= limits.max:
        raise ArgumentError(
            f"{name} must hold integers from {limits.min} to {limits.max}, not {found.min()} to {found.max()}"
        )
    return found.astype(dtype, order="C")


def masked(x: Any) -> bool:
    """Is x a masked array, or a list of such? Before numpy.ma is loaded, which is slow, there can be none; nor while
    another thread loads it.
    """
    kind = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if kind is None:
        return False
    return isinstance(x, kind) or (isinstance(x, list | tuple) and any(isinstance(row, kind) for row in x))


# ---- numbers ----


def number(name: str, x: Any, *, above: float = -inf, least: float = -inf, infinite: bool = False) -> float:
    """x as one real number, greater than `above` and not less than `least`; finite unless `infinite`."""
    kind = getattr(x, "dtype", None)
    scalar = kind is not None and np.shape(x) == () and not masked(x) and np.dtype(kind).kind in "iuf"
    if isinstance(x, bool | np.bool_) or not (scalar or isinstance(x, Real)):
        raise ArgumentError(f"{name} must be one real number, not {shown(x)}")
    try:
        value = float(x)
    except (OverflowError, ValueError, TypeError):
        raise ArgumentError(f"{name} is too large for a double: {shown(x)}") from None
    bounds = [f"greater than {above:g}"] if above > -inf else [f"at least {least:g}"] if least > -inf else []
    if value > above and value >= least and (isfinite(value) or (infinite and value == inf)):
        return value
    wanted = " and ".join(bounds if infinite else [*bounds, "finite"]) or "a number"
    raise ArgumentError(f"{name} must be {wanted}, not {value:g}")


def integer(name: str, x: Any, least: int | None = None, most: int | None = None) -> int:
    """x as an integer, from `least` to `most`."""
    if isinstance(x, bool) or not isinstance(x, int | np.integer):
        raise ArgumentError(f"{name} must be an integer, not {shown(x)}")
    if least is not None and x < least:
        raise ArgumentError(f"{name} must be at least {least}, not {shown(x)}")
    if most is not None and x > most:
        raise ArgumentError(f"{name} must be at most {most}, not {shown(x)}")
    return int(x)


def batch(name: str, size: Any, width: int) -> tuple[int, ...]:
    """The shape given by `size` (an integer, or a tuple or list of integers), for rows of `width` numbers."""
    axes = size if isinstance(size, tuple | list) else (size,)
    shape = tuple(integer(name, axis, least=0) for axis in axes)
    check_memory(name, 8 * prod(max(axis, 1) for axis in shape) * width)  # NumPy counts like this, too
    return shape


def check_memory(name: str, size: int) -> None:
    """Raise before any work if an argument asks for more bytes than the computer has."""
    if size > (available := memory()):
        raise ArgumentError(f"{name} asks for more than the {available / 1e9:.3g} GB of memory of this machine")


def memory() -> int:
    """The bytes of memory of this computer; if the system does not report them, the address space."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


# ---- words, flags, callables, paths ----


def flag(name: str, x: Any) -> bool:
    """x as True or False; no other value is accepted."""
    if not isinstance(x, bool | np.bool_):
        raise ArgumentError(f"{name} must be True or False, not {shown(x)}")
    return bool(x)


def word(name: str, x: Any) -> str:
    """x as a string that a file can hold; half of a surrogate pair is not a character."""
    if not isinstance(x, str):
        raise ArgumentError(f"{name} must be a string, not {shown(x)}")
    if not encodable(x):
        raise ArgumentError(f"{name} holds a lone surrogate, which is no character: {x!a}")
    return x


def encodable(text: str) -> bool:
    """Whether UTF-8 can encode this text."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def chosen(name: str, x: Any, known: Iterable[str]) -> str:
    """x as one of the known words."""
    if not isinstance(x, str) or x not in (known := list(known)):
        raise ArgumentError(f"unknown {name} {shown(x)}; choose one of: {', '.join(known)}")
    return x


def function(name: str, x: Any, arguments: tuple[str, ...] = ()) -> Callable[..., Any]:
    """x as a callable that takes these arguments, if any are named."""
    if not callable(x):
        raise ArgumentError(f"{name} must be a function, not {shown(x)}")
    try:
        if arguments:
            inspect.signature(x).bind(*arguments)
    except TypeError as error:
        raise ArgumentError(f"{name} is called as f({', '.join(arguments)}): {error} of {shown(x)}") from None
    except ValueError:  # a C function without a signature
        pass
    return x


def generator(name: str, rng: Any) -> np.random.Generator:
    """A NumPy Generator from one, from a seed, or from None."""
    try:
        return np.random.default_rng(rng)
    except Exception as error:  # whatever an object's own conversion raises
        raise ArgumentError(f"{name} must be a NumPy Generator or a seed, not {shown(rng)}: {error}") from None


def file_path(name: str, x: Any) -> Path:
    """x as the path of a file."""
    try:
        path = Path(x)
        usable = b"\0" not in os.fsencode(path)
    except (TypeError, UnicodeEncodeError):
        usable = False
    if not usable:
        raise ArgumentError(f"{name} must be the path of a file, not {shown(x)}")
    return path


def parameter(name: str, x: ArrayLike, nv: int | None = None, *, finite: bool = True) -> Array:
    """A number for all degrees of freedom, or one for each; no NaN, and no infinity if `finite`."""
    found = real_array(name, x, finite=finite)
    if found.ndim > 1 or (nv is not None and found.shape not in ((), (nv,))):
        count = "each" if nv is None else f"each of {nv}"
        raise ArgumentError(f"{name} must be one number, or one for {count} degrees of freedom, not {found.shape}")
    if np.isnan(found).any():
        raise ArgumentError(f"{name} holds a NaN")
    return found


def batch_of(arrays: Mapping[str, tuple[tuple[int, ...], int]]) -> tuple[int, ...]:
    """The batch axes to which arrays broadcast; of each array its shape and the number of its own axes are given."""
    try:
        return np.broadcast_shapes(*(shape[: len(shape) - rank] for shape, rank in arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {shape}" for name, (shape, _) in arrays.items())
        raise ArgumentError(f"the batch axes do not go together: {shapes}") from None
