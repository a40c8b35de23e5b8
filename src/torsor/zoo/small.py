"""Small machines for examples and first studies: links are uniform rods, and every machine hangs at rest at q = 0."""

from __future__ import annotations

from typing import Any

from torsor.model.model import Model
from torsor.validate import number

RADIUS = 0.02  # of the rods, relative to their length


def pendulum(*, length: float = 1.0, mass: float = 1.0, damping: float = 0.0) -> Model:
    r"""Build a pendulum: a rod that turns about the y axis and hangs at q = 0.

    $$ \frac{m l^2}{3} \ddot q + m g \frac{l}{2} \sin q = \tau $$

    Parameters
    ----------
    length : float, default 1.0
        Length of the rod in m.
    mass : float, default 1.0
        Mass of the rod in kg.
    damping : float, default 0.0
        Damping of the joint in N m s/rad.

    Returns
    -------
    model : Model
        One revolute joint, ``link1``; the frame ``tip`` is at its far end.

    Raises
    ------
    ArgumentError
        The length or the mass is not positive, or the damping is negative.

    Examples
    --------
    A horizontal rod, released from rest, begins to fall with 3 g / (2 l):

    >>> import numpy as np, torsor as ts
    >>> rod = ts.zoo.pendulum(length=1.0)
    >>> print(ts.forward_dynamics(rod, [np.pi / 2], [0.0], [0.0]).round(1))
    [-14.7]
    """
    return _rods("pendulum", (length,), (mass,), damping)


def double_pendulum(*, length: float = 1.0, mass: float = 1.0, damping: float = 0.0) -> Model:
    """Build a double pendulum: two equal rods that turn about the y axis and hang at q = 0.

    Parameters
    ----------
    length : float, default 1.0
        Length of each rod in m.
    mass : float, default 1.0
        Mass of each rod in kg.
    damping : float, default 0.0
        Damping of each joint in N m s/rad.

    Returns
    -------
    model : Model
        Two revolute joints, ``link1`` and ``link2``; the frame ``tip`` is at the far end of the second rod.

    Raises
    ------
    ArgumentError
        The length or the mass is not positive, or the damping is negative.

    Examples
    --------
    Its mass matrix, stretched out, in kg m^2:

    >>> import numpy as np, torsor as ts
    >>> print(ts.mass_matrix(ts.zoo.double_pendulum(), [0.0, 0.0]).round(2))
    [[2.67 0.83]
     [0.83 0.33]]
    """
    return _rods("double_pendulum", (length, length), (mass, mass), damping)


def acrobot(*, damping: float = 0.0) -> Model:
    """Build the acrobot of Spong 1995: rods of 1 m and 2 m and 1 kg each, of which only the second joint is driven.

    torsor has no undriven joints: leave the first torque at zero. It hangs at q = 0 and stands upright at
    q = (pi, 0).

    Parameters
    ----------
    damping : float, default 0.0
        Damping of each joint in N m s/rad.

    Returns
    -------
    model : Model
        Two revolute joints, ``link1`` and ``link2``; the frame ``tip`` is at the far end of the second rod.

    Raises
    ------
    ArgumentError
        The damping is negative.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> acrobot = ts.zoo.acrobot()
    >>> print(ts.frame_poses(acrobot, [np.pi, 0.0], "tip")[:3, 3].round(6) + 0.0)
    [0. 0. 3.]
    """
    return _rods("acrobot", (1.0, 2.0), (1.0, 1.0), damping)


def cart_pole(*, cart: float = 1.0, pole: float = 0.1, length: float = 1.0, damping: float = 0.0) -> Model:
    """Build a cart on a rail along x with a pole that hangs from it at q = 0; upright is q = (x, pi).

    Parameters
    ----------
    cart : float, default 1.0
        Mass of the cart in kg.
    pole : float, default 0.1
        Mass of the pole in kg.
    length : float, default 1.0
        Length of the pole in m.
    damping : float, default 0.0
        Damping of both joints, in N s/m and N m s/rad.

    Returns
    -------
    model : Model
        A prismatic joint, ``cart``, and a revolute joint, ``pole``; the frame ``tip`` is at the end of the pole.

    Raises
    ------
    ArgumentError
        A mass or the length is not positive, or the damping is negative.

    Examples
    --------
    A push of 1 N moves the cart and lets the pole lag behind:

    >>> import torsor as ts
    >>> print(ts.forward_dynamics(ts.zoo.cart_pole(), [0.0, 0.0], [0.0, 0.0], [1.0, 0.0]).round(3))
    [0.976 1.463]
    """
    number("cart, the mass of the cart,", cart, above=0)
    edge = 0.2 * number("length", length, above=0)
    builder = Model.builder("cart_pole")
    builder.add("cart", joint="prismatic", axis=(1, 0, 0), mass=cart, inertia=[cart * edge**2 / 6] * 3, damping=damping)
    builder.add("pole", "cart", axis=(0, 1, 0), **_rod(length, pole), damping=damping)
    return builder.frame("tip", "pole", p=(0, 0, -length)).build()


def _rods(name: str, lengths: tuple[float, ...], masses: tuple[float, ...], damping: float) -> Model:
    """Rods below each other, connected by hinges about y."""
    number("damping", damping, least=0)
    builder, p, parent = Model.builder(name), 0.0, None
    for k, (length, mass) in enumerate(zip(lengths, masses), 1):
        builder.add(f"link{k}", parent, axis=(0, 1, 0), p=(0, 0, -p), **_rod(length, mass), damping=damping)
        p, parent = length, f"link{k}"
    return builder.frame("tip", parent, p=(0, 0, -p)).build()


def _rod(length: float, mass: float) -> dict[str, Any]:
    """The mass properties of a uniform rod from the joint downwards."""
    length, mass = number("length", length, above=0), number("mass", mass, above=0)
    radius = RADIUS * length
    across, along = mass * length**2 / 12, mass * radius**2 / 2
    return dict(mass=mass, com=(0, 0, -length / 2), inertia=(across, across, along))
