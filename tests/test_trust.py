"""Nothing crashes and nothing is silently wrong: each test here once failed."""

import csv
import dataclasses
import json
import os
import zipfile
from contextlib import nullcontext
from html.parser import HTMLParser

import numpy as np
import processes
import pytest
from machines import torque_of
from test_view import scene_of

import torsor as ts
from torsor import Constant, Friction, Model, Simulation, Spring, Trajectory, cli, simulate, zoo
from torsor.backends import cache, codegen
from torsor.errors import ArgumentError, ModelError, SingularError, TorsorError
from torsor.motion import recording
from torsor.motion.recording import RecordingError
from torsor.validate import number
from torsor.view.page import page

BALL = {"mass": 1.0, "inertia": (1.0, 1.0, 1.0)}
ARM = zoo.point_chain(2)
MASKED = np.ma.masked_array([1.0, 2.0], [False, True])

# ---- trajectories ----


def first_row(run):
    return Trajectory(run.model, run.t[:1], run.q[:1], run.v[:1], run.a[:1], run.tau[:1])


@pytest.mark.parametrize("model", [ARM, zoo.humanoid()], ids=["flat", "quaternions"])
def test_a_trajectory_of_one_row_is_that_row(model):
    run = first_row(simulate(model, duration=0.01))
    q, v = run.at([0.0, 0.0])
    np.testing.assert_array_equal(q, [run.q[0]] * 2)
    np.testing.assert_array_equal(v, [run.v[0]] * 2)


def test_a_trajectory_is_its_rows_at_their_times():
    run = simulate(ARM, [0.4, 0.3], duration=0.5)
    q, v = run.at(run.t)
    np.testing.assert_array_equal(q, run.q)
    np.testing.assert_array_equal(v, run.v)


def test_no_times_give_no_rows():
    q, v = first_row(simulate(ARM, duration=0.01)).at([])
    assert q.shape == v.shape == (0, 2)


def test_a_trajectory_without_rows_says_so():
    run = simulate(ARM, duration=0.01)
    empty = Trajectory(ARM, run.t[:0], run.q[:0], run.v[:0], run.a[:0], run.tau[:0])
    with pytest.raises(ArgumentError, match="no rows"):
        empty.at(0.0)
    with pytest.raises(ArgumentError, match="no rows"):
        page(empty)


def test_columns_of_a_csv_file_are_quoted(tmp_path):
    model = Model.chain(n=2, names=['a, "b"', "ä\n"], **BALL)
    simulate(model, duration=0.01).to_csv(tmp_path / "run.csv")
    with open(tmp_path / "run.csv", encoding="utf-8", newline="") as file:
        names = next(csv.reader(file))
    assert names[1:3] == ['q.a, "b"', "q.ä\n"]


def test_columns_of_the_same_name_are_all_in_a_parquet_file(tmp_path):
    from pyarrow import parquet

    model = Model.chain(["universal", "revolute"], names=["a", "a.x"], **BALL)
    run = simulate(model, duration=0.01)
    run.to_parquet(tmp_path / "run.parquet")
    assert parquet.ParquetFile(tmp_path / "run.parquet").schema_arrow.names == run.names


# ---- arrays ----


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: Model.chain(n=2, **BALL | {"mass": MASKED}), "mass"),
        (lambda: Model.tree(np.ma.masked_array([-1, 0], [0, 1]), **BALL), "parent"),
        (lambda: Model.from_dh(a=MASKED, **BALL), r"\ba\b"),
        (lambda: Model.builder().add("a", **BALL, p=np.ma.zeros(3)), r"\bp\b"),
        (lambda: dataclasses.replace(ARM, mass=MASKED), "mass"),
        (lambda: simulate(ARM, MASKED), "q0"),
        (lambda: simulate(ARM, v0=MASKED), "v0"),
        (lambda: simulate(ARM, armature=MASKED), "armature"),
        (lambda: simulate(ARM, rtol=MASKED), "rtol"),
        (lambda: simulate(ARM, forces=lambda t, q, v: MASKED), "force"),
        (lambda: simulate(ARM, duration=0.1).at(np.ma.zeros(2)), r"\bt\b"),
        (lambda: simulate(ARM, forces=Constant(MASKED)), "tau"),
        (lambda: ts.sample_velocities(ARM, MASKED), r"\bq\b"),
        (lambda: ts.operational_space(ARM, [0.1, 0.2], 1, task=np.ma.array(np.eye(6))), "task"),
    ],
)
def test_masks_are_not_ignored(call, name):
    with pytest.raises(ArgumentError, match=name) as caught:
        call()
    assert "mask" in str(caught.value) or "shape" in str(caught.value)


@pytest.mark.parametrize("key", ["mass", "R", "gravity", "parent", "joint"])
def test_a_model_shares_no_array(key):
    owner = np.array(getattr(ARM, key))
    view = owner[:]
    owner.flags.writeable = False
    model = dataclasses.replace(ARM, **{key: owner})
    before = model.key
    view[:] = 7
    np.testing.assert_array_equal(getattr(model, key), getattr(ARM, key))
    assert dataclasses.replace(model).key == before


@pytest.mark.parametrize("code", [256, 257, -256, 2**64 - 1])
def test_a_joint_code_does_not_wrap(code):
    with pytest.raises(TorsorError, match="joint"):
        dataclasses.replace(ARM, joint=np.array([0, code]))


def test_a_parent_does_not_wrap():
    with pytest.raises(TorsorError, match="parent"):
        Model.tree(np.array([2**64 - 1], dtype=np.uint64), **BALL)


def test_a_frame_on_half_a_body_is_refused():
    with pytest.raises(ModelError, match=r"'tip'.*integer"):
        dataclasses.replace(ARM, frames={"tip": (0.7, np.eye(3), np.zeros(3))})


def test_names_of_numpy_are_names():
    model = Model.chain(names=np.array(["a", "b"]), **BALL)
    assert model.names == ("a", "b")
    assert dataclasses.replace(model, names=np.array(["c", "d"])).names == ("c", "d")
    with pytest.raises(ArgumentError, match="names"):
        Model.chain(names="ab", **BALL)


@pytest.mark.parametrize("where", ["body", "frame", "model"])
def test_half_a_surrogate_pair_is_no_name_and_leaves_no_file(where, tmp_path):
    names = {"body": "a", "frame": "f", "model": "m"} | {where: "\ud800"}
    with pytest.raises(ModelError, match="surrogate"):
        ts.save(
            Model.builder(names["model"]).add(names["body"], **BALL).frame(names["frame"]).build(), tmp_path / "m.toml"
        )
    assert list(tmp_path.iterdir()) == []


# ---- single precision ----


def test_velocities_in_single_precision_stay_so():
    q = np.zeros((3, 2), dtype=np.float32)
    assert ts.sample_velocities(ARM, q, 0, kT=2.0, size=4).dtype == np.float32
    assert ts.sample_velocities(ARM, q.astype(float), 0).dtype == np.float64


@pytest.mark.parametrize("frames", [6, ["link7", 3]])
def test_task_spaces_in_single_precision_stay_so(frames):
    model = zoo.panda().with_frames({"tip": (zoo.panda().names[6], np.eye(3), (0.0, 0.0, 0.1))})
    frames = "tip" if frames == 6 else ["tip", 3]
    q = np.linspace(0, 1, 7, dtype=np.float32)
    task = ts.operational_space(model, q, frames, q, task=np.eye(6 if frames == "tip" else 12)[:3])
    for key in ("jacobian", "response", "inverse_inertia", "inertia", "bias", "consistent_inverse"):
        assert getattr(task, key).dtype == np.float32, key
    exact = ts.operational_space(model, q.astype(float), frames, q.astype(float), task=task.T.astype(float))
    assert exact.bias.dtype == np.float64
    np.testing.assert_allclose(task.bias, exact.bias, rtol=1e-3, atol=1e-3)


# ---- options ----


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"max_step": 0}, "max_step"),
        ({"max_step": np.nan}, "max_step"),
        ({"max_step": -1.0}, "max_step"),
        ({"max_step": 1e-300}, "max_step"),
        ({"max_step": 1e-300, "dt": 0.1}, "max_step"),
        ({"v0": [1e150, 1e150]}, "v0"),
        ({"v0": ["a", "b"]}, "v0"),
        ({"q0": [0.0, None]}, "q0"),
        ({"armature": [1, 2, 3]}, "armature"),
        ({"armature": "x"}, "armature"),
        ({"rtol": "x"}, "rtol"),
        ({"atol": [1e-9] * 3}, "atol"),
        ({"step": np.nan, "method": "verlet"}, "step"),
        ({"step": np.inf, "method": "verlet"}, "step"),
        ({"step": 1e-300, "method": "verlet"}, "step"),
        ({"step": "x"}, "step"),
        ({"dt": np.nan}, "dt"),
        ({"dt": np.inf}, "dt"),
        ({"dt": 1e-300}, "rows"),
        ({"t0": np.nan}, "t0"),
        ({"t0": "now"}, "t0"),
        ({"chunk": 0}, "chunk"),
        ({"chunk": 2.5}, "chunk"),
        ({"forces": 3}, "forces"),
        ({"forces": [np.zeros(2)]}, r"forces\[0\]"),
        ({"forces": lambda t, q, v: "x"}, "force"),
        ({"method": 3}, "method"),
        ({"method": ["dopri5"]}, "method"),
        ({"gravity": (0, 0, -9.81)}, "gravity"),
        ({"about": {"q0": 3}}, "about.*q0"),
        ({"about": {"a": object()}}, "about"),
        ({"file": 3}, "file"),
        ({"stop": 3}, "stop"),
        ({"stop": lambda t, q, v: np.nan}, "stop"),
        ({"progress": 3}, "progress"),
        ({"duration": np.nan}, "duration"),
        ({"duration": np.inf}, "duration"),
        ({"duration": "1"}, "duration"),
    ],
    ids=lambda x: str(x).partition(" at 0x")[0][:40],
)
def test_a_simulation_names_the_bad_option(options, name):
    with pytest.raises(TorsorError, match=name):
        simulate(ARM, **{"duration": 0.05} | options)


@pytest.mark.parametrize("method", ["dopri5", "rkf45", "dop853", "abm", "radau"])
def test_a_motion_beyond_doubles_ends(method):
    for speed in (1e100, 1e150, 1e200):
        with pytest.raises(SingularError):
            simulate(ARM, v0=[speed, -speed], duration=1.0, method=method)


@pytest.mark.parametrize("options", [{"max_step": 1e-4}, {"method": "symplectic-euler", "step": 1e-4}])
def test_steps_below_the_resolution_of_time_end(options):
    with pytest.raises(SingularError, match="step"):
        Simulation(ARM, t0=1e15, **options).run(1e15 + 10)


@pytest.mark.parametrize("until", [np.nan, np.inf, -1.0, "1", None])
def test_a_run_names_a_bad_end(until):
    with pytest.raises(ArgumentError, match="until"):
        Simulation(ARM).run(until)


@pytest.mark.parametrize("size", [-1, [2, -3], 2.5, "2", None, 10**15, [10**9, 10**9]])
def test_sizes_are_named(size):
    with pytest.raises(ArgumentError, match="size"):
        ts.sample_velocities(ARM, np.zeros(2), size=size)
    if size is not None:
        with pytest.raises(ArgumentError, match="size"):
            ARM.random_configuration(size=size)


def test_sizes_may_be_lists():
    assert ts.sample_velocities(ARM, np.zeros(2), size=[2, 3]).shape == (2, 3, 2)
    assert ARM.random_configuration(size=[2, 3]).shape == (2, 3, 2)


@pytest.mark.parametrize("kT", [[1.0, 2.0], np.ones(3), np.nan, -1.0, "x", None, 1j])
def test_a_temperature_is_one_number(kT):
    with pytest.raises(ArgumentError, match="kT"):
        ts.sample_velocities(ARM, np.zeros(2), kT=kT)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: zoo.point_chain(3, length=np.ones(2)), "length"),
        (lambda: zoo.point_chain(3, mass="x"), "mass"),
        (lambda: zoo.rope(3, radius=[0.1]), "radius"),
        (lambda: zoo.rope(10**15), r"\bn\b"),
        (lambda: zoo.random_tree(3, seed="x"), "seed"),
        (lambda: zoo.random_tree(3, branching="x"), "branching"),
        (lambda: zoo.random_chain(3, joints=[]), "joints"),
        (lambda: zoo.get(["rope"]), "zoo"),
        (lambda: Model.chain(n=10**15, **BALL), r"\bn\b"),
        (lambda: Model.from_dh(alpha=np.inf, **BALL), "alpha"),
        (lambda: Model.from_dh(degrees=3, **BALL), "degrees"),
        (lambda: Friction(creep=0.0), "creep"),
        (lambda: simulate(ARM, forces=Friction(viscous=np.nan)), "viscous"),
        (lambda: simulate(ARM, forces=Friction([1.0] * 3)), "viscous"),
        (lambda: simulate(ARM, forces=Spring([1.0] * 3)), "stiffness"),
        (lambda: simulate(ARM, forces=Spring(1.0, rest=[0.0])), "rest"),
    ],
)
def test_parameters_are_named(call, name):
    with pytest.raises(ArgumentError, match=name):
        call()


def test_a_parameter_may_be_a_list():
    np.testing.assert_array_equal(torque_of(ARM, Friction([1.0, 2.0]), 0.0, np.zeros(2), np.ones(2)), [-1.0, -2.0])


def test_messages_say_what_a_number_must_be():
    with pytest.raises(ArgumentError, match=r"^x must be greater than 0 and finite, not 0$"):
        number("x", 0, above=0)
    with pytest.raises(ArgumentError, match=r"^x must be a number, not nan$"):
        number("x", np.nan, infinite=True)


# ---- forces ----


@pytest.mark.parametrize("force", [lambda t: 0.0, lambda: 0.0, lambda t, q, v, more: 0.0])
def test_a_force_of_other_arguments_is_refused_before_the_run(force):
    for forces in (force, [Friction(0.1), force]):
        with pytest.raises(ArgumentError, match=r"forces\[[01]\] is called as f\(t, q, v\): (too many|missing)"):
            simulate(ARM, duration=0.1, forces=forces)


def test_a_stop_function_cannot_write_into_the_state():
    def stop(t, q, v):
        q[:] = 0.0
        return 1.0

    with pytest.raises(ValueError, match="read-only"):
        simulate(ARM, [0.4, 0.3], duration=0.1, stop=stop)


def broken_slopes(t, q, v):
    q[:] = 0.0


@pytest.mark.parametrize(
    ("slopes", "words"),
    [
        (lambda t, q, v: 3.0, "iterable"),
        (lambda t, q, v: None, "iterable"),
        (lambda t, q, v: (np.ones(3), np.ones(5)), "broadcast"),
        (lambda t, q, v: (np.full(2, np.nan), np.ones(2)), "a number is not finite"),
        (broken_slopes, "read-only"),
    ],
)
def test_slopes_that_are_none_are_refused_by_name(slopes, words):
    force = ts.Function(lambda t, q, v: -q, slopes=slopes)
    with pytest.raises(ArgumentError, match=f"the slopes .* gives a stiffness and a damping.*{words}"):
        simulate(ARM, duration=0.1, forces=force, method="esdirk4")


@pytest.mark.parametrize("name", ["from_mujoco", "to_mujoco", "from_pinocchio", "to_pinocchio"])
def test_a_state_of_no_engine_is_refused_by_name(name):
    with pytest.raises(ArgumentError, match=r"theirs must be a model of (MuJoCo|Pinocchio), not array"):
        getattr(ts.formats, name)(ARM, np.zeros(2), np.zeros(2))


# ---- the cache ----


@pytest.mark.parametrize("setting", ["~nobody-of-that-name", "~nobody-of-that-name/cache", "/proc/none"])
def test_a_folder_that_cannot_be_means_no_cache(setting, monkeypatch):
    monkeypatch.setattr(cache.os, "environ", {"TORSOR_CACHE": setting})
    cache.write("name", b"content")
    assert cache.read("name") is None


def test_torsor_starts_without_a_cache_that_cannot_be():
    code = "import torsor as ts; print(ts.mass_matrix(ts.zoo.point_chain(1), [0.0]))"
    environment = {"TORSOR_CACHE": "~nobody-of-that-name", "PYTHONPATH": processes.SOURCE, "PATH": "/usr/bin"}
    assert processes.output(code, env=environment).strip() == "[[1.]]"


POSIX = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A cache with one file."""
    monkeypatch.setenv("TORSOR_CACHE", str(tmp_path / "cache"))
    cache._warn_once.cache_clear()
    cache.write("name", b"content")
    assert cache.read("name") == b"content"
    return tmp_path / "cache"


@POSIX
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_cache_in_which_others_can_write_is_neither_read_nor_written(kept, mode):
    kept.chmod(mode)
    with pytest.warns(RuntimeWarning, match="does without its cache: others own .*cache or can write in it"):
        assert cache.read("name") is None
    cache.write("other", b"content")  # without another word
    assert cache.read("name") is None
    assert [path.name for path in kept.iterdir()] == ["name"]
    kept.chmod(0o755)
    assert cache.read("name") == b"content"


@POSIX
def test_a_file_of_the_cache_that_others_can_write_is_not_read(kept):
    assert (kept / "name").stat().st_mode & 0o777 == 0o600
    for mode in (0o620, 0o602):
        (kept / "name").chmod(mode)
        assert cache.read("name") is None
    cache.write("name", b"new")
    assert cache.read("name") == b"new"


@POSIX
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("what", ["cache", "cache/name"])
def test_what_another_user_put_into_the_cache_is_not_read(kept, what):
    os.chown(kept.parent / what, 12345, -1)
    with pytest.warns(RuntimeWarning, match="others own") if what == "cache" else nullcontext():
        assert cache.read("name") is None


def test_without_sources_there_is_no_cache(tmp_path):
    """Installed as a zip: nothing says which torsor made what is in the cache."""
    package, folder = cache.PACKAGE, tmp_path / "cache"
    with zipfile.ZipFile(tmp_path / "torsor.zip", "w") as file:
        for path in sorted(package.rglob("*")):
            if path.is_file() and path.suffix in (".py", ".pyi", ".toml", ".json"):
                file.write(path, path.relative_to(package.parent))
    code = "import torsor as ts; print(ts.__file__, ts.mass_matrix(ts.Model.chain(mass=1, inertia=(1, 1, 1)), [0.0]))"
    environment = os.environ | {"TORSOR_CACHE": str(folder), "PYTHONPATH": str(tmp_path / "torsor.zip")}
    said = processes.output(code, env=environment)
    assert "torsor.zip" in said
    assert said.strip().endswith("[[1.]]")
    assert not folder.exists()


@pytest.mark.skipif(codegen.cpuid.processor() is None, reason="no CPUID here")
def test_the_processor_in_the_name_of_code_is_the_one_that_answers(monkeypatch):
    """Under an emulator /proc/cpuinfo names the processor of the machine, which may have more instructions."""
    told = codegen.cpuid.processor()
    assert codegen.cpuid.processor() == told
    features = codegen.host().features.split(",")
    ebx, registers = told[7], told[-1]  # of leaf 7; bit 5: AVX2, bit 16: AVX-512
    assert ("+avx2" in features) == bool(ebx >> 5 & registers >> 2 & 1)
    assert ("+avx512f" in features) == bool(ebx >> 16 & 1 and registers & 0xE0 == 0xE0)
    one = codegen._seen_without_llvm()
    monkeypatch.setattr(codegen.cpuid, "processor", lambda: (*told[:7], ebx & ~(1 << 16), *told[8:]))
    assert codegen._seen_without_llvm() != one


# Bits of CPUID by leaf, subleaf and register, as Intel's manual (volume 2, CPUID) and AMD's (volume 3, appendix E) have
# them; the names are LLVM's.  A feature that the operating system must switch on has its bit and may be missing.
FEATURES = {
    (1, 0, "c"): "sse3:0 pclmul:1 ssse3:9 fma:12 cx16:13 sse4.1:19 sse4.2:20 movbe:22 popcnt:23 aes:25 avx:28 f16c:29 "
    "rdrnd:30",
    (1, 0, "d"): "cx8:8 cmov:15 mmx:23 fxsr:24 sse:25 sse2:26",
    (7, 0, "b"): "fsgsbase:0 bmi:3 avx2:5 bmi2:8 invpcid:10 avx512f:16 avx512dq:17 rdseed:18 adx:19 avx512ifma:21 "
    "clflushopt:23 clwb:24 avx512cd:28 sha:29 avx512bw:30 avx512vl:31",
    (7, 0, "c"): "avx512vbmi:1 waitpkg:5 avx512vbmi2:6 gfni:8 vaes:9 vpclmulqdq:10 avx512vnni:11 avx512bitalg:12 "
    "avx512vpopcntdq:14 rdpid:22 kl:23 cldemote:25 movdiri:27 movdir64b:28 enqcmd:29",
    (7, 0, "d"): "uintr:5 avx512vp2intersect:8 serialize:14 tsxldtrk:16 amx-bf16:22 avx512fp16:23 amx-tile:24 "
    "amx-int8:25",
    (7, 1, "a"): "sha512:0 sm3:1 sm4:2 raoint:3 avxvnni:4 avx512bf16:5 cmpccxadd:7 amx-fp16:21 hreset:22 avxifma:23",
    (7, 1, "d"): "avxvnniint8:4 avxneconvert:5 amx-complex:8 avxvnniint16:10 prefetchi:14 usermsr:15",
    (0xD, 1, "a"): "xsaveopt:0 xsavec:1 xsaves:3", (0x14, 0, "b"): "ptwrite:4", (0x19, 0, "b"): "widekl:2",
    (0x80000001, 0, "c"): "sahf:0 lzcnt:5 sse4a:6 prfchw:8 xop:11 lwp:15 fma4:16 tbm:21 mwaitx:29",
    (0x80000001, 0, "d"): "64bit:29", (0x80000008, 0, "b"): "clzero:0 rdpru:4 wbnoinvd:9",
}  # fmt: skip


@pytest.mark.skipif(codegen.cpuid.processor() is None, reason="no CPUID here")
def test_every_feature_that_llvm_finds_is_among_the_numbers_of_the_processor():
    """Their bits are asked for, also those that this processor does not have."""
    told, kept = codegen.cpuid.processor(), codegen.cpuid._LEAVES.items()
    number = dict(zip([(*leaf, register) for leaf, registers in kept for register in registers], told))
    features = set(codegen.host().features.split(","))
    for place, words in FEATURES.items():
        for name, bit in (word.split(":") for word in words.split()):
            assert number[place] >> int(bit) & 1 or f"+{name}" not in features, (name, place)


# ---- recordings ----


def rewritten(path, **changes):
    """A recorded file with another header, soundly checksummed."""
    content = path.read_bytes()
    frames = list(recording._frames(content))
    header = json.loads(frames[0][1])
    header["about"] |= changes
    rest = b"".join(recording._frame(kind, payload) for kind, payload, _ in frames[1:])
    path.write_bytes(recording.beginning(header) + rest)


@pytest.mark.parametrize(
    "changes",
    [
        {"method": 3},
        {"rtol": "x"},
        {"max_step": 0},
        {"q0": None},
        {"q0": [1.0]},
        {"chunk": 0},
        {"dt": -1.0},
        {"t0": []},
    ],
    ids=str,
)
def test_a_header_that_makes_no_sense_is_refused(changes, tmp_path):
    path = tmp_path / "run.traj"
    simulate(ARM, duration=0.1, file=path)
    rewritten(path, **changes)
    before = path.read_bytes()
    if changes != {"q0": None}:  # the neutral configuration
        with pytest.raises(RecordingError, match=str(next(iter(changes)))):
            Simulation.resume(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("method", ["dopri5", "abm", "verlet", "radau"])
@pytest.mark.parametrize("damage", ["nan", "short", "gone"])
def test_a_memory_that_does_not_fit_is_refused(method, damage, tmp_path):
    path = tmp_path / "run.traj"
    simulate(ARM, [0.1, 0.2], duration=0.1, method=method, step=0.01, file=path)
    found = recording.read(path)
    memory = dict(found.chunks[-1].memory)
    if damage == "gone":
        del memory["row"]
    else:
        memory["row"] = memory["row"] * np.nan if damage == "nan" else memory["row"][:2]
    path.write_bytes(recording.beginning(found.header) + recording.chunk(found.rows, memory))
    with pytest.raises(RecordingError, match="memory"):
        Simulation.resume(path)


# ---- the page and the command line ----


class Scripts(HTMLParser):
    """The scripts of a page, and its text."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.title, self._in = [], "", ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._in = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._in = ""

    def handle_data(self, data):
        if self._in == "script":
            self.scripts[-1] += data
        elif self._in == "title":
            self.title += data


NAMES = ["__DATA__", "__PLAYER__", "__TITLE__", "</script><b>", "<!--<script>", "\\1 \\g<0>"]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_holds_any_name(name):
    model = Model.builder(name).add(name, **BALL).build()
    text = page(simulate(model, duration=0.02))
    found = Scripts(text)
    assert len(found.scripts) == 3
    assert scene_of(text)["bodies"][0]["name"] == name
    assert found.title.startswith(name)


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "[/]"],
        ["info", "[/].toml"],
        ["info", "rope:²"],
        ["info", "rope:" + "9" * 18],
        ["info", "rope:" + "9" * 5000],
        ["simulate", "planar3", "--duration", "nan"],
        ["simulate", "planar3", "--duration", "inf"],
        ["simulate", "planar3", "--dt", "0"],
        ["simulate", "planar3", "--viscous", "nan"],
        ["simulate", "planar3", "--torque", "nan,0,0"],
        ["simulate", "planar3", "--torque", "missing.csv"],
        ["simulate", "planar3", "--duration", "0.1", "--csv", "missing/run.csv"],
        ["simulate", "planar3", "--duration", "0.1", "--plot", "missing/run.png"],
        ["simulate", "--resume", "missing"],
        ["view", "missing"],
        ["bench", "--short", "--states", "0"],
    ],
    ids=lambda x: " ".join(x)[:40],
)
def test_the_command_line_refuses_in_words(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 1
    assert list(tmp_path.iterdir()) == []


def test_names_are_not_taken_for_markup(tmp_path, monkeypatch, capsys):
    path = tmp_path / "m.toml"
    ts.save(Model.builder("[/b] [red]").add("[/x]", **BALL).build(), path)
    assert cli.main(["info", str(path)]) == 0
    assert cli.main(["simulate", str(path), "--duration", "0.01"]) == 0
    assert "[/b] [red]" in capsys.readouterr().out
