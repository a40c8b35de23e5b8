"""(M + diag(r))^-1 b with complex r and b, by articulated bodies: the sweeps of `articulated` with complex pivots.

Implicit Runge-Kutta methods with coupled stages need this (`motion/radau.py`).  Their system of nv real equations per
stage splits into systems M + g D + g^2 K with complex g, one for each eigenvalue of the method.

M, and so every pose and every S, is real.  The inertias and forces that the joints pass on are complex.  Each is
handed on as two real ones.
"""

from __future__ import annotations

from typing import Any

from torsor.algorithms.articulated import eliminate, lift
from torsor.linalg import Complex, Mat, Vec
from torsor.outputs import PerFreedom, Several
from torsor.spatial import Inertia, Spatial, pair
from torsor.sweeps import Algorithm, inward, outward


def joined(re: Vec, im: Vec) -> Vec:
    """re + i im"""
    together: Any = (Complex(x, y) for x, y in zip(re, im))
    return Vec.of(together)


def parted(z: Vec) -> tuple[Vec, Vec]:
    """The real and the imaginary parts."""
    return Vec.of(x.re for x in z), Vec.of(x.im for x in z)


def joined_inertia(re: Inertia, im: Inertia) -> Inertia:
    def symmetric(A: Mat, B: Mat) -> Mat:
        def entry(i: int, j: int) -> Any:
            return Complex(A[i][j], B[i][j])

        return Mat.symmetric(entry)

    return Inertia(symmetric(re.J, im.J), Mat.of(map(joined, re.H, im.H)), symmetric(re.M, im.M))


def parted_inertia(I: Inertia) -> tuple[Inertia, Inertia]:
    def part(name: str) -> Inertia:
        def symmetric(A: Mat) -> Mat:
            return Mat.symmetric(lambda i, j: getattr(A[i][j], name))

        return Inertia(symmetric(I.J), Mat.of((getattr(x, name) for x in row) for row in I.H), symmetric(I.M))

    return part("re"), part("im")


def joined_wrench(re: Spatial, im: Spatial) -> Spatial:
    return Spatial(joined(re.ang, im.ang), joined(re.lin, im.lin))


def parted_wrench(F: Spatial) -> tuple[Spatial, Spatial]:
    return Spatial.of(x.re for x in F.coordinates), Spatial.of(x.im for x in F.coordinates)


@inward(start=lambda base: dict(I=(Inertia.zero(),) * 2, F=(Spatial.zero(),) * 2))
def articulate(link, here, children):
    """`articulated.articulate` with the complex pivots D = S^T I S + r"""
    f, S = link.placed(here)
    rotors = joined(here.r + link.armature, here.r_imaginary)
    I, G, D = eliminate(S, joined_inertia(children.I[0] + link.inertia, children.I[1]), rotors)
    F, x = lift(S, G, D, joined_wrench(*children.F), joined(here.b, here.b_imaginary))
    hand = dict(I=tuple(map(f.carry, parted_inertia(I))), F=tuple(map(f.Ad_inv_dual, parted_wrench(F))))
    return hand, dict(E=f.factors[-1], S=S, G=tuple(map(parted_wrench, G)), x=parted(x))


@outward(start=lambda base: dict(A=(Spatial.zero(),) * 2))
def accelerate(link, here, parent):
    """`articulated.accelerate` with complex accelerations"""
    f, S = link.placed(here)
    A, B = map(f.Ad_inv, parent.A)
    re = Vec.of(x - pair(g, A) + pair(h, B) for x, (g, h) in zip(here.x[0], here.G))
    im = Vec.of(x - pair(g, B) - pair(h, A) for x, (g, h) in zip(here.x[1], here.G))
    return dict(A=(A + S @ re, B + S @ im)), dict(re=re, im=im)


mass_solve = Algorithm(
    "complex_mass_solve", ("q", "b", "b_imaginary", "r", "r_imaginary"), (articulate, accelerate),
    Several(re=PerFreedom("re"), im=PerFreedom("im")), torques_only=True,
)  # fmt: skip
