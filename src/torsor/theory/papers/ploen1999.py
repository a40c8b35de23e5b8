"""S. R. Ploen, F. C. Park, Coordinate-invariant algorithms for robot dynamics, 1999: every numbered result.

The paper prints equations, not numbers; each is evaluated, with the corrections listed in docs/papers.md, on a
tree of twelve bodies with every type of joint (Table I: a chain).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor import lie, reference, zoo
from torsor.algorithms import articulated, composite, kinematics, newton_euler, ploen_park, ploen_park_forward
from torsor.sweeps import Algorithm
from torsor.theory import study
from torsor.theory.papers.check import Check, identity

Array = NDArray[Any]


def checks() -> Iterator[Check]:
    rng = np.random.default_rng(0)
    model = zoo.random_tree(12, 1)
    q, (v, x) = model.random_configuration(rng), rng.normal(size=(2, model.nv))
    external = np.zeros((model.n, 6))
    external[-1] = rng.normal(size=6)

    def evaluated(algorithm: Algorithm, **inputs: Array) -> Array:
        given: dict[str, Any] = {name: values.tolist() for name, values in {"q": q, **inputs}.items()}
        return np.array(reference.evaluate(algorithm, model, given, frame=model.frame(-1)))

    M = evaluated(composite.mass_matrix)
    bias, gravity = evaluated(newton_euler.bias_forces, v=v), evaluated(newton_euler.gravity_forces)
    moved = lie.exp_se3(rng.normal(size=(model.n, 6)))
    torques = evaluated(newton_euler.inverse_dynamics, v=v, qdd=x)
    yield identity("Eqs 1-5", "recursive inverse dynamics", evaluated(ploen_park.inverse_dynamics, v=v, qdd=x), torques)
    state = {"q": q.tolist(), "v": v.tolist(), "qdd": x.tolist()}
    again = study.evaluate(ploen_park.inverse_dynamics, model, moved, state)
    yield identity("Eqs 34-38", "the same recursion, any frames Q", np.array(again), torques)
    for frames, Q, equations in (
        ("", None, ("Eq. 11", "Eqs 12, 13", "Eq. 13", "Eq. 14", "Proposition 1", "Proposition 2")),
        (", any frames Q", moved, ("Eq. 18", "Eqs 19, 20", "Eq. 20", "Eq. 21", "Eq. 42", "Eq. 43")),
    ):
        mass, terms, weight, tip, factor, inverse = equations
        o = study.operators(model, q, v, Q=Q)
        f = study.Factorization(o)
        yield identity(mass, f"M = S'G'JGS{frames}", o.M, M)
        yield identity(terms, f"velocity and gravity terms{frames}", o.C + o.phi, bias)
        yield identity(weight, f"phi = S'G'JG P_0 dV_0{frames}", o.phi, gravity)
        yield identity(tip, f"J_t = P_t G S{frames}", o.J_t(), evaluated(kinematics.jacobian))
        yield identity(factor, f"M = [1+S'G'Pi] Omega [1+S'G'Pi]'{frames}", f.M, M)
        what = f"M^-1 = [1-S'Y Pi]' Omega^-1 [1-S'Y Pi]{frames}"
        yield identity(inverse, what, f.M_inverse @ torques, np.linalg.solve(M, torques))
    qdd = evaluated(ploen_park_forward.forward_dynamics, v=v, tau=x, external=external)
    expected = evaluated(articulated.forward_dynamics, v=v, tau=x, external=external)
    yield identity("Eqs 45-68", "forward dynamics, a wrench on the tip", qdd, expected)
    chain = zoo.random_chain(8, 3, joints=None)
    operators = study.operators(chain, chain.random_configuration(rng))
    for (ours, theirs), (a, b) in study.correspondence(study.Factorization(operators)).items():
        yield identity("Table I", f"{ours.split(' = ')[0]} is {theirs}", a, b)


def figures(folder: Path) -> Iterator[Path]:
    """The paper shows no results."""
    return iter(())
