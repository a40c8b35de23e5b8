"""Files made to hang a reader, to make it read other files, or to raise an error that is not torsor's."""

import json
import time
import warnings

import numpy as np
import processes
import pytest

import torsor as ts
from torsor.cli import main
from torsor.errors import ModelError, TorsorError
from torsor.files import read_whole
from torsor.formats import binary, toml
from torsor.formats.xml import Document

SECONDS = 5.0  # for files of which a quadratic reader takes minutes; a linear one takes milliseconds
LINK = '<link name="{}"><inertial><mass>1</mass></inertial></link>'
SDF = '<sdf version="1.9"><model name="m">{}</model></sdf>'
HINGE = '<joint name="j" type="revolute"><parent>{}</parent><child>{}</child><axis><xyz>0 0 1</xyz></axis></joint>'
URDF = (
    '<robot name="r"><link name="a"/><link name="b">{}</link>'
    '<joint name="j" type="continuous"><parent link="a"/><child link="b"/></joint></robot>'
)
BODY = '<body><joint axis="0 1 0"/><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/></body>'
MJCF = "<mujoco>{}<worldbody>" + BODY + "</worldbody></mujoco>"


def load(path, text, **options):
    path.write_text(text) if isinstance(text, str) else path.write_bytes(text)
    began = time.perf_counter()
    try:
        return ts.load(path, repair="quiet", **options)
    finally:
        assert time.perf_counter() - began < SECONDS


# ---- hangs ----


@pytest.mark.parametrize(
    "frames",
    [
        '<frame name="f" attached_to="g"/><frame name="g" attached_to="f"/>',
        '<frame name="f" attached_to="f"/>',
        '<frame name="f" attached_to="g"/><frame name="g" attached_to="h"/><frame name="h" attached_to="g"/>',
    ],
    ids=["two", "itself", "beyond"],
)
def test_sdf_frames_attached_in_a_cycle_are_refused(tmp_path, frames):
    with pytest.raises(ModelError, match=r"(attached|relative) to itself"):
        load(tmp_path / "f.sdf", SDF.format(LINK.format("a") + LINK.format("b") + frames + HINGE.format("a", "f")))
    with pytest.raises(ModelError, match=r"(attached|relative) to itself"):
        load(tmp_path / "f.sdf", SDF.format(LINK.format("a") + LINK.format("b") + frames + HINGE.format("a", "b")))


def test_an_sdf_frame_called_like_its_link_is_left_out(tmp_path):
    frames = '<frame name="b" attached_to="b"><pose>1 0 0 0 0 0</pose></frame>'
    model = load(tmp_path / "f.sdf", SDF.format(LINK.format("a") + LINK.format("b") + frames + HINGE.format("a", "b")))
    assert any("a link or joint is called so" in note.text for note in model.notes)
    assert not np.any(model.frame("b").p)


@pytest.mark.parametrize("word", ["relative_to", "attached_to"])
def test_long_chains_of_sdf_frames_take_linear_time(tmp_path, word):
    n = 20_000
    pose = '<pose relative_to="f{}">0 0 1 0 0 0</pose>' if word == "relative_to" else "<pose>0 0 1 0 0 0</pose>"
    frames = "".join(f'<frame name="f{k}" attached_to="f{k + 1}">{pose.format(k + 1)}</frame>' for k in range(n))
    last = f'<frame name="f{n}" attached_to="b"/>'
    text = SDF.format(LINK.format("a") + LINK.format("b") + frames + last + HINGE.format("a", "f0"))
    model = load(tmp_path / "f.sdf", text)
    assert model.frame("f0").p[2] == n


@pytest.mark.parametrize("tail", ["<!--" * 20_000, "<!-- a -- " * 20_000, "<![CDATA[" * 20_000, "<a b='" * 20_000])
def test_comments_and_quotes_left_open_take_linear_time(tmp_path, tail):
    with pytest.raises(ModelError, match="not well-formed"):
        load(tmp_path / "c.urdf", URDF.format("").replace("</robot>", tail))


def test_many_faults_take_linear_time(tmp_path):
    """Each names its line."""
    visual = '<visual><geometry><box size="a"/></geometry></visual>\n'
    model = load(tmp_path / "v.urdf", URDF.format("\n" + visual * 20_000))
    assert any("v.urdf:20001: <box>" in note.text for note in model.notes)


def test_open_quotes_of_toml_take_linear_time():
    began = time.perf_counter()
    with pytest.raises(ModelError):
        toml.read('a = "' + '\\"' * 50_000 + "." * 200, "x.toml")
    assert time.perf_counter() - began < SECONDS


def test_files_too_large_are_refused_unread(tmp_path):
    for suffix in (".urdf", ".toml", ".sdf", ".xml", ".torsor"):
        path = tmp_path / f"sparse{suffix}"
        with open(path, "wb") as file:
            file.write(binary.MAGIC if suffix == ".torsor" else b"<")
            file.truncate(2**43)
        with pytest.raises(ModelError, match="too large"):
            ts.load(path)
    with pytest.raises(TorsorError, match="too large"):
        read_whole("/dev/zero")


@processes.posix
def test_a_study_of_a_device_is_refused(tmp_path, capsys):
    assert main(["sweep", "/dev/zero", "--store", str(tmp_path / "runs.zarr")]) != 0
    assert "too large" in capsys.readouterr().err


# ---- other people's files ----


@pytest.fixture
def home(tmp_path):
    """A folder so deep that its top is out of bounds, with a file of somebody else at the top."""
    folder = tmp_path.joinpath(*"abcdefgh")
    folder.mkdir(parents=True)
    (tmp_path / "secret.xml").write_text(f"<mujocoinclude>{BODY}</mujocoinclude>")
    (tmp_path / "secret.stl").write_text("solid secret")
    (tmp_path / "secret.png").write_bytes(b"\x89PNG")
    return folder


UP = "../" * 8


@pytest.mark.parametrize(
    "text",
    [
        MJCF.format(f'<compiler meshdir="{UP}"/><asset><mesh file="secret.stl"/></asset>'),
        MJCF.format('<compiler meshdir="{top}"/><asset><mesh file="secret.stl"/></asset>'),
        MJCF.format('<compiler assetdir="{top}" strippath="true"/><asset><mesh file="{home}/secret.stl"/></asset>'),
        MJCF.format('<asset><mesh file="link.stl"/></asset>'),
        MJCF.format('<compiler meshdir="folder"/><asset><mesh file="secret.stl"/></asset>'),
        MJCF.format(f'<asset><texture type="cube" fileright="{UP}secret.png"/></asset>'),
        MJCF.format(f'<asset><hfield name="h" file="{UP}secret.png" size="1 1 1 1"/></asset>'),
        MJCF.format(f'<asset><skin name="s" file="{UP}secret.skn"/></asset>'),
        MJCF.format(f'<asset><model name="m" file="{UP}secret.xml"/></asset>'),
        MJCF.format(f'<include file="{UP}secret.xml"/>'),
        MJCF.format('<include file="link.xml"/>'),
        MJCF.format('<include file="part.xml"/>'),
        # what looks like a comment is none inside a tag, for MuJoCo
        MJCF.format(f'<custom><text name="<!--" data="x"/></custom><include file="{UP}secret.xml"/>'
                    '<custom><text name="y" data="-->"/></custom><!-- a -- b -->'),
    ],
    ids=["above", "absolute", "strip", "link", "folder", "texture", "hfield", "skin", "model", "include", "linked",
         "nested", "comment"],
)  # fmt: skip
def test_mjcf_opens_nothing_outside_its_folders(home, text):
    top = home.parents[7]
    (home / "link.stl").symlink_to(top / "secret.stl")
    (home / "link.xml").symlink_to(top / "secret.xml")
    (home / "folder").symlink_to(top)
    (home / "part.xml").write_text(f'<mujocoinclude><include file="{UP}secret.xml"/></mujocoinclude>')
    with pytest.raises(ModelError, match=r"lies outside the folders|not well-formed"):
        load(home / "m.xml", text.replace("{top}", str(top)).replace("{home}", str(home)))


def test_mjcf_is_utf_8(home):
    """What another encoding hides from the check, MuJoCo reads as it stands, and the other way round."""
    hidden = f'<include file="{UP}secret.xml"/>'.encode("utf-7")
    text = b'<?xml version="1.0" encoding="utf-7"?>' + MJCF.encode().replace(b"{}", hidden)
    with pytest.raises(ModelError):
        load(home / "m.xml", text)
    plain = f'<include file="{UP}secret.xml"/>'
    commented = '<?xml version="1.0" encoding="utf-7"?>' + MJCF.format(f"<!--+AC0-->{plain}<!-- -->")
    with pytest.raises(ModelError, match=r"lies outside|not well-formed"):
        load(home / "m.xml", commented)
    with pytest.raises(ModelError, match="MuJoCo reads UTF-8"):
        load(home / "m.xml", MJCF.format("<!-- \u00e9 -->").encode("latin-1"))
    with pytest.raises(ModelError, match=r"MuJoCo reads UTF-8 without \$\(optenv"):
        load(home / "m.xml", MJCF.format('<asset><mesh file="$(optenv A x.stl)"/></asset>'))


def test_a_link_to_a_file_elsewhere_is_no_mesh(home):
    (home / "link.stl").symlink_to(home.parents[7] / "secret.stl")
    (home / "own.stl").write_text("solid own")
    (home / "inside.stl").symlink_to(home / "own.stl")
    meshes = "".join(
        f'<visual><geometry><mesh filename="{name}.stl"/></geometry></visual>' for name in ("link", "inside")
    )
    model = load(home / "m.urdf", URDF.format(meshes))
    assert [visual.file for visual in model.visuals] == ["link.stl", str(home / "inside.stl")]
    model = load(home / "m.urdf", URDF.format(meshes), folders=[home.parents[7]])
    assert model.visuals[0].file == str(home / "link.stl")


def test_packages_of_ros_may_link_to_their_sources(home, monkeypatch):
    source = home.parents[7] / "source"
    source.mkdir()
    (source / "m.stl").write_text("solid")
    share = home.parents[7] / "install" / "share"
    share.mkdir(parents=True)
    (share / "pack").symlink_to(source)
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(share.parent))
    mesh = '<visual><geometry><mesh filename="package://pack/m.stl"/></geometry></visual>'
    assert load(home / "m.urdf", URDF.format(mesh)).visuals[0].file == str(share / "pack" / "m.stl")


# ---- raw errors ----


@pytest.mark.parametrize("encoding", ["undefined", "utf-7", "base64", "rot13", "idna", "utf-16", "nonsense", "latin-1"])
def test_the_declared_encoding_does_not_matter(tmp_path, encoding):
    text = f'<?xml version="1.0" encoding="{encoding}"?>\n' + URDF.format("")
    assert load(tmp_path / "e.urdf", text).n == 1
    model = load(tmp_path / "e.urdf", (text + "<!-- by Andr\u00e9 -->").encode("latin-1"))
    assert any("read as Latin-1" in note.text for note in model.notes)
    with pytest.raises(ModelError, match="not well-formed"):
        load(tmp_path / "e.urdf", text.encode("utf-16"))


@pytest.mark.parametrize("size", ["1e308", "1e300", "1e160", "1e-308", "5e-324"])
@pytest.mark.parametrize("suffix", [".urdf", ".sdf"])
def test_huge_and_tiny_masses_and_inertias_load_or_are_refused(tmp_path, size, suffix):
    moments = ("ixx", "iyy", "izz", "ixy", "ixz", "iyz")
    turn = '<origin rpy="1 2 3"/>'
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mass, moment, off in ((size, size, "0"), ("1", size, "0"), (size, "1", "0"), ("1", size, size)):
            if suffix == ".urdf":
                numbers = " ".join(f'{key}="{moment if k < 3 else off}"' for k, key in enumerate(moments))
                link = f'<inertial>{turn}<mass value="{mass}"/><inertia {numbers}/></inertial>'
                text = URDF.format(link)
            else:
                numbers = "".join(f"<{key}>{moment if k < 3 else off}</{key}>" for k, key in enumerate(moments))
                link = f"<inertial><pose>0 0 0 1 2 3</pose><mass>{mass}</mass><inertia>{numbers}</inertia></inertial>"
                text = SDF.format(f'<link name="a"/><link name="b">{link}</link>' + HINGE.format("a", "b"))
            try:
                model = load(tmp_path / f"h{suffix}", text)
            except ModelError:
                continue
            assert np.isfinite(model.inertia).all()


def test_a_screw_without_pitch_is_refused(tmp_path):
    screw = (
        HINGE.format("a", "b").replace("revolute", "screw").replace("<axis>", "<thread_pitch>0</thread_pitch><axis>")
    )
    with pytest.raises(ModelError, match="its <thread_pitch> is zero"):
        load(tmp_path / "s.sdf", SDF.format(LINK.format("a") + LINK.format("b") + screw.format("a", "b")))


@pytest.mark.parametrize("records", [
    {"actuators": [{"name": "a", "gear": [[0]]}]}, {"actuators": [{"name": "a", "gear": [[0.5, 1.0]]}]},
    {"actuators": [{"name": 3, "gear": [[0, 1.0]]}]}, {"actuators": [{"name": "a", "gear": 3}]},
    {"visuals": [{"body": 0.0, "shape": "box", "size": [1, 1, 1]}]},
    {"visuals": [{"body": 0, "shape": [], "size": [1, 1, 1]}]}, {"visuals": [{"body": 0, "shape": "box", "size": 1}]},
    {"visuals": [{"body": 0, "shape": "mesh", "size": [1, 1, 1], "file": 3}]},
    {"keyframes": {"k": ["x"]}}, {"keyframes": [1]}, {"keyframes": {"k": None}}, {"notes": [1]},
    {"notes": [{"kind": 1}]},
    {"couplings": [[]]}, {"couplings": [{"follower": "a", "leader": 0}]}, {"couplings": 3}, {"joint_names": 3},
    {"joint_names": [3]}, {"notes": [{"kind": "\ud800", "where": "", "text": ""}]}, {"nonsense": 1},
])  # fmt: skip
def test_extras_that_do_not_fit_are_refused(records):
    content = binary.encode(ts.Model.chain(mass=1, inertia=(1, 1, 1)))
    start = len(binary.MAGIC) + binary.LENGTH
    length = int.from_bytes(content[len(binary.MAGIC) : start], "little")
    words = json.loads(content[start : start + length])
    words["extras"] |= records
    text = json.dumps(words).encode()
    whole = binary.MAGIC + len(text).to_bytes(binary.LENGTH, "little") + text + content[start + length : -binary.DIGEST]
    with pytest.raises(ModelError, match=r"x\.torsor: "):
        binary.decode(whole + binary._digest(whole), "x.torsor")


def test_an_unknown_frame_says_what_there_is():
    with pytest.raises(TorsorError, match="no body or frame named 'tool'; it has 'flange', 'link1', 'link2'"):
        ts.zoo.panda().frame("tool")
    with pytest.raises(TorsorError, match=r"it has 'left_palm', 'left_sole'.* more"):
        ts.zoo.humanoid().frame("left_thumb")


def test_text_between_tags_is_what_both_parsers_take_it_for():
    """Comments are taken out only where they are comments."""
    document = Document(b"<robot><!-- a -- b --><a b='x > <!-- y'/></robot>".replace(b"<!-- y", b"&lt;!-- y"), "x")
    assert document.root[0].get("b") == "x > <!-- y"
    with pytest.raises(ModelError, match="not well-formed"):
        Document(b"<robot><a b='<!--'/><c d='-->'/></robot>", "x")
