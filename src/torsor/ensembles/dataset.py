"""A store as one xarray Dataset: chunks are read on demand, and axes have names."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torsor.ensembles.records import REDUCTIONS
from torsor.ensembles.zarr import Group, Variable
from torsor.formats import toml
from torsor.later import Later
from torsor.model.freedoms import DEFAULTS
from torsor.motion.coordinates import names_of

if TYPE_CHECKING:
    from torsor.model.model import Model

Array = NDArray[Any]
xarray, dask = Later("xarray", "open() needs xarray", "torsor[ensemble]"), Later("dask.array")
AXES = {"xyz": ["x", "y", "z"], "pose": ["x", "y", "z", "qw", "qx", "qy", "qz"]}  # names along axes of stores
DRAWN = "vary/"


class Stored:
    """An array of a store, read chunk by chunk along its first axis."""

    def __init__(self, group: Group, variable: Variable) -> None:
        self.group, self.variable = group, variable
        self.shape, self.dtype = (variable.rows, *variable.shape), np.dtype(variable.dtype)
        self.ndim = len(self.shape)

    def __getitem__(self, key: Any) -> Array:
        rows, *rest = key if isinstance(key, tuple) else (key,)
        first, last, _ = rows.indices(self.variable.rows)
        size = self.variable.chunk
        parts = [self._chunk(k) for k in range(first // size, -(-last // size))]
        found = np.concatenate(parts) if parts else np.empty((0, *self.variable.shape), self.dtype)
        return found[first - first // size * size :][: last - first][(slice(None), *rest)]

    def _chunk(self, k: int) -> Array:
        """A chunk; zeros or NaN if it is missing."""
        found = self.group.get(self.variable.name, k)
        if found is not None:
            return found
        rows = min(self.variable.chunk, self.variable.rows - k * self.variable.chunk)
        return np.full((rows, *self.variable.shape), np.nan if self.dtype.kind == "f" else 0, self.dtype)


def dataset(group: Group, model: Model | None) -> Any:
    """Everything in a store: stored quantities as variables, drawn parameters and axis names as coordinates."""
    if model is None:
        model = toml.read(group.attributes["model"], group.place.address)
    labels: dict[str, Any] = AXES | {
        "coordinate": names_of(model, "coordinates"), "freedom": names_of(model, "velocities"),
        "member": np.arange(group.variables["status"].rows), "body": list(model.names),
    }  # fmt: skip
    variables: dict[str, Any] = {}
    coordinates: dict[str, Any] = {"time": group.whole("t")}
    for name, variable in group.variables.items():
        axes = _axes(name, variable, model)
        if name not in ("digest", "t"):
            kind = coordinates if name.startswith(DRAWN) else variables
            kind[_requested_name(name, variable)] = axes, _array(group, variable)
        for axis in axes:
            known = labels.get("pose" if axis.startswith("pose.") else "xyz" if axis.startswith("position.") else axis)
            if known is not None and len(known) == dict(zip(axes, (variable.rows, *variable.shape)))[axis]:
                coordinates[axis] = (axis,), known
    return xarray.Dataset(variables, coords=coordinates, attrs=group.attributes)


def _axes(name: str, variable: Variable, model: Model) -> tuple[str, ...]:
    """The names of the axes of an array; parameters drawn for all bodies or freedoms have an axis of these."""
    owner, _, parameter = name.removeprefix(DRAWN).rpartition(".")
    several = {"q0": "coordinate", "v0": "freedom"}.get(parameter) if not owner else "freedom"
    if owner == "*" and parameter not in DEFAULTS:
        several = "body"
    sizes = {"coordinate": model.nq, "freedom": model.nv, "body": model.n}
    if not name.startswith(DRAWN) or several is None or owner in {*model.names, *model.joint_names, *model.frames}:
        return variable.axes
    member, *rest = variable.axes
    return (member, several, *rest[1:]) if variable.shape[:1] == (sizes[several],) else variable.axes


def _requested_name(name: str, variable: Variable) -> str:
    """The name of an array as the user wrote it: "PD.kp", "q:last"."""
    before, _, last = name.removeprefix(DRAWN).rpartition(".")
    return f"{before}:{last}" if last in REDUCTIONS and "time" not in variable.axes else name.removeprefix(DRAWN)


def _array(group: Group, variable: Variable) -> Any:
    """A Dask array if Dask is installed, else an array in memory."""
    if find_spec("dask") is None or not variable.shape:
        return group.whole(variable.name)
    return dask.from_array(Stored(group, variable), chunks=(variable.chunk, *variable.shape), asarray=False, name=False)
