"""Comparisons of a method with the articulated sweeps, which are the reference for accuracy (docs/accuracy.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.errors import SingularError

Array = NDArray[Any]

# Half of the digits, by number type.  A method whose result differs from that of the sweeps by more is outside its
# domain.
AGREEMENT = {"d": 1e-8, "g": 1e-8, "f": 1e-2}
# Up to this pivot ratio, methods that factor M cannot differ by that much and need not be compared.
COMPARED = 1e6
# On a GPU, one long chain is computed by levels if the levels agree this well with the sweeps.  They differ by 2e-15 on
# a million equal links, by 6e-13 on masses that alternate 1 : 1e4 and by 3e-11 on 1 : 1e6, where the sweeps themselves
# lose 8e-14.
LEVELS = 1e-11


def agree(found: Array, sweeps: Array, tolerance: float) -> bool:
    """Whether two results for one state agree to this relative tolerance, in the Euclidean norm."""
    return bool(np.linalg.norm(found - sweeps) <= tolerance * np.linalg.norm(sweeps))


def refuse_disagreement(method: str, function: str, found: Array, sweeps: Array, core: int) -> None:
    """Raise if a result differs from that of the sweeps by more than `AGREEMENT`; a state has its last `core` axes."""
    axes = tuple(range(-core, 0))
    error = np.sqrt(np.sum(np.square(found - sweeps), axis=axes)) if core else np.abs(found - sweeps)
    size = np.sqrt(np.sum(np.square(sweeps), axis=axes)) if core else np.maximum(np.abs(sweeps), 1.0)
    lost = np.atleast_1d(~(error <= AGREEMENT[found.dtype.char] * size))
    if lost.any():
        worst = float(np.max(np.atleast_1d(error)[lost] / np.atleast_1d(size)[lost]))
        raise SingularError(
            f'{function}: method "{method}" loses too many digits here: its result is {worst:.1g} from that of the '
            'articulated sweeps; masses or lengths are too uneven for it: use method "auto" or "articulated"'
        )
