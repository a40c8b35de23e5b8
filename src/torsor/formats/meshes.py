"""Triangle meshes: STL, OBJ and MuJoCo's MSH are read here, DAE, GLB, GLTF and PLY by trimesh (extra `meshes`).

A mesh for a page is reduced: coinciding vertices are merged, and a mesh of very many triangles is thinned by
snapping its vertices to a grid (vertex clustering, Rossignac & Borrel 1993).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ModelError
from torsor.files import read_whole
from torsor.later import Later, loaded

trimesh = Later("trimesh", "some meshes are drawn by trimesh", "torsor[meshes]")

Array = NDArray[Any]

MOST_BYTES = 128 * 2**20
FACET = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("rest", "<u2")])
HEADER = 84  # bytes of a binary STL before its facets
NUMBERS = re.compile(rb"vertex\s+(\S+)\s+(\S+)\s+(\S+)")
BY_TRIMESH = (".dae", ".glb", ".gltf", ".ply")
COARSEST, FINEST = 4, 256  # cells of a grid along the longest side of a mesh


class Mesh(NamedTuple):
    """vertices (n, 3), triangles (m, 3) of their numbers, and a colour (red, green, blue, opacity) if there is one."""

    vertices: Array
    triangles: Array
    color: tuple[float, ...] | None = None


def read(path: str | Path) -> list[Mesh]:
    """The meshes of a file, one for each of its colours."""
    suffix = Path(path).suffix.lower()
    if suffix not in (*OWN, *BY_TRIMESH):
        raise ModelError(f"{path}: no mesh that torsor can draw; it reads {', '.join((*OWN, *BY_TRIMESH))}")
    if suffix in BY_TRIMESH and Path(path).stat().st_size > MOST_BYTES:
        raise ModelError(f"{path}: a mesh of more than {MOST_BYTES >> 20} MB is not drawn")
    try:
        if suffix in BY_TRIMESH:
            return _by_trimesh(path)
        meshes = [OWN[suffix](read_whole(path, ModelError, most=MOST_BYTES))]
    except (ValueError, IndexError, OverflowError) as error:
        raise ModelError(f"{path}: the mesh cannot be read: {error}") from None
    return [_checked(path, mesh) for mesh in meshes]


def _checked(path: str | Path, mesh: Mesh) -> Mesh:
    if not len(mesh.triangles) or not np.isfinite(mesh.vertices).all():
        raise ModelError(f"{path}: the mesh has no triangles, or corners that are not finite")
    return mesh


def _stl(content: bytes) -> Mesh:
    """Binary if the number of facets matches the size of the file, else text. Many binary files begin with "solid"."""
    count = int.from_bytes(content[80:HEADER], "little")
    if len(content) >= HEADER + count * FACET.itemsize and (count or not content.lstrip().startswith(b"solid")):
        corners = np.frombuffer(content, FACET, count, HEADER)["corners"].reshape(-1, 3)
    else:
        corners = np.array(NUMBERS.findall(content), dtype=np.float32).reshape(-1, 3)
    if len(corners) % 3:
        raise ValueError(f"{len(corners)} corners make no triangles")
    return _welded(corners)


def _welded(corners: Array) -> Mesh:
    """Triangles given corner by corner, with equal corners merged."""
    vertices, numbers = np.unique(corners, axis=0, return_inverse=True)
    return Mesh(vertices.astype(np.float64), numbers.reshape(-1, 3))


def _obj(content: bytes) -> Mesh:
    """Vertices and faces; faces with more than three corners are cut into fans. Materials are not read."""
    vertices, triangles = [], []
    for line in content.decode("utf-8", errors="replace").splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] == "v":
            vertices.append([float(x) for x in words[1:4]])
        elif words[0] == "f":
            corner = [int(word.split("/")[0]) for word in words[1:]]
            corner = [k - 1 if k > 0 else len(vertices) + k for k in corner]
            triangles += [(corner[0], corner[i], corner[i + 1]) for i in range(1, len(corner) - 1)]
    points, faces = np.array(vertices, dtype=np.float64).reshape(-1, 3), np.array(triangles, dtype=int).reshape(-1, 3)
    return _within(points, faces)


def _msh(content: bytes) -> Mesh:
    """The counts of corners, normals, texture coordinates and faces; then these."""
    corners, normals, textures, faces = np.frombuffer(content, "<i4", 4).tolist()
    begin = 16 + 4 * (3 * corners + 3 * normals + 2 * textures)
    if min(corners, normals, textures, faces) < 0 or len(content) != begin + 12 * faces:
        raise ValueError("its size does not fit the numbers at its beginning")
    points = np.frombuffer(content, "<f4", 3 * corners, 16).reshape(-1, 3)
    return _within(points.astype(np.float64), np.frombuffer(content, "<i4", 3 * faces, begin).reshape(-1, 3))


def _within(points: Array, faces: Array) -> Mesh:
    """A mesh, after checking that its faces name existing corners."""
    if len(faces) and not 0 <= faces.min() <= faces.max() < len(points):
        raise ValueError("a face names a vertex that is not there")
    return Mesh(points, faces)


OWN = {".stl": _stl, ".obj": _obj, ".msh": _msh}


def _by_trimesh(path: str | Path) -> list[Mesh]:
    loaded(trimesh, ModelError, f"{path}: ")
    try:
        scene: Any = trimesh.load(str(path), force="scene")
        found = []
        for name in scene.graph.nodes_geometry:
            transform, geometry = scene.graph[name]
            shape = scene.geometry[geometry]
            if not hasattr(shape, "faces") or not len(shape.faces):
                continue
            points = np.asarray(shape.vertices, dtype=np.float64) @ transform[:3, :3].T + transform[:3, 3]
            found.append(_checked(path, Mesh(points, np.asarray(shape.faces, dtype=int), _color(shape))))
    except ModelError:
        raise
    except Exception as error:  # trimesh and its dependencies raise many kinds of errors
        raise ModelError(f"{path}: the mesh cannot be read: {type(error).__name__}: {error}") from None
    if not found:
        raise ModelError(f"{path}: the file holds no triangles")
    return found


def _color(shape: Any) -> tuple[float, ...] | None:
    """The colour of a trimesh, from its material; None if it has none."""
    material = getattr(getattr(shape, "visual", None), "material", None)
    for key in ("baseColorFactor", "diffuse", "main_color"):
        rgba = getattr(material, key, None)
        if rgba is not None and len(rgba) >= 3:
            values = np.asarray(rgba, dtype=np.float64)
            values = values / 255 if values.max() > 1 else values
            return (*values[:3].tolist(), 1.0)
    return None


def thinned(mesh: Mesh, most: int) -> Mesh:
    """The mesh with at most about `most` triangles, on the finest possible grid."""
    if len(mesh.triangles) <= most:
        return mesh
    coarse, fine = COARSEST, FINEST
    best = clustered(mesh, coarse)
    while fine - coarse > 1:
        middle = (coarse + fine) // 2
        tried = clustered(mesh, middle)
        if len(tried.triangles) <= most:
            coarse, best = middle, tried
        else:
            fine = middle
    return best


def clustered(mesh: Mesh, cells: int) -> Mesh:
    """Vertices in the same cell of a grid become one, at their mean; triangles that collapse are dropped."""
    low, high = mesh.vertices.min(axis=0), mesh.vertices.max(axis=0)
    size = max(float((high - low).max()) / cells, 1e-300)
    cell = np.floor((mesh.vertices - low) / size).astype(np.int64)
    _, number = np.unique(cell @ np.array([1, 1024, 1024**2]), return_inverse=True)
    count = np.bincount(number)
    means = np.stack([np.bincount(number, column) / count for column in mesh.vertices.T], axis=1)
    triangles = number[mesh.triangles]
    a, b, c = triangles.T
    kept = triangles[(a != b) & (b != c) & (a != c)]
    _, first = np.unique(np.sort(kept, axis=1), axis=0, return_index=True)
    kept = kept[np.sort(first)]
    used, numbers = np.unique(kept, return_inverse=True)
    return Mesh(means[used], numbers.reshape(-1, 3), mesh.color)
