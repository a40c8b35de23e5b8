"""The limbs of a machine: unbranched runs of bodies, which pictures colour and group."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.model.model import Model

Array = NDArray[np.int64]


class Limbs(NamedTuple):
    """of (n,) the limb of every body;  place (n,) the index of a body in its limb;  names of the limbs."""

    of: Array
    place: Array
    names: list[str]


def limbs(model: Model) -> Limbs:
    """A limb begins at the base, at a body with siblings, and after a floating base."""
    of, place = np.zeros(model.n, np.int64), np.zeros(model.n, np.int64)
    children, count = model.children_count, 0
    for i, parent in enumerate(model.parent.tolist()):
        if parent >= 0 and children[parent] == 1 and not is_floating(model, parent):
            of[i], place[i] = of[parent], place[parent] + 1
        else:
            of[i], count = count, count + 1
    ends = [np.flatnonzero(of == limb)[[0, -1]].tolist() for limb in range(count)]
    return Limbs(of, place, [" … ".join(dict.fromkeys(model.names[i] for i in own)) for own in ends])


def is_floating(model: Model, body: int) -> bool:
    """Whether a body moves freely in all directions, as the base of a legged machine does."""
    width = model.v_start[body + 1] - model.v_start[body]
    return bool(model.parent[body] < 0 and width >= 3 and model.q_start[body + 1] - model.q_start[body] > 4)


MANY = 8  # bodies of a chain with distinct colours


def limb_colours(model: Model) -> list[tuple[int, int]]:
    """(index of a colour, place in its limb) of every body: one colour per limb; for a short chain, one per body."""
    found = limbs(model)
    if len(found.names) == 1 and model.n <= MANY:
        return [(i, 0) for i in range(model.n)]
    return [*zip(found.of.tolist(), found.place.tolist())]
