"""The CUDA C that torsor writes, without a GPU: read as Python by `cuda_reader`, and compiled for the host where a
C++ compiler is there; programs and their failures where CuPy is not."""

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import cuda_host
import cuda_reader
import fake_cupy
import numpy as np
import processes
import pytest
from machines import ARRAY_FUNCTIONS, MACHINES, difference

import torsor as ts
from torsor import duals, zoo
from torsor.backends import cuda_launch, gpu
from torsor.backends.cuda import Launch
from torsor.compiler import members
from torsor.compiler.frames import framed
from torsor.dynamics import calls, graphs
from torsor.dynamics.functions import ALGORITHMS
from torsor.motion import gpu_rollout
from torsor.motion import rollout as rollouts
from torsor.motion.driver import Fixed
from torsor.motion.law import collect
from torsor.motion.steps import METHODS
from torsor.outputs import Path

# Multiply-adds are rounded once on one side and twice on the other; M^-1 of a random tree loses three digits.
ROUNDING = 1e-11
SINGLE = 1e-5
COUNT = 2

TREE = zoo.random_tree(9, 1)  # every joint type, several roots and branches
FUNCTIONS = ARRAY_FUNCTIONS


def arguments(model, function, count=COUNT, seed=0):
    rng = np.random.default_rng(seed)
    names = ALGORITHMS[function].inputs
    return [model.random_configuration(rng, count) if n == "q" else rng.normal(size=(count, model.nv)) for n in names]


def options(model, function):
    return {"body": model.n - 1} if isinstance(ALGORITHMS[function].output, Path) else {}


def by_reference(model, function, args):
    """One state after the other, number by number."""
    names, body = ALGORITHMS[function].inputs, options(model, function).get("body")
    frame = None if body is None else model.frame(body)
    states = [{name: list(x) for name, x in zip(names, state)} for state in zip(*args)]
    return np.array([duals.evaluate(ALGORITHMS[function], model, state, frame=frame) for state in states])


def by_reader(model, function, args, **more):
    program = ts.compile(model, function, target="cuda", **options(model, function), **more)
    return cuda_reader.run(program.kernel, args, framed(model), program.frame)


@pytest.mark.parametrize("specialised", [True, False], ids=["unrolled", "looped"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_cuda_text_computes_what_the_cpu_does(function, specialised):
    args = arguments(TREE, function)
    got = by_reader(TREE, function, args, specialised=specialised)
    assert difference(got, by_reference(TREE, function, args)) < ROUNDING


@pytest.mark.parametrize("specialised", [True, False], ids=["unrolled", "looped"])
@pytest.mark.parametrize("name", ["general arm", "floating tree", "humanoid"])
def test_cuda_text_of_other_machines(name, specialised):
    model = MACHINES[name]()
    for function in (ts.forward_dynamics, ts.mass_matrix):
        args = arguments(model, function)
        got = by_reader(model, function, args, specialised=specialised)
        assert difference(got, by_reference(model, function, args)) < ROUNDING


def test_external_wrenches_reach_the_kernel():
    q, v, tau = arguments(TREE, ts.forward_dynamics)
    external = np.random.default_rng(1).normal(size=(COUNT, TREE.n, 6))
    expected = ts.forward_dynamics(TREE, q, v, tau, external=external)
    for specialised in (True, False):
        got = by_reader(TREE, ts.forward_dynamics, [q, v, tau, external], external=True, specialised=specialised)
        assert difference(got, expected) < ROUNDING


def test_single_precision_and_fast_trigonometry_are_near():
    model = zoo.puma_saha()
    args = arguments(model, ts.forward_dynamics)
    expected = ts.forward_dynamics(model, *args)
    for trig in ("accurate", "fast"):
        got = by_reader(model, ts.forward_dynamics, args, dtype="float32", trig=trig)
        assert got.dtype == np.float32
        assert difference(got, expected) < SINGLE


def test_angles_beyond_the_range_are_turned_too():
    model = zoo.puma_saha()
    q, v, tau = arguments(model, ts.forward_dynamics)
    q = q + 2 * np.pi * 2**29
    expected = ts.forward_dynamics(model, q, v, tau)
    assert difference(by_reader(model, ts.forward_dynamics, [q, v, tau]), expected) < ROUNDING


@pytest.mark.thinned(2)
@pytest.mark.parametrize("staged", [False, True], ids=["columns", "rows"])
@pytest.mark.parametrize("specialised", [True, False], ids=["unrolled", "looped"])
def test_whole_kernel_on_the_host(specialised, staged):
    """Blocks, shared memory, sine and cosine: the very text that a GPU compiles, run by a C++ compiler's threads.

    Without a C++ compiler the same arrays go through `cuda_reader`, which leaves only the blocks unproved.
    """
    model = zoo.puma_saha() if specialised else zoo.random_tree(5, 3)
    for function, dtype in ((ts.forward_dynamics, "float64"), (ts.mass_matrix, "float32")):
        args = [x.astype(dtype) for x in arguments(model, function, count=150)]  # two blocks, and part of a warp
        program = ts.compile(model, function, target="cuda", specialised=specialised, dtype=dtype)
        runner = cuda_host.run if cuda_host.compiler() else cuda_reader.run
        got = runner(program.kernel, args, framed(model), **({"staged": staged} if runner is cuda_host.run else {}))
        cpu = ts.compile(model, function, dtype=dtype, specialised=specialised)
        assert difference(got, cpu(*args)) < {"float64": 1e-13, "float32": 1e-5}[dtype]
        if cuda_host.compiler() and dtype == "float64":
            assert (got == cpu(*args)).all(), "the GPU's text rounds otherwise than the CPU's"


# Views of arrays ---------------------------------------------------------------------------------------------


def test_rows_columns_and_broadcast_arrays_are_seen_as_they_lie():
    x = np.zeros((8, 5))
    assert gpu.view_of(x, (8,), (5,)).rows
    view = gpu.view_of(np.zeros((5, 8)).T, (8,), (5,))
    assert (view.step, view.stride) == (1, 8)
    assert not view.rows
    assert (gpu.view_of(x[0], (8,), (5,)).step, gpu.view_of(x[:1], (8,), (5,)).step) == (0, 0)
    batch = gpu.view_of(np.zeros((2, 4, 5)), (2, 4), (5,))
    assert (batch.step, batch.stride) == (5, 1)
    wrench = gpu.view_of(np.zeros((8, 3, 6)), (8,), (3, 6))
    assert wrench.rows
    assert gpu.view_of(np.zeros((8, 3, 12))[..., ::2], (8,), (3, 6)).stride == 2


def test_axes_that_cannot_be_merged_are_refused_to_be_seen():
    assert gpu.view_of(np.zeros((4, 9, 5))[:, :8], (4, 8), (5,)) is None
    assert gpu.view_of(np.zeros((4, 5)), (3, 4), (5,)) is None  # broadcast along a new axis


# Programs, with a stand-in for CuPy ---------------------------------------------------------------------------


@pytest.fixture
def cupy(monkeypatch):
    stand_in = fake_cupy.Cupy()
    fake_cupy.install(monkeypatch, stand_in)
    return stand_in


LAYOUTS = {
    "rows": lambda x: x,
    "columns": np.asfortranarray,
    "every second number": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "every second row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "two batch axes": lambda x: x.reshape(5, 2, -1),
    "turned batch axes": lambda x: x.reshape(2, 5, -1).swapaxes(0, 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_program_takes_arrays_as_they_lie(cupy, layout):
    model = zoo.puma_saha()
    args = [LAYOUTS[layout](x) for x in arguments(model, ts.forward_dynamics, 10)]
    program = ts.compile(model, ts.forward_dynamics, target="cuda")
    result = program(*(fake_cupy.on_device(x) for x in args))
    assert result.shape == args[0].shape
    (launch,) = cupy.functions[-1].launches
    assert launch.grid == (1,)
    assert launch.arguments[-1] == 10
    staged = "load_rows<6, 6>(in_q_tile" in cupy.functions[-1].source
    assert staged == (layout in ("rows", "two batch axes", "turned batch axes"))  # the last are copied first
    assert bool(launch.shared) == (staged or "store_rows<" in cupy.functions[-1].source)
    if cuda_host.compiler():
        assert difference(result, ts.forward_dynamics(model, *args)) < ROUNDING


def test_program_broadcasts_and_fills_out(cupy):
    model = zoo.puma_saha()
    q, v, tau = (fake_cupy.on_device(x) for x in arguments(model, ts.forward_dynamics, 4))
    program = ts.compile(model, ts.forward_dynamics, target="cuda")
    out = fake_cupy.on_device(np.full((4, 6), np.nan))
    assert program(q, v, tau[0], out=out) is out
    assert cupy.functions[-1].launches[-1].arguments[7:9] == (0, 1)  # one torque for all
    if cuda_host.compiler():
        assert difference(out, ts.forward_dynamics(model, *(np.array(x) for x in (q, v, tau[0])))) < ROUNDING
    with pytest.raises(ts.ArgumentError, match="out is"):
        program(q, v, tau, out=out[:3])
    with pytest.raises(ts.ArgumentError, match="batch axes"):
        program(q, v[:3], tau)
    with pytest.raises(ts.ArgumentError, match="tau is"):
        program(q, v, tau[:, :5])
    with pytest.raises(ts.ArgumentError, match="takes q, v, tau"):
        program(q, v)
    assert program(q[:0], v[:0], tau[:0]).shape == (0, 6)


def test_loops_get_scratch_memory_or_say_how_much_they_need(cupy, monkeypatch):
    q, v, tau = (fake_cupy.on_device(x) for x in arguments(TREE, ts.forward_dynamics, 70))
    program = ts.compile(TREE, ts.forward_dynamics, target="cuda", specialised=False)
    result = program(q, v, tau)
    M = ts.compile(TREE, ts.mass_matrix, target="cuda", specialised=False)(q)  # a matrix is packed in scratch memory
    if cuda_host.compiler():
        assert difference(result, ts.forward_dynamics(TREE, *(np.array(x) for x in (q, v, tau)))) < ROUNDING
        assert difference(M, ts.mass_matrix(TREE, np.array(q))) < ROUNDING
    small = fake_cupy.Cupy(free=1000)
    fake_cupy.install(monkeypatch, small)
    with pytest.raises(ts.DeviceError, match="scratch memory"):
        program(q[:69], v[:69], tau[0])


# Layouts that were seen before --------------------------------------------------------------------------------


def on_device(*arrays):
    return [fake_cupy.on_device(x) for x in arrays]


@pytest.mark.parametrize("specialised", [True, False], ids=["unrolled", "looped"])
def test_a_layout_seen_before_only_gets_other_addresses(cupy, monkeypatch, specialised):
    """No question to the CUDA runtime, no view, no stream context: one look-up and one call of the driver."""
    model = zoo.random_chain(3, 1)
    program = ts.compile(model, ts.forward_dynamics, target="cuda", specialised=specialised)
    sets = [arguments(model, ts.forward_dynamics, 70, seed) for seed in range(3)]
    out = fake_cupy.on_device(np.full((70, 3), np.nan))
    program(*on_device(*sets[0]))
    program(*on_device(*sets[0]), out=out)
    for name in ("on_device", "views_of", "as_cupy", "stream", "build", "kind_of"):
        monkeypatch.setattr(gpu, name, None)
    monkeypatch.setattr(fake_cupy.Array, "__dlpack_device__", None)
    for args in sets:
        found = program(*on_device(*args)), program(*on_device(*args), out=out)
        assert found[1] is out
        for x in found:
            assert not cuda_host.compiler() or difference(x, ts.forward_dynamics(model, *args)) < ROUNDING
    launches = cupy.functions[-1].launches
    assert len({x.arguments[0] for x in launches[2:]}) > 1
    assert {(x.grid, x.block, x.shared, x.stream) for x in launches} == {((2,), (64,), launches[0].shared, 7)}
    monkeypatch.undo()


def test_other_layouts_are_bound_anew(cupy):
    """Shapes, strides, types and out=: what was bound for one is never used for another."""
    model = zoo.random_chain(3, 1)
    program = ts.compile(model, ts.forward_dynamics, target="cuda")
    q, v, tau = arguments(model, ts.forward_dynamics, 8)
    turned = [np.asfortranarray(x) for x in (q, v, tau)]
    for _ in range(2):
        for args in ((q, v, tau), (q[:5], v[:5], tau[:5]), turned, (q, v[0], tau), (q[::2], v[::2], tau[::2])):
            got = program(*(x.view(fake_cupy.Array) for x in args))
            assert not cuda_host.compiler() or difference(got, ts.forward_dynamics(model, *args)) < ROUNDING
        assert program(*on_device(q[:0], v[:0], tau[:0])).shape == (0, 3)
    assert len(program._bound) == 6
    for _ in range(2):  # another type is converted, and so never bound; nor are arrays of the host
        program(*on_device(q.astype(np.float32)), *on_device(v, tau))
        program(q, *on_device(v, tau))
        with pytest.raises(ts.ArgumentError, match="tau is"):
            program(*on_device(q, v, tau[:, :2]))
    assert len(program._bound) == 6


def test_programs_remember_so_many_layouts(cupy, monkeypatch):
    monkeypatch.setattr(gpu, "MOST_LAYOUTS", 3)
    model = zoo.planar3()
    program = ts.compile(model, ts.gravity_forces, target="cuda")
    for count in range(1, 8):
        program(*on_device(np.zeros((count, 3))))
        assert len(program._bound) <= 3


def test_functions_take_the_same_short_way(cupy, monkeypatch):
    monkeypatch.setattr(calls, "gpu_array", gpu.on_device)  # the stand-in's arrays are NumPy's, too
    members._structure.cache_clear()  # programs of another stand-in
    model = zoo.random_chain(3, 4)
    batch = ts.ModelBatch(model, mass=model.mass * np.linspace(1, 2, 6)[:, None])
    args = arguments(model, ts.forward_dynamics, 6)
    single = [x.astype(np.float32) for x in args]
    for machine in (model, batch):
        for given in (args, single):
            first = ts.forward_dynamics(machine, *on_device(*given))
            with monkeypatch.context() as patch:
                patch.setattr(calls, "call_carefully", None)
                again = ts.forward_dynamics(machine, *on_device(*given))
            assert not cuda_host.compiler() or (np.array(first) == np.array(again)).all()
            assert first.dtype == again.dtype == given[0].dtype
    mixed = ts.forward_dynamics(model, *on_device(single[0]), *on_device(*args[1:]))  # after float32 alone
    assert mixed.dtype == np.float64


def test_threads_with_arrays_of_one_layout_do_not_mix_them(cupy):
    if not cuda_host.compiler():
        pytest.skip("no C++ compiler")
    model = zoo.planar3()
    program = ts.compile(model, ts.gravity_forces, target="cuda")
    states = np.random.default_rng(0).normal(size=(24, 4, 3))
    expected = ts.gravity_forces(model, states)
    program(*on_device(states[0]))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda q: np.array(program(*on_device(q))), states))
    assert difference(np.array(found), expected) < ROUNDING


def test_a_thread_that_has_used_no_gpu_is_introduced_and_other_failures_are_told(cupy, monkeypatch):
    woken, answers = [], iter([0, 201, 0, 700])
    monkeypatch.setattr(cuda_launch, "driver", lambda: lambda *_: next(answers))
    cupy.cuda.Device = lambda: SimpleNamespace(id=0, use=lambda: woken.append(1))
    program = ts.compile(zoo.planar3(), ts.gravity_forces, target="cuda")
    q = fake_cupy.on_device(np.zeros((2, 3)))
    program(q)
    program(q)
    assert woken == [1]
    with pytest.raises(ts.DeviceError, match="error 700"):
        program(q)


class Foreign:
    """An array of another library on the device, as that library shows it; its numbers are NumPy's."""

    is_ready = staticmethod(lambda: True)

    def __init__(self, x):
        self.x, self.shape, self.dtype, self.device = x, x.shape, x.dtype, 0

    def __dlpack_device__(self):
        return (2, 0)

    def stride(self):
        return self.x.strides

    def get_device(self):
        return 0

    def detach(self):
        return self.x

    def data_ptr(self):
        return self.x.ctypes.data

    unsafe_buffer_pointer = data_ptr


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_tensors_and_arrays_of_jax_are_read_by_their_addresses(cupy, monkeypatch, library):
    """On PyTorch's current stream; JAX's are read so once they are computed, and kept until they were read."""
    kind = type("Array", (Foreign,), {"__module__": library})
    asked = []
    empty = SimpleNamespace(
        empty=lambda shape, dtype, device: kind(np.full(shape, np.nan)), float64=None,
        _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda device: 40 + device),
        cuda=SimpleNamespace(current_stream=lambda: SimpleNamespace(cuda_stream=40)),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", empty)
    monkeypatch.setattr(gpu, "as_cupy", lambda x, kind: asked.append(x) or fake_cupy.on_device(getattr(x, "x", x)))
    monkeypatch.setattr(gpu, "_as_jax", lambda x: kind(x))
    events = []

    class Event:
        def __init__(self, disable_timing):
            events.append(self)
            self.done = False

        def record(self):
            assert not self.done

    cupy.cuda.Event = Event
    monkeypatch.setattr(fake_cupy.Stream, "from_external", lambda x: fake_cupy.Stream(), raising=False)
    model = zoo.random_chain(3, 1)
    program = ts.compile(model, ts.forward_dynamics, target="cuda")
    args = arguments(model, ts.forward_dynamics, 5)
    for k in range(3):
        found = program(*(kind(x) for x in args))
        assert type(found) is kind
        assert not cuda_host.compiler() or difference(found.x, ts.forward_dynamics(model, *args)) < ROUNDING
        assert len(asked) == 4  # three arguments and the result of the first call
        assert cupy.functions[-1].launches[-1].stream == (40 if library == "torch" else 7)
        if library == "jax":
            assert len(gpu._arrays_in_use) == k + 1
    if library == "jax":
        for event in events:
            event.done = True
        late = [kind(x) for x in args]
        late[1].is_ready = lambda: False
        program(*late)
        assert len(asked) == 8
        assert len(gpu._arrays_in_use) == 1
        gpu._arrays_in_use.clear()


# Recorded -------------------------------------------------------------------------------------------------------


def test_several_functions_are_recorded_as_one_graph(cupy, monkeypatch):
    """A run reads what the arrays hold now, and writes the same results."""
    for module in (calls, graphs):
        monkeypatch.setattr(module, "gpu_array", gpu.on_device)  # the stand-in's arrays are NumPy's, too
    model = zoo.random_chain(3, 5)
    program = ts.compile(model, ts.gravity_forces, target="cuda")

    def control(q, v):
        return ts.inverse_dynamics(model, q, v, v), program(q)

    q, v = arguments(model, ts.inverse_dynamics, 4)[:2]
    arrays = on_device(q, v)
    run = ts.record(control, *arrays)
    assert isinstance(run, ts.Recorded)
    launched = sum(len(x.launches) for x in cupy.functions)
    assert launched == 4  # called twice; the third time was recorded and not run
    for state in ((q, v), (2 * q, -v)):
        arrays[0][:], arrays[1][:] = state
        found = run()
        assert found is run.results
        if cuda_host.compiler():
            assert difference(found[0], ts.inverse_dynamics(model, *state, state[1])) < ROUNDING
            assert difference(found[1], ts.gravity_forces(model, state[0])) < ROUNDING
    assert sum(len(x.launches) for x in cupy.functions) == launched + 4


def test_what_cannot_be_recorded_is_said(cupy, monkeypatch):
    for module in (calls, graphs, rollouts):
        monkeypatch.setattr(module, "gpu_array", gpu.on_device)
    model, q = zoo.planar3(), fake_cupy.on_device(np.zeros((2, 3)))
    with pytest.raises(ts.ArgumentError, match="the first of them on a GPU"):
        ts.record(lambda q: ts.gravity_forces(model, q), np.zeros((2, 3)))
    with pytest.raises(ts.ArgumentError, match=r"jax\.jit"):
        ts.record(lambda q: q, type("Array", (Foreign,), {"__module__": "jax"})(np.zeros(3)))
    with pytest.raises(ts.ArgumentError, match="copies numbers from the host"):
        ts.record(lambda q: ts.rollout(model, q, q, steps=2, step=0.1).q, q)
    assert fake_cupy.Stream.captured is None  # also after a failure


def test_tensors_are_recorded_by_pytorch(monkeypatch):
    """Warmed up on a stream of its own, then inside torch.cuda.graph."""
    monkeypatch.setattr(graphs, "gpu_array", lambda x: True)
    told = []

    class Context:
        def __init__(self, *given):
            self.name = given[0] if given and isinstance(given[0], str) else "stream"

        def __enter__(self):
            told.append(self.name)

        def __exit__(self, *_):
            told.append("end")

        def wait_stream(self, other):
            told.append("wait")

        def replay(self):
            told.append("replay")

    cuda = SimpleNamespace(CUDAGraph=Context, Stream=Context, current_stream=Context, stream=lambda x: x,
                           graph=lambda graph: Context("graph"))  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    tensor = type("Tensor", (Foreign,), {"__module__": "torch"})(np.zeros(3))
    run = ts.record(lambda x: told.append("step") or x, tensor)
    assert run() is tensor
    assert told == ["wait", "stream", "step", "step", "end", "wait", "graph", "step", "end", "replay"]


def test_rollout_on_the_device(cupy):
    model = zoo.puma_saha()
    q, v, tau = (fake_cupy.on_device(x) for x in arguments(model, ts.forward_dynamics, 6))
    force = ts.Constant(np.array(tau[0]))
    setup = Fixed(model, collect(model, force), METHODS["rk4"], "rk4", 1e-3)
    kernel = gpu_rollout.kernel_of(setup.step, dtype="float64")
    given = {"q": q.reshape(2, 3, 6), "v": v[0]}
    got = gpu_rollout.run(setup, kernel, {}, given, 4, 2)
    assert [x.shape for x in got] == [(2, 3, 2, 6)] * 2
    if cuda_host.compiler():
        host = (np.array(x) for x in given.values())
        expected = ts.rollout(model, *host, forces=force, steps=4, step=1e-3, every=2, method="rk4")
        assert max(difference(got[0], expected.q), difference(got[1], expected.v)) < ROUNDING


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
def test_numbers_of_a_batch_of_models_lie_on_the_device_once(cupy, monkeypatch, shape):
    monkeypatch.setattr(calls, "gpu_array", gpu.on_device)  # the stand-in's arrays are NumPy's, too
    members._structure.cache_clear()  # programs of another stand-in
    model = zoo.puma_saha()
    factor = np.random.default_rng(0).uniform(0.9, 1.1, (*shape, model.n))
    batch = ts.ModelBatch(model, mass=model.mass * factor, armature=np.tile(factor[..., :1], 6))
    q, v, tau = (x.reshape(2, 3, 6) for x in arguments(model, ts.forward_dynamics, 6))
    for _ in range(2):
        got = ts.forward_dynamics(batch, *(fake_cupy.on_device(x) for x in (q, v, tau)))
    first, second = (launch.arguments for launch in cupy.functions[-1].launches)
    assert shape == (3,) or all(first[k] == second[k] for k in (9, 12)), "the numbers were copied again"
    assert shape == (3,) or first[10:12] == (int(bool(shape)), batch.size)  # side by side
    if cuda_host.compiler():
        assert difference(got, ts.forward_dynamics(batch, q, v, tau)) < ROUNDING


def test_tuning_is_remembered(cupy, monkeypatch, tmp_path):
    monkeypatch.setenv("TORSOR_CACHE", str(tmp_path))
    times = iter([3.0, 1.0, 2.0])
    monkeypatch.setattr(gpu, "_time", lambda run, cp: next(times))
    model = zoo.puma_saha()
    args = [fake_cupy.on_device(x) for x in arguments(model, ts.forward_dynamics)]
    program = ts.compile(model, ts.forward_dynamics, target="cuda")
    tried = [Launch(64, 255), Launch(64, 96), Launch(128, 80)]
    assert program.autotune(*args, launches=tried) == Launch(64, 96)
    assert ts.compile(model, ts.forward_dynamics, target="cuda").launch == Launch(64, 96)
    assert ts.compile(model, ts.forward_dynamics, target="cuda", dtype="float32").launch == Launch()


def test_no_gpu_and_no_driver_are_told_apart(monkeypatch):
    for stand_in, words in ((fake_cupy.Cupy(devices=0), "no CUDA GPU"), (fake_cupy.Cupy(), "no CUDA driver")):
        if words == "no CUDA driver":
            stand_in.cuda.runtime.getDeviceCount = lambda: 1 / 0
        monkeypatch.setitem(sys.modules, "cupy", stand_in)
        gpu.cupy.cache_clear()
        with pytest.raises(ts.DeviceError, match=words):
            gpu.cupy()
    gpu.cupy.cache_clear()


# What can go wrong -------------------------------------------------------------------------------------------


@pytest.fixture
def without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    gpu.cupy.cache_clear()
    yield
    gpu.cupy.cache_clear()


class Elsewhere:
    """Claims to lie on a CUDA device."""

    dtype, ndim = np.dtype(np.float64), 1

    def __dlpack_device__(self):
        return (2, 0)


def test_without_cupy_a_device_array_gives_a_clear_error(without_cupy):
    model = zoo.puma_saha()
    with pytest.raises(ts.DeviceError, match="needs CuPy"):
        ts.gravity_forces(model, Elsewhere())
    with pytest.raises(ts.DeviceError, match="needs CuPy"):
        ts.compile(model, ts.gravity_forces, target="cuda")(Elsewhere())
    assert np.isfinite(ts.gravity_forces(model, np.zeros(6))).all()  # the CPU is unharmed


def test_host_arrays_are_refused_by_a_program_for_the_gpu():
    model = zoo.puma_saha()
    program = ts.compile(model, ts.gravity_forces, target="cuda")
    with pytest.raises(ts.ArgumentError, match="arrays there"):
        program(np.zeros(6))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"target": "tpu"}, "target"),
        ({"target": "cuda", "lanes": 8}, "lanes"),
        ({"target": "cuda", "threads": 4}, "threads"),
        ({"target": "cuda", "trig": "rough", "dtype": "float32"}, "trig"),
        ({"target": "cuda", "trig": "fast"}, "float32"),
        ({"target": "cuda", "dtype": "float16"}, "float16"),
        ({"trig": "fast"}, "cuda"),
    ],
)
def test_options_that_do_not_go_together(wrong, words):
    with pytest.raises(ts.ArgumentError, match=words):
        ts.compile(zoo.puma_saha(), ts.forward_dynamics, **wrong)


def test_source_needs_no_gpu():
    program = ts.compile(zoo.puma_saha(), ts.forward_dynamics)
    text = program.source("cuda")
    assert text.count("__global__") == 1
    assert ts.compile(zoo.puma_saha(), ts.forward_dynamics, target="cuda").source("tape") == program.source("tape")


def test_register_limits_become_launch_bounds():
    assert Launch(128, 64).bounds == "__launch_bounds__(128, 8)"
    assert Launch(256, 255).bounds == "__launch_bounds__(256, 1)"


def test_torsor_and_its_cuda_text_need_neither_llvm_nor_scipy():
    script = (
        "import sys\n"
        "for name in ('llvmlite', 'scipy', 'casadi', 'matplotlib', 'rich', 'cupy'): sys.modules[name] = None\n"
        "import torsor as ts\n"
        "print(len(ts.compile(ts.zoo.panda(), ts.forward_dynamics, target='cuda').source('cuda')))\n"
    )
    done = processes.output(script)
    assert int(done) > 10_000


def test_the_host_compiler_is_found_if_there_is_one():
    assert bool(cuda_host.compiler()) == bool(shutil.which("g++") or shutil.which("clang++"))
