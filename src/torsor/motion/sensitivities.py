"""Sensitivities: the derivatives of a motion with respect to its initial state, the torques and the model.

With a = forward_dynamics(q, v, tau(t, q, v)), the tangents of a motion obey the variational equations

    d(dq)/dt = d(N(q) v),    d(dv)/dt = da,

which are integrated together with the motion. da is the jvp of forward dynamics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.algorithms import articulated, pulls
from torsor.backends.pointwise import compile_pointwise, trace
from torsor.compiler.derivative import derivative
from torsor.compiler.tape_derivatives import Replay, scalars
from torsor.dynamics import functions as dynamics
from torsor.dynamics import programs
from torsor.dynamics.calls import batch_axes, checked, near_lock, program_for, refuse_singular_at
from torsor.dynamics.derivatives import jvp
from torsor.errors import ArgumentError, SingularError
from torsor.inputs import PARAMETERS, place_of
from torsor.later import Later
from torsor.linalg import Scalar, Vec
from torsor.model.joints import Joint
from torsor.model.model import Model, require_model
from torsor.motion.forces import External
from torsor.motion.law import force_list
from torsor.motion.motion import Motion
from torsor.motion.simulation import start_of
from torsor.validate import chosen, number, real_array, shown

integrate = Later("scipy.integrate")

Array = NDArray[Any]
# The derivative of the torques of wrenches and pulls with respect to placements, which are their lever arms.
MOVED = derivative(pulls.bias_forces, "jvp", ("placement",))
# At less than LEAST_PROGRESS of the time span in EVALUATIONS evaluations, a motion would take 1e9 of them, or forever.
LEAST_PROGRESS, EVALUATIONS = 1e-5, 12_000


class Sensitivities(NamedTuple):
    """Hold a motion and its changes along tangents, as a named tuple.

    Parameters
    ----------
    t : (m,) ndarray
        Times, in s.
    q : (m, nq) ndarray
        Configurations.
    v : (m, nv) ndarray
        Velocities.
    dq, dv : (m, ..., nv) ndarray
        Changes of q and v along each tangent; q becomes model.integrate(q, dq).

    Examples
    --------
    >>> import torsor as ts
    >>> ts.Sensitivities._fields
    ('t', 'q', 'v', 'dq', 'dv')
    """

    t: Array
    q: Array
    v: Array
    dq: Array
    dv: Array


def sensitivities(model: Model, q0: ArrayLike | None, v0: ArrayLike | None, t: ArrayLike, *,
                  forces: Any = (), rtol: float = 1e-9, atol: float = 1e-12,
                  **tangents: ArrayLike) -> Sensitivities:  # fmt: skip
    """Integrate a motion and its derivatives along tangents of the initial state, the torques and the model.

    The joints' own springs, dampers, friction, stops and limits of drives act, too. The method is DOP853 (Hairer,
    Norsett & Wanner 1993) from SciPy; its error control includes the derivatives.

    Parameters
    ----------
    model : Model
        The machine.
    q0 : (nq,) array_like, optional
        Initial configuration.
    v0 : (nv,) array_like, optional
        Initial velocities.
    t : (m,) array_like
        Increasing times, in s; the motion starts at t[0].
    forces : force or sequence of forces, optional
        As in `simulate`; functions are differentiated by finite differences.
    rtol, atol : float, default 1e-9, 1e-12
        Tolerances.
    dq, dv, dtau : (..., nv) array_like, optional
        Tangents: displacements of q0 along v, changes of v0, and constant torques.
    dinertia : (..., n, 10) array_like, optional
        Changes of the inertial parameters; likewise dplacement (..., n, 6) and dgravity (..., 3).
    **tangents : (..., n) array_like
        These tangents; their leading axes broadcast, with one direction per entry.

    Returns
    -------
    motion : Sensitivities
        `t`, `q`, `v`, `dq` and `dv`.

    Raises
    ------
    SingularError
        The motion meets a state in which M is singular.

    Examples
    --------
    >>> import torsor as ts
    >>> motion = ts.sensitivities(ts.zoo.pendulum(), [0.0], [0.0], [0.0, 0.1], dv=[[1.0]])
    >>> print(motion.dq[-1].round(3))  # how far a push of 1 rad/s carries
    [[0.098]]
    """
    require_model(model)
    times = real_array("t", t)
    if times.ndim != 1 or len(times) < 2 or not (np.diff(times) > 0).all():
        raise ArgumentError(f"t must be two or more increasing times, not {shown(t)}")
    q, v = start_of(model, q0, v0)
    flow = _Flow(model, forces, _tangents(model, tangents))
    return flow.run(times, q, v, number("rtol", rtol, above=0), number("atol", atol, above=0))


def _tangents(model: Model, tangents: Mapping[str, ArrayLike]) -> dict[str, Array]:
    """All tangents with the same leading axes; dq, dv and dtau are always included."""
    names = ("dq", "dv", "dtau", *(f"d{name}" for name in PARAMETERS))
    given = {}
    for name, x in tangents.items():
        chosen("a tangent", name, names)
        given[name] = checked(model, name, x)
    if not given:
        raise ArgumentError(f"give at least one tangent: {', '.join(names)}")
    cores = {name: place_of(name).shape(model) for name in (*names[:3], *given)}
    batch = batch_axes(model, given)
    return {
        name: np.broadcast_to(given.get(name, np.zeros(core)), (*batch, *core)).astype(np.float64)
        for name, core in cores.items()
    }  # fmt: skip


class _Flow:
    """A motion and its derivatives as one system of differential equations."""

    def __init__(self, model: Model, forces: Any, tangents: Mapping[str, Array]) -> None:
        self.model, self.motion = model, Motion(model, forces)
        self.coordinates = self.motion.coordinates
        self.batch = tangents["dq"].shape[:-1]
        cores = {name: place_of(name).shape(model) for name in tangents}
        self.tangents = {name: x.reshape(-1, *cores[name]) for name, x in tangents.items()}
        self.parameters = [x for name, x in self.tangents.items() if name not in ("dq", "dv", "dtau")]
        functions = [x for x in force_list(forces) if isinstance(x, External) and callable(x.wrenches)]
        if functions and "dplacement" in tangents:
            raise ArgumentError("wrenches that are functions do not say how they change with placements: give numbers")
        wrt = [name[1:] for name in self.tangents]
        self.accelerate = programs.compile(model, dynamics.forward_dynamics)
        self.push = programs.compile(model, jvp(dynamics.forward_dynamics), wrt=wrt)

    def run(self, t: Array, q: Array, v: Array, rtol: float, atol: float) -> Sensitivities:
        nq, nv = self.model.nq, self.model.nv
        moved = self._rates(q, np.zeros(nv), np.zeros((len(self.tangents["dq"]), nq)), self.tangents["dq"])
        start = np.concatenate([q, v, moved.ravel(), self.tangents["dv"].ravel()])
        self.evaluations, self.least, self.before = 0, LEAST_PROGRESS * (t[-1] - t[0]), t[0] - 1.0
        found = integrate.solve_ivp(self.rate, (t[0], t[-1]), start, "DOP853", t, rtol=rtol, atol=atol)
        if not found.success or not np.isfinite(found.y).all():
            raise SingularError(f"the motion cannot be followed beyond t = {found.t[-1]:g}: {found.message}")
        states = [self._parts(y) for y in found.y.T]
        dq = [self.coordinates.velocity(np.broadcast_to(q, Q.shape), Q) for q, _, Q, _ in states]
        q, v, dv = (np.array([state[k] for state in states]) for k in (0, 1, 3))
        self.coordinates.normalise(q)
        shape = (len(t), *self.batch, nv)
        return Sensitivities(t, q, v, np.reshape(dq, shape), dv.reshape(shape))

    def _parts(self, y: Array) -> tuple[Array, Array, Array, Array]:
        nq, nv, k = self.model.nq, self.model.nv, len(self.tangents["dq"])
        q, v, Q, V = np.split(y, np.cumsum([nq, nv, k * nq]))
        return q, v, Q.reshape(k, nq), V.reshape(k, nv)

    def rate(self, t: float, y: Array) -> Array:
        """d(q, v, dq, dv)/dt; here dq is a change of the coordinates themselves."""
        q, v, Q, V = self._parts(y)
        along = self.coordinates.velocity(np.broadcast_to(q, Q.shape), Q)
        tau, dtau = self.motion.felt(t, q, v), self.motion.changes(t, q, v, along, V)
        a = self.accelerate(q, v, tau)
        dA = self.push(q, v, tau, along, V, dtau + self.tangents["dtau"] + self._moved(t, q, v), *self.parameters)
        result = np.concatenate([self.coordinates.rate(q, v), a, self._rates(q, v, Q, V).ravel(), dA.ravel()])
        self._check(t, q, result)
        return result

    def _check(self, t: float, q: Array, rate: Array) -> None:
        """Raise if the motion cannot continue: SciPy would take ever shorter steps, without end."""
        why = self._obstacle(t, q, rate)
        if why:
            raise SingularError(f"the motion cannot be followed beyond t = {t:g}: {why}")

    def _obstacle(self, t: float, q: Array, rate: Array) -> str:
        try:
            if self.model.has_degenerate_bodies or near_lock(self.model, q):
                refuse_singular_at(articulated.forward_dynamics, self.model, q)
        except SingularError as error:
            return str(error)
        if not np.isfinite(rate).all():
            return "its rates are not finite"
        self.evaluations += 1
        if self.evaluations % EVALUATIONS:
            return ""
        before, self.before = self.before, t
        return "" if t > before + self.least else "steps become ever shorter; M is nearly singular, or forces are stiff"

    def _moved(self, t: float, q: Array, v: Array) -> Array:
        """The change of the torques of wrenches and pulls along changes of placements."""
        names = self.motion.law.load_names
        if not names or "dplacement" not in self.tangents:
            return np.zeros(self.model.nv)
        program = program_for(MOVED, self.model.weightless, names, "d", None)
        return -program(q, np.zeros_like(v), self.tangents["dplacement"], *self.motion.compiled_law.loads(t))

    def _rates(self, q: Array, v: Array, Q: Array, V: Array) -> Array:
        """d(N(q) v) along (Q, V)."""
        out = np.empty_like(Q)
        for joint, q_columns, v_columns in self.model.joint_groups:
            given = (q[q_columns], v[v_columns], Q[:, q_columns], V[:, v_columns])
            out[:, q_columns] = given[-1] if joint.flat else _rate_tangent(joint)(*given)
        return out


@cache
def _rate_tangent(joint: Joint) -> Callable[..., Array]:
    """The tangent of `Joint.rate`, as a function of arrays q, v, dq, dv."""
    sizes = {"q": (joint.nq,), "v": (joint.nv,)}
    code = trace(lambda q, v: list(joint.rate(Vec.of(q), Vec.of(v))), sizes)

    def rate_tangent(q: Sequence[Any], v: Sequence[Any], dq: Sequence[Any], dv: Sequence[Any]) -> list[Scalar]:
        tape = q[0].tape
        again = Replay(code, tape)
        seeds = {(name, k): x.i for name, tangent in (("q", dq), ("v", dv)) for k, x in enumerate(tangent)}
        tangent, zero = again.push(seeds), tape.const(0.0)
        return list(scalars(tape, (tangent.get(i, zero) for i in code.outputs.values())))

    return compile_pointwise(rate_tangent, sizes | {f"d{name}": size for name, size in sizes.items()})
