"""Files and sequences of molecules, completed for a force field, with a report of all changes."""

from __future__ import annotations

import gzip
import io
import random
import re
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from torsor.errors import ArgumentError, ModelError
from torsor.files import read_whole
from torsor.molecule.forcefields import openmm
from torsor.molecule.structure import Array
from torsor.validate import chosen, file_path, word

LONGEST = 0.2  # nm: a peptide bond is 0.133 nm long; a longer one spans a gap
FORMATS = (".pdb", ".ent", ".cif", ".mmcif")
THREE = {
    "A": "ALA", "R": "ARG", "N": "ASN", "D": "ASP", "C": "CYS", "Q": "GLN", "E": "GLU", "G": "GLY", "H": "HIS",
    "I": "ILE", "L": "LEU", "K": "LYS", "M": "MET", "F": "PHE", "P": "PRO", "S": "SER", "T": "THR", "W": "TRP",
    "Y": "TYR", "V": "VAL",
}  # fmt: skip
ONE = {three: one for one, three in THREE.items()}
WATER = {"HOH", "WAT", "H2O", "DOD", "TIP", "TIP3", "TIP4", "SOL"}
HYDROGEN = ("H", "D")
LEFT_OUT = "left out "  # the start of a line of a report


def pdbfixer() -> Any:
    """The PDBFixer package, or an error that says how to get it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PDBFixer warns on import
            import pdbfixer
    except ImportError:
        raise ArgumentError("files of molecules need PDBFixer: pip install 'torsor[molecule]'") from None
    return pdbfixer


# Files -------------------------------------------------------------------------------------------------------------


def read(path: str | Path, field: Any, gaps: str = "refuse") -> tuple[Any, Array, list[str]]:
    """(topology, positions in nm, report) of a file: complete, with the hydrogens that the force field knows."""
    path = file_path("path", path)
    text, kind = _text(path)
    chosen("gaps", gaps, ("refuse", "split"))
    if kind == "pdb" and not re.search(r"^(ATOM|HETATM)", text, re.M):
        raise ModelError(f"{path} holds no atoms")
    if blamed := _blamed(text, kind):
        raise ModelError(f"{path}: {blamed}")
    report = _choices(text, kind)
    fixer = _opened(text, kind, path)
    if _complete(fixer, field) and not _gaps(fixer.topology, fixer.positions):
        report.append(f"taken as it is: {fixer.topology.getNumAtoms()} atoms")
        return fixer.topology, in_nm(fixer.positions), report
    _only_protein(fixer, field, report)
    if broken := _gaps(fixer.topology, fixer.positions):
        between = "; ".join(f"{a} and {b} ({d:.2f} nm)" for a, b, d in broken)
        if gaps == "refuse":
            raise ModelError(
                f"{path}: the chain is broken between {between}: residues are missing{_left_out(report)}. With "
                'gaps="split" the ends become chain ends; or build the missing residues with PDBFixer first'
            )
        fixer.topology = _split(fixer.topology, {a.index for a, _, _ in broken})
        report.append(f"chain broken between {between}: split there")
    return (*_mended(fixer, field, report), report)


def _text(path: Path) -> tuple[str, str]:
    """The text of a file, decompressed if needed, and "pdb" or "cif"."""
    name = path.name.lower()
    suffix = Path(name.removesuffix(".gz")).suffix
    if suffix not in FORMATS:
        raise ArgumentError(
            f"{path}: molecules are read from files named {', '.join(FORMATS)}, or with .gz behind that"
        )
    content = read_whole(path, ModelError)
    try:
        if name.endswith(".gz"):
            content = gzip.decompress(content)
        return content.decode("utf-8", errors="replace"), "cif" if "cif" in suffix else "pdb"
    except (OSError, EOFError) as error:
        raise ModelError(f"{path}: cannot be unpacked ({error}); the file is damaged, or no gzip file") from None


def _choices(text: str, kind: str) -> list[str]:
    """Lines that say which of several models and alternate locations were chosen."""
    models, alternates = _of_pdb(text) if kind == "pdb" else _of_cif(text)
    report = []
    if models > 1:
        report.append(f"model 1 of {models} taken")
    if len(alternates) > 1:
        report.append(f"alternate locations {', '.join(sorted(alternates))}: the first of each atom taken")
    return report


def _of_pdb(text: str) -> tuple[int, set[str]]:
    """The number of models, and the names of alternate locations."""
    atoms = (line[16:17].strip() for line in text.splitlines() if line.startswith(("ATOM", "HETATM")))
    return len(re.findall(r"^MODEL ", text, re.M)), set(atoms) - {""}


def _of_cif(text: str) -> tuple[int, set[str]]:
    """The same for mmCIF, by OpenMM's parser; nothing if it cannot be read: the caller then reports the error."""
    from openmm.app.internal.pdbx.reader import PdbxReader

    blocks: list[Any] = []
    try:
        PdbxReader.PdbxReader(io.StringIO(text)).read(blocks)
    except Exception:  # damaged text can raise anything
        return 0, set()
    atoms = blocks[0].getObj("atom_site") if blocks else None
    if atoms is None:
        return 0, set()
    names = atoms.getAttributeList()
    found = {
        name: {row[names.index(name)] for row in atoms.getRowList()} if name in names else set()
        for name in ("pdbx_PDB_model_num", "label_alt_id")
    }
    return len(found["pdbx_PDB_model_num"]), found["label_alt_id"] - {".", "?"}


def _opened(text: str, kind: str, path: Path) -> Any:
    """The file as PDBFixer reads it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = {"pdbfile" if kind == "pdb" else "pdbxfile": io.StringIO(text)}
            fixer = pdbfixer().PDBFixer(platform=_reference(), **source)
    except Exception as error:  # damaged text can raise anything
        raise ModelError(f"{path}: cannot be read as {kind}: {error}") from None
    if not fixer.topology.getNumAtoms():
        raise ModelError(f"{path} holds no atoms")
    return fixer


def _blamed(text: str, kind: str) -> str:
    """The first line of a PDB file that has no residue number or no coordinates."""
    for number, line in enumerate(text.splitlines() if kind == "pdb" else (), 1):
        if not line.startswith(("ATOM", "HETATM")):
            continue
        blamed = f"line {number}, atom {line[12:16].strip()} of {line[17:20].strip()}{line[22:26].strip()}, has no"
        if not line[22:26].strip():
            return f"{blamed} residue number (columns 23 to 26): number the residues"
        if not all(_is_number(line[k : k + 8]) for k in (30, 38, 46)):
            return f"{blamed} coordinates (columns 31 to 54): mend the line, or leave the atom out to have it placed"
    return ""


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _complete(fixer: Any, field: Any) -> bool:
    """Whether the force field accepts the file as it is."""
    if any(a.element is None or a.element.symbol == "D" for a in fixer.topology.atoms()):
        return False
    return not field.getUnmatchedResidues(fixer.topology) and not _water(fixer.topology)


def _water(topology: Any) -> bool:
    return any(r.name in WATER for r in topology.residues())


class _Site:
    """A residue as messages name it."""

    def __init__(self, residue: Any) -> None:
        self.index, self.words = residue.index, f"{residue.chain.id}:{residue.name}{residue.id}"

    def __str__(self) -> str:
        return self.words


def _gaps(topology: Any, positions: Any) -> list[tuple[_Site, _Site, float]]:
    """Peptide bonds that are too long or missing."""
    x, found = in_nm(positions), []
    for chain in topology.chains():
        for before, after in pairwise(chain.residues()):
            carbon = next((a.index for a in before.atoms() if a.name == "C"), None)
            nitrogen = next((a.index for a in after.atoms() if a.name == "N"), None)
            if carbon is not None and nitrogen is not None:
                length = float(np.linalg.norm(x[carbon] - x[nitrogen]))
                if length > LONGEST:
                    found.append((_Site(before), _Site(after), length))
    return found


def _split(topology: Any, after: set[int]) -> Any:
    """The same topology, with a new chain after some residues."""
    app = openmm().app
    made, atoms = app.Topology(), {}
    for chain in topology.chains():
        current = made.addChain(chain.id)
        for residue in chain.residues():
            copy = made.addResidue(residue.name, current, residue.id, residue.insertionCode)
            for atom in residue.atoms():
                atoms[atom] = made.addAtom(atom.name, atom.element, copy, atom.id)
            if residue.index in after:
                current = made.addChain(chain.id)
    apart = {(k, k + 1) for k in after}
    for a, b in topology.bonds():
        if tuple(sorted((a.residue.index, b.residue.index))) not in apart:
            made.addBond(atoms[a], atoms[b])
    return made


def _only_protein(fixer: Any, field: Any, report: list[str]) -> None:
    """Replace modified residues, and remove hydrogens and everything that is not protein."""
    fixer.findNonstandardResidues()
    if fixer.nonstandardResidues:
        report.append("replaced " + ", ".join(f"{_Site(r)} by {name}" for r, name in fixer.nonstandardResidues))
        fixer.replaceNonstandardResidues()
    unknown = [r for r in fixer.topology.residues() if r.name not in field._templates and r.name not in ONE]
    fixer.removeHeterogens(keepWater=False)
    if unknown:
        report.append(LEFT_OUT + ", ".join(_counted(unknown)))
    modeller = openmm().app.Modeller(fixer.topology, fixer.positions)
    light = [a for a in modeller.topology.atoms() if a.element is None or a.element.symbol in HYDROGEN]
    if len(light) == modeller.topology.getNumAtoms():
        raise ModelError("nothing is left of the file without water, ions and ligands: it holds no protein")
    if light:
        report.append(f"removed {len(light)} hydrogens")
        modeller.delete(light)
    fixer.topology, fixer.positions = modeller.topology, modeller.positions


def _counted(residues: list[Any]) -> list[str]:
    """A:HEM4, and 63 HOH if there are several."""
    of = {name: [r for r in residues if r.name == name] for name in sorted({r.name for r in residues})}
    return [str(_Site(some[0])) if len(some) == 1 else f"{len(some)} {name}" for name, some in of.items()]


def _left_out(report: list[str]) -> str:
    """What was left out, for the message about a gap that this may have caused."""
    return "".join(f" ({line}, unknown to the force field)" for line in report if line.startswith(LEFT_OUT))


def _mended(fixer: Any, field: Any, report: list[str]) -> tuple[Any, Array]:
    """Add missing heavy atoms and hydrogens."""
    fixer.missingResidues = {}
    fixer.findMissingAtoms()
    lost = [f"{_Site(r)}.{a.name}" for r, atoms in fixer.missingAtoms.items() for a in atoms]
    lost += [f"{_Site(r)}.{name}" for r, names in fixer.missingTerminals.items() for name in names]
    fixer.addMissingAtoms(seed=0)
    if lost:
        report.append(f"added {len(lost)} missing atoms: {', '.join(lost)}")
    modeller, placed = _with_hydrogens(fixer.topology, fixer.positions, field)
    report.append(f"placed {placed} hydrogens")
    return modeller.topology, in_nm(modeller.positions)


def _with_hydrogens(topology: Any, positions: Any, field: Any) -> tuple[Any, int]:
    """A Modeller with all hydrogens, and how many it placed; their positions are the same in every process.

    OpenMM starts from positions drawn by `random` and minimises; its CPU platform sums forces in the order of threads.
    """
    modeller = openmm().app.Modeller(topology, positions)
    before = random.getstate()
    random.seed(0)
    try:
        modeller.addHydrogens(field, platform=_reference())
    except ValueError as error:
        raise ModelError(f"hydrogens cannot be placed: {error}. Leave that residue out of the file") from None
    finally:
        random.setstate(before)
    return modeller, modeller.topology.getNumAtoms() - topology.getNumAtoms()


def _reference() -> Any:
    return openmm().Platform.getPlatformByName("Reference")


def in_nm(positions: Any) -> Array:
    """(n, 3) floats."""
    return np.array(positions.value_in_unit(openmm().unit.nanometer), float)


# Sequences ---------------------------------------------------------------------------------------------------------


def residues_of(sequence: str) -> list[str]:
    """Three-letter names: of "ACE-ALA-NME" or of one-letter codes "NLYIQW"."""
    word("sequence", sequence)
    names = (
        sequence.strip().upper().split("-") if "-" in sequence or sequence.upper() in ONE else list(sequence.upper())
    )
    names = [THREE.get(name, name) for name in names]
    known = [*ONE, "ACE", "NME"]
    for k, name in enumerate(names):
        caps = {"ACE": 0, "NME": len(names) - 1}
        if name not in known or caps.get(name, k) != k:
            raise ArgumentError(
                f"residue {k + 1} of the sequence is {name!r}; it may be one of {', '.join(ONE)}, with ACE first and "
                "NME last"
            )
    if not set(names) & set(ONE):
        raise ArgumentError(f"the sequence {sequence!r} has no amino acid")
    return names


def build(sequence: str, field: Any, phi: float = -60.0, psi: float = -45.0) -> tuple[Any, Array, list[str]]:
    """(topology, positions in nm, report) of a peptide, by default a helix; angles in degrees."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import PeptideBuilder
            from Bio.PDB import PDBIO
    except ImportError:
        raise ArgumentError("sequences need PeptideBuilder: pip install 'torsor[molecule]'") from None
    app, names = openmm().app, residues_of(sequence)
    codes = [ONE.get(name, "G") for name in names]  # caps are built as glycines, then truncated
    chain = PeptideBuilder.initialize_res(codes[0])
    for code in codes[1:]:
        PeptideBuilder.add_residue(chain, code, phi, psi)
    if names[-1] != "NME":
        PeptideBuilder.add_terminal_OXT(chain)
    for residue, name in zip(chain.get_residues(), names):
        if name == "ACE":
            residue.detach_child("N")
            residue["CA"].fullname = " CH3"
        elif name == "NME":
            for atom in ("C", "O"):
                residue.detach_child(atom)
            residue["CA"].fullname = " CH3"
        residue.resname = name
    text, writer = io.StringIO(), PDBIO()
    writer.set_structure(chain)
    writer.save(text)
    text.seek(0)
    pdb = app.PDBFile(text)
    modeller, placed = _with_hydrogens(pdb.topology, pdb.positions, field)
    report = [f"built {len(names)} residues at phi {phi:g}, psi {psi:g} degrees, placed {placed} hydrogens"]
    return modeller.topology, in_nm(modeller.positions), report
