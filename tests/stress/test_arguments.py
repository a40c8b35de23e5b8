"""Hostile arguments to whatever makes models, runs them or reads files: a valid result or a TorsorError."""

import inspect
from dataclasses import fields, replace

import numpy as np
import pytest

import torsor as ts
from torsor import Cycloid, Model, Simulation, Table, Trajectory, simulate, zoo
from torsor.errors import TorsorError
from torsor.model.builder import Links
from torsor.model.dh import DHTable
from torsor.motion.motion import Motion

NAN, INF = np.nan, np.inf
MASKED = np.ma.masked_array([1.0, 2.0, 3.0], [False, True, False])


class Evil:
    """An object whose conversions fail in a way of their own."""

    def __array__(self, *_, **__):
        raise RuntimeError("evil")

    def __fspath__(self):
        return 3


# No callables: what a caller's own function raises is the caller's.
HOSTILE = {
    "nothing": None,
    "a word": "x",
    "an empty word": "",
    "bytes": b"x",
    "NaN": NAN,
    "infinity": INF,
    "minus infinity": -INF,
    "minus one": -1,
    "zero": 0,
    "a small number": 1e-300,
    "a large number": 1e150,
    "a larger number": 1e300,
    "an integer of 400 digits": 10**400,
    "2^63": 2**63,
    "2^64": 2**64,
    "a complex number": 1j,
    "truth": True,
    "an empty list": [],
    "an empty tuple": (),
    "a dictionary": {},
    "a dictionary of objects": {"a": object()},
    "a set": set(),
    "two numbers": [1, 2],
    "two large numbers": [1e150, 1e150],
    "two larger numbers": [1e300, -1e300],
    "numbers and a NaN": [NAN, 0.0],
    "a ragged list": [[1], [1, 2]],
    "a deep list": [[[[1]]] * 3],
    "a masked array": MASKED,
    "a list of masked arrays": [MASKED, MASKED],
    "an array of objects": np.array([None, 1]),
    "an array of words": np.array(["a", "b"]),
    "an array of no rows": np.zeros((0, 3)),
    "an array of no columns": np.zeros((3, 0)),
    "an array of four axes": np.zeros((2, 2, 2, 2)),
    "an array of no axes": np.array(5.0),
    "a date": np.datetime64("2020-01-01"),
    "a record": np.zeros(1, dtype=[("a", int), ("b", int)])[0],
    "a long double": np.longdouble("1e4000"),
    "long doubles": [np.longdouble("1e4000")] * 3,
    "a single": np.float32(2),
    "a lone surrogate": "\ud800",
    "a list of a lone surrogate": ["\ud800"],
    "a list in a list of words": ["a", ["b"]],
    "a NUL": "a\0b",
    "an object": object(),
    "a failing conversion": Evil(),
    "a list of one": [Evil()],
}

BALL = {"mass": 1.0, "inertia": (1.0, 1.0, 1.0)}
ARM = zoo.point_chain(2)
CHAIN = zoo.random_chain(3, 0)
PANDA, Q7 = zoo.panda(), np.linspace(0, 1, 7)
MOTION = Cycloid([0, 0], [1, 1], 1.0)
RUN = simulate(ARM, [0.1, 0.2], duration=0.1)
STATE = 0.5, np.zeros(2), np.zeros(2)


def words(*names):
    return dict.fromkeys(names)


def frame(**changes):
    return Model.builder().add("a", **BALL).frame(**{"name": "f", "body": "a"} | changes).build()


def bias(**changes):
    task = ts.operational_space(**{"model": PANDA, "q": Q7, "frames": [6], "v": Q7} | changes)
    return task.inverse_inertia, task.v is not None and task.bias


def of_force(make):
    """The torques of a force at a state, alone and in a batch of them."""

    def torques(**options):
        force = make(**options)
        Motion(ARM, force).felt(*STATE)
        ts.rollout(ARM, *STATE[1:], steps=1, step=1e-3, forces=force)

    return torques


def zero(t, q, v):
    return 0 * v


def run(method, **fixed):
    return lambda **options: Simulation(**{"model": ARM, "method": method} | fixed | options).run(0.02)


# what is called, with arguments that are sound; each of them is made hostile in turn
CALLS = {
    "Model.chain": (Model.chain, BALL | words("joint", *Links.__annotations__) | BALL, ""),
    "Model.tree": (Model.tree, {"parent": [-1, 0], "joint": "revolute", "names": ["a", "b"]} | BALL, ""),
    "Model.from_dh": (Model.from_dh, words(*DHTable.__annotations__) | BALL, ""),
    "Model": (lambda **options: replace(CHAIN, **options), words(*(field.name for field in fields(Model))), ""),
    "Builder": (lambda **options: Model.builder(**options).add("a", **BALL).build(),
                words("name", "gravity", "allow_degenerate"), ""),
    "Builder.add": (lambda **options: Model.builder().add(**{"name": "a"} | BALL | options).build(),
                    words("name", "parent", "joint", "axis", "pitch", "R", "p", "mass", "com", "inertia"), ""),
    "Builder.frame": (frame, words("name", "body", "R", "p"), ""),
    "Model.with_frames": (CHAIN.with_frames, {"frames": {}}, ""),
    "Model.with_frames, a placement": (lambda x: CHAIN.with_frames({"f": x}), {"x": (None, np.eye(3), [0, 0, 0])}, ""),
    "Model.frame": (CHAIN.frame, {"name": "link1"}, ""),
    "Model.random_configuration": (CHAIN.random_configuration, words("rng", "size"), ""),
    "zoo.get": (zoo.get, {"name": "panda"}, ""),
    "zoo.point_chain": (zoo.point_chain, {"n": 3, "mass": 1.0, "length": 1.0}, ""),
    "zoo.rope": (zoo.rope, {"n": 3, "mass": 1.0, "length": 1.0, "radius": 0.01}, ""),
    "zoo.random_tree": (zoo.random_tree, {"n": 3, "seed": 0, "joints": None, "branching": 0.3}, ""),
    "zoo.random_chain": (zoo.random_chain, {"n": 3, "seed": 0, "joints": None}, ""),
    "zoo.general_arm": (zoo.general_arm, {"n": 3, "seed": 0}, ""),
    "zoo.polypeptide_faithful": (zoo.polypeptide_faithful, {"n": 3}, ""),
    "load": (ts.load, {"path": "a.toml"}, ""),
    "save": (lambda path: ts.save(CHAIN, path), {"path": "a.toml"}, ""),
    "Trajectory.load": (Trajectory.load, {"path": "a.traj"}, ""),
    "Simulation.resume": (Simulation.resume, {"path": "a.traj"}, ""),
    "simulate": (simulate, {"model": ARM, "q0": None, "v0": None, "stop": None, "progress": None, "duration": 0.05},
                 "duration"),
    "Simulation.run": (lambda until: Simulation(ARM, method="verlet", step=0.05).run(until), {"until": 0.1}, ""),
    "Simulation.step": (lambda until: Simulation(ARM).step(until), {"until": 0.1}, ""),
    "Simulation, dopri5": (run("dopri5"), words(*inspect.signature(Simulation).parameters), "model method"),
    "Simulation, not a model": (lambda model: Simulation(model), {"model": ARM}, ""),
    "Simulation, method": (lambda method: Simulation(ARM, method=method), {"method": "dopri5"}, ""),
    "Simulation, abm": (run("abm"), words("q0", "v0", "rtol", "atol", "max_step", "t0", "dt", "armature"), ""),
    "Simulation, dop853": (run("dop853"), words("q0", "v0", "rtol", "atol", "max_step", "t0", "dt", "armature"), ""),
    "Simulation, radau": (run("radau"), words("q0", "v0", "rtol", "atol", "max_step", "t0", "dt", "armature"), ""),
    "Simulation, verlet": (run("verlet", step=0.01), words("q0", "v0", "step", "t0", "dt", "armature"), ""),
    "Trajectory": (lambda **options: replace(RUN, **options).at(RUN.t[0]),
                   words("model", "t", "q", "v", "a", "tau", "about"), ""),
    "Trajectory.at": (RUN.at, {"t": 0.0}, ""),
    "Trajectory.path": (RUN.path, {"body": 0}, ""),
    "Trajectory.save": (RUN.save, {"path": "a.traj"}, ""),
    "Trajectory.to_csv": (RUN.to_csv, {"path": "a.csv"}, ""),
    "Trajectory.to_parquet": (RUN.to_parquet, {"path": "a.parquet"}, ""),
    "Trajectory.plot": (RUN.plot, {"path": "a.png"}, ""),
    "Constant": (of_force(ts.Constant), {"tau": [1.0, 1.0]}, ""),
    "Table": (of_force(ts.Table), {"t": [0, 1], "tau": [[1, 1], [2, 2]], "between": "linear"}, ""),
    "Table.following": (Table.following, {"model": ARM, "reference": MOTION, "t": [0.0, 1.0]}, ""),
    "PD": (of_force(ts.PD), {"reference": MOTION, "kp": 1.0, "kd": 1.0}, ""),
    "ComputedTorque": (of_force(ts.ComputedTorque), {"model": ARM, "reference": MOTION, "kp": 1.0, "kd": 1.0}, ""),
    "Friction": (of_force(ts.Friction), {"viscous": 1.0, "coulomb": 1.0, "creep": 1e-3}, ""),
    "Spring": (of_force(ts.Spring), {"stiffness": 1.0, "rest": [0, 0], "damping": 1.0}, ""),
    "Limits": (of_force(ts.Limits), {"lower": -1.0, "upper": 1.0, "stiffness": 1.0, "damping": 1.0}, ""),
    "External": (of_force(ts.External), {"wrenches": np.zeros((2, 6))}, ""),
    "External, table": (
        of_force(ts.External), {"wrenches": np.zeros((2, 2, 6)), "t": [0, 1], "between": "linear"}, ""
    ),
    "pull": (of_force(ts.Pull), {"body": "link1", "force": [1, 1, 1], "at": [0, 0, 0]}, ""),
    "Feedback": (of_force(ts.Feedback), {"K": np.ones((2, 4)), "x_ref": 0.0, "tau": 0.0}, ""),
    "Feedback, gains in time": (
        lambda **options: ts.rollout(ARM, *STATE[1:], steps=1, step=1e-3, forces=ts.Feedback(**options)),
        {"K": np.ones((2, 2, 4)), "x_ref": 0.0, "tau": 0.0, "t": [0.0, 1.0]}, "",
    ),
    "Policy": (of_force(ts.Policy), {"layers": [(np.ones((2, 4)), np.ones(2))], "activation": "relu"}, ""),
    "Function": (of_force(ts.Function), {"torque": zero, "slopes": None, "drive": False, "needs_v": True}, ""),
    "forces": (lambda forces: ts.simulate(ARM, duration=0.01, forces=forces), {"forces": ()}, ""),
    "rollout": (ts.rollout, {"model": ARM, "q": np.zeros(2), "v": np.zeros(2), "steps": 2, "step": 1e-3, "every": 1,
                             "method": "rk4", "forces": (), "gravity": True, "stop": None, "reset": None}, ""),
    "Cycloid": (lambda **options: Cycloid(**options)(0.5), {"q0": [0, 0], "q1": [1, 1], "T": 1.0}, ""),
    "sample_velocities": (ts.sample_velocities, {"model": ARM, "q": np.zeros(2), "rng": 0, "kT": 1.0, "size": ()}, ""),
    "mass_factor": (lambda model, q: ts.mass_factor(model, q).apply(Q7), {"model": PANDA, "q": Q7}, ""),
    "operational_space": (bias, {"model": PANDA, "q": Q7, "frames": [6], "v": Q7, "task": None}, ""),
}  # fmt: skip
CASES = [(name, key) for name, (_, sound, without) in CALLS.items() for key in sound if key not in without.split()]


@pytest.mark.parametrize(("name", "key"), CASES, ids=[f"{name}: {key}" for name, key in CASES])
@pytest.mark.filterwarnings("ignore:overflow")  # of a caller's own long double
def test_a_hostile_argument_is_refused_or_answered(name, key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, sound, _ = CALLS[name]
    sound = {word: value for word, value in sound.items() if value is not None}
    wrong = {}
    for label, value in HOSTILE.items():
        try:
            call(**sound | {key: value})
        except TorsorError as error:
            if len(str(error)) > 2000:
                wrong[label] = f"a message of {len(str(error))} characters"
        except Exception as error:
            wrong[label] = f"{type(error).__name__}: {error}"
    assert wrong == {}
