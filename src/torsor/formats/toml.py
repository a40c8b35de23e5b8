"""TOML: a model as text that people can write by hand, restored bit for bit.

    name = "arm"
    gravity = [0.0, 0.0, -9.81]        # optional, like most keys

    [[body]]
    name = "upper"
    joint = "revolute"                 # prismatic, helical, cylindrical, universal, gimbal, spherical, ...
    axis = [0.0, 1.0, 0.0]
    mass = 2.0
    com = [0.2, 0.0, 0.0]
    inertia = [0.01, 0.03, 0.03]       # principal moments, or xx, xy, xz, yy, yz, zz, or three rows

    [[body]]
    name = "lower"
    parent = "upper"                   # default: the base
    p = [0.4, 0.0, 0.0]                # the joint's position on the parent; R: its rotation, three rows
    damping = 0.1                      # also friction, stiffness, rest, armature, lower, upper, effort, speed
    ...

    [[frame]]
    name = "hand"
    body = "lower"
    p = [0.3, 0.0, 0.0]

Tables of very many bodies are slow to read. Instead, a table [bodies] can have one column per quantity: the
arguments of `Model.tree`, as arrays or, much faster, as strings with one line per body, or one line for all:

    [bodies]
    names = ["upper", "lower", ...]    # or one per line; default: link1, link2, ...
    parent = "-1 0 1 2 2"              # the number of the parent; -1 is the base
    joint = "revolute"
    p = '''
    0.0 0.0 0.0
    0.4 0.0 0.0
    ...
    '''

Similarly, a table [frames] has `names`, `body` (names, "" is the base), `R` and `p`.
A table [extras] has the information beyond the dynamics (`model/extras.py`): joint_names, couplings, actuators,
keyframes, visuals, notes and units.

Instead of bodies, a table [dh] can describe a serial arm; its `link` rows and other keys are the arguments of
`Model.from_dh`. Defaults are those of `Model.builder`; unknown keys are refused.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ModelError, TorsorError
from torsor.formats.binary import compact
from torsor.model import JOINTS, Model
from torsor.model.builder import as_row, as_rows
from torsor.model.check import SHAPES
from torsor.model.extras import Extras
from torsor.model.freedoms import DEFAULTS, nondefault
from torsor.model.names import Frame, NumberedNames
from torsor.validate import brief, encodable, shown

Table = dict[str, Any]
MAGIC = b""
UPPER = [0, 1, 2, 4, 5, 8]  # xx, xy, xz, yy, yz, zz of a tensor's nine numbers

# The keys of each table, with the types of their values.
NUMBERS = (int, float, list)
MODEL_KEYS = {"name": str, "gravity": list, "allow_degenerate": bool} | {
    "body": list, "bodies": dict, "dh": dict, "frame": list, "frames": dict, "extras": dict
}  # fmt: skip
BODY_KEYS = {"name": str, "parent": str, "joint": str} | dict.fromkeys((*SHAPES, *DEFAULTS), NUMBERS)
FRAME_KEYS = {"name": str, "body": str, "R": list, "p": list}
DH_KEYS = {"convention": str, "degrees": bool, "link": list}
# The numbers of a link in a DH table, with their shapes; the default is zero.
LINK_SHAPES = {
    "a": (),
    "alpha": (),
    "d": (),
    "theta": (),
    "mass": (),
    "com": (3,),
    "r": (3,),
    "inertia": (3, 3),
    **dict.fromkeys(("damping", "friction", "stiffness", "rest", "armature"), ()),
}
LINK_KEYS = {"name": str, "variable": str} | dict.fromkeys(LINK_SHAPES, NUMBERS)
# Columns are arrays, or strings with one line for each row.
COLUMN = (str, *NUMBERS)
COLUMNS_KEYS = {"names": (str, list), "parent": COLUMN, "joint": COLUMN} | dict.fromkeys((*SHAPES, *DEFAULTS), COLUMN)
FRAMES_KEYS = {"names": (str, list), "body": (str, list), "R": COLUMN, "p": COLUMN}
QUOTED = re.compile(r"""'[^']*('|$)|"(?:[^"\\]|\\.)*\\?("|$)""")  # up to the end of the line, if a quote is left open
PUNCTUATION = re.compile(r"[,=\[\]{}]")
MOST_PARTS = 100  # of a dotted key
PLAIN = re.compile(r"[\w./:-]+(\n[\w./:-]+)*", re.ASCII)
DECIMALS = 9  # the most decimals of a short number
BLOCK = 1000  # rows written at a time
MOST_TABLES = 1000  # more bodies or frames are written as columns: tomllib takes 0.2 ms for each table


def decode(content: bytes, path: str) -> Model:
    """The model in the content of a file; `path` is its name in messages."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from None
    return read(text, path)


def encode(model: Model, signature: str = "") -> bytes:
    """The content of the file of a model, with a comment at the end about the version that wrote it."""
    return (write(model) + (f"# {signature}\n" if signature else "")).encode("utf-8")


def read(text: str, path: str) -> Model:
    """The model described by a TOML text; `path` is its name in messages."""
    try:
        return _model(_parsed(text))
    except TorsorError as error:
        raise ModelError(f"{path}: {brief(error)}") from None


def _parsed(text: str) -> Table:
    if not encodable(text):
        raise ModelError("the text holds a lone surrogate, which is no character")
    for line in text.split("\n"):
        if len(line) > MOST_PARTS and line.count(".") > MOST_PARTS:
            _check_dots(line)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ModelError("brackets are nested too deeply; no model needs more than three") from None
    except ValueError as error:  # raised also for an integer of thousands of digits
        raise ModelError(str(error)) from None


def _check_dots(line: str) -> None:
    """Refuse keys a.b.c... with many parts: the time and memory of tomllib grow as the square of their number."""
    parts = PUNCTUATION.split(QUOTED.sub(lambda found: "" if found[1] or found[2] else found[0], line))
    if max(part.count(".") for part in parts) > MOST_PARTS:
        raise ModelError(f"a key has more than {MOST_PARTS} parts; no key of a model has more than two")


def _model(table: Table) -> Model:
    _check_keys("the model", table, MODEL_KEYS)
    kinds = [key for key in READERS if key in table]
    if len(kinds) != 1:
        raise ModelError("describe the model either by [[body]] tables or by one [bodies] or one [dh] table")
    words: Table = {key: table[key] for key in ("name", "gravity", "allow_degenerate") if key in table}
    model = READERS[kinds[0]](table[kinds[0]], words)
    rows = _rows(table.get("frame", []), "frame", FRAME_KEYS)
    frames = {row["name"]: (row.get("body"), *_placement(row)) for row in rows}
    frames |= _frame_columns(table.get("frames", {}), frames)
    if frames:
        model = model.with_frames(frames)
    return model.with_extras(Extras.of(table["extras"])) if "extras" in table else model


def _tree(bodies: list[Table], words: Table) -> Model:
    builder = Model.builder(**words)
    for row in _rows(bodies, "body", BODY_KEYS):
        builder.add(**row)
    return builder.build()


def _arm(dh: Table, words: Table) -> Model:
    """A table [dh]: the rows of its links become the columns of `Model.from_dh`."""
    _check_keys("[dh]", dh, DH_KEYS)
    links = _rows(dh.get("link", []), "link", LINK_KEYS)
    columns: Table = {"variable": [link.get("variable", "theta") for link in links]}
    for key, shape in LINK_SHAPES.items():
        if any(key in link for link in links):
            zero = np.zeros(shape)
            columns[key] = [as_row(f"link {link['name']!r}", key, link.get(key, zero), shape) for link in links]
    options = {key: dh[key] for key in ("convention", "degrees") if key in dh}
    return Model.from_dh(names=[link["name"] for link in links], **columns, **options, **words)


def _columns(table: Table, words: Table) -> Model:
    """A table [bodies]: the arguments of `Model.tree`."""
    _check_keys("[bodies]", table, COLUMNS_KEYS)
    if "parent" not in table:
        raise ModelError("[bodies] needs the column parent, one number for each body")
    shapes = SHAPES | dict.fromkeys(DEFAULTS, ())
    columns = {key: _column(key, table[key], shape) for key, shape in shapes.items() if key in table}
    parent, joint = table["parent"], table.get("joint", "revolute")
    if isinstance(parent, str):
        parent = _parents(parent)
    if isinstance(joint, str):
        joint = joint.split()
    return Model.tree(parent, joint, names=_names(table.get("names", [])), **columns, **words)


READERS: dict[str, Callable[[Any, Table], Model]] = {"body": _tree, "bodies": _columns, "dh": _arm}


def _names(column: str | list[Any]) -> list[Any]:
    """A column of names; a string holds one name per line."""
    return [line.strip() for line in column.strip().splitlines()] if isinstance(column, str) else column


def _parents(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split()]
    except ValueError as error:
        raise ModelError(f"parent: {error}") from None


def _column(key: str, value: Any, shape: tuple[int, ...]) -> Any:
    """A column; a string holds one row per line."""
    if not isinstance(value, str):
        return as_rows(key, value, shape)
    lines = value.strip().splitlines()
    if not lines:
        raise ModelError(f"{key} holds no numbers")
    try:
        rows = np.loadtxt(lines, ndmin=2)
    except ValueError as error:
        raise ModelError(f"{key}: {error}") from None
    if key == "inertia":
        rows = _tensors(rows)
    if rows[0].size != np.prod(shape, dtype=int):
        raise ModelError(f"{key} needs {np.prod(shape, dtype=int)} numbers a line, not {rows[0].size}")
    return rows.reshape(len(rows), *shape)


def _tensors(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows of three principal moments, or of xx, xy, xz, yy, yz, zz, as matrices; others unchanged."""
    if rows.shape[1] == 3:
        return rows[:, :, None] * np.eye(3)
    return rows[:, [[0, 1, 2], [1, 3, 4], [2, 4, 5]]] if rows.shape[1] == 6 else rows


def _frame_columns(table: Table, others: Table) -> Table:
    """A table [frames]: name -> (body, R, p)."""
    _check_keys("[frames]", table, FRAMES_KEYS)
    names, hosts = (_names(table.get(key, [])) for key in ("names", "body"))
    if not all(isinstance(word, str) for word in (*names, *hosts)):
        raise ModelError("[frames]: names and body must be lists of strings")
    if len(set(names) | others.keys()) < len(names) + len(others):
        raise ModelError("[frames]: a name is there twice")
    n = len(names)
    R = _column("R", table.get("R", np.eye(3).tolist()), (3, 3))
    p = _column("p", table.get("p", [0.0, 0.0, 0.0]), (3,))
    for key, column in {"body": hosts, "R": R, "p": p}.items():
        if len(column) not in ((n,) if key == "body" else (1, n)):
            raise ModelError(f"[frames]: {key} is given for {len(column)} frames, names for {n}")
    R, p = np.broadcast_to(R, (n, 3, 3)), np.broadcast_to(p, (n, 3))
    return {name: (host or None, *placement) for name, host, *placement in zip(names, hosts, R, p)}


def _rows(tables: list[Any], kind: str, keys: dict[str, Any]) -> list[Table]:
    """The tables of one kind, checked, with tensors as 3x3 arrays."""
    rows: dict[str, Table] = {}
    for i, table in enumerate(tables):
        if not isinstance(table, dict) or not isinstance(table.get("name", ""), str) or not table.get("name"):
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
            raise ModelError(f"{label}: unknown key {shown(key)}; torsor knows {', '.join(keys)}")
        if not isinstance(value, keys[key]) or (isinstance(value, bool) and keys[key] is not bool):
            raise ModelError(f"{label}: {key} = {shown(value)} has the wrong type")


def _tensor(key: str, value: Any) -> Any:
    """An inertia of six numbers xx, xy, xz, yy, yz, zz as a matrix; anything else unchanged."""
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
    if model.n <= MOST_TABLES:
        for i in range(model.n):
            lines += ["", "[[body]]", *_body(model, i)]
    else:
        lines += ["", "[bodies]", *_body_columns(model)]
    if len(model.frames) <= MOST_TABLES:
        for name, frame in model.frames.items():
            lines += ["", "[[frame]]", *_frame(model, name, frame)]
    else:
        lines += ["", "[frames]", *_columns_of_frames(model)]
    if model.extras:
        lines += ["", "[extras]", *(f"{key} = {_value(value)}" for key, value in model.extras.plain().items() if value)]
    return "\n".join(lines) + "\n"


def _body_columns(model: Model) -> list[str]:
    """The columns of a table [bodies]; a value that is the same for all bodies is written once."""
    lines = [] if isinstance(model.names, NumberedNames) else [f"names = {_strings(model.names)}"]
    joint = " ".join(JOINTS[code].name for code in compact(model.joint))
    lines += [f"parent = {_lines(model.parent)}", f'joint = "{joint}"']
    arrays = {key: getattr(model, key) for key in SHAPES}
    inertia = model.inertia.reshape(-1, 9)
    if inertia.tobytes() == model.inertia.swapaxes(1, 2).tobytes():
        arrays["inertia"] = inertia[:, UPPER]
    arrays |= nondefault(model)
    return lines + [f"{key} = {_lines(compact(x))}" for key, x in arrays.items()]


def _columns_of_frames(model: Model) -> list[str]:
    """The columns of a table [frames]."""
    frames = model.frames.values()
    hosts = ["" if frame.body < 0 else model.names[frame.body] for frame in frames]
    lines = [f"names = {_strings(model.frames)}", f"body = {_strings(hosts)}"]
    arrays = {"R": np.array([frame.R for frame in frames]), "p": np.array([frame.p for frame in frames])}
    return lines + [f"{key} = {_lines(compact(x))}" for key, x in arrays.items()]


def _strings(words: Iterable[str]) -> str:
    """A column of names: one line per name if they are plain, else an array."""
    text = "\n".join(words)
    if PLAIN.fullmatch(text):
        return f"'''\n{text}\n'''"
    return f"[{', '.join(map(_value, words))}]"


def _lines(x: NDArray[Any]) -> str:
    """A column: one line per row.

    Finding the shortest decimals of a double takes twice as long as writing 17 digits, which also define it: long
    numbers are written with 17 digits.
    """
    rows = x.reshape(len(x), -1)
    digits = "%r" if (np.round(x, DECIMALS) == x).all() else "%.17g"
    line = " ".join([digits] * rows.shape[1])
    blocks = (rows[i : i + BLOCK] for i in range(0, len(rows), BLOCK))
    text = "\n".join("\n".join([line] * len(block)) % tuple(block.ravel().tolist()) for block in blocks)
    return f"'''\n{text}\n'''"


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
    symmetric = inertia.tobytes() == inertia.T.tobytes()  # bytes: -0.0 is not 0.0
    tensor = inertia.ravel()[UPPER] if symmetric else inertia
    row |= {"mass": model.mass[i], "com": model.com[i], "inertia": tensor}
    row |= {key: values if len(values) > 1 else values[0] for key, values in nondefault(model, i).items()}
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
    if isinstance(x, dict):
        return f"{{{', '.join(f'{_value(key)} = {_value(value)}' for key, value in x.items())}}}"
    if isinstance(x, list) and x and isinstance(x[0], dict):
        return "[\n" + "".join(f"    {_value(row)},\n" for row in x) + "]"
    if isinstance(x, list | tuple) or np.ndim(x):
        return f"[{', '.join(map(_value, x))}]"
    return repr(x) if isinstance(x, int) else repr(float(x))
