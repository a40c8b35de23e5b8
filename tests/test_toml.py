"""TOML: what is written reads back bit for bit, and what people write by hand is understood."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torsor as ts
from torsor import zoo
from torsor.errors import ArgumentError, ModelError
from torsor.formats import load, save, toml
from torsor.model import Model

# Any text but lone surrogates, which UTF-8 cannot hold.
WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
POSITIVE = st.floats(1e-300, 1e300)
NUMBERS = st.floats(-1e300, 1e300)


def same_bits(a, b):
    """Equal models, down to the sign of zero in every array."""
    fields = ("parent", "joint", "axis", "pitch", "R", "p", "mass", "com", "inertia", "gravity")
    return a == b and all(getattr(a, key).tobytes() == getattr(b, key).tobytes() for key in fields)


@pytest.mark.parametrize("seed", range(5))
def test_random_trees_come_back_bit_for_bit(seed):
    model = zoo.random_tree(25, seed)
    assert same_bits(toml.read(toml.write(model), "text"), model)


@settings(max_examples=200, deadline=None)
@given(p=st.tuples(NUMBERS, NUMBERS, NUMBERS), axis=st.tuples(NUMBERS, NUMBERS, NUMBERS), mass=POSITIVE)
def test_any_number_comes_back_bit_for_bit(p, axis, mass):
    if not np.any(np.abs(axis) > 1e-150):  # the square of a smaller one is zero
        axis = (0.0, 0.0, 1.0)
    axis = np.divide(axis, np.max(np.abs(axis)))
    model = Model.chain(axis=axis, p=p, mass=mass, com=p, allow_degenerate=True)
    assert same_bits(toml.read(toml.write(model), "text"), model)


@settings(deadline=None)
@given(names=st.lists(WORDS, min_size=3, max_size=3, unique=True))
def test_any_name_comes_back(names):
    body, frame, name = names
    builder = Model.builder(name).add(body, mass=1.0, inertia=(1, 1, 1)).frame(frame, body)
    model = builder.build()
    assert toml.read(toml.write(model), "text") == model


def test_negative_zero_comes_back():
    half_turn = np.array([[-1.0, -0.0, 0.0], [0.0, -1.0, -0.0], [-0.0, 0.0, 1.0]])
    model = Model.chain(R=half_turn, p=(-0.0, 0.0, -0.0), mass=1.0, inertia=(1, 1, 1))
    assert same_bits(toml.read(toml.write(model), "text"), model)


def test_files_round_trip(tmp_path):
    model = zoo.humanoid()
    ts.save(model, tmp_path / "humanoid.toml")
    assert load(tmp_path / "humanoid.toml") == model
    assert load(str(tmp_path / "humanoid.toml")) == model


def test_merged_bodies_come_back_as_frames(tmp_path):
    model = (
        Model.builder("arm")
        .add("upper", mass=1.0, inertia=(1, 1, 1))
        .add("plate", "upper", "fixed", p=(0, 0, 1), mass=0.5, inertia=(1, 1, 1))
        .frame("camera", None, p=(1, 2, 3))
        .build()
    )
    again = toml.read(toml.write(model), "text")
    assert again == model
    assert again.frame("camera").body == -1


HAND_WRITTEN = """
name = "arm"

[[body]]
name = "lower"                     # before its parent
parent = "upper"
p = [0.4, 0, 0]                    # integers are numbers
mass = 1
inertia = [0.01, 0.001, 0, 0.02, 0, 0.02]

[[body]]
name = "upper"
axis = [0, 2, 0]                   # normalised
mass = 2.0
com = [0.2, 0.0, 0.0]
inertia = [0.01, 0.03, 0.03]

[[body]]
name = "screw"
parent = "lower"
joint = "helical"
pitch = 0.01
R = [[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
mass = 0.1
inertia = [[0.01, 0.0, 0.0], [0.0, 0.01, 0.0], [0.0, 0.0, 0.01]]

[[body]]
name = "tool"
parent = "screw"
joint = "fixed"
p = [0.0, 0.0, 0.1]

[[frame]]
name = "tip"
body = "tool"
p = [0.0, 0.0, 0.05]
"""


def test_a_hand_written_file_is_the_model_it_describes():
    turned = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]
    builder = Model.builder("arm")
    tensor = [[0.01, 0.001, 0], [0.001, 0.02, 0], [0, 0, 0.02]]
    builder.add("lower", "upper", p=(0.4, 0, 0), mass=1, inertia=tensor)
    builder.add("upper", axis=(0, 1, 0), mass=2, com=(0.2, 0, 0), inertia=(0.01, 0.03, 0.03))
    builder.add("screw", "lower", "helical", pitch=0.01, R=turned, mass=0.1, inertia=(0.01, 0.01, 0.01))
    builder.add("tool", "screw", "fixed", p=(0, 0, 0.1)).frame("tip", "tool", p=(0, 0, 0.05))
    assert toml.read(HAND_WRITTEN, "text") == builder.build()


def test_a_dh_table_is_the_model_of_from_dh():
    text = """
    name = "scara"
    gravity = [0.0, 0.0, -1.62]
    [dh]
    convention = "standard"
    degrees = true
    link = [
      { name = "one", a = 0.3, theta = 30, mass = 1, r = [0.1, 0, 0], inertia = [1, 1, 1] },
      { name = "two", a = 0.2, alpha = 180, mass = 1, inertia = [1, 0.1, 0, 1, 0, 1] },
      { name = "three", variable = "d", mass = 1, inertia = [1, 1, 1] },
    ]
    [[frame]]
    name = "tip"
    body = "three"
    p = [0, 0, 0.1]
    """
    tensor = [[1, 0.1, 0], [0.1, 1, 0], [0, 0, 1]]
    expected = Model.from_dh(
        convention="standard",
        degrees=True,
        a=[0.3, 0.2, 0],
        alpha=[0, 180, 0],
        theta=[30, 0, 0],
        variable=["theta", "theta", "d"],
        mass=1,
        r=[[0.1, 0, 0], [0, 0, 0], [0, 0, 0]],
        inertia=[np.eye(3), tensor, np.eye(3)],
        names=["one", "two", "three"],
        name="scara",
        gravity=(0, 0, -1.62),
    ).with_frames({"tip": ("three", np.eye(3), (0, 0, 0.1))})
    assert toml.read(text, "text") == expected


def test_unknown_suffix_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"arm\.json: unknown suffix.*\.toml"):
        load(tmp_path / "arm.json")
    with pytest.raises(ArgumentError, match=r"arm: unknown suffix"):
        save(zoo.panda(), tmp_path / "arm")


BODY = '[[body]]\nname = "arm"\nmass = 1\ninertia = [1, 1, 1]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "Invalid value"),
        ("", "either by .*body.* or by one .*dh"),
        (BODY + "[dh]\nlink = []", "either by"),
        ("weight = 3\n" + BODY, "the model: unknown key 'weight'; torsor knows name, gravity"),
        (BODY + "masss = 3", "body 'arm': unknown key 'masss'"),
        (BODY + 'com = "middle"', "body 'arm': com = 'middle' has the wrong type"),
        (BODY + "com = [0, 0]", r"body 'arm': com must be numbers of shape \(3,\)"),
        (BODY + 'com = [0, 0, "far"]', r"body 'arm': com must be numbers of shape \(3,\)"),
        (BODY + "pitch = true", "body 'arm': pitch = True has the wrong type"),
        (BODY + "parent = 3", "body 'arm': parent = 3 has the wrong type"),
        (BODY + 'parent = "leg"', "body 'arm' hangs on 'leg', which was never added"),
        (BODY + 'joint = "hinge"', "body 'arm': unknown joint type 'hinge'"),
        (BODY + "R = [[1, 0, 0], [0, 1, 0]]", r"body 'arm': R must be numbers of shape \(3, 3\)"),
        (BODY + BODY, "body 'arm' is there twice"),
        (BODY + "[[body]]\nmass = 3", "body 1 has no name"),
        (BODY + "[[frame]]\np = [0, 0, 0]", "frame 0 has no name"),
        (BODY + '[[frame]]\nname = "tip"\nbody = "leg"', "frame 'tip': .*no body or frame named 'leg'"),
        (BODY + '[[frame]]\nname = "tip"\np = [0, 0]', r"frame 'tip': p must be numbers of shape \(3,\)"),
        (BODY + '[[frame]]\nname = "arm"', "'arm'.* twice"),
        ("body = 3", "the model: body = 3 has the wrong type"),
        ("body = [3]", "body 0 has no name"),
        ("gravity = [0, 0]\n" + BODY, "gravity must be three finite numbers"),
        ("[dh]\nlink = [{ name = 'one', beta = 3 }]", "link 'one': unknown key 'beta'"),
        ("[dh]\nlink = [{ name = 'one', a = [1, 2] }]", "link 'one': a must be numbers"),
        ("[dh]\nunit = 'deg'", r"\[dh\]: unknown key 'unit'"),
        ("[dh]\nlink = []", "at least one body"),
        (BODY.replace("mass = 1", "mass = -1"), "'arm'.*mass -1.0 is negative"),
        (BODY.replace("mass = 1", "mass = nan"), "'arm'.*mass holds a NaN"),
    ],
)
def test_malformed_files_name_the_file_and_the_offender(tmp_path, text, message):
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=r"bad\.toml: (.|\n)*" + message):
        load(path)
