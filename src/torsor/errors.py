"""The errors of torsor: every error is a `TorsorError`, and every `TorsorError` is a `ValueError`."""

import sys
import warnings


class TorsorError(ValueError):
    """An input is wrong; the message says what, where and what to do."""


class ModelError(TorsorError):
    """A model that is malformed or not physical; the message names the body."""


class ArgumentError(TorsorError):
    """An argument of the wrong shape, type or value; the message names the argument."""


class SingularError(TorsorError):
    """The dynamics have no unique solution here; the message names the joint or the state."""


class DeviceError(TorsorError):
    """Compiled code cannot run: a GPU is missing, out of memory or too old, or the system forbids it."""


class ModelWarning(UserWarning):
    """A file was read, but some of it was changed or is not modelled; the message says what."""


INNER = ("torsor", "numpy", "contextlib")  # packages whose frames lie between a call of torsor and its warning


def warn_caller(message: str, category: type[Warning] = ModelWarning) -> None:
    """Give a warning at the line, outside torsor, whose call led here."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in INNER:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
