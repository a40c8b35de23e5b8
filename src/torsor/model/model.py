"""Model: a tree of rigid bodies as a frozen struct of arrays.

One joint connects body i to body parent[i] (-1 is the base). Its frame sits at that joint, and its pose in
the parent's frame is

    f_{parent,i}(q_i) = (R_i, p_i) exp(S_i q_i)                               (Ploen & Park 1999, section II)

where S_i is the motion of the joint type (see `joints.py`). Mass properties are those of the body alone, in its
own frame: `com` is the centre of mass, `inertia` the rotational inertia about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.errors import ArgumentError, ModelError
from torsor.later import Later
from torsor.model.builder import AXIAL, GRAVITY, Builder, Links, as_row, assemble
from torsor.model.check import check_model, checked_frames, placements
from torsor.model.dh import DHTable, dh_fields
from torsor.model.extras import NO_EXTRAS, Actuator, Coupling, Extras, Note, Visual, check_extras
from torsor.model.freedoms import DEFAULTS, check_freedoms, coordinate_bounds, filled
from torsor.model.joints import JOINTS, Joint
from torsor.model.locked import locked
from torsor.model.names import Frame, NumberedNames, nearest_names, word_list
from torsor.model.parameters import coupling_matrix, inertial_parameters, with_inertial_parameters
from torsor.model.portable import product, turned
from torsor.model.screws import screw_fields
from torsor.model.units import Units
from torsor.validate import array, flag, generator, integer_array, real_array, shown
from torsor.validate import batch as batch_shape

Array = NDArray[Any]
page, table = Later("torsor.view.page"), Later("torsor.view.table")

# The fields that the dynamics depend on, in the order of the content hash.
_PHYSICS = ("parent", "joint", "axis", "pitch", "R", "p", "mass", "com", "inertia", "gravity")
_DTYPE = {"parent": np.int64, "joint": np.uint8}
NQ, NV = (np.array([getattr(joint, key) for joint in JOINTS]) for key in ("nq", "nv"))
MOST_NAMES = 20  # in a message
_DERIVED = ("q_start", "v_start", "joint_groups", "_index")  # functions of the arrays alone, computed on demand


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    r"""Hold a machine: a tree of rigid bodies, as frozen arrays in topological order, parent[i] < i.

    Make a model by `chain`, `tree`, `builder` or `from_dh`, or load it. The constructor takes complete arrays, checks
    them and keeps read-only copies. `dataclasses.replace(model, gravity=...)` makes a changed model and checks it
    again.

    $$ f_{\mathrm{parent}, i}(q_i) = (R_i, p_i)\, e^{S_i q_i} $$

    Parameters
    ----------
    parent : (n,) array_like
        The number of each body's parent; -1 is the base.
    joint : (n,) array_like
        Codes of joint types (`torsor.model.JOINTS`).
    axis : (n, 3) array_like
        Unit directions of the joints in the body's frame; z where the type has no axis.
    pitch : (n,) array_like
        Advance of helical joints, in m per rad.
    R : (n, 3, 3) array_like
        Rotation of every joint in the parent's frame.
    p : (n, 3) array_like
        Position of every joint in the parent's frame, in m.
    mass : (n,) array_like
        Masses, in kg.
    com : (n, 3) array_like
        Mass centres in the bodies' frames, in m.
    inertia : (n, 3, 3) array_like
        Inertia tensors about the mass centres, in the bodies' axes, in kg m^2.
    gravity : (3,) array_like, default (0, 0, -9.81)
        The gravitational acceleration in the base's frame, in m/s^2.
    names : sequence of str, optional
        Names of the bodies. Default: link1, link2, ...
    frames : mapping of str to Frame, optional
        Named frames, including those of merged fixed bodies.
    name : str, default "model"
        The name of the machine.
    allow_degenerate : bool, default False
        Whether point masses and rods, whose inertia is singular, are permitted.
    damping : float or (nv,) array_like, default 0
        Viscous friction of every freedom, in N m s/rad or N s/m.
    friction : float or (nv,) array_like, default 0
        Dry friction, in N m or N.
    stiffness : float or (nv,) array_like, default 0
        Stiffness of springs that pull the joints to `rest`, in N m/rad or N/m.
    rest : float or (nv,) array_like, default 0
        Displacement from the neutral configuration at which springs are slack.
    armature : float or (nv,) array_like, default 0
        Inertia of rotors, which adds to the diagonal of M, in kg m^2 or kg.
    lower, upper : float or (nv,) array_like, default infinite
        Limits of the coordinates.
    stop_stiffness, stop_damping : float or (nv,) array_like, default 0
        Stiffness and damping of the stops at these limits; 0: from the inertia that the joint carries.
    effort : float or (nv,) array_like, default infinite
        The largest torque or force of every drive.
    speed : float or (nv,) array_like, default infinite
        The speed up to which every drive pushes.
    extras : Extras, optional
        Names of joints, couplings, actuators, keyframes, shapes and notes.

    Attributes
    ----------
    n, nq, nv : int
        The number of bodies, of coordinates, and of degrees of freedom.
    q_start, v_start : (n + 1,) ndarray
        The coordinates of joint i are q[q_start[i]:q_start[i + 1]].
    key : str
        A hash of the physics; compiled programs are stored under it.

    Raises
    ------
    ModelError
        The machine is physically impossible; the message names the body.

    Examples
    --------
    >>> import torsor as ts
    >>> arm = ts.Model.chain("revolute", n=2, axis=(0, 1, 0), p=(0.5, 0, 0), mass=1.0, inertia=(0.01, 0.01, 0.01))
    >>> arm
    Model('model', 2 bodies: 2 revolute; nq=2, nv=2)
    """

    parent: Array  # (n,) int64, -1 is the base
    joint: Array  # (n,) uint8, codes of joints.JOINTS
    axis: Array  # (n, 3) unit, in the body's frame; z where the joint's type has no axis
    pitch: Array  # (n,) metres per radian, helical joints only
    R: Array  # (n, 3, 3) placement of the joint in the parent's frame
    p: Array  # (n, 3)
    mass: Array  # (n,)
    com: Array  # (n, 3)
    inertia: Array  # (n, 3, 3) about the com
    gravity: Array = field(default_factory=lambda: np.array(GRAVITY))  # (3,)
    names: Sequence[str] = ()  # empty: link1, link2, ...
    frames: Mapping[str, Frame] = field(default_factory=dict)  # named frames, including merged fixed bodies
    name: str = "model"
    allow_degenerate: bool = False  # point masses and rods permitted
    # passive quantities and limits of the joints, (nv,) each: see freedoms.py
    damping: Array = field(default_factory=lambda: np.array(0.0))
    friction: Array = field(default_factory=lambda: np.array(0.0))
    stiffness: Array = field(default_factory=lambda: np.array(0.0))
    rest: Array = field(default_factory=lambda: np.array(0.0))
    armature: Array = field(default_factory=lambda: np.array(0.0))
    lower: Array = field(default_factory=lambda: np.array(-np.inf))
    upper: Array = field(default_factory=lambda: np.array(np.inf))
    stop_stiffness: Array = field(default_factory=lambda: np.array(0.0))
    stop_damping: Array = field(default_factory=lambda: np.array(0.0))
    effort: Array = field(default_factory=lambda: np.array(np.inf))
    speed: Array = field(default_factory=lambda: np.array(np.inf))
    extras: Extras = NO_EXTRAS  # names of joints, couplings, actuators, shapes, notes: see extras.py

    def __post_init__(self) -> None:
        for key in _PHYSICS:
            self._set(key, _frozen(getattr(self, key), _DTYPE.get(key, np.float64), key))
        self._set("names", word_list(self.names) or NumberedNames(self.parent.size))
        self._set("frames", MappingProxyType(checked_frames(self.frames, _frozen)))
        check_model(self)
        unused = ~AXIAL[self.joint]
        if (self.axis[unused] != (0.0, 0.0, 1.0)).any():  # an unused axis must not make models differ
            self._set("axis", _frozen(np.where(unused[:, None], (0.0, 0.0, 1.0), self.axis)))
        # Articulated inertias must be exactly symmetric to keep their digits on long chains, and so must body inertias.
        transposed = self.inertia.swapaxes(1, 2)
        if not np.array_equal(self.inertia, transposed):
            self._set("inertia", _frozen((self.inertia + transposed) / 2))
        for key in DEFAULTS:
            self._set(key, filled(self, key))
        check_freedoms(self)
        check_extras(self)

    def _set(self, key: str, value: Any) -> None:
        object.__setattr__(self, key, value)

    # ---- builders ----

    @classmethod
    def chain(cls, joint: str | Sequence[str] = "revolute", **links: Unpack[Links]) -> Model:
        """Build a serial chain: the parent of each body is the previous one.

        Parameters
        ----------
        joint : str or sequence of str, default "revolute"
            The type of all joints, or one type per body.
        **links : (n, ...) array_like
            As in `tree`.

        Returns
        -------
        model : Model
            The chain.

        Examples
        --------
        >>> import torsor as ts
        >>> ts.Model.chain(["revolute", "prismatic"], mass=1.0, inertia=(0.1, 0.1, 0.1)).nv
        2
        """
        return cls(**assemble(None, joint, **links))

    @classmethod
    def tree(cls, parent: ArrayLike, joint: str | Sequence[str] = "revolute", **links: Unpack[Links]) -> Model:
        """Build a tree of bodies: parent[i] is the parent of body i; -1 is the base.

        Every argument of `links` is given once for all bodies or, with a leading axis n, per body. Bodies keep
        their order if each comes after its parent; otherwise they are sorted, those nearest the base first.

        Parameters
        ----------
        parent : (n,) array_like
            The number of each body's parent.
        joint : str or sequence of str, default "revolute"
            revolute, prismatic, helical, cylindrical, universal, gimbal, spherical, planar, free or fixed. A fixed
            body is merged into its parent; its name stays as a frame.
        axis : (3,) array_like, default z
            Direction of a revolute, prismatic, helical or cylindrical joint in the body's frame.
        pitch : float, default 0
            Advance of a helical joint, in m per rad.
        R, p : (3, 3), (3,) array_like
            Placement of the joint in the parent's frame. Default: at its origin.
        mass : float, default 0
            The mass, in kg.
        com : (3,) array_like, default 0
            The mass centre in the body's frame, in m.
        inertia : (3,) or (3, 3) array_like, default 0
            Principal moments or a tensor about the mass centre, in the body's axes, in kg m^2. A 3x3 array is one
            tensor for all bodies; for three bodies it is refused if its rows look like their principal moments.
        gravity : (3,) array_like, default (0, 0, -9.81)
            The gravitational acceleration in the base's frame, in m/s^2.
        names : sequence of str, optional
            One name per body. Default: link1, link2, ...
        name : str, default "model"
            The name of the machine.
        n : int, optional
            The number of bodies, if no other argument determines it.
        allow_degenerate : bool, default False
            Whether point masses and rods, whose inertia is singular, are permitted.
        damping, friction, stiffness, rest, armature, lower, upper, effort, speed : float or (nv,) array_like
            Quantities of the freedoms: one number for all, or one per freedom in the order of the bodies.
        **links : (n, ...) array_like
            The arguments above, from `axis` on.

        Returns
        -------
        model : Model
            The tree.

        Raises
        ------
        ModelError
            The machine is physically impossible; the message names the body.
        ArgumentError
            A shape does not fit.

        Examples
        --------
        >>> import torsor as ts
        >>> ts.Model.tree([-1, 0, 0], mass=1.0, inertia=(0.1, 0.1, 0.1), p=(0, 0, 0.1)).is_chain
        False
        """
        return cls(**assemble(parent, joint, **links))

    @classmethod
    def builder(cls, name: str = "model", *, gravity: ArrayLike = GRAVITY, allow_degenerate: bool = False) -> Builder:
        """Begin a machine that is built body by body.

        Parameters
        ----------
        name : str, default "model"
            The name of the machine.
        gravity : (3,) array_like, default (0, 0, -9.81)
            The gravitational acceleration in the base's frame, in m/s^2.
        allow_degenerate : bool, default False
            Whether point masses and rods are permitted.

        Returns
        -------
        builder : Builder
            An empty builder: call `.add(...)`, `.frame(...)`, then `.build()`.

        Examples
        --------
        >>> import torsor as ts
        >>> ts.Model.builder("arm").add("upper", mass=1.0, inertia=(0.1, 0.1, 0.1)).build().names
        ('upper',)
        """
        return Builder(cls, name, gravity=gravity, allow_degenerate=allow_degenerate)

    @classmethod
    def from_dh(cls, **table: Unpack[DHTable]) -> Model:
        """Build a serial arm from its Denavit-Hartenberg table.

        A row is two screw motions, one along and about x by (a, alpha), one along and about z by (d, theta). Where the
        DH frame of a link is not the body's frame, it is kept as the frame `"<link>/dh"`.

        Parameters
        ----------
        a, alpha : (n,) array_like, default 0
            Length along and angle about the x axis (Lee 2007: b, beta; Saha 2001: a, alpha).
        d, theta : (n,) array_like, default 0
            Length along and angle about the z axis (Lee 2007: c, gamma; Saha 2001: b, theta).
        variable : str or sequence of str, default "theta"
            Which of the four parameters the joint moves: "theta", "d", "alpha" or "a"; q adds to its value.
        convention : str, default "craig"
            "craig" (x screw, then z screw) or "standard" (z screw, then x screw).
        degrees : bool, default False
            Whether the angles of the table are in degrees.
        com : (n, 3) array_like, default 0
            Mass centres in the links' DH frames; or give `r` (Saha), from the mass centre to the frame's origin.
        **table : (n, ...) array_like
            The arguments above, and those of `tree` from `mass` on; inertias are in the axes of the links' DH frames.

        Returns
        -------
        model : Model
            The arm.

        Examples
        --------
        >>> import torsor as ts
        >>> ts.Model.from_dh(a=[0.0, 0.4], d=[0.3, 0.0], mass=1.0, inertia=(0.1, 0.1, 0.1)).n
        2
        """
        return cls(**dh_fields(**table))

    @classmethod
    def from_screws(cls, S: ArrayLike, M: ArrayLike, inertias: ArrayLike, *, axes: str = "space",
                    **links: Any) -> Model:  # fmt: skip
        """Build a machine as a product of exponentials, from screws and poses at the zero position.

        The body frames of the model lie on the axes of the joints; the given frames are kept as `"<link>/home"`.

        Parameters
        ----------
        S : (n, 6) array_like
            The screw (omega, v) of each joint, with |omega| = 1; for a prismatic joint omega = 0 and |v| = 1. A screw
            with pitch is a helical joint.
        M : (n, 4, 4) array_like
            The pose of a frame of each body in the base's frame, for example at the mass centre.
        inertias : (n, 6, 6) array_like
            [[J, m [c]], [-m [c], m 1]] of each body about that frame's origin, angular part first.
        axes : str, default "space"
            The frame of the screws: "space" (the base's frame) or "body" (the frame M of the body).
        **links : (n, ...) array_like, optional
            parent (n,), for a tree; gravity, names, name, allow_degenerate, damping, ...: as in `tree`.

        Returns
        -------
        model : Model
            The machine.

        Raises
        ------
        ArgumentError
            A shape does not fit, or a screw is invalid.
        ModelError
            The machine is physically impossible.

        Examples
        --------
        >>> import numpy as np, torsor as ts
        >>> inertia = np.diag([0.1, 0.1, 0.1, 1.0, 1.0, 1.0])
        >>> ts.Model.from_screws([[0, 0, 1, 0, 0, 0]], [np.eye(4)], [inertia])
        Model('model', 1 body: 1 revolute; nq=1, nv=1)
        """
        return cls(**screw_fields(S, M, inertias, axes, **links))

    # ---- derived from the arrays ----

    @property
    def n(self) -> int:
        """The number of bodies; each has one joint."""
        return len(self.parent)

    @property
    def nq(self) -> int:
        """The length of a configuration q."""
        return int(self.q_start[-1])

    @property
    def nv(self) -> int:
        """The number of degrees of freedom: the length of v, of accelerations and of torques."""
        return int(self.v_start[-1])

    @cached_property
    def q_start(self) -> Array:
        """The start of each joint's coordinates, (n + 1,): those of joint i are q[q_start[i]:q_start[i + 1]]."""
        return _starts(self.joint, NQ)

    @cached_property
    def v_start(self) -> Array:
        """The start of each joint's velocities, (n + 1,): those of joint i are v[v_start[i]:v_start[i + 1]]."""
        return _starts(self.joint, NV)

    @cached_property
    def children_count(self) -> Array:
        """The number of children of each body, (n,)."""
        return _frozen(np.bincount(self.parent + 1, minlength=self.n + 1)[1:], np.int64)

    @cached_property
    def is_chain(self) -> bool:
        """Whether the parent of every body is the previous one."""
        return bool(np.array_equal(self.parent, np.arange(-1, self.n - 1)))

    @cached_property
    def key(self) -> str:
        """A hash of the physics (every number, joint and parent; no names); compiled programs are stored under it."""
        digest = blake2b(digest_size=16)
        for field_name in _PHYSICS:
            digest.update(getattr(self, field_name).tobytes())
        if self.armature.any():
            digest.update(self.armature.tobytes())
        if self.couplings:
            digest.update(repr(self.couplings).encode())
        return digest.hexdigest()

    @cached_property
    def weightless(self) -> Model:
        """The same model without gravity."""
        return replace(self, gravity=np.zeros(3))

    @cached_property
    def has_degenerate_bodies(self) -> bool:
        """Whether a body has no mass or a singular inertia: only then can the mass matrix be singular."""
        moments = np.linalg.eigvalsh(self.inertia)
        return bool((self.mass == 0).any() or (moments[:, 0] <= 1e-12 * moments[:, 2]).any())

    def body_of_freedom(self, k: int) -> str:
        """Name the body to whose joint a freedom belongs.

        Parameters
        ----------
        k : int
            The number of the freedom: its index in v.

        Returns
        -------
        name : str
            The name of the body.
        """
        return self.names[int(np.searchsorted(self.v_start, k, side="right")) - 1]

    def inertial_parameters(self) -> Array:
        """Collect the inertial parameters, on which the torques depend linearly.

        Returns
        -------
        parameters : (n, 10) ndarray
            Those of every body, about the origin of its frame: m, h = m c (x, y, z), J (xx, xy, xz, yy, yz, zz), in kg,
            kg m, kg m^2.
        """
        return inertial_parameters(self)

    def with_inertial_parameters(self, parameters: ArrayLike) -> Model:
        """Make this model with other inertial parameters.

        Parameters
        ----------
        parameters : (n, 10) array_like
            In the order of `inertial_parameters`.

        Returns
        -------
        model : Model
            The machine with these bodies.

        Raises
        ------
        ModelError
            A body is physically impossible.
        """
        return with_inertial_parameters(self, parameters)

    def frame(self, name: str | int | None) -> Frame:
        """Find a frame by name.

        Parameters
        ----------
        name : str, int or None
            A named frame, a body (by name or number) or a joint; None is the base.

        Returns
        -------
        frame : Frame
            A named tuple: `body` (-1 is the base) and the placement `R` (3, 3), `p` (3,) on that body.

        Raises
        ------
        ArgumentError
            There is no such frame; the message lists similar names.
        """
        if name is None:
            return Frame(-1, np.eye(3), np.zeros(3))
        if isinstance(name, int | np.integer):
            if not -self.n <= name < self.n:
                raise ArgumentError(
                    f"body {name} is out of range: {self!r} has bodies 0 to {self.n - 1}; or give a name"
                )
            return Frame(int(name) % self.n, np.eye(3), np.zeros(3))
        if not isinstance(name, str):
            raise ArgumentError(f"body {shown(name)} is neither a number nor the name of a body or frame")
        if name in self.frames:
            return self.frames[name]
        try:
            body = self._index(name)
        except (KeyError, ValueError):
            if name not in self.joint_names:
                known = nearest_names(name, self.frames, self.names)
                raise ArgumentError(f"{self!r} has no body or frame named {name!r}; it has {known}") from None
            body = self.joint_names.index(name)
        return Frame(body, np.eye(3), np.zeros(3))

    def with_frames(self, frames: Mapping[str, tuple[str | None, ArrayLike, ArrayLike]]) -> Model:
        """Make this model with more named frames.

        Parameters
        ----------
        frames : mapping of str to (str, (3, 3) array_like, (3,) array_like)
            For every name the body or frame that carries it (None is the base), and its placement R, p there.

        Returns
        -------
        model : Model
            The machine with these frames.

        Raises
        ------
        ModelError
            A name is taken, a body or frame is missing, or R is not a rotation.
        """
        more = {name: self._placed(name, *placement) for name, placement in placements(frames).items()}
        return replace(self, frames={**self.frames, **more})

    def _placed(self, name: str, host: str | None, R: ArrayLike, p: ArrayLike) -> Frame:
        if name in self.frames:
            raise ModelError(f"frame {name!r} is there already: name every body and frame differently")
        try:
            body, R0, p0 = self.frame(host)
        except ArgumentError as error:
            raise ModelError(f"frame {name!r}: {error}") from None
        label = f"frame {name!r}"
        R, p = as_row(label, "R", R, (3, 3)), as_row(label, "p", p, (3,))
        if host not in self.frames:  # a body's own frame, or the base's: nothing to compose, and -0.0 stays -0.0
            return Frame(body, R, p)
        with np.errstate(invalid="ignore"):
            return Frame(body, product(R0, R), p0 + turned(R0, p))

    @cached_property
    def _index(self) -> Callable[[str], int]:
        if isinstance(self.names, NumberedNames):
            return self.names.index
        return {name: i for i, name in enumerate(self.names)}.__getitem__

    # ---- what a file says beyond the dynamics: see extras.py ----

    @property
    def units(self) -> Units:
        """The units of the model's numbers, as words; SI unless the extras say otherwise."""
        return Units.of(self.extras.units)

    def with_extras(self, extras: Extras) -> Model:
        """Make this model with other extras; everything else is shared.

        Parameters
        ----------
        extras : Extras
            Names of joints, couplings, actuators, keyframes, shapes and notes.

        Returns
        -------
        model : Model
            The machine with these extras.

        Raises
        ------
        ModelError
            The extras do not fit the machine.
        """
        other = object.__new__(Model)
        other.__dict__.update({f.name: getattr(self, f.name) for f in fields(self)}, extras=extras)
        other.__dict__.update({key: self.__dict__[key] for key in _DERIVED if key in self.__dict__})
        check_extras(other)
        return other

    @property
    def joint_names(self) -> Sequence[str]:
        """The names of the joints, one per body; those of the bodies unless a file says otherwise."""
        return self.extras.joint_names or self.names

    @property
    def couplings(self) -> tuple[Coupling, ...]:
        """Joints that follow others: q_follower = ratio q_leader + offset."""
        return self.extras.couplings

    def coupled(self, q: ArrayLike) -> Array:
        """Set the coordinates of joints that follow others according to `couplings`.

        Parameters
        ----------
        q : (..., nq) array_like
            Configurations.

        Returns
        -------
        q : (..., nq) ndarray
            A copy that obeys the couplings.
        """
        q = self._configuration("q", q).copy()
        for follower, leader, ratio, offset in self.couplings:
            q[..., self.q_start[follower]] = ratio * q[..., self.q_start[leader]] + offset
        return q

    def coupling_matrix(self) -> Array:
        """Compute G with v = G y, where y are the velocities of the k freedoms that follow no other.

        G^T M G, G^T bias and G^T tau are those of a machine with only these freedoms.

        Returns
        -------
        G : (nv, k) ndarray
            The identity if no joint follows another.
        """
        return coupling_matrix(self)

    def uncoupled(self) -> Model:
        """Make this model with all its joints free.

        Returns
        -------
        model : Model
            The same without `couplings`.
        """
        return self.with_extras(replace(self.extras, couplings=()))

    @property
    def actuators(self) -> tuple[Actuator, ...]:
        """Named inputs, as the file has them."""
        return self.extras.actuators

    @property
    def keyframes(self) -> Mapping[str, Array]:
        """Named configurations, (nq,) each."""
        return {name: np.array(q) for name, q in self.extras.keyframes.items()}

    @property
    def visuals(self) -> tuple[Visual, ...]:
        """Shapes to draw."""
        return self.extras.visuals

    @property
    def notes(self) -> tuple[Note, ...]:
        """What was repaired, ignored or interpreted when the model's file was read."""
        return self.extras.notes

    def locked(self, joints: Mapping[str, ArrayLike]) -> Model:
        """Make the model in which some joints are locked: a reduced model with fewer freedoms.

        The bodies of these joints merge into their parents, and their names stay as frames. Shapes, frames,
        keyframes and actuators are kept; joints that follow a locked one are locked, too.

        Parameters
        ----------
        joints : mapping of str to float or (nq,) array_like
            For every joint, by its name or that of its body, the coordinates at which it is locked, in rad or m.

        Returns
        -------
        model : Model
            The model of the remaining joints, in the same order.

        Raises
        ------
        ArgumentError
            A name is not that of a joint, or the coordinates do not fit it.
        ModelError
            No joint would remain, or a joint that follows another is locked without it.

        Examples
        --------
        >>> import torsor as ts
        >>> straight = ts.zoo.double_pendulum().locked({"link2": 0.0})
        >>> straight.nv, straight.mass.tolist()
        (1, [2.0])
        """
        return locked(self, joints)

    def view(self, q: ArrayLike | None = None, path: str | Path | None = None, *, live: bool = False,
             forces: Any = ()) -> Path:  # fmt: skip
        """Show the model in the browser, or write the page that shows it; the user can turn the joints there.

        Parameters
        ----------
        q : (nq,) or (m, nq) array_like, optional
            The configuration, or several to play, four per second. Default: the first keyframe of the model's file, or
            the neutral configuration.
        path : str or Path, optional
            The file of the page. Default: a temporary file that is opened in the browser.
        live : bool, default False
            Whether the model moves in the page, by its own equations of motion, under gravity and the user's hand.
        forces : force or list, optional
            Forces in the page, as in `simulate`: data that do not depend on time.

        Returns
        -------
        path : Path
            The page, one HTML file.

        Examples
        --------
        >>> import torsor as ts
        >>> ts.zoo.panda().view([0, 0.5, 0, -1.5, 0, 2, 0], "panda.html").name
        'panda.html'
        """
        return page.show_model(self, q, path, live, forces)

    def _repr_html_(self) -> str:
        return table.of_model(self)

    def order(self, names: Sequence[str]) -> tuple[Array, Array]:
        """Find the indices of the coordinates and velocities of joints.

        q[..., iq] and v[..., iv] are those of these joints, in the given order; q[..., iq] = x sets them.

        Parameters
        ----------
        names : sequence of str
            Joints, or bodies, in any order.

        Returns
        -------
        iq : (k,) ndarray
            Indices into q.
        iv : (m,) ndarray
            Indices into v.

        Raises
        ------
        ArgumentError
            There is no such joint.
        """
        try:
            given = [] if isinstance(names, str) else [str(name) for name in names if isinstance(name, str)]
            sound = len(given) == len(names)
        except Exception:  # not a list
            sound = False
        if not sound:
            raise ArgumentError(f"names must be a list of names of joints, not {shown(names)}")
        joints = {name: i for i, name in enumerate(self.names)} | {name: i for i, name in enumerate(self.joint_names)}
        for name in given:
            if name not in joints:
                raise ArgumentError(f"{self!r} has no joint named {shown(name)}")
        bodies = [joints[name] for name in given]
        starts = self.q_start, self.v_start
        q, v = (np.concatenate([np.arange(at[i], at[i + 1]) for i in bodies] or [np.arange(0)]) for at in starts)
        return q, v

    # ---- the configuration manifold ----

    @cached_property
    def joint_groups(self) -> tuple[tuple[Joint, Array, Array], ...]:
        """For each joint type present: the type, and its columns in q, (k, joint.nq), and in v, (k, joint.nv)."""
        groups = []
        for code in np.flatnonzero(np.bincount(self.joint)):  # np.unique loads numpy.ma: half the time of a first call
            bodies, joint = np.flatnonzero(self.joint == code), JOINTS[code]
            q_columns = self.q_start[bodies, None] + np.arange(joint.nq)
            v_columns = self.v_start[bodies, None] + np.arange(joint.nv)
            groups.append((joint, q_columns, v_columns))
        return tuple(groups)

    @cached_property
    def locking_coordinates(self) -> Array:
        """The coordinates at whose right angles M is singular, (k,), because two axes of a joint coincide."""
        columns = [q_columns[:, joint.locking].ravel() for joint, q_columns, _ in self.joint_groups if joint.locking]
        return _frozen(np.concatenate(columns) if columns else np.zeros(0, int), np.int64)

    def neutral(self) -> Array:
        """Make the configuration in which no joint is displaced.

        Returns
        -------
        q : (nq,) ndarray
            Zeros, and unit quaternions (1, 0, 0, 0).
        """
        q = np.empty(self.nq)
        for joint, q_columns, _ in self.joint_groups:
            q[q_columns] = joint.neutral
        return q

    def random_configuration(
        self, rng: Any = None, size: int | tuple[int, ...] | None = None, *, limits: bool = False
    ) -> Array:
        """Draw random configurations, rotations uniform.

        Parameters
        ----------
        rng : Generator or int, optional
            A NumPy Generator or a seed.
        size : int or tuple of int, optional
            Leading axes. Default: one configuration.
        limits : bool, default False
            Draw coordinates with limits between these, and set joints that follow others where these put them. What
            lacks one of its limits is drawn within a turn (or 2 pi m) of the other.

        Returns
        -------
        q : (*size, nq) ndarray
            Angles within half a turn; without `limits`, limits and couplings are not looked at.

        Raises
        ------
        ArgumentError
            The limits of a joint and of one that follows it exclude each other.

        Examples
        --------
        >>> import numpy as np, torsor as ts
        >>> arm = ts.Model.chain(n=3, axis=(0, 1, 0), p=(1, 0, 0), mass=1.0, inertia=(1, 1, 1), lower=-0.5, upper=1.0)
        >>> q = arm.random_configuration(rng=0, size=1000, limits=True)
        >>> bool((q > -0.5).all() and (q < 1.0).all())
        True
        """
        rng = generator("rng", rng)
        batch = () if size is None else batch_shape("size", size, self.nq)
        q = np.empty((*batch, self.nq))
        for joint, q_columns, _ in self.joint_groups:
            shape = (*batch, *q_columns.shape)
            q[..., q_columns] = joint.random(rng, int(np.prod(shape[:-1]))).reshape(shape)
        if not flag("limits", limits):
            return q
        lower, upper = coordinate_bounds(self)
        limited = np.isfinite(lower) | np.isfinite(upper)
        least = np.where(np.isfinite(lower), lower, upper - 2 * np.pi)[limited]
        most = np.where(np.isfinite(upper), upper, lower + 2 * np.pi)[limited]
        q[..., limited] = rng.uniform(least, most, (*batch, len(least)))
        return np.clip(self.coupled(q), lower, upper) if self.couplings else q

    def integrate(self, q: ArrayLike, dv: ArrayLike) -> Array:
        """Move from a configuration with a constant velocity for unit time: q [+] dv.

        Parameters
        ----------
        q : (..., nq) array_like
            Configurations.
        dv : (..., nv) array_like
            A velocity times a time, in rad and m.

        Returns
        -------
        q : (..., nq) ndarray
            The configurations reached; quaternions stay of unit length.
        """
        q, dv = self._configuration("q", q), self._rows("dv", dv, self.nv)
        out = np.empty((*_batch("q and dv", q, dv), self.nq), np.result_type(q, dv))
        for joint, q_columns, v_columns in self.joint_groups:
            out[..., q_columns] = joint.integrate(q[..., q_columns], dv[..., v_columns])
        return out

    def difference(self, q0: ArrayLike, q1: ArrayLike) -> Array:
        """Find the velocity that leads from one configuration to another in unit time: q1 [-] q0.

        Parameters
        ----------
        q0, q1 : (..., nq) array_like
            Configurations.

        Returns
        -------
        dv : (..., nv) ndarray
            The dv with integrate(q0, dv) = q1, in rad and m.
        """
        q0, q1 = self._configuration("q0", q0), self._configuration("q1", q1)
        out = np.empty((*_batch("q0 and q1", q0, q1), self.nv), np.result_type(q0, q1))
        for joint, q_columns, v_columns in self.joint_groups:
            out[..., v_columns] = joint.difference(q0[..., q_columns], q1[..., q_columns])
        return out

    def _configuration(self, what: str, q: ArrayLike) -> Array:
        """q as a floating array (..., nq) whose quaternions are not zero."""
        q = self._rows(what, q, self.nq)
        self.check_quaternions(q, what)
        return q

    def check_quaternions(self, q: Array, what: str = "q") -> None:
        """Raise, naming the joint, if a quaternion is zero, or so small that it loses digits.

        Parameters
        ----------
        q : (..., nq) ndarray
            Configurations.
        what : str, default "q"
            Their name in the message.

        Raises
        ------
        ArgumentError
            A quaternion is zero.
        """
        smallest = np.finfo(q.dtype).tiny if q.dtype.kind == "f" else 1
        for joint, q_columns, _ in self.joint_groups:
            quaternion = q[..., q_columns[:, joint.quaternion]]
            if quaternion.shape[-1] == 0:
                continue
            for *_, k in np.argwhere(np.abs(quaternion).max(axis=-1) < smallest)[:1]:
                name = self.names[np.flatnonzero(self.joint == joint.code)[k]]
                raise ArgumentError(f"{what}: the quaternion of {name!r} is zero; at rest it is (1, 0, 0, 0)")

    def _rows(self, what: str, x: ArrayLike, width: int) -> Array:
        """x as a floating array (..., width)."""
        x = array(what, x)
        if x.dtype.kind not in "iuf":
            raise ArgumentError(f"{what} must hold real numbers, not {x.dtype}")
        if x.ndim == 0 or x.shape[-1] != width:
            raise ArgumentError(f"{what} must have shape (..., {width}) for {self!r}, not {x.shape}")
        if not np.isfinite(x).all():
            raise ArgumentError(f"{what} holds a NaN or an infinity")
        return x if x.dtype.kind == "f" else x.astype(np.float64)

    # ---- identity ----

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Model):
            return NotImplemented
        same_words = (self.name, self.allow_degenerate) == (other.name, other.allow_degenerate)
        return (
            same_words
            and self.key == other.key
            and self.names == other.names
            and all(np.array_equal(getattr(self, key), getattr(other, key)) for key in DEFAULTS)
            and dict(self.frames) == dict(other.frames)
            and self.extras == other.extras
        )

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields and rebuild with the constructor, so that the arrays stay read-only."""
        values = [getattr(self, f.name) for f in fields(self)]
        return Model, tuple(dict(v) if isinstance(v, MappingProxyType) else v for v in values)

    def __repr__(self) -> str:
        codes, counts = np.unique(self.joint, return_counts=True)
        joints = ", ".join(f"{count} {JOINTS[code].name}" for code, count in zip(codes, counts))
        bodies = "1 body" if self.n == 1 else f"{self.n} bodies"
        return f"Model({self.name!r}, {bodies}: {joints}; nq={self.nq}, nv={self.nv})"


def require_model(model: Any) -> None:
    """Raise unless this is a `Model`."""
    if not isinstance(model, Model):
        raise ArgumentError(f"model must be a torsor.Model, not {shown(model)}")


def _frozen(x: ArrayLike, dtype: Any = np.float64, what: str = "an array of a Model") -> Array:
    """A read-only contiguous copy. A read-only array is copied too: an earlier view of it may still be writable."""
    if type(x) is np.ndarray and x.dtype == dtype:
        frozen = x.copy(order="C")
    elif dtype is np.float64:
        frozen = real_array(what, x, finite=False).astype(dtype, order="C")  # check.py names the body of a NaN
    else:
        frozen = integer_array(what, x, dtype)
    frozen += dtype(0)  # -0.0 becomes 0.0: the sign of a zero must not make models differ
    frozen.flags.writeable = False
    return frozen


def _starts(joint: Array, widths: Array) -> Array:
    starts = np.zeros(len(joint) + 1, dtype=np.int64)
    np.cumsum(widths[joint], out=starts[1:])
    starts.flags.writeable = False
    return starts


def _batch(what: str, a: Array, b: Array) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    except ValueError:
        raise ArgumentError(f"the batch axes of {what} do not fit: {a.shape} and {b.shape}") from None
