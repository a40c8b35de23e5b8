"""The command `torsor fold`: torsion-angle dynamics of a protein from a file or a sequence."""

from __future__ import annotations

import argparse
import json
import re
import time
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from torsor.errors import ArgumentError
from torsor.files import check_writable, made
from torsor.later import Later
from torsor.molecule.forcefields import FORCE_FIELDS, SOLVENTS
from torsor.molecule.molecule import Molecule, Torsions, from_sequence, load
from torsor.molecule.output import frame_file
from torsor.molecule.prepare import FORMATS
from torsor.molecule.results import MolecularRun
from torsor.molecule.run import FIRST_STEP, HMC_STEP, anneal, hmc, langevin, tempering
from torsor.molecule.soft import ANGLE, LENGTH
from torsor.validate import number

style = Later("torsor.view.style")

METHODS = ("langevin", "hmc", "anneal")
FRAMES = 500  # per run, unless --every is given
DAY = 86400.0
SHORTER = {ANGLE: 0.25, LENGTH: 0.125}  # the share of the usual step with soft angles or lengths
PICOSECOND = 1e-3  # ps per fs, and ns per ps


def options_of(command: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add = command.add_argument
    add("molecule", metavar="FILE|SEQUENCE", help="a .pdb or .cif file (also .gz), or a sequence: NLYIQW, ACE-ALA-NME")
    add("--temperature", default="300", metavar="K", help="kelvin; several, 300,340,390: parallel tempering; with "
        "--method anneal, FROM,TO (default %(default)s)")  # fmt: skip
    add("--ns", type=float, default=0.1, help="how long (default %(default)s)")
    add("--method", choices=METHODS, default="langevin", help="(default %(default)s)")
    add(
        "--step",
        type=float,
        metavar="FS",
        help=f"in fs (default {FIRST_STEP / PICOSECOND:g}; hmc {HMC_STEP / PICOSECOND:g}; a quarter of it with soft "
        "angles, an eighth with soft lengths)",
    )
    add("--friction", type=float, default=1.0, metavar="1/PS", help="of Langevin dynamics (default %(default)s)")
    add("--every", type=float, metavar="PS", help=f"between frames (default: {FRAMES} frames in all)")
    add("--replicas", type=int, default=1, help="copies side by side (default %(default)s)")
    add("--forcefield", choices=[*FORCE_FIELDS], default="ff14SB", help="(default %(default)s)")
    add("--solvent", choices=SOLVENTS, default="obc", help="(default %(default)s)")
    add("--soft", default="phi psi omega chi", help="which torsions turn; with angle or length among the words, bonds "
        'bend or stretch, too (default "%(default)s")')  # fmt: skip
    add(
        "--gaps", choices=("refuse", "split"), default="refuse", help="where residues are missing (default %(default)s)"
    )
    add("--seed", type=int, default=0, help="of all that is drawn (default %(default)s)")
    add("--threads", type=int, help="of OpenMM (default: all cores)")
    add("--no-fixman", action="store_true", help="sample rigid bonds and angles as they are")
    add("--file", type=Path, metavar="RUN", help="record the run, so that it can be continued")
    add("--resume", action="store_true", help="go on with the run in --file")
    add(
        "--out",
        type=Path,
        action="append",
        metavar="FILE",
        help="write frames: .dcd, .xtc, .pdb, .cif; may be repeated",
    )
    add("--dcd", type=Path, action="append", dest="out", metavar="FILE", help="the same")
    add("--plot", type=Path, metavar="FILE", help="draw energies, temperature and sizes")
    add("--ramachandran", type=Path, metavar="FILE", help="draw phi against psi")
    add("--view", type=Path, metavar="PAGE.html", help="write a page that plays the frames")
    add("--json", action="store_true", help="print the outcome as JSON")


def run(options: argparse.Namespace, say: Any, bar: Any) -> int:
    """Run the command; `say` prints a line, `bar` makes a progress bar."""
    kelvin = _checked(options)
    molecule = _molecule(options)
    if not options.json:
        for line in molecule.report:
            say(f"  {line}")
    tree = molecule.minimised().torsions(options.soft)
    if not options.json:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(tree.kinds.items()))
        say(f"{molecule.name}: {len(molecule.structure)} atoms, {tree.model.n} bodies, soft: {kinds}")
    begin, pace = time.perf_counter(), Pace(options.ns)
    with bar("{task.fields[words]}") as progress:
        task = progress.add_task(molecule.name, total=None, words="preparing")

        def show(done: int, total: int) -> None:
            pace.reached(done, total)
            progress.update(task, completed=done, total=total, words=f"{done} of {total} frames{pace}")

        found = _moved(tree, kelvin, options, show)
    seconds, files = time.perf_counter() - begin, _written(found, options)
    _reported(found, options, seconds, pace, say)
    if files and not options.json:
        say("-> " + ", ".join(map(str, files)))
    return 0


class Pace:
    """The speed of a run, measured from its first frame: without compilation, and without frames of an earlier run."""

    def __init__(self, ns: float) -> None:
        self.ns, self.first, self.per_day = ns, (0, 0.0), float("nan")

    def reached(self, done: int, total: int) -> None:
        now = time.perf_counter()
        if not self.first[0]:
            self.first = done, now
        else:
            self.per_day = self.ns * (done - self.first[0]) / total / (now - self.first[1]) * DAY

    def __str__(self) -> str:
        return f", {self.per_day:.3g} ns/day" if isfinite(self.per_day) else ""


def _checked(options: argparse.Namespace) -> list[float]:
    """The temperatures. All errors in the arguments are reported before anything is computed."""
    for path in options.out or ():
        frame_file(path)
    for path in (options.plot, options.ramachandran):
        if path is not None:
            check_writable(style.picture(path))
    if options.view is not None:
        check_writable(options.view)
    number("--ns", options.ns, above=0)
    for name, value in (("--step", options.step), ("--every", options.every)):
        if value is not None:
            number(name, value, above=0)
    if options.resume and options.file is None:
        raise ArgumentError("--resume goes on with a recorded run: give its --file RUN")
    kelvin = _numbers(options.temperature)
    if options.method == "anneal":
        if len(kelvin) != 2:
            raise ArgumentError("--method anneal needs two temperatures: --temperature FROM,TO")
    elif len(kelvin) > 1 and (options.method != "langevin" or options.replicas > 1):
        raise ArgumentError("several temperatures mean parallel tempering: leave out --method and --replicas")
    for T in kelvin:
        number("--temperature", T, above=0)
    return kelvin


def _molecule(options: argparse.Namespace) -> Molecule:
    known = {"forcefield": options.forcefield, "solvent": options.solvent}
    if Path(options.molecule.removesuffix(".gz")).suffix.lower() in FORMATS:
        return load(options.molecule, gaps=options.gaps, **known)
    return from_sequence(options.molecule, **known)


def _numbers(words: str) -> list[float]:
    try:
        return [float(x) for x in re.split("[, ]+", words.strip())]
    except ValueError:
        raise ArgumentError(f"--temperature {words}: give kelvin, or several separated by commas") from None


def _moved(tree: Torsions, kelvin: list[float], options: argparse.Namespace, show: Any) -> MolecularRun:
    """Make the run that the options describe."""
    ps = options.ns / PICOSECOND
    usual = HMC_STEP if options.method == "hmc" else FIRST_STEP
    step = options.step * PICOSECOND if options.step else usual * min(SHORTER.get(kind, 1.0) for kind in tree.kinds)
    every = max(1, round((options.every or ps / FRAMES) / step))
    common = {"step": step, "seed": options.seed, "fixman": not options.no_fixman, "file": options.file,
              "resume": options.resume, "threads": options.threads, "progress": show}  # fmt: skip
    if options.method == "anneal":
        return anneal(tree, ps, *kelvin, every=every, friction=options.friction, replicas=options.replicas, **common)
    if len(kelvin) > 1:
        return tempering(tree, ps, kelvin, every=every, friction=options.friction, **common)
    common |= {"temperature": kelvin[0], "replicas": options.replicas}
    if options.method == "hmc":
        steps = 10
        return hmc(tree, max(1, round(ps / step / steps)), steps=steps, every=max(1, every // steps), **common)
    return langevin(tree, ps, every=every, friction=options.friction, **common)


def _written(found: MolecularRun, options: argparse.Namespace) -> list[Path]:
    """Write files of frames (of further replicas with their number), plots and the page; return their names."""
    frames = [
        (path.with_stem(f"{path.stem}-{replica + 1}") if replica else path, replica)
        for path in options.out or ()
        for replica in range(found.replicas)
    ]
    for path, replica in frames:
        found.save(path, replica)
    for path, what in ((options.plot, "overview"), (options.ramachandran, "ramachandran")):
        if path is not None:
            style.save(found.plot(what), path, found.about)
    if options.view is not None:
        found.view(options.view)
    others = (options.plot, options.ramachandran, options.view)
    return [*(path for path, _ in frames), *(Path(path) for path in others if path is not None)]


def _reported(found: MolecularRun, options: argparse.Namespace, seconds: float, pace: Pace, say: Any) -> None:
    half = len(found) // 2
    kelvin, energy = found.temperature[half:].mean(0), found.potential[half:].mean(0)
    speed = pace.per_day if isfinite(pace.per_day) else None
    words: dict[str, Any] = {
        "molecule": found.torsions.molecule.name, "ps": float(found.t[-1]), "frames": len(found),
        "seconds": round(seconds, 3), "ns_per_day": speed, "kelvin": np.round(kelvin, 1).tolist(),
        "potential_kJ_per_mol": np.round(energy, 1).tolist(), "counts": found.counts,
    }  # fmt: skip
    if options.json:
        print(json.dumps(words | made()))
        return
    say(
        f"{found.t[-1]:g} ps in {seconds:.3g} s{pace}, {len(found)} frames; second half: "
        f"{', '.join(f'{x:.0f}' for x in kelvin)} K, U {', '.join(f'{x:.0f}' for x in energy)} kJ/mol"
    )
    if failed := found.counts.get("failed steps"):
        steps = found.counts["steps"] * found.replicas
        say(f"{failed:g} of {steps:g} steps did not settle and were drawn anew: take a shorter --step if they are many")
    if "trajectories" in found.counts:
        say(f"{found.acceptance:.0%} of {found.counts['trajectories']:g} trajectories accepted")
    if "exchanges tried" in found.counts:
        say(f"{found.counts['exchanges']:g} of {found.counts['exchanges tried']:g} exchanges made")
