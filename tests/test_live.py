"""The live page: a machine that moves in WebAssembly by torsor's own steps.

Steps are run in Node against `rollout`; `pytest -m browser` opens the pages in a headless Chromium.
"""

import base64
import contextlib
import io
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import processes
import pytest
from PIL import Image
from test_c import tree_of_every_joint
from test_view import scene_of

import torsor as ts
from torsor import cli, zoo
from torsor.model.extras import Coupling, Extras
from torsor.view import browser as browser_module
from torsor.view import movies
from torsor.view import page as view_page
from torsor.view.browser import Browser
from torsor.view.machine import STEP, STEPS, moving

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(not NODE, reason="Node is not installed")

COUNT = 60  # steps
SAME = 1e-11  # of the largest number of a state, after COUNT steps: there are no fused multiply-adds

RUN = """
const { readFileSync } = require("fs"), { inflateSync } = require("zlib");
const { spec, steps } = JSON.parse(readFileSync(process.argv[1]));
const env = { sin: Math.sin, cos: Math.cos };
WebAssembly.instantiate(inflateSync(Buffer.from(spec.module, "base64")), { env }).then(({ instance: { exports } }) => {
  const view = ([at, size]) => new Float64Array(exports.memory.buffer, at, size);
  const found = steps.map(({ method, count, set }) => {
    for (const [name, x] of Object.entries(set)) view(spec.arrays[name]).set(x);
    for (let k = 0; k < count; k++) exports[method]();
    return [...view(spec.arrays.q), ...view(spec.arrays.v)];
  });
  process.stdout.write(JSON.stringify(found));
});
"""


def in_node(spec, steps, folder):
    """The states after some runs of a machine's steps."""
    (folder / "job.json").write_text(json.dumps({"spec": spec, "steps": steps}))
    done = processes.call(NODE, "-e", RUN, folder / "job.json")
    assert done.returncode == 0, done.stderr[:2000]
    return np.array(json.loads(done.stdout))


def limited_arm():
    """An arm with friction, dampers, springs, stops, and drives with limits."""
    arm = zoo.general_arm(4, 3)
    own = dict(damping=0.1, friction=0.2, stiffness=0.5, lower=-0.3, upper=0.4, effort=5.0, speed=1.0)
    return replace(arm, **{name: np.full(arm.nv, x) for name, x in own.items()})


def sprung_tree():
    """All joints, also those with quaternions, have springs, dampers and friction."""
    tree = tree_of_every_joint()
    return replace(tree, stiffness=np.full(tree.nv, 2.0), damping=np.full(tree.nv, 0.1), friction=np.full(tree.nv, 0.2))


def coupled_arm():
    """More freedoms than compiled functions of coupled joints have."""
    arm = zoo.general_arm(44, 3)
    return replace(arm, extras=Extras(couplings=(Coupling(2, 1, -0.5, 0.3), Coupling(40, 20, 1.0, 0.0))))


MACHINES = {
    "arm": lambda: zoo.general_arm(3, 5), "limits": limited_arm, "every joint": tree_of_every_joint,
    "coupled": coupled_arm, "floating": lambda: zoo.humanoid(),
    "springs": sprung_tree, "long": lambda: zoo.general_arm(20, 5),
}  # fmt: skip


@pytest.mark.thinned(2)
@needs_node
@pytest.mark.parametrize("name", MACHINES)
def test_steps_in_the_page_are_those_of_a_rollout(name, tmp_path):
    model = MACHINES[name]()
    rng = np.random.default_rng(1)
    q, v, tau = model.random_configuration(rng), rng.normal(size=model.nv) * 0.3, rng.normal(size=model.nv)
    if model.couplings:
        q, v = model.coupled(q), model.coupling_matrix() @ rng.normal(size=model.coupling_matrix().shape[1]) * 0.01
    state = {"q": q.tolist(), "v": v.tolist(), "tau": tau.tolist()}
    steps = [{"method": method, "count": COUNT, "set": state} for method in STEPS]
    for method, found in zip(STEPS, in_node(moving(model), steps, tmp_path)):
        run = ts.rollout(model, q, v, steps=COUNT, step=STEP, method=method, forces=ts.Constant(tau), every=COUNT)
        expected = np.concatenate([run.q[-1], run.v[-1]])
        assert np.abs(found - expected).max() <= SAME * np.abs(expected).max(), method


@needs_node
def test_gravity_damping_and_feedback_act(tmp_path):
    arm = zoo.general_arm(3, 5)
    gains = np.random.default_rng(0).normal(size=(3, 6))
    spec = moving(arm, ts.Feedback(gains))
    start = {"q": [0.3, -0.2, 0.5], "v": [0.0, 0.1, 0.0], "gravities": [1.0, 2.0, -3.0]}
    [found] = in_node(spec, [{"method": "rk4", "count": COUNT, "set": start}], tmp_path)
    tilted = ts.ModelBatch(arm, gravity=np.array([1.0, 2.0, -3.0]))
    run = ts.rollout(
        tilted, start["q"], start["v"], steps=COUNT, step=STEP, method="rk4", forces=ts.Feedback(gains), every=COUNT
    )
    np.testing.assert_allclose(found, [*run.q[-1], *run.v[-1]], rtol=SAME)
    resting = {"q": [0.3, -0.2, 0.5], "v": [0.0] * 3, "gravities": [0.0] * 3, "gain": [0.0] * spec["arrays"]["gain"][1]}
    [still] = in_node(spec, [{"method": "rk4", "count": COUNT, "set": resting}], tmp_path)
    np.testing.assert_array_equal(still, [0.3, -0.2, 0.5, 0, 0, 0])


@needs_node
@pytest.mark.parametrize("name", ["limits", "springs"])
def test_friction_stops_and_springs_do_not_blow_up_in_a_minute(name, tmp_path):
    model = MACHINES[name]()
    spec = view_page.live_scene(model).data["machine"]
    start = {"q": spec["start"], "v": [0.0] * model.nv}
    rows = in_node(
        spec, [{"method": spec["method"], "count": 1000, "set": start if k == 0 else {}} for k in range(60)], tmp_path
    )
    q, v = rows[:, : model.nq], rows[:, model.nq :]
    assert np.isfinite(rows).all()
    assert ts.kinetic_energy(model, q, v)[-1] < 1e-2 * ts.kinetic_energy(model, q, v).max()  # they come to rest


@needs_node
@pytest.mark.parametrize("name", ["arm", "every joint", "floating"])
def test_without_gravity_machines_stand_still(name, tmp_path):
    model = MACHINES[name]()
    spec = view_page.live_scene(model).data["machine"]
    start = {"q": spec["start"], "v": [0.0] * model.nv, "gravities": [0.0] * 3}
    for row in in_node(spec, [{"method": method, "count": 1000, "set": start} for method in STEPS], tmp_path):
        np.testing.assert_allclose(row, [*spec["start"], *start["v"]], atol=1e-12)


def test_machines_of_any_size_are_moved_at_a_pace_that_people_see():
    def pendulum(length):
        return ts.Model.chain(n=1, axis=(0, 1, 0), com=(length, 0, 0), mass=1.0, inertia=[0.1 * length**2] * 3)

    paces = [view_page.live_scene(pendulum(length)).data["machine"]["pace"] for length in (1e-9, 1.0, 1e6)]
    assert paces[1] == 1.0
    np.testing.assert_allclose(paces[0], np.sqrt(2e-9 / 9.81) / 0.02, rtol=1e-3)
    np.testing.assert_allclose(paces[2], np.sqrt(2e6 / 9.81) / 3.0, rtol=1e-3)


@needs_node
def test_a_double_pendulum_keeps_its_energy(tmp_path):
    model = zoo.point_chain(2)
    spec, q = moving(model), np.array([2.0, 1.0])
    zeros = [0.0] * spec["arrays"]["gain"][1]
    steps = [{"method": "rk4", "count": 0, "set": {"q": q.tolist(), "v": [0.0, 0.0], "gain": zeros}}]
    steps += [{"method": "rk4", "count": 500, "set": {}}] * 120  # 60 s
    rows = in_node(spec, steps, tmp_path)
    kinetic, potential = ts.kinetic_energy(model, rows[:, :2], rows[:, 2:]), ts.potential_energy(model, rows[:, :2])
    drift = np.abs(kinetic + potential - potential[0]).max()
    assert drift < 1e-5 * kinetic.max()  # the greatest kinetic energy


def test_a_live_page_is_small_and_complete(monkeypatch):
    monkeypatch.delenv("TORSOR_OPTIMIZE", raising=False)
    page = view_page.page(view_page.live_scene(zoo.humanoid()))
    assert len(page) < 400_000
    data = scene_of(page)
    assert {"q", "v", "tau", "gain", "damping", "external", "gravities", "h"} <= data["machine"]["arrays"].keys()
    assert len(data["joints"]) == 30
    [pin] = data["machine"]["pins"]
    assert zoo.humanoid().names[pin["body"]] == "head"
    assert len(base64.b64decode(data["machine"]["module"])) < 20_000  # deflated


@pytest.mark.parametrize(
    ("forces", "message"),
    [(lambda t, q, v: 0 * v, "data"), (ts.Table([0.0, 1.0], np.zeros((2, 3))), "change in time")],
)
def test_forces_that_a_page_cannot_compute_are_refused(forces, message):
    with pytest.raises(ts.ArgumentError, match=message):
        view_page.live_scene(zoo.general_arm(3, 5), forces)


def test_machines_too_large_for_a_page_are_refused():
    with pytest.raises(ts.ArgumentError, match="2000 freedoms"):
        moving(zoo.rope(1100))
    with pytest.raises(ts.ArgumentError, match="300 bodies"):
        view_page.live_scene(zoo.rope(400))


def test_the_command_and_the_method_write_live_pages(tmp_path, capsys):
    assert cli.main(["view", "planar3", "--live", "--out", str(tmp_path / "a.html")]) == 0
    assert str(tmp_path / "a.html") in capsys.readouterr().out.replace("\n", "")
    assert zoo.planar3().view(path=tmp_path / "b.html", live=True) == tmp_path / "b.html"
    data = [scene_of((tmp_path / name).read_text()) for name in ("a.html", "b.html")]
    assert data[0]["machine"] == data[1]["machine"]
    assert cli.main(["view", str(tmp_path / "a.traj"), "--live"]) == 1


# ---- in a real browser ----


@pytest.mark.browser
def test_a_hand_pulls_a_body_towards_the_mouse(tmp_path):
    bent = [0.0, 0.4, 0.0, -1.8, 0.0, 2.2, 0.8]  # from where the hand can reach the mouse
    with Browser(zoo.panda().view(bent, tmp_path / "page.html", live=True), 900, 700) as browser:
        browser.evaluate(
            "torsor.setPlaying(false); torsor.reset(); torsor.machine.x.gravities.fill(0); torsor.stage.render();"
            "torsor.machine.setDamping(1)"
        )
        x, y = browser.evaluate("torsor.stage.onScreen(torsor.bodies.groups[5].position)")
        browser.mouse("mouseMoved", x, y)
        browser.mouse("mousePressed", x, y)
        assert browser.evaluate("torsor.machine.pulls.has('hand')")
        browser.mouse("mouseMoved", x - 60, y + 40)
        distance = """(() => {
            const { machine } = torsor, hand = machine.pulls.get("hand"), p = machine.pointOf(machine.poses(), hand);
            return Math.hypot(...p.map((x, k) => x - hand.target[k]));
        })()"""
        before = browser.evaluate(distance)
        browser.evaluate("torsor.step(3000)")
        assert browser.evaluate(distance) < 0.05 * before
        browser.mouse("mouseReleased", x - 60, y + 40)
        assert browser.evaluate("torsor.machine.pulls.size") == 0


@pytest.mark.browser
def test_a_live_humanoid_hangs_from_its_pin(tmp_path):
    with Browser(zoo.humanoid().view(path=tmp_path / "page.html", live=True)) as browser:
        browser.evaluate("torsor.setPlaying(false); torsor.reset(); torsor.step(2000)")
        moved = """(() => {
            const { machine } = torsor, pin = machine.pulls.get("pin0"), p = machine.pointOf(machine.poses(), pin);
            return Math.hypot(...p.map((x, k) => x - pin.target[k]));
        })()"""
        assert browser.evaluate(moved) < 0.05  # m


@pytest.mark.browser
def test_pictures_and_movies(tmp_path):
    run = ts.simulate(zoo.planar3(), duration=0.3)
    run.picture(tmp_path / "a.png", 0.1, size=(320, 200), theme="dark")
    with Image.open(tmp_path / "a.png") as found:
        assert found.size == (320, 200)
        assert len(found.convert("RGB").getcolors(100_000)) > 50
    run.movie(tmp_path / "a.gif", size=(160, 100), fps=10)
    with Image.open(tmp_path / "a.gif") as found:
        assert (found.size, found.n_frames) == ((160, 100), 4)


def test_a_page_is_waited_for(monkeypatch):
    monkeypatch.setattr(browser_module, "PATIENCE", 1.0)
    page, answers = object.__new__(Browser), iter([False, False, True])
    page.evaluate = lambda condition: next(answers)
    page._wait_for("ready")
    assert next(answers, None) is None
    page.evaluate = lambda condition: False
    with pytest.raises(ts.ArgumentError, match="not ready after 1 s"):
        page._wait_for("ready")


def test_frames_of_a_movie_are_from_the_first_time_to_the_last(tmp_path, monkeypatch):
    """At 10 frames per second and half speed every 0.05 s; drawn by a browser that only takes notes."""
    sought = []

    class Notes(contextlib.nullcontext):
        def evaluate(self, script):
            sought.append(float(re.search(r"seek\((.*?)\)", script)[1]))

        def png(self):
            content = io.BytesIO()
            Image.new("RGB", (16, 16), (10 * len(sought), 0, 0)).save(content, "png")
            return content.getvalue()

    monkeypatch.setattr(movies, "_bare", lambda scene, size, theme: Notes(Notes()))
    ts.simulate(zoo.planar3(), duration=0.3).movie(tmp_path / "a.gif", fps=10, speed=0.5)
    np.testing.assert_allclose(sought, np.arange(7) * 0.05, rtol=0, atol=1e-12)
    with Image.open(tmp_path / "a.gif") as found:
        assert (found.n_frames, found.info["duration"]) == (7, 100)


def test_pictures_say_what_is_missing(tmp_path, monkeypatch):
    run = ts.simulate(zoo.planar3(), duration=0.1)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("torsor.view.browser.MAC", "nowhere")
    with pytest.raises(ts.ArgumentError, match="Chromium or Chrome"):
        run.picture(tmp_path / "a.png")
    with pytest.raises(ts.ArgumentError, match="ffmpeg"):
        run.movie(tmp_path / "a.mp4")
    with pytest.raises(ts.ArgumentError, match=r"\.mp4 or \.gif"):
        run.movie(tmp_path / "a.avi")
    assert not any(tmp_path.iterdir())


def test_many_trajectories_are_one_page(tmp_path):
    q = np.random.default_rng(0).normal(size=(50, 3)) * 0.3
    runs = ts.rollout(zoo.planar3(), q, np.zeros((50, 3)), steps=20, step=0.01)
    data = scene_of(runs.view(tmp_path / "page.html").read_text())
    assert len(data["ghosts"]) == 30
    points = np.frombuffer(base64.b64decode(data["ghosts"][-1]["points"]), "<f4").reshape(len(data["times"]), -1, 3)
    exact = ts.body_poses(zoo.planar3(), runs.q[-1, -1])[:, :3, 3]
    np.testing.assert_allclose(points[-1, :3], exact, rtol=0, atol=1e-6)
    assert "31 of 50 trajectories" in data["subtitle"]


def test_members_of_a_study_are_one_page(tmp_path):
    vary = {"*.mass": ts.Uniform(low=0.5, high=2.0)}
    study = ts.ensemble(
        zoo.planar3(), vary, n=4, times=[0.0, 0.05, 0.1], step=0.01, method="rk4", store=tmp_path / "a.zarr"
    )
    data = scene_of(study.view(tmp_path / "page.html").read_text())
    assert len(data["ghosts"]) == 3
