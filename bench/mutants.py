"""Do the tests notice a wrong line?  Mutants of the source, and what kills them.

    pip install cosmic-ray
    python bench/mutants.py --seed 1 --count 100              # all named ones, and random ones in turn from each room
    python bench/mutants.py --room model formats --count 20   # random ones of two rooms
    python bench/mutants.py --room named                      # those of mutants.toml: what the papers say

A random mutant is one sign, comparison, number or condition changed by Cosmic Ray; a named one is a line of
mutants.toml.  It is put into a copy of the sources, and the tests of its room are run, the quick ones first, until one
fails; before the tests of a named mutant, the rows of `torsor papers`.

Writes results/mutants.json after every mutant.  What was killed is not run again; survivors are, with the tests there
are by then.  A survivor is a test to be written, or an equivalent, a change that no result can show: a person writes
why into the report, as `"equivalent": "..."`, and it no longer counts.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from harness import RESULTS, write

ROOT = Path(__file__).parent.parent
REPORT = RESULTS / "mutants.json"
NAMED = Path(__file__).with_suffix(".toml")
# A loop that no longer ends is noticed; all tests of a room take less than 150 seconds of the processor.
PROCESSOR_SECONDS, SECONDS = 400, 3600
OPERATORS = re.compile(
    r"core/(ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul)|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Lt_LtE|"
    r"LtE_Lt|Gt_GtE|GtE_Gt|Is_IsNot|IsNot_Is)|NumberReplacer|ReplaceTrueWithFalse|ReplaceFalseWithTrue|"
    r"ReplaceAndWithOr|ReplaceOrWithAnd|AddNot|ReplaceUnaryOperator_Delete_(USub|Not)|ZeroIterationForLoop)$"
)
# The tests that cover a file, or else its room, the quick ones first.
TESTS = {
    "model": "dh freedoms units joints bad_models screws toml names model_files locked couplings model zoo model_batch",
    "formats": "toml model_files sdf_and_xacro robot_features save_robots urdf mjcf shapes hostile_files round_trips",
    "formats/meshes.py": "shapes", "formats/repair.py": "robot_features urdf hostile_files", "formats/sdf.py":
    "sdf_and_xacro robot_features",
    "algorithms": "udut square_factor operational_space points couplings rattle constraint_force identities",
    "algorithms/segments.py": "segments", "algorithms/complex_pivots.py": "simulate_radau",
    "algorithms/pulls.py": "points rollout_forces", "algorithms/discrete_mechanics.py": "simulate_integrators",
    "algorithms/fixman.py": "fixman", "algorithms/regressor.py": "jacobians", "algorithms/energy.py": "identities",
    "dynamics": "names points frames linearize identification symbolic bad_arguments methods identities derivatives",
    "dynamics/functions.py": "bad_arguments methods segments identities",
    "dynamics/identification.py": "identification",
    "dynamics/closed_forms": "closed_forms", "dynamics/jacobians.py": "jacobians", "dynamics/exports.py": "c wasm",
    "dynamics/external.py": "c", "dynamics/matrix_gradients.py": "matrix_gradients",
    "dynamics/fixman": "fixman_points fixman_measure fixman_parameters lee2007 fixman",
    "motion": "references stops rattle events simulate_closed_forms simulate_mechanics recording simulate_forces "
    "rollout simulate_integrators",
    "motion/gradients.py": "gradients_by_forces derivatives_in_time", "motion/joint_laws.py": "joint_laws",
    "motion/law.py": "joint_laws rollout_forces", "motion/laws.py": "joint_laws", "motion/forces.py": "rollout_forces",
    "motion/sensitivities.py": "derivatives_in_time", "motion/brownian.py": "brownian", "motion/rattle.py": "rattle",
    "motion/moving_base.py": "moving_base", "motion/radau.py": "simulate_radau",
    "motion/cuda_loops.py": "cuda", "motion/gpu_rollout.py": "cuda", "motion/device.py": "simulate_on_device",
    "motion/structure.py": "simulate_mechanics simulate_integrators", "motion/progress.py": "cli",
    "motion/quantities.py": "kept_quantities recording", "motion/tables.py": "recording cli",
    "motion/implicit.py": "simulate_implicit", "motion/tangent.py": "simulate_implicit simulate_radau",
    "motion/references.py": "references", "motion/recording.py": "recording", "motion/trajectory.py":
    "simulate_mechanics recording kept_quantities", "motion/fused.py": "simulate_forces simulate_integrators",
    "motion/stiffness.py": "simulate_implicit simulate_integrators",
    "motion/time_loop.py": "rollout rollout_forces",
    "ensembles": "exchange ensembles",
    "compiler": "schedule identities kernel derivatives",
    "compiler/loop_derivatives.py": "matrix_gradients chain_adjoint derivatives",
    "compiler/frames.py": "identities kernel",
    "compiler/members.py": "model_batch", "dynamics/members.py": "model_batch",
    "compiler/request.py": "couplings identities kernel",
    "compiler/counts.py": "kernel identities papers",
    "backends": "elf trust kernel",
    "backends/elf.py": "elf", "backends/cpuid.py": "elf trust", "backends/c_language.py": "cuda c",
    "backends/cuda.py": "cuda", "backends/gpu.py": "cuda", "backends/cuda_prelude.py": "cuda",
    "backends/wasm.py": "wasm", "backends/wasm_files.py": "wasm", "backends/xla.py": "jax", "backends/c99.py": "c",
    "backends/pointwise.py": "fixman_parameters lee2007",
    "parallel": "chain_adjoint schedule log_det_gradient device_chain segments",
    "molecule": "molecules",
    "papers": "lee2007 change_of_basis papers", "papers/saha2001.py": "papers", "papers/featherstone1999.py": "papers",
    "view": "shapes view live",
    "zoo": "lee2007 zoo",
    "bridge": "casadi jax", "bridge/rollouts.py": "derivatives_in_time jax",
    "top": "spatial lie units names bad_arguments points identities",
    "top/gym.py": "gym", "top/jax.py": "jax", "top/torch.py": "torch", "top/casadi.py": "casadi", "top/cli.py": "cli",
    "top/bench.py": "cli", "top/logs.py": "cli ensembles", "top/duals.py": "linearize derivatives",
    "top/files.py": "model_files recording", "top/later.py": "names layers",
}  # fmt: skip
ROOMS = ["named", *(key for key in TESTS if "/" not in key)]


class Mutant(NamedTuple):
    """One change of a file; `line` counts from one."""

    room: str
    file: str
    line: int
    was: str
    became: str
    before: str  # the files
    after: str
    tests: str  # the quick ones first
    papers: str = ""  # whose rows may notice

    def row(self) -> dict[str, Any]:
        return {
            key: value for key, value in self._asdict().items() if key not in ("before", "after", "tests", "papers")
        }

    @property
    def key(self) -> tuple[str, ...]:
        return self.room, self.file, self.was, self.became


def named(sources: Path) -> Iterator[Mutant]:
    for group in tomllib.loads(NAMED.read_text())["mutants"]:
        before = (sources / group["file"]).read_text()
        for was, became in group["lines"]:
            if was not in before:
                raise SystemExit(f"{NAMED.name}: {group['file']} has no {was!r}")
            line, after = before[: before.index(was)].count("\n") + 1, before.replace(was, became, 1)
            yield Mutant("named", group["file"], line, was, became, before, after, group["tests"], group["papers"])


def at_random(sources: Path, room: str, seed: int) -> Iterator[Mutant]:
    """Every mutant of a room, in an order that the seed gives and that changes of other lines do not disturb."""
    folder = sources if room == "top" else sources / room
    files = sorted(folder.glob("*.py") if room == "top" else folder.rglob("*.py"))
    places = [(path, *site) for path in files for site in sites(path)]
    for path, operator, place, line, alike in sorted(places, key=lambda x: digest(sources, seed, x)):
        before = path.read_text()
        after = mutate_code(before, get_operator(operator)(), place)
        if re.match(r" *def .*[(,] ?/,", (after or "").splitlines()[line - 1]):
            continue  # Cosmic Ray takes the star of a signature for a product
        if changed := [pair for pair in zip(before.splitlines(), (after or "").splitlines()) if pair[0] != pair[1]]:
            was, became = (text.strip() for text in changed[0])
            was += f"  # place {alike + 1}" * bool(alike)
            tests = tests_of(room, path.relative_to(folder))
            yield Mutant(room, path.relative_to(sources).as_posix(), line, was, became, before, after, tests)


def tests_of(room: str, file: Path) -> str:
    """Of a file, else of the nearest folder."""
    return next(TESTS[key] for key in map(str, (Path(room, file), *Path(room, file).parents)) if key in TESTS)


def digest(sources: Path, seed: int, place: tuple[Any, ...]) -> bytes:
    path, operator, _, line, alike = place
    text = path.read_text().splitlines()[line - 1].strip()
    return hashlib.blake2b(repr((seed, path.relative_to(sources).as_posix(), operator, text, alike)).encode()).digest()


@cache
def sites(path: Path) -> list[tuple[str, int, int, int]]:
    """Of every mutation of a file its operator, which of its places in the file, the line, and which of equal lines."""
    text = path.read_text()
    nodes, found, lines = list(ast_nodes(get_ast(text))), [], text.splitlines()
    for name in filter(OPERATORS.match, operator_names()):
        operator, alike = get_operator(name)(), Counter()
        places = [start[0] for node in nodes for start, _ in operator.mutation_positions(node)]
        for k, line in enumerate(places):
            content = lines[line - 1].strip()
            found.append((name, k, line, alike[content]))
            alike[content] += 1
    return found


def in_turn(sources: Path, rooms: list[str], count: int, seed: int) -> Iterator[Mutant]:
    """All named mutants, then random ones in turn from each of the other rooms."""
    if "named" in rooms:
        yield from named(sources)
    streams = (at_random(sources, room, seed) for room in rooms if room != "named")
    yield from islice((mutant for turn in zip_longest(*streams) for mutant in turn if mutant), count)


class Laboratory:
    """A copy of the checkout in which mutants are tried: none can ever stay in the checkout itself."""

    def __init__(self, tree: Path) -> None:
        self.tree, self.sources = tree, tree / "src/torsor"
        for folder in ("src", "tests", "docs", "bench", "examples"):
            shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for path in ROOT.iterdir():
            if path.is_file():
                shutil.copy(path, tree)
        # Compiled files that are known by content: quick to load, and never those of another mutant.
        mode = ["--invalidation-mode", "checked-hash"]
        subprocess.run([sys.executable, "-m", "compileall", "-q", *mode, tree / "src"], check=True)

    def verdict(self, mutant: Mutant) -> str:
        """What noticed the mutant, or an empty word."""
        path = self.sources / mutant.file
        checks = [self.rows(mutant.papers)] * bool(mutant.papers) + [self.tests(mutant)]
        path.write_text(mutant.after)
        try:
            return next(filter(None, map(self.noticed, checks)), "")
        finally:
            path.write_text(mutant.before)

    def holds(self, test: str) -> bool:
        """Whether a test passes without a mutant."""
        return not self.noticed(pytest([f"tests/{test}"]))

    def rows(self, papers: str) -> list[str]:
        return ["bench/paper_rows.py", papers]

    def tests(self, mutant: Mutant) -> list[str]:
        """Those that are named as the file come first, then those that import it."""
        stem = Path(mutant.file).stem
        imported = re.compile(rf"^ *(from|import) torsor.*\b{stem}\b", re.MULTILINE)

        def far(path: str) -> tuple[bool, bool]:
            return stem not in path, not imported.search((self.tree / path).read_text())

        return pytest(sorted((f"tests/test_{name}.py" for name in mutant.tests.split()), key=far))

    def noticed(self, check: list[str]) -> str:
        """The row or test that fails, or an empty word."""
        status, said = self.run(check)
        failed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(.*?)(?: - .*)?$", said, re.MULTILINE)
        last = (said.strip().splitlines() or [""])[-1]
        if status is None or status == -signal.SIGXCPU:
            return "it no longer ends"
        kind = "row" if check[0].endswith(".py") else "the tests end"
        return failed[1] if failed else f"{kind}: {last}"[:160] if status else ""

    def run(self, words: list[str]) -> tuple[int | None, str]:
        """The exit status, None after the deadline, and what was said."""
        settings = {"PYTHONPATH": str(self.tree / "src"), "TORSOR_CACHE": "off", "TORSOR_OPTIMIZE": "0",
                    "OMP_NUM_THREADS": "1"}  # fmt: skip
        limit = ["prlimit", f"--cpu={PROCESSOR_SECONDS}", sys.executable]
        process = subprocess.Popen(
            [*limit, *words], cwd=self.tree, env=os.environ | settings, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, ""
        return process.returncode, said


def pytest(words: list[str]) -> list[str]:
    return ["-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *words]


def known() -> dict[str, Any]:
    """The report as it stands."""
    return json.loads(REPORT.read_text()) if REPORT.exists() else {}


def rows() -> dict[tuple[str, ...], dict[str, Any]]:
    return {(row["room"], row["file"], row["was"], row["became"]): row for row in known().get("rows", [])}


def keep(row: dict[str, Any], key: tuple[str, ...], seed: int) -> None:
    """Put a row into the report; several runs may do so, side by side."""
    folder = os.open(RESULTS, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        done = list((rows() | {key: row}).values())
        equivalent = Counter(row["room"] for row in done if "equivalent" in row)
        write(REPORT, {"seed": seed, "killed": score(done), "equivalent": equivalent, "rows": done})
    finally:
        os.close(folder)


def score(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Killed, of those that are no equivalents, by room."""
    real = [row for row in rows if "equivalent" not in row]
    all_, killed = (Counter(row["room"] for row in some) for some in (real, [x for x in real if x["killed by"]]))
    return {room: f"{killed[room]} of {all_[room]}" for room in all_}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100, help="of random mutants")
    parser.add_argument("--room", nargs="+", choices=ROOMS, default=ROOMS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        laboratory, sound = Laboratory(Path(name)), {row["killed by"] for row in rows().values()}
        for mutant in in_turn(laboratory.sources, options.room, options.count, options.seed):
            row = rows().get(mutant.key, {})
            if row.get("killed by") or "equivalent" in row:
                continue
            by = laboratory.verdict(mutant)
            if by.startswith("test_") and by not in sound and not laboratory.holds(by):
                raise SystemExit(f"{by} fails without any mutant")
            sound.add(by)
            keep(mutant.row() | {"killed by": by}, mutant.key, options.seed)
            print("killed  " if by else "SURVIVED", f"{mutant.file}:{mutant.line}: {mutant.was}  ->  {mutant.became}  ",
                  by, flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
