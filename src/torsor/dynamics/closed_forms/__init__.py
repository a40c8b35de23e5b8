"""The equations of motion as explicit matrices, for study and comparison: see docs/closed_forms.md.

    o = operators(model, q, v)                          S, Gamma, G, J, P_0, P_t, ad; M, C, phi, J_t  (Ploen & Park)
    o = operators(model, q, v, Q=com_frames(model))     the same in other link frames
    f = Factorization(o)                                J^, Omega, Phi, Pi, X, Y; square factors of M and M^-1

These functions are slow.  The functions of `torsor` itself are fast, and agree with them.
"""

from torsor.dynamics.closed_forms.factorization import Factorization
from torsor.dynamics.closed_forms.frames import (
    com_frames,
    dh_frames,
    evaluate,
    inertial_com_frames,
    joint_frames,
    reframed_links,
)
from torsor.dynamics.closed_forms.operators import Operators, block_diagonal, operators

__all__ = [
    "Factorization", "Operators", "block_diagonal", "com_frames", "dh_frames", "evaluate", "inertial_com_frames",
    "joint_frames", "operators", "reframed_links",
]  # fmt: skip
