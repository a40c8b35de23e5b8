"""The store of a model: its programs, choices and frames.

Models of the same content share one store.  It is released with the last of these models.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from torsor.model.batch import ModelBatch
from torsor.model.model import Model

Made = TypeVar("Made")
NAME = "store"  # the attribute in which a model keeps its store


class Store:
    """`torsor.dynamics` first looks in `quick`, `calls` and `on_gpu`; everything else is found by its key.

    quick    number type -> forward dynamics of one state, for models with few freedoms
    calls    (function, algorithm or (algorithm, frame); number type) -> (for one state, for many, whether a result has
             few numbers, how to split a row into several results, or None)
    on_gpu   (function or algorithm, type of an array, number type) -> what gives the result for arrays on a GPU, or
             None if their layout was not seen before
    """

    def __init__(self) -> None:
        self.quick: dict[str, Any] = {}
        self.calls: dict[tuple[Any, str], tuple[Any, Any, bool, Any]] = {}
        self.on_gpu: dict[tuple[Any, type, Any], Callable[[tuple[Any, ...]], Any]] = {}
        self._made: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """The object stored under a key; it is made on first use."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def found(self, key: Hashable) -> Any:
        """The object stored under a key, or None."""
        return self._made.get(key)


_by_content: weakref.WeakValueDictionary[str, Store] = weakref.WeakValueDictionary()


def store(model: Model | ModelBatch) -> Store:
    """The store of a model; each batch has its own."""
    try:
        return model.__dict__[NAME]
    except KeyError:
        made = _by_content.setdefault(model.key, Store()) if isinstance(model, Model) else Store()
        model.__dict__[NAME] = made
        return made
