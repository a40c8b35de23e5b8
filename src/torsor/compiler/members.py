"""What the members of a batch of models share, and the numbers that differ and become inputs of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any

from numpy.typing import NDArray

from torsor.compiler.frames import GIVEN, Framed
from torsor.compiler.store import Store

Array = NDArray[Any]

MOST_STRUCTURES = 32  # structures whose programs are kept


@dataclass(frozen=True, eq=False)
class Members:
    """The members of a batch.

    frames   the first member in its short frames; its kinds are general enough for all members
    inputs   the numbers that differ, (*shape, n, 10), ... and (*shape, 3): `torsor.inputs.MEMBERS`
    """

    frames: Framed
    inputs: Mapping[str, Array]

    @cached_property
    def key(self) -> str:
        """A hash of the structure and of the numbers that do not differ: the key of compiled programs."""
        model, digest = self.frames.model, blake2b(digest_size=16)
        digest.update(repr((self.frames.kinds, tuple(self.inputs))).encode())
        if model.couplings:
            digest.update(repr(model.couplings).encode())
        for array in (model.parent, self.frames.kind, *([] if "gravities" in self.inputs else [model.gravity])):
            digest.update(array.tobytes())
        given = {name for key in GIVEN if key in self.inputs for name in GIVEN[key]}
        for name, numbers in self.frames.numbers.items():
            if name not in given:
                digest.update(numbers.tobytes())
        return digest.hexdigest()

    @property
    def store(self) -> Store:
        """The store of this structure."""
        return _structure(self.key)


@lru_cache(maxsize=MOST_STRUCTURES)
def _structure(key: str) -> Store:
    return Store()
