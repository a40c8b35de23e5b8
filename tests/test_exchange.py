"""Replica exchange: members keep the distributions of their temperatures, and nothing depends on chunks."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from scipy.stats import kstest

import torsor as ts
from torsor import ArgumentError
from torsor.ensembles import Exchange, Tempering

# An inverted pendulum on a spring: U = cos q + q^2 / 4 has two wells, 0.42 apart from the top between them.
STIFFNESS = 0.5
PENDULUM = ts.Model.chain(
    "revolute", axis=(0, 1, 0), mass=1.0, com=(0, 0, 1.0), inertia=(1e-3, 1e-3, 1e-3), gravity=(0, 0, -1.0),
    stiffness=STIFFNESS, n=1,
)  # fmt: skip
WELL = 1.895
TEMPERATURES = (0.05, 0.1, 0.2, 0.4)  # the coldest needs exp(8) attempts to cross
UNLIKELY = 1e-3  # of a Kolmogorov-Smirnov test, for one of four temperatures


def potential(machines, q):
    return ts.potential_energy(machines, q) + STIFFNESS / 2 * q[..., 0] ** 2


RULE = Tempering(TEMPERATURES, potential)


def study(path, rule=RULE, n=800, **options):
    options = {"times": [240.0], "q0": -WELL, "chunk": n, "rtol": 1e-4} | options
    return ts.ensemble(PENDULUM, {}, n=n, store=path, exchange=Exchange(2.0, len(TEMPERATURES), rule), **options)


def distribution(T):
    """The distribution function of q at a temperature, by quadrature."""
    x = np.linspace(-8, 8, 20_001)
    density = np.exp(-(np.cos(x) + STIFFNESS / 2 * x**2) / T)
    total = np.cumsum(density)
    return lambda q: np.interp(q, x, total / total[-1])


def test_every_temperature_has_its_distribution(tmp_path):
    """All members start in one well; only by exchanges do the cold ones get into the other."""
    q = study(tmp_path / "runs.zarr")["q"][:, -1, 0].reshape(-1, len(TEMPERATURES))
    for own, T in zip(q.T, TEMPERATURES):
        assert kstest(own, distribution(T)).pvalue > UNLIKELY
    alone = study(tmp_path / "alone.zarr", fresh_velocities)["q"][:, -1, 0].reshape(-1, len(TEMPERATURES))
    assert (alone[:, 0] > 0).mean() < 0.02
    assert 0.4 < (q[:, 0] > 0).mean() < 0.6


def fresh_velocities(replicas):
    """Tempering without exchanges."""
    return replicas.q, RULE._velocities(replicas, replicas.q, np.array(TEMPERATURES))


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_nothing_depends_on_chunks_or_workers(tmp_path, method):
    options = {"n": 24, "times": [0.0, 0.5, 4.0, 5.0], "method": method, "step": 0.01, "keep": ("q", "v")}
    whole = study(tmp_path / "whole.zarr", chunk=24, **options)
    parts = study(tmp_path / "parts.zarr", chunk=7, **options)  # rounded up to whole ladders
    assert parts.group.variables["q"].chunk == 8
    for name in ("q", "v"):
        assert np.array_equal(whole[name], parts[name])
        assert np.array_equal(getattr(whole.member(13), name), whole[name][13])
    assert np.array_equal(whole["q"][:, 0], np.full((24, 1), -WELL))
    (tmp_path / "parts.zarr" / "status" / "c" / "1").unlink()
    assert np.array_equal(study(tmp_path / "parts.zarr", chunk=7, **options)["q"], whole["q"])
    with pytest.raises(ts.StoreError, match="another study"):
        study(tmp_path / "whole.zarr", Tempering((1, 2, 3, 4), potential), chunk=24, **options)


@pytest.mark.slow
def test_a_pool_gives_the_same(tmp_path):
    options = {"n": 24, "times": [5.0], "chunk": 8}
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        found = study(tmp_path / "runs.zarr", executor=pool, **options)
    assert np.array_equal(found["q"], study(tmp_path / "alone.zarr", **options)["q"])


def test_velocities_have_the_covariance_of_their_temperature(tmp_path):
    """T M^-1 of an arm whose members differ; 400 ladders give it to about 7 %."""
    arm = ts.zoo.general_arm(3, 1)
    seen = []

    def rule(replicas):
        q, v = Tempering((0.5, 2.0))(replicas)
        seen.append((replicas, q, v))
        return q, v

    vary = {"*.density": ts.Uniform(low=0.5, high=2.0)}
    ts.ensemble(arm, vary, n=800, times=[0.002], exchange=Exchange(0.001, 2, rule), store=tmp_path / "runs.zarr",
                chunk=800)  # fmt: skip
    replicas, q, v = seen[-1]
    M = ts.mass_matrix(replicas.machines, q)
    energy = np.einsum("lsi,lsij,lsj->ls", v, M, v).mean(axis=0) / 3  # 3 T on average
    assert np.abs(energy / [0.5, 2.0] - 1).max() < 4 * np.sqrt(2 / (3 * 400))


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_forces_see_one_clock(tmp_path, method):
    """A table goes on from exchange to exchange: a rule that changes nothing changes nothing."""
    table = ts.Table([0.0, 0.5, 1.0], [[0.0], [1.0], [0.0]])
    times, options = [0.2, 0.9, 1.0], {"method": method, "step": 0.01, "forces": table, "rtol": 1e-9}
    found, alone = (
        ts.ensemble(PENDULUM, {}, n=4, times=times, store=tmp_path / name, **options, **more)["q"]
        for name, more in (("a", {"exchange": Exchange(0.3, 2, lambda replicas: (replicas.q, replicas.v))}), ("b", {}))
    )
    assert np.abs(found - alone).max() < 1e-7
    assert np.abs(alone[:, -1]).min() > 0.01


def test_a_member_that_fails_is_not_exchanged(tmp_path):
    arm, v0 = ts.zoo.general_arm(3, 1), np.zeros((8, 3))
    v0[2] = 1e200
    exchange = Exchange(0.02, 4, Tempering(TEMPERATURES))
    found = ts.ensemble(arm, {"v0": v0}, n=8, times=[0.01, 0.1], store=tmp_path / "runs.zarr", exchange=exchange)
    assert list(found.failed) == [2]
    assert np.isfinite(np.delete(found["q"], 2, axis=0)).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Exchange(0.0, 4, RULE), "interval"),
        (lambda: Exchange(1.0, 1, RULE), "size"),
        (lambda: Exchange(1.0, 4, "swap"), "rule"),
        (lambda: Tempering((1.0, -1.0)), "positive"),
        (lambda: study("unused", n=7), "not ladders of 4"),
        (lambda: study("unused", n=8, method="rk4", step=0.3, times=[3.0]), "multiple of step"),
        (lambda: ts.ensemble(PENDULUM, {}, n=4, duration=1.0, store="unused", exchange=3), "must be an Exchange"),
    ],
    ids=["interval", "size", "rule", "temperatures", "n", "step", "kind"],
)
def test_wrong_exchanges_are_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda replicas: replicas.q, "must return q and v"),
        (lambda replicas: (replicas.q[:, :2], replicas.v), "gives q"),
        (Tempering((1.0, 2.0)), "2 temperatures for ladders of 4"),
    ],
    ids=["one", "shape", "temperatures"],
)
def test_rules_that_do_not_fit_are_refused(tmp_path, rule, message):
    with pytest.raises(ArgumentError, match=message):
        study(tmp_path / "runs.zarr", rule, n=8, times=[5.0])


def test_springs_whose_energy_is_left_out_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="the joints have springs"):
        study(tmp_path / "runs.zarr", Tempering(TEMPERATURES), n=4, times=[4.0])
