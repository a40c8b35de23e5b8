"""What a model carries beyond its dynamics, record by record: what is refused, in which words, and what is kept."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

import torsor as ts
from torsor.errors import ModelError
from torsor.model.extras import Actuator, Coupling, Extras, Note, Visual

ARM = ts.Model.chain(["revolute", "spherical", "prismatic"], mass=1.0, inertia=(1.0, 1.0, 1.0), p=(0.0, 0.0, 1.0))
PAIR = Coupling(2, 0, 0.5, 0.1)
BOX = Visual(0, "box", (1.0, 2.0, 3.0))
MOTOR = Actuator("m", ((0, 2.0),))
WHOLE = Extras(
    joint_names=("a", "b", "c"), couplings=(PAIR,), actuators=(MOTOR,), visuals=(BOX, Visual(-1, "sphere", (0.1,))),
    keyframes={"up": (0.1, 1.0, 0.0, 0.0, 0.0, 0.2)}, notes=(Note("read", "m.urdf:3", "as it is"),), units="g, mm, ms",
)  # fmt: skip

NO_RECORDS = {
    "a coupling without a leader": (dict(couplings=({"follower": 1},)), "is no Coupling: .*leader"),
    "a coupling of other words": (dict(couplings=({"follower": 1, "leader": 0, "rate": 2},)), "is no Coupling: .*rate"),
    "an actuator that is a number": (dict(actuators=(3.0,)), "3.0 is no Actuator"),
    "a keyframe of words": (dict(keyframes={"up": ("a",)}), "extras: could not convert"),
    "words that are none": (dict(shapes=()), "extras: .*shapes"),
}  # fmt: skip
UNFIT = {
    "too few names": (Extras(joint_names=("a", "b")), "joint_names must be one name for each of 3 bodies"),
    "an empty name": (Extras(joint_names=("a", "", "c")), "joint_names must be one name for each of 3 bodies"),
    "names twice": (Extras(joint_names=("a", "b", "a")), "two joints have the same name"),
    "two leaders": (Extras(couplings=(PAIR, Coupling(2, 0))), "a joint is the follower of two couplings"),
    "a follower of three freedoms": (Extras(couplings=(Coupling(1, 0),)), "couples body 1, which is no joint of one"),
    "a leader that is not there": (Extras(couplings=(Coupling(2, 3),)), "couples body 3, which is no joint of one"),
    "a leader before the first": (Extras(couplings=(Coupling(2, -1),)), "couples body -1, which is no joint of one"),
    "a leader that follows": (Extras(couplings=(Coupling(2, 0), Coupling(0, 2))), "the leader must be free"),
    "a ratio without end": (Extras(couplings=(Coupling(2, 0, np.inf),)), "ratio and offset finite"),
    "an offset that is none": (Extras(couplings=(Coupling(2, 0, 1.0, np.nan),)), "ratio and offset finite"),
    "a short keyframe": (Extras(keyframes={"up": (0.0, 1.0)}), "keyframe 'up' must be 6 finite numbers"),
    "a keyframe without end": (Extras(keyframes={"up": (0, 1, 0, 0, 0, np.inf)}), "keyframe 'up' must be 6 finite"),
    "a drive of no freedom": (Extras(actuators=(Actuator("m", ((5, 1.0),)),)), "do not fit"),
    "a drive before the first": (Extras(actuators=(Actuator("m", ((-1, 1.0),)),)), "do not fit"),
    "a drive without a ratio": (Extras(actuators=(Actuator("m", ((0,),)),)), "do not fit"),
    "a drive with half a bias": (Extras(actuators=(MOTOR._replace(bias=(1.0, 2.0)),)), "do not fit"),
    "a drive with one limit": (Extras(actuators=(MOTOR._replace(control=(1.0,)),)), "do not fit"),
    "a drive that gains nothing": (Extras(actuators=(MOTOR._replace(gain=np.nan),)), "do not fit"),
    "a drive called 3": (Extras(actuators=(MOTOR._replace(name=3),)), "do not fit"),
    "a shape that is none": (Extras(visuals=(BOX._replace(shape="cone"),)), "do not fit"),
    "a box of two sides": (Extras(visuals=(BOX._replace(size=(1.0, 2.0)),)), "do not fit"),
    "a box on no body": (Extras(visuals=(BOX._replace(body=3),)), "do not fit"),
    "a box below the base": (Extras(visuals=(BOX._replace(body=-2),)), "do not fit"),
    "a box of two rows": (Extras(visuals=(BOX._replace(R=((1.0, 0.0, 0.0),) * 2),)), "do not fit"),
    "a colour without opacity": (Extras(visuals=(BOX._replace(color=(1.0, 1.0, 1.0)),)), "do not fit"),
    "a note of numbers": (Extras(notes=(Note("read", "here", 3),)), "do not fit"),
    "no character": (Extras(joint_names=("a", "b", "\ud800")), "lone surrogate"),
    "no extras": ({"joint_names": ()}, "extras must be an Extras"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_RECORDS)
def test_what_is_no_record_is_refused(name):
    given, words = NO_RECORDS[name]
    with pytest.raises(ModelError, match=words):
        Extras.of(given)


@pytest.mark.parametrize("name", UNFIT)
def test_records_that_do_not_fit_the_model_are_refused(name):
    extras, words = UNFIT[name]
    for attempt in (lambda: replace(ARM, extras=extras), lambda: ARM.with_extras(extras)):
        with pytest.raises(ModelError, match=words):
            attempt()


def test_extras_come_back_from_plain_data_pickles_and_files(tmp_path):
    model = ARM.with_extras(WHOLE)
    assert Extras.of(WHOLE.plain()) == WHOLE
    assert pickle.loads(pickle.dumps(WHOLE)) == WHOLE
    for suffix in (".toml", ".torsor"):
        ts.save(model, tmp_path / f"m{suffix}")
        again = ts.load(tmp_path / f"m{suffix}")
        assert again == model
        assert again.extras == WHOLE
    assert not Extras()
    assert all(Extras(**{key: getattr(WHOLE, key)}) for key in WHOLE.plain())


def test_other_extras_share_all_but_what_couplings_change():
    """A machine whose joints follow others is another one, also where its key was known before."""
    key = ARM.key
    named = ARM.with_extras(Extras(joint_names=("a", "b", "c")))
    assert named.key == key
    assert list(named.joint_names) == ["a", "b", "c"]
    assert named.mass is ARM.mass
    assert ARM.with_extras(WHOLE).key == replace(ARM, extras=WHOLE).key != key
    assert ARM.with_extras(WHOLE).with_extras(Extras()).key == key
    q = ARM.random_configuration(0)
    assert ARM.with_extras(WHOLE).coupled(q)[-1] == 0.5 * q[0] + 0.1


def test_axes_that_no_joint_uses_do_not_make_models_differ():
    joints, links = ["spherical", "free", "planar", "revolute"], dict(mass=1.0, inertia=(1.0, 1.0, 1.0))
    axes = np.array([(1.0, 0, 0), (0, 1.0, 0), (0, 0, 1.0), (0, 1.0, 0)])
    model = ts.Model.chain(joints, axis=axes, **links)
    assert model.axis.tolist() == [[0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 1, 0]]
    assert ts.Model.chain(joints, axis=[(0, 0, 1.0)] * 3 + [(0, 1.0, 0)], **links).key == model.key


@pytest.mark.parametrize("suffix", [".toml", ".torsor", ".urdf", ".xml"])
def test_signs_of_zeros_change_nothing(tmp_path, suffix):
    """Axes, places and rotations with -0.0, as right angles have them: equal models, equal numbers, also from files."""
    turned = np.array([[-0.0, -1.0, 0.0], [1.0, -0.0, -0.0], [0.0, 0.0, 1.0]])
    links = dict(n=2, mass=1.0, inertia=(1.0, 1.0, 1.0), names=["a", "b"])
    signed = ts.Model.chain(R=turned, p=(-0.0, 0.2, -0.0), axis=(-0.0, 1.0, -0.0), com=(-0.0, 0.1, 0.3), **links)
    plain = ts.Model.chain(R=turned + 0.0, p=(0, 0.2, 0), axis=(0, 1.0, 0), com=(0, 0.1, 0.3), **links)
    assert signed == plain
    q, v = np.array([0.3, -0.7]), np.array([1.0, 2.0])
    ts.save(signed, tmp_path / f"m{suffix}")
    again = ts.load(tmp_path / f"m{suffix}")
    for model in (signed, again):
        np.testing.assert_allclose(ts.bias_forces(model, q, v), ts.bias_forces(plain, q, v), rtol=1e-14)
