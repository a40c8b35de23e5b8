"""Files of models: every form gives back the same bits, large models are read in seconds, damage is refused."""

import time

import numpy as np
import pytest

import torsor as ts
from torsor import Model, load, zoo
from torsor.errors import ModelError
from torsor.formats import binary, toml
from torsor.model.names import NumberedNames

FIELDS = ("parent", "joint", "axis", "pitch", "R", "p", "mass", "com", "inertia", "gravity")
BALL = {"mass": 1.0, "inertia": (1.0, 1.0, 1.0)}
SECONDS = 6.0  # 2 on a quiet machine; by tables it took 43


def same_bits(a, b):
    """Equal models, down to the sign of zero in every array, those of the frames too."""
    frames = all(
        x.body == y.body and x.R.tobytes() == y.R.tobytes() and x.p.tobytes() == y.p.tobytes()
        for x, y in zip(a.frames.values(), b.frames.values())
    )
    return a == b and frames and all(getattr(a, key).tobytes() == getattr(b, key).tobytes() for key in FIELDS)


def negative_zeros():
    """A minus before every zero that may have one; the tensor is symmetric but for the signs of its zeros."""
    I = np.array([[1.0, -0.0, 0.0], [0.0, 1.0, -0.0], [-0.0, -0.0, 1.0]])
    R = np.array([[1.0, -0.0, 0.0], [-0.0, 1.0, 0.0], [0.0, -0.0, 1.0]])
    model = Model.chain(
        "helical", axis=(-0.0, 0.0, 1.0), pitch=-0.0, R=R, p=(-0.0, 0.0, 1.0), mass=1.0, com=(0.0, -0.0, 0.0),
        inertia=I, gravity=(-0.0, 0.0, -0.0),
    )  # fmt: skip
    return model.with_frames({"tip": ("link1", R, (-0.0, 0.0, 0.0)), "base": (None, R, (-0.0, 1.0, 0.0))})


MODELS = {
    "humanoid": zoo.humanoid,
    "tree": lambda: zoo.random_tree(25, 3),
    "DH": lambda: zoo.polypeptide_faithful(8),
    "negative zeros": negative_zeros,
    "odd names": lambda: (
        Model.builder("a\n'''b").add("\t'", **BALL).add('ä "', "\t'", **BALL).frame("f.g", None).build()
    ),
    "one body": lambda: Model.chain(**BALL),
}
FORMS = {"tables": toml, "columns": toml, "binary": binary}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_every_form_gives_back_the_same_bits(name, form, monkeypatch):
    if form == "columns":
        monkeypatch.setattr(toml, "MOST_TABLES", 0)
    model = MODELS[name]()
    content = FORMS[form].encode(model)
    assert (b"[bodies]" in content) == (form == "columns")
    again = FORMS[form].decode(content, "file")
    assert same_bits(again, model)
    assert isinstance(again.names, NumberedNames) == (isinstance(model.names, NumberedNames) and form != "tables")


@pytest.mark.parametrize("suffix", [".toml", ".torsor"])
@pytest.mark.parametrize("family", ["random_tree", "rope"])
def test_a_hundred_thousand_bodies_take_seconds(family, suffix, tmp_path):
    model = zoo.get(family, 100_000)
    began = time.process_time()
    ts.save(model, tmp_path / f"model{suffix}")
    saved = time.process_time()
    again = load(tmp_path / f"model{suffix}")
    assert time.process_time() - saved < SECONDS
    assert saved - began < SECONDS
    assert same_bits(again, model)


def test_equal_rows_are_written_once(tmp_path):
    ts.save(zoo.rope(100_000), tmp_path / "rope.torsor")
    assert (tmp_path / "rope.torsor").stat().st_size < 100_000 * (8 + 24) + 1000  # parent and p


def test_columns_written_by_hand_are_the_model_they_describe():
    text = """
    [bodies]
    parent = "-1 0 0"
    joint = ["revolute", "prismatic", "fixed"]
    p = '''
      0 0 0
      1 0 0
      0 2 0   # a comment
    '''
    mass = [1, 2, 3]
    inertia = "1 1 1"
    [frames]
    names = '''
      tip
      eye
    '''
    body = ["link2", ""]
    p = "0 0 1"
    """
    places = [(0, 0, 0), (1, 0, 0), (0, 2, 0)]
    model = Model.tree([-1, 0, 0], ["revolute", "prismatic", "fixed"], p=places, mass=[1, 2, 3], inertia=(1, 1, 1))
    frames = {"tip": ("link2", np.eye(3), (0, 0, 1)), "eye": (None, np.eye(3), (0, 0, 1))}
    assert toml.read(text, "text") == model.with_frames(frames)


COLUMNS = '[bodies]\nparent = "-1 0"\nmass = 1\ninertia = [1, 1, 1]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * 10_000, "nested too deeply"),
        ("a = " + "{a=" * 10_000, "nested too deeply"),
        ("a = " + "7" * 5_000, "digits"),
        ("gravity = [[1], [1, 2], 3]\n" + COLUMNS, "gravity"),
        ("gravity = [0, 0, 1" + "0" * 400 + "]\n" + COLUMNS, "gravity"),
        (COLUMNS.replace("-1 0", "-1 x"), "parent"),
        (COLUMNS.replace("-1 0", "-1 " + "9" * 30), "parent"),
        (COLUMNS.replace('parent = "-1 0"', ""), "parent"),
        (COLUMNS + 'p = "0 0"', "p needs 3 numbers"),
        (COLUMNS + "p = '''\n0 0 0\n0 0\n'''", "p: .*column"),
        (COLUMNS + "p = '''\n0 0 0\n0 0 0\n0 0 0\n'''", "p is given for 3"),
        (COLUMNS + 'p = "0 0 x"', "p: "),
        (COLUMNS + 'p = ""', "p holds no numbers"),
        (COLUMNS + 'names = ["a"]', "names"),
        (COLUMNS + "names = [1, 2]", "name 0 is 1"),
        (COLUMNS + "weight = 3", r"\[bodies\]: unknown key 'weight'"),
        (COLUMNS + '[frames]\nnames = ["a", "b"]\nbody = ["link1"]', "body is given for 1"),
        (COLUMNS + '[frames]\nnames = ["a", "a"]\nbody = ["link1", "link1"]', "twice"),
        (COLUMNS + '[frames]\nnames = ["a"]\nbody = ["leg"]', "'leg'"),
        (COLUMNS + "[[frame]]\nname = 3", "frame 0 has no name"),
        (COLUMNS + "[dh]\nlink = []", "either by"),
    ],
)
def test_malformed_texts_are_refused_by_name(text, message, tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=r"bad\.toml: (.|\n)*" + message):
        load(path)


def test_text_that_is_not_utf_8_is_refused(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(ModelError, match=r"bad\.toml: not UTF-8 text: .* at byte 8"):
        load(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"none\.toml: cannot be read"):
        load(tmp_path / "none.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ModelError, match="cannot be read"):
        load(tmp_path / "folder.toml")


@pytest.mark.parametrize("at", [0, 20, 200, -20, -1])
def test_every_flipped_bit_of_a_binary_file_is_noticed(at, tmp_path):
    content = bytearray(binary.encode(zoo.panda()))
    content[at] ^= 4
    path = tmp_path / "arm.torsor"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"arm\.torsor: .*(damaged|not a torsor model)"):
        load(path)
