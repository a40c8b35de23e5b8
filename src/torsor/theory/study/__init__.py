"""The closed forms of the papers as explicit matrices, for study and teaching.

    o = study.operators(model, q, v)            S, Gamma, G, J, P_0, P_t, ad; M, C, phi, J_t      (Ploen & Park)
    o = study.operators(model, q, v, Q=study.com_frames(model))          the same in other link frames
    f = study.Factorization(o)                  J^, Omega, Phi, Pi, X, Y; square factors of M and M^-1
    study.correspondence(f)                     Table I: the spatial operator algebra
    u = study.decompose(study.denoc(model, q))  U, D and their inverses from the DeNOC matrices          (Saha)

Nothing here is fast.  The fast functions are in `torsor` itself and agree with these.
"""

from torsor.theory.study.blocks import Operators, operators
from torsor.theory.study.denoc import UDUT, decompose, denoc, elementary, reverse_elimination
from torsor.theory.study.factorization import (
    TABLE_I,
    Factorization,
    SpatialOperators,
    correspondence,
    spatial_operators,
)
from torsor.theory.study.frames import (
    com_frames,
    dh_frames,
    evaluate,
    inertial_com_frames,
    joint_frames,
    reframed_links,
)

__all__ = [
    "TABLE_I", "UDUT", "Factorization", "Operators", "SpatialOperators", "com_frames", "correspondence", "decompose",
    "denoc", "dh_frames", "elementary", "evaluate", "inertial_com_frames", "joint_frames", "operators",
    "reframed_links", "reverse_elimination", "spatial_operators",
]  # fmt: skip
