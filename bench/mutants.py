"""Do the tests notice a wrong line?  Random mutants of the source, made by Cosmic Ray, and the tests that kill them.

    pip install cosmic-ray
    python bench/mutants.py --seed 1 --count 100 [--room model ...]

One sign, comparison, number or condition of a copy of the sources is changed at a time, and the test files of its room
are run until one fails.  Writes results/mutants.json after every mutant; mutants that are there already are not run
again.  A survivor is a test to be written, or an equivalent, a change that no result can show: a person writes why into
the report, as `"equivalent": "..."`, and it no longer counts.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import use_mutation
from cosmic_ray.plugins import get_operator, operator_names
from harness import RESULTS, write

ROOT = Path(__file__).parent.parent
REPORT = RESULTS / "mutants.json"
SECONDS = 900  # for one mutant: a loop that no longer ends is noticed
OPERATORS = re.compile(
    r"core/(ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul)|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Lt_LtE|"
    r"LtE_Lt|Gt_GtE|GtE_Gt|Is_IsNot|IsNot_Is)|NumberReplacer|ReplaceTrueWithFalse|ReplaceFalseWithTrue|"
    r"ReplaceAndWithOr|ReplaceOrWithAnd|AddNot|ReplaceUnaryOperator_Delete_(USub|Not)|ZeroIterationForLoop)$"
)
# The tests that cover a room, the quick ones first.
ROOMS = {
    "model": "model dh freedoms bad_models model_files toml zoo names model_batch joints conditioning urdf every_joint "
    "save_robots round_trips armature couplings",
    "formats": "urdf mjcf sdf_and_xacro robot_features save_robots round_trips toml model_files hostile_files shapes "
    "frames",
    "algorithms": "identities against_pinocchio high_precision articulated operational_space fixman constraint_force "
    "square_factor udut jacobians couplings",
    "dynamics": "names methods frames linearize identification jacobians identities fixman closed_forms symbolic "
    "bad_arguments exports c",
    "motion": "joint_laws simulate_mechanics simulate_forces simulate_integrators simulate_closed_forms events stops "
    "rollout rollout_forces recording simulate_implicit simulate_radau kept_quantities",
    "ensembles": "ensembles exchange cli",
    "compiler": "identities kernel derivatives schedule methods",
    "backends": "kernel elf identities c cuda other_machines trust",
}


@cache
def sites(path: Path) -> list[tuple[str, int, int]]:
    """(operator, its how-manieth place in the file, line) of every mutation of a file."""
    nodes, found = list(ast_nodes(get_ast_from_path(path))), []
    for name in filter(OPERATORS.match, operator_names()):
        operator = get_operator(name)()
        places = [start[0] for node in nodes for start, _ in operator.mutation_positions(node)]
        found += [(name, k, line) for k, line in enumerate(places)]
    return found


def chosen(source: Path, rooms: list[str], count: int, seed: int) -> list[tuple[str, Path, tuple[str, int, int]]]:
    """Mutants in turn from each room; a file is drawn as often as it has lines."""
    rng, drawn = random.Random(seed), []
    files = {room: sorted((source / room).rglob("*.py")) for room in rooms}
    weights = {room: [path.read_text().count("\n") for path in paths] for room, paths in files.items()}
    while len(drawn) < count:
        room = rooms[len(drawn) % len(rooms)]
        (path,) = rng.choices(files[room], weights[room])
        if places := sites(path):
            drawn.append((room, path, rng.choice(places)))
    return drawn


def verdict(room: str, tree: Path) -> str:
    """The test that noticed, or an empty word."""
    files = [path for name in ROOMS[room].split() if (path := tree / "tests" / f"test_{name}.py").exists()]
    env = os.environ | {"PYTHONPATH": str(tree / "src"), "TORSOR_CACHE": "off", "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *map(str, files)]
    try:
        done = subprocess.run(words, cwd=tree, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "a test that no longer ends"
    failed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return failed[1] if failed else "" if done.returncode == 0 else "a run that did not begin"


def score(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Killed, of those that are no equivalents, by room."""
    real = [row for row in rows if "equivalent" not in row]
    all_, killed = (Counter(row["room"] for row in some) for some in (real, [x for x in real if x["killed by"]]))
    return {room: f"{killed[room]} of {all_[room]}" for room in all_}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--room", nargs="+", choices=ROOMS, default=list(ROOMS))
    options = parser.parse_args()
    rows = json.loads(REPORT.read_text())["rows"] if REPORT.exists() else []
    seen = {(row["file"], row["operator"], row["place"]) for row in rows}
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name)
        for folder in ("src", "tests", "docs", "bench", "examples"):
            shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for file in ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
            shutil.copy(ROOT / file, tree)
        for room, path, (operator, place, line) in chosen(
            tree / "src/torsor", options.room, options.count, options.seed
        ):
            file = path.relative_to(tree / "src/torsor").as_posix()
            if (file, operator, place) in seen:
                continue
            with use_mutation(path, get_operator(operator)(), place) as (before, after):
                changed = [pair for pair in zip(before.splitlines(), after.splitlines()) if pair[0] != pair[1]]
                by = verdict(room, tree)
            was, became = (x.strip() for x in changed[0]) if changed else ("", "")
            row = {"room": room, "file": file, "line": line, "operator": operator, "place": place, "was": was,
                   "became": became, "killed by": by}  # fmt: skip
            rows.append(row)
            write(REPORT, {"seed": options.seed, "killed": score(rows), "rows": rows})
            print((by and "killed  ") or "SURVIVED", f"{file}:{line}: {was}  ->  {became}  {by}", flush=True)


if __name__ == "__main__":
    main()
