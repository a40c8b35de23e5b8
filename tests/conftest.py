"""Fixtures and settings shared by all tests."""

import os

# One worker per core, and one thread per worker: threads of BLAS that wait for each other took a tenth of all time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy and SciPy are imported

import gc
from contextlib import contextmanager

import pytest
from hypothesis import settings
from machines import MACHINES, MORE_MACHINES
from peers import State
from peers.installed import ALL, MISSING, WHOLE, missing_peer

collect_ignore = [file for file, name in WHOLE.items() if name in MISSING]

# The same examples in every run: a test that fails today fails tomorrow.
settings.register_profile("torsor", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("torsor")


SECONDS = 600  # for one default test, on a busy machine: the slowest take some ten seconds on a quiet one
SECONDS_SLOW = 7200


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """A deadline for every test and a worker for every core, unless the command line says otherwise.

    They are no options in pyproject.toml: without pytest-timeout or pytest-xdist these would be errors.
    """
    options = config.option
    if getattr(options, "timeout", 0) is None:
        options.timeout = SECONDS if options.markexpr.startswith("not slow") else SECONDS_SLOW
    if getattr(options, "numprocesses", 0) is None and not hasattr(config, "workerinput"):
        options.numprocesses = "auto"
        options.dist = "worksteal" if options.dist == "no" else options.dist


def pytest_configure(config):
    """The default tests compile thousands of programs once each: quickly, which changes no bit of what they compute
    (`test_every_level_of_optimisation_gives_the_same_bits`).  All other selections test what users get.
    """
    if config.getoption("-m").startswith("not slow"):
        os.environ.setdefault("TORSOR_OPTIMIZE", "0")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of tests that are `thinned(n)`, every n-th case is a default test, and the others are slow ones."""
    seen = {}
    for item in items:
        if mark := item.get_closest_marker("thinned"):
            place = item.path, item.originalname
            seen[place] = seen.get(place, -1) + 1
            if seen[place] % mark.args[0]:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """What was imported stays: the collector, which took a tenth of all time, need not look through it again and again,
    nor for cycles after every few hundred of the millions of nodes of tapes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def pytest_sessionfinish(session):
    """With TORSOR_SKIP=never a run in which a test was skipped has failed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if ALL and reporter and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    """What a test needs that is not installed skips it, wherever it was asked for (`peers/installed.py`)."""
    with _without_peers():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with _without_peers():
        return (yield)


@contextmanager
def _without_peers():
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        if (name := missing_peer(error)) is None:
            raise
        pytest.skip(f"needs {name}")


@pytest.fixture(
    scope="session",
    params=[*MACHINES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_MACHINES)],
)
def machine(request):
    """Each of the shared machines in turn: one object for all tests, so that it is compiled for once."""
    return (MACHINES | MORE_MACHINES)[request.param]()


@pytest.fixture(scope="session")
def state(machine):
    """A random state of the machine: q, v, v_dot, tau, external wrenches and a body."""
    return State.random(machine, seed=6)
