"""Many models of one structure: the same joints and names, but other masses, lengths or gravity in every member."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from math import prod
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ArgumentError, ModelError
from torsor.model.builder import Numbers
from torsor.model.check import BLOCK, SHAPES, body_label, check_inertias
from torsor.model.extras import Extras
from torsor.model.freedoms import DEFAULTS, faults, nondefault
from torsor.model.model import Model, require_model
from torsor.model.names import NumberedNames
from torsor.validate import real_array, shown

Array = NDArray[Any]

INERTIAL = ("mass", "com", "inertia")
VARIABLE = [name for name in DEFAULTS if name != "armature"]  # what joints do by themselves: the armature is part of M
# What `replaced` keeps: the own numbers of a batch, and the framed ones, which `torsor.dynamics.members` brings up to
# date.  All else that is kept with a batch was made from numbers that are gone.
LASTING = ("model", "shape", "varied", "replacements", "framed")
LABELS = ("name", "notes")  # of a model and its file; they may differ, because no function of a batch reads them


class ModelBatch:
    """Hold models that differ only in some fields; every function of the dynamics takes it in place of a Model.

    The batch axes of a field come before its own axes. The batch axes of all fields and of the states broadcast. One
    program serves all batches of the same structure: nothing is compiled or stored per member.

    Parameters
    ----------
    model : Model
        The model that gives all other fields, and the names.
    **varied : (..., *shape) array_like
        The fields that differ: mass (..., n), com (..., n, 3), inertia (..., n, 3, 3), R, p, axis, pitch, gravity
        (..., 3), damping, armature and other quantities of the freedoms (..., nv).

    Attributes
    ----------
    shape : tuple of int
        The batch axes.
    varied : dict of str to ndarray
        The fields that differ, with all batch axes.

    Raises
    ------
    ArgumentError
        A field cannot differ, or its shape does not fit.
    ModelError
        A member is physically impossible; the message names it.

    Examples
    --------
    >>> import numpy as np, torsor as ts
    >>> arm, factors = ts.zoo.planar3(), np.linspace(0.9, 1.1, 5)
    >>> arms = ts.ModelBatch(arm, mass=arm.mass * factors[:, None])
    >>> ts.gravity_forces(arms, np.zeros(3)).shape
    (5, 3)
    """

    def __init__(self, model: Model, **varied: Unpack[Numbers]) -> None:
        require_model(model)
        self.model = model
        shapes = _field_shapes(model)
        given = {}
        for name, value in varied.items():
            if name not in shapes:
                raise ArgumentError(f"{name!r} cannot differ between members; these can: {', '.join(shapes)}")
            core, x = shapes[name], real_array(name, value, finite=False).copy()
            if x.ndim < len(core) or x.shape[x.ndim - len(core) :] != core:
                raise ArgumentError(f"{name} has shape {x.shape}; the members of {model!r} need (..., {_axes(core)})")
            given[name] = x, x.shape[: x.ndim - len(core)]
        try:
            self.shape = np.broadcast_shapes(*(axes for _, axes in given.values()))
        except ValueError:
            axes_given = ", ".join(f"{name} {axes}" for name, (_, axes) in given.items())
            raise ArgumentError(f"the batch axes of the members do not go together: {axes_given}") from None
        self.varied = {name: np.broadcast_to(x, self.shape + shapes[name]) for name, (x, _) in given.items()}
        self.replacements: list[tuple[Any, ModelBatch]] = []  # replacements that are not framed yet
        self._check()

    def _check(self) -> None:
        """Raise unless every member is physically possible."""
        for k in np.argwhere(~np.isfinite(self.varied.get("gravity", np.zeros(3)).reshape(-1, 3)))[:1, 0]:
            raise ModelError(f"gravity of member {k} holds a NaN or an infinity")
        joints = {name: x for name, x in self.varied.items() if name in DEFAULTS}
        impossible = any(bad.any() for _, bad, _ in faults(self.model, joints))
        if impossible or not self.same_placements or not (mass := self._rows("mass")).all():
            self.forest  # noqa: B018  making it checks it
            return
        rows = mass, self._rows("com"), self._rows("inertia")
        for start in range(0, len(mass), BLOCK):
            m, c, I = (x[start : start + BLOCK] for x in rows)
            check_inertias(m, c, I, partial(body_label, self._names, start=start), self.model.allow_degenerate)

    @cached_property
    def has_degenerate_bodies(self) -> bool:
        """Whether a member has a body without mass or with a singular inertia."""
        may = self.model.allow_degenerate or not self._rows("mass").all()
        return may and self.forest.has_degenerate_bodies

    @cached_property
    def weightless(self) -> ModelBatch:
        """The same batch without gravity."""
        varied: Any = {name: np.zeros_like(x) if name == "gravity" else x for name, x in self.varied.items()}
        return ModelBatch(self.model.weightless, **varied)

    @property
    def same_placements(self) -> bool:
        """Whether the members differ only in inertias, gravity and passive joint quantities."""
        return set(self.varied) <= {*INERTIAL, "gravity", *DEFAULTS}

    @classmethod
    def of(cls, models: Sequence[Model]) -> ModelBatch:
        """Make a batch from a list of models of the same structure. All their numbers may differ.

        Parameters
        ----------
        models : sequence of Model
            With equal joints, names, frames, couplings and other extras. The batch has the name and the notes of the
            first.

        Returns
        -------
        batch : ModelBatch
            With one batch axis.

        Raises
        ------
        ArgumentError
            The list is empty.
        ModelError
            A model has another structure.
        """
        if not isinstance(models, Sequence):
            raise ArgumentError(f"models must be a list of models, not {shown(models)}")
        if not models:
            raise ArgumentError("a batch needs at least one model")
        for k, model in enumerate(models):
            require_model(model)
            _require_structure(k, model, models[0])
        numbers: dict[str, Any] = {
            name: np.array([getattr(model, name) for model in models]) for name in _field_shapes(models[0])
        }
        return cls(models[0], **numbers)

    @property
    def size(self) -> int:
        """The number of members."""
        return prod(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a batch without axes has no length")
        return self.shape[0]

    def __getitem__(self, index: Any) -> Model | ModelBatch:
        """Take one member, or a batch of some of them.

        Parameters
        ----------
        index : index
            An index of the batch axes: a number, a slice, booleans.

        Returns
        -------
        model : Model or ModelBatch
            The selected members.
        """
        index = index if isinstance(index, tuple) else (index,)
        cores = {name: (slice(None),) * len(shape) for name, shape in _field_shapes(self.model).items()}
        picked: dict[str, Any] = {name: x[(*index, ..., *cores[name])] for name, x in self.varied.items()}
        some = ModelBatch(self.model, **picked)
        return some if some.shape else replace(self.model, **picked)

    def replaced(self, where: Any, **numbers: Unpack[Numbers]) -> ModelBatch:
        """Give some members other numbers, in place, at the cost of a batch of these members.

        Parameters
        ----------
        where : index
            Which members, as an index of the batch axes: numbers, a slice, booleans.
        **numbers : (..., *shape) array_like
            New numbers of these members, for fields that already differ in this batch; other fields stay.

        Returns
        -------
        batch : ModelBatch
            This batch.

        Raises
        ------
        ArgumentError
            A field does not differ between members, or a shape does not fit.
        ModelError
            A new member is physically impossible; then nothing has changed.
        """
        index = self._index(where)
        shape, shapes = index[0].shape if index else (), _field_shapes(self.model)
        rows: dict[str, Any] = {name: x[index] for name, x in self.varied.items() if name not in numbers}
        for name, value in numbers.items():
            if name not in self.varied:
                known = ", ".join(self.varied) or "nothing"
                raise ArgumentError(f"{name!r} does not differ between the members of this batch: {known} does")
            given, wanted = real_array(name, value, finite=False), shape + shapes[name]
            try:
                rows[name] = given if given.shape == wanted else np.broadcast_to(given, wanted)
            except ValueError:
                raise ArgumentError(f"{name} has shape {given.shape}; these members need {wanted}") from None
        framed = vars(self).get("framed")
        if framed is None or self.replacements or not framed.follow(self, index, rows):
            self._check_replaced(index, rows)
        for name in numbers:
            if not self.varied[name].flags.writeable:
                self.varied[name] = self.varied[name].copy()
            self.varied[name][index] = rows[name]
        for name in vars(self).keys() - set(LASTING):
            del vars(self)[name]
        return self

    def _check_replaced(self, index: tuple[Array, ...], rows: Any) -> None:
        """Raise unless these members could exist; they are framed when the frames are needed again."""
        try:
            some = ModelBatch(self.model, **rows)
        except ModelError as error:
            raise ModelError(f"{error} (counted among the members that are replaced)") from None
        if "framed" in vars(self):
            self.replacements.append((index, some))

    def _index(self, where: Any) -> tuple[Array, ...]:
        """Members as numbers along the batch axes."""
        try:
            found = np.arange(self.size).reshape(self.shape)[where]
        except (IndexError, TypeError, ValueError) as error:
            raise ArgumentError(f"where must name members of a batch of shape {self.shape}: {error}") from None
        return np.unravel_index(np.atleast_1d(found), self.shape) if self.shape else ()

    def __iter__(self) -> Iterator[Model | ModelBatch]:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        return f"ModelBatch({self.shape} of {self.model!r}; {', '.join(self.varied) or 'nothing'} varied)"

    @cached_property
    def forest(self) -> Model:
        """All members side by side, as one model of size * n bodies."""
        n, size, model = self.model.n, self.size, self.model
        if not size:
            return model
        fields: dict[str, Any] = {name: self._rows(name) for name in SHAPES}
        fields |= {name: self._rows(name) for name in {*self.varied, *nondefault(model)} & {*DEFAULTS}}
        parent = np.where(model.parent < 0, -1, model.parent + n * np.arange(size)[:, None])
        return Model(
            parent=parent.ravel(), joint=np.tile(model.joint, size), names=self._names,
            allow_degenerate=model.allow_degenerate, **fields,
        )  # fmt: skip

    @property
    def _names(self) -> Sequence[str]:
        return _MemberNames(self.model.names, self.size)

    def _rows(self, name: str) -> Array:
        """A field of the bodies of every member, (size * n, ...)."""
        own = getattr(self.model, name)
        return np.broadcast_to(self.varied.get(name, own), self.shape + own.shape).reshape(-1, *own.shape[1:])


class _MemberNames(NumberedNames):
    """The names of all bodies of all members, made on demand."""

    def __init__(self, names: Sequence[str], size: int) -> None:
        super().__init__(len(names) * size)
        self._names = names

    def __getitem__(self, i: Any) -> Any:
        member, body = divmod(i, len(self._names))
        return f"{self._names[body]} of member {member}"


def _field_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """The shape of each field that can differ."""
    bodies = {name: (model.n, *shape) for name, shape in SHAPES.items()}
    return bodies | {"gravity": (3,)} | dict.fromkeys(DEFAULTS, (model.nv,))


def _require_structure(k: int, model: Model, first: Model) -> None:
    """Raise unless a model equals the first one of its batch in everything that cannot differ between members."""
    if not all(np.array_equal(getattr(model, name), getattr(first, name)) for name in ("parent", "joint")):
        raise ModelError(f"model {k} has other joints than model 0: a batch has one structure")
    may_differ = {*_field_shapes(model), "parent", "joint", "extras", *LABELS}
    for name in (f.name for f in (*fields(Model), *fields(Extras)) if f.name not in may_differ):
        own, wanted = getattr(model, name), getattr(first, name)
        if own != wanted:
            raise ModelError(
                f"{name} of model {k} is not that of model 0, and members cannot differ in it: {shown(own)}, not "
                f"{shown(wanted)}"
            )


def _axes(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


def machine_of(model: Model | ModelBatch) -> Model:
    """The model itself, or the one that gives a batch its structure."""
    return model.model if isinstance(model, ModelBatch) else model


def require_models(model: Any) -> None:
    """Raise unless this is a `Model` or a `ModelBatch`."""
    if not isinstance(model, Model | ModelBatch):
        raise ArgumentError(f"model must be a torsor.Model or a ModelBatch, not {shown(model)}")
