"""Names of bodies and frames."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from torsor.errors import ArgumentError
from torsor.model.portable import product, turned
from torsor.validate import shown

SEARCHED, SHOWN = 500, 8  # names searched for a message, and names shown in it


class Frame(NamedTuple):
    """A frame fixed to a body: its placement (R, p) in the body's frame; body -1 is the base."""

    body: int
    R: NDArray[Any]
    p: NDArray[Any]

    @property
    def key(self) -> tuple[int, bytes, bytes]:
        """Equal for equal frames, whatever the signs of their zeros."""
        return self.body, (self.R + 0.0).tobytes(), (self.p + 0.0).tobytes()

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frame) and self.key == other.key


class BodyFrames(NamedTuple):
    """Frames of the caller's choice, one per body: Q (n, 4, 4) transforms coordinates from the model's frames to these.

    Ploen & Park 1999, section II.C.
    """

    Q: NDArray[Any]

    @property
    def key(self) -> bytes:
        """Equal for equal frames, whatever the signs of their zeros."""

        return (self.Q + 0.0).tobytes()

    def placed(self, frame: Frame) -> Frame:
        """A frame fixed on its body, expressed in these frames."""
        body, R, p = frame
        if body < 0:
            return frame
        turn, shift = self.Q[body, :3, :3], self.Q[body, :3, 3]
        return Frame(body, product(turn, R), turned(turn, p) + shift)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BodyFrames) and self.key == other.key


def word_list(names: Any) -> Sequence[str]:
    """The names as an immutable sequence; empty for None. `check_names` checks each of them."""
    if names is None or isinstance(names, NumberedNames):
        return names or ()
    if isinstance(names, str):
        raise ArgumentError(f"names must be one string for each body, not the string {shown(names)}")
    try:
        words = tuple(names)
    except Exception:  # whatever iteration raises
        raise ArgumentError(f"names must be one string for each body, not {shown(names)}") from None
    return tuple(str(word) if isinstance(word, str) else word for word in words)  # NumPy has its own string type


def nearest_names(name: str, frames: Collection[str], bodies: Sequence[str]) -> str:
    """Some of the existing names, for messages: those with the same beginning first."""
    some = [*list(frames)[:SEARCHED], *bodies[:SEARCHED]]
    first = sorted(some, key=lambda other: other[:3] != name[:3])[:SHOWN]
    more = len(frames) + len(bodies) - len(first)
    return ", ".join(map(repr, first)) + (f" and {more} more" if more else "")


class NumberedNames(Sequence[str]):
    """The names link1 ... linkn, made on demand: a long chain has no Python object per link."""

    def __init__(self, n: int):
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i):
        if isinstance(i, slice):
            return tuple(f"link{k + 1}" for k in range(self._n)[i])
        return f"link{range(self._n)[i] + 1}"

    def index(self, value: Any, *_: Any) -> int:
        digits = value.removeprefix("link") if isinstance(value, str) else ""
        if digits.isdecimal() and value == f"link{int(digits)}" and 1 <= int(digits) <= self._n:
            return int(digits) - 1
        raise ValueError(f"{value!r} is not one of {self!r}")

    def __contains__(self, value: object) -> bool:
        try:
            return self.index(value) >= 0
        except ValueError:
            return False

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NumberedNames):
            return self._n == other._n
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<link1 ... link{self._n}>"
