"""The 3-D page: one self-contained HTML file that plays a trajectory, with no other file and no network.

It is made of page.html, player.js (ours) and three.min.js (three.js, MIT: its licence is at the top of that file).
"""

from __future__ import annotations

import json
import re
import tempfile
import webbrowser
import zlib
from base64 import b64encode
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.dynamics import functions as dynamics
from torsor.errors import ArgumentError
from torsor.files import made, signature, write_whole
from torsor.lie import matrix_to_quaternion
from torsor.model.freedoms import limited_coordinates
from torsor.model.joints import JOINTS
from torsor.model.model import Model
from torsor.motion.trajectory import Trajectory
from torsor.validate import real_array
from torsor.view.shapes import shapes
from torsor.view.tube import floats, frame_times, tube

Array = NDArray[Any]

FRAMES_PER_SECOND = 60
POSTURES_PER_SECOND = 4
EYE = 2.9  # distance of the eye, in radii of the scene
MOST_POSES = 400_000  # bodies times frames: about 15 MB of page
MOST_BODIES, MOST_SHAPED = 300, 1000  # drawn one by one, without and with shapes of their own; more are one tube
MOST_INLINE = 5_000_000  # bytes of a page inside a notebook
FRAME = "width: 100%; height: 420px; border: 0"
UNPACK = """<script>(async () => {
  const bytes = Uint8Array.from(atob("%s"), c => c.charCodeAt(0));
  const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  document.open(); document.write(text); document.close();
})()</script>"""  # runs in the frame
THICK = 250  # radii of such a tube in the reach of the machine: two pixels at first sight


def show(trajectory: Trajectory, path: str | Path | None = None) -> Path:
    """Write the page to `path`; without one, to a temporary file that is opened in the browser."""
    if path is not None:
        return write(trajectory, path)
    with tempfile.NamedTemporaryFile("w", suffix=".html", prefix="torsor-", delete=False) as file:
        page = write(trajectory, file.name)
    webbrowser.open(page.resolve().as_uri())
    return page


def write(trajectory: Trajectory, path: str | Path) -> Path:
    """Write the page to a file."""
    return write_whole(path, page(trajectory).encode("utf-8"))


def at_rest(model: Model, q: Array | None = None) -> Trajectory:
    """A trajectory of one row: the model as its file shows it, or at q."""
    row, still = (shown_configuration(model) if q is None else q)[None], np.zeros((1, model.nv))
    return Trajectory(model, np.zeros(1), row, still, still, still)


def show_model(model: Model, q: Any = None, path: str | Path | None = None) -> Path:
    """The page of a model, or of several configurations of it one after the other."""
    if q is None:
        return show(at_rest(model), path)
    rows = np.atleast_2d(real_array("q", q))
    if rows.shape[1:] != (model.nq,):
        raise ArgumentError(f"q must have shape ({model.nq},) or (m, {model.nq}) for {model!r}, not {rows.shape}")
    model.check_quaternions(rows)
    return show(Trajectory(model, np.arange(len(rows)) / POSTURES_PER_SECOND, rows).motion(), path)


def shown_configuration(model: Model) -> Array:
    """The first keyframe, if the file has some; else the neutral configuration, moved into the limits."""
    if model.keyframes:
        return next(iter(model.keyframes.values()))
    q, coordinate = model.neutral(), limited_coordinates(model)
    known = coordinate >= 0
    q[coordinate[known]] = np.clip(q[coordinate[known]], model.lower[known], model.upper[known])
    return q


def page(trajectory: Trajectory) -> str:
    """The text of the page."""
    # "</" must not end the script element that holds the data; \u003c is the same character in JSON
    data = json.dumps(scene(trajectory), separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "__TITLE__": escape(trajectory.model.name),
        "__GENERATOR__": f"torsor {made()['torsor']}",
        "__ABOUT__": escape(signature(trajectory.about)),
        "__DATA__": data,
        "__THREE__": _resource("three.min.js"),
        "__PLAYER__": _resource("player.js"),
    }
    # one pass for all placeholders: inserted text is not searched again, whatever it contains
    return re.sub("|".join(parts), lambda found: parts[found[0]], _resource("page.html"))


def inline(trajectory: Trajectory) -> str | None:
    """The page as notebooks show it: compressed, in a frame of its own; None if it is very large."""
    if not len(trajectory) or len(packed := zlib.compress(page(trajectory).encode("utf-8"), 9)) > MOST_INLINE:
        return None
    return f'<iframe style="{FRAME}" srcdoc="{escape(UNPACK % b64encode(packed).decode())}"></iframe>'


def scene(trajectory: Trajectory) -> dict[str, Any]:
    """The data of the page: the shape of every body, and its pose in every frame; of very many bodies, a tube."""
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
    pillars = np.zeros((len(t), min(1, len(_pillars(model))), 3))  # they stand on the origin
    center, spread, floor = _stage(np.concatenate([poses[..., :3, 3], traces, pillars], axis=1), reach, _up(model))
    if corners:
        points = np.concatenate([_seen(poses[0], body, points) for body, points in corners.items()])
        low, high = points.min(axis=0), points.max(axis=0)
        center, floor = (low + high) / 2, float((points @ _up(model)).min())
        spread = max(float(np.linalg.norm(high - low)) / 2, 1e-3)
    own = {"bodies": _bodies(model, tips, reach), "poses": floats(packed), **drawn, "missing": missing}
    return own | _around(model, t, traces, (center, spread, floor))


def _tube_scene(trajectory: Trajectory) -> dict[str, Any]:
    """The scene of a machine of very many bodies: links from joint to joint, all alike."""
    model = trajectory.model
    tips, reach = _tips(model), _reach(model)
    wanted = frame_times(trajectory.t, model.n + len(tips))
    found = tube(model, wanted, lambda t: trajectory.at(t)[0], tips, reach)
    missing = [f"the shapes of {model.n} bodies"] if model.visuals else []
    own = {"tube": found.data, "bodies": [], "poses": "", "shapes": [], "meshes": [], "missing": missing}
    around = _around(model, found.times, found.traces, _stage(found.seen, reach, _up(model)))
    return own | around | {"radius": max(around["radius"], reach / THICK)}


def _around(model: Model, t: Array, traces: Array, stage: tuple[Array, float, float]) -> dict[str, Any]:
    """What every scene has: times, the paths (frames, tips, 3) of the tips, floor and camera."""
    (center, spread, floor), reach, up = stage, _reach(model), _up(model)
    eye = center + EYE * spread * (_across(up) + 0.45 * up)
    return {
        "base": _pillars(model).tolist(),
        "times": t.tolist(), "traces": floats(traces), "reach": reach, "radius": _radius(model, reach),
        "up": up.tolist(), "floor": floor, "center": center.tolist(), "eye": eye.tolist(),
        "subtitle": f"{model.n} bodies, {model.nv} degrees of freedom, {t[-1] - t[0]:g} {model.units.time}",
    }  # fmt: skip


def _pillars(model: Model) -> Array:
    """Where the first joints are, if not at the origin."""
    return model.p[(model.parent < 0) & model.p.any(axis=1)]


def _seen(poses: Array, body: int, points: Array) -> Array:
    """Points of a body, or of the base, in the base frame."""
    return points if body < 0 else points @ poses[body, :3, :3].T + poses[body, :3, 3]


def _stage(p: Array, reach: float, up: Array) -> tuple[Array, float, float]:
    """(centre, radius, floor) of the bodies' positions (frames, n, 3), without those beyond the machine's reach."""
    origin = p[0, 0]
    away = p - origin
    far = np.linalg.norm(away, axis=-1, keepdims=True)
    near = origin + away * np.minimum(1, reach / np.maximum(far, reach / 2))
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
    """Each body: capsules from its joint to those it carries (to the far end of a tip), its inertia's box."""
    segments: list[list[Any]] = [[] for _ in range(model.n)]
    for i in range(model.n):
        if model.parent[i] >= 0:
            segments[model.parent[i]].append([[0, 0, 0], model.p[i].tolist()])
    for i, point in tips.items():
        segments[i].append([[0, 0, 0], point.tolist()])
    return [
        {
            "name": model.names[i], "parent": int(model.parent[i]), "joint": JOINTS[model.joint[i]].name,
            "axis": model.axis[i].tolist(), "anchor": model.p[i].tolist(), "segments": segments[i],
            "box": _box(model, i, reach),
        }
        for i in range(model.n)
    ]  # fmt: skip


def _tips(model: Model) -> dict[int, Array]:
    """The far end of every body that carries no other: twice as far as its mass centre."""
    return {int(i): 2 * model.com[i] for i in np.flatnonzero(model.children_count == 0)}


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
    """How far the machine stretches: the longest path from the base along the joints to a far end."""
    far = np.linalg.norm(model.p, axis=1)
    for i, parent in enumerate(model.parent.tolist()):
        far[i] += far[parent] if parent >= 0 else 0.0
    return float(max((far + 2 * np.linalg.norm(model.com, axis=1)).max(), 0.1))


def _radius(model: Model, reach: float) -> float:
    """A suitable thickness: thin compared with the machine and with its links."""
    lengths = np.linalg.norm(model.p[1:], axis=1)
    lengths = lengths[lengths > 1e-6 * reach]
    thin = 0.15 * float(np.median(lengths)) if lengths.size else reach
    return min(reach / 40, max(thin, reach / 1000))


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
