"""Pictures: plots and the 3-D page.

`pytest -m browser` opens the page in a headless Chromium, where there is one.
"""

import base64
import json
import re
import shutil
import warnings
import zlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from html.parser import HTMLParser

import numpy as np
import processes
import pytest
from PIL import Image

import torsor as ts
from torsor import simulate, zoo
from torsor.files import made
from torsor.formats import binary
from torsor.lie import quaternion_to_matrix
from torsor.view import page as view_page
from torsor.view import tube as view_tube
from torsor.view.plots import axis_labels, panels_of, plot_trajectory
from torsor.view.tube import MOST_TRACES

# the page keeps poses in single precision
SINGLE = 1e-6


class Parts(HTMLParser):
    """The tags of a page, the ids in it, and the text of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.open, self.scripts, self.links = set(), [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids.add(attrs.get("id"))
        self.links += [attrs[key] for key in ("src", "href") if key in attrs]
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data


def inflated(script):
    return zlib.decompress(base64.b64decode(script)).decode()


def scene_of(page):
    """The data of a page."""
    return json.loads(inflated(Parts(page).scripts[0]))


@pytest.fixture(scope="module")
def falling():
    return simulate(zoo.stanford(), [0, np.pi / 2, 0, 0, 0, 0], duration=1.0)


def test_page_is_one_well_formed_file_that_needs_nothing_else(falling):
    parts = Parts(view_page.page(falling))
    assert parts.open == []
    assert parts.links == []
    _, three, player = parts.scripts
    three = inflated(three)
    assert "MIT License" in three
    assert "three.js authors" in three
    assert not re.search(r"\b(fetch|import)\s*\(", player)
    assert scene_of(view_page.page(falling))["bodies"][2]["joint"] == "prismatic"
    for name in re.findall(r'element\("(\w+)"\)', player):
        assert name in parts.ids or f'id="{name}"' in player
    for name in re.findall(r"THREE\.(\w+)", player):
        assert f"{name}:()=>" in three, name


def test_page_holds_the_poses_of_the_trajectory(falling):
    scene = view_page.scene(falling)
    poses = np.frombuffer(base64.b64decode(scene["poses"]), "<f4").reshape(len(scene["times"]), 6, 7)
    exact = ts.body_poses(falling.model, falling.at(scene["times"])[0])
    np.testing.assert_allclose(poses[..., :3], exact[..., :3, 3], rtol=SINGLE, atol=SINGLE)
    R = quaternion_to_matrix(poses[..., [6, 3, 4, 5]].astype(float))
    np.testing.assert_allclose(R, exact[..., :3, :3], rtol=0, atol=SINGLE)


def test_boxes_have_the_inertia_of_their_bodies():
    model = zoo.random_tree(5, 1)
    for i, body in enumerate(view_page.scene(simulate(model, duration=0.01))["bodies"]):
        (a, b, c), m = body["box"]["size"], model.mass[i]
        x, y, z, w = body["box"]["quaternion"]
        R = quaternion_to_matrix(np.array([w, x, y, z]))
        principal = m / 12 * np.diag([b**2 + c**2, a**2 + c**2, a**2 + b**2])
        np.testing.assert_allclose(R @ principal @ R.T, model.inertia[i], rtol=0, atol=1e-12)


def test_a_name_cannot_break_out_of_the_page():
    from dataclasses import replace

    model = replace(zoo.planar3(), name="</script><b>", names=["</script>", "b", "c"])
    parts = Parts(view_page.page(simulate(model, duration=0.01)))
    assert parts.open == []
    assert len(parts.scripts) == 3


@pytest.mark.parametrize("name", ["humanoid", "rope", "puma560"])
def test_every_kind_of_model_has_a_plot_and_a_page(name, tmp_path):
    model = zoo.get(name, 20) if name == "rope" else zoo.get(name)
    run = simulate(model, duration=0.05, rtol=1e-4)
    figure = run.plot(tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").stat().st_size > 10_000
    assert (
        len(figure.axes) == {"humanoid": 10, "rope": 2, "puma560": 3}[name]
    )  # of what moves, the last is the drift of the energy
    assert run.view(tmp_path / "page.html").exists()


def test_panels_carry_names_and_units(falling):
    figure = plot_trajectory(falling)
    turns, slides, energy, drift = figure.axes
    assert [turns.get_ylabel(), slides.get_ylabel()] == ["angle, deg", "position, m"]
    assert [text.get_text() for text in turns.texts] == ["link1", "link2", "link4", "link5", "link6"]
    assert [energy.get_ylabel(), drift.get_title(loc="left")[:12]] == ["energy, J", "change of th"]
    assert axis_labels(zoo.humanoid(), "q")[:8] == ["position, m"] * 3 + ["quaternion"] * 4 + ["angle, rad"]
    np.testing.assert_allclose(slides.lines[0].get_ydata()[-1], falling.q[-1, 2])
    np.testing.assert_allclose(turns.lines[1].get_ydata()[-1], np.degrees(falling.q[-1, 1]))
    plain = falling.plot(["q", "v", "tau"], joints=["link2", 3], units="rad")
    assert [ax.get_ylabel() for ax in plain.axes] == ["angle, rad", "angular velocity, rad/s", "torque, N m"]
    assert [text.get_text() for text in plain.axes[1].texts] == ["link2", "link4"]
    np.testing.assert_allclose(plain.axes[0].lines[0].get_ydata()[-1], falling.q[-1, 1])


def test_limbs_have_panels_of_their_own_and_the_base_is_apart():
    panels = panels_of(zoo.humanoid(), "q")
    assert [(panel.title, panel.unit) for panel in panels[:3]] == [
        ("base", "m"),
        ("base", "–"),
        ("waist … chest", "rad"),
    ]
    assert [len(panel.curves) for panel in panels] == [3, 4, 2, 2, 7, 6, 7, 6]
    assert [curve.name for curve in panels[0].curves] == ["x", "y", "z"]


def test_limits_that_a_joint_reaches_are_bands():
    arm = replace(zoo.planar3(), lower=np.full(3, -np.inf), upper=np.array([0.2, 3.0, np.inf]))
    run = simulate(arm, duration=0.5, rtol=1e-4)
    below, above = run.q.min(axis=0), run.q.max(axis=0)
    assert above[0] > 0.15 or below[0] < 0
    bands = list(plot_trajectory(run).axes[0].patches)
    assert len(bands) == int(above[0] > 0.2) + int(above[1] > 3.0)


@pytest.mark.parametrize(("joint", "start", "half"), [("revolute", 1e-16, 1.0), ("prismatic", 1e-18, 0.05)])
def test_rounding_errors_are_drawn_as_zero(joint, start, half):
    rail = ts.Model.chain(joint, n=1, axis=(1, 0, 0), mass=1.0, inertia=(1, 1, 1))
    assert plot_trajectory(simulate(rail, [start], duration=0.1)).axes[0].get_ylim() == (-half, half)
    assert plot_trajectory(simulate(rail, [1e-6], duration=0.1)).axes[0].get_ylim()[1] < half


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": ["speed"]}, "speed"), ({"joints": "nobody"}, "nobody"), ({"units": "gon"}, "units"),
        ({"theme": "blue"}, "theme"), ({"joints": [0.5]}, "joints must be"), ({"joints": []}, "names no joint"),
    ],
)  # fmt: skip
def test_a_plot_of_what_there_is_not_is_refused(falling, options, message):
    with pytest.raises(ts.TorsorError, match=message):
        falling.plot(**options)


def test_text_stays_text_and_dark_paper_is_dark(falling, tmp_path):
    falling.plot(tmp_path / "plot.svg", theme="dark")
    text = (tmp_path / "plot.svg").read_text()
    assert ">link4</text>" in text
    assert "angle, deg" in text
    assert "#12161d" in text


# ---- in a real browser ----

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--use-gl=angle", "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--window-size=900,600", "--virtual-time-budget=3000",
]  # fmt: skip


def browse(page, profile, *options):
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert chromium, "pytest -m browser needs Chromium"
    return processes.call(chromium, *FLAGS, f"--user-data-dir={profile}", *options, page, check=True).stdout


@pytest.mark.browser
def test_page_draws_and_seeks_in_chromium(falling, tmp_path):
    page = falling.view(tmp_path / "page.html").as_uri()
    dom = browse(f"{page}#t=0.5", tmp_path / "profile", "--dump-dom")
    assert 'data-state="ready"' in dom
    assert "0.500 / 1.00 s" in dom
    assert int(re.search(r'data-triangles="(\d+)"', dom)[1]) > 1000
    pictures = []
    for t in (0.0, 0.5):
        shot = tmp_path / f"{t}.png"
        browse(f"{page}#t={t}", tmp_path / "profile", f"--screenshot={shot}")
        pictures.append(shot.read_bytes())
    assert pictures[0] != pictures[1]


def points_of(scene):
    """The points (frames, points, 3) of a tube, decoded one by one as the page does."""
    tube, frames = scene["tube"], len(scene["times"])
    kind = {1: "<i1", 2: "<i2", 4: "<i4"}[tube["bytes"]]
    steps = np.frombuffer(zlib.decompress(base64.b64decode(tube["steps"])), kind).reshape(frames, 3, -1).astype(int)
    above = np.arange(-1, tube["points"] - 1)
    for i, parent in tube["parents"]:
        above[i] = parent
    starts = np.frombuffer(base64.b64decode(tube["roots"]), "<f4").reshape(frames, -1, 3)
    points, roots = np.empty((frames, tube["points"], 3)), 0
    for i, parent in enumerate(above.tolist()):
        if parent < 0:
            points[:, i], roots = starts[:, roots], roots + 1
        else:
            points[:, i] = points[:, parent] + tube["quantum"] * steps[:, :, i]
    assert roots == starts.shape[1]
    return points


def random_motion(model, rows=2, size=0.01):
    """Rows a second apart, at rest in each."""
    v = np.random.default_rng(0).normal(size=(rows, model.nv)) * size
    still = np.zeros((rows, model.nv))
    return ts.Trajectory(model, np.arange(float(rows)), model.integrate(model.neutral(), v), still, still, still)


@pytest.mark.parametrize("machine", ["rope", "tree"])
def test_very_many_bodies_are_a_tube_through_their_origins_and_tips(machine):
    model = ts.zoo.rope(3000) if machine == "rope" else ts.zoo.random_tree(400, 3)
    run = random_motion(model)
    scene = view_page.scene(run)
    points = points_of(scene)
    poses = ts.body_poses(model, run.at(scene["times"])[0])
    tips = np.flatnonzero(model.children_count == 0)
    assert points.shape == (31, model.n + len(tips), 3)
    half = scene["tube"]["quantum"] * (0.5 + 1e-6) + SINGLE * scene["reach"]
    assert np.abs(points[:, : model.n] - poses[..., :3, 3]).max() <= half
    ends = np.array([*view_page._tips(model).values()])
    far = poses[:, tips, :3, :3] @ ends[..., None]
    assert np.abs(points[:, model.n :] - poses[:, tips][..., :3, 3] - far[..., 0]).max() <= half
    traces = np.frombuffer(base64.b64decode(scene["traces"]), "<f4").reshape(31, -1, 3)
    assert traces.shape[1] <= MOST_TRACES
    assert np.abs(traces[:, 0] - points[:, model.n]).max() <= half
    assert len(json.dumps(scene)) < 1e6
    assert scene["withLinks"]


def test_frames_of_a_tube_are_left_out_until_it_fits(monkeypatch):
    run = random_motion(ts.zoo.rope(1000), rows=3)
    whole = view_page.scene(run)
    monkeypatch.setattr(view_tube, "MOST_BYTES", len(whole["tube"]["steps"]) // 5)
    thinned = view_page.scene(run)
    assert thinned["times"] == sorted({*whole["times"][::8], whole["times"][-1]})
    chosen = np.searchsorted(whole["times"], thinned["times"])
    np.testing.assert_array_equal(points_of(thinned), points_of(whole)[chosen])


@pytest.mark.browser
def test_a_tube_draws_and_seeks_in_chromium(tmp_path):
    page = random_motion(ts.zoo.rope(2000), size=0.05).view(tmp_path / "page.html").as_uri()
    dom = browse(f"{page}#t=0.5", tmp_path / "profile", "--dump-dom")
    assert 'data-state="ready"' in dom
    assert "0.500 / 1.00 s" in dom
    assert 500 <= int(re.search(r'data-cylinders="(\d+)"', dom)[1]) <= 2000
    assert int(re.search(r'data-triangles="(\d+)"', dom)[1]) > 5000


def test_plots_of_very_many_coordinates_are_thinned(tmp_path):
    model = ts.zoo.rope(3000)
    q = np.random.default_rng(0).normal(size=(3, model.nq)) * 0.01
    still = np.zeros((3, model.nv))
    run = ts.Trajectory(model, np.array([0.0, 0.5, 1.0]), q, still, still, still)
    figure = plot_trajectory(run, tmp_path / "rope.png")
    assert len(figure.axes[0].lines) == 300
    assert "300 of 6000" in figure.axes[0].get_title(loc="left")


def test_every_file_says_who_wrote_it_when_and_with_which_options(tmp_path):
    """Plots, pages, models, C files and tables: in comments and metadata."""
    run = simulate(zoo.point_chain(2), [0.4, 0.3], duration=0.1, rtol=1e-5)
    for suffix in (".png", ".pdf", ".svg", ".jpg"):
        run.plot(tmp_path / f"plot{suffix}")
        content = (tmp_path / f"plot{suffix}").read_bytes()
        assert f"torsor {ts.__version__}".encode() in content
        assert b"1e-05" in content
        assert made()["date"][:10].encode() in content
    with Image.open(tmp_path / "plot.png") as picture:
        assert signed(picture.info["Description"])["rtol"] == 1e-5
    page = run.view(tmp_path / "page.html").read_text()
    assert f'<meta name="generator" content="torsor {ts.__version__}">' in page
    about = signed(unescape(re.search(r'<meta name="description" content="(.*?)">', page)[1]))
    assert (about["method"], about["rtol"]) == ("auto", 1e-5)
    run.to_csv(tmp_path / "run.csv")
    assert signed(last_line(tmp_path / "run.csv", "# ", ""))["rtol"] == 1e-5
    for suffix, begin, end in ((".toml", "# ", ""), (".urdf", "<!-- ", " -->"), (".xml", "<!-- ", " -->")):
        path = tmp_path / f"arm{suffix}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ts.ModelWarning)  # what a format does not say
            ts.save(zoo.panda(), path)
        signed(last_line(path, begin, end))
        assert ts.load(path).n == zoo.panda().n
    arm = replace(zoo.point_chain(2), name="a */ b /* c ??/")  # hostile in comments of C
    for path in ts.export(arm, ts.forward_dynamics, tmp_path / "c", name="fall"):
        about = signed(last_line(path, "/* ", " */"))
        assert about["key"] == arm.key
        assert (about["dtype"], about["external"], about["method"], about["seed"]) == ("float64", False, "auto", 0)


def last_line(path, begin, end):
    """The last line of a text, which is a comment."""
    last = path.read_text().splitlines()[-1]
    assert last.startswith(begin)
    assert last.endswith(end)
    return last.removeprefix(begin).removesuffix(end)


def signed(words):
    """What a file says of its making."""
    found = json.loads(words)
    assert found["torsor"] == ts.__version__
    assert abs(datetime.now(UTC) - datetime.fromisoformat(found["date"])) < timedelta(minutes=5)
    return found


def test_a_binary_model_says_who_wrote_it_and_is_the_same_model(tmp_path):
    """A file without these words, as earlier versions wrote it, gives the same model; its key knows nothing of them."""
    arm, path = zoo.panda(), tmp_path / "arm.torsor"
    ts.save(arm, path)
    content = path.read_bytes()
    start = len(binary.MAGIC) + binary.LENGTH
    size = int.from_bytes(content[len(binary.MAGIC) : start], "little")
    assert signed(json.dumps(json.loads(content[start : start + size])["made"]))
    assert binary.decode(binary.encode(arm), "old") == ts.load(path) == arm
    assert ts.load(path).key == arm.key


@pytest.mark.parametrize("short", [0.1, 1e-3, 1.0])
def test_links_are_drawn_thin_beside_their_length_and_the_machine(short):
    """0.15 of the median length from joint to joint, from 1/300 to 1/40 of what the machine reaches; the place of the
    first joint on the base is no link.
    """
    p, com = [[1.0, 0, 0], [short, 0, 0], [2 * short, 0, 0]], np.zeros((3, 3))
    scene = view_page.live_scene(ts.Model.chain(p=p, mass=1, com=com, inertia=(1, 1, 1))).data
    reach = 1 + 3 * short
    assert scene["reach"] == pytest.approx(reach)
    assert scene["radius"] == pytest.approx(min(reach / 40, max(0.15 * 1.5 * short, reach / 300)))
