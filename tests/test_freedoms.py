"""What joints do by themselves and what they may do: numbers per freedom, in models and in files."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

import torsor as ts
from torsor import ArgumentError, Model, ModelError
from torsor.model.freedoms import DEFAULTS, nondefault
from torsor.model.joints import JOINTS

SOLID = {"mass": 1.0, "inertia": (1.0, 1.0, 1.0)}


def drawn(model: Model, seed: int = 0) -> Model:
    """The model with random numbers for everything."""
    rng = np.random.default_rng(seed)
    numbers = {key: rng.uniform(size=model.nv) for key in DEFAULTS}
    free = np.concatenate([np.array(JOINTS[code].limited) < 0 for code in model.joint])
    numbers["lower"] = np.where(free, -np.inf, -numbers["lower"])
    numbers["upper"] = np.where(free, np.inf, numbers["upper"])
    return replace(model, **numbers)


EVERY_JOINT = Model.chain([joint.name for joint in JOINTS], **SOLID)


def test_without_a_word_everything_is_usual():
    assert nondefault(EVERY_JOINT) == {}
    assert EVERY_JOINT.damping.shape == EVERY_JOINT.upper.shape == (EVERY_JOINT.nv,)
    assert not EVERY_JOINT.damping.flags.writeable


@pytest.mark.parametrize("model", [EVERY_JOINT, ts.zoo.rope(1500)], ids=["tables", "columns"])
@pytest.mark.parametrize("suffix", ["toml", "torsor"])
def test_files_bring_back_every_number(model, suffix, tmp_path):
    given = drawn(model)
    ts.save(given, tmp_path / f"model.{suffix}")
    read = ts.load(tmp_path / f"model.{suffix}")
    assert read == given
    assert all(np.array_equal(getattr(read, key), getattr(given, key)) for key in DEFAULTS)
    assert pickle.loads(pickle.dumps(given)) == given != model


def test_numbers_stay_with_their_bodies():
    """Bodies are sorted after their parents, and fixed ones disappear; their freedoms go with them."""
    joints = ["fixed", "cylindrical", "prismatic", "revolute"]
    model = Model.tree([1, -1, 0, 2], joints, names=["tool", "first", "second", "third"], damping=[1, 2, 3, 4], **SOLID)
    assert model.names == ("first", "second", "third")
    assert model.damping.tolist() == [1, 2, 3, 4]
    builder = Model.builder()
    builder.add("third", "second", "revolute", damping=4, **SOLID)
    builder.add("second", "tool", "prismatic", damping=3, **SOLID)
    builder.add("tool", "first", "fixed", **SOLID)
    builder.add("first", None, "cylindrical", damping=(1, 2), rest=(0.1, 0.2), **SOLID)
    built = builder.build()
    assert built.names == model.names
    assert built.damping.tolist() == [1, 2, 3, 4]
    assert built.rest.tolist() == [0.1, 0.2, 0, 0]


def test_usual_values_fit_other_joints():
    planar = replace(EVERY_JOINT, joint=np.full(EVERY_JOINT.n, 5), pitch=np.zeros(EVERY_JOINT.n))
    assert planar.damping.shape == (planar.nv,)
    with pytest.raises(ArgumentError, match="damping must be one number, or"):
        replace(drawn(EVERY_JOINT), joint=planar.joint, pitch=planar.pitch)


def test_the_armature_makes_another_machine():
    heavier, damped = replace(EVERY_JOINT, armature=0.1), replace(EVERY_JOINT, damping=0.1)
    assert heavier.key != EVERY_JOINT.key == damped.key
    assert damped != EVERY_JOINT


@pytest.mark.parametrize(
    ("joint", "numbers", "message"),
    [
        ("revolute", {"damping": -1}, "body 'link1' .*damping = -1.0; it must not be negative"),
        ("revolute", {"armature": [0, np.nan]}, "body 'link2' .*armature = nan; it must be finite"),
        ("revolute", {"lower": [0, 3], "upper": 2}, "body 'link2' .*lower = 3.0; it exceeds upper"),
        ("revolute", {"effort": np.nan}, "effort = nan"),
        ("revolute", {"rest": np.inf}, "rest = inf"),
        ("spherical", {"upper": 3}, "body 'link1' .*limits mean nothing"),
        ("revolute", {"speed": [1, 2, 3]}, r"speed must be one number, or one for each of 2 freedoms, not \(3,\)"),
        ("revolute", {"speed": "fast"}, "speed must be numbers"),
    ],
)  # fmt: skip
def test_impossible_numbers_are_refused(joint, numbers, message):
    with pytest.raises((ModelError, ArgumentError), match=message):
        Model.chain(joint, n=2, **SOLID, **numbers)


def test_the_builder_names_the_body():
    with pytest.raises(ArgumentError, match=r"body 'a': damping = .*a fixed joint has 0 freedoms"):
        Model.builder().add("a", None, "fixed", damping=1, **SOLID)
    with pytest.raises(ArgumentError, match=r"body 'a': rest = .*a free joint has 6 freedoms"):
        Model.builder().add("a", None, "free", rest=(1, 2), **SOLID)
    with pytest.raises(TypeError, match="unexpected keyword argument 'dampings'"):
        Model.builder().add("a", dampings=1, **SOLID)


def test_unusual_joints_are_described(tmp_path, capsys):
    from torsor.cli import main

    ts.save(Model.chain(n=2, lower=[-1, -np.inf], damping=[0, 0.5], **SOLID), tmp_path / "arm.toml")
    assert main(["info", str(tmp_path / "arm.toml")]) == 0
    shown = capsys.readouterr().out
    assert "lower -1" in shown
    assert "damping 0.5" in shown
