"""The command `torsor`.

Exit codes: 0 success; 1 an error or a failed check (the reason is on stderr); 2 a wrong command line; 130 interrupted
(a recorded run can be resumed).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from io import TextIOWrapper
from itertools import groupby, zip_longest
from math import pi
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.tree import Tree

import torsor
from torsor import zoo
from torsor.backends import cache as store
from torsor.dynamics.exports import LANGUAGES
from torsor.dynamics.functions import ALGORITHMS
from torsor.dynamics.programs import OptionalInputs
from torsor.errors import ArgumentError, ModelWarning, TorsorError
from torsor.files import check_writable, made, short
from torsor.formats import FORMATS, ROBOTS, load
from torsor.formats.robots import BASES, PREFIX
from torsor.later import Later
from torsor.logs import LOGGER, JsonLines, event, failure
from torsor.model import Model
from torsor.model.freedoms import nondefault
from torsor.model.joints import JOINTS, RADIAN
from torsor.molecule.command import options_of as options_of_fold
from torsor.molecule.command import run as run_fold
from torsor.motion.coordinates import names_of
from torsor.motion.forces import ComputedTorque, Constant, Friction, Table
from torsor.motion.integrators import METHODS, method_named
from torsor.motion.motion import DYNAMICS
from torsor.motion.quantities import columns_of
from torsor.motion.recording import read
from torsor.motion.references import Cycloid
from torsor.motion.simulation import Simulation, within_limits
from torsor.motion.trajectory import Trajectory
from torsor.validate import chosen, integer, number

pages, shows = Later("torsor.view.page"), Later("torsor.view.showcase")

FAILED, WRONG, INTERRUPTED = 1, 2, 130
MOST_BRANCHES, FEW_BRANCHES = 60, 8  # bodies shown in a tree; of a larger model, only the first few
MOST_WORDS = 12  # names in a line
LONGEST_WORD = 1000  # characters read of a line to see whether it begins with a number
FEWEST_DIGITS = 16  # of `torsor papers --digits`
UNCUT = 1000  # columns of tables that are not for a terminal
MOST_FREEDOMS_OF_A_MATRIX = 3000  # of a matrix whose n^2 entries are counted

# The options, as typed, that a run needs again when it is resumed.
ASKED = ("q0", "v0", "torque", "track", "feedforward", "viscous", "coulomb", "no_gravity", "free")
PROBLEM = ("model", "base", "duration", *ASKED)  # if none of `ASKED` is given: a showcase
LATER = {"free": True, "feedforward": 0.0}  # options that older recordings do not have
# Options that the recording itself stores.
INTEGRATION = ("method", "dynamics", "rtol", "atol", "step", "dt", "every", "keep", "file")

# Where the free falls of the zoo begin, if not in the neutral configuration (Saha 2001, Table II).
STARTS = {"stanford": "0,90deg,0,0,0,0"}

OF_DRIVES = ("effort", "speed")  # of which 0 says that a file does not know them
AT_JOINTS = ("damping", "friction", "stiffness", "stop_stiffness")  # what a model says acts at its joints
# Of the greatest kinetic energy.  Errors per step of 1e-6, the default, add up to some 1e-5 in ten seconds of a falling
# arm, and to 1e-3 in 1500.
DRIFT = 1e-3
out, err = (Console(stderr=stderr, highlight=False, emoji=False) for stderr in (False, True))  # rope:-1: is text


def main(arguments: Sequence[str] | None = None) -> int:
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that cannot show a letter shows its code
            stream.reconfigure(errors="backslashreplace")
    if not words:
        parser().print_help(sys.stderr)
        return WRONG
    options = parser().parse_args(_with_negative_lists(words))
    for key in [key for key, value in vars(options).items() if value == [] and key != "names"]:
        parser().error(f"argument {_option(key)}: -- is no value")  # argparse makes an empty list of it
    options.words = words
    try:
        with _logged(getattr(options, "log", None), words):
            return options.run(options)
    except TorsorError as error:
        return _refused(error)
    except BrokenPipeError:  # the reader closed our output; the interpreter must not write to it any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        return _refused(error if error.filename else f"the output cannot be written ({error.strerror or error})")
    except MemoryError as error:
        return _refused(f"there is not enough memory ({error or 'for this model'})")
    except KeyboardInterrupt:
        err.print("[yellow]interrupted[/]")
        return INTERRUPTED


def _refused(reason: object) -> int:
    err.print(f"[bold red]torsor:[/] {escape(str(reason))}", soft_wrap=True)
    return FAILED


@contextmanager
def _logged(path: Path | None, words: Sequence[str]) -> Iterator[None]:
    """Append events and errors to a file, as JSON lines."""
    if path is None:
        yield
        return
    check_writable(path)
    handler, before = LogFile(path), LOGGER.level
    handler.setFormatter(JsonLines())
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    try:
        event("command begins", arguments=words, **made())
        yield
        event("command ends")
    except BaseException as error:
        failure("command fails", reason=f"{type(error).__name__}: {error}")
        raise
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(before)
        with suppress(OSError):
            handler.close()
    if handler.reason:
        raise ArgumentError(f"{path}: the log is not complete ({handler.reason})")


class LogFile(logging.FileHandler):
    """A log whose write errors, as on a full disk, do not stop the run; `reason` reports them at the end."""

    reason: BaseException | None = None

    def handleError(self, record: logging.LogRecord) -> None:
        self.reason = self.reason or sys.exc_info()[1]


# ---- the command line ----

LISTS = ("--q0", "--v0", "--torque", "--track")
BROWSER = "the browser"  # in place of a path
LOCAL = "a local cluster"  # in place of an address


def _with_negative_lists(arguments: Sequence[str]) -> list[str]:
    """Tie lists that begin with a minus sign to their options; argparse would read them as options."""
    tied: list[str] = []
    for word in arguments:
        if tied and tied[-1] in LISTS and re.match(r"-([0-9.]|inf|nan)", word):
            tied[-1] += f"={word}"
        else:
            tied.append(word)
    return tied


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="torsor", description="Dynamics of articulated chains: simulate, look, compare.")
    top.add_argument("--version", action="version", version=f"torsor {torsor.__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _simulate_parser(commands)
    info_parser = _add(commands, "info", info, "what a model is: bodies, joints, mass, remarks, operation counts")
    info_parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    info_parser.add_argument("--base", choices=BASES, help=BASE_HELP)
    papers_parser = _add(commands, "papers", papers, "reproduce the published tables and figures")
    papers_parser.add_argument("names", nargs="*", metavar="PAPER", help="only papers whose name contains this")
    papers_parser.add_argument(
        "--digits", type=int, metavar="N", help="only identities, with N digits on random machines"
    )
    form = papers_parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the rows as JSON")
    form.add_argument("--csv", action="store_true", help="the rows as a table with commas")
    papers_parser.add_argument("--figures", type=Path, metavar="DIR", help="draw the figures into this folder")
    bench_parser = _add(commands, "bench", bench, "measure this computer against the installed peers")
    bench_parser.add_argument("names", nargs="*", metavar="NAME", help="some of the benchmarks of the checkout")
    bench_parser.add_argument("--short", action="store_true", help="only compare forward dynamics, in seconds")
    bench_parser.add_argument("--states", type=int, default=4096, help="states per call (default %(default)s)")
    view_parser = _add(
        commands,
        "view",
        view,
        "look at a model, let it move, or play a recorded motion, in the browser",
    )
    view_parser.add_argument(
        "trajectory", type=Path, metavar="FILE", help="a file made with --file or .save(), or a model"
    )
    view_parser.add_argument("--base", choices=BASES, help=BASE_HELP)
    view_parser.add_argument(
        "--live", action="store_true", help="a page in which the model moves by its own equations, under your hand"
    )
    view_parser.add_argument("--out", type=Path, metavar="PAGE.html", help="write the page here instead of opening it")
    _sweep_parser(commands)
    _fold_parser(commands)
    _export_parser(commands)
    cache_parser = _add(commands, "cache", cache, "the compiled code on disk: its size and place")
    cache_parser.add_argument("--clear", action="store_true", help="delete it; torsor compiles what it needs again")
    return top


MODEL_HELP = (
    "a model or robot file (.toml, .urdf, MJCF .xml, .sdf), robot_descriptions:NAME, or a name from the zoo: "
    + ", ".join(zoo.names()) + "; families take a length, rope:50"
)  # fmt: skip
BASE_HELP = "for a robot file: whether its root is fixed to the base or free"


def _add(commands: Any, name: str, run: Callable[[argparse.Namespace], int], words: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=words, description=words[0].upper() + words[1:] + ".")
    command.set_defaults(run=run)
    return command


def _export_parser(commands: Any) -> None:
    p = _add(commands, "export", export, "write a function of a model as C99 or WebAssembly")
    p.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    p.add_argument("--function", required=True, metavar="NAME", help="for example forward_dynamics")
    p.add_argument("-o", "--out", required=True, type=Path, metavar="DIR", help="the folder for the files")
    p.add_argument("--language", choices=LANGUAGES, default="c", help="(default %(default)s)")
    p.add_argument("--float", action="store_true", help="compute in float instead of double")
    p.add_argument("--external", action="store_true", help="take a wrench on each body as a further input")
    for name, what in (("velocity", "the twist of a moving base"), ("acceleration", "the derivative of this twist")):
        p.add_argument(f"--base-{name}", action="store_true", help=f"take {what} as a further input")
    p.add_argument("--body", metavar="NAME", help="of a Jacobian: the body or the named frame")
    p.add_argument("--name", metavar="NAME", help="of the function in C (default: model and function)")
    p.add_argument("--api", choices=("c", "casadi"), default="c", help="casadi: also as casadi.external takes it")


def _simulate_parser(commands: Any) -> argparse.ArgumentParser:
    p = _add(commands, "simulate", simulate, "run a model: free fall, torques or a tracked motion")
    p.epilog = (
        "A LIST is numbers with commas, 0,90deg,0.1, or some of them by name, elbow=45deg,wrist=0.1. "
        "Try: torsor simulate stanford --plot stanford.png"
    )
    p.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    p.add_argument("--base", choices=BASES, help=BASE_HELP)
    problem = p.add_argument_group("the motion")
    problem.add_argument("--duration", type=float, default=10.0, metavar="SECONDS", help="(default %(default)s)")
    problem.add_argument(
        "--q0",
        metavar="LIST",
        help="initial positions: numbers, NAME=NUMBER,... or a keyframe (default: neutral; the paper's for stanford)",
    )
    problem.add_argument("--v0", metavar="LIST", help="initial velocities (default: at rest)")
    problem.add_argument(
        "--torque",
        metavar="LIST|FILE.csv",
        help="constant torques, or a table with columns t, tau1, ... (interpolated linearly)",
    )
    problem.add_argument("--track", metavar="LIST", help="go to these positions along a cycloid, by computed torque")
    problem.add_argument(
        "--feedforward", metavar="SECONDS", type=float, default=0.0, help="with --track: only the torques of that "
        "motion, at this interval; nothing keeps the machine on its path"
    )  # fmt: skip
    problem.add_argument("--viscous", type=float, default=0.0, help="viscous friction of every joint")
    problem.add_argument("--coulomb", type=float, default=0.0, help="dry friction of every joint")
    problem.add_argument("--no-gravity", action="store_true")
    problem.add_argument(
        "--free", action="store_true", help="the bare free fall (default, without other options: a floating base is "
        "pinned, and joints get friction and stops where the file has none)"
    )  # fmt: skip
    how = p.add_argument_group("the integration")
    how.add_argument(
        "--method",
        choices=("auto", *METHODS),
        default="auto",
        help="(default %(default)s; methods with fixed steps need --step)",
    )
    how.add_argument(
        "--dynamics", choices=DYNAMICS, default="auto", help="how to compute accelerations (default %(default)s)"
    )
    how.add_argument("--rtol", type=float, default=1e-6, help="relative tolerance (default %(default)s)")
    how.add_argument("--atol", type=float, default=1e-9, help="absolute tolerance (default %(default)s)")
    how.add_argument("--step", type=float, metavar="SECONDS", help="step of the fixed-step methods")
    results = p.add_argument_group("the results")
    results.add_argument("--dt", type=float, metavar="SECONDS", help="time between rows (default: one row per step)")
    results.add_argument("--every", type=int, default=1, metavar="N", help="a row every N steps")
    results.add_argument(
        "--keep", metavar="NAMES", help="only these quantities, for example q.link3,pose.link7,energy (default: all)"
    )
    results.add_argument("--file", type=Path, metavar="FILE", help="write rows while running; safe against crashes")
    results.add_argument("--resume", type=Path, metavar="FILE", help="continue an interrupted recorded run")
    results.add_argument("--plot", type=Path, metavar="FILE", help="positions and energies, as .png, .pdf or .svg")
    results.add_argument("--csv", type=Path, metavar="FILE", help="all rows as text")
    results.add_argument(
        "--view",
        type=Path,
        nargs="?",
        const=BROWSER,
        metavar="PAGE.html",
        help="play in the browser, or write the page to a file",
    )
    results.add_argument("--quiet", action="store_true", help="no progress bar and no summary")
    results.add_argument("--json", action="store_true", help="print the outcome as JSON, and no bar")
    results.add_argument("--log", type=Path, metavar="FILE", help="append events to a file, as JSON lines")
    return p


# ---- simulate ----


def simulate(options: argparse.Namespace) -> int:
    _check_outputs(options)
    simulation, duration = _resumed(options) if options.resume else _fresh(options)
    if options.view is not None and (kept := simulation.about["keep"]) is not None:
        columns = [column for name in kept for column in columns_of(simulation.model, name)]
        Trajectory.kept(simulation.model, np.empty(0), np.empty((0, len(columns))), columns, {}).motion()  # or refused
    began, quiet = time.perf_counter(), options.quiet or options.json
    try:
        trajectory = _run(simulation, simulation.t0 + duration, quiet)
    except KeyboardInterrupt:
        return _interrupted(simulation)
    seconds, failed = time.perf_counter() - began, 0
    for key, write in {"plot": trajectory.plot, "csv": trajectory.to_csv, "view": trajectory.view}.items():
        try:
            if (path := getattr(options, key)) is not None:
                written = write(None if path is BROWSER else path)
                if path is BROWSER:
                    setattr(options, key, written)
        except TorsorError as error:  # the other files are still written
            failed = _refused(error)
            setattr(options, key, None)
    if options.json:
        print(json.dumps(_outcome(trajectory, simulation, seconds, options)))
    elif not options.quiet:
        _summary(trajectory, simulation, seconds)
        for path in _files(options, simulation).values():
            out.print(f"-> {escape(str(path))}", style="green")
    return failed


def _files(options: argparse.Namespace, simulation: Simulation) -> dict[str, Any]:
    """The files that a run writes."""
    named = {"file": simulation.file, "plot": options.plot, "csv": options.csv, "view": options.view}
    return {key: path for key, path in named.items() if path not in (None, BROWSER)}


def _check_outputs(options: argparse.Namespace) -> None:
    """Before a run: check that every output can be written and that none replaces another or an input."""
    if options.plot is not None:
        from torsor.view.style import picture

        options.plot = picture(options.plot)
    written = {key: path for key in ("plot", "csv", "view") if (path := getattr(options, key)) not in (None, BROWSER)}
    for path in written.values():
        check_writable(path)
    others = {"file": options.file, "resume": options.resume, "log": options.log}
    named = written | {key: path for key, path in others.items() if path is not None}
    read = {"MODEL": options.model, "torque": options.torque}
    named |= {key: Path(path) for key, path in read.items() if path and Path(path).suffix}
    seen: dict[str, str] = {}
    for key, path in named.items():
        if path.exists() and not path.is_file():
            continue  # a pipe or a terminal takes several
        if (first := seen.setdefault(os.path.realpath(path), key)) != key:
            raise ArgumentError(f"{path} is named twice, as {_option(first)} and as {_option(key)}")


def _option(key: str) -> str:
    return key if key.isupper() else f"--{key.replace('_', '-')}"


def _fresh(options: argparse.Namespace) -> tuple[Simulation, float]:
    if options.model is None:
        raise ArgumentError("name a model to simulate, for example: torsor simulate stanford")
    number("--duration", options.duration, above=0)
    for name in ("viscous", "coulomb"):
        number(f"--{name}", getattr(options, name), least=0)
    if options.step is not None and method_named(options.method).adaptive:
        raise ArgumentError(f"--method {options.method} finds its own steps: leave out --step")
    if options.file is not None:
        check_writable(options.file)
    model = find_model(options.model, options.base)
    model = model.weightless if options.no_gravity else model  # forces then need not carry its weight
    problem = {key: getattr(options, key) for key in PROBLEM}
    q0 = state("--q0", options.q0 or STARTS.get(options.model), model)
    if q0 is None and _is_showcase(problem):
        q0 = shows.started(model)
    simulation = Simulation(
        model, q0, state("--v0", options.v0, model), forces=_forces(problem, model),
        method=options.method, rtol=options.rtol, atol=options.atol, step=options.step, dt=options.dt,
        every=options.every, keep=None if options.keep is None else options.keep.split(","),
        dynamics=options.dynamics, file=options.file, about={"problem": problem},
    )  # fmt: skip
    return simulation, options.duration


def _resumed(options: argparse.Namespace) -> tuple[Simulation, float]:
    unset = object()
    top = argparse.ArgumentParser()
    simulate_parser = _simulate_parser(top.add_subparsers())
    simulate_parser.set_defaults(**dict.fromkeys((*PROBLEM[1:], *INTEGRATION), unset))
    given = vars(top.parse_args(_with_negative_lists(options.words)))
    if names := [_option(key) for key in (*PROBLEM[1:], *INTEGRATION) if given[key] is not unset]:
        raise ArgumentError(f"a resumed run goes on as it was recorded: leave out {', '.join(names)}")
    problem = read(options.resume).header["about"].get("problem")
    problem = LATER | problem if isinstance(problem, dict) else None
    if not isinstance(problem, dict) or not all(_typed(problem.get(key), key) for key in PROBLEM):
        raise ArgumentError(f"{options.resume} was not recorded by this command: resume it with Simulation.resume")
    model = find_model(options.model or problem["model"], problem.get("base"))
    model = model.weightless if problem["no_gravity"] else model
    simulation = Simulation.resume(options.resume, model=model, forces=_forces(problem, model))
    return simulation, problem["duration"]


def _typed(value: Any, key: str) -> bool:
    """Whether this is a value that the command line gives to that option."""
    if key in ("no_gravity", "free"):
        return isinstance(value, bool)
    return isinstance(value, float if key in ("duration", "feedforward", "viscous", "coulomb") else str | None)


def _forces(problem: dict[str, Any], model: Model) -> list[Any]:
    """The forces that the command line asks for."""
    forces: list[Any] = []
    torque = problem["torque"]
    if torque and torque.endswith(".csv"):
        forces.append(_table(torque, model))
    elif torque:
        forces.append(Constant(state("--torque", torque, model)))
    if problem["track"]:
        if model.nq != model.nv:
            raise ArgumentError(f"--track needs joints without quaternions; {model!r} has some")
        start = state("--q0", problem["q0"] or STARTS.get(problem["model"]), model)
        start = model.neutral() if start is None else start
        path = Cycloid(start, state("--track", problem["track"], model), problem["duration"])
        forces.append(_feedforward(problem, model, path) if problem["feedforward"] else ComputedTorque(path))
    elif problem["feedforward"]:
        raise ArgumentError("--feedforward gives the torques of a motion: say which, by --track")
    if problem["viscous"] or problem["coulomb"]:
        forces.append(Friction(problem["viscous"], problem["coulomb"]))
    return shows.showcase(model).forces if _is_showcase(problem) else forces


def _feedforward(problem: dict[str, Any], model: Model, path: Cycloid) -> Table:
    """The torques of a motion at equal intervals."""
    every = number("--feedforward", problem["feedforward"], above=0.0)
    intervals = max(1, round(problem["duration"] / every))
    return Table.following(model, path, np.linspace(0.0, problem["duration"], intervals + 1))


def _is_showcase(problem: dict[str, Any]) -> bool:
    """Whether no option of the motion is given."""
    return not any(problem.get(key) for key in ASKED)


def _table(path: str, model: Model) -> Table:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no data
            table = np.loadtxt(path, delimiter=",", ndmin=2, skiprows=_header_lines(path))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{path}: no table of torques: {error}") from None
    if not table.size:
        raise ArgumentError(f"{path} holds no rows; a table of torques has rows t, tau1, tau2, ...")
    if table.shape[1] != 1 + model.nv:
        raise ArgumentError(f"{path} has {table.shape[1]} columns; this model needs t and {model.nv} torques")
    return Table(table[:, 0], table[:, 1:])


def _header_lines(path: str) -> int:
    """1 if the first line of a table has words."""
    with open(path, encoding="utf-8") as file:
        first = file.readline(LONGEST_WORD).split(",")[0]
    try:
        float(first)
    except ValueError:
        return 1
    return 0


def _run(simulation: Simulation, until: float, quiet: bool) -> Any:
    """Run with a progress bar on stderr."""
    with _bar(f"{{task.completed:.3g}} of {{task.total:g}} {simulation.model.units.time}", quiet) as bar:
        task = bar.add_task(escape(simulation.model.name), total=until)
        bar.update(task, completed=simulation.t)
        return simulation.run(until, progress=lambda t: bar.update(task, completed=t))


def _bar(done: str, quiet: bool = False) -> Progress:
    """A progress bar on stderr with the remaining time."""
    columns = TextColumn("[bold]{task.description}"), BarColumn(), TextColumn(done)
    times = TextColumn("time"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    silent = quiet or not err.is_terminal  # before rich 14.3, a bar that is only disabled ends with an empty line
    return Progress(*columns, *times, console=Console(quiet=True) if silent else err, transient=True, disable=silent)


def _interrupted(simulation: Simulation) -> int:
    words = f"[yellow]interrupted[/] at t = {simulation.t:.4g} s; "
    if simulation.file is None:
        err.print(words + "nothing was recorded (use --file FILE to be able to continue)")
    else:
        file = escape(str(simulation.file))
        err.print(words + f"continue with:  torsor simulate --resume {file}", soft_wrap=True)
    return INTERRUPTED


def _summary(trajectory: Trajectory, simulation: Simulation, seconds: float) -> None:
    stepper = simulation.stepper
    switched = f", switched {simulation.about['switched']}" if "switched" in simulation.about else ""
    out.print(
        f"[bold]{escape(trajectory.model.name)}[/]: {trajectory.t[-1]:g} s in {seconds:.3g} s, {len(trajectory)} rows, "
        f"{stepper.evaluations} evaluations of the right-hand side ({simulation.about['method']}{switched})"
    )
    if _is_showcase(simulation.about.get("problem", {})) and (words := shows.showcase(trajectory.model).words):
        out.print(f"[dim]{'; '.join(words)} (--free: the bare fall)[/]", soft_wrap=True)
    table = RichTable("", "first", "last", "least", "greatest", box=None, pad_edge=False)
    whole, model = trajectory.columns is None, trajectory.model
    units = [unit for code in model.joint for _, unit in JOINTS[code].coordinates] if whole else []
    for (name, x, digits), unit in zip_longest(_columns_of_summary(trajectory), units[:MOST_BRANCHES]):
        turns = unit == RADIAN  # people read degrees; files and --json keep radians
        ends = np.degrees([x[0], x[-1], x.min(), x.max()]) if turns else (x[0], x[-1], x.min(), x.max())
        table.add_row(escape(name + ", deg" * turns), *(f"{value:.{digits}g}" for value in ends))
    out.print(table)
    if warning := _drift(trajectory, simulation):
        err.print(f"[yellow]{warning}[/]", soft_wrap=True)


def _drift(run: Trajectory, simulation: Simulation) -> str:
    """A warning if the energy of a motion without forces changed by more than the tolerance allows."""
    forced = simulation.about["forces"] or any(getattr(run.model, name).any() for name in AT_JOINTS)
    if run.columns is not None or forced:
        return ""
    drift, most = np.abs(run.energy - run.energy[0]).max(), run.kinetic_energy.max()
    if drift <= DRIFT * most:
        return ""
    finer = "--rtol 1e-9" if simulation.stepper.adaptive else "a shorter --step"
    return (
        f"nothing acts on this machine, but its energy changed by {drift:.3g} J, {drift / most:.2g} of its greatest "
        f"kinetic energy: over {run.t[-1]:g} s these steps are too coarse; take {finer}, or --method variational"
    )


def _outcome(trajectory: Trajectory, simulation: Simulation, seconds: float,
             options: argparse.Namespace) -> dict[str, Any]:  # fmt: skip
    """The output of `simulate --json`: options, cost and files of the run, and the ends of its columns."""
    values = {name: {"first": float(x[0]), "last": float(x[-1]), "least": float(x.min()), "greatest": float(x.max())}
              for name, x, _ in _columns_of_summary(trajectory)}  # fmt: skip
    files = {key: str(path) for key, path in _files(options, simulation).items()}
    return {
        "model": trajectory.model.name, "t": float(trajectory.t[-1]), "rows": len(trajectory),
        "seconds": round(seconds, 6), "evaluations": simulation.stepper.evaluations, "values": values, "files": files,
        "about": short(simulation.about), **made(),
    }  # fmt: skip


def _columns_of_summary(run: Trajectory) -> list[tuple[str, Any, int]]:
    """The columns of the summary of a run: name, values and digits."""
    if run.columns is not None:
        return [(name, x, 9) for name, x in zip(run.columns[:MOST_BRANCHES], run.values.T)]
    names = [f"q {name}" for name in names_of(run.model, "coordinates")[:MOST_BRANCHES]]
    return [*((name, x, 6) for name, x in zip(names, run.q.T)), (f"energy, {run.model.units.energy}", run.energy, 9)]


# ---- info ----


def info(options: argparse.Namespace) -> int:
    model = find_model(options.model, options.base)
    out.print(f"[bold]{escape(model.name)}[/]  {model.n} bodies, {model.nv} degrees of freedom (nq = {model.nq}), "
              f"mass {model.mass.sum():g} {model.units.mass}, gravity {model.gravity.tolist()}")  # fmt: skip
    out.print(_tree(model))
    _extras(model)
    table = RichTable("one call costs", "mul", "add", "div", "sin cos", "compiled as", box=None)
    functions = (torsor.forward_dynamics, torsor.inverse_dynamics, torsor.mass_matrix)
    for function in functions if model.nv <= MOST_FREEDOMS_OF_A_MATRIX else functions[:2]:
        program = torsor.compile(model.uncoupled(), function)
        count = program.operations
        how = f"{'straight code' if program.specialised else 'a loop'}, {program.lanes} lanes"
        numbers = (str(x) for x in (count.mul, count.add, count.div, count.trig))
        table.add_row(function.__name__, *numbers, how)
    out.print(table)
    for asked in (torsor.forward_dynamics, torsor.mass_solve, torsor.inverse_dynamics):
        choice = torsor.explain(model.uncoupled(), asked)
        out.print(f"{asked.__name__}, method auto: {choice.why}", soft_wrap=True)
    return 0


def _tree(model: Model) -> Tree:
    """The tree of the bodies."""
    root = Tree("[dim]base[/]")
    branches = {-1: root}
    shown = model.n if model.n <= MOST_BRANCHES else FEW_BRANCHES
    for i in range(shown):
        words = (
            f"{escape(model.names[i])}  [cyan]{JOINTS[model.joint[i]].name}[/]  {model.mass[i]:g} {model.units.mass}"
        )
        limits = (
            f"{key} {' '.join(f'{x:.4g}' for x in values)}" + " (unknown)" * (key in OF_DRIVES and not values.any())
            for key, values in nondefault(model, i).items()
        )
        words += f"  [dim]{', '.join(limits)}[/]"
        branches[i] = branches[int(model.parent[i])].add(words)
    if model.n > shown:
        root.add(f"[dim]... and {model.n - shown} more[/]")
    return root


def _extras(model: Model) -> None:
    """The information of the model's file beyond the dynamics."""
    lines = {
        "couplings": [f"{model.joint_names[c.follower]} = {c.ratio:g} {model.joint_names[c.leader]} + {c.offset:g}"
                      for c in model.couplings],
        "actuators": [actuator.name for actuator in model.actuators],
        "keyframes": list(model.keyframes),
        "frames": list(model.frames),
        "shapes": [f"{len(model.visuals)}"] if model.visuals else [],
    }  # fmt: skip
    for title, words in lines.items():
        if words:
            more = f" ... {len(words)} in all" if len(words) > MOST_WORDS else ""
            out.print(f"[bold]{title}[/]  {escape(', '.join(words[:MOST_WORDS]))}{more}", soft_wrap=True)
    for note in model.notes[:MOST_BRANCHES]:
        style = "dim" if note.kind == "read" else "yellow"
        out.print(f"[{style}]{note.kind}  {escape(str(note))}[/]", soft_wrap=True)


# ---- fold ----


def _fold_parser(commands: Any) -> None:
    command = _add(commands, "fold", fold, "move a protein, from a file or a sequence, by torsion-angle dynamics")
    options_of_fold(command)


def fold(options: argparse.Namespace) -> int:
    return run_fold(options, lambda line: out.print(escape(line), soft_wrap=True), _bar)


# ---- sweep ----


def _sweep_parser(commands: Any) -> None:
    command = _add(commands, "sweep", sweep, "move many members of a machine, drawn as a study file says, into a store")
    command.add_argument("study", type=Path, metavar="STUDY.toml", help="what varies, how often, and for how long")
    command.add_argument("--store", required=True, metavar="RUNS.zarr", help="the folder of the results, or a URL")
    command.add_argument("--resume", action="store_true", help="continue with an existing store")
    where = command.add_mutually_exclusive_group()
    where.add_argument("--workers", type=int, metavar="N", help="processes on this computer (default: this one)")
    where.add_argument(
        "--dask",
        nargs="?",
        const=LOCAL,
        metavar="ADDRESS",
        help="the scheduler of a Dask cluster; without an address: a cluster on this computer, for this run",
    )
    where.add_argument("--shard", metavar="I/N", help="only this part of the work: one job of an array of N, I from 0")
    command.add_argument("--json", action="store_true", help="print the outcome as JSON")
    command.add_argument("--log", type=Path, metavar="FILE", help="append events to a file, as JSON lines")


def sweep(options: argparse.Namespace) -> int:
    from torsor.ensembles import files, places

    kwargs = files.read(options.study, find_model)
    if places.at(options.store).read("zarr.json") is not None and not (options.resume or options.shard):
        raise ArgumentError(f"{options.store} is there already: --resume goes on with it")
    found = re.fullmatch(r"(\d+)/(\d+)", options.shard or "0/1")
    if not found:
        raise ArgumentError(f"--shard {options.shard}: give I/N, for example 0/8")
    begin = time.perf_counter()
    try:
        study = _swept(options, kwargs, (int(found[1]), int(found[2])))
    except KeyboardInterrupt:
        return _interrupted_sweep(options)
    failed, done = study.failed, int((study.status > 0).sum())
    if options.json:
        words = {"store": options.store, "members": study.n, "done": done, "failed": failed,
                 "seconds": round(time.perf_counter() - begin, 3), "seed": kwargs.get("seed", 0), **made()}  # fmt: skip
        print(json.dumps(words))
    else:
        out.print(f"{done} of {study.n} members done, {len(failed)} failed -> {escape(options.store)}")
        for reason, count in Counter(failed.values()).items():
            first = [str(k) for k, why in failed.items() if why == reason][:MOST_WORDS]
            out.print(f"[yellow]{count}[/] {reason}: members {', '.join(first)}{' ...' * (count > len(first))}")
    return FAILED if failed else 0


def _swept(options: argparse.Namespace, asked: dict[str, Any], shard: tuple[int, int]) -> Any:
    """The study, with a bar."""
    with _executor(options) as executor, _bar("{task.completed} of {task.total} chunks") as bar:
        task = bar.add_task(escape(options.study.stem), total=None)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return torsor.ensemble(**asked, store=options.store, executor=executor, shard=shard, progress=progress)


def _interrupted_sweep(options: argparse.Namespace) -> int:
    """Report what is done, and how to continue."""
    words, command = "[yellow]interrupted[/]", f"torsor sweep {options.study} --store {options.store}"
    with suppress(TorsorError):  # if there is no store yet
        study = torsor.Study(options.store)
        words += f": {int((study.status > 0).sum())} of {study.n} members are done and kept"
        command += " --resume"
    err.print(f"{words}; continue with:  {escape(command)}", soft_wrap=True)
    return INTERRUPTED


@contextmanager
def _executor(options: argparse.Namespace) -> Iterator[Any]:
    """Who does the work."""
    if options.dask is not None:
        try:
            from distributed import Client
        except ImportError:
            raise ArgumentError("--dask needs Dask: pip install 'dask[distributed]'") from None
        try:
            client = Client(None if options.dask is LOCAL else options.dask, set_as_default=False)
        except Exception as error:  # Dask raises what its transport raises
            raise ArgumentError(
                f"--dask {options.dask}: no scheduler of Dask there, such as tcp://host:8786 ({error})"
            ) from None
        with client:
            yield client.get_executor()
    elif options.workers is not None:
        with ProcessPoolExecutor(integer("--workers", options.workers, least=1), get_context("spawn")) as pool:
            yield pool
    else:
        yield None


# ---- papers, bench, view ----


def papers(options: argparse.Namespace) -> int:
    from torsor import papers as registry  # imports Matplotlib

    figures = registry.draw(options.figures, options.names) if options.figures else ()
    if options.digits is None:
        found = registry.reproduce(options.names)
    else:
        found = registry.to_digits(integer("--digits", options.digits, least=FEWEST_DIGITS), options.names)
    if options.json or options.csv:
        rows = [{"paper": paper, **asdict(row)} for paper, row in found]
        out.file.write(json.dumps(rows, indent=1) + "\n" if options.json else registry.rows.as_csv(rows))
        failed = sum(not row["holds"] for row in rows)
    else:
        failed = _print_rows(found, registry.rows)
    for path in figures:
        (err if options.json or options.csv else out).print(f"-> {escape(str(path))}", style="green")
    return FAILED if failed else 0


def _print_rows(found: Iterable[tuple[str, Any]], rows: ModuleType) -> int:
    """Print one table per paper; return the number of rows that no longer hold."""
    colours = {
        rows.AGREES: "green", rows.ALONE: "green", rows.MISPRINT: "cyan", rows.CONFLICTS: "yellow", rows.OURS: "dim",
        rows.TIMED: "dim", rows.FAILED: "bold red",
    }  # fmt: skip
    columns = "place", "quantity", "printed", "computed", "difference", "verdict"
    screen = out if out.is_terminal else Console(width=UNCUT, highlight=False, emoji=False)
    failed, counted = 0, Counter[str]()
    for paper, of_paper in groupby(found, key=lambda pair: pair[0]):
        table = RichTable(*columns, title=paper, title_justify="left")
        for _, row in of_paper:
            colour, words = (colours[row.verdict], "") if row.holds else ("bold red", "no longer: ")
            cells = (row.place, row.quantity, row.printed, row.computed, row.difference)
            table.add_row(*(escape(cell) for cell in cells), f"[{colour}]{words}{row.verdict}[/]")
            counted[row.verdict] += 1
            failed += not row.holds
        screen.print(table)
    counts = "; ".join(f"{count} {verdict}" for verdict, count in counted.items())
    out.print(f"{counts}; {failed} no longer hold", soft_wrap=True)
    return failed


def bench(options: argparse.Namespace) -> int:
    """Run the benchmarks of the checkout if there is one, else a short one."""
    script = Path(torsor.__file__).parents[2] / "bench" / "run.py"
    if script.is_file() and not options.short:
        return subprocess.run([sys.executable, str(script), *options.names], check=False).returncode
    if options.names:
        raise ArgumentError(f"{' '.join(options.names)}: benchmarks are named in a checkout of torsor, without --short")
    from torsor.bench import forward_dynamics_times, installed_peers

    integer("--states", options.states, least=1)

    table = RichTable("forward dynamics of", "states per call", "torsor", *installed_peers(), box=None)
    for name in ("stanford", "puma560", "panda"):
        for states in (1, options.states):
            times = forward_dynamics_times(zoo.get(name), states)
            table.add_row(name, str(states), *(f"{1e9 * seconds:.0f} ns per state" for seconds in times))
    out.print(table)
    return 0


def view(options: argparse.Namespace) -> int:
    name = str(options.trajectory)
    if options.trajectory.suffix.lower() in (*FORMATS, *ROBOTS) or not options.trajectory.suffix:
        model = find_model(name, options.base)
        scene = (pages.live_scene if options.live else pages.still_scene)(model)
    elif options.live:
        raise ArgumentError(f"--live takes a model, and {name} is none")
    else:
        scene = pages.recorded_scene(Trajectory.load(options.trajectory))
    _show(scene, options.out)
    return 0


def _show(scene: Any, path: Path | None) -> None:
    """Write a page or open it; print its path, and what it does not show."""
    page = pages.show(scene, path)
    for words in scene.data["missing"]:
        err.print(f"[yellow]not drawn:[/] {escape(words)}", soft_wrap=True)
    out.print(f"-> {escape(str(page))}", style="green", soft_wrap=True)


def export(options: argparse.Namespace) -> int:
    known = {function.__name__: function for function in ALGORITHMS}
    function = known[chosen("--function", options.function, known)]
    model, dtype = find_model(options.model), "float32" if options.float else "float64"
    settings: dict[str, Any] = dict(dtype=dtype, body=options.body)
    settings |= {name: getattr(options, name) for name in OptionalInputs.__annotations__}
    paths = torsor.export(
        model, function, options.out, **settings, name=options.name, language=options.language, api=options.api
    )
    program = torsor.compile(model, function, **settings)
    counts = ", ".join(f"{n} {name}" for name, n in program.operations._asdict().items() if n)
    how = "straight-line code" if program.specialised else "loops over the bodies"
    what = f"[bold]{function.__name__}[/] of [bold]{escape(model.name)}[/] in {LANGUAGES[options.language]}"
    out.print(f"{what}: {how}, {dtype}; {counts}")
    table = RichTable("file", "bytes", box=None, pad_edge=False)
    for path in paths:
        table.add_row(escape(str(path)), str(path.stat().st_size))
    out.print(table)
    return 0


def cache(options: argparse.Namespace) -> int:
    if options.clear:
        out.print(f"{store.trim(0)} files deleted")
        return 0
    files = store.entries()
    total, limit = (x / 2**20 for x in (sum(size for _, size, _ in files), store.LIMIT))
    out.print(escape(str(store.folder() or "switched off (TORSOR_CACHE)")), soft_wrap=True)
    out.print(f"{len(files)} files, {total:.1f} MB of at most {limit:.0f} MB")
    return 0


# ---- words to values ----


def find_model(name: str, base: str | None = None) -> Model:
    """A model by file, by name or by name:length; repairs and omissions of a robot file are printed on stderr."""
    if Path(name).suffix or name.startswith(PREFIX):
        if not name.startswith(PREFIX) and not Path(name).is_file():
            raise ArgumentError(f"there is no model file {name}")
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", ModelWarning)
            model = load(name) if base is None else load(name, base=base)
        for warning in warned:
            err.print(f"[yellow]{escape(str(warning.message))}[/]", soft_wrap=True)
        return model
    if base is not None:
        raise ArgumentError(f"--base is for robot files; {name} is none")
    family, _, length = name.partition(":")
    if not length:
        return zoo.get(family) if family not in FAMILIES else zoo.get(family, FAMILIES[family])
    if not LENGTH.fullmatch(length) or family not in FAMILIES:
        what = f"{length!r} is no length" if family in FAMILIES else f"only {', '.join(FAMILIES)} take a length"
        raise ArgumentError(f"{name}: {what}, like rope:50")
    return zoo.get(family, int(length))


LENGTH = re.compile("[0-9]{1,18}")
FAMILIES = {
    "rope": 20, "point_chain": 10, "random_chain": 6, "random_tree": 10, "general_arm": 6, "polypeptide": 7,
    "polypeptide_faithful": 7, "polypeptide_planar": 7,
}  # fmt: skip


def state(option: str, text: str | None, model: Model) -> Any:
    """Positions (of --q0 and --track) or velocities and torques: a list of numbers, a keyframe, or NAME=NUMBER,...

    Joints that are not named keep their neutral position, or zero.
    """
    of_q = option in ("--q0", "--track")
    if text is not None and of_q and text in model.keyframes:
        return model.keyframes[text]
    if text is None or "=" not in text:
        return numbers(option, text, model.nq if of_q else model.nv)
    own = names_of(model, "coordinates" if of_q else "velocities")
    places = {name: k for k, name in enumerate(own)}
    for body, joint in zip(model.names, model.joint_names):
        places.setdefault(joint, places.get(body, -1))
    values = within_limits(model) if of_q else np.zeros(model.nv)
    for part in text.split(","):
        name, _, value = part.partition("=")
        if places.get(name.strip(), -1) < 0:
            known = ", ".join([*own[:MOST_WORDS], *model.keyframes][: 2 * MOST_WORDS])
            raise ArgumentError(f"{option}: {part!r} names nothing that there is; there are {known}")
        values[places[name.strip()]] = numbers(option, value, 1)[0]
    return values


def numbers(option: str, text: str | None, count: int) -> Any:
    """A list of numbers, angles with "deg" in degrees."""
    if text is None:
        return None
    try:
        values = [float(x.removesuffix("deg")) * (pi / 180 if x.endswith("deg") else 1) for x in text.split(",")]
    except ValueError:
        raise ArgumentError(f"{option} {text!r} is not a list of numbers like 0,90deg,0.1") from None
    if len(values) != count:
        raise ArgumentError(f"{option} holds {len(values)} numbers; this model needs {count}")
    return np.array(values)


if __name__ == "__main__":
    sys.exit(main())
