"""Closed forms of small machines, as SymPy expressions and as LaTeX:  M(q) qdd + C(q, qd) qd + g(q) = tau.

The algorithms themselves derive them: composite bodies, and gravity, run on a scalar that is a sum of sines
and cosines of sums of angles.  In this form equal terms combine, and no cancelling terms remain.

    machine = ts.symbolic.closed_form(model)
    machine.M, machine.C, machine.g        SymPy matrices
    print(machine.latex())

The symbols of body i (from 1, in the model's order) are

    m_i  r_ix r_iy r_iz     mass and mass centre          I_ixx ... I_izz    inertia about the mass centre
    p_ix p_iy p_iz          the joint in the parent       h_i                pitch of a helical joint
    q_i, qd_i               the freedoms                  g                  size of gravity

and replace those numbers of the model that are not zero; orientations stay numbers.
Needs SymPy: pip install 'torsor[symbolic]'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.algorithms import composite, newton_euler
from torsor.errors import ArgumentError
from torsor.later import Later
from torsor.linalg import Mat, Scalar, Vec
from torsor.model.joints import JOINTS
from torsor.model.links import Link, rigid_inertia
from torsor.model.model import Model
from torsor.outputs import plain
from torsor.reference import base_of, scatter
from torsor.spatial import Rigid
from torsor.sweeps import Algorithm, run

if TYPE_CHECKING:
    import sympy
else:
    sympy = Later("sympy", "symbolic closed forms need SymPy", "torsor[symbolic]")

Array = NDArray[Any]

# The closed form of a general arm has tens of thousands of terms at six freedoms; larger ones are unreadable.
MOST_FREEDOMS = 6
# A number this close to a fraction, to the root of a fraction or to zero counts as exactly that.
ROUNDING = 1e-12
# SymPy takes long to factor a coefficient of many terms, and rarely succeeds.
FACTOR_TERMS = 12


@dataclass(frozen=True, repr=False)
class ClosedForm:
    """Hold the equations of a small machine in symbols: M(q) qdd + C(q, qd) qd + g(q) = tau.

    Attributes
    ----------
    q, qd : tuple of Symbol
        The freedoms and their velocities.
    M : Matrix
        The mass matrix.
    C : Matrix
        The Coriolis matrix of the Christoffel symbols: dM/dt - 2 C is skew.
    g : Matrix
        The torques that hold the machine against gravity, as a column.
    parameters : dict of Symbol to float
        The model's value of every other symbol.

    Examples
    --------
    >>> import torsor as ts
    >>> form = ts.symbolic.closed_form(ts.zoo.pendulum())
    >>> form
    ClosedForm(q1; parameters m_1, r_1z, I_1xx, I_1yy, I_1zz, g)
    >>> M, C, g = form.evaluate([0.5], [1.0])
    >>> print(M.round(3))
    [[0.333]]
    """

    q: tuple[sympy.Symbol, ...]
    qd: tuple[sympy.Symbol, ...]
    M: sympy.Matrix
    C: sympy.Matrix
    g: sympy.Matrix
    parameters: dict[sympy.Symbol, float]

    def __repr__(self) -> str:
        freedoms, known = (", ".join(map(str, x)) for x in (self.q, self.parameters))
        return f"ClosedForm({freedoms}; parameters {known})"

    def latex(self) -> str:
        """Write the three matrices as LaTeX displays; cos(q_2 + q_3) is written c_{23}.

        Returns
        -------
        text : str
            LaTeX for a paper; a notebook renders it automatically.
        """
        parts = {"M": self.M, "C": self.C, "g": self.g}
        functions = {f for A in parts.values() for f in A.atoms(sympy.sin, sympy.cos)}
        short = {f: sympy.Symbol(_short(f, self.q)) for f in functions}
        short |= {v: sympy.Symbol(rf"\dot{{q}}_{{{i + 1}}}") for i, v in enumerate(self.qd)}
        return "\n".join(rf"\[ {name} = {sympy.latex(A.subs(short))} \]" for name, A in parts.items())

    def _repr_latex_(self) -> str:
        """What a notebook shows."""
        return self.latex().replace(r"\[", "$$").replace(r"\]", "$$")

    def evaluate(self, q: ArrayLike, qd: ArrayLike) -> tuple[Array, Array, Array]:
        """Compute M, C and g at one state, with the model's parameters.

        Parameters
        ----------
        q : (n,) array_like
            The freedoms.
        qd : (n,) array_like
            Their velocities.

        Returns
        -------
        M : (n, n) ndarray
            The mass matrix.
        C : (n, n) ndarray
            The Coriolis matrix.
        g : (n,) ndarray
            The torques against gravity.
        """
        given = [*self.q, *self.qd, *self.parameters]
        values = [*np.asarray(q).tolist(), *np.asarray(qd).tolist(), *self.parameters.values()]
        M, C, g = sympy.lambdify(given, (self.M, self.C, self.g), modules="numpy")(*values)
        return np.asarray(M), np.asarray(C), np.asarray(g)[:, 0]


def closed_form(model: Model) -> ClosedForm:
    r"""Derive the symbolic equations of a small machine, as SymPy expressions.

    $$ M(q)\,\ddot q + C(q, \dot q)\,\dot q + g(q) = \tau $$

    Parameters
    ----------
    model : Model
        A machine of up to six freedoms, whose velocities are the rates of its coordinates (no free or ball joints).

    Returns
    -------
    form : ClosedForm
        `M`, `C`, `g` as SymPy matrices, `q`, `qd`, `parameters`; `latex()` and `evaluate(q, qd)`.

    Raises
    ------
    ArgumentError
        The machine is too large or has such joints, or SymPy is not installed.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.symbolic.closed_form(ts.zoo.pendulum()).g
    Matrix([[-g*m_1*r_1z*sin(q1)]])
    """
    _check(model)
    machine = _Machine(model)
    M = machine.run(composite.mass_matrix)
    g = machine.run(newton_euler.gravity_forces)
    return ClosedForm(
        tuple(_symbol(name) for name in machine.q),
        tuple(_symbol(name) for name in machine.qd),
        sympy.Matrix([[_expression(x) for x in row] for row in M]),
        sympy.Matrix([[_expression(x) for x in row] for row in _christoffel(M, machine.q, machine.qd)]),
        sympy.Matrix([_expression(x) for x in g]),
        {_symbol(name): value for name, value in machine.parameters.items()},
    )


def _christoffel(M: Sequence[Sequence[Scalar]], q: Sequence[str], qd: Sequence[str]) -> list[list[Scalar]]:
    """C_ij = sum_k (dM_ij/dq_k + dM_ik/dq_j - dM_jk/dq_i) qd_k / 2"""
    n = range(len(q))
    d = [[[_derivative(M[i][j], x) for x in q] for j in n] for i in n]

    def entry(i: int, j: int) -> Scalar:
        total: Scalar = 0.0
        for k in n:
            total = total + (d[i][j][k] + d[i][k][j] - d[j][k][i]) * Fourier.of(qd[k]) * 0.5
        return total

    return [[entry(i, j) for j in n] for i in n]


# The scalar --------------------------------------------------------------------------------------------------

Angles = tuple[tuple[str, int], ...]  # (("q2", 1), ("q3", 1)) is q2 + q3; sorted
Monomial = tuple[str, ...]  # ("m_2", "p_2x", "p_2x") is m_2 p_2x^2; sorted


class Fourier:
    """A sum of  coefficient * monomial * exp(i angles).  Algorithms use it like any other scalar."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[tuple[Angles, Monomial], complex]) -> None:
        self.terms = terms

    @staticmethod
    def of(name: str) -> Fourier:
        return Fourier({((), (name,)): 1.0})

    def _same(self, terms: dict[tuple[Angles, Monomial], complex]) -> Any:
        """The scalar with these terms; without terms it is a plain zero, which the algorithms drop."""
        left = {key: c for key, c in terms.items() if abs(c) > ROUNDING}
        return Fourier(left) if left else 0.0

    def __add__(self, other: Scalar) -> Scalar:
        terms = dict(self.terms)
        for key, c in _terms(other):
            terms[key] = terms.get(key, 0.0) + c
        return self._same(terms)

    __radd__ = __add__

    def __neg__(self) -> Fourier:
        return Fourier({key: -c for key, c in self.terms.items()})

    def __sub__(self, other: Scalar) -> Scalar:
        return self + -other

    def __rsub__(self, other: Scalar) -> Scalar:
        return -self + other

    def __mul__(self, other: Scalar) -> Scalar:
        terms: dict[tuple[Angles, Monomial], complex] = {}
        for (f1, m1), c1 in self.terms.items():
            for (f2, m2), c2 in _terms(other):
                key = _sum(f1, f2), tuple(sorted(m1 + m2))
                terms[key] = terms.get(key, 0.0) + c1 * c2
        return self._same(terms)

    __rmul__ = __mul__

    def cos(self) -> Fourier:
        q = self._angle()
        return Fourier({(((q, 1),), ()): 0.5, (((q, -1),), ()): 0.5})

    def sin(self) -> Fourier:
        q = self._angle()
        return Fourier({(((q, 1),), ()): -0.5j, (((q, -1),), ()): 0.5j})

    def _angle(self) -> str:
        (((angles, (name,)), _),) = self.terms.items()
        assert not angles
        return name


def _terms(x: Any) -> Iterable[tuple[tuple[Angles, Monomial], complex]]:
    if isinstance(x, Fourier):
        return x.terms.items()
    return [(((), ()), x)] if x else []


def _sum(a: Angles, b: Angles) -> Angles:
    total = dict(a)
    for q, k in b:
        total[q] = total.get(q, 0) + k
    return tuple(sorted((q, k) for q, k in total.items() if k))


def _derivative(x: Scalar, q: str) -> Scalar:
    """dx/dq: q occurs in angles, or as a length among the factors, or both (a screw)."""
    total: Scalar = 0.0
    for (angles, monomial), c in _terms(x):
        turns, times = dict(angles).get(q, 0), monomial.count(q)
        if turns:
            total = total + Fourier({(angles, monomial): 1j * turns * c})
        if times:
            at = monomial.index(q)
            total = total + Fourier({(angles, monomial[:at] + monomial[at + 1 :]): times * c})
    return total


# The machine in symbols ----------------------------------------------------------------------------------------


class _Machine:
    """A model whose numbers are symbols, each with its value."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.parameters: dict[str, float] = {}
        self.q = [f"q{i + 1}" for i in range(model.nq)]
        self.qd = [f"qd{i + 1}" for i in range(model.nv)]
        self.links = [self._link(i) for i in range(model.n)]
        size = float(np.linalg.norm(model.gravity))
        direction = model.gravity / size if size else model.gravity
        g = self._named("g", size)
        self.base = base_of([_number(x) * g for x in direction.tolist()])

    def run(self, algorithm: Algorithm) -> Any:
        q: list[Any] = [Fourier.of(name) for name in self.q]
        here = scatter(self.model, {"q": q})
        return plain(run(algorithm, self.links, self.model.parent.tolist(), self.base, here))

    def _named(self, name: str, value: float) -> Any:
        """A symbol for a number of the model; zero stays zero."""
        if value == 0.0:
            return 0.0
        self.parameters[name] = value
        return Fourier.of(name)

    def _link(self, i: int) -> Link:
        model, label = self.model, i + 1

        def vector(name: str, x: Array) -> Vec:
            return Vec.of(self._named(f"{name}_{label}{k}", v) for k, v in zip("xyz", x.tolist()))

        def moment(a: int, b: int) -> Scalar:
            return self._named(f"I_{label}{'xyz'[a]}{'xyz'[b]}", float(model.inertia[i, a, b]))

        M = Rigid(Mat.of(map(_number, row) for row in model.R[i].tolist()), vector("p", model.p[i]))
        m = self._named(f"m_{label}", float(model.mass[i]))
        inertia = rigid_inertia(m, vector("r", model.com[i]), Mat.symmetric(moment))
        axis = Vec.of(map(_number, model.axis[i].tolist()))
        own = range(model.v_start[i], model.v_start[i + 1])
        armature = Vec.of(self._named(f"a_{label}{k - own.start}", float(model.armature[k])) for k in own)
        pitch = self._named(f"h_{label}", float(model.pitch[i]))
        return Link(JOINTS[model.joint[i]], M, axis, pitch, inertia, armature=armature)


def _number(x: float) -> float:
    """A direction cosine; a value near 0 or +-1 is rounded to it."""
    nearest = float(round(x))
    return nearest if abs(x - nearest) < ROUNDING else x


def _check(model: Model) -> None:
    for i, code in enumerate(model.joint.tolist()):
        if JOINTS[code].nq != JOINTS[code].nv:
            raise ArgumentError(
                f"joint {model.names[i]!r} is {JOINTS[code].name}: its velocity is not the rate of its coordinates, "
                "and the Christoffel symbols do not give its equations; use joints without quaternions"
            )
    if model.nv > MOST_FREEDOMS:
        raise ArgumentError(f"{model!r} has {model.nv} freedoms; closed forms are written for {MOST_FREEDOMS} at most")


# To SymPy ------------------------------------------------------------------------------------------------------


def _expression(x: Scalar) -> sympy.Expr:
    """sum of  2 Re(c) monomial cos(angles) - 2 Im(c) monomial sin(angles)  over half of the angles."""
    parts: dict[Any, list[Any]] = {}
    for (angles, monomial), c in _terms(x):
        if angles and angles[0][1] < 0:
            continue  # the conjugate of the term with opposite signs
        argument = sum(k * _symbol(q) for q, k in angles)
        factors = sympy.Mul(*map(_symbol, monomial))
        twice = 2 if angles else 1
        for f, size in ((sympy.cos(argument), twice * c.real), (sympy.sin(argument), -twice * c.imag)):
            if abs(size) > ROUNDING:
                parts.setdefault(f, []).append(_exact(size) * factors)
    one = sympy.Integer(1)
    total = sympy.Add(*parts.pop(one, []))
    return total + sympy.Add(*(_factored(terms) * f for f, terms in parts.items()))


def _factored(terms: list[Any]) -> sympy.Expr:
    together = sympy.Add(*terms)
    return sympy.factor(together) if len(terms) <= FACTOR_TERMS else sympy.factor_terms(together)


def _exact(x: float) -> sympy.Expr:
    """The fraction, or root of a fraction, equal to the number up to rounding; else the number itself."""
    for square in (1, 2, 3):
        fraction = sympy.Rational(x / square**0.5).limit_denominator(64)
        if abs(float(fraction) * square**0.5 - x) < ROUNDING * max(1.0, abs(x)):
            return fraction * sympy.sqrt(square)
    return sympy.Float(x)


def _short(f: sympy.Expr, q: Sequence[sympy.Symbol]) -> str:
    """cos(q2 + q3) as c_{23}; multiples and differences of angles are written in full."""
    angles = sympy.Add.make_args(f.args[0])
    if any(angle not in q for angle in angles):
        return sympy.latex(f)
    digits = "".join(str(i + 1) for i in sorted(q.index(angle) for angle in angles))
    return rf"{'c' if f.func is sympy.cos else 's'}_{{{digits}}}"


def _symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, real=True)
