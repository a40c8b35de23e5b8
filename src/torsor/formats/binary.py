"""The binary format of a model with many bodies: its arrays, unchanged, and a checksum.

    file     = MAGIC, length of the words (8 bytes), words, columns, blake2b of everything before (16 bytes)
    words    = JSON {"made", "name", "allow_degenerate", "names", "frames", "rows", "extras"}, UTF-8
    columns  = parent, joint, axis, pitch, R, p, mass, com, inertia, gravity, then body, R, p of the frames, then the
               quantities of the freedoms (damping, ...); little-endian, row by row

"rows" gives the number of rows of each column: the number of bodies, or 1 if all bodies have the same row.
A quantity of the freedoms has one row per freedom, 1 row, or none for the default values.
`parent` always has all its rows, so a file of s bytes never describes more than s/8 bodies. "names" is null for link1,
link2, ...; "frames" are the names of the frames. "made" records the version of torsor and the date; it may be missing.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ModelError, TorsorError
from torsor.model import Frame, Model
from torsor.model.check import SHAPES
from torsor.model.extras import Extras
from torsor.model.freedoms import DEFAULTS, nondefault
from torsor.model.names import NumberedNames
from torsor.validate import brief, shown

Array = NDArray[Any]

MAGIC = b"torsor model 2\n"
LENGTH, DIGEST = 8, 16  # bytes
WORDS = {"name": str, "allow_degenerate": bool, "names": list | None, "frames": list, "rows": list, "extras": dict}
# The type and the row of each column.
BODIES: dict[str, tuple[str, tuple[int, ...]]] = {
    "parent": ("<i8", ()), "joint": ("u1", ()), **{key: ("<f8", shape) for key, shape in SHAPES.items()}
}  # fmt: skip
GRAVITY = {"gravity": ("<f8", (3,))}
FRAMES: dict[str, tuple[str, tuple[int, ...]]] = {"body": ("<i8", ()), "R": ("<f8", (3, 3)), "p": ("<f8", (3,))}
FREEDOMS: dict[str, tuple[str, tuple[int, ...]]] = dict.fromkeys(DEFAULTS, ("<f8", ()))
COLUMNS = [*BODIES.values(), *GRAVITY.values(), *FRAMES.values(), *FREEDOMS.values()]


def encode(model: Model, signature: str = "") -> bytes:
    """The content of the file of a model; `signature` is the JSON of "made"."""
    frames, known = list(model.frames.values()), nondefault(model)
    columns: list[Any] = [
        model.parent,
        *(compact(getattr(model, key)) for key in BODIES if key != "parent"),
        model.gravity[None],
        *([getattr(frame, key) for frame in frames] for key in FRAMES),
        *(compact(known[key]) if key in known else [] for key in FREEDOMS),
    ]
    words = ({"made": json.loads(signature)} if signature else {}) | {
        "name": model.name,
        "allow_degenerate": bool(model.allow_degenerate),
        "names": None if isinstance(model.names, NumberedNames) else list(model.names),
        "frames": list(model.frames),
        "rows": [len(column) for column in columns],
        "extras": model.extras.plain(),
    }
    text = json.dumps(words).encode()
    data = [np.asarray(column, dtype).tobytes() for column, (dtype, _) in zip(columns, COLUMNS)]
    content = b"".join([MAGIC, len(text).to_bytes(LENGTH, "little"), text, *data])
    return content + _digest(content)


def compact(x: Array) -> Array:
    """One row of an array (n, ...) if all its rows have the same bits, else the array."""
    rows = np.ascontiguousarray(x).reshape(len(x), -1).view(np.uint8)
    return x[:1] if (rows == rows[0]).all() else x


def decode(content: bytes, path: str) -> Model:
    """The model in the content of a file; `path` is its name in messages."""
    try:
        return _model(memoryview(content))
    except TorsorError as error:
        raise ModelError(f"{path}: {brief(error)}") from None


def _model(content: memoryview) -> Model:
    if content[: len(MAGIC)] != MAGIC:
        raise ModelError("this is not a torsor model file")
    if len(content) < len(MAGIC) + LENGTH + DIGEST or content[-DIGEST:] != _digest(content[:-DIGEST]):
        raise ModelError("the file is cut off or damaged: its checksum does not fit")
    content = content[len(MAGIC) : -DIGEST]
    length = int.from_bytes(content[:LENGTH], "little")
    words = _words(bytes(content[LENGTH : LENGTH + length]))
    columns = _columns(content[LENGTH + length :], words["rows"])

    bodies = dict(zip(BODIES, columns))
    n = len(bodies["parent"])
    fields = {key: np.broadcast_to(x, (n, *x.shape[1:])) for key, x in bodies.items()}
    gravity, hosts, R, p, *known = columns[len(BODIES) :]
    freedoms = {key: x for key, x in zip(FREEDOMS, known) if len(x)}
    placements = zip(hosts.tolist(), R, p)
    frames = {name: Frame(*placement) for name, placement in zip(words["frames"], placements)}
    names = NumberedNames(n) if words["names"] is None else words["names"]
    return Model(
        **fields, **freedoms, gravity=gravity[0], names=names, frames=frames, name=words["name"],
        allow_degenerate=words["allow_degenerate"], extras=Extras.of(words["extras"]),
    )  # fmt: skip


def _words(text: bytes) -> dict[str, Any]:
    """The words of a file, after checking their types and that all names of frames differ."""
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        raise ModelError("its words are not JSON") from None
    if not isinstance(words, dict) or words.keys() - {"made"} != WORDS.keys():
        raise ModelError(f"its words must be {', '.join(WORDS)}")
    for key, kind in WORDS.items():
        if not isinstance(words[key], kind):
            raise ModelError(f"{key} has the wrong type")
    frames, rows = words["frames"], words["rows"]
    if not all(isinstance(name, str) for name in frames) or len(set(frames)) < len(frames):
        raise ModelError("the frames must have different names")
    if len(rows) != len(COLUMNS) or not all(type(count) is int and count >= 0 for count in rows):
        raise ModelError("rows must be a number for every column")
    bodies, hosts = rows[: len(BODIES)], rows[len(BODIES) + 1 : -len(FREEDOMS)]
    if not all(count in (1, bodies[0]) for count in bodies) or rows[len(BODIES)] != 1 or set(hosts) != {len(frames)}:
        raise ModelError("the columns have different numbers of rows")
    if words["names"] is not None and len(words["names"]) != bodies[0]:
        raise ModelError(f"{len(words['names'])} names are given for {bodies[0]} bodies")
    return words


def _columns(data: memoryview, rows: list[int]) -> list[Array]:
    """The columns, as views of the content; their sizes must add up to its size."""
    sizes = [count * np.dtype((dtype, shape)).itemsize for count, (dtype, shape) in zip(rows, COLUMNS)]
    if sum(sizes) != len(data):
        raise ModelError(f"its columns need {shown(sum(sizes))} bytes, {len(data)} are there")
    columns, at = [], 0
    for size, count, (dtype, shape) in zip(sizes, rows, COLUMNS):
        columns.append(np.frombuffer(data[at : at + size], dtype).reshape(count, *shape))
        at += size
    return columns


def _digest(content: bytes | memoryview) -> bytes:
    return blake2b(content, digest_size=DIGEST).digest()
