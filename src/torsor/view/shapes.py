"""The shapes of a model as data of the page: solids by their sizes, meshes as quantised vertices and triangles."""

from __future__ import annotations

import base64
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ModelError
from torsor.formats import meshes
from torsor.formats.meshes import Mesh
from torsor.lie import matrix_to_quaternion
from torsor.model.extras import GREY, Visual
from torsor.model.model import Model

Array = NDArray[Any]

MOST_TRIANGLES = 250_000  # of a page: some 3 MB
FEWEST_TRIANGLES, MOST_OF_ONE = 300, 8000  # of one mesh, if it has that many
STEPS = 65535  # of a coordinate in a page
CORNERS = np.array(list(product((-1.0, 1.0), repeat=3)))


def shapes(model: Model) -> tuple[dict[str, Any], list[str], dict[int, Array]]:
    """(data of the page, reasons for meshes that are not drawn, corners of the shapes on each body)."""
    sources: dict[tuple[str, tuple[float, ...]], list[int]] = {}
    packed: list[dict[str, Any]] = []
    boxes: list[Array] = []
    missing: dict[str, list[str]] = {}  # reason -> files
    wanted = {(v.file, v.size) for v in model.visuals if v.shape == "mesh"}
    most = int(np.clip(MOST_TRIANGLES / max(len(wanted), 1), FEWEST_TRIANGLES, MOST_OF_ONE))
    colors: list[tuple[float, ...] | None] = []
    for file, scale in sorted(wanted):
        try:
            pieces = meshes.read(file)
        except (ModelError, OSError) as error:
            missing.setdefault(str(error).removeprefix(f"{file}: "), []).append(file)
            pieces = []
        sources[file, scale] = list(range(len(packed), len(packed) + len(pieces)))
        for piece in pieces:
            mesh = meshes.thinned(piece, max(FEWEST_TRIANGLES, most // len(pieces)))
            data, corners = _packed(mesh, np.array(scale))
            packed.append(data)
            boxes.append(corners)
            colors.append(piece.color)
    drawn, corners_of = [], dict[int, list[Array]]()
    for visual in model.visuals:
        if visual.shape == "mesh":
            for k in sources[visual.file, visual.size]:
                drawn.append(_placed(visual, colors[k] if visual.color == GREY else None) | {"mesh": k})
                corners_of.setdefault(visual.body, []).append(_moved(visual, boxes[k]))
        else:
            drawn.append(_placed(visual, None) | {"size": list(visual.size)})
            corners_of.setdefault(visual.body, []).append(_moved(visual, CORNERS * _half(visual)))
    words = [f"{files[0]}{f' and {len(files) - 1} more' * (len(files) > 1)}: {why}" for why, files in missing.items()]
    return {"shapes": drawn, "meshes": packed}, words, {i: np.concatenate(x) for i, x in corners_of.items()}


def _placed(visual: Visual, color: tuple[float, ...] | None) -> dict[str, Any]:
    w, x, y, z = matrix_to_quaternion(np.array(visual.R)).tolist()
    return {
        "body": visual.body, "shape": visual.shape, "position": list(visual.p), "quaternion": [x, y, z, w],
        "color": list(color or visual.color),
    }  # fmt: skip


def _moved(visual: Visual, points: Array) -> Array:
    return points @ np.array(visual.R).T + np.array(visual.p)


def _half(visual: Visual) -> Array:
    """Half the sides of the box around a solid."""
    size = visual.size
    if visual.shape in ("cylinder", "capsule"):
        cap = size[0] if visual.shape == "capsule" else 0.0
        return np.array([size[0], size[0], size[1] / 2 + cap])
    return np.array(size) / 2 if visual.shape == "box" else np.broadcast_to(np.array(size), (3,))


def _packed(mesh: Mesh, scale: Array) -> tuple[dict[str, Any], Array]:
    """A mesh as 16-bit coordinates in its box, and the corners of that box."""
    vertices, triangles = mesh.vertices * scale, mesh.triangles
    if np.prod(scale) < 0:  # mirrored: turn the triangles over
        triangles = triangles[:, ::-1]
    low, high = vertices.min(axis=0), vertices.max(axis=0)
    side = np.where(high > low, high - low, 1.0)
    numbers = np.round((vertices - low) / side * STEPS).astype("<u2")
    kind = "<u2" if len(vertices) <= STEPS else "<u4"
    data = {
        "low": low.tolist(), "side": side.tolist(), "wide": kind == "<u4",
        "points": base64.b64encode(numbers.tobytes()).decode(),
        "triangles": base64.b64encode(np.ascontiguousarray(triangles, dtype=kind).tobytes()).decode(),
    }  # fmt: skip
    return data, low + (CORNERS + 1) / 2 * (high - low)
