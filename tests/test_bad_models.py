"""Models that cannot be: each is refused with the right error, and the message names the offender."""

import numpy as np
import pytest

from torsor import zoo
from torsor.errors import ArgumentError, ModelError
from torsor.model import Model

BALL = {"mass": 1.0, "inertia": (0.1, 0.1, 0.1)}
INF, NAN = np.inf, np.nan


def chain_with(key, value, body=1, n=3, **options):
    """A sound chain of three links, but for one value of one body."""
    sound = {"axis": (0, 0, 1), "R": np.eye(3), "p": (0, 0, 0), "com": (0, 0, 0), "pitch": 0.0}
    sound |= {"mass": 1.0, "inertia": np.diag([0.1, 0.1, 0.1])}
    column = np.array([sound[key]] * n, dtype=float)
    column[body] = value
    rest = BALL if key not in BALL else {k: v for k, v in BALL.items() if k != key}
    return lambda: Model.chain(**rest, **{key: column}, **options)


def two(**second):
    """Two bodies from the builder, the second as given."""
    body = {"name": "second", "parent": "first"} | BALL | second
    return lambda: Model.builder().add("first", **BALL).add(**body).build()


def raw(**changes):
    """The constructor itself, on the arrays of a sound chain with some changed."""
    sound = zoo.random_chain(3, 0)
    fields = ("parent", "joint", "axis", "pitch", "R", "p", "mass", "com", "inertia")
    return lambda: Model(**{key: getattr(sound, key) for key in fields} | changes)


ROTATION = zoo.random_chain(1, 0).R[0]

BAD_MODELS = {
    # trees
    "a body is its own parent": (lambda: Model.tree([-1, 1], **BALL), ModelError, "'link2' .*its own parent"),
    "two bodies hang on each other": (
        lambda: Model.tree([-1, 2, 1], names=["a", "b", "c"], **BALL),
        ModelError,
        "'[bc]' -> '[bc]' .*cycle",
    ),
    "a long cycle": (lambda: Model.tree([*range(1, 9), 0], **BALL), ModelError, r"-> \.\.\. hang .*cycle"),
    "a parent beyond the last body": (lambda: Model.tree([-1, 7], **BALL), ModelError, "'link2' .*parent 7"),
    "a parent below the base": (lambda: Model.tree([-2, 0], **BALL), ModelError, "'link1' .*parent -2"),
    "parents that are not integers": (
        lambda: Model.tree([-1, 0.5], **BALL),
        ArgumentError,
        "parent .*integers",
    ),
    "a parent never added": (two(parent="ghost"), ModelError, "'second' hangs on 'ghost'"),
    "a cycle in the builder": (
        lambda: Model.builder().add("a", "b", **BALL).add("b", "a", **BALL).build(),
        ModelError,
        "'a'.*cycle",
    ),
    "bodies before their parents, unsorted": (
        raw(parent=[1, -1, 0]),
        ModelError,
        "'link1' .*comes before its parent 'link2'",
    ),
    "no bodies": (lambda: Model.builder().build(), ModelError, "at least one body"),
    "nothing that moves": (lambda: Model.chain("fixed", **BALL), ModelError, "at least one body that moves"),
    "n = 0": (lambda: Model.chain(n=0, **BALL), ArgumentError, "at least one body; n is given for 0"),
    "half a body": (lambda: Model.chain(n=2.5, **BALL), ArgumentError, r"n must be an integer, not 2\.5"),
    # names
    "a name twice": (lambda: Model.chain(names=["a", "a"], **BALL), ModelError, "'a' is given twice"),
    "a body added twice": (two(name="first"), ModelError, "body 'first' is there already"),
    "a frame named like a body": (
        lambda: Model.builder().add("arm", **BALL).frame("arm", "arm"),
        ModelError,
        "frame 'arm' is there already",
    ),
    "a frame named like a numbered link": (
        lambda: zoo.rope(5).with_frames({"link3": ("link2", np.eye(3), (0, 0, 0))}),
        ModelError,
        "'link3' .*twice",
    ),
    "an empty name": (lambda: Model.chain(names=["a", ""], **BALL), ModelError, "name 1 is ''"),
    "a name that is no word": (lambda: Model.chain(names=["a", 2], **BALL), ModelError, "name 1 is 2"),
    "too few names": (lambda: Model.chain(n=3, names=["a"], **BALL), ArgumentError, "names for 1|n for 3"),
    "a model without a word for a name": (lambda: Model.chain(name=3, **BALL), ModelError, "string, not 3"),
    # joints
    "an unknown joint": (two(joint="hinge"), ModelError, "'second': unknown joint type 'hinge'.*revolute"),
    "an unknown joint in a list": (
        lambda: Model.chain(["revolute", "ball"], **BALL),
        ModelError,
        "body 1: unknown joint type 'ball'",
    ),
    "a joint code out of range": (raw(joint=[0, 9, 0]), ModelError, "'link2' .*joint code 9"),
    "a zero axis": (chain_with("axis", 0), ModelError, "'link2' .*axis is zero"),
    "an axis that is not a unit vector": (
        raw(axis=np.ones((3, 3))),
        ModelError,
        "'link1' .*not a unit vector",
    ),
    "an infinite axis": (
        chain_with("axis", (0, INF, 0)),
        ModelError,
        "'link2' .*axis holds a NaN or an infinity",
    ),
    "a pitch for a hinge": (chain_with("pitch", 0.1), ModelError, "'link2' .*revolute joint has no pitch"),
    "a NaN pitch": (chain_with("pitch", NAN), ModelError, "'link2' .*pitch holds a NaN"),
    # placements
    "a rotation with six digits": (
        chain_with("R", np.round(ROTATION, 6)),
        ModelError,
        r"'link2' .*not a rotation, \|R'R - 1\| = .*1e-09",
    ),
    "a scaled rotation": (chain_with("R", 2 * np.eye(3)), ModelError, "'link2' .*not a rotation"),
    "a reflection": (chain_with("R", np.diag([1, 1, -1])), ModelError, "'link2' .*reflection"),
    "a NaN in a rotation": (chain_with("R", NAN), ModelError, "'link2' .*R holds a NaN"),
    "an infinite placement": (
        chain_with("p", (INF, 0, 0)),
        ModelError,
        "'link2' .*p holds a NaN or an infinity",
    ),
    # masses
    "a negative mass": (chain_with("mass", -1.0), ModelError, "'link2' .*mass -1.0 is negative"),
    "a NaN mass": (chain_with("mass", NAN), ModelError, "'link2' .*mass holds a NaN"),
    "a massless tip": (two(mass=0.0, inertia=(0, 0, 0)), ModelError, "'second' .*no mass and carries none"),
    "a massless branch": (
        lambda: Model.tree([-1, 0, 1, 0], mass=[1, 0, 0, 1], inertia=np.outer([1, 0, 0, 1], [1, 1, 1])),
        ModelError,
        "'link2' .*no mass and carries none",
    ),
    "inertia without mass": (chain_with("mass", 0.0), ModelError, "'link2' .*inertia or a com but no mass"),
    "a com without mass": (
        two(mass=0.0, inertia=(0, 0, 0), com=(1, 0, 0)),
        ModelError,
        "'second' .*but no mass",
    ),
    "an infinite com": (
        chain_with("com", (0, 0, INF)),
        ModelError,
        "'link2' .*com holds a NaN or an infinity",
    ),
    # inertias
    "a negative moment": (
        chain_with("inertia", np.diag([1, -1, 1])),
        ModelError,
        r"'link2' .*not positive.*-1\.0",
    ),
    "an indefinite tensor": (
        chain_with("inertia", [[1, 2, 0], [2, 1, 0], [0, 0, 1]]),
        ModelError,
        r"'link2' .*not positive",
    ),
    "a broken triangle inequality": (
        chain_with("inertia", np.diag([1, 1, 3])),
        ModelError,
        r"'link2' .*\[1\.0, 1\.0, 3\.0\] break the triangle",
    ),
    "a broken triangle inequality in tilted axes": (
        chain_with("inertia", ROTATION @ np.diag([1, 1, 2.01]) @ ROTATION.T),
        ModelError,
        "'link2' .*triangle",
    ),
    "a broken triangle inequality of a rod": (
        chain_with("inertia", np.diag([1, 1.1, 0]), allow_degenerate=True),
        ModelError,
        "'link2' .*triangle",
    ),
    "a skew tensor": (
        chain_with("inertia", [[1, 0.1, 0], [0, 1, 0], [0, 0, 1]]),
        ModelError,
        "'link2' .*not symmetric",
    ),
    "a point mass unasked": (chain_with("inertia", 0), ModelError, "'link2' .*singular.*allow_degenerate"),
    "a rod unasked": (
        chain_with("inertia", np.diag([1, 1, 0])),
        ModelError,
        "'link2' .*singular.*allow_degenerate",
    ),
    "no inertia at all": (lambda: Model.chain(mass=1.0), ModelError, "'link1' .*singular"),
    "a NaN inertia": (chain_with("inertia", NAN), ModelError, "'link2' .*inertia holds a NaN"),
    "moments of a fixed body": (
        two(joint="fixed", inertia=(1, 1, 3)),
        ModelError,
        "'second' .*break the triangle inequality",
    ),
    # frames and gravity
    "a frame on nothing": (
        lambda: Model.builder().add("arm", **BALL).frame("tip", "leg").build(),
        ModelError,
        "'tip': .*'leg'",
    ),
    "a frame beyond the last body": (
        raw(frames={"tip": (3, np.eye(3), np.zeros(3))}),
        ModelError,
        "'tip' sits on body 3",
    ),
    "a skew frame": (
        raw(frames={"tip": (0, np.ones((3, 3)), np.zeros(3))}),
        ModelError,
        "'tip': R is not a rotation",
    ),
    "a frame at infinity": (
        raw(frames={"tip": (0, np.eye(3), [0, 0, INF])}),
        ModelError,
        "'tip': .*infinity",
    ),
    "a frame of the wrong shape": (
        raw(frames={"tip": (0, np.eye(3), [0, 0])}),
        ModelError,
        r"'tip': .*\(2,\)",
    ),
    "gravity of two numbers": (
        lambda: Model.chain(gravity=(0, -9.81), **BALL),
        ModelError,
        "gravity must be three",
    ),
    "gravity NaN": (
        lambda: Model.chain(gravity=(0, 0, NAN), **BALL),
        ModelError,
        "gravity must be three finite",
    ),
    # shapes and types
    "a ragged list": (
        lambda: Model.chain(p=[[0, 0, 1], [0, 1]], **BALL),
        ArgumentError,
        "p must be .*ragged",
    ),
    "a p of two numbers": (
        lambda: Model.chain(p=(0, 1), **BALL),
        ArgumentError,
        r"p must have shape \(3,\) .*\(2,\)",
    ),
    "an R of nine numbers": (
        lambda: Model.chain(R=range(9), **BALL),
        ArgumentError,
        r"R must have shape \(3, 3\)",
    ),
    "three bodies and three rows of moments": (
        lambda: Model.chain(n=3, mass=1.0, inertia=[[3.0, 2.0, 2.0], [2.0, 3.0, 2.0], [2.0, 2.0, 3.0]]),
        ArgumentError,
        r"inertia of shape \(3, 3\) is one tensor for all bodies, but its rows look like",
    ),
    "the same by a DH table": (
        lambda: Model.from_dh(a=[1.0, 1.0, 1.0], mass=1.0, inertia=np.full((3, 3), 0.1)),
        ArgumentError,
        r"give three tensors, \[np.diag\(row\) for row in inertia\]",
    ),
    "words for numbers": (
        lambda: Model.chain(mass="1", inertia=(1, 1, 1)),
        ArgumentError,
        "mass must be numbers",
    ),
    "truth for a mass": (
        lambda: Model.chain(mass=True, inertia=(1, 1, 1)),
        ArgumentError,
        "mass must be .*bool",
    ),
    "complex numbers": (
        lambda: Model.chain(p=(0, 0, 1j), **BALL),
        ArgumentError,
        "p must be numbers.*complex",
    ),
    "lengths that disagree": (
        lambda: Model.chain(p=np.zeros((3, 3)), mass=np.ones(2), inertia=(1, 1, 1)),
        ArgumentError,
        "p is given for 3 bodies, mass for 2",
    ),
    "parents that disagree with n": (
        lambda: Model.tree([-1, 0], n=3, **BALL),
        ArgumentError,
        "parent .*2 .*n for 3",
    ),
    "a list for one body": (
        two(p=np.zeros((2, 3))),
        ArgumentError,
        r"'second': p must be numbers of shape \(3,\)",
    ),
    "arrays of the wrong length": (raw(mass=np.ones(2)), ModelError, r"mass must have shape \(3,\) .*\(2,\)"),
    "arrays of words": (raw(mass=["a", "b", "c"]), ArgumentError, "mass must be numbers"),
    "fractional parents": (raw(parent=[-1.0, 0.0, 1.0]), ArgumentError, "parent must hold integers"),
}


@pytest.mark.parametrize("what", BAD_MODELS)
def test_it_is_refused_by_name(what):
    make, error, message = BAD_MODELS[what]
    with pytest.raises(error, match=message) as caught:
        make()
    assert type(caught.value) is error


GOOD_MODELS = {
    "a massless body that carries mass": lambda: Model.chain(mass=[0, 1], inertia=[(0, 0, 0), (1, 1, 1)]),
    "point masses, asked for": lambda: Model.chain(n=2, mass=1, com=(1, 0, 0), allow_degenerate=True),
    "rods, asked for": lambda: Model.chain(mass=1, inertia=(1, 1, 0), allow_degenerate=True),
    "a flat plate, which meets the triangle inequality with equality": lambda: Model.chain(
        mass=1, inertia=(0.1, 0.2, 0.1 + 0.2)
    ),
    "a tilted flat plate": lambda: Model.chain(mass=1, inertia=ROTATION @ np.diag([0.1, 0.2, 0.3]) @ ROTATION.T),
    "a tilted rod": lambda: Model.chain(
        mass=1, inertia=ROTATION @ np.diag([0.0, 0.2, 0.2]) @ ROTATION.T, allow_degenerate=True
    ),
    "a rotation with twelve digits": lambda: Model.chain(R=np.round(ROTATION, 12), **BALL),
    "three bodies of one tensor whose rows are no moments": lambda: Model.chain(
        n=3, mass=1, inertia=ROTATION @ np.diag([0.1, 0.2, 0.25]) @ ROTATION.T
    ),
    "a body as small as a molecule": lambda: Model.chain(mass=1e-26, inertia=(1e-46, 1e-46, 1e-46)),
}


@pytest.mark.parametrize("what", GOOD_MODELS)
def test_it_is_accepted(what):
    GOOD_MODELS[what]()
