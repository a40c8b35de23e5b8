"""Robot files: the choice of the reader, and names from the package robot_descriptions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from torsor.errors import ArgumentError
from torsor.formats import mjcf, sdf, urdf
from torsor.formats.folders import Folders
from torsor.formats.robot import POLICIES, Robot, build
from torsor.formats.xacro import expand
from torsor.formats.xml import Document
from torsor.model import Model
from torsor.validate import brief, chosen, file_path

BASES = ("fixed", "free")
PREFIX = "robot_descriptions:"
READERS: dict[str, Callable[[Document, Folders, str | None], Robot]] = {
    "robot": urdf.read,
    "mujoco": mjcf.read,
    "sdf": sdf.read,
}


@np.errstate(all="ignore")  # numbers that overflow are refused by name
def load(path: str | Path, *, base: str | None = None, repair: str = "warn", folders: Sequence[str | Path] = (),
         xacro: bool | Mapping[str, Any] = False) -> Model:  # fmt: skip
    """The model of a robot file; see `torsor.load`."""
    path = file_path("path", path)
    if base is not None:
        chosen("base", base, BASES)
    chosen("repair", repair, POLICIES)
    places = Folders(path, _folders(folders))
    if path.suffix.lower() == ".xacro":
        document = Document(expand(path, xacro, places), f"{path} (expanded)")
    else:
        document = Document.read(str(path))
    tag = document.root.tag
    if tag not in READERS:
        raise document.error(document.root, f"this is no robot; the first element must be one of {', '.join(READERS)}")
    robot = READERS[tag](document, places, base)
    for remark in document.remarks:
        robot.note("ignored", path.name, remark)
    return build(robot, repair)


def _folders(folders: Any) -> Sequence[str | Path]:
    if isinstance(folders, str | os.PathLike):
        raise ArgumentError(f"folders must be a list of folders; write [{str(folders)!r}]")
    return tuple(folders)


# ---- robot_descriptions ----


def described(path: Any) -> bool:
    """Whether this is a module of robot_descriptions, or names one."""
    return isinstance(path, ModuleType) or (isinstance(path, str) and path.startswith(PREFIX))


def load_description(which: Any, options: dict[str, Any]) -> Model:
    """The model described by a module of robot_descriptions."""
    if isinstance(which, str):
        name = which.removeprefix(PREFIX)
        if not name.isidentifier():
            raise ArgumentError(f"{which}: {name!r} is not the name of a module of robot_descriptions")
        try:
            which = import_module(f"robot_descriptions.{name}")
        except ImportError as error:
            raise ArgumentError(f"{which}: {error}; pip install robot_descriptions") from None
        except Exception as error:  # the package clones a repository when its module is imported
            reason = " ".join(str(error).split())
            raise ArgumentError(f"{which}: robot_descriptions cannot fetch it: {brief(reason)}") from None
    for key in ("URDF_PATH", "MJCF_PATH", "XACRO_PATH", "SDF_PATH"):
        if path := getattr(which, key, None):
            places = [getattr(which, key) for key in ("PACKAGE_PATH", "REPOSITORY_PATH") if hasattr(which, key)]
            folders = [*options.pop("folders", ()), *places, *(str(Path(place).parent) for place in places)]
            return load(path, folders=folders, **options)
    raise ArgumentError(f"module {which.__name__} describes no robot: it has no URDF_PATH, MJCF_PATH or XACRO_PATH")
