"""`to_casadi`: a function of a model as a `casadi.Function`, with exact first and second derivatives.

A CasADi matrix (n, nodes) is a NumPy array (nodes, n) in the same memory. So nothing is copied, and all nodes are the
states of one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from torsor import validate
from torsor.dynamics.blocks import Block, Blocks, BlockTable
from torsor.dynamics.exports import DEFAULTS, ProgramOptions
from torsor.dynamics.programs import OptionalInputs, body_frames, taken
from torsor.errors import ArgumentError
from torsor.linalg import Vec
from torsor.model.joints import JOINTS
from torsor.model.model import Model, require_model

try:
    import casadi as ca
except ImportError:  # `to_casadi` reports this, not the import of torsor
    ca = None  # type: ignore[assignment]

Array = NDArray[Any]
Callback: Any = ca.Callback if ca else object


def to_casadi(model: Model, function: Callable[..., Any], nodes: int = 1, **options: Unpack[ProgramOptions]) -> Any:
    """Wrap a function of one model as a `casadi.Function` of matrices with one column per node.

    F = to_casadi(model, ts.forward_dynamics, nodes=50) takes q (nq, 50), v (nv, 50) and tau (nv, 50), symbols or
    numbers, and gives qdd (nv, 50).  All nodes are computed in one call, in SIMD lanes.

    Parameters
    ----------
    model : Model
        A `torsor.Model`.
    function : callable
        Any function that `torsor.compile` takes, except `vjp` and `jvp`: CasADi differentiates F itself.
    nodes : int, default 1
        The number of columns.
    **options : bool, int, str or (n, 4, 4) array_like
        Those of `torsor.compile`: `body`, `method`, `specialised`, `Q`, and True for each optional argument of the
        function that is a further input: `external`, `base_velocity`, `base_acceleration`.  Numbers are float64.

    Returns
    -------
    casadi.Function
        Its inputs have the names of the arguments; its output is "out".  A result with several axes, such as a matrix,
        is one column per node, in row-major order. First derivatives and Hessians of products with multipliers are
        exact and sparse: one block per node, without structural zeros. Derivatives with respect to a quaternion are
        with respect to its four numbers. Functions that are derivatives themselves
        (`torsor.forward_dynamics_derivatives`) have values only; matrices whose gradient is not a single program have
        first derivatives only. Equal arguments give the same object, which exists until the process ends.

    Raises
    ------
    ArgumentError
        CasADi is not installed, or the function or an option is not known.

    Examples
    --------
    >>> import casadi as ca
    >>> import torsor as ts
    >>> arm = ts.zoo.panda()
    >>> F = ts.to_casadi(arm, ts.forward_dynamics, nodes=20)
    >>> q, v, tau = ca.MX.sym("q", 7, 20), ca.MX.sym("v", 7, 20), ca.MX.sym("tau", 7, 20)
    >>> ca.jacobian(F(q, v, tau), tau).shape
    (140, 140)
    """
    if ca is None:
        raise ArgumentError("to_casadi needs CasADi: pip install 'torsor[casadi]'")
    require_model(model)
    validate.integer("nodes", nodes, least=1)
    own = [name for name in ProgramOptions.__annotations__ if name != "dtype"]
    for name in options.keys() - set(own):
        known = ", ".join(own)
        raise ArgumentError(f"to_casadi has no option {name!r}; it has nodes, {known}")
    if getattr(function, "mode", None):
        raise ArgumentError(f"give to_casadi the function itself, not {function.__name__}: CasADi differentiates it")
    taken({name: x for name, x in options.items() if name in OptionalInputs.__annotations__})  # raises what is wrong
    given: dict[str, Any] = {name: x for name, x in options.items() if name == "Q" or x != DEFAULTS[name]}
    if given.get("body") is not None:
        model.frame(given["body"])  # raises if there is no such body
    if (Q := given.pop("Q", None)) is not None:
        given["Q"] = body_frames(model, Q)  # compared by content
    return _made(_ModelKey(model), function, nodes, tuple(sorted(given.items())))


class _ModelKey(NamedTuple):
    """A model, compared by its content."""

    model: Model

    def __hash__(self) -> int:
        return hash(self.model.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ModelKey) and self.model.key == other.model.key


@cache  # CasADi keeps no reference to the Python object of a Callback, but calls it as long as a graph exists
def _made(same: _ModelKey, function: Callable[..., Any], nodes: int, options: tuple[tuple[str, Any], ...]) -> Any:
    blocks = Blocks(same.model, function, dict(options))
    return ValueCall(function.__name__, blocks, nodes, (blocks.inputs, ("out",)))


_kept: list[Any] = []  # derivatives, which CasADi requests once per function


class NodeCall(Callback):
    """A table of numbers at all nodes, as a function for CasADi.

    ins     the sparsity of each input
    outs    the sparsity of each output
    index   per output, the position of its entries among the numbers of the table; None: it has no entries
    names   the names of the inputs and of the outputs
    """

    def __init__(self, name: str, blocks: Blocks, nodes: int, names: tuple[Sequence[str], Sequence[str]]) -> None:
        Callback.__init__(self)
        self.blocks, self.nodes, self.names = blocks, nodes, names
        self.shapes = [(name, (nodes, *shape)) for name, shape in zip(blocks.inputs, blocks.shapes)]
        self.table = self._table()
        self.ins, outs = self._inputs(), self._outputs()
        self.outs, places = [pattern for pattern, _ in outs], self.table.places(nodes)
        self.index = [
            None if block is None or not len(block.index) else places[:, block.index].ravel() for _, block in outs
        ]
        _kept.append(self)
        self.construct(name, {"enable_fd": False})

    # ---- defined per kind of table ----

    def _table(self) -> BlockTable:
        raise NotImplementedError

    def _inputs(self) -> list[Any]:
        """x_1, ..., x_k"""
        return [ca.Sparsity.dense(size, self.nodes) for size in self.blocks.sizes]

    def _outputs(self) -> list[tuple[Any, Block | None]]:
        """The sparsity of each output, and the block that it holds."""
        raise NotImplementedError

    def _given(self, buffers: Sequence[Any]) -> dict[str, Array]:
        """The inputs of the programs."""
        return {name: _array(x, shape) for (name, shape), x in zip(self.shapes, buffers)}

    def _columns(self, block: Block) -> tuple[Any, Block]:
        """An output with one column per node."""
        return ca.Sparsity.dense(block.shape[0], self.nodes), block

    def _diagonal(self, block: Block) -> tuple[Any, Block]:
        """An output with one block per node, along the diagonal."""
        return ca.diagcat(*[_pattern(block)] * self.nodes), block

    def _by_input(self, block: Block, by: int) -> Any:
        """The sparsity of a derivative with respect to an input of this function."""
        one = _pattern(block)
        if self.blocks.has_quaternions and self.blocks.inputs[by] == "q":
            to_velocities = _velocities(self.blocks.model).sparsity_out(0)
            one = (ca.DM(one, 1.0) @ ca.DM(to_velocities, 1.0)).sparsity()
        return ca.diagcat(*[one] * self.nodes)

    # ---- what CasADi calls ----

    def get_n_in(self) -> int:
        return len(self.ins)

    def get_n_out(self) -> int:
        return len(self.outs)

    def get_sparsity_in(self, i: int) -> Any:
        return self.ins[i]

    def get_sparsity_out(self, i: int) -> Any:
        return self.outs[i]

    def get_name_in(self, i: int) -> str:
        return self.names[0][i]

    def get_name_out(self, i: int) -> str:
        return self.names[1][i]

    def has_eval_buffer(self) -> bool:
        return True

    def eval_buffer(self, given: Sequence[Any], wanted: Sequence[Any]) -> int:
        found = self.table.numbers(self._given(given), self.nodes)
        for index, buffer in zip(self.index, wanted):
            if index is not None and buffer is not None:
                found.take(index, out=np.frombuffer(buffer), mode="clip")
        return 0


class ValueCall(NodeCall):
    """y (m, nodes)"""

    def _table(self) -> BlockTable:
        return self.blocks.value

    def _outputs(self) -> list[tuple[Any, Block | None]]:
        return [self._columns(block) for block in self.table.blocks]

    def eval_buffer(self, given: Sequence[Any], wanted: Sequence[Any]) -> int:
        if wanted[0] is not None:  # the result of the program is the output: nothing is copied
            out = np.frombuffer(wanted[0]).reshape(self.nodes, *self.blocks.program.shape)
            self.blocks.program.rows(*self._given(given).values(), out=out)
        return 0

    def has_jacobian(self) -> bool:
        return self.blocks.has_derivatives

    def get_jacobian(self, name: str, names_in: Any, names_out: Any, options: Any) -> Any:
        found = JacobianCall(f"{name}_v", self.blocks, self.nodes, (names_in, names_out))
        return _by_coordinates(found, name, range(len(self.blocks.inputs)))

    def has_jac_sparsity(self, out: int, by: int) -> bool:  # without it, CasADi assumes that all nodes depend on all
        return self.blocks.has_derivatives

    def get_jac_sparsity(self, out: int, by: int, symmetric: bool) -> Any:
        return self._by_input(self.blocks.jacobian.blocks[by], by)

    def has_reverse(self, count: int) -> bool:
        return count == 1 and self.blocks.has_gradient

    def get_reverse(self, count: int, name: str, names_in: Any, names_out: Any, options: Any) -> Any:
        return _pulled_back(GradientCall(f"{name}_v", self.blocks, self.nodes, (names_in, names_out)), name)


class JacobianCall(NodeCall):
    """J (m nodes, width nodes) with respect to every input"""

    def _table(self) -> BlockTable:
        return self.blocks.jacobian

    def _inputs(self) -> list[Any]:
        """x_1, ..., x_k, and y, which is not needed"""
        return [*super()._inputs(), ca.Sparsity(self.blocks.count, self.nodes)]

    def _outputs(self) -> list[tuple[Any, Block | None]]:
        return [self._diagonal(block) for block in self.table.blocks]


class GradientCall(NodeCall):
    """J^T c (width, nodes) with respect to every input"""

    def _table(self) -> BlockTable:
        return self.blocks.gradient

    def _inputs(self) -> list[Any]:
        """x_1, ..., x_k, y, c"""
        nothing, c = ca.Sparsity(self.blocks.count, self.nodes), ca.Sparsity.dense(self.blocks.count, self.nodes)
        return [*super()._inputs(), nothing, c]

    def _outputs(self) -> list[tuple[Any, Block | None]]:
        return [self._columns(block) for block in self.table.blocks]

    def _given(self, buffers: Sequence[Any]) -> dict[str, Array]:
        c = _array(buffers[len(self.blocks.inputs) + 1], (self.nodes, *self.blocks.program.shape))
        return super()._given(buffers) | {self.blocks.multiplier: c}

    def has_jacobian(self) -> bool:
        return True

    def get_jacobian(self, name: str, names_in: Any, names_out: Any, options: Any) -> Any:
        found = HessianCall(f"{name}_v", self.blocks, self.nodes, (names_in, names_out))
        return _by_coordinates(found, name, [*range(len(self.blocks.inputs)), None, None])

    def has_jac_sparsity(self, out: int, by: int) -> bool:
        return True

    def get_jac_sparsity(self, out: int, by: int, symmetric: bool) -> Any:
        count, blocks = len(self.blocks.inputs), self.blocks.hessian.blocks
        if by == count:
            return ca.Sparsity(self.blocks.widths[out] * self.nodes, self.blocks.count * self.nodes)
        block = blocks[out * (count + 1) + min(by, count)]
        return self._by_input(block, by) if by < count else self._diagonal(block)[0]


class HessianCall(GradientCall):
    """The derivatives of J^T c with respect to every input, y and c"""

    def _table(self) -> BlockTable:
        return self.blocks.hessian

    def _inputs(self) -> list[Any]:
        """x_1, ..., x_k, y, c, and the gradients, which are not needed"""
        return [*super()._inputs(), *(ca.Sparsity(width, self.nodes) for width in self.blocks.widths)]

    def _outputs(self) -> list[tuple[Any, Block | None]]:
        found: list[tuple[Any, Block | None]] = []
        row = len(self.blocks.inputs) + 1
        for a, width in enumerate(self.blocks.widths):
            *own, by_c = (self._diagonal(block) for block in self.table.blocks[a * row : (a + 1) * row])
            found += [*own, (ca.Sparsity(width * self.nodes, self.blocks.count * self.nodes), None), by_c]
        return found

    def has_jacobian(self) -> bool:
        return False

    def has_jac_sparsity(self, out: int, by: int) -> bool:
        return False


def _pattern(block: Block) -> Any:
    return ca.Sparsity(*block.shape, block.starts.tolist(), block.rows.tolist())


def _array(buffer: Any, shape: tuple[int, ...]) -> Array:
    """The memory of CasADi as an array; no memory means zeros."""
    return np.zeros(shape) if buffer is None else np.frombuffer(buffer).reshape(shape)


# ---- quaternions ----


def _by_coordinates(call: NodeCall, name: str, inputs: Sequence[int | None]) -> Any:
    """Blocks with respect to coordinates from those along velocities: A N(q)^+, where v = N(q)^+ dq/dt.

    `inputs`: the input of each column of blocks. This is exact, because results do not depend on the length of a
    quaternion.
    """
    q = call.blocks.inputs.index("q")
    places = [inputs[k % len(inputs)] == q for k in range(call.n_out())]
    return _around(call, name, lambda out, N, k: out @ N if places[k] else out)


def _pulled_back(call: NodeCall, name: str) -> Any:
    """The gradient with respect to coordinates from that along velocities: N(q)^+T g."""
    q = call.blocks.inputs.index("q")
    return _around(call, name, lambda out, N, k: ca.reshape(N.T @ ca.vec(out), -1, call.nodes) if k == q else out)


def _around(call: NodeCall, name: str, change: Callable[[Any, Any, int], Any]) -> Any:
    """A function that changes the outputs of a call; without quaternions, the call itself."""
    if not call.blocks.has_quaternions:
        return call
    given = [ca.MX.sym(call.name_in(i), call.sparsity_in(i)) for i in range(call.n_in())]
    model, q = call.blocks.model, given[call.blocks.inputs.index("q")]
    N = ca.diagcat(*ca.horzsplit(_velocities(model).map(call.nodes)(q), model.nq))
    outs = [change(out, N, k) for k, out in enumerate(call.call(given))]
    return ca.Function(name, given, outs, call.name_in(), call.name_out())


def _velocities(model: Model) -> Any:
    """q -> N(q)^+ (nv, nq)"""
    q = ca.SX.sym("q", model.nq)
    blocks = []
    for code, first, end in zip(model.joint, model.q_start, model.q_start[1:]):
        joint, own = JOINTS[code], Vec(*(q[int(k)] for k in range(first, end)))
        units = (Vec(*unit) for unit in np.eye(joint.nq).tolist())
        blocks.append(ca.horzcat(*(ca.vertcat(*joint.velocity(own, unit)) for unit in units)))
    return ca.Function("velocities", [q], [ca.sparsify(ca.diagcat(*blocks))])
