"""Ensembles: members drawn alone or together give the same bits; stores survive what happens to their workers."""

import json
import os
import pickle
import signal
import sys
import threading
import zipfile
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import cuda_host
import fake_cupy
import numpy as np
import processes
import pytest
from peers.installed import peer
from scipy import stats

import torsor as ts
from torsor import ArgumentError, lie, zoo
from torsor.cli import main
from torsor.compiler import members
from torsor.ensembles import RayExecutor, places, streams
from torsor.ensembles.draws import Draws
from torsor.ensembles.engine import DIVERGED, IMPOSSIBLE, OK, STOPPED, Timing
from torsor.ensembles.records import records
from torsor.ensembles.study import Plan, Study

ARM = zoo.general_arm(3, 1)
FLOOR = ARM.with_frames({"floor": (None, np.eye(3), np.zeros(3))})
VARY = {"*.density": ts.Normal(mean=1.0, std=0.1), "v0": ts.Uniform(low=-0.5, high=0.5)}


def study(path, vary=VARY, n=40, model=ARM, **options) -> Study:
    return ts.ensemble(model, vary, n=n, store=path, **{"duration": 0.2, "chunk": 16} | options)


@pytest.mark.parametrize(
    "method", ["dopri5", "implicit-euler", *(pytest.param(x, marks=pytest.mark.slow) for x in ("rk4",))]
)
def test_a_member_alone_gives_the_bits_in_the_store(tmp_path, method):
    whole = study(tmp_path / "runs.zarr", method=method)
    other = study(tmp_path / "other.zarr", method=method, chunk=7)
    assert whole.progress == 1
    assert whole.failed == {}
    assert whole["q"].shape == (40, 100, 3)
    assert np.array_equal(whole["q"], other["q"])
    assert np.array_equal(whole["v"], other["v"])
    motion = whole.member(29)
    assert np.array_equal(motion.q, whole["q"][29])
    assert np.array_equal(motion.v, whole["v"][29])


def test_members_move_as_simulations_do(tmp_path):
    """The same equations by another integrator, to tight tolerances: joints and servos included."""
    model = replace(ARM, damping=0.1, stiffness=[0.0, 2.0, 0.0], rest=[0.0, 0.3, 0.0])
    vary = VARY | {"*.damping": ts.Uniform(low=0.1, high=0.5), "PD.kp": ts.Uniform(low=1.0, high=5.0)}
    vary |= {"*.friction": ts.Uniform(low=0.0, high=0.2), "*.effort": ts.Uniform(low=0.5, high=2.0)}
    vary |= {"*.armature": ts.Uniform(low=0.0, high=0.5), f"{ARM.names[1]}.armature": ts.Uniform(low=0.5, high=0.6)}
    found = study(tmp_path / "runs.zarr", vary, 6, model, rtol=1e-9, atol=1e-12, forces=ts.PD(0.5, 1.0, 0.2))
    for k in range(6):
        motion, kp = found.member(k), found["PD.kp"][k]

        def servo(t, q, v, kp=kp):
            return kp * (0.5 - q) - 0.2 * v

        options = {"method": "dop853", "rtol": 1e-11, "atol": 1e-13, "dt": 0.2}
        one = ts.simulate(
            motion.model, v0=found["v0"][k], duration=0.2, forces=ts.Function(servo, drive=True), **options
        )
        assert np.abs(one.q[-1] - found["q"][k, -1]).max() < 1e-7
        assert np.abs(motion.a[-1] - one.a[-1]).max() < 1e-5 * np.abs(one.a[-1]).max()


def test_orders_of_the_continuous_extension(tmp_path):
    """Stored times lie inside steps; the state there is as good as at their ends."""
    times = np.linspace(0, 0.5, 301)
    fine = study(tmp_path / "fine.zarr", {}, 1, times=times, duration=None, rtol=1e-11, atol=1e-13)
    for rtol, bound in ((1e-4, 1e-3), (1e-6, 1e-5), (1e-8, 1e-7)):
        rough = study(tmp_path / f"{rtol}.zarr", {}, 1, times=times, duration=None, rtol=rtol, atol=rtol)
        assert np.abs(rough["q"] - fine["q"]).max() < bound
    assert np.array_equal(fine["q"][0, 0], ARM.neutral())


def test_any_machine_can_be_drawn():
    """Every joint type, quaternions included; bodies by name, fields with axes, functions of a generator."""
    model = zoo.random_tree(5, 3, joints=("spherical", "revolute", "prismatic"))
    vary = {
        f"{model.names[1]}.com": ts.Normal(mean=0, std=0.05),
        "gravity": ts.Normal(mean=[0, 0, -9.81], std=0.1),
        f"{model.names[2]}.p": ts.Normal(mean=1, std=0.1, relative=True),
        "v0": np.random.default_rng(0).normal(size=(3, model.nv)),
    }
    plan = _plan(model, vary, 3)
    result = plan.chunk(0, 3)
    assert (result["status"] == OK).all()
    assert np.array_equal(plan.chunk(1, 2)["q"][0], result["q"][1])
    drawn = _plan(model, lambda rng: {"*.density": rng.uniform(0.9, 1.1, model.n)}, 3).chunk(0, 3)
    assert drawn["vary/*.density"].shape == (3, model.n)


def _plan(model, vary, n, device="cpu", forces=(), **options) -> Plan:
    usual = dict(times=np.linspace(0.05, 0.1, 3), method="dopri5", step=1e-3, rtol=1e-6, atol=1e-9)
    timing, draws = Timing(**usual | options), Draws(model, vary, n, 0, "random", forces)
    return Plan(model, draws, timing, {}, records(model, ("q", "v")), 0, n, device, forces=forces)


# Loops and straight-line code are in other frames: some hundred roundings per step, that twenty steps amplify.
STEPS_APART = 1e-10


def test_large_machines_move_by_loops():
    """More freedoms than straight-line code would be written for; quaternions and servos, too."""
    model = zoo.humanoid()
    vary = {"*.density": ts.Uniform(low=0.9, high=1.1), "v0": ts.Uniform(low=-0.5, high=0.5)}
    options = {"times": np.array([0.01, 0.02]), "step": 1e-3, "method": "rk4"}
    plan = _plan(model, vary, 3, **options)
    found, drawn = plan.chunk(0, 3), plan.draws.members(0, 3)
    assert (found["status"] == OK).all()
    assert np.array_equal(plan.chunk(2, 3)["q"][0], found["q"][2])
    (density, factors), (_, v0) = drawn.items()
    assert density.key == "*.density"
    for k in range(3):
        one = replace(model, mass=model.mass * factors[k], inertia=model.inertia * factors[k][:, None, None])
        alone = ts.rollout(one, model.neutral(), v0[k], steps=20, every=10, step=1e-3, method="rk4")
        assert np.abs(alone.q - found["q"][k]).max() < STEPS_APART
        assert np.abs(alone.v - found["v"][k]).max() < STEPS_APART * np.abs(alone.v).max()
    adaptive = _plan(model, vary, 3, times=options["times"], rtol=1e-9, atol=1e-12).chunk(0, 3)
    assert np.abs(adaptive["q"] - found["q"]).max() < 1e-6  # of a fourth-order method with 20 steps


# ---- on a GPU: the text of its kernel, run by threads of the host ----


@pytest.fixture
def device(monkeypatch):
    if not cuda_host.compiler():
        pytest.skip("no C++ compiler")
    stand_in = fake_cupy.Cupy()
    fake_cupy.install(monkeypatch, stand_in)
    members._structure.cache_clear()  # kernels of another stand-in
    yield stand_in
    members._structure.cache_clear()


def in_time(model):
    """Commands, wrenches and gains that change."""
    rng, n = np.random.default_rng(2), model.nv
    t = [0.0, 0.005, 0.01, 1.0]
    gains = ts.Feedback(0.1 * rng.normal(size=(4, n, 2 * n)), tau=rng.normal(size=(4, n)), t=t)
    return ts.Table(t, rng.normal(size=(4, n)), "linear"), ts.External(rng.normal(size=(4, model.n, 6)), t), gains


SERVOS = {"PD.kp": ts.Uniform(low=1.0, high=5.0), "*.damping": ts.Uniform(low=0.1, high=0.5)}
SERVO = {"forces": (ts.PD(0.0, 1.0, 0.0),)}
ON_DEVICE = {
    "dopri5": (ARM, VARY | SERVOS, {"times": np.array([0.0, 0.03, 0.1]), **SERVO}),
    "rk4": (ARM, VARY, {"method": "rk4"}),
    "implicit-euler": (ARM, VARY | SERVOS, {"method": "implicit-euler", "step": 0.01, **SERVO}),
    "quaternions": (
        zoo.random_tree(5, 3, joints=("spherical", "revolute", "prismatic")),
        {"*.density": ts.Normal(mean=1.0, std=0.1), "*.p": ts.Normal(mean=1, std=0.1, relative=True)},
        {"method": "rk4", "step": 0.01},
    ),
    "loops": (zoo.random_chain(70, 2), {"*.density": ts.Normal(mean=1.0, std=0.1)}, {"times": np.array([0.002])}),
    "loops, rk4": (zoo.random_chain(70, 2), {"*.density": ts.Normal(mean=1.0, std=0.1)},
                   {"method": "rk4", "times": np.array([0.001, 0.002])}),
    "forces in time": (ARM, VARY, {"method": "rk4", "times": np.array([0.0, 0.004, 0.008, 0.02, 0.022]), "step": 2e-3,
                                   "forces": in_time(ARM)}),
    "a function": (ARM, VARY, {"method": "implicit-euler", "times": np.array([0.01, 0.02, 0.05]), "step": 2e-3,
                               "forces": (lambda t, q, v: np.sin(t) - 0.2 * v, *in_time(ARM)[:2])}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_DEVICE)
def test_threads_move_members_as_lanes_do(device, name):
    """The same draws, and the same states to rounding; 150 members are three blocks of threads, the last not full."""
    model, vary, options = ON_DEVICE[name]
    count = 150 if model is ARM else 3
    here, there = (_plan(model, vary, count, where, **options).chunk(0, count) for where in ("cpu", "cuda"))
    assert np.array_equal(here["status"], there["status"])
    for key in here:
        assert np.abs(here[key] - there[key]).max() <= STEPS_APART * max(1, np.abs(here[key]).max()), key


def test_fewer_threads_than_members(device, monkeypatch):
    """A thread whose member has arrived takes the next; members that fail, too."""
    monkeypatch.setattr(fake_cupy.Function, "num_regs", 1024)  # one block fits
    device.cuda.Device = lambda: SimpleNamespace(id=0, attributes={"MultiProcessorCount": 1})
    vary = {"*.density": ts.Uniform(low=0.5, high=2.0), "v0": np.full((200, 3), 0.1)}
    vary["v0"][77] = 1e200
    here, there = (_plan(ARM, vary, 200, where).chunk(0, 200) for where in ("cpu", "cuda"))
    assert device.functions[-1].launches[-1].grid == (1,)
    assert here["status"][77] == there["status"][77] == DIVERGED
    assert np.array_equal(here["status"], there["status"])
    assert np.nanmax(np.abs(here["q"] - there["q"])) < STEPS_APART
    assert np.array_equal(np.isnan(here["q"]), np.isnan(there["q"]))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_threads_stop_members_as_lanes_do(device, method):
    """Two conditions, members that start outside, members that never stop; where adaptive ones stop, to rounding."""
    height = float(ts.body_poses(ARM, np.zeros(3))[-1, 2, 3]) - 0.001
    stops = (ts.Stop(v=0, below=-0.6, above=0.6), ts.Stop(frame=ARM.n - 1, below=height))
    options = {"stops": stops, "method": method, "times": np.linspace(0.0, 0.2, 11)[method != "dopri5" :]}
    vary = VARY | {"q0": ts.Uniform(low=-0.02, high=0.02)}
    here, there = (_plan(ARM, vary, 150, where, **options).chunk(0, 150) for where in ("cpu", "cuda"))
    assert set(here["status"].tolist()) == {OK, STOPPED, STOPPED + 1}
    assert (here["stop_time"] == 0).any()
    assert np.array_equal(here["status"], there["status"])
    assert np.array_equal(np.isnan(here["stop_time"]), np.isnan(there["stop_time"]))
    for key in ("q", "v", "stop_time"):
        assert np.nanmax(np.abs(here[key] - there[key])) < STEPS_APART, key


def test_an_ensemble_on_the_device(device, tmp_path):
    options = {"n": 20, "method": "rk4", "duration": 0.1}
    found = study(tmp_path / "runs.zarr", device="cuda", **options)
    assert np.abs(found["q"] - study(tmp_path / "here.zarr", **options)["q"]).max() < STEPS_APART
    assert np.array_equal(found.member(7).q, found["q"][7])
    with pytest.raises(ts.StoreError, match="another study"):
        study(tmp_path / "runs.zarr", **options)
    with pytest.raises(ArgumentError, match="unknown device 'tpu'"):
        study(tmp_path / "other.zarr", device="tpu")


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**100 + 7])
def test_members_drawn_together_draw_what_they_draw_alone(seed):
    """Seeds of one and of several words, members beyond 2^32."""
    for first, end in ((0, 40), (2**32 - 2, 2**32 + 2), (2**33, 2**33 + 1), (5, 5)):
        alone = [np.random.default_rng([seed, k]).random(7) for k in range(first, end)]
        assert np.array_equal(streams.uniform(seed, first, end, 7), np.reshape(alone, (-1, 7)))


def test_a_numpy_that_draws_otherwise_is_followed(monkeypatch):
    monkeypatch.setattr(streams, "STEP", (np.uint64(1), np.uint64(1)))
    draws = Draws(ARM, VARY, 50, 3, "random")
    assert np.array_equal(draws.uniform(0, 50)[40], np.random.default_rng([3, 40]).random(6))


@pytest.mark.parametrize("sampling", ["sobol", "latin-hypercube"])
def test_other_samplings_do_not_depend_on_chunks(sampling):

    draws = Draws(ARM, VARY, 32, 3, sampling)
    whole = draws.uniform(0, 32)
    assert np.array_equal(np.concatenate([draws.uniform(k, k + 8) for k in range(0, 32, 8)]), whole)
    assert (np.sort(whole, axis=0)[:, 0] * 32 // 1).astype(int).tolist() == list(range(32))  # one per stratum


def test_a_member_that_fails_does_not_stop_the_others(tmp_path):
    vary = {"*.mass": ts.Normal(mean=0.3, std=1.0, relative=True), "v0": np.full((12, 3), 0.1)}
    vary["v0"][5] = 1e200
    found = study(tmp_path / "runs.zarr", vary, 12, duration=0.05)
    status = found.status
    impossible = (found["*.mass"] < 0).any(axis=1)
    assert impossible.any()
    assert (status[impossible] == IMPOSSIBLE).all()
    assert status[5] in (DIVERGED, IMPOSSIBLE)
    assert (status[~impossible & (np.arange(12) != 5)] == OK).all()
    assert set(found.failed) == set(np.flatnonzero(status != OK).tolist())
    with pytest.raises(ArgumentError, match="has no motion"):
        found.member(int(np.flatnonzero(impossible)[0]))


def test_what_is_recorded(tmp_path):
    keep = {"q": None, "energy": None, "peak": lambda t, q, v: np.abs(v).max(axis=1)}
    found = study(tmp_path / "runs.zarr", keep=keep, rtol=1e-9)
    assert found["peak"].shape == (40, 3)
    assert np.ptp(found["energy"], axis=1).max() < 1e-6 * np.abs(found["energy"]).max()
    assert "v" not in found.group.variables


def test_frames_summaries_and_thinning(tmp_path):
    """Poses are those of the member's own machine; summaries see all times, the rest every fourth."""
    tip = ARM.names[-1]
    vary = VARY | {f"{ARM.names[1]}.p": ts.Normal(mean=1, std=0.2, relative=True)}
    names = ("q", f"pose.{tip}", f"position.{tip}", f"position.{tip}:max", "v:min", "v:mean", "v:std", "energy:last")
    found = study(tmp_path / "runs.zarr", vary, 9, keep=names, every=4)
    full = study(tmp_path / "full.zarr", vary, 9, keep=("q", "v", "energy", f"position.{tip}"))
    assert found["q"].shape == (9, 25, 3)
    assert np.array_equal(found["q"], full["q"][:, 3::4])
    assert np.array_equal(found.times, full.times[3::4])
    motion = found.member(5)
    assert motion.q.shape == (100, 3)
    poses = ts.frame_poses(motion.model, motion.q, tip)
    place, turn = np.split(found[f"pose.{tip}"][5], [3], axis=-1)
    assert np.abs(place - poses[3::4, :3, 3]).max() < 1e-14
    assert np.abs(lie.quaternion_to_matrix(turn) - poses[3::4, :3, :3]).max() < 1e-14
    assert np.array_equal(found[f"position.{tip}"], found[f"pose.{tip}"][..., :3])
    assert np.array_equal(found[f"position.{tip}:max"], full[f"position.{tip}"].max(axis=1))
    for name in ("min", "mean", "std"):
        assert np.array_equal(found[f"v:{name}"], getattr(full["v"], name)(axis=1))
    assert np.array_equal(found["energy:last"], full["energy"][:, -1])
    last = study(tmp_path / "last.zarr", vary, 9, keep=("v:last", "energy:last"))  # moved without the times before
    assert np.array_equal(last["v:last"], full["v"][:, -1])
    assert np.array_equal(last["energy:last"], full["energy"][:, -1])
    assert found.open()[f"pose.{tip}"].dims == ("member", "time", f"pose.{tip}_entry")
    with pytest.raises(ts.StoreError, match="another study"):
        study(tmp_path / "runs.zarr", vary, 9, keep=names)


# ---- forces ----

TIMES = np.array([0.0, 0.05, 0.1, 0.2])
TORQUES = np.random.default_rng(0).normal(size=(4, 3))


def followed(t, q, v):
    return np.sin(30 * t) - 3 * q


FORCES = {
    "table": ts.Table(TIMES, TORQUES),
    "digital": ts.Table(TIMES, TORQUES, "previous"),
    "wrenches": ts.External(np.full((3, 6), 0.5)),
    "pull": ts.Pull("link3", (0.0, 0.0, 5.0)),
    "springs": ts.Spring(3.0),
    "friction": ts.Friction(0.1, 0.1, creep=0.1),
    "computed torques": ts.ComputedTorque(np.ones(3)),
    "feedback": ts.Feedback(np.eye(3, 6), np.ones(6)),
    "policy": ts.Policy([(-np.eye(3, 6), np.ones(3))]),
    "function": followed,
}
MIXED = {"v0": ts.Uniform(low=-0.5, high=0.5), "PD.kp": ts.Uniform(low=1.0, high=5.0)}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", FORCES)
def test_members_feel_every_force(tmp_path, name):
    """As a simulation of each does; beside a servo whose gains differ, by adaptive and by fixed steps."""
    servo, close = ts.PD(0.5, 1.0, 0.1), {"dopri5": 1e-7, "rk4": 1e-6}  # rk4: fourth order in steps of 1 ms
    for method in ("rk4",) if name == "function" else close:
        options = {"method": method, "rtol": 1e-9, "atol": 1e-12, "forces": [FORCES[name], servo]}
        found = study(tmp_path / method, MIXED, 3, **options)
        for k in range(3):
            forces = [FORCES[name], replace(servo, kp=found["PD.kp"][k])]
            one = ts.simulate(ARM, None, found["v0"][k], 0.2, forces=forces, method="dop853", rtol=1e-11, dt=0.2)
            assert np.abs(one.q[-1] - found["q"][k, -1]).max() < close[method]


def test_a_pulse_between_two_steps_is_not_missed(tmp_path):
    """Adaptive steps end where a table jumps: 1 N m for 1 ms at rest, without gravity."""
    free = replace(ARM, gravity=np.zeros(3))
    pulse = ts.Table([0.0, 0.1, 0.101], np.outer([0.0, 1.0, 0.0], [1.0, 0.0, 0.0]), "previous")
    found = study(tmp_path / "runs.zarr", {}, 1, free, forces=pulse)
    one = ts.simulate(free, duration=0.2, forces=pulse, rtol=1e-9, dt=0.2)
    assert np.abs(one.v[-1]).max() > 1e-3
    assert np.abs(found["v"][0, -1] - one.v[-1]).max() < 1e-6


def test_forces_that_no_lane_can_follow_are_refused(tmp_path):
    """Where every lane has a clock of its own: functions, and motions that differ; fixed steps do it."""
    motion = ts.PD(lambda t: (np.full(3, t), np.ones(3), np.zeros(3)), 1.0, 0.1)
    for k, (force, vary) in enumerate(((followed, VARY), (motion, {"PD.kp": ts.Uniform(low=1, high=2)}))):
        with pytest.raises(ArgumentError, match="choose one of the methods semi-implicit, implicit-euler, rk4"):
            study(tmp_path / str(k), vary, 2, forces=force)
        assert study(tmp_path / str(k), vary, 2, forces=force, method="rk4").progress == 1


# ---- the store ----


def test_a_store_of_version_0_1_opens(tmp_path):
    """Its names and words are those of that version."""
    with zipfile.ZipFile(Path(__file__).parent / "stores" / "version_0.1.zip") as packed:
        packed.extractall(tmp_path / "runs.zarr")
    found = ts.Study(tmp_path / "runs.zarr")
    assert (found.n, found.progress, found.missing(), found.failed) == (3, 1, [], {})
    assert found.stopped == {2: 1}
    assert np.array_equal(found["v.max"], found["v"].max(axis=1))
    assert np.array_equal(found["v:max"], found["v.max"])
    assert found["link3.pose"].shape == (3, 2, 4, 4)
    assert found["kp"].shape == (3, 3)
    assert found.open()["q"].dims == ("member", "time", "coordinate")
    assert len(found.plot().axes) == 3
    assert len(found.sensitivities()["*.density"]) == 3
    with pytest.raises(ts.StoreError, match="another study"):
        study(tmp_path / "runs.zarr", n=3)


def test_others_read_the_store(tmp_path):
    """zarr and xarray open it, without torsor."""
    zarr, xarray = peer("zarr"), peer("xarray")
    found = study(tmp_path / "runs.zarr", n=20)
    group = zarr.open_group(str(tmp_path / "runs.zarr"), mode="r")
    assert np.array_equal(group["q"][:], found["q"])
    assert np.array_equal(group["vary/v0"][:], found["v0"])
    assert np.array_equal(zarr.open_consolidated(str(tmp_path / "runs.zarr"))["vary"]["v0"][:], found["v0"])
    for consolidated in (True, False):
        opened = xarray.open_zarr(str(tmp_path / "runs.zarr"), consolidated=consolidated)
        assert opened["q"].dims == ("member", "time", "coordinate")
        assert opened.attrs["seed"] == 0
        drawn = xarray.open_zarr(str(tmp_path / "runs.zarr"), group="vary", consolidated=consolidated)
        assert np.array_equal(drawn["v0"].values, found["v0"])


def test_metadata_are_consolidated(tmp_path):
    """The group holds the metadata of all arrays: with the files of the arrays gone, zarr still opens it."""
    zarr = peer("zarr")
    found = study(tmp_path / "runs.zarr", n=4)
    for path in (tmp_path / "runs.zarr").glob("*/**/zarr.json"):
        path.unlink()
    group = zarr.open_consolidated(str(tmp_path / "runs.zarr"))
    assert np.array_equal(group["q"][:], found["q"])
    assert sorted(group["vary"]) == sorted(name.removeprefix("vary/") for name in found.group.variables if "/" in name)


def test_a_store_is_an_xarray_dataset(tmp_path):
    peer("xarray")
    found = study(tmp_path / "runs.zarr", n=20)
    assert np.array_equal(found.open()["q"].values, found["q"])


def test_a_dataset_is_lazy_and_knows_names(tmp_path):
    dask = peer("dask.array")
    made = study(tmp_path / "runs.zarr", n=20, keep=("q", "v", "pose.link3", "energy:max"), chunk=8)
    for found in (made, ts.Study(tmp_path / "runs.zarr")):
        opened = found.open()
        assert isinstance(opened["q"].data, dask.Array)
        assert opened["q"].data.chunks[0] == (8, 8, 4)
        assert np.array_equal(opened["q"].sel(coordinate="link2").values, found["q"][..., 1])
        assert np.array_equal(opened["q"][5:17, 3].values, found["q"][5:17, 3])
        assert np.array_equal(opened["pose.link3"].sel({"pose.link3_entry": "qw"}).values, found["pose.link3"][..., 3])
        assert np.array_equal(opened.coords["v0"].values, found["v0"])
        assert opened.coords["v0"].dims == ("member", "freedom")
        assert np.array_equal(opened["energy:max"].values, found["energy:max"])
        assert opened.coords["time"].values.tolist() == found.times.tolist()
        assert opened["energy:max"].shape == (20,)


def test_lost_and_damaged_chunks_are_done_again(tmp_path):
    path = tmp_path / "runs.zarr"
    whole = study(path)["q"]
    damaged = path / "q" / "c" / "1" / "0" / "0"
    content = bytearray(damaged.read_bytes())
    content[100] ^= 1
    damaged.write_bytes(content)
    (path / "status" / "c" / "0").unlink()
    (path / "v" / "c" / "2" / "0" / "0").write_bytes(b"cut off")
    broken = ts.Study(path)
    assert broken.missing() == [0, 1, 2]
    for name in "qv":  # never a wrong number, nor one that is left out
        with pytest.raises(ts.StoreError, match=rf"{name}/c/[12]/0/0 does not fit its digest.*resumed"):
            broken[name]
        with pytest.raises(ts.StoreError, match="does not fit its digest"):
            broken.open()[name].values  # noqa: B018
    again = study(path)
    assert again.missing() == []
    assert np.array_equal(again["q"], whole)


def test_what_became_of_members_cannot_be_changed_without_a_word(tmp_path):
    """A flipped bit turns "ok" into another status, which could be one."""
    path = tmp_path / "runs.zarr"
    whole = study(path)["status"]
    damaged = path / "status" / "c" / "1"
    content = bytearray(damaged.read_bytes())
    content[3] ^= 2
    damaged.write_bytes(content)
    broken = ts.Study(path)
    assert broken.missing() == [1]
    with pytest.raises(ts.StoreError, match="status/c/1 does not fit its digest"):
        broken["status"]
    assert np.array_equal(study(path)["status"], whole)
    times = path / "t" / "c" / "0"
    content = bytearray(times.read_bytes())
    content[9] ^= 2
    times.write_bytes(content)
    with pytest.raises(ts.StoreError, match="t/c/0 does not fit its digest"):
        ts.Study(path).times  # noqa: B018


def test_a_store_of_another_study_is_refused(tmp_path):
    path = tmp_path / "runs.zarr"
    study(path)
    for other in ({"seed": 1}, {"n": 41}, {"model": zoo.general_arm(3, 2)}, {"rtol": 1e-7}):
        with pytest.raises(ts.StoreError, match="another study"):
            study(path, **other)
    with pytest.raises(ts.StoreError, match="cannot be read"):
        ts.Study(tmp_path / "nothing.zarr")
    (tmp_path / "zarr.json").write_text("{}")
    with pytest.raises(ts.StoreError, match="not a store"):
        ts.Study(tmp_path)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("q/zarr.json", lambda x: x.replace("float64", "Float64")),
        ("q/zarr.json", lambda x: x.replace("chunk_shape", "chunk")),
        ("q/zarr.json", lambda x: x.replace('"shape": [2', '"shape": [-2')),
        ("status/zarr.json", lambda x: "[]"),
        ("zarr.json", lambda x: "[]"),
        ("zarr.json", lambda x: x.replace('"attributes"', '"attribute"')),
        ("zarr.json", lambda x: x.replace('"status",', "")),
        ("zarr.json", lambda x: x.replace('"key"', '"clef"')),
        ("zarr.json", lambda x: x.replace('"arrays": [', '"arrays": [3, ')),
    ],
    ids=["type", "chunk", "shape", "array", "group", "attributes", "status", "key", "names"],
)
def test_metadata_that_are_damaged_are_told(tmp_path, file, change):
    study(tmp_path / "runs.zarr", n=2)
    damaged = tmp_path / "runs.zarr" / file
    before = damaged.read_text()
    damaged.write_text(change(before))
    assert damaged.read_text() != before
    with pytest.raises(ts.StoreError, match="store"):
        study(tmp_path / "runs.zarr", n=2)


@pytest.mark.parametrize("first", ["*.mass", "*.density"])
def test_density_is_a_factor_of_the_mass_that_was_drawn(tmp_path, first):
    vary = {"*.mass": ts.Uniform(low=5, high=5), "*.density": ts.Uniform(low=2, high=2)}
    ordered = {first: vary[first]} | vary
    machine = study(tmp_path / "runs.zarr", ordered, n=1).member(0).model
    np.testing.assert_allclose(machine.mass, 10.0)
    np.testing.assert_allclose(machine.inertia, 2 * ARM.inertia)


def test_a_store_made_with_other_functions_is_refused(tmp_path):
    def slow(rng):
        return {"v0": 1.0}

    def quick(rng):
        return {"v0": 2.0}

    quick.__qualname__ = slow.__qualname__  # as if it had been edited
    study(tmp_path / "drawn.zarr", slow, n=2)
    study(tmp_path / "shown.zarr", n=2, keep={"end": lambda t, q, v: q[:, -1]})
    assert study(tmp_path / "drawn.zarr", slow, n=2).progress == 1
    with pytest.raises(ts.StoreError, match="another study"):
        study(tmp_path / "drawn.zarr", quick, n=2)
    with pytest.raises(ts.StoreError, match="another study"):
        study(tmp_path / "shown.zarr", n=2, keep={"end": lambda t, q, v: v[:, -1]})


def test_shards_fill_one_store_together(tmp_path):
    path = tmp_path / "runs.zarr"
    first = study(path, shard=(0, 2))
    assert 0 < first.progress < 1
    second = study(path, shard=(1, 2))
    assert second.progress == 1
    assert np.array_equal(second["q"], study(tmp_path / "whole.zarr")["q"])


@pytest.mark.parametrize("sampling", ["random", "sobol", "latin-hypercube", "saltelli"])
def test_a_task_carries_what_its_members_need(sampling):
    """Not the arrays and sequences of a million members."""
    n = 8 * 2**17
    vary = dict(VARY) if sampling == "saltelli" else VARY | {"q0": np.random.default_rng(0).normal(size=(n, 3))}
    draws = Draws(ARM, vary, n, 1, sampling)
    whole, part = draws.members(5000, 5040), draws.part(5000, 5040)
    assert len(pickle.dumps(part)) < 20_000
    assert all(np.array_equal(x, whole[q]) for q, x in part.members(5000, 5040).items())
    assert all(np.array_equal(x, whole[q][7:9]) for q, x in part.members(5007, 5009).items())


def test_a_process_pool(tmp_path):
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        found = study(tmp_path / "runs.zarr", executor=pool)
    assert np.array_equal(found["q"], study(tmp_path / "alone.zarr")["q"])


def test_a_full_disk_leaves_a_store_that_goes_on(tmp_path, monkeypatch):
    path, written = tmp_path / "runs.zarr", []

    def full(file, content, error):
        written.append(file)
        if len(written) > 14:
            raise error(f"{file}: cannot be written (No space left on device)")
        return original(file, content, error)

    original = places.write_whole
    monkeypatch.setattr(places, "write_whole", full)
    with pytest.raises(ts.StoreError, match="No space left"):
        study(path)
    monkeypatch.undo()
    assert study(path).progress == 1


def test_a_store_behind_a_url(tmp_path):
    """In memory, by fsspec; a folder by its URL is written as a folder."""
    zarr = peer("zarr")
    found = study("memory://runs.zarr", shard=(0, 2))
    assert 0 < found.progress < 1
    again = study("memory://runs.zarr")
    whole = study(tmp_path / "runs.zarr")
    assert np.array_equal(again["q"], whole["q"])
    assert np.array_equal(zarr.open_group("memory://runs.zarr", mode="r")["q"][:], whole["q"])
    assert (again.path, ts.Study("memory://runs.zarr").progress) == ("memory://runs.zarr", 1)
    files = again.group.place.files
    files.pipe_file("/runs.zarr/q/c/1/0/0", b"cut off")
    assert again.missing() == [1]
    assert study("memory://runs.zarr").missing() == []
    with pytest.raises(ts.StoreError, match="another study"):
        study("memory://runs.zarr", seed=1)
    with pytest.raises(ArgumentError, match="need chunk="):
        study("memory://other.zarr", shard=(0, 2), chunk=None)
    for address in ("nowhere://runs.zarr", "memory:///nothing.zarr"):
        with pytest.raises(ts.StoreError, match="cannot be"):
            ts.Study(address)
    assert isinstance(places.at(f"file://{tmp_path}/x.zarr"), places.Folder)
    monitored = places.Remote(SimpleNamespace(pipe_file=lambda *_: 1 / 0, cat_file=lambda *_: 1 / 0), "r", "s3://r")
    for act in (lambda: monitored.read("a"), lambda: monitored.write("a", b"")):
        with pytest.raises(ts.StoreError, match="s3://r/a: cannot be"):
            act()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_store_in_an_object_store(tmp_path, monkeypatch):
    """Moto's S3 on this machine, where moto and s3fs are installed; two processes write."""
    s3fs, moto = peer("s3fs"), peer("moto.server")
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("DEFAULT_REGION", "us-east-1"),
                        ("ENDPOINT_URL", f"http://{host}:{port}")):  # fmt: skip
        monkeypatch.setenv(f"AWS_{name}", value)
    files = s3fs.S3FileSystem()
    files.mkdir("bucket")
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        found = study("s3://bucket/runs.zarr", executor=pool)
    whole = study(tmp_path / "runs.zarr")["q"]
    assert np.array_equal(found["q"], whole)
    files.pipe_file("bucket/runs.zarr/q/c/2/0/0", b"cut off")
    assert ts.Study("s3://bucket/runs.zarr").missing() == [2]
    assert np.array_equal(study("s3://bucket/runs.zarr")["q"], whole)
    with pytest.raises(ts.StoreError, match="cannot be read"):
        ts.Study("s3://another/runs.zarr")
    server.stop()


def test_jobs_that_begin_together_make_one_store(tmp_path):
    """Each would have chosen another size of chunks; one wins, and what it made is what all of them fill."""
    path = tmp_path / "runs.zarr"
    plan = study(tmp_path / "whole.zarr").plan
    makers = [threading.Thread(target=Study._made, args=(plan, path, chunk, (0, 1))) for chunk in (8, 16, 20, 40)]
    [maker.start() for maker in makers]
    processes.joined(makers)
    assert [x.name for x in tmp_path.glob(".*")] == []
    assert np.array_equal(study(path)["q"], study(tmp_path / "whole.zarr")["q"])
    (tmp_path / "full" / "other").mkdir(parents=True)
    with pytest.raises(ts.StoreError, match="cannot be made"):
        study(tmp_path / "full")


SCRIPT = """
import sys, torsor as ts
if __name__ == "__main__":
    model = ts.zoo.general_arm(3, 1)
    vary = {"*.density": ts.Normal(mean=1.0, std=0.1), "v0": ts.Uniform(low=-0.5, high=0.5)}
    ts.ensemble(model, vary, n=4000, duration=0.2, store=sys.argv[1], chunk=40)
"""


def test_a_killed_client_loses_only_the_chunk_in_flight(tmp_path):
    path = tmp_path / "runs.zarr"
    client = processes.start("-c", SCRIPT, path)
    processes.wait_until((path / "status" / "c" / "3").exists, client)
    processes.killed(client)
    left = ts.Study(path)
    assert 0 < left.progress < 1
    before = {k: left.group.get("q", k).copy() for k in range(3)}
    again = study(path, n=4000, chunk=40)
    assert again.progress == 1
    assert all(np.array_equal(again.group.get("q", k), x) for k, x in before.items())
    assert np.array_equal(again["q"][:40], study(tmp_path / "alone.zarr", n=4000, chunk=4000, shard=(0, 1))["q"][:40])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_dask_finishes_when_a_worker_is_killed(tmp_path):
    distributed = peer("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        victims, killed, runs = list(client.run(os.getpid).values()), [], tmp_path / "runs"

        def counted(fn, plan, path, chunk):
            with open(runs, "a") as file:
                file.write(f"{chunk}\n")
            return fn(plan, path, chunk)

        class Counting(Executor):
            inner = client.get_executor()

            def submit(self, *args):
                return self.inner.submit(counted, *args)

        def kill(done, total):
            if not killed:
                killed.append(os.kill(victims[0], signal.SIGKILL))

        found = study(tmp_path / "runs.zarr", n=2000, chunk=50, executor=Counting(), progress=kill)
    assert killed
    assert found.progress == 1
    begun = [int(line) for line in runs.read_text().split()]
    assert set(begun) == set(range(40))
    assert len(begun) <= 41, "more than the chunk of the killed worker was repeated"
    assert np.array_equal(found["q"], study(tmp_path / "alone.zarr", n=2000, chunk=500)["q"])


@pytest.mark.slow
def test_two_shards_at_once(tmp_path):
    """Two processes begin together, each with a size of chunks of its own choice."""
    path = tmp_path / "runs.zarr"
    script = SCRIPT.replace("chunk=40)", "shard=(int(sys.argv[2]), 2))")
    jobs = [processes.start("-c", script, path, k) for k in range(2)]
    assert [job.communicate(timeout=processes.DEADLINE)[1] for job in jobs] == ["", ""]
    assert [job.returncode for job in jobs] == [0, 0]
    found = ts.Study(path)
    assert found.progress == 1
    assert found.missing() == []
    assert np.array_equal(found["q"], study(tmp_path / "alone.zarr", n=4000, chunk=4000)["q"])


CLUSTER = """
import time, distributed
if __name__ == "__main__":
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(**options) as cluster:
        print(cluster.scheduler_address, flush=True)
        time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_lost_scheduler_is_told_and_the_study_goes_on(tmp_path):
    """The cluster's own process is killed; what was done stays, and the rest is done by another."""
    distributed = peer("distributed")
    cluster = processes.start("-c", CLUSTER, stderr=None)
    client = distributed.Client(processes.line_of(cluster).strip(), timeout=20)
    killed = []

    def kill(done, total):
        if done == 3:
            killed.append(cluster.kill())

    path = tmp_path / "runs.zarr"
    with pytest.raises(ts.StoreError, match="lost its workers or its scheduler"):
        study(path, n=2000, chunk=50, executor=client.get_executor(), progress=kill)
    client.close(timeout=1)
    cluster.communicate(timeout=processes.DEADLINE)
    assert killed
    assert 0 < ts.Study(path).progress < 1
    assert np.array_equal(study(path, n=2000, chunk=50)["q"], study(tmp_path / "alone.zarr", n=2000, chunk=500)["q"])


def test_a_broken_pool_is_told(tmp_path):
    class Broken(Executor):
        def submit(self, *args, **kwargs):
            raise BrokenExecutor("a process died")

    with pytest.raises(ts.StoreError, match=r"a process died.*call ensemble"):
        study(tmp_path / "runs.zarr", executor=Broken())
    assert study(tmp_path / "runs.zarr").progress == 1


def test_ray_through_its_adapter(tmp_path, monkeypatch):
    """A stand-in with what the adapter uses of Ray: `remote`, the future of a reference, resources."""

    def remote(**options):
        assert options == {"num_cpus": 1, "max_retries": 5}
        return lambda fn: SimpleNamespace(remote=lambda *args: SimpleNamespace(future=lambda: pool.submit(fn, *args)))

    calls = []
    stand_in = SimpleNamespace(
        is_initialized=lambda: bool(calls), init=lambda *args, **more: calls.append(args), remote=remote,
        cluster_resources=lambda: {"CPU": 2.0}, shutdown=calls.clear,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "ray", stand_in)
    with ThreadPoolExecutor(2) as pool:
        with RayExecutor("auto", max_retries=5) as executor:
            found = study(tmp_path / "runs.zarr", executor=executor)
            assert calls == [("auto",)]
        assert not calls
    assert np.array_equal(found["q"], study(tmp_path / "alone.zarr")["q"])
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ArgumentError, match="needs Ray"):
        RayExecutor()


def _executorlib():
    return peer("executorlib").SingleNodeExecutor(max_workers=2)


def _parsl():
    concurrent = peer("parsl.concurrent")
    from parsl.configs.htex_local import config

    return concurrent.ParslPoolExecutor(config)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", [RayExecutor, _executorlib, _parsl], ids=("ray", "executorlib", "parsl"))
def test_other_engines(tmp_path, monkeypatch, engine):
    """Where they are installed; torsor needs none of them."""
    monkeypatch.chdir(tmp_path)  # some write logs
    with engine() as executor:
        found = study(tmp_path / "runs.zarr", executor=executor)
    assert np.array_equal(found["q"], study(tmp_path / "alone.zarr")["q"])


# ---- arguments, pictures, the command ----


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vary": {"mass": ts.Normal()}}, r"vary\['mass'\] is unknown"),
        ({"vary": {"nobody.mass": ts.Normal()}}, "no body or frame named 'nobody'"),
        ({"vary": {"v0": np.zeros((3, 3))}}, r"vary\['v0'\] has shape \(3, 3\)"),
        ({"vary": {"v0": ts.Normal(mean=[1, 2])}}, "do not fit shape"),
        ({"vary": lambda rng: 3}, "must return a dict"),
        ({"n": 0}, "n must be at least 1"),
        ({"duration": None}, "give duration= or times="),
        ({"duration": None, "times": [2, 1]}, "times must increase"),
        ({"method": "euler"}, "unknown method 'euler'"),
        ({"forces": [3]}, r"forces\[0\] must be a force"),
        ({"vary": {"PD.kp": ts.Normal()}}, r"vary\['PD.kp'\] is unknown"),
        ({"keep": "tau"}, "members have q and v"),
        ({"keep": "q:median"}, "a reduction is one of last"),
        ({"method": "rk4", "step": 0.003}, "multiples of step"),
        ({"keep": "p"}, "no quantity is named 'p'"),
        ({"keep": "pose"}, "no quantity is named 'pose'"),
        ({"keep": "pose.nobody"}, "no body or frame named 'nobody'"),
        ({"keep": {"t": lambda t, q, v: q}}, "this name is taken"),
        ({"every": 101}, "every = 101 exceeds"),
        ({"sampling": "grid"}, "unknown sampling 'grid'"),
        ({"sampling": "saltelli"}, r"needs n = N \* 8 members, N a power of 2, for example 16, not 4"),
        ({"sampling": "saltelli", "vary": {"v0": np.zeros((4, 3))}}, "needs a distribution for everything"),
        ({"shard": (2, 2)}, "shard 2/2"),
        ({"shard": 2}, "shard must be a pair"),
        ({"vary": {"v0": np.zeros((4, 2))}}, r"vary\['v0'\] has shape \(4, 2\)"),
        ({"vary": None}, "vary must be a dict"),
        ({"vary": {"floor.mass": ts.Normal()}, "model": FLOOR}, "'floor' is on the base"),
        ({"vary": {"link1.mass": ts.Normal(), "*.mass": ts.Normal()}}, r"would be replaced by vary\['\*.mass'\]"),
        ({"executor": 3}, "submit of the executor"),
        ({"progress": 3}, "progress must be a function"),
        ({"keep": None}, "keep must be names"),
        ({"keep": {"vary": lambda t, q, v: q}}, "this name is taken"),
        ({"keep": {"zarr.json": lambda t, q, v: q}}, "this name is taken"),
        ({"keep": {"a\0": lambda t, q, v: q}}, "this name is taken"),
        ({"keep": {"v0": lambda t, q, v: q}}, "taken by what varies"),
        ({"keep": {"a": lambda t, q, v: ["x"] * len(q)}}, r"keep\['a'\]"),
        ({"keep": {"a": lambda t, q, v: np.ones((len(q), len(q)))}}, "'a' has shape"),
        ({"stop": [ts.Stop(q=0, below=0.0)] * 101}, "there are 101 stops"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_wrong_arguments_are_refused_by_name(tmp_path, change, message):
    asked = {"model": ARM, "vary": VARY, "n": 4, "duration": 0.1, "store": tmp_path / "runs.zarr"} | change
    with pytest.raises(ArgumentError, match=message):
        ts.ensemble(**asked)
    with pytest.raises(ArgumentError, match="std must not be negative"):
        ts.Normal(std=-1)
    with pytest.raises(ArgumentError, match="do not go together"):
        ts.Uniform(low=[0, 0], high=[1, 1, 1])


@pytest.mark.parametrize(("old", "new"), [("dt", "step"), ("record", "keep"), ("kp", "PD"), ("q_ref", "PD")])
def test_keywords_of_version_0_1_name_the_new_ones(tmp_path, old, new):
    with pytest.raises(TypeError, match=rf"'{old}': it is called .*{new}"):
        study(tmp_path / "runs.zarr", **{old: 1.0})


def test_members_whose_quantities_have_other_shapes_are_refused(tmp_path):
    group = study(tmp_path / "runs.zarr", n=2, duration=0.02).group
    steps = group.variables["q"].shape[0]
    with pytest.raises(ArgumentError, match=rf"'q' has shape \(5, 3\) for some members and \({steps}, 3\) for others"):
        group.put("q", 0, np.zeros((2, 5, 3)))


def test_fans_and_shares(tmp_path):
    """What explains most of the variance is found."""
    vary = {"v0": ts.Uniform(low=[-1, 0, 0], high=[1, 1e-3, 1e-3]), "*.density": ts.Normal(mean=1, std=1e-3)}
    found = study(tmp_path / "runs.zarr", vary, 200, duration=0.05)
    share = found.sensitivities()
    assert share["v0"][0] > 0.95
    assert share["*.density"].max() < 0.1
    of_the_end, of_the_other = (found.sensitivities(found["q"][:, -1, k]) for k in (0, 1))
    assert np.array_equal(share["v0"], of_the_end["v0"])
    assert of_the_other["v0"][0] != share["v0"][0]
    figure = found.plot(path=tmp_path / "fans.png")
    assert len(figure.axes) == 3
    assert (tmp_path / "fans.png").stat().st_size > 1000


ISHIGAMI = {"v0": ts.Uniform(low=-np.pi, high=np.pi)}


def test_sobol_indices_are_those_of_a_known_function(tmp_path):
    """Ishigami's function of what was drawn; its indices are known (Saltelli & al. 2008, a = 7, b = 0.1)."""
    draws = Draws(ARM, ISHIGAMI, 5 * 1024, 0, "saltelli")
    assert np.array_equal(np.concatenate([draws.uniform(0, 3000), draws.uniform(3000, 5120)]), draws.uniform(0, 5120))
    options = {"duration": None, "times": [0.001, 0.002], "keep": "q", "method": "semi-implicit", "chunk": 5120}
    found = study(tmp_path / "runs.zarr", ISHIGAMI, 5 * 1024, sampling="saltelli", **options)
    a, b, c = found["v0"].T
    first, total = found.sobol_indices(np.sin(a) + 7 * np.sin(b) ** 2 + 0.1 * c**4 * np.sin(a))["v0"]
    assert np.abs(first - [0.3139, 0.4424, 0]).max() < 0.02
    assert np.abs(total - [0.5576, 0.4424, 0.2437]).max() < 0.02
    for one, other in zip(found.sobol_indices()["v0"], found.sobol_indices(found["q"][:, -1, 0])["v0"]):
        assert np.array_equal(one, other)
    with pytest.raises(ArgumentError, match="one number per member"):
        found.sobol_indices(a[:5])
    with pytest.raises(ArgumentError, match="sampling='saltelli'"):
        study(tmp_path / "other.zarr", n=2).sobol_indices()


STUDY = """
model = "panda"
n = 6
duration = 0.05
keep = ["q", "energy"]
[vary]
"*.density" = { normal = [1.0, 0.1] }
v0 = { uniform = [-0.1, 0.1] }
"PD.kp" = { uniform = [1.0, 2.0] }
[forces.PD]
reference = 0.0
kp = 1.0
kd = 0.1
"""


def test_the_command(tmp_path, capsys):
    file, runs = tmp_path / "study.toml", tmp_path / "runs.zarr"
    file.write_text(STUDY)
    command, log = ["sweep", str(file), "--store", str(runs)], tmp_path / "log"
    assert main([*command, "--json", "--log", str(log)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["members"], told["done"], told["failed"], told["seed"]) == (6, 6, {}, 0)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    expected = ["command begins", "study begins", "chunk done", "study ends", "command ends"]
    assert [line["event"] for line in lines] == expected
    assert (lines[0]["torsor"], lines[1]["members"], lines[2]["failed"]) == (ts.__version__, 6, 0)
    attributes = ts.Study(runs).group.attributes
    assert attributes["numpy"] == np.__version__
    assert (attributes["options"]["n"], attributes["options"]["record"]) == (6, ["q", "energy"])
    ts.Study(runs).plot(path=tmp_path / "fans.svg")
    assert attributes["key"] in (tmp_path / "fans.svg").read_text()
    with pytest.raises(ts.ArgumentError, match="cannot be written"):
        ts.Study(runs).plot(path=tmp_path / "nowhere" / "fans.svg")
    assert main(command) == 1
    assert "--resume" in capsys.readouterr().err
    assert main([*command, "--resume"]) == 0
    for text, message in (
        (STUDY.replace("n = 6", "n = 'six'"), "n = 'six' has the wrong type"),
        (STUDY.replace("normal", "normals"), "give one of normal, uniform, lognormal"),
        ("colour = 3\n" + STUDY, "unknown key 'colour'"),
        ("dt = 0.1\n" + STUDY, "unknown key 'dt'; it is called step now"),
        (STUDY.replace("kd = 0.1", "gain = 0.1"), "[forces.PD] has reference, kp, gain; PD takes reference, kp, kd"),
        (STUDY + "[forces.Magnet]", "unknown force 'Magnet'"),
        (STUDY + "[states]\nkp = 3.0", "gains belong to [forces.PD]"),
        ("n = [", "study.toml"),
    ):
        file.write_text(text)
        assert main([*command, "--resume"]) == 1
        assert message in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("method", ["dopri5", pytest.param("semi-implicit", marks=pytest.mark.slow)])
def test_members_stop_by_themselves(tmp_path, method):
    """Where simulations of each with the same event end: to rounding, or to a step."""
    height = float(ts.body_poses(ARM, np.zeros(3))[-1, 2, 3]) - 0.01
    stops = [ts.Stop(v=0, below=-0.6, above=0.6), ts.Stop(frame=ARM.n - 1, below=height)]
    options = {"method": method, "step": 1e-3, "rtol": 1e-9, "atol": 1e-12, "stop": stops, "duration": 0.2, "n": 6}
    found = study(tmp_path / "runs.zarr", **options)
    assert found.failed == {}
    assert len(found.stopped) > 0
    assert set(found.stopped.values()) <= {1, 2}
    for k in range(6):
        machine = found.member(k).model

        def inside(t, q, v, machine=machine):
            return min(0.6 - abs(v[0]), ts.body_poses(machine, q)[-1, 2, 3] - height)

        one = ts.simulate(machine, v0=found["v0"][k], duration=0.2, stop=inside, rtol=1e-10, atol=1e-12, dt=0.2)
        if k not in found.stopped:
            assert np.isnan(found["stop_time"][k])
            assert one.t[-1] == 0.2
            continue
        exact = 1e-8 if method == "dopri5" else 2e-3
        assert abs(found["stop_time"][k] - one.t[-1]) < exact
        assert np.abs(found["q"][k, -1] - one.q[-1]).max() < 10 * exact
        late = found.times > found["stop_time"][k]
        assert (found["q"][k, late] == found["q"][k, -1]).all()
        assert (
            found["q"][k, ~late].tolist()
            == study(tmp_path / f"{k}.zarr", **options | {"stop": None})["q"][k, ~late].tolist()
        )
    with pytest.raises(ArgumentError, match="has 3 of them"):
        study(tmp_path / "none.zarr", stop=ts.Stop(q=7, below=0.0))


@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.slow)])
def test_members_above_a_level_for_a_moment_stop(device, where):
    """A step of a ball that flies takes it far beyond the top of its way."""
    ball, g = ts.Model.chain("prismatic", axis=(0, 0, 1), mass=1.0, inertia=(1, 1, 1)), 9.81
    above = np.array([0.07, 0.01, 1e-3])
    up = np.sqrt(2 * g * (1 + g * above**2 / 8))
    options = {"times": np.array([2.0]), "stops": (ts.Stop(q=0, above=1.0),)}
    found = _plan(ball, {"v0": up[:, None]}, 3, where, **options).chunk(0, 3)
    assert found["status"].tolist() == [STOPPED] * 3
    np.testing.assert_allclose(found["stop_time"], up / g - above / 2, rtol=1e-10)
    missed = _plan(ball, {"v0": np.full((1, 1), np.sqrt(2 * g) * (1 - 1e-6))}, 1, where, **options).chunk(0, 1)
    assert missed["status"].tolist() == [OK]


def test_members_that_start_outside_stop_at_once(tmp_path):
    starts = {"q0": np.array([[0.5, 0, 0], [0.0, 0, 0]])}
    for method in ("dopri5", "rk4"):
        options = {"n": 2, "stop": ts.Stop(q=0, above=0.4), "method": method, "duration": 0.1}
        found = study(tmp_path / method, starts, **options)
        assert found.stopped == {0: 1}
        assert found["stop_time"][0] == 0
        assert (found["q"][0] == [0.5, 0, 0]).all()
        assert (found["v"][0] == 0).all()


@pytest.mark.parametrize(
    ("distribution", "theirs"),
    [
        (ts.Normal(mean=3.0, std=0.5), stats.norm(3.0, 0.5)),
        (ts.Uniform(low=-1.0, high=4.0), stats.uniform(-1.0, 5.0)),
        (ts.LogNormal(median=2.0, sigma=0.7), stats.lognorm(0.7, scale=2.0)),
    ],
)
def test_distributions_are_those_of_scipy(distribution, theirs):
    u = np.linspace(0.001, 0.999, 41)
    np.testing.assert_allclose(distribution.value(u), theirs.ppf(u), rtol=1e-12, atol=1e-12)
