"""dynibo (PyPI, Rust): the fastest peer on one long chain.  It reads URDF only, and its gravity is fixed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import dynibo  # type: ignore[import-untyped]
import numpy as np

import torsor as ts

GRAVITY = (0.0, 0.0, -9.80665)


def robot(model: ts.Model) -> dynibo.Robot:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chain.urdf"
        path.write_text(urdf(model))
        return dynibo.Robot.from_urdf(str(path))


def urdf(model: ts.Model) -> str:
    """Chains of revolute joints placed without turning: then URDF holds the model's numbers exactly."""
    straight = np.array_equal(model.R, np.broadcast_to(np.eye(3), model.R.shape))
    if not (model.is_chain and np.all(model.joint == 0) and straight):
        raise NotImplementedError("only chains of revolute joints with R = 1")
    if tuple(model.gravity) != GRAVITY:
        raise NotImplementedError(f"dynibo's gravity is {GRAVITY}")
    links = (_joint(model, i) + _link(model, i) for i in range(model.n))
    return "\n".join(['<robot name="chain"><link name="0"/>', *links, "</robot>"])


def _joint(model: ts.Model, i: int) -> str:
    return (
        f'<joint name="joint {i}" type="continuous"><parent link="{i}"/><child link="{i + 1}"/>'
        f'<origin xyz="{_numbers(model.p[i])}"/><axis xyz="{_numbers(model.axis[i])}"/></joint>'
    )


def _link(model: ts.Model, i: int) -> str:
    entries = zip(("ixx", "ixy", "ixz", "iyy", "iyz", "izz"), model.inertia[i][np.triu_indices(3)].tolist())
    inertia = " ".join(f'{name}="{value!r}"' for name, value in entries)
    return (
        f'<link name="{i + 1}"><inertial><origin xyz="{_numbers(model.com[i])}"/>'
        f'<mass value="{model.mass[i]}"/><inertia {inertia}/></inertial></link>'
    )


def _numbers(x: np.ndarray) -> str:
    return " ".join(map(repr, x.tolist()))
