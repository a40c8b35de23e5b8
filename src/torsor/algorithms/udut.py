"""Forward dynamics by the decomposition M = U D U^T (Saha 2001, section 2.2, Eqs 12-15).

Gaussian elimination of the mass matrix from its last column backwards works on the recursive entries and never
forms the matrix.  With phi = tau - C qd - gravity, the torques that remain for accelerations,

    A   phi^ = U^-1 phi        phi^_i = phi_i - p_i^T eta_{i,i+1},        eta_i = psi_i phi^_i + eta_{i,i+1}
    B   phi~ = D^-1 phi^       phi~_i = phi^_i / m^_i
    C   qdd  = U^-T phi~       qdd_i = phi~_i - psi_i^T mu_{i,i-1},       mu_i = p_i qdd_i + mu_{i,i-1}

The same elimination works for joints of several freedoms (m^_i is then a small matrix) and for trees, where entries
of U between branches are zero and no sum includes them.  Saha refers everything to mass centres; here bodies keep
their own frames, which changes no entry of U and D (Ploen & Park 1999, section II.C) and saves operations.
His exact formulas, for a Denavit-Hartenberg arm, are in `torsor.papers.saha_udut`.
"""

from __future__ import annotations

from torsor.algorithms.articulated import accelerate, articulated_inertias, pass_on
from torsor.algorithms.newton_euler import MOTION_OPTIONS, forces, motion
from torsor.linalg import solve
from torsor.outputs import PerFreedom
from torsor.spatial import Spatial
from torsor.sweeps import Algorithm, inward


@inward(start=forces.start)
def remaining(link, here, children):
    """phi = tau - (C qd + gravity - external)                                                  (Eq. 1)"""
    hand, keep = forces.step(link, here, children)
    return hand, dict(phi=here.tau - keep["tau"])


@inward(start=lambda base: dict(eta=Spatial.zero()))
def eliminate_torques(link, here, children):
    """Steps A and B (Eqs 12, 13), psi_i = I^ S D^-1 as kept by `articulated_inertias`; step C is `accelerate`."""
    f, S = link.placed(here)
    eta, left = pass_on(S, here.G, children.eta, here.b if here.phi is None else here.phi)
    return dict(eta=f.Ad_inv_dual(eta)), dict(x=solve(here.D, left))


forward_dynamics = Algorithm(
    "forward_dynamics_udut", ("q", "v", "tau"),
    (motion, remaining, articulated_inertias, eliminate_torques, accelerate),
    PerFreedom("qdd"), options=MOTION_OPTIONS, inverts=True, torques_only=True,
)  # fmt: skip
mass_solve = Algorithm(
    "mass_solve_udut", ("q", "b"), (articulated_inertias, eliminate_torques, accelerate), PerFreedom("qdd"),
    inverts=True, torques_only=True,
)  # fmt: skip
