"""Files <-> Model: the suffix of the path selects the format.

    .toml                      text that people write and read; for models of up to some 10^5 bodies (`toml.py`)
    .torsor                    the arrays of the model, checksummed, for models of a million bodies (`binary.py`)
    .urdf .xml .mjcf .sdf ...  descriptions of robots, distinguished by their first element (`robots.py`)

The first two restore the same model, bit for bit. A file is written completely or not at all. A model from a file is
checked like any other: a damaged or hostile file raises a ModelError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from torsor.errors import ArgumentError, ModelError, warn_caller
from torsor.files import read_whole, signature, write_whole
from torsor.formats import binary, toml
from torsor.formats.states import from_mujoco, from_pinocchio, to_mujoco, to_pinocchio
from torsor.model import Model
from torsor.model.model import require_model
from torsor.validate import file_path

__all__ = ["FORMATS", "ROBOTS", "from_mujoco", "from_pinocchio", "load", "save", "to_mujoco", "to_pinocchio"]


class Format(Protocol):
    """The interface of a format."""

    MAGIC: bytes  # the first bytes of its files

    def decode(self, content: bytes, path: str) -> Model:
        """The model in the content of a file; `path` is its name in messages."""

    def encode(self, model: Model, signature: str = "") -> bytes:
        """The content of the file of a model; `signature` is a line of JSON about the version that wrote it."""


FORMATS: dict[str, Format] = {".toml": toml, ".torsor": binary}
WRITERS = {".urdf": "urdf_writer", ".xml": "mjcf_writer"}
ROBOTS = (".urdf", ".xml", ".mjcf", ".sdf", ".world", ".xacro")


def load(path: Any, *, base: str | None = None, repair: str = "warn", folders: Sequence[str | Path] = (),
         xacro: bool | Mapping[str, Any] = False) -> Model:  # fmt: skip
    """Load a model from a file: .toml, .torsor, or a robot's .urdf, .xml (MJCF), .sdf or .xacro.

    Parameters
    ----------
    path : str, Path or module
        The file; or a module of `robot_descriptions`, or its name as "robot_descriptions:panda_description".
    base : str, optional
        For robot files: "fixed" or "free", whether the root link is fixed to the base. Default: according to the format
        (URDF: fixed; SDF: free unless a joint fixes it; MJCF: as in the file).
    repair : str, default "warn"
        The treatment of impossible numbers, such as inertias that violate the triangle inequality: "warn" (changed as
        little as possible, with a warning), "quiet" (the same without a warning) or "strict" (refused).
    folders : sequence of str or Path, optional
        Additional folders to search for meshes and packages (package://...).
    xacro : bool or dict, default False
        True, or a dictionary of arguments, to expand a .xacro file, which runs the code in its expressions.

    Returns
    -------
    model : Model
        The machine. `model.notes` lists every repair and everything that is not modelled.

    Raises
    ------
    ModelError
        The file is malformed, or its machine is physically impossible; the message names file, line and element.

    Warns
    -----
    ModelWarning
        Numbers were repaired, or parts of the file are not modelled.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.save(ts.zoo.panda(), "panda.urdf")
    >>> ts.load("panda.urdf")
    Model('panda', 7 bodies: 7 revolute; nq=7, nv=7)
    """
    from torsor.formats import robots

    options: dict[str, Any] = dict(base=base, repair=repair, folders=folders, xacro=xacro)
    if robots.described(path):
        return robots.load_description(path, options)
    if file_path("path", path).suffix.lower() in ROBOTS:
        return robots.load(path, **options)
    form = _format(path)
    if base is not None or repair != "warn" or folders or xacro:
        raise ArgumentError(f"{path}: base, repair, folders and xacro are for robot files, {', '.join(ROBOTS)}")
    return form.decode(read_whole(path, ModelError, magic=form.MAGIC, kind="torsor model file"), str(path))


def save(model: Model, path: str | Path) -> None:
    """Save a model to a file; from .toml and .torsor files `load` restores an equal model.

    .urdf and .xml (MJCF) files cannot express everything: a warning lists the losses, by field and joint. A joint that
    the format does not have becomes several. Rotations, and inertias in MJCF, are restored to rounding, all other
    numbers exactly. The file also records the version of torsor and the date.

    Parameters
    ----------
    model : Model
        The machine.
    path : str or Path
        The file; its suffix selects the format: .toml, .torsor, .urdf or .xml.

    Raises
    ------
    ModelError
        The format cannot express a joint of this machine.
    ArgumentError
        The suffix is unknown, or the file cannot be written.

    Warns
    -----
    ModelWarning
        The format cannot express everything.

    Examples
    --------
    >>> import torsor as ts
    >>> ts.save(ts.zoo.panda(), "panda.toml")
    >>> ts.load("panda.toml") == ts.zoo.panda()
    True
    """
    require_model(model)
    suffix = file_path("path", path).suffix.lower()
    if suffix not in WRITERS:
        write_whole(path, _format(path).encode(model, signature()))
        return
    content, losses = import_module(f"torsor.formats.{WRITERS[suffix]}").encode(model, path)
    write_whole(path, content + f"<!-- {signature()} -->\n".encode())
    if losses:
        warn_caller(f"{path} does not say: {'; '.join(dict.fromkeys(losses))}")


def _format(path: str | Path) -> Format:
    suffix = file_path("path", path).suffix.lower()
    if suffix not in FORMATS:
        raise ArgumentError(f"{path}: unknown suffix; torsor reads {', '.join((*FORMATS, *ROBOTS))}")
    return FORMATS[suffix]
