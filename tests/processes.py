"""New processes of Python with the torsor under test, each with a deadline."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import torsor

SOURCE = str(Path(torsor.__file__).parent.parent)  # installed or not
# of tests that send signals, limit resources or read devices
posix = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system")
DEADLINE = 240.0  # seconds for one process; the slowest take a few on a quiet machine


def environment(**changes: str) -> dict[str, str]:
    """This process's variables and these; the torsor under test is found before any other."""
    given = os.environ | changes
    path = [SOURCE, *filter(None, [given.get("PYTHONPATH")])]
    return {"COLUMNS": "120", "MPLBACKEND": "Agg"} | given | {"PYTHONPATH": os.pathsep.join(path)}


def start(*words: object, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen:
    """`python words...`, with pipes of text."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen([sys.executable, *map(str, words)], env=env or environment(), **pipes)


def call(*words: object, **options: Any) -> subprocess.CompletedProcess:
    """Any program to its end, whatever it exits with (unless with `check=True`)."""
    usual = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": DEADLINE, "check": False}
    return subprocess.run(list(map(str, words)), **(usual | options))


def run(*words: object, env: dict[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess:
    """`python words...` to its end, whatever it exits with."""
    return call(sys.executable, *words, env=env or environment(), **options)


def output(script: str, *arguments: object, env: dict[str, str] | None = None, **options: Any) -> str:
    """What a script prints; it has to end well."""
    done = run("-X", "faulthandler", "-c", textwrap.dedent(script), *arguments, env=env, **options)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def wait_until(happened: Callable[[], bool], process: subprocess.Popen, deadline: float = DEADLINE) -> None:
    """Wait until something that a process is to do has happened, or it has ended; it does not wait for ever."""
    end = time.monotonic() + deadline
    while not happened() and process.poll() is None:
        if time.monotonic() > end:
            raise TimeoutError(f"nothing happened within {deadline:g} s; the process said {killed(process)}")
        time.sleep(0.002)


def killed(process: subprocess.Popen) -> tuple[str, str]:
    """Kill a process; return what it had said and complained of."""
    process.kill()
    return process.communicate(timeout=DEADLINE)


def line_of(process: subprocess.Popen) -> str:
    """The next line that a process says; the empty line if it ends before, or takes too long and is killed."""
    timer = threading.Timer(DEADLINE, process.kill)
    timer.start()
    try:
        return process.stdout.readline()
    finally:
        timer.cancel()


def joined(threads: Iterable[threading.Thread]) -> None:
    """Wait for the end of threads, but not for ever."""
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
