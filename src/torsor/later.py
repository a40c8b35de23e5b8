"""Modules that are imported when they are first used, because they are slow to load or belong to an extra."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torsor.errors import ArgumentError


class Later:
    """A module by name, in place of an import at the top of a file.

        pyarrow = Later("pyarrow", "Parquet files need pyarrow", "torsor[parquet]")

    needed    says what needs the module, if it may be missing;  install: the argument of pip install
    """

    def __init__(self, name: str, needed: str = "", install: str = "") -> None:
        self._name, self._needed, self._install = name, needed, install

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # asked for by copying and inspection
            raise AttributeError(attribute)
        return getattr(loaded(self), attribute)


def loaded(module: Any, error: type[Exception] = ArgumentError, where: str = "") -> Any:
    """The module that a `Later` stands for; `where` begins the message of the error if it is missing."""
    try:
        return import_module(module._name)
    except ImportError as reason:
        if not module._needed:
            raise
        raise error(f"{where}{module._needed}: pip install '{module._install}'") from reason
