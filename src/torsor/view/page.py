"""The 3-D page: one self-contained HTML file that plays a trajectory, without other files and without a network.

It consists of page.html, our scripts (`PLAYER`) and three.min.js (three.js, MIT: its licence is at the top of that
file; `three_entry.js` says how it is made). The scene and three.js are compressed in the page.
"""

from __future__ import annotations

import json
import re
import tempfile
import webbrowser
import zlib
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torsor.dynamics import functions as dynamics
from torsor.errors import ArgumentError
from torsor.files import made, signature, write_whole
from torsor.lie import matrix_to_quaternion
from torsor.model.joints import JOINTS
from torsor.model.model import Model
from torsor.motion.law import force_list
from torsor.motion.trajectory import Trajectory
from torsor.validate import brief, real_array
from torsor.view.controls import columns, couplings, joint_sliders, limits_of, series, torque_sliders
from torsor.view.limbs import is_floating, limb_colours
from torsor.view.machine import moving, poses_only
from torsor.view.shapes import shapes
from torsor.view.showcase import floating, resistance, shown_configuration, started
from torsor.view.tube import floats, frame_times, text, tube

Array = NDArray[Any]

FRAMES_PER_SECOND = 60
POSTURES_PER_SECOND = 4
MOST_INLINE = 5_000_000  # bytes of a page inside a notebook
FRAME = "width: 100%; height: 420px; border: 0"
UNPACK = """<script>(async () => {
  const bytes = Uint8Array.from(atob("%s"), c => c.charCodeAt(0));
  const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  document.open(); document.write(text); document.close();
})()</script>"""  # runs in the frame
POINT = 0.1  # reach of a machine whose bodies are all at one point
EYE = 3.3  # distance of the eye, in radii of the scene
SWINGS = 0.02, 3.0  # s: machines that swing faster or more slowly are shown in slow motion or time lapse
COVERED = 0.4  # if this share of the bodies has shapes, links between joints are not drawn
SAMPLES = 50  # random configurations to estimate the workspace of a machine
MOST_GHOSTS = 30  # trajectories in addition to the first
MOST_POSES = 400_000  # bodies times frames: about 15 MB of page
MOST_BODIES, MOST_SHAPED = 300, 1000  # drawn one by one, without and with shapes; more are drawn as one tube
PLAYER = ("stage.js", "bodies.js", "tube.js", "machine.js", "recorded.js", "panels.js", "page.js")
THICK = 250  # radii of such a tube in the reach of the machine: two pixels at first sight


def show(shown: Trajectory | Scene, path: str | Path | None = None) -> Path:
    """Write the page to `path`; without one, to a temporary file that is opened in the browser."""
    if path is not None:
        return write(shown, path)
    with tempfile.NamedTemporaryFile("w", suffix=".html", prefix="torsor-", delete=False) as file:
        page = write(shown, file.name)
    webbrowser.open(page.resolve().as_uri())
    return page


def write(shown: Trajectory | Scene, path: str | Path) -> Path:
    """Write the page to a file."""
    return write_whole(path, page(shown).encode("utf-8"))


def show_model(model: Model, q: ArrayLike | None = None, path: str | Path | None = None, live: bool = False,
               forces: Any = ()) -> Path:  # fmt: skip
    """The page of a model: the user can turn its joints; with `live`, it moves by its own equations of motion.

    Several configurations (m, nq) are shown one after the other.
    """
    if isinstance(q, str | Path):
        raise ArgumentError(f"q must be a configuration, not {brief(q)}; the file of the page is path=")
    if q is not None and np.ndim(q) == 2:
        return show(postures(model, q), path)
    return show(live_scene(model, forces, q) if live else still_scene(model, q), path)


def postures(model: Model, q: ArrayLike) -> Trajectory:
    """Configurations (m, nq) as a motion from one to the next."""
    rows = real_array("q", q)
    if rows.shape[1] != model.nq:
        raise ArgumentError(f"q must have shape ({model.nq},) or (m, {model.nq}) for {model!r}, not {rows.shape}")
    model.check_quaternions(rows)
    return Trajectory(model, np.arange(len(rows)) / POSTURES_PER_SECOND, rows).motion()


def at_rest(model: Model, q: ArrayLike | None = None) -> Trajectory:
    """A trajectory of one row: the model as its file shows it, or at q."""
    row = (shown_configuration(model) if q is None else real_array("q", q))[None]
    if row.shape != (1, model.nq):
        raise ArgumentError(f"q must have shape ({model.nq},) or (m, {model.nq}) for {model!r}, not {row.shape[1:]}")
    still = np.zeros((1, model.nv))
    return Trajectory(model, np.zeros(1), row, still, still, still)


@dataclass(frozen=True)
class Scene:
    """The content of a page: the model, the data of the page, and how it was made."""

    model: Model
    data: dict[str, Any]
    about: dict[str, Any]


def page(shown: Trajectory | Scene) -> str:
    """The text of the page."""
    found = shown if isinstance(shown, Scene) else recorded_scene(shown)
    parts = {
        "__TITLE__": escape(found.model.name),
        "__GENERATOR__": f"torsor {made()['torsor']}",
        "__ABOUT__": escape(signature(found.about)),
        "__DATA__": deflated(json.dumps(found.data, separators=(",", ":"))),
        "__THREE__": deflated(_resource("three.min.js")),
        "__PLAYER__": "\n".join(map(_resource, PLAYER)),
    }
    # one pass for all placeholders: inserted text is not searched again, whatever it contains
    return re.sub("|".join(parts), lambda found: parts[found[0]], _resource("page.html"))


def inline(trajectory: Trajectory) -> str | None:
    """The page for notebooks: compressed, in a separate frame; None if it is very large."""
    if not len(trajectory) or len(packed := zlib.compress(page(trajectory).encode("utf-8"), 9)) > MOST_INLINE:
        return None
    return f'<iframe style="{FRAME}" srcdoc="{escape(UNPACK % b64encode(packed).decode())}"></iframe>'


def deflated(content: str) -> str:
    return text(zlib.compress(content.encode(), 9))


def recorded_scene(run: Trajectory) -> Scene:
    """A motion; if only configurations were kept, velocities are computed from them."""
    run = run if run.v is not None and run.a is not None else run.motion()
    data = scene(run)
    t = np.array(data["times"])
    if len(t) > 1 and data["bodies"]:  # the curves of a tube would be as large as the page
        found = series(run, t)
        data |= {"columns": columns(run.model, run.tau is not None), "series": found} if found else {}
    return Scene(run.model, data, run.about)


def scene_of_many(runs: Trajectory) -> Scene:
    """The motions of a rollout, which share their times."""
    if runs.is_on_device:
        raise ArgumentError("the states are on a GPU: copy them to the host before they are viewed")
    q = np.asarray(runs.q, float)
    batch = q.shape[:-2]

    def member(k: int) -> Trajectory:
        index = tuple(int(i) for i in np.unravel_index(k, batch))
        machines = runs.batch
        model: Any = runs.model if machines is None else machines[index[len(index) - len(machines.shape) :]]
        v = None if runs.v is None else np.asarray(runs.v, float)[index]
        return Trajectory(model, runs.t, q[index], v, about=runs.about).motion()

    return scene_of_members(member, np.arange(int(np.prod(batch))))


def scene_of_members(member: Callable[[int], Trajectory], numbers: Array) -> Scene:
    """Many motions with common times: the first as a machine, some of the others as lines from joint to joint."""
    chosen = numbers[np.linspace(0, len(numbers) - 1, min(len(numbers), 1 + MOST_GHOSTS)).astype(int)].tolist()
    if not chosen:
        raise ArgumentError("there is no trajectory to show")
    found = recorded_scene(first := member(chosen[0]))
    data, t, tips = found.data, np.array(found.data["times"]), _tips(first.model)
    if not data["bodies"]:
        return found
    others = [member(k) for k in chosen[1:]]
    points = [_skeleton(run.model, run.at(np.clip(t, run.t[0], run.t[-1]))[0], tips) for run in others]
    above = [*first.model.parent.tolist(), *tips]
    data["ghostLinks"] = [k for i, parent in enumerate(above) if parent >= 0 for k in (parent, i)]
    data["ghosts"] = [{"points": floats(p), "size": p.shape[1]} for p in points]
    data["subtitle"] += f", {len(chosen)} of {len(numbers)} trajectories"
    return found


def _skeleton(model: Model, q: Array, tips: dict[int, Array]) -> Array:
    """(frames, n + tips, 3) the origins of all bodies and the far ends of the tips."""
    poses = dynamics.body_poses(model, q)
    ends = [poses[:, i, :3, 3] + poses[:, i, :3, :3] @ p for i, p in tips.items()]
    return np.concatenate([poses[..., :3, 3], np.stack(ends, axis=1)], axis=1)


def still_scene(model: Model, q: ArrayLike | None = None) -> Scene:
    """A machine whose joints the user can turn."""
    rest = at_rest(model, q)
    data = scene(rest)
    if data["bodies"] and len(joint_sliders(model)):
        data["machine"] = poses_only(model) | _start(model, rest.q[0])
        data |= {"joints": joint_sliders(model), "keyframes": {name: x.tolist() for name, x in model.keyframes.items()}}
    return Scene(model, data, {})


def live_scene(model: Model, forces: Any = (), q: ArrayLike | None = None) -> Scene:
    """A machine that moves by its own equations of motion."""
    q = started(model) if q is None else q
    data = scene(at_rest(model, q))
    if not data["bodies"]:
        raise ArgumentError(f"a live page draws {MOST_BODIES} bodies at most, not the {model.n} of {model!r}")
    start = np.array(at_rest(model, q).q[0])
    pins = [_pin(model, start)] if floating(model) else []
    if pins and not force_list(forces):  # a rag doll
        forces = resistance(model)
    weight, mass, reach = float(np.linalg.norm(model.gravity)), float(model.mass.sum()), data["reach"]
    swing = np.sqrt(reach / max(weight, 1.0))
    law = moving(model, forces, pace=float(swing / np.clip(swing, *SWINGS)))
    scale = mass * max(weight, 1.0) * reach
    data["machine"] = law | _start(model, start) | {
        "mass": mass, "weight": mass * max(weight, 1.0), "gravity": model.gravity.tolist(), "pins": pins,
        "damping": 0.3 * scale * swing, "paused": False,
    }  # fmt: skip
    tips = [{"body": i, "point": p.tolist()} for i, p in _tips(model).items()]
    return Scene(model, data | _view_of(_live_stage(model, start), _up(model)) | {
        "joints": joint_sliders(model), "drives": torque_sliders(model, 0.3 * scale), "tips": tips,
        "columns": columns(model, with_torques=False), "subtitle": _subtitle(model),
    }, {})  # fmt: skip


def _subtitle(model: Model, seconds: float = 0.0) -> str:
    words = [f"{model.n} {'body' if model.n == 1 else 'bodies'}", f"{model.nv} degree{'s' * (model.nv > 1)} of freedom"]
    words.append(f"{seconds:g} {model.units.time}" if seconds else "")
    return ", ".join(filter(None, words))


def _pin(model: Model, q: Array) -> dict[str, Any]:
    """The point from which a floating machine hangs: the highest far end of its limbs, or its base."""
    ends = {i: p for i, p in _tips(model).items() if model.mass[i] > 0} | {i: np.zeros(3) for i in floating(model)}
    poses, up = dynamics.body_poses(model, q), _up(model)
    body = max(ends, key=lambda i: float((poses[i, :3, :3] @ ends[i] + poses[i, :3, 3]) @ up))
    return {"body": body, "point": ends[body].tolist()}


def _start(model: Model, q: Array) -> dict[str, Any]:
    return {"start": q.tolist(), "couplings": [*couplings(model)]}


def scene(trajectory: Trajectory) -> dict[str, Any]:
    """The data of the page: the shape of every body, and its pose in every frame; for very many bodies, a tube."""
    model = trajectory.model
    if not len(trajectory):
        raise ArgumentError("the trajectory has no rows: there is nothing to show")
    if model.n > (MOST_SHAPED if model.visuals else MOST_BODIES):
        return _tube_scene(trajectory)
    t, tips, reach = _times(trajectory), _tips(model), _reach(model)
    poses = dynamics.body_poses(model, trajectory.at(t)[0])
    w, x, y, z = np.moveaxis(matrix_to_quaternion(poses[..., :3, :3]), -1, 0)
    packed = np.stack([*np.moveaxis(poses[..., :3, 3], -1, 0), x, y, z, w], axis=-1)
    traces = np.stack([poses[:, i, :3, 3] + poses[:, i, :3, :3] @ p for i, p in tips.items()], axis=1)
    drawn, missing, corners = shapes(model)
    pillars = np.zeros((len(t), min(1, len(_pillars(model))), 3))  # a pillar stands on the origin
    p = np.concatenate([poses[..., :3, 3], traces, pillars], axis=1)
    root = next((i for i in range(model.n) if is_floating(model, i)), None)
    if root is not None:  # the camera follows it
        p = p - (poses[:, root, None, :3, 3] - poses[0, root, :3, 3])
    center, spread, floor = _stage(p, reach, _up(model))
    with_shapes = len(corners) >= COVERED * model.n  # otherwise, links are drawn as well
    if with_shapes:
        points = np.concatenate([_seen(poses[0], body, points) for body, points in corners.items()])
        low, high = points.min(axis=0), points.max(axis=0)
        center, floor = (low + high) / 2, float((points @ _up(model)).min())
        spread = float(np.linalg.norm(high - low)) / 2 or reach
    own = {"bodies": _bodies(model, tips, reach), "poses": floats(packed), **drawn, "missing": missing}
    own |= {"moving": None if root is None else {"body": root}, "withLinks": not with_shapes}
    return own | _around(model, t, traces, (center, spread, floor))


def _tube_scene(trajectory: Trajectory) -> dict[str, Any]:
    """The scene of a machine of very many bodies: identical links from joint to joint."""
    model = trajectory.model
    tips, reach = _tips(model), _reach(model)
    wanted = frame_times(trajectory.t, model.n + len(tips))
    found = tube(model, wanted, lambda t: trajectory.at(t)[0], tips, reach)
    missing = [f"the shapes of {model.n} bodies: only links between their joints are"] if model.visuals else []
    own: dict[str, Any] = {
        "tube": found.data,
        "bodies": [],
        "poses": "",
        "shapes": [],
        "meshes": [],
        "missing": missing,
    }
    own |= {"withLinks": True, "moving": None}
    around = _around(model, found.times, found.traces, _stage(found.seen, reach, _up(model)))
    return own | around | {"radius": max(around["radius"], reach / THICK)}


def _around(model: Model, t: Array, traces: Array, stage: tuple[Array, float, float]) -> dict[str, Any]:
    """The common data of scenes: times, the paths (frames, tips, 3) of the tips, floor and camera."""
    reach, up = _reach(model), _up(model)
    return _view_of(stage, up) | {
        "base": _pillars(model).tolist(),
        "times": t.tolist(), "traces": floats(traces), "reach": reach, "radius": _radius(model, reach),
        "up": up.tolist(), "subtitle": _subtitle(model, t[-1] - t[0]), "units": model.units._asdict(),
    }  # fmt: skip


def _view_of(stage: tuple[Array, float, float], up: Array) -> dict[str, Any]:
    """The position of the ground, and the viewpoint."""
    center, spread, floor = stage
    eye = center + EYE * spread * (_across(up) + 0.32 * up)
    return {"floor": floor, "center": center.tolist(), "eye": eye.tolist(), "spread": spread}


def _live_stage(model: Model, q: Array) -> tuple[Array, float, float]:
    """(centre, radius, floor) of the workspace of a machine, estimated from random joint angles."""
    some, up, sliders = np.tile(q, (SAMPLES, 1)), _up(model), joint_sliders(model)
    for joint in sliders:
        some[1:, joint["at"]] = np.random.default_rng(joint["at"]).uniform(joint["low"], joint["high"], SAMPLES - 1)
    p = _skeleton(model, some, _tips(model))
    turning = next((i for i in range(model.n) if is_floating(model, i)), None if len(sliders) == model.nq else 0)
    if turning is not None:  # in all directions, about a base or a first joint
        center = p[0, turning]
        far = float(np.linalg.norm(p - center, axis=-1).max()) or _reach(model)
        return center, far, float(center @ up) - 1.02 * far
    center = (p.min(axis=(0, 1)) + p.max(axis=(0, 1))) / 2
    far = float(np.linalg.norm(p - center, axis=-1).max()) or _reach(model)
    return center, far, float((p @ up).min()) - 0.02 * _reach(model)


def _pillars(model: Model) -> Array:
    """The positions of the first joints, if not at the origin."""
    return model.p[(model.parent < 0) & model.p.any(axis=1)]


def _seen(poses: Array, body: int, points: Array) -> Array:
    """Points of a body, or of the base, in the base frame."""
    return points if body < 0 else points @ poses[body, :3, :3].T + poses[body, :3, 3]


def _stage(p: Array, reach: float, up: Array) -> tuple[Array, float, float]:
    """(centre, radius, floor) of the bodies' positions (frames, n, 3), without those beyond the machine's reach."""
    origin = p[0, 0]
    offsets = p - origin
    far = np.linalg.norm(offsets, axis=-1, keepdims=True)
    near = origin + offsets * np.minimum(1, reach / np.maximum(far, reach / 2))
    low, high = near.min(axis=(0, 1)), near.max(axis=(0, 1))
    center = (low + high) / 2
    spread = max(float(np.linalg.norm(near - center, axis=-1).max()), reach / 3)
    return center, spread, float((near @ up).min()) - 0.1 * reach


def _times(trajectory: Trajectory) -> Array:
    """Times of the frames: evenly spaced, enough for smooth motion and few enough for the page."""
    if len(trajectory) < 2:
        return trajectory.t
    wanted = int(FRAMES_PER_SECOND * (trajectory.t[-1] - trajectory.t[0])) + 1
    return np.linspace(trajectory.t[0], trajectory.t[-1], max(2, min(wanted, MOST_POSES // trajectory.model.n)))


def _bodies(model: Model, tips: dict[int, Array], reach: float) -> list[dict[str, Any]]:
    """Each body: capsules from its joint to those it carries (to the far end of a tip), and the text of its card."""
    segments: list[list[Any]] = [[] for _ in range(model.n)]
    for i in range(model.n):
        if model.parent[i] >= 0:
            segments[model.parent[i]].append([[0, 0, 0], model.p[i].tolist()])
    for i, point in tips.items():
        segments[i].append([[0, 0, 0], point.tolist()])
    colours = limb_colours(model)
    return [
        {
            "name": model.names[i], "parent": int(model.parent[i]), "joint": JOINTS[model.joint[i]].name,
            "axis": model.axis[i].tolist(), "anchor": model.p[i].tolist(), "segments": segments[i],
            "box": _box(model, i, reach), "label": model.joint_names[i], "limb": colours[i][0], "place": colours[i][1],
            "mass": float(model.mass[i]), "com": model.com[i].tolist(), "limits": limits_of(model, i),
            "moments": np.linalg.eigvalsh(model.inertia[i]).tolist(),
        }
        for i in range(model.n)
    ]  # fmt: skip


def _tips(model: Model) -> dict[int, Array]:
    """The far end of every body that carries no other: the end of its inertia box beyond the mass centre."""
    return {int(i): _far_end(model, int(i)) for i in np.flatnonzero(model.children_count == 0)}


def _far_end(model: Model, i: int) -> Array:
    """com + h u, u along it: h^2 = 3 int (x . u)^2 dm / m, of a uniform box half its side, of a point mass zero."""
    com, distance = model.com[i], float(np.linalg.norm(model.com[i]))
    if distance == 0 or model.mass[i] <= 0:
        return 2 * com
    u = com / distance
    second = max(float(np.trace(model.inertia[i]) / 2 - u @ model.inertia[i] @ u), 0.0)
    return com + u * min(np.sqrt(3 * second / model.mass[i]), distance)


def _box(model: Model, i: int, reach: float) -> dict[str, Any] | None:
    """The uniform box of the same mass and inertia: side^2 = 6 (I_j + I_k - I_i) / m; none without mass."""
    if model.mass[i] <= 0:
        return None
    moments, axes = np.linalg.eigh(model.inertia[i])
    side = np.sqrt(np.maximum(6 * (moments.sum() - 2 * moments) / model.mass[i], (1e-3 * reach) ** 2))
    axes[:, 2] *= np.linalg.det(axes)  # a rotation, not a reflection
    w, x, y, z = matrix_to_quaternion(axes).tolist()
    return {"size": side.tolist(), "center": model.com[i].tolist(), "quaternion": [x, y, z, w]}


def _reach(model: Model) -> float:
    """The reach of the machine: the longest path from the base along the joints to a far end."""
    far = np.linalg.norm(model.p, axis=1)
    for i, parent in enumerate(model.parent.tolist()):
        far[i] += far[parent] if parent >= 0 else 0.0
    return float((far + 2 * np.linalg.norm(model.com, axis=1)).max()) or POINT


def _radius(model: Model, reach: float) -> float:
    """A suitable thickness, thin compared with the machine and with its links."""
    lengths = np.linalg.norm(model.p[1:], axis=1)
    lengths = lengths[lengths > 1e-6 * reach]
    thin = 0.15 * float(np.median(lengths)) if lengths.size else reach
    return min(reach / 40, max(thin, reach / 300))


def _up(model: Model) -> Array:
    g = float(np.linalg.norm(model.gravity))
    return -model.gravity / g if g > 0 else np.array([0.0, 0.0, 1.0])


def _across(up: Array) -> Array:
    """A viewing direction, perpendicular to up."""
    side = np.cross(up, [1.0, 0.0, 0.0] if abs(up[0]) < 0.9 else [0.0, 1.0, 0.0])
    side /= np.linalg.norm(side)
    return 0.8 * np.cross(side, up) - 0.6 * side


def _resource(name: str) -> str:
    return (files("torsor.view") / name).read_text(encoding="utf-8")
