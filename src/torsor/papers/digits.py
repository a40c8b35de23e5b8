"""The identities of the papers between independent algorithms, with any number of digits.

The steps that are compiled run unchanged on mpmath numbers, on the random machines of `arithmetic.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor import reference, zoo
from torsor.algorithms import (
    articulated,
    composite,
    constraint_force,
    coriolis,
    energy,
    fixman,
    newton_euler,
    ploen_park,
    ploen_park_forward,
    square_factor,
    udut,
    walker_orin,
)
from torsor.algorithms.fixman import FixmanMethod
from torsor.linalg import Vec
from torsor.model.links import links
from torsor.model.model import Model
from torsor.papers.arithmetic import exactly_placed, given, number
from torsor.papers.rows import Row, identity
from torsor.sweeps import Algorithm

Array = NDArray[Any]


class Machine:
    """A machine in a random state; `run` evaluates an algorithm with mpmath numbers."""

    def __init__(self, model: Model, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.model = model
        state = {"q": model.random_configuration(rng)}
        state |= dict(zip(("v", "qdd", "tau", "b", "x"), rng.normal(size=(5, model.nv))))
        state |= {"external": rng.normal(size=(model.n, 6)).ravel()}
        state |= dict(zip(("base_velocity", "base_acceleration"), rng.normal(size=(2, 6))))
        self.state: dict[str, Array] = {name: given(x) for name, x in state.items()}

    def __getitem__(self, name: str) -> Array:
        return self.state[name]

    def run(self, algorithm: Algorithm, *options: str, **others: Array) -> Array:
        """The output of an algorithm at the state, with these options, and some inputs replaced."""
        values = {name: others.get(name, self.state[name]) for name in (*algorithm.inputs, *options)}
        inputs: dict[str, Any] = {
            name: x.reshape(self.model.n, 6).tolist() if name == "external" else x.tolist()
            for name, x in values.items()
        }
        return np.array(reference.evaluate(algorithm, self.model, inputs, number=number), dtype=object)


def of_paper(title: str) -> Iterator[Row]:
    """The identities of a paper, in numbers of the current kind."""
    tree = Machine(exactly_placed(zoo.random_tree(12, 1), 0), 0)
    points = Machine(zoo.point_chain(5, mass=[1.0, 2.0, 0.5, 1.5, 0.75], length=[1.0, 0.5, 2.0, 1.25, 0.75]), 1)
    for paper, place, what, machine, sides in IDENTITIES:
        if paper == title:
            yield identity(place, what, *sides(tree if machine == "tree" else points))


# The identities --------------------------------------------------------------------------------------------------


BASE = ("base_velocity", "base_acceleration", "external")


def _recursions(m: Machine) -> tuple[Array, Array]:
    return m.run(ploen_park.inverse_dynamics, *BASE), m.run(newton_euler.inverse_dynamics, *BASE)


def _equation_of_motion(m: Machine) -> tuple[Array, Array]:
    bias = m.run(newton_euler.bias_forces)
    return m.run(composite.mass_matrix) @ m["qdd"] + bias, m.run(ploen_park.inverse_dynamics)


def _energy(m: Machine) -> tuple[Array, Array]:
    return m["v"] @ m.run(composite.mass_matrix) @ m["v"] / 2, m.run(energy.kinetic_energy)


def _velocity_terms(m: Machine) -> tuple[Array, Array]:
    C = m.run(coriolis.coriolis_matrix)
    return C @ m["v"] + m.run(newton_euler.gravity_forces), m.run(newton_euler.bias_forces)


def _forward(algorithm: Algorithm, *options: str) -> Callable[[Machine], tuple[Array, Array]]:
    """M qdd + bias = tau with the accelerations of an algorithm."""

    def sides(m: Machine) -> tuple[Array, Array]:
        qdd = m.run(algorithm, *options)
        return m.run(newton_euler.inverse_dynamics, *options, qdd=qdd), m["tau"]

    return sides


def _solved(algorithm: Algorithm) -> Callable[[Machine], tuple[Array, Array]]:
    """M x = b."""
    return lambda m: (m.run(composite.mass_matrix) @ m.run(algorithm), m["b"])


def _inverse(algorithm: Algorithm) -> Callable[[Machine], tuple[Array, Array]]:
    return lambda m: (m.run(composite.mass_matrix) @ m.run(algorithm), given(np.eye(m.model.nv)))


def _square(m: Machine) -> tuple[Array, Array]:
    x = m.run(square_factor.apply, x=m.run(square_factor.apply_T))
    return x, m.run(composite.mass_matrix) @ m["x"]


def _square_inverse(m: Machine) -> tuple[Array, Array]:
    back = m.run(square_factor.solve_T, x=m.run(square_factor.solve))
    return m.run(composite.mass_matrix) @ back, m["x"]


def _fixmans_theorem(method: FixmanMethod) -> Callable[[Machine], tuple[Array, Array]]:
    return lambda m: (m.run(method.log_det), m.run(articulated.log_det))


def _joint_wrenches(m: Machine) -> tuple[Array, Array]:
    """tau = S^T F with the wrenches through joints."""
    F = m.run(constraint_force.constraint_forces).reshape(m.model.n, 6)
    torques = []
    for link, q, f in zip(links(m.model, number), _by_joint(m), F):
        torques += [sum(a * b for a, b in zip(s.coordinates, f)) for s in link.S(q).columns]
    return np.array(torques, dtype=object), m["tau"]


def _by_joint(m: Machine) -> list[Any]:
    starts = m.model.q_start
    return [Vec.of(m["q"][a:b]) for a, b in pairwise(starts)]


FEATHERSTONE, PLOEN, SAHA = "Featherstone & Fijany 1999", "Ploen & Park 1999", "Saha 2001"
LEE_2007, LEE_2005 = "Lee, Wang & Chirikjian 2007", "Lee & Chirikjian 2005"
IDENTITIES: tuple[tuple[str, str, str, str, Callable[[Machine], tuple[Array, Array]]], ...] = (
    (FEATHERSTONE, "Eq. 14", "tau = H' (forces in joints)", "tree", _joint_wrenches),
    (PLOEN, "Eqs 1-5", "recursive inverse dynamics, moving base, wrenches", "tree", _recursions),
    (PLOEN, "Eqs 10, 11, 13", "M ddq + C + phi = tau", "tree", _equation_of_motion),
    (PLOEN, "Eqs 12, 13", "velocity terms by Christoffel symbols", "tree", _velocity_terms),
    (PLOEN, "Eqs 39-41", "forward dynamics by articulated bodies", "tree",
     _forward(articulated.forward_dynamics, "external")),
    (PLOEN, "Proposition 1", "M = W W'", "tree", _square),
    (PLOEN, "Proposition 2", "M^-1 = W'^-1 W^-1", "tree", _square_inverse),
    (PLOEN, "Eqs 44-68", "forward dynamics from the square factor", "tree",
     _forward(ploen_park_forward.forward_dynamics, "external")),
    (SAHA, "Eqs 1, 11-15", "forward dynamics by U D U'", "tree", _forward(udut.forward_dynamics, "external")),
    (SAHA, "Eqs 12-15", "I qdd = phi", "tree", _solved(udut.mass_solve)),
    (SAHA, "Table I", "Walker & Orin's method", "tree", _forward(walker_orin.forward_dynamics, "external")),
    (LEE_2007, "Eqs 5, 7", "x = M^-1 b by relaxed constraints", "tree", _solved(fixman.REGULAR.mass_solve)),
    (LEE_2007, "Eqs 1, 6", "M^-1 by relaxed constraints", "tree", _inverse(fixman.REGULAR.inverse_mass_matrix)),
    (LEE_2007, "2.2, Fixman's theorem", "log det M by relaxed constraints", "tree", _fixmans_theorem(fixman.REGULAR)),
    (LEE_2007, "Eq. 9", "v' M v / 2 is the kinetic energy", "tree", _energy),
    (LEE_2005, "Eqs 12, 13", "x = M^-1 b, point masses", "points", _solved(fixman.BRACED.mass_solve)),
    (LEE_2005, "Eq. 25", "M^-1, point masses", "points", _inverse(fixman.BRACED.inverse_mass_matrix)),
    (LEE_2005, "Eq. 8", "Fixman's theorem, point masses", "points", _fixmans_theorem(fixman.BRACED)),
)  # fmt: skip
