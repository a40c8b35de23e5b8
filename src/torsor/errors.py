"""The errors of torsor: every error is a `TorsorError`, and every `TorsorError` is a `ValueError`."""


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
    """A file was read, but part of it was changed or is not modelled; the message says which."""
