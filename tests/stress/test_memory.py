"""No crash: scratch memory that cannot be had, code that must stay alive, forks, arrays at the edge of memory.

Each runs in a process of its own, with `faulthandler`: a crash there is a failed test here.
"""

import os
from typing import Any

import processes
import pytest

import torsor as ts


def in_a_new_process(script: str, **options: Any) -> str:
    """What the script prints; it must end well."""
    return processes.output(script, **options).strip()


def test_scratch_memory_that_cannot_be_had_is_a_memory_error():
    script = """
        import resource, numpy as np, torsor as ts
        model = ts.zoo.rope(300_000)
        q, v = np.zeros((9, model.nq)), np.zeros((9, model.nv))
        programs = [ts.compile(model, ts.forward_dynamics, threads=threads) for threads in (1, 2)]
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + (200 << 20),) * 2)
        for call in (*programs, programs[0].ufunc, lambda *x: ts.forward_dynamics(model, *x)):
            try:
                call(q, v, v)
            except MemoryError:
                print("MemoryError")
    """
    assert in_a_new_process(script).split() == ["MemoryError"] * 4


def test_a_ufunc_keeps_its_code_alive():
    script = """
        import gc, numpy as np, torsor as ts
        model = ts.zoo.panda()
        x = np.linspace(0, 1, 7)
        expected = ts.compile(model, ts.forward_dynamics)(x, x, x)
        functions = [ts.compile(ts.Model.from_dh(n=7, mass=1.0 + k, inertia=(1, 1, 1)), ts.forward_dynamics).ufunc
                     for k in range(20)]
        ufunc = ts.compile(model, ts.forward_dynamics).ufunc
        gc.collect()
        junk = [bytearray(1 << 16) for _ in range(200)]
        for f in functions:
            f(x, x, x)
        print(np.array_equal(ufunc(x, x, x), expected))
    """
    assert in_a_new_process(script) == "True"


def test_programs_die_with_their_models():
    script = """
        import dataclasses, gc, weakref, numpy as np, torsor as ts
        from torsor.backends import cpu as program
        panda, x = ts.zoo.panda(), np.zeros(7)
        references = []
        for k in range(12):
            model = dataclasses.replace(panda, mass=panda.mass * (1 + 0.01 * k))
            ts.forward_dynamics(model, x, x, x)
            references.append(weakref.ref(model))
        del model
        gc.collect()
        print(sum(r() is not None for r in references) <= 4, len(program._machine_code) <= 4)
    """
    assert in_a_new_process(script) == "True True"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_in_another_thread_stops_nobody():
    script = """
        import os, threading, numpy as np, torsor as ts
        model, x = ts.zoo.puma560(), np.full((70000, 6), 0.3)
        expected = ts.forward_dynamics(model, x, x, x)
        done = threading.Event()
        def fork():
            while not done.is_set():
                child = os.fork()
                if not child:
                    os._exit(0)
                os.waitpid(child, 0)
        thread = threading.Thread(target=fork)
        thread.start()
        for _ in range(30):
            assert np.array_equal(ts.forward_dynamics(model, x, x, x), expected)
        done.set()
        thread.join()
        print("well")
    """
    assert in_a_new_process(script) == "well"


def test_a_file_of_the_cache_is_never_taken_for_another(tmp_path):
    script = """
        import torsor as ts, numpy as np
        x = np.linspace(0.1, 0.6, 6)
        print(ts.forward_dynamics(ts.zoo.puma560(), x, x, x)[0], ts.mass_matrix(ts.zoo.puma560(), x)[0, 0])
    """
    expected = in_a_new_process(script, env=processes.environment(TORSOR_CACHE=str(tmp_path)))
    files = sorted(tmp_path.iterdir(), key=lambda file: file.stat().st_size)
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, [*contents[1:], contents[0]]):  # each file holds another's content
        file.write_bytes(content)
    assert in_a_new_process(script, env=processes.environment(TORSOR_CACHE=str(tmp_path))) == expected


def test_the_least_recently_used_files_of_the_cache_go(tmp_path, monkeypatch):
    from torsor.backends import cache

    monkeypatch.setenv("TORSOR_CACHE", str(tmp_path))
    names = [cache.name_of(k) for k in range(10)]
    for k, name in enumerate(names):
        cache.write(name, bytes([k]) * 1000)
        os.utime(tmp_path / name, (k, k))
    (tmp_path / "somebody else's").write_text("stays")
    assert cache.read(names[0]) == bytes(1000)  # used now
    cache.trim(5000)
    left = {path.name for _, _, path in cache.entries()}
    assert left == {names[0], *names[7:]}
    assert cache.trim(0) == 4
    assert [file.name for file in tmp_path.iterdir()] == ["somebody else's"]


GUARDED = """
    import ctypes, mmap, sys, numpy as np, torsor as ts
    from torsor.dynamics.functions import ALGORITHMS
    libc, page = ctypes.CDLL(None), mmap.PAGESIZE
    alive = []

    def guarded(x, end):
        '''A copy of x that ends where memory ends, or begins where it begins.'''
        size = -(-x.nbytes // page) * page
        memory = mmap.mmap(-1, size + 2 * page)
        alive.append(memory)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for forbidden in (start, start + page + size):
            assert libc.mprotect(ctypes.c_void_p(forbidden), ctypes.c_size_t(page), 0) == 0
        first = page + (size - x.nbytes if end else 0)
        copy = np.frombuffer(memory, x.dtype, x.size, first).reshape(x.shape)
        copy[...] = x
        return copy

    rng = np.random.default_rng(0)
    models = {models}
    for model in models:
        for function, algorithm in ALGORITHMS.items():
            if {quick} and "derivatives" in function.__name__:
                continue  # they take long to compile
            body = {{"body": model.n - 1}} if "Path" in str(algorithm.output) else {{}}
            for dtype in {dtypes}:
                program = ts.compile(model, function, dtype=dtype, **body)
                for count in {counts}:
                    given = [rng.normal(size=(count, model.nq if name == "q" else model.nv)) for name in program.inputs]
                    expected = program.rows(*(x.astype(dtype) for x in given))
                    for end in (True, False):
                        arrays = [guarded(x.astype(dtype), end) for x in given]
                        out = guarded(np.zeros_like(expected), end)
                        program.rows(*arrays, out=out)
                        assert np.array_equal(out, expected), (model, function, dtype, count)
                alive.clear()
    print("well")
"""


@pytest.mark.parametrize(
    "models", ["[ts.zoo.planar3()]", pytest.param("[ts.zoo.random_tree(7, seed=7)]", marks=pytest.mark.slow)]
)
def test_nothing_is_read_or_written_beyond_an_array(models):
    assert (
        in_a_new_process(GUARDED.format(models=models, counts="(1, 3, 8, 13)", dtypes="('float64',)", quick=True))
        == "well"
    )


@pytest.mark.slow
def test_nothing_is_read_or_written_beyond_an_array_of_larger_machines():
    models = "[ts.zoo.humanoid(), ts.zoo.panda(), ts.zoo.rope(40), ts.zoo.random_tree(30, seed=3)]"
    script = GUARDED.format(models=models, counts="(1, 2, 7, 9, 16, 33)", dtypes="('float64', 'float32')", quick=False)
    assert in_a_new_process(script, timeout=1200) == "well"


def test_the_fuzzed_modules_are_imported_from_one_place():
    """All processes above ran the torsor that is tested here."""
    assert in_a_new_process("import torsor; print(torsor.__file__)") == ts.__file__
