"""Whole folders of robot files against the engines people use: `TORSOR_ROBOTS=folder pytest -m robots -s`.

Every file below the folder is tried.  URDF: M, bias, accelerations and poses of all links are those of Pinocchio, on a
fixed and on a free base; MJCF: those of MuJoCo.  Whatever does not load is refused with an error that names the file.
"""

import hashlib
import os
import re
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from peers.robot_files import MuJoCoFile, PinocchioFile, random_state

import torsor as ts
from torsor.errors import TorsorError

pytestmark = [pytest.mark.robots, pytest.mark.filterwarnings("ignore::torsor.errors.ModelWarning")]

# Relative to the largest number of its kind; peer and torsor sum in different orders.
AGREEMENT = 1e-10
# Accelerations are compared where M, scaled to a unit diagonal, is better conditioned than this; its digits are lost.
CONDITION = 1e6
MOST_FREEDOMS = 2000  # compared; dense matrices beyond take minutes


def files(*suffixes):
    """The distinct files with these suffixes."""
    folder = os.environ.get("TORSOR_ROBOTS")
    assert folder, "TORSOR_ROBOTS must name a folder of robot files"
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.suffix in suffixes and path.is_file():
            found.setdefault(hashlib.sha256(path.read_bytes()).hexdigest(), path)
    return list(found.values())


def differences(model, peer, seed=0):
    """The largest relative differences of M, bias, accelerations and poses."""
    rng = np.random.default_rng(seed)
    state = random_state(peer.kinds, rng)
    M, bias, links = peer.terms(state, model.joint_names)
    M = M + np.diag(model.armature * peer.without_rotors)  # Pinocchio reads no rotors
    q, v = (np.concatenate([state[name][k] for name in model.joint_names]) for k in (0, 1))
    model = model.uncoupled()
    loops = dict(specialised=False)  # compiled once for all models of the same joint types
    mass = max(float(model.mass.sum()), 1e-8)
    found = {
        "M": relative(ts.compile(model, ts.mass_matrix, **loops)(q), M, 1e-12),
        "bias": relative(ts.compile(model, ts.bias_forces, **loops)(q, v), bias, 1e-4 * max(mass, np.abs(M).max())),
        "poses": misplaced(model, ts.compile(model, ts.body_poses, **loops)(q), links),
    }
    scale = np.sqrt(np.abs(np.diag(M)))
    if (scale > 0).all() and (condition := np.linalg.cond(M / np.outer(scale, scale))) < CONDITION:
        tau = rng.normal(size=model.nv)
        exact = np.linalg.solve(M / np.outer(scale, scale), (tau - bias) / scale) / scale
        found["qdd"] = relative(ts.compile(model, ts.forward_dynamics, **loops)(q, v, tau), exact, 1e-12) / condition
    return found


def relative(ours, theirs, floor):
    return float(np.abs(ours - theirs).max() / max(floor, np.abs(theirs).max()))


def misplaced(model, poses, links):
    worst = 0.0
    for name, (p, R) in links.items():
        body, Rf, pf = model.frame(name)
        T = poses[body] if body >= 0 else np.eye(4)
        far = max(1.0, float(np.abs(p).max()))
        worst = max(worst, np.abs(T[:3, :3] @ pf + T[:3, 3] - p).max() / far, np.abs(T[:3, :3] @ Rf - R).max())
    return worst


def compared(paths, base, open_peer, agreement=AGREEMENT):
    """Counts, refusals and disagreements over the files."""
    counts, refused, wrong = Counter(), [], []
    for path in paths:
        counts["files"] += 1
        peer = open_peer(path, base)
        counts["peer"] += peer is not None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = ts.load(path, base=base)
        except TorsorError as error:
            moves = peer is not None and bool(peer.nv)
            refused.append((moves or str(path) not in str(error), str(error)))
            continue
        counts["torsor"] += 1
        if peer is None or peer.nv > MOST_FREEDOMS:
            continue
        found = differences(model, peer)
        counts["compared"] += 1
        counts["accelerations"] += "qdd" in found
        if max(found.values()) > agreement:
            wrong.append((str(path), found, [str(note) for note in model.notes if note.kind == "repair"]))
    print(f"\n{base}: {dict(counts)}")
    for _, message in refused:
        print("  refused:", message)
    return counts, [message for known, message in refused if known], wrong


def pinocchio(path, base):
    # urdfdom drops an inertia that does not name all six moments; torsor takes those left out as zero
    if any(b"ixy" not in found for found in re.findall(rb"<inertia\s[^>]*>", path.read_bytes())):
        return None
    try:
        return PinocchioFile(path, base)
    except (ValueError, RuntimeError, IndexError):
        return None


@pytest.mark.parametrize("base", ["fixed", "free"])
def test_urdf_files_agree_with_pinocchio(base):
    counts, refused, wrong = compared(files(".urdf"), base, pinocchio)
    assert counts["torsor"] > 0
    assert refused == []
    assert wrong == []


def mujoco(path, base):
    try:
        peer = MuJoCoFile(path)
    except (ValueError, RuntimeError, TypeError):
        return None
    # the armature of a tendon is part of MuJoCo's M; torsor has no tendons, and says so
    return None if peer.tendon_armature else peer


def test_mjcf_files_agree_with_mujoco():
    paths = [path for path in files(".xml", ".mjcf") if b"<mujoco" in path.read_bytes()[:100_000]]
    counts, refused, wrong = compared(paths, None, mujoco, agreement=1e-9)
    assert counts["torsor"] > 0
    assert [message for message in refused if "nothing moves" not in message] == []
    assert wrong == []


def test_sdf_and_xacro_files_load_or_are_refused():
    for suffix, options in ((".sdf", {}), (".xacro", {"xacro": True})):
        counts = Counter()
        for path in files(suffix):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    model = ts.load(path, **options)
                counts["loaded"] += 1
                assert np.isfinite(ts.compile(model, ts.mass_matrix, specialised=False)(model.neutral())).all()
            except TorsorError as error:
                counts["refused"] += 1
                print("  refused:", error)
        print(f"{suffix}: {dict(counts)}")
        assert counts["loaded"] > 0
