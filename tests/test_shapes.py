"""Meshes: what is read from files, how they are made small, and where a page draws them."""

import base64
import struct

import numpy as np
import pytest

import torsor as ts
from torsor.errors import ModelError
from torsor.formats.meshes import Mesh, clustered, read, thinned
from torsor.model.extras import Extras, Visual
from torsor.view import page as view_page
from torsor.view.shapes import STEPS, shapes

CORNERS = np.array([[0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 3.0]])
FACES = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])


def binary_stl(points, faces, header=b"solid but binary"):
    facets = b"".join(struct.pack("<12fH", 0, 0, 0, *points[face].ravel(), 0) for face in faces)
    return header.ljust(80) + struct.pack("<I", len(faces)) + facets


def text_stl(points, faces):
    loops = ("".join(f"vertex {x} {y} {z}\n" for x, y, z in points[face]) for face in faces)
    return (
        "solid t\n" + "".join(f"facet normal 0 0 0\nouter loop\n{loop}endloop\nendfacet\n" for loop in loops)
    ).encode()


def obj(points, faces):
    lines = [f"v {x} {y} {z}" for x, y, z in points]
    lines += [
        "f " + " ".join(f"{k + 1}/7/3" for k in faces[0]),
        *(f"f {a - 4} {b - 4} {c - 4}" for a, b, c in faces[1:]),
    ]
    return "\n".join(["# comment", "", *lines]).encode()


def msh(points, faces):
    count = struct.pack("<4i", len(points), 1, 0, len(faces))
    return count + points.astype("<f4").tobytes() + bytes(12) + faces.astype("<i4").tobytes()


def volume(mesh):
    a, b, c = (mesh.vertices[mesh.triangles[:, k]] for k in range(3))
    return np.einsum("ij,ij->i", a, np.cross(b, c)).sum() / 6


@pytest.mark.parametrize(("suffix", "write"), [(".stl", binary_stl), (".STL", text_stl), (".obj", obj), (".msh", msh)])
def test_a_tetrahedron_is_read(tmp_path, suffix, write):
    path = tmp_path / f"t{suffix}"
    path.write_bytes(write(CORNERS, FACES))
    (mesh,) = read(path)
    assert (len(mesh.vertices), len(mesh.triangles)) == (4, 4)
    np.testing.assert_allclose(volume(mesh), 1.0, rtol=0, atol=1e-6)


def test_a_face_of_many_corners_is_a_fan(tmp_path):
    path = tmp_path / "square.obj"
    path.write_text("v 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\nf 1 2 3 4\n")
    assert len(read(path)[0].triangles) == 2


@pytest.mark.parametrize("suffix", [".dae", ".glb", ".ply"])
def test_other_formats_by_trimesh(tmp_path, suffix):
    import trimesh

    path = tmp_path / f"t{suffix}"
    trimesh.Trimesh(CORNERS, FACES).export(path)
    (mesh,) = read(path)
    np.testing.assert_allclose(np.abs(volume(mesh)), 1.0, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.stl", b""),
        ("a.stl", b"solid\nvertex 1 2 x\n"),
        ("a.stl", b"solid\nvertex 1 2 3\n"),
        ("a.stl", b"\xff" * 200),
        ("a.obj", b"v 1 2\nf 1 2 3\n"),
        ("a.obj", b"v 1 2 3\nf 1 2 9\n"),
        ("a.obj", b"f a b c\n"),
        ("a.obj", b"v nan 0 0\nv 0 0 1\nv 0 1 0\nf 1 2 3\n"),
        ("a.msh", b"abc"),
        ("a.msh", msh(CORNERS, FACES)[:-1]),
        ("a.msh", msh(CORNERS, FACES + 1)),
        ("a.dae", b"<?xml version='1.0'?><x/>"),
        ("a.glb", b"glTF"),
        ("a.txt", b"solid"),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ModelError, match=name):
        read(path)


def ball(n):
    """A sphere of radius 1 with some 2 n^2 triangles."""
    u, v = np.meshgrid(np.linspace(0, np.pi, n), np.linspace(0, 2 * np.pi, n, endpoint=False), indexing="ij")
    points = np.stack([np.sin(u) * np.cos(v), np.sin(u) * np.sin(v), np.cos(u)], axis=-1).reshape(-1, 3)
    i, j = (x.ravel() for x in np.meshgrid(np.arange(n - 1), np.arange(n), indexing="ij"))
    a, b, c, d = i * n + j, (i + 1) * n + j, (i + 1) * n + (j + 1) % n, i * n + (j + 1) % n
    return Mesh(points, np.concatenate([np.stack([a, b, c], 1), np.stack([a, c, d], 1)]))


def test_thinning_keeps_the_shape():
    mesh = ball(150)
    small = thinned(mesh, 2000)
    assert 500 < len(small.triangles) <= 2000
    assert thinned(small, 2000) is small
    np.testing.assert_allclose(volume(small), 4 / 3 * np.pi, rtol=0.05)
    # no vertex leaves its cell
    assert np.abs(np.linalg.norm(small.vertices, axis=1) - 1).max() < 0.1
    assert len(clustered(mesh, 4).triangles) < 200


def with_shapes(*visuals):
    from dataclasses import replace

    model = ts.Model.chain(n=2, mass=1, inertia=(1, 1, 1), p=(0, 0, 1))
    return replace(model, extras=Extras(visuals=visuals))


def test_meshes_are_quantised_within_a_step(tmp_path):
    path = tmp_path / "t.stl"
    path.write_bytes(binary_stl(CORNERS, FACES))
    model = with_shapes(
        Visual(1, "mesh", (1, 1, -2.0), file=str(path)), Visual(0, "mesh", (1, 1, -2.0), file=str(path))
    )
    data, missing, corners = shapes(model)
    assert missing == []
    (mesh,) = data["meshes"]  # drawn twice, kept once
    assert [spec["mesh"] for spec in data["shapes"]] == [0, 0]
    points = np.frombuffer(base64.b64decode(mesh["points"]), "<u2").reshape(-1, 3) / STEPS * mesh["side"] + mesh["low"]
    triangles = np.frombuffer(base64.b64decode(mesh["triangles"]), "<u2").reshape(-1, 3)
    exact = np.unique(CORNERS, axis=0) * (1, 1, -2)
    np.testing.assert_allclose(points, exact, rtol=0, atol=6 / STEPS)
    assert volume(Mesh(points, triangles)) > 0  # a mirrored mesh is turned over
    np.testing.assert_allclose(corners[1].min(axis=0), [0, 0, -6], rtol=0, atol=1e-6)


def test_a_mesh_that_is_missing_is_named_and_the_rest_is_drawn():
    model = with_shapes(
        Visual(0, "box", (1, 2, 3.0), p=(0, 0, 1.0)), Visual(0, "mesh", (1, 1, 1.0), file="package://x/y.stl")
    )
    scene = view_page.scene(view_page.at_rest(model))
    assert [spec["shape"] for spec in scene["shapes"]] == ["box"]
    assert "y.stl" in scene["missing"][0]
    np.testing.assert_allclose(scene["floor"], 0.5)  # the box stands on it: joint at 1, box from -0.5 to 2.5 above


@pytest.mark.parametrize("shape", ["box", "sphere", "cylinder", "capsule", "ellipsoid"])
def test_every_solid_has_a_page(tmp_path, shape):
    sizes = {"box": (1.0, 1.0, 1.0), "sphere": (1.0,), "ellipsoid": (1.0, 2.0, 3.0)}.get(shape, (1.0, 2.0))
    run = view_page.at_rest(with_shapes(Visual(-1, shape, sizes, color=(1.0, 0, 0, 0.5))))
    assert run.view(tmp_path / "page.html").stat().st_size > 100_000


def test_the_command_shows_a_robot(tmp_path):
    from pathlib import Path

    from test_view import scene_of

    from torsor.cli import main

    robot = Path(__file__).parent / "robots" / "features.urdf"
    page = tmp_path / "page.html"
    assert main(["view", str(robot), "--out", str(page)]) == 0
    assert "capsule" in [spec["shape"] for spec in scene_of(page.read_text())["shapes"]]


@pytest.mark.browser
def test_shapes_are_drawn_in_chromium(tmp_path):
    import re

    from test_view import browse

    path = tmp_path / "t.stl"
    path.write_bytes(binary_stl(CORNERS, FACES))
    model = with_shapes(Visual(0, "mesh", (1, 1, 1.0), file=str(path)), Visual(-1, "capsule", (0.1, 0.5)))
    page = view_page.at_rest(model).view(tmp_path / "page.html").as_uri()
    dom = browse(page, tmp_path / "profile", "--dump-dom")
    assert 'data-state="ready"' in dom
    assert int(re.search(r'data-triangles="(\d+)"', dom)[1]) > 100
