"""What notebooks show: models and studies as tables, trajectories as the page that plays them, figures as pictures."""

import html
import re
import warnings
import zlib
from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest

import torsor as ts
from torsor.view.page import page, postures

ROOT = Path(__file__).parent.parent
MOST_BYTES = 300_000  # of an inline page, without its data


def test_a_model_is_a_table():
    shown = ts.zoo.cart_pole(damping=0.5)._repr_html_()
    assert shown.count("<tr>") == 3
    assert "<th>damping</th>" in shown
    assert "<td>cart</td><td>base</td><td>prismatic</td><td>1</td><td>0.5</td>" in shown
    assert "60 more bodies" in ts.zoo.rope(100)._repr_html_()


def test_a_trajectory_is_the_page_that_plays_it():
    run = ts.simulate(ts.zoo.pendulum(), [1.0], duration=0.1, dt=0.05)
    shown = run._repr_html_()
    assert len(shown) < MOST_BYTES
    packed = re.search(r'atob\("([^"]+)"\)', html.unescape(shown))[1]
    assert zlib.decompress(b64decode(packed)).decode() == page(run)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_rollout_is_shown_as_words(batch):
    start = np.zeros((*batch, 1))
    assert ts.rollout(ts.zoo.pendulum(), start, start, steps=2, step=0.01)._repr_html_() is None


def test_figures_show_themselves():
    run = ts.simulate(ts.zoo.pendulum(), [1.0], duration=0.1)
    assert run.plot()._repr_png_().startswith(b"\x89PNG")


def test_a_study_is_a_table(tmp_path):
    study = ts.ensemble(
        ts.zoo.pendulum(), {"v0": ts.Uniform(low=0.0, high=1.0)}, n=3, duration=0.1, store=tmp_path / "runs.zarr"
    )
    assert "3 members, 3 done, 0 failed" in study._repr_html_()
    assert "<td>v0</td><td>drawn</td><td>(3, 1)</td>" in study._repr_html_()
    assert repr(study).endswith("runs.zarr, 3 members, 100% done, 0 failed)")


def test_a_builder_says_what_it_has():
    builder = ts.Model.builder("arm")
    assert repr(builder) == "Builder('arm': no bodies)"
    builder.add("upper", mass=1.0).frame("hand", "upper")
    assert repr(builder) == "Builder('arm': upper (revolute); frames hand)"


def test_results_say_what_they_hold():
    arm, rng = ts.zoo.planar3(), np.random.default_rng(0)
    q, v, qdd = rng.normal(size=(3, 30, 3))
    found = ts.identify(arm, q, v, qdd, ts.inverse_dynamics(arm, q, v, qdd))
    said = [
        (ts.mass_factor(arm, q), "MassFactor(planar3, states (30,))"),
        (ts.operational_space(arm, q[0], ["link3", "link2"]), "OperationalSpace(planar3, link3, link2: 12 components)"),
        (ts.Points(arm, [0, 2], np.zeros((2, 3))), "Points(2 on planar3)"),
        (found, f"Identification(planar3, {len(found.values)} of {len(found.values)} combinations excited)"),
        (found.base, f"BaseParameters({len(found.values)} combinations of 30)"),
        (ts.Simulation(arm), "Simulation(planar3, auto, at t = 0 s)"),
        (ts.vjp(ts.mass_matrix), "vjp(mass_matrix)"),
        (ts.jvp(ts.forward_dynamics, "q"), "jvp(forward_dynamics, q)"),
    ]
    assert [repr(x) for x, _ in said] == [words for _, words in said]


def test_several_configurations_are_shown_one_after_the_other(tmp_path):
    arm = ts.zoo.planar3()
    assert arm.view([0.1, 0.2, 0.3], tmp_path / "one.html").stat().st_size > 10_000
    assert arm.view(np.zeros((5, 3)), tmp_path / "five.html").stat().st_size > 10_000
    shown = postures(arm, np.zeros((5, 3)))
    np.testing.assert_array_equal(shown.t, [0.0, 0.25, 0.5, 0.75, 1.0])
    with pytest.raises(ts.ArgumentError, match=r"q must have shape \(3,\) or \(m, 3\)"):
        arm.view(q=np.zeros(4))


def test_view_shows_machines_motions_and_studies(tmp_path):
    page, robot = tmp_path / "page.html", ROOT / "tests" / "robots" / "features.urdf"
    run = ts.simulate(ts.zoo.pendulum(), duration=0.1)
    for shown in (ts.zoo.planar3(), "panda", robot, str(robot), run):
        with warnings.catch_warnings(action="ignore", category=ts.ModelWarning):
            assert ts.view(shown, path=page) == page
        assert page.stat().st_size > 10_000
        page.unlink()
    assert ts.view("planar3", [0.1, 0.2, 0.3], page).exists()
    for bad in (3, np.zeros(3), ts.Model, None):
        with pytest.raises(ts.ArgumentError, match="a model, a trajectory or a study can be shown, not"):
            ts.view(bad)
    with pytest.raises(ts.ArgumentError, match=r"the file of the page is path="):
        ts.zoo.planar3().view("page.html")


def test_names_of_other_libraries_are_answered():
    for name, ours in (("aba", "forward_dynamics"), ("rnea", "inverse_dynamics"), ("crba", "mass_matrix")):
        with pytest.raises(AttributeError, match=f"torsor has no {name}: here it is torsor.{ours}"):
            getattr(ts, name)
