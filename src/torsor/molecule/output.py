"""Frames of a molecule in other formats: PDB, mmCIF, DCD, XTC, MDTraj, MDAnalysis."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torsor.errors import ArgumentError
from torsor.files import check_writable, write_whole
from torsor.molecule.forcefields import openmm
from torsor.molecule.structure import Array
from torsor.validate import file_path

if TYPE_CHECKING:
    from torsor.molecule.molecule import Molecule

FORMATS = (".pdb", ".cif", ".dcd", ".xtc")
ANGSTROMS = 10.0  # per nm


def save_frames(path: str | Path, molecule: Molecule, frames: Array, t: Array) -> None:
    """Write (frames, n, 3) nm at the times t (ps) to a file; its suffix sets the format."""
    path = frame_file(path)
    kind = path.suffix.lower()
    _need_topology(molecule)
    if kind in (".pdb", ".cif"):
        write_whole(path, _text(kind, molecule, frames).encode())
    else:
        _binary(path, kind, molecule, frames, t)


def frame_file(path: str | Path) -> Path:
    """A file that frames can be written to, or an error that says why not, before a long run."""
    path = file_path("path", path)
    if path.suffix.lower() not in FORMATS:
        raise ArgumentError(f"{path}: frames are written to files named {', '.join(FORMATS)}")
    check_writable(path)
    return path


def _need_topology(molecule: Molecule) -> None:
    if molecule.topology is None:
        raise ArgumentError(f"{molecule.name} has no OpenMM topology, so there is no file of it: use positions")


def _text(kind: str, molecule: Molecule, frames: Array) -> str:
    app, out = openmm().app, io.StringIO()
    writer = app.PDBFile if kind == ".pdb" else app.PDBxFile
    writer.writeHeader(molecule.topology, out)
    for k, x in enumerate(frames):
        number = None if len(frames) == 1 and kind == ".pdb" else k + 1
        writer.writeModel(molecule.topology, _quantity(x), out, number, keepIds=True)
    if kind == ".pdb":
        writer.writeFooter(molecule.topology, out)
    return out.getvalue()


def _binary(path: Path, kind: str, molecule: Molecule, frames: Array, t: Array) -> None:
    """Write by OpenMM's writers to a temporary file beside `path`, then rename it."""
    app, part = openmm().app, path.with_name(f".{path.stem}.part{path.suffix}")
    spacing = float(t[1] - t[0]) if len(t) > 1 and t[1] > t[0] else 1.0
    try:
        if kind == ".dcd":
            with open(part, "wb") as file:
                writer = app.DCDFile(file, molecule.topology, spacing, 0, 1)
                for x in frames:
                    writer.writeModel(_quantity(x))
        else:
            part.unlink(missing_ok=True)
            writer = app.XTCFile(str(part), molecule.topology, spacing, 0, 1)
            for x in frames:
                writer.writeModel(_quantity(x))
        part.replace(path)
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        part.unlink(missing_ok=True)


def _quantity(x: Array) -> Any:
    return x * openmm().unit.nanometer


def to_mdtraj(molecule: Molecule, frames: Array, t: Array) -> Any:
    """An `mdtraj.Trajectory`."""
    _need_topology(molecule)
    try:
        import mdtraj
    except ImportError:
        raise ArgumentError("this needs MDTraj: pip install mdtraj") from None
    return mdtraj.Trajectory(frames, mdtraj.Topology.from_openmm(molecule.topology), time=t)


def to_mdanalysis(molecule: Molecule, frames: Array, t: Array) -> Any:
    """An `MDAnalysis.Universe` with the frames in memory, in angstrom."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MDAnalysis warns on import
            import MDAnalysis
    except ImportError:
        raise ArgumentError("this needs MDAnalysis: pip install MDAnalysis") from None
    s = molecule.structure
    chains = [r.chain for r in s.residues]
    segments = sorted(set(chains), key=chains.index)
    universe = MDAnalysis.Universe.empty(
        len(s), n_residues=len(s.residues), n_segments=len(segments), atom_resindex=s.residue,
        residue_segindex=[segments.index(c) for c in chains], trajectory=True,
    )  # fmt: skip
    for name, values in (
        ("name", list(s.names)), ("type", list(s.elements)), ("element", list(s.elements)), ("mass", molecule.mass),
        ("resname", [r.name for r in s.residues]), ("resid", np.arange(1, len(s.residues) + 1)),
        ("segid", [c or "A" for c in segments]),
    ):  # fmt: skip
        universe.add_TopologyAttr(name, values)
    universe.add_TopologyAttr("bonds", [tuple(bond) for bond in s.bonds.tolist()])
    spacing = float(t[1] - t[0]) if len(t) > 1 else 1.0
    universe.load_new((frames * ANGSTROMS).astype(np.float32), order="fac", dt=spacing)
    return universe
