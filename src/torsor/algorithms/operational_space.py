"""The dynamics at frames of the machine (Khatib 1987; Rodriguez, Jain & Kreutz-Delgado 1991).

With the square factor M = W W^T of `square_factor`, the inverse of the inertia at frames a and b is

    Lambda^-1_ab = J_a M^-1 J_b^T = B_a B_b^T,         B = J W^-T = P_t Y^T S Omega^-T/2

B needs no n x n matrix.  Its rows are the responses of the joints to six unit wrenches on the body, carried to the
base through free joints: one climb per frame, O(n).
"""

from __future__ import annotations

from types import SimpleNamespace

from torsor.algorithms.articulated import articulated_inertias, pass_on
from torsor.algorithms.square_factor import root_solve
from torsor.linalg import Vec
from torsor.outputs import Path
from torsor.spatial import Spatial
from torsor.sweeps import Algorithm, Columns


def carry_wrenches(link, here, below):
    """y = -Omega^-1/2 u for each wrench; u and the wrench passed on are as in `square_factor.divide` at zero torque."""
    f, S = link.placed(here)
    passed = [pass_on(S, here.G, F, Vec.zero(link.joint.nv)) for F in below.F]
    responses = [root_solve(here.D, -u) for _, u in passed]
    columns = tuple(Spatial.of(y[k] for y in responses) for k in range(link.joint.nv))
    return dict(F=tuple(f.Ad_inv_dual(F) for F, _ in passed)), dict(B=columns)


def unit_wrenches(link, here, tip):
    """The six unit wrenches of a frame on the body."""
    frame = tip.after(link.body_frame())
    F = tuple(frame.Ad_inv_dual(Spatial.unit(i)) for i in range(6))
    return carry_wrenches(link, here, SimpleNamespace(F=F))


tip_response = Algorithm(
    "tip_response", ("q",), (articulated_inertias, Columns(unit_wrenches, carry_wrenches)), Path("B"),
    inverts=True, torques_only=True,
)  # fmt: skip
