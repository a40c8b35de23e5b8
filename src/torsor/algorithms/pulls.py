"""Forces that keep their direction in the base's axes and act on points of the bodies.

A force F in the base's axes on the point p of a body whose axes are R is the wrench (p x R^T F, R^T F) in its frame.
All forces on a body are twelve numbers, sum F and the rows of sum F p^T, which do not depend on the state. One more
outward pass rotates them into the frames of the bodies; there they are ordinary external wrenches.
"""

from __future__ import annotations

from dataclasses import replace

from torsor.algorithms import articulated, coupled, newton_euler
from torsor.algorithms.newton_euler import axial
from torsor.linalg import Mat, Vec
from torsor.outputs import PerFreedom
from torsor.spatial import Rigid, Spatial
from torsor.sweeps import Algorithm, inward, outward


@outward(start=lambda base: dict(R=Mat.identity()))
def turn_pulls(link, here, parent):
    """R_i = R_{i-1} R_{i-1,i};   w_i = (axial(R_i^T sum F p^T), R_i^T sum F) joins the wrenches on the body"""
    f, S = link.placed(here)
    R = Mat.of(f.unturn(row) for row in parent.R)
    if here.pulls is None:
        return dict(R=R), dict(E=f.factors[-1], S=S)
    to_body = link.body_pose(Rigid(R, Vec.zero())).R.T
    force, *rows = (Vec.of(here.pulls[k : k + 3]) for k in range(0, 12, 3))
    w = Spatial(axial(to_body @ Mat.of(rows)), to_body @ force)
    return dict(R=R), dict(E=f.factors[-1], S=S, external=w if here.external is None else here.external + w)


def _pulled(algorithm: Algorithm) -> Algorithm:
    """The same algorithm with `pulls` (n, 12) as an option."""
    passes, options = (turn_pulls, *algorithm.passes), (*algorithm.options, "pulls")
    return replace(algorithm, name=f"{algorithm.name}_pulled", passes=passes, options=options)


forward_dynamics = _pulled(articulated.forward_dynamics)
forward_dynamics_coupled = _pulled(coupled.forward_dynamics)
bias_forces = _pulled(newton_euler.bias_forces)


@inward(start=lambda base: dict(F=Spatial.zero()))
def gather_wrenches(link, here, children):
    """F_i = w_i + sum Ad*_{f^-1} F;   tau_i = S_i^T F_i"""
    f, S = link.placed(here)
    F = children.F + link.from_body(here.external)
    return dict(F=f.Ad_inv_dual(F)), dict(tau=S.T(F))


# J^T f of forces on points of the bodies: their joint torques
torques = Algorithm("torques", ("q", "pulls"), (turn_pulls, gather_wrenches), PerFreedom("tau"), kinematic=True)
