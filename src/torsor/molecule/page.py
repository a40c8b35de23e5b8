"""A page that plays frames of a molecule in a browser: a single file that needs no network.

It consists of molecule.html, molecule.js and the three.js that the pages of machines use. Frames are 16-bit integers;
the rounding error is at most 1/32767 of the reach of the molecule.
"""

from __future__ import annotations

import base64
import json
import re
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torsor.errors import ArgumentError
from torsor.files import made, write_whole
from torsor.molecule.structure import Array, Structure

if TYPE_CHECKING:
    from torsor.molecule.molecule import Molecule

COLORS = {"C": "#4d4d4d", "N": "#0072b2", "O": "#d62728", "S": "#e6b800", "H": "#cfcfcf", "P": "#d55e00"}
OTHER = "#cc79a7"
MOST_NUMBERS = 12_000_000  # in all frames: a page of 32 MB
QUANTA = 32767
# After P-SEA (G. Labesse & al., Comput. Appl. Biosci. 13, 1997): distances of CA atoms i to i + 2, 3, 4 (nm), the angle
# at i + 1 and the dihedral (degrees), each with its tolerance; the tolerance of the angle is doubled.
HELIX = {"distances": ((0.55, 0.05), (0.53, 0.05), (0.64, 0.06)), "angle": (89, 12), "dihedral": (50, 20)}
STRAND = {"distances": ((0.67, 0.06), (0.99, 0.09), (1.24, 0.11)), "angle": (124, 14), "dihedral": (-170, 45)}
SHORTEST = {"H": 4, "E": 3}  # residues in a row


def write_page(path: str | Path, molecule: Molecule, frames: Array, t: Array, title: str | None = None) -> Path:
    """Write the page of (frames, n, 3) nm at the times t (ps)."""
    text = json.dumps(scene(molecule, frames, t), separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "__TITLE__": escape(title or molecule.name), "__GENERATOR__": f"torsor {made()['torsor']}", "__DATA__": text,
        "__THREE__": (files("torsor.view") / "three.min.js").read_text("utf-8"),
        "__PLAYER__": (files("torsor.molecule") / "molecule.js").read_text("utf-8"),
    }  # fmt: skip
    page = (files("torsor.molecule") / "molecule.html").read_text("utf-8")
    # one pass for all placeholders: inserted text is not searched again, whatever it contains
    content = re.sub("|".join(parts), lambda found: parts[found[0]], page)
    return write_whole(path, content.encode("utf-8"))


def scene(molecule: Molecule, frames: Array, t: Array) -> dict[str, Any]:
    """The data of the page; every k-th frame if there are too many. Frames are superposed on the first."""
    if not len(frames) or not np.isfinite(frames).all():
        raise ArgumentError("the page needs frames, and finite positions")
    apart = -(-frames.size // MOST_NUMBERS)
    frames, t, s = on_first(frames[::apart]), t[::apart], molecule.structure
    reach = float(np.abs(frames).max())
    numbers = np.rint(frames * (QUANTA / reach)).astype("<i2")
    axes = np.linalg.svd(frames[0], full_matrices=False)[2]  # the view is along its thinnest axis
    radius = float(np.linalg.norm(frames[0], axis=1).max())
    chains = ribbons(s, frames[0])
    return {
        "frames": base64.b64encode(numbers.tobytes()).decode(), "quantum": reach / QUANTA,
        "times": [round(float(x), 6) for x in t],
        "colors": [COLORS.get(element, OTHER) for element in s.elements],
        "light": [int(element == "H") for element in s.elements], "bonds": s.bonds.tolist(), "chains": chains,
        "reach": reach, "eye": (3.6 * radius * axes[2]).tolist(), "up": axes[1].tolist(),
        "words": f"{len(s)} atoms, {len(s.residues)} residues, {molecule.mass.sum():.5g} amu",
    }  # fmt: skip


def on_first(frames: Array) -> Array:
    """Frames superposed on the first, whose centre is the origin (Kabsch)."""
    x = frames - frames.mean(1, keepdims=True)
    U, _, Vt = np.linalg.svd(np.swapaxes(x, -1, -2) @ x[0])
    U[..., 2] *= np.sign(np.linalg.det(U @ Vt))[:, None]
    return x @ (U @ Vt)


def ribbons(structure: Structure, x: Array) -> list[dict[str, Any]]:
    """For every chain of residues with N, CA, C and O: CA, C and O, and H, E or C for each residue."""
    bonded = {tuple(bond) for bond in structure.bonds.tolist()}
    chains: list[dict[str, Any]] = []
    last = -1
    for residue in structure.residues:
        atoms = residue.atoms
        if not {"N", "CA", "C", "O"} <= atoms.keys():
            last = -1
            continue
        if last < 0 or tuple(sorted((last, atoms["N"]))) not in bonded:
            chains.append({"ca": [], "c": [], "o": []})
        for name, known in (("ca", "CA"), ("c", "C"), ("o", "O")):
            chains[-1][name].append(atoms[known])
        last = atoms["C"]
    chains = [chain for chain in chains if len(chain["ca"]) > 1]
    return [chain | {"kind": secondary_structure(x[chain["ca"]])} for chain in chains]


def secondary_structure(ca: Array) -> str:
    """H (helix), E (strand) or C for every residue, from the CA atoms (m, 3) nm."""
    kinds = np.full(len(ca), "C")
    for kind, rule in (("E", STRAND), ("H", HELIX)):
        found = np.zeros(len(ca), bool)
        for k in range(len(ca) - 4):
            if _fits(ca[k : k + 5], rule):
                found[k + 1 : k + 4] = True
        edges = np.flatnonzero(np.diff(np.concatenate([[False], found, [False]]).astype(int)))
        for begin, end in zip(edges[::2], edges[1::2]):
            if end - begin >= SHORTEST[kind]:
                kinds[begin:end] = kind
    return "".join(kinds)


def _fits(five: Array, rule: dict[str, Any]) -> bool:
    """Whether five CA atoms fit a rule."""
    distances = zip((np.linalg.norm(five[k] - five[0]) for k in (2, 3, 4)), rule["distances"])
    near = all(abs(d - x) <= slack for d, (x, slack) in distances)
    a, b, c = five[1] - five[0], five[2] - five[1], five[3] - five[2]
    angle = np.degrees(np.arccos(np.clip(-(a @ b) / (np.linalg.norm(a) * np.linalg.norm(b)), -1, 1)))
    one, two = np.cross(a, b), np.cross(b, c)
    dihedral = np.degrees(np.arctan2((a @ two) * np.linalg.norm(b), one @ two))
    off = (dihedral - rule["dihedral"][0] + 180) % 360 - 180
    return near and abs(off) <= rule["dihedral"][1] and abs(angle - rule["angle"][0]) <= 2 * rule["angle"][1]
