"""Products A x of the matrix functions with a vector, in O(n): M x, C x, and dJ/dt x of every body.

Outward along the chain the sweep hands on the twist X = J x, and Y, the sum of the rates ad_V S_k + dS_k/dt of all
previous axes, times x (`coriolis`).  A body contributes I Y + B X to C x, and dJ/dt x = Y - ad_V X.
"""

from __future__ import annotations

from torsor.algorithms.inverse_derivatives import Composite
from torsor.algorithms.newton_euler import forces, motion, spin
from torsor.linalg import Vec
from torsor.outputs import PerBody, PerFreedom
from torsor.spatial import Spatial, ad
from torsor.sweeps import Algorithm, Sweep, inward, outward


def at_rest(base) -> dict:
    return dict(w=Vec.zero(), dw=Vec.zero(), a=Vec.zero(), Omega=spin(Vec.zero(), Vec.zero()))


@outward(start=lambda base: dict(V=Spatial.zero(), X=Spatial.zero(), Y=Spatial.zero()))
def rates(link, here, parent):
    f, S = link.placed(here)
    V, X, Y = f.Ad_inv(parent.V) + S @ here.v, f.Ad_inv(parent.X) + S @ here.b, f.Ad_inv(parent.Y)
    Y = Y + link.S_rate(here.q, here.v) @ here.b + ad(V, S @ here.b)
    return dict(V=V, X=X, Y=Y), dict(E=f.factors[-1], S=S, V=V, X=X, Y=Y, rate=link.body_twist(Y - ad(V, X)))


@inward(start=lambda base: dict(F=Spatial.zero()))
def gather(link, here, children):
    f, S = link.placed(here)
    F = children.F + Composite.of(link, here.V).change(link.inertia, here.Y, here.X)
    product = S.T(F)
    return dict(F=f.Ad_inv_dual(F)), dict(
        product=product + link.rotor_bias(here.b, here.v) if link.turns_rotors else product
    )


mass_product = Algorithm(
    "mass_product", ("q", "qdd"), (Sweep(motion.step, at_rest, outward=True), forces), PerFreedom("tau"),
    torques_only=True,
)  # fmt: skip
coriolis_product = Algorithm(
    "coriolis_product", ("q", "v", "b"), (rates, gather), PerFreedom("product"), torques_only=True
)
twist_rates = Algorithm("twist_rates", ("q", "v", "b"), (rates,), PerBody("rate"))
