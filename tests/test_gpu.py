"""Every public function on a GPU, by `bench/gpu_check.py`: `pytest -m gpu`, part by part, two minutes each."""

import json
import re
from pathlib import Path

import processes
import pytest

BENCH = Path(__file__).parent.parent / "bench"
TABLE = re.search(r"^PARTS:.*?^\}", (BENCH / "gpu_check.py").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
PARTS = re.findall(r'"([\w-]+)": ', TABLE[0])
SECONDS = 600  # for one part


@pytest.mark.gpu
@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_the_library_on_a_gpu(part, tmp_path):
    done = processes.run(BENCH / "gpu_check.py", part, "--out", tmp_path, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "gpu_check.json").read_text())
    assert report["cases"] > 0
    assert report["failed"] == []


@pytest.mark.gpu
def test_calls_of_every_framework_on_a_gpu(tmp_path):
    done = processes.run(BENCH / "gpu_calls.py", "--checks", "--out", tmp_path, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "gpu_calls.json").read_text())
    assert report["cases"] > 0
    assert report["failed"] == []


@pytest.mark.parametrize("script", sorted(path.stem for path in BENCH.glob("gpu*.py")))
def test_a_script_without_arguments_or_gpu_says_how_it_is_called(script):
    path = BENCH / f"{script}.py"
    alone = "import runpy, sys; sys.modules['cupy'] = None; sys.path.insert(0, sys.argv.pop(1)); sys.argv.pop(0); "
    done = processes.run("-c", alone + "runpy.run_path(sys.argv[0], run_name='__main__')", BENCH, path)
    assert done.returncode == 1
    assert f"python bench/{script}.py" in done.stderr
    assert "Traceback" not in done.stderr
