"""The 3-D page: one self-contained HTML file that plays a trajectory, with no other file and no network.

It is made of page.html, player.js (ours) and three.min.js (three.js, MIT: its licence is at the top of that file).
"""

from __future__ import annotations

import base64
import json
import re
import tempfile
import webbrowser
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torsor import dynamics
from torsor.errors import ArgumentError
from torsor.files import write_whole
from torsor.lie import matrix_to_quaternion
from torsor.model.freedoms import limited_coordinates
from torsor.model.joints import JOINTS
from torsor.model.model import Model
from torsor.view.shapes import shapes

if TYPE_CHECKING:
    from torsor.simulate.trajectory import Trajectory

Array = NDArray[Any]

FRAMES_PER_SECOND = 60
EYE = 2.6  # distance of the eye, in radii of the scene
MOST_POSES = 400_000  # bodies times frames: about 15 MB of page
MOST_BODIES = 1000  # drawn as they are; of more, evenly chosen ones with straight links between them
LONG_FRAMES = 30  # per second, of such a machine
AT_ONCE = 2_000_000  # poses that are computed at once


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
    from torsor.simulate.trajectory import Trajectory

    row, still = (shown_configuration(model) if q is None else q)[None], np.zeros((1, model.nv))
    return Trajectory(model, np.zeros(1), row, still, still, still)


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
        "__DATA__": data,
        "__THREE__": _resource("three.min.js"),
        "__PLAYER__": _resource("player.js"),
    }
    # one pass for all placeholders: inserted text is not searched again, whatever it contains
    return re.sub("|".join(parts), lambda found: parts[found[0]], _resource("page.html"))


def scene(trajectory: Trajectory) -> dict[str, Any]:
    """The data of the page: the shape of every body, and its pose in every frame."""
    model = trajectory.model
    if not len(trajectory):
        raise ArgumentError("the trajectory has no rows: there is nothing to show")
    if model.n > MOST_BODIES:
        return _long_scene(trajectory)
    t = _times(trajectory)
    poses = dynamics.body_poses(model, trajectory.at(t)[0])
    return _scene(model, t, poses, _bodies(model, _tips(model), _reach(model)), _tips(model))


def _scene(
    model: Model, t: Array, poses: Array, bodies: list[dict[str, Any]], tips: dict[int, Array]
) -> dict[str, Any]:
    """The data of the page, from the poses (frames, bodies, 4, 4) of the bodies to draw."""
    w, x, y, z = np.moveaxis(matrix_to_quaternion(poses[..., :3, :3]), -1, 0)
    packed = np.stack([*np.moveaxis(poses[..., :3, 3], -1, 0), x, y, z, w], axis=-1).astype("<f4")
    reach, up = _reach(model), _up(model)
    drawn, missing, corners = shapes(model)
    center, spread, floor = _stage(poses[..., :3, 3], reach, up)
    if corners:
        points = np.concatenate([_seen(poses[0], body, points) for body, points in corners.items()])
        low, high = points.min(axis=0), points.max(axis=0)
        center, floor = (low + high) / 2, float((points @ up).min())
        spread = max(float(np.linalg.norm(high - low)) / 2, 1e-3)
    eye = center + EYE * spread * (_across(up) + 0.45 * up)
    return {
        "bodies": bodies,
        "base": [model.p[i].tolist() for i in np.flatnonzero((model.parent < 0) & model.p.any(axis=1))],
        "times": t.tolist(),
        "poses": base64.b64encode(packed.tobytes()).decode(),
        "tips": [{"body": int(i), "point": p.tolist()} for i, p in tips.items()],
        "reach": reach, "radius": _radius(model, reach), "up": up.tolist(), "floor": floor,
        "center": center.tolist(), "eye": eye.tolist(),
        **drawn, "missing": missing,
        "subtitle": f"{model.n} bodies, {model.nv} degrees of freedom, {t[-1] - t[0]:g} s",
    }  # fmt: skip


def _seen(poses: Array, body: int, points: Array) -> Array:
    """Points of a body, or of the base, in the base frame."""
    return points if body < 0 else points @ poses[body, :3, :3].T + poses[body, :3, 3]


def _long_scene(trajectory: Trajectory) -> dict[str, Any]:
    """The scene of a machine of very many bodies: some of them, each linked to the next one nearer the base."""
    model = trajectory.model
    kept = np.unique(np.linspace(0, model.n - 1, MOST_BODIES).astype(int))
    place = np.full(model.n + 1, -1)  # of the nearest kept body on the way to the base, itself among them; -1: the base
    place[kept] = np.arange(len(kept))
    above = np.full(len(kept), -1)
    for i, parent in enumerate(model.parent.tolist()):
        if place[i] >= 0:
            above[place[i]] = place[parent]
        else:
            place[i] = place[parent]
    count = min(int(LONG_FRAMES * (trajectory.t[-1] - trajectory.t[0])) + 1, MOST_POSES // len(kept))
    t = np.linspace(trajectory.t[0], trajectory.t[-1], max(2, count)) if len(trajectory) > 1 else trajectory.t
    parts = np.array_split(t, max(1, len(t) * model.n // AT_ONCE))
    p = np.concatenate([dynamics.body_poses(model, trajectory.at(part)[0])[..., :3, 3][:, kept] for part in parts])
    link = np.where(above[:, None] >= 0, p[:, above] - p, 0.0)  # (frames, bodies, 3), towards the base
    length = np.linalg.norm(link, axis=-1)
    poses = np.zeros((*p.shape[:2], 4, 4))
    poses[..., :3, :3], poses[..., :3, 3], poses[..., 3, 3] = _pointing(link, length), p, 1.0
    bodies = [
        {
            "name": model.names[i], "parent": int(above[k]), "joint": JOINTS[model.joint[i]].name, "axis": [0, 0, 1],
            "anchor": [0, 0, 0], "segments": [[[0, 0, 0], [float(length[:, k].mean()), 0, 0]]], "box": None,
        }
        for k, i in enumerate(kept.tolist())
    ]  # fmt: skip
    return _scene(model, t, poses, bodies, {len(kept) - 1: np.zeros(3)})


def _pointing(link: Array, length: Array) -> Array:
    """Rotations (..., 3, 3) whose first column points along a link."""
    x = np.where(length[..., None] > 0, link / np.maximum(length, 1e-300)[..., None], (1.0, 0.0, 0.0))
    aside = np.where(np.abs(x[..., 2:]) < 0.9, (0.0, 0.0, 1.0), (0.0, 1.0, 0.0))
    y = np.cross(aside, x)
    y /= np.linalg.norm(y, axis=-1, keepdims=True)
    return np.stack([x, y, np.cross(x, y)], axis=-1)


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
