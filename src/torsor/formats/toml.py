"""TOML: a model people can write by hand, and that comes back bit for bit.

    name = "arm"
    gravity = [0.0, 0.0, -9.81]        # this, like most keys, may be left out

    [[body]]
    name = "upper"
    joint = "revolute"                 # prismatic, helical, universal, spherical, planar, free, fixed
    axis = [0.0, 1.0, 0.0]
    mass = 2.0
    com = [0.2, 0.0, 0.0]
    inertia = [0.01, 0.03, 0.03]       # principal moments, or xx, xy, xz, yy, yz, zz, or three rows

    [[body]]
    name = "lower"
    parent = "upper"                   # left out: the base
    p = [0.4, 0.0, 0.0]                # the joint's place on the parent; R: its rotation, three rows
    ...

    [[frame]]
    name = "hand"
    body = "lower"
    p = [0.3, 0.0, 0.0]

In place of bodies a table [dh] describes a serial arm; its `link` rows and other keys are the arguments of
`Model.from_dh`. Defaults are those of `Model.builder`; keys that torsor does not know are refused.
"""

from __future__ import annotations

import json
import tomllib
from typing import Any

import numpy as np

from torsor.errors import ModelError, TorsorError
from torsor.model import JOINTS, Model
from torsor.model.builder import as_row
from torsor.model.names import Frame

Table = dict[str, Any]

# The keys of each table, with what their values are.
NUMBERS = (int, float, list)
MODEL_KEYS = {"name": str, "gravity": list, "allow_degenerate": bool, "body": list, "dh": dict, "frame": list}
BODY_KEYS = {"name": str, "parent": str, "joint": str} | dict.fromkeys(
    ("axis", "pitch", "R", "p", "mass", "com", "inertia"), NUMBERS
)
FRAME_KEYS = {"name": str, "body": str, "R": list, "p": list}
DH_KEYS = {"convention": str, "degrees": bool, "link": list}
# A link's numbers in a DH table, with the shape of each; those left out are zero.
LINK_SHAPES = {
    "a": (),
    "alpha": (),
    "d": (),
    "theta": (),
    "mass": (),
    "com": (3,),
    "r": (3,),
    "inertia": (3, 3),
}
LINK_KEYS = {"name": str, "variable": str} | dict.fromkeys(LINK_SHAPES, NUMBERS)


def read(text: str, path: str) -> Model:
    """The model a TOML text describes; `path` is what messages call it."""
    try:
        return _model(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, TorsorError) as error:
        raise ModelError(f"{path}: {error}") from None


def _model(table: Table) -> Model:
    _check_keys("the model", table, MODEL_KEYS)
    if ("body" in table) == ("dh" in table):
        raise ModelError("describe the model either by [[body]] tables or by one [dh] table")
    words: Table = {key: table[key] for key in ("name", "gravity", "allow_degenerate") if key in table}
    model = _arm(table["dh"], words) if "dh" in table else _tree(table["body"], words)
    rows = _rows(table.get("frame", []), "frame", FRAME_KEYS)
    frames = {row["name"]: (row.get("body"), *_placement(row)) for row in rows}
    return model.with_frames(frames) if frames else model


def _tree(bodies: list[Table], words: Table) -> Model:
    builder = Model.builder(**words)
    for row in _rows(bodies, "body", BODY_KEYS):
        builder.add(**row)
    return builder.build()


def _arm(dh: Table, words: Table) -> Model:
    """A table [dh]: the rows of its links become the columns `Model.from_dh` takes."""
    _check_keys("[dh]", dh, DH_KEYS)
    links = _rows(dh.get("link", []), "link", LINK_KEYS)
    columns: Table = {"variable": [link.get("variable", "theta") for link in links]}
    for key, shape in LINK_SHAPES.items():
        if any(key in link for link in links):
            zero = np.zeros(shape)
            columns[key] = [
                as_row(f"link {link['name']!r}", key, link.get(key, zero), shape) for link in links
            ]
    options = {key: dh[key] for key in ("convention", "degrees") if key in dh}
    return Model.from_dh(names=[link["name"] for link in links], **columns, **options, **words)


def _rows(tables: list[Any], kind: str, keys: dict[str, Any]) -> list[Table]:
    """The tables of one kind, checked, with tensors as 3x3 arrays."""
    rows: dict[str, Table] = {}
    for i, table in enumerate(tables):
        if not isinstance(table, dict) or "name" not in table:
            raise ModelError(f"{kind} {i} has no name")
        label = f"{kind} {table['name']!r}"
        _check_keys(label, table, keys)
        if table["name"] in rows:
            raise ModelError(f"{label} is there twice")
        rows[table["name"]] = {key: _tensor(key, value) for key, value in table.items()}
    return list(rows.values())


def _check_keys(label: str, table: Table, keys: dict[str, Any]) -> None:
    for key, value in table.items():
        if key not in keys:
            raise ModelError(f"{label}: unknown key {key!r}; torsor knows {', '.join(keys)}")
        if not isinstance(value, keys[key]) or (isinstance(value, bool) and keys[key] is not bool):
            raise ModelError(f"{label}: {key} = {value!r} has the wrong type")


def _tensor(key: str, value: Any) -> Any:
    """An inertia of six numbers xx, xy, xz, yy, yz, zz as a matrix; anything else as it is."""
    if key != "inertia" or not isinstance(value, list) or len(value) != 6:
        return value
    xx, xy, xz, yy, yz, zz = value
    return [[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]


def _placement(row: Table) -> tuple[Any, Any]:
    label = f"frame {row['name']!r}"
    R = as_row(label, "R", row.get("R", np.eye(3)), (3, 3))
    return R, as_row(label, "p", row.get("p", np.zeros(3)), (3,))


def write(model: Model) -> str:
    """The TOML text of a model; numbers are written with all their digits."""
    lines = [f"name = {_value(model.name)}", f"gravity = {_value(model.gravity)}"]
    if model.allow_degenerate:
        lines.append("allow_degenerate = true")
    for i in range(model.n):
        lines += ["", "[[body]]", *_body(model, i)]
    for name, frame in model.frames.items():
        lines += ["", "[[frame]]", *_frame(model, name, frame)]
    return "\n".join(lines) + "\n"


def _body(model: Model, i: int) -> list[str]:
    joint, inertia = JOINTS[model.joint[i]], model.inertia[i]
    row: Table = {"name": model.names[i]}
    if model.parent[i] >= 0:
        row["parent"] = model.names[model.parent[i]]
    row["joint"] = joint.name
    if joint.axial:
        row["axis"] = model.axis[i]
    if joint.has_pitch:
        row["pitch"] = model.pitch[i]
    row |= _place(model.R[i], model.p[i])
    row |= {"mass": model.mass[i], "com": model.com[i], "inertia": inertia[np.triu_indices(3)]}
    return [f"{key} = {_value(value)}" for key, value in row.items()]


def _frame(model: Model, name: str, frame: Frame) -> list[str]:
    row: Table = {"name": name}
    if frame.body >= 0:
        row["body"] = model.names[frame.body]
    row |= _place(frame.R, frame.p)
    return [f"{key} = {_value(value)}" for key, value in row.items()]


def _place(R: Any, p: Any) -> Table:
    turned = R.tobytes() != np.eye(3).tobytes()  # bytes: -0.0 is not 0.0
    return {"R": R, "p": p} if turned else {"p": p}


def _value(x: Any) -> str:
    """A TOML value. repr gives the shortest decimals that read back as the same double."""
    if isinstance(x, str):
        return json.dumps(x, ensure_ascii=False).replace("\x7f", "\\u007f")
    if np.ndim(x):
        return f"[{', '.join(map(_value, x))}]"
    return repr(float(x))
