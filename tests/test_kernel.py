"""The compiler: every engine against the reference interpreter; promises about bits, layouts and counts."""

import dataclasses
import os
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mpmath
import numpy as np
import processes
import pytest
from machines import ARRAY_FUNCTIONS

import torsor as ts
from torsor import zoo
from torsor.algorithms import articulated, composite, constraint_force, discrete_mechanics, energy, newton_euler
from torsor.backends import cache, codegen
from torsor.backends.cpu import compile_program, compile_request
from torsor.backends.elementary import TRIG_LIMIT
from torsor.backends.llvm import Target
from torsor.backends.llvm_arrays import loop_kernel
from torsor.backends.pointwise import compile_pointwise, trace
from torsor.compiler.frames import LARGE, framed, reframe, regroup
from torsor.compiler.request import ALWAYS, NEVER
from torsor.compiler.tape import Code, Operations, Tape
from torsor.compiler.trace import looped, unroll
from torsor.duals import evaluate
from torsor.dynamics.functions import ALGORITHMS
from torsor.linalg import cos, log, sin
from torsor.model.joints import JOINTS
from torsor.outputs import AtBase, PerBody, PerFreedom, Several
from torsor.sweeps import Algorithm, outward

SAME_STEPS = 1e-12  # the same operations in another order and in other frames, on some thirty bodies
SINGLE = 2e-5  # float32 has 6e-8; a well-conditioned tree loses two digits
ULPS = 2.0

ROOT = Path(__file__).parent.parent
FUNCTIONS = ARRAY_FUNCTIONS
JACOBIANS = (ts.jacobian, ts.jacobian_dot)


@pytest.fixture(scope="module")
def tree():
    """Every joint type, branches at the base and elsewhere, more freedoms than are ever unrolled."""
    return zoo.random_tree(12, seed=7)


@pytest.fixture(scope="module")
def states(tree):
    rng = np.random.default_rng(3)
    q = tree.random_configuration(rng, size=21)
    return {"q": q} | {name: rng.normal(size=(21, tree.nv)) for name in ("v", "tau", "qdd", "b")} | {
        "external": rng.normal(size=(21, tree.n, 6))}  # fmt: skip


def body_of(function, model):
    return model.n - 1 if function in JACOBIANS else None


def relative(x, y):
    return float(np.abs(x - y).max() / np.abs(y).max())


def arguments(program, states, dtype=np.float64):
    return [states[name].astype(dtype) for name in program.inputs]


def reference_of(program, model, states, body, k):
    inputs = {name: states[name][k].tolist() for name in program.inputs}
    return np.array(evaluate(program.request.algorithm, model, inputs, frame=program.request.frame), dtype=float)


# Engines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_loops_compute_what_the_reference_does(function, tree, states):
    body = body_of(function, tree)
    program = ts.compile(tree, function, specialised=False, body=body)
    result = program(*arguments(program, states))
    for k in (0, 20):
        error = np.abs(result[k] - reference_of(program, tree, states, body, k)).max()
        assert error < SAME_STEPS * np.abs(result).max()  # of all states: an energy may be near zero


@pytest.fixture(scope="module")
def square():
    """A large machine full of zeros and right angles, with a branch; two of its bodies are askew."""
    rng = np.random.default_rng(6)
    n, axes = LARGE + 5, np.array([(0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0), (0.0, -1.0, 0.0)])
    axis, p = axes[np.arange(n) % 4], np.where(np.arange(n)[:, None] % 3, (0.3, 0.0, 0.0), (0.0, 0.0, 0.2))
    com, parent = np.where(np.arange(n)[:, None] % 2, (0.1, 0.0, 0.0), 0.0), np.arange(-1, n - 1)
    axis[[7, 30]], com[7], parent[30] = rng.normal(size=(2, 3)), (0.1, 0.2, -0.1), 4
    axis /= np.linalg.norm(axis, axis=1)[:, None]
    joint = np.array(["revolute", "revolute", "prismatic", "revolute", "helical"])[np.arange(n) % 5]
    joint[[0, 20]] = "free", "spherical"
    pitch = np.where(joint == "helical", 0.1, 0.0)
    return ts.Model.tree(parent, joint=joint, axis=axis, p=p, mass=1.0, com=com, inertia=(0.1, 0.2, 0.2), pitch=pitch)


@pytest.mark.parametrize("name", ["forward_dynamics", "inverse_dynamics", "mass_matrix", "body_poses", "jacobian"])
def test_loops_of_large_machines_leave_out_their_zeros(name, square):
    function, rng = getattr(ts, name), np.random.default_rng(8)
    states = {"q": square.random_configuration(rng, size=9)} | {
        name: rng.normal(size=(9, square.nv)) for name in ("v", "tau", "qdd")}  # fmt: skip
    body = body_of(function, square)
    program = ts.compile(square, function, specialised=False, body=body)
    result = program(*arguments(program, states))
    assert relative(result[4], reference_of(program, square, states, body, 4)) < SAME_STEPS
    assert relative(program(*(x[:1] for x in arguments(program, states))), result[:1]) == 0
    assert max(len(kind.known) for kind in program.operations_per_joint) > 20


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_one_state_has_the_bits_of_a_batch(tree, states, dtype):
    """Loops for one state find all sines first; some angles are beyond the range of our own sine."""
    program = ts.compile(tree, ts.forward_dynamics, specialised=False, dtype=dtype)
    q, v, tau = arguments(program, states, dtype)
    turning = int(tree.q_start[[JOINTS[code].name == "revolute" for code in tree.joint].index(True)])
    q[:8, turning] = np.geomspace(1e3, 1e17, 8)
    batch = program(q, v, tau)
    for k in range(len(q)):
        assert (program(q[k], v[k], tau[k]) == batch[k]).all()
        assert (program(q[k][::-1].copy()[::-1], v[k], tau[k]) == batch[k]).all()  # strides of any kind


def test_kinds_of_large_machines(square):
    """Patterns of zeros that many bodies share are kinds; the rest know only what all of them have."""
    frames = framed(square)
    for k, kind in enumerate(frames.kinds):
        for name, value in kind.known:
            assert (frames.numbers[name][frames.kind == k] == value).all()
    assert len(set(frames.kinds)) == len(frames.kinds) == len(np.unique(frames.kind))
    assert not any(kind.known for kind in framed(zoo.panda()).kinds)
    assert max(len(kind.known) for kind in framed(zoo.random_chain(LARGE + 1, 3)).kinds) < 9  # where no zeros are
    # a batch of other inertias computes with them, not with the zeros of its first model
    batch = ts.ModelBatch(square, com=square.com + 0.01 * np.arange(2)[:, None, None])
    q = square.random_configuration(np.random.default_rng(1))
    tau = ts.inverse_dynamics(batch, q, np.ones(square.nv), np.ones(square.nv))
    one = dataclasses.replace(square, com=square.com + 0.01)
    assert relative(tau[1], ts.inverse_dynamics(one, q, np.ones(square.nv), np.ones(square.nv))) < SAME_STEPS


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_unrolled_code_computes_what_the_reference_does(function):
    model = zoo.random_tree(4, seed=2)
    rng = np.random.default_rng(0)
    states = {"q": model.random_configuration(rng, size=9)} | {
        name: rng.normal(size=(9, model.nv)) for name in ("v", "tau", "qdd", "b")}  # fmt: skip
    body = body_of(function, model)
    program = ts.compile(model, function, specialised=True, body=body)
    result = program(*arguments(program, states))
    assert relative(result[4], reference_of(program, model, states, body, 4)) < SAME_STEPS


@pytest.mark.parametrize("function", [ts.forward_dynamics, ts.inverse_dynamics, ts.bias_forces])
def test_external_wrenches_compile_too(function, tree, states):
    program = ts.compile(tree, function, external=True)
    result = program(*arguments(program, states))
    assert relative(result[7], reference_of(program, tree, states, None, 7)) < SAME_STEPS


@pytest.mark.parametrize("specialised", [True, False])
def test_float32_keeps_its_digits(specialised):
    model = zoo.panda()
    rng = np.random.default_rng(1)
    q, v, tau = rng.uniform(-1, 1, (3, 40, 7))
    single = ts.compile(model, ts.forward_dynamics, dtype="float32", specialised=specialised)
    result = single(*(x.astype(np.float32) for x in (q, v, tau)))
    assert result.dtype == np.float32
    assert relative(result, ts.forward_dynamics(model, q, v, tau)) < SINGLE


def test_nearly_parallel_axes_stay_accurate():
    """The common normal of almost parallel axes is far away; such placements are not written as screws."""
    for angle in (1e-15, 1e-12, 1e-8, 1e-5, 1e-3, 1e-2, 0.05):
        R = ts.lie.exp_so3(np.array([angle, 0.0, 0.0]))
        model = ts.Model.chain(axis=(0, 0, 1), R=R, p=[0.3, -0.4, 0.1], mass=1.0, com=[0.1, 0.2, 0.3],
                               inertia=[0.3, 0.4, 0.5], n=5)  # fmt: skip
        q, v, tau = np.random.default_rng(0).normal(size=(3, 5))
        program = ts.compile(model, ts.forward_dynamics, specialised=False)
        states = {"q": q[None], "v": v[None], "tau": tau[None]}
        assert relative(program(q, v, tau), reference_of(program, model, states, None, 0)) < SAME_STEPS, angle


def test_regrouped_inertia_gives_the_same_mass_matrix():
    model = zoo.random_chain(6, 4, joints=("revolute", "prismatic"))
    framed = reframe(model)
    q = np.random.default_rng(0).normal(size=6)
    codes = [unroll(ALGORITHMS[ts.forward_dynamics], x, ("q", "v", "tau")) for x in (framed, regroup(framed))]
    assert Operations.of(codes[1]).mul < Operations.of(codes[0]).mul
    M, expected = (ts.compile(model, ts.mass_matrix, specialised=yes)(q) for yes in (True, False))
    assert relative(M, expected) < SAME_STEPS


# Bits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("specialised", [True, False])
def test_a_state_gives_the_same_bits_anywhere(specialised):
    model = zoo.stanford()
    rng = np.random.default_rng(5)
    states = [model.random_configuration(rng, size=37), *rng.normal(size=(2, 37, model.nv))]
    widths = [lanes for lanes in (1, 2, 4, 8) if lanes <= codegen.host().lanes(64)]
    programs = [ts.compile(model, ts.forward_dynamics, specialised=specialised, lanes=lanes) for lanes in widths]
    expected = programs[-1](*states)
    for program in programs:
        assert np.array_equal(program(*states), expected)
        for k in (0, 5, 36):
            assert np.array_equal(program(*(x[k] for x in states)), expected[k])
            assert np.array_equal(program(*(x[k : k + 3] for x in states)), expected[k : k + 3])
    order = rng.permutation(37)
    assert np.array_equal(programs[-1](*(x[order] for x in states)), expected[order])


def test_nan_stays_in_its_state(tree, states):
    program = ts.compile(tree, ts.forward_dynamics)
    args = arguments(program, states)
    clean = program(*args)
    args[0][4, 3] = np.nan
    args[2][11, 0] = np.inf
    dirty = program(*args)
    same = [k for k in range(21) if k not in (4, 11)]
    assert np.array_equal(dirty[same], clean[same])
    assert not np.isfinite(dirty[4]).all()
    assert not np.isfinite(dirty[11]).all()


def test_flags_are_left_as_they_were(tree, states):
    program = ts.compile(tree, ts.forward_dynamics)
    args = arguments(program, states)
    args[0][0] = np.nan
    with np.errstate(all="raise"):
        program(*args)
    assert 5e-324 / 1 == 5e-324  # subnormals are back on


# Layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("specialised", [True, False])
def test_any_layout_numpy_accepts(specialised):
    model = zoo.planar3()
    rng = np.random.default_rng(8)
    q, v, tau = rng.normal(size=(3, 4, 5, 3))
    program = ts.compile(model, ts.forward_dynamics, specialised=specialised)
    expected = program(q, v, tau)
    assert expected.shape == (4, 5, 3)
    assert np.array_equal(program(np.asfortranarray(q), np.asfortranarray(v), tau), expected)
    wide = np.zeros((4, 5, 7))
    wide[..., ::-2][..., :3] = q
    assert np.array_equal(program(wide[..., ::-2][..., :3], v, tau), expected)
    frozen = q.copy()
    frozen.flags.writeable = False
    out = np.full((4, 5, 3), np.nan)
    assert program(frozen, v, tau, out=out) is out
    assert np.array_equal(out, expected)
    assert np.array_equal(program(q, v[:, :1], tau[0]), program(q, *np.broadcast_arrays(v[:, :1], tau[0])[:1],
                                                               np.broadcast_to(tau[0], q.shape)))  # fmt: skip
    assert program(q[:0], v[:0], tau[:0]).shape == (0, 5, 3)
    assert np.array_equal(program(q.tolist(), v, tau), expected)
    inside = tau.copy()
    assert np.array_equal(program(q, v, inside, out=inside), expected)


MATRICES = (ts.mass_matrix, ts.inverse_mass_matrix, ts.coriolis_matrix)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("function", MATRICES, ids=lambda f: f.__name__)
def test_matrices_are_laid_out_alike_wherever_they_go(function, dtype):
    """Several megabytes are written past the caches, in whole lines where they lie alike; a few states are not."""
    model = zoo.humanoid()
    rng = np.random.default_rng(2)
    count = 9 * 2**20 // (model.nv**2 * np.dtype(dtype).itemsize)
    states = [model.random_configuration(rng, count), rng.normal(size=(count, model.nv))]
    program = ts.compile(model, function, dtype=dtype)
    states = [x.astype(dtype) for x in states[: len(program.inputs)]]
    few = [program(*(x[k : k + 50] for x in states)) for k in (0, count - 50)]
    room = np.full((count + 1) * (model.nv**2 + 3), np.nan, dtype)
    for shift in (0, 1, 5):
        for width in (model.nv**2, model.nv**2 + 3):  # rows that follow each other, and rows with gaps
            rows = room[shift : shift + count * width].reshape(count, width)
            rows[:] = np.nan
            out = rows[:, : model.nv**2].reshape(count, model.nv, model.nv)
            assert np.shares_memory(out, room)
            program(*states, out=out)
            assert np.array_equal(out[:50], few[0])
            assert np.array_equal(out[-50:], few[1])
            assert np.isnan(rows[:, model.nv**2 :]).all()  # the gaps
            assert not np.isnan(out).any()
    turned = np.empty((model.nv, model.nv, 50), dtype).transpose(2, 1, 0)
    assert np.array_equal(program(*(x[:50] for x in states), out=turned), few[0])


@pytest.mark.parametrize("function", MATRICES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("specialised", [True, False])
def test_entries_of_a_matrix_have_the_same_bits_in_any_lane(function, specialised):
    model = zoo.random_tree(6, seed=3)
    rng = np.random.default_rng(4)
    states = [model.random_configuration(rng, 21), rng.normal(size=(21, model.nv))]
    widths = [lanes for lanes in (1, 2, 4, 8) if lanes <= codegen.host().lanes(64)]
    programs = [ts.compile(model, function, specialised=specialised, lanes=lanes) for lanes in widths]
    states = states[: len(programs[0].inputs)]
    expected = programs[-1](*states)
    for program in programs:
        assert np.array_equal(program(*states), expected)
        assert np.array_equal(program(*(x[3] for x in states)), expected[3])
    if function is not ts.coriolis_matrix:
        assert np.array_equal(expected, expected.swapaxes(1, 2))  # symmetric to the bit


# Sine, cosine, logarithm -----------------------------------------------------------------------------------------


def ulps(computed, exact, dtype):
    """The error in units of the last place of the exact value."""
    return max(
        float(abs(mpmath.mpf(float(c)) - e) / mpmath.mpf(float(np.spacing(dtype(abs(e))))))
        for c, e in zip(computed, exact)
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sine_and_cosine_to_two_units_and_beyond_their_range(dtype):
    name = np.dtype(dtype).name
    both = compile_pointwise(lambda x: [sin(x), cos(x)], {"x": ()}, name)
    limit = TRIG_LIMIT[64 if dtype is np.float64 else 32]
    rng = np.random.default_rng(0)
    near = [rng.uniform(-10, 10, 400), rng.uniform(-limit, limit, 400), np.pi / 2 * np.arange(-50, 50), [0.0, 1e-30]]
    far = [limit * 10 ** rng.uniform(0, 20, 50), [limit, 2 * limit]]
    angles = np.concatenate(near + far).astype(dtype)
    angles = angles[np.isfinite(angles)]
    with mpmath.workdps(60):
        exact = [mpmath.mpf(float(x)) for x in angles]
        result = both(angles)
        assert ulps(result[:, 0], [mpmath.sin(x) for x in exact], dtype) <= ULPS
        assert ulps(result[:, 1], [mpmath.cos(x) for x in exact], dtype) <= ULPS
    assert np.isnan(both(np.array([np.inf, np.nan, -np.inf], dtype))).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_logarithm_to_two_units(dtype):
    compiled = compile_pointwise(lambda x: [log(x)], {"x": ()}, np.dtype(dtype).name)
    rng = np.random.default_rng(0)
    x = np.concatenate([10 ** rng.uniform(-30, 30, 300), 1 + rng.normal(size=200) * 1e-3, [1.0]]).astype(dtype)
    with mpmath.workdps(40):
        assert ulps(compiled(x)[:-1, 0], [mpmath.log(mpmath.mpf(float(y))) for y in x[:-1]], dtype) <= ULPS
    assert compiled(x)[-1, 0] == 0
    special = compiled(np.array([0.0, -1.0, np.inf, np.nan], dtype))[:, 0]
    assert special[0] == -np.inf
    assert np.isnan(special[1])
    assert special[2] == np.inf
    assert np.isnan(special[3])


# Tapes and counts ------------------------------------------------------------------------------------------------


def test_a_tape_records_each_operation_once():
    tape = Tape()
    x, y = tape.input("x"), tape.input("y")
    code = Code.of(tape, {"a": (x + y) * (y + x), "b": -(x - y), "c": x / y + 2.0 / y, "d": (x * 0.0 + 1.0) * y + 0.0})
    assert Operations.of(code) == Operations(mul=3, add=3, div=1)
    assert "b = t" in str(code)
    assert str(code).count("1 / t") == 1


def test_counts_of_a_general_arm_grow_with_its_length_as_documented():
    """205 n - 299 multiplications and 195 n - 314 additions before regrouping."""
    for n in (6, 9, 12):
        framed = reframe(zoo.general_arm(n, seed=1))
        counts = Operations.of(unroll(ALGORITHMS[ts.forward_dynamics], framed, ("q", "v", "tau")))
        assert counts.mul <= 205 * n - 299
        assert counts.add <= 195 * n - 314
        assert counts.div == n - 1  # the last pivot is a constant


def test_counts_of_a_loop_add_up_over_the_bodies():
    R = ts.lie.exp_so3(np.array([0.4, 0.7, 0.1]))
    link = dict(R=R, p=[0.3, 0.1, 0], mass=1.0, com=[0.1, 0, 0.2], inertia=[1.0, 1.0, 1.0])
    chains = (ts.Model.chain(**link, n=n) for n in (20, 30))
    few, many = (ts.compile(chain, ts.forward_dynamics, specialised=False) for chain in chains)
    kind = max(many.operations_per_joint, key=lambda kind: kind.form == "xz")
    assert (many.operations.mul - few.operations.mul) == 10 * many.operations_per_joint[kind].mul
    assert few.operations.trig == 40
    per_joint = many.operations_per_joint[kind]
    assert f"mul {per_joint.mul} n {many.operations.mul - 30 * per_joint.mul:+d}" in many.operations_formula
    assert many.operations_formula == few.operations_formula


def test_what_is_kept_is_kept_once():
    """Also where a pass comes again and again, as in the steps of a variational integrator."""
    code = looped(discrete_mechanics.begin, discrete_mechanics.INPUTS, reframe(zoo.humanoid()).kinds)
    for kind in range(len(code.kinds)):
        kept = [name for p in code.passes for name in p.codes[kind].outputs if name[0] == "kept"]
        assert len(kept) == len(set(kept))


def test_a_misspelled_name_in_a_step_raises():
    from torsor.sweeps import Here

    assert Here(q=1).external is None
    with pytest.raises(AttributeError, match="'exernal' is not an input"):
        print(Here(q=1).exernal)


def test_every_stage_can_be_read():
    program = ts.compile(zoo.planar3(), ts.forward_dynamics)
    assert "sin(" in program.source("tape")
    assert "llvm.fma" in program.source("llvm") or not codegen.host().fma
    assert "ret" in program.source("asm")
    with pytest.raises(ts.ArgumentError, match="unknown stage 'cobol'"):
        program.source("cobol")
    assert "planar3" in repr(program)


# Other machines --------------------------------------------------------------------------------------------------

HOSTS = {
    "x86 without AVX": codegen.Host("x86_64-unknown-linux-gnu", "x86-64", "+sse2"),
    "AVX2": codegen.Host("x86_64-unknown-linux-gnu", "haswell", "+avx2,+fma"),
    "AVX-512": codegen.Host("x86_64-unknown-linux-gnu", "skylake-avx512", "+avx512f,+avx512dq,+avx512vl,+fma,+avx2"),
    "64-bit ARM": codegen.Host("aarch64-unknown-linux-gnu", "generic", "+neon"),
}


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("bits", [64, 32])
def test_code_for_other_machines(name, bits):
    host = HOSTS[name]
    target = Target(host.lanes(bits), bits, host.fma, host.x86)
    assert target.lanes == {"AVX-512": 512, "AVX2": 256}.get(name, 128) // bits
    code = looped(ALGORITHMS[ts.inverse_dynamics], ("q", "v", "qdd"), reframe(zoo.random_tree(5, 3)).kinds)
    text = codegen.assembly(loop_kernel(code, target), host)
    assert ("fmla" in text) == (name == "64-bit ARM")
    assert ("zmm" in text) == (name == "AVX-512")
    assert ("vfmadd" in text) == (name in ("AVX2", "AVX-512"))


def test_code_without_fma_runs_here_too():
    """What a machine without multiply-add would compute, computed on this one."""
    model = zoo.planar3()
    q, v, tau = np.random.default_rng(0).normal(size=(3, 9, 3))
    from torsor.backends.gufunc import gufunc
    from torsor.backends.llvm_arrays import unrolled_kernel
    from torsor.compiler.abi import unrolled_data

    code = unroll(ALGORITHMS[ts.forward_dynamics], reframe(model), ("q", "v", "tau"))
    target = Target(2, 64, fma=False, x86=codegen.host().x86)
    ir = unrolled_kernel(code, dict.fromkeys(("q", "v", "tau"), (3,)), (3,), target)
    loaded = codegen.load(codegen.name_of(f"no fma {code}"), lambda: ir)
    data = unrolled_data([(3,)] * 4, 64)
    ufunc = gufunc(loaded.address, data.words.ctypes.data, "(3),(3),(3)->(3)", "float64", "fd", "", (loaded, data))
    assert relative(ufunc(q, v, tau), ts.forward_dynamics(model, q, v, tau)) < SAME_STEPS


@pytest.mark.parametrize("specialised", [False, True])
@pytest.mark.parametrize(
    "function", [ts.forward_dynamics, ts.inverse_mass_matrix, ts.vjp(ts.forward_dynamics)], ids=lambda f: f.__name__
)
def test_every_level_of_optimisation_gives_the_same_bits(function, specialised, monkeypatch):
    model = zoo.random_tree(5, 3)
    request = ts.compile(model, function, specialised=specialised).request
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(19, *shape)) for shape in request.input_shapes]
    found = []
    for level in "03":
        monkeypatch.setenv("TORSOR_OPTIMIZE", level)
        found.append(np.concatenate([x.ravel() for x in np.atleast_1d(compile_request(request).rows(*arrays))]))
    assert np.array_equal(*found)
    assert np.isfinite(found).all()


def test_an_unknown_level_of_optimisation_is_refused(monkeypatch):
    monkeypatch.setenv("TORSOR_OPTIMIZE", "fast")
    with pytest.raises(ts.ArgumentError, match="TORSOR_OPTIMIZE is 'fast', not a level from 0 to 3"):
        ts.compile(zoo.planar3(), ts.forward_dynamics, target="cpu")


# The cache -------------------------------------------------------------------------------------------------------

SCRIPT = """
import numpy as np, torsor as ts
m = ts.zoo.planar3()
print(repr(ts.forward_dynamics(m, np.ones(3), np.ones(3), np.ones(3)).tolist()))
"""


def in_a_new_process(cache, script=SCRIPT, both=False, **environment):
    done = processes.run("-c", script, env=processes.environment(TORSOR_CACHE=str(cache), **environment))
    assert done.returncode == 0, done.stderr
    return done if both else done.stdout


def test_the_cache_is_the_same_from_any_process_and_survives_corruption(tmp_path):
    first = in_a_new_process(tmp_path / "a")
    files = sorted((tmp_path / "a").iterdir())
    assert files
    content = {f.name: f.read_bytes() for f in files}
    assert in_a_new_process(tmp_path / "b") == first
    assert {f.name: f.read_bytes() for f in (tmp_path / "b").iterdir()} == content  # no address inside
    for f in files:
        for damage in (b"", b"rubbish", content[f.name][:-7]):
            f.write_bytes(damage)
            assert in_a_new_process(tmp_path / "a") == first
            assert f.read_bytes() == content[f.name]


def test_without_a_cache_or_a_writable_one_it_only_starts_slower(tmp_path):
    expected = in_a_new_process("off")
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert in_a_new_process(blocked / "cache") == expected
    assert in_a_new_process("", XDG_CACHE_HOME=str(tmp_path / "xdg")) == expected
    assert any((tmp_path / "xdg" / "torsor").iterdir())


def test_nothing_is_kept_once_sources_were_written_after_the_import(tmp_path, monkeypatch):
    """Modules are imported when they are used, so what they make may then come from other sources than the hash."""
    monkeypatch.setenv("TORSOR_CACHE", str(tmp_path))
    before = cache.sources()
    cache.write("0" * 40, b"kept")
    changed = {name: (0, *state[1:]) for name, state in cache._IMPORTED.items()}
    monkeypatch.setattr(cache, "_IMPORTED", changed)
    cache.sources.cache_clear()
    try:
        assert cache.sources() != before
        cache.write("1" * 40, b"not kept")
    finally:
        cache.sources.cache_clear()
    assert [path.name for _, _, path in cache.entries()] == ["0" * 40]


def test_sources_of_an_installed_package_are_known_by_their_times(monkeypatch):
    def hashed(state):
        monkeypatch.setattr(cache, "_IMPORTED", state)
        monkeypatch.setattr(cache, "unchanged", lambda: True)
        cache.sources.cache_clear()
        return cache.sources("model")

    state = cache._IMPORTED
    written = {name: (*x[:2], x[2] + 1, x[3]) for name, x in state.items()}
    try:
        monkeypatch.setattr(cache, "INSTALLED", False)
        assert hashed(written) == hashed(state)  # a checkout: by content
        monkeypatch.setattr(cache, "INSTALLED", True)
        monkeypatch.setattr(cache.Path, "read_bytes", None)
        assert hashed(written) != hashed(state)
        assert hashed(written) == hashed(written)
    finally:
        cache.sources.cache_clear()


def test_processes_may_share_a_cold_cache(tmp_path):
    with ThreadPoolExecutor(3) as pool:
        results = set(pool.map(lambda _: in_a_new_process(tmp_path), range(3)))
    assert len(results) == 1
    assert all(len(f.name) == 40 for f in tmp_path.iterdir())  # nothing half-written is left


def test_nothing_heavy_is_imported_before_it_is_needed():
    heavy = ("llvmlite", "casadi", "scipy", "matplotlib")
    out = in_a_new_process("off", f"import sys, torsor; print([m for m in {heavy} if m in sys.modules])")
    assert out.strip() == "[]"


@pytest.mark.parametrize("model", ["planar3", "humanoid"])
def test_a_program_made_before_starts_without_tracing_or_llvm(model, tmp_path):
    script = f"""
import sys, numpy as np, torsor as ts
m = ts.zoo.{model}()
x = np.full(m.nq, 0.5)
print(ts.forward_dynamics(m, x, x[: m.nv], x[: m.nv]).tolist())
heavy = ("llvmlite", "torsor.compiler.trace", "torsor.compiler.tape")
print([name for name in heavy if name in sys.modules], file=sys.stderr)
p = ts.compile(m, ts.forward_dynamics)
print(p, p.operations, len(p.source("llvm")))
"""
    done = [in_a_new_process(tmp_path, script, both=True) for _ in range(2)]
    assert done[0].stdout == done[1].stdout
    assert "llvmlite" in done[0].stderr
    links_itself = sys.platform == "linux" and codegen.host().x86  # elsewhere LLVM loads what it has made
    assert done[1].stderr.strip() == ("[]" if links_itself else "['llvmlite']")


CHANGED = """
import sys
sys.path.insert(0, {source!r})
import numpy as np, torsor as ts
arm, x = ts.zoo.general_arm(40), np.ones(40)
after_import()
m, y = ts.zoo.planar3(), np.ones(3)
print(float(ts.kinetic_energy(m, y, y)), float(ts.forward_dynamics(arm, x, x, x, method="segments")[-1]))
"""


@pytest.mark.parametrize("when", ["between two processes", "while one runs"])
def test_no_answer_outlives_its_source(when, tmp_path):
    """An upgrade must not meet what an older torsor has left, nor leave what it has imported before it came."""
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src" / "torsor", source / "torsor", ignore=shutil.ignore_patterns("__pycache__"))
    files = {name: source / "torsor" / "algorithms" / f"{name}.py" for name in ("energy", "segments")}
    texts = {name: path.read_text() for name, path in files.items()}

    def spoil():
        spoilt = {"energy": ("T2 * 0.5", "T2 * 0.25"), "segments": ("@ f + segment.b", "@ f - segment.b")}
        for name, (right, wrong) in spoilt.items():
            assert right in texts[name]
            files[name].write_text(texts[name].replace(right, wrong))

    def run(change="pass"):
        script = f"def after_import():\n  {change}\n" + CHANGED.format(source=str(source))
        return in_a_new_process(tmp_path / "cache", script)

    if when == "while one runs":
        files_ = [str(path) for path in files.values()]
        right = run(f"[open(f, 'a').write('#') for f in {files_}]")  # the sources are others from then on
        spoil()
        wrong = run()
    else:
        right = run()
        spoil()
        wrong = run()
    assert [a != b for a, b in zip(right.split(), wrong.split())] == [True, True]
    for name, path in files.items():
        path.write_text(texts[name])
    assert run() == right


def test_an_algorithm_of_the_users_own_is_never_taken_for_another():
    """Even under the name of one of torsor's: nobody would know whether it had changed since it was last compiled."""
    model, q = zoo.planar3(), np.ones(3)
    ts.gravity_forces(model, q)
    own = dataclasses.replace(composite.diagonal, name="gravity_forces")
    assert np.array_equal(compile_program(own, model)(q), np.diag(ts.mass_matrix(model, q)))


# Threads ---------------------------------------------------------------------------------------------------------


def test_large_batches_on_many_threads_give_the_same_bits():
    model = zoo.planar3()
    q, v, tau = np.random.default_rng(0).normal(size=(3, 40_001, 3))
    one, two = (ts.compile(model, ts.forward_dynamics, threads=k) for k in (1, 2))
    expected = one(q, v, tau)
    assert np.array_equal(two(q, v, tau), expected)
    assert np.array_equal(two(q, v[0], tau), one(q, v[0], tau))
    out = np.empty_like(expected)
    assert two(q, v, tau, out=out) is out
    assert np.array_equal(out, expected)
    assert np.array_equal(ts.forward_dynamics(model, q, v, tau), expected)


def test_threads_do_not_write_over_what_others_read():
    model = zoo.planar3()
    q, v, tau = np.random.default_rng(0).normal(size=(3, 40_001, 3))
    one, two = (ts.compile(model, ts.forward_dynamics, threads=k) for k in (1, 2))
    expected = one(q, v, tau)
    shared = tau.copy()
    assert np.array_equal(two(q, v, shared, out=shared[::-1]), expected)
    with pytest.raises(ValueError, match=r"mismatch|broadcast"):
        two(q, v, tau, out=np.empty((40_011, 3)))


def test_many_threads_may_call_at_once(tree, states):
    program = ts.compile(tree, ts.forward_dynamics)
    args = arguments(program, states)
    expected = program(*args)
    failures = []

    def work():
        for _ in range(50):
            if not np.array_equal(program(*args), expected):
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    processes.joined(threads)
    assert not failures


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_after_a_fork_threads_are_made_anew():
    script = """
import os, numpy as np, torsor as ts
m = ts.zoo.planar3()
x = np.ones((40_000, 3))
p = ts.compile(m, ts.forward_dynamics, threads=2)
expected = p(x, x, x)
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(p(x, x, x), expected) else 1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""
    assert in_a_new_process("off", script).strip() == "0"


# One long chain --------------------------------------------------------------------------------------------------


def test_a_long_chain_keeps_its_digits():
    """At 20,000 links within 1e-13 of 80-bit arithmetic (peers lose four digits more)."""
    n = 3000
    model = zoo.random_chain(n, seed=1)
    rng = np.random.default_rng(0)
    q, tau = rng.normal(size=(2, n))
    v = rng.normal(size=n) * 0.01
    exact = ts.forward_dynamics(model, *(x.astype(np.longdouble) for x in (q, v, tau)))
    assert relative(ts.forward_dynamics(model, q, v, tau), exact) < 1e-13


def test_a_hundred_thousand_links_in_one_call():
    n = 100_000
    R = ts.lie.exp_so3(np.array([0.3, 0.5, 0.1]))
    model = ts.Model.chain(p=[0.1, 0.02, 0.0], R=R, mass=1.0, com=[0.05, 0, 0.01], inertia=[0.01, 0.02, 0.02], n=n)
    rng = np.random.default_rng(0)
    q, v, tau = rng.normal(size=(3, n)) * [[1.0], [1e-3], [1.0]]
    qdd = ts.forward_dynamics(model, q, v, tau)
    again = ts.inverse_dynamics(model, q, v, qdd)
    assert np.abs(again - tau).max() < 1e-7 * np.abs(ts.inverse_dynamics(model, q, v, np.abs(qdd))).max()


# Errors ----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_compiled_is_said():
    model = zoo.planar3()
    with pytest.raises(ts.ArgumentError, match="cannot be compiled"):
        ts.compile(model, np.sin)
    with pytest.raises(ts.ArgumentError, match="unknown dtype 'int64'"):
        ts.compile(model, ts.forward_dynamics, dtype="int64")
    with pytest.raises(ts.ArgumentError, match="takes no external"):
        ts.compile(model, ts.mass_matrix, external=True)
    with pytest.raises(ts.ArgumentError, match="jacobian needs body="):
        ts.compile(model, ts.jacobian)
    with pytest.raises(ts.ArgumentError, match="takes no body="):
        ts.compile(model, ts.mass_matrix, body=1)
    with pytest.raises(ts.ArgumentError, match="lanes must be"):
        ts.compile(model, ts.mass_matrix, lanes=3)


def test_pointwise_functions_broadcast_over_links():
    def times(A, x):
        return [sum(a * b for a, b in zip(row, x)) for row in A]

    assert Operations.of(trace(times, {"A": (2, 2), "x": (2,)})) == Operations(mul=4, add=2)
    product = compile_pointwise(times, {"A": (2, 2), "x": (2,)})
    A, x = np.random.default_rng(0).normal(size=(50, 2, 2)), np.ones(2)
    assert np.allclose(product(A, x), A @ x, rtol=1e-15)


# Several outputs -------------------------------------------------------------------------------------------------


@outward(start=articulated.accelerate.start)
def push_and_keep(link, here, parent):
    """`constraint_force.push`, and the joint accelerations."""
    hand, keep = constraint_force.push.step(link, here, parent)
    return hand, keep | articulated.accelerate.step(link, here, parent)[1]


TOGETHER = Algorithm(
    "forward_dynamics_and_loads",
    ("q", "v", "tau"),
    (newton_euler.motion, articulated.articulate, push_and_keep, constraint_force.transmit, energy.moments),
    Several(accelerations=PerFreedom("qdd"), wrenches=PerBody("wrench"), mass=AtBase("m"), first_moment=AtBase("h")),
    inverts=True,
)


@pytest.mark.parametrize("unroll", [ALWAYS, NEVER], ids=["unrolled", "looped"])
@pytest.mark.parametrize("seed", [2, 7])
def test_a_program_may_have_several_outputs(unroll, seed):
    model = zoo.random_tree(4, seed=seed)
    rng = np.random.default_rng(0)
    states = [model.random_configuration(rng, 13), *rng.normal(size=(2, 13, model.nv))]
    for threads in (1, 2):
        found = compile_program(TOGETHER, model, unroll=unroll, threads=threads)(*states)
        assert found._fields == ("accelerations", "wrenches", "mass", "first_moment")
        assert found.wrenches.shape == (13, model.n, 6)
        assert relative(found.accelerations, ts.forward_dynamics(model, *states)) < SAME_STEPS
        assert relative(found.wrenches, ts.constraint_forces(model, *states)) < SAME_STEPS
        assert relative(found.mass, np.full(13, model.mass.sum())) < SAME_STEPS
        assert relative(found.first_moment / found.mass[:, None], ts.center_of_mass(model, states[0])) < SAME_STEPS
    one = compile_program(TOGETHER, model, unroll=unroll)(*(x[5] for x in states))
    assert np.array_equal(one.wrenches, found.wrenches[5])
