"""Fixtures and settings shared by all tests."""

import pytest
from hypothesis import settings
from machines import MACHINES, MORE_MACHINES
from peers import State

# The same examples in every run: a test that fails today fails tomorrow.
settings.register_profile("torsor", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("torsor")


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
