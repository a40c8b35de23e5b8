"""A Zarr v3 group, written with JSON and NumPy alone; zarr, xarray and others read it without torsor.

Every array has chunks along its first axis only.  A chunk is one file, which exists completely or not at all
(`places.py`), so several processes can write different chunks without locks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.ensembles.places import StoreError, StorePlace
from torsor.errors import ArgumentError

Array = NDArray[Any]
DIGEST = 16  # bytes
TIMES = "t/c/0"


@dataclass(frozen=True)
class Variable:
    """An array of a group: `rows` entries along the first axis, `chunk` of them in a file."""

    name: str
    rows: int
    chunk: int
    shape: tuple[int, ...]  # of an entry
    dtype: str
    axes: tuple[str, ...]  # names of all axes

    def metadata(self) -> dict[str, Any]:
        kind = np.dtype(self.dtype)
        codec: dict[str, Any] = {"name": "bytes"}
        if kind.itemsize > 1:
            codec["configuration"] = {"endian": "little"}
        return {
            "zarr_format": 3, "node_type": "array", "shape": [self.rows, *self.shape], "data_type": kind.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [self.chunk, *self.shape]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": "NaN" if kind.kind == "f" else 0, "codecs": [codec], "attributes": {},
            "dimension_names": list(self.axes),
        }  # fmt: skip

    @classmethod
    def read(cls, name: str, metadata: Mapping[str, Any]) -> Variable:
        rows, *shape = metadata["shape"]
        chunk = metadata["chunk_grid"]["configuration"]["chunk_shape"][0]
        kind = np.dtype(metadata["data_type"]).name
        if not all(type(k) is int and k >= 0 for k in (rows, chunk, *shape)) or not chunk:
            raise ValueError("these are no sizes")
        return cls(name, rows, chunk, tuple(shape), kind, tuple(metadata["dimension_names"]))


class Group:
    """Arrays and attributes in one place."""

    def __init__(self, place: StorePlace) -> None:
        self.place = place
        found = self._json("zarr.json")
        given = found.get("attributes") if isinstance(found, dict) else None
        self.attributes: dict[str, Any] = given if isinstance(given, dict) else {}
        names = self.attributes.get("arrays", [])
        self.variables = {name: self._variable(name) for name in names}

    @classmethod
    def create(cls, place: StorePlace, variables: Sequence[Variable], attributes: Mapping[str, Any],
               times: Array) -> Group:  # fmt: skip
        """A new group, or the one that another process has made meanwhile; its metadata are written last."""
        nodes = {variable.name: variable.metadata() for variable in variables}
        for inner in sorted({name.rpartition("/")[0] for name in nodes} - {""}):
            inside = {name.removeprefix(f"{inner}/"): x for name, x in nodes.items() if name.startswith(f"{inner}/")}
            nodes[inner] = _group({}, inside)
        content = np.ascontiguousarray(times, "<f8").tobytes()
        attributes = dict(attributes) | {"arrays": [variable.name for variable in variables]}
        attributes["times"] = _digest(content).hex()
        files = {f"{name}/zarr.json": json.dumps(x).encode() for name, x in nodes.items()}
        files[TIMES] = content
        files["zarr.json"] = json.dumps(_group(attributes, nodes), indent=1).encode()
        place.create(files)
        return cls(place)

    def _variable(self, name: str) -> Variable:
        try:
            return Variable.read(name, self._json(f"{name}/zarr.json"))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise StoreError(
                f"{self.place.address}/{name}/zarr.json describes no array: the store is damaged"
            ) from None

    def _json(self, name: str) -> Any:
        content = self.place.read(name)
        if content is None:
            raise StoreError(f"{self.place.address}/{name}: cannot be read (it is not there)")
        try:
            return json.loads(content)
        except ValueError:
            raise StoreError(f"{self.place.address}/{name} is not JSON: the store is damaged") from None

    @property
    def digested(self) -> list[str]:
        """The arrays whose chunks have digests, in their order: all, then the status (not in older stores)."""
        names = [name for name in self.variables if name not in ("status", "digest", "t")]
        return [*names, "status"][: self.variables["digest"].shape[0]]

    def _file(self, name: str, chunk: int) -> str:
        return "/".join([name, "c", str(chunk), *["0"] * len(self.variables[name].shape)])

    def put(self, name: str, chunk: int, values: Array) -> bytes:
        """Write a chunk; the last one is padded.  Returns its digest."""
        content = self._content(name, values)
        self.place.write(self._file(name, chunk), content)
        return _digest(content)

    def digest_of(self, name: str, values: Array) -> bytes:
        """The digest of a chunk that will be written."""
        return _digest(self._content(name, values))

    def _content(self, name: str, values: Array) -> Any:
        variable = self.variables[name]
        block = np.ascontiguousarray(values, np.dtype(variable.dtype).newbyteorder("<"))
        if block.shape[1:] != variable.shape:
            raise ArgumentError(
                f"{name!r} has shape {block.shape[1:]} for some members and {variable.shape} for others"
            )
        if len(block) < variable.chunk:
            block = np.concatenate([block, np.zeros((variable.chunk - len(block), *variable.shape), block.dtype)])
        return block.reshape(-1).view(np.uint8).data

    def get(self, name: str, chunk: int) -> Array | None:
        """A chunk, or None if it is missing or incomplete; one that does not match its digest is refused."""
        variable, content = self.variables[name], self.place.read(self._file(name, chunk))
        if name == "t" and "times" in self.attributes and _digest(content or b"").hex() != self.attributes["times"]:
            raise StoreError(f"{self.place.address}/{TIMES} does not fit its digest: the store is damaged")
        digests = self.get("digest", chunk) if content is not None and name in self.digested else None
        if digests is not None and _digest(content) != digests[0, self.digested.index(name)].tobytes():
            raise StoreError(
                f"{self.place.address}/{self._file(name, chunk)} does not fit its digest: the store is damaged; "
                "what is damaged is done again if the study is resumed"
            )
        shape = (variable.chunk, *variable.shape)
        kind = np.dtype(variable.dtype).newbyteorder("<")
        if content is None or len(content) != kind.itemsize * int(np.prod(shape)):
            return None
        rows = min(variable.chunk, variable.rows - chunk * variable.chunk)
        return np.frombuffer(content, kind).reshape(shape)[:rows]

    def digest(self, name: str, chunk: int) -> bytes:
        """The digest of a chunk in its current state; empty if it is missing."""
        content = self.place.read(self._file(name, chunk))
        return b"" if content is None else _digest(content)

    def whole(self, name: str) -> Array:
        """The array; missing parts are zero or NaN."""
        variable = self.variables[name]
        result = np.full((variable.rows, *variable.shape), np.nan if variable.dtype.startswith("float") else 0,
                         variable.dtype)  # fmt: skip
        for chunk in range(-(-variable.rows // variable.chunk)):
            found = self.get(name, chunk)
            if found is not None:
                result[chunk * variable.chunk :][: len(found)] = found
        return result


def _digest(content: Any) -> bytes:
    return blake2b(content, digest_size=DIGEST).digest()


def _group(attributes: Mapping[str, Any], nodes: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a group and of all its arrays and groups, consolidated, so that others open it with one read."""
    consolidated = {"kind": "inline", "must_understand": False, "metadata": dict(nodes)}
    return {
        "zarr_format": 3, "node_type": "group", "attributes": dict(attributes), "consolidated_metadata": consolidated
    }  # fmt: skip
