"""A run: a method moves replicas; every frame is recorded, and a run continues exactly after a crash.

The random numbers of replica r for frame f come from default_rng([seed, MOLECULE, r, f]). So a continued run draws the
same numbers as one without a break, and a file need not store generators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from torsor.errors import ArgumentError
from torsor.molecule.forcefields import BOLTZMANN, Potential
from torsor.molecule.methods import Dynamics, HybridMonteCarlo, Ladder, Langevin
from torsor.molecule.molecule import Torsions
from torsor.molecule.mover import Mover, Walkers, temperatures
from torsor.molecule.results import MolecularRun
from torsor.molecule.structure import Array
from torsor.motion.recording import Recorder, RecordingError, read
from torsor.validate import flag, integer, number, real_array

MOLECULE = 0x4D4F4C45  # makes these streams different from others
COUNTS = "counts."
FIRST_STEP, HMC_STEP = 0.008, 0.012  # ps, for all torsions and hydrogens of 4 amu (docs/molecules.md)


@dataclass(frozen=True)
class Setting:
    """Hold the keywords that all methods of this package share.

    Parameters
    ----------
    temperature : float or (replicas,) array_like, default 300
        In kelvin: one number, or one per replica; (begin, end) if `ramp`.
    replicas : int, default 1
        How many copies run side by side.
    seed : int, default 0
        Of all random numbers.
    fixman : bool, default True
        Use Fixman's potential: torsions have the distribution exp(-U/kT), as between stiff bonds.
    start : (nq,) or (replicas, nq) array_like, optional
        Configurations. Default: the molecule's own.
    potential : callable, optional
        Positions (states, n, 3) in nm -> energies (states,) in kJ/mol, forces (states, n, 3).
        Default: the molecule's System.
    platform : str, optional
        Of OpenMM: "CPU" in single precision, "Reference" in double. Default: its fastest.
    threads : int, optional
        Of the platform "CPU". Default: all cores.
    file : str or Path, optional
        The file to which frames are written.
    resume : bool, default False
        Continue that file.
    progress : callable, optional
        Called with (frames done, frames in all) after every frame.
    ramp : bool, default False
        The temperature falls during the run (`anneal`).

    Raises
    ------
    ArgumentError
        A value is of the wrong kind, or there is no file to continue.

    Examples
    --------
    >>> from torsor.molecule import Setting
    >>> Setting(temperature=350.0, replicas=4).seed
    0
    """

    temperature: Any = 300.0
    replicas: int = 1
    seed: int = 0
    fixman: bool = True
    start: ArrayLike | None = None
    potential: Potential | None = None
    platform: str | None = None
    threads: int | None = None
    file: str | Path | None = None
    resume: bool = False
    progress: Callable[[int, int], Any] | None = None
    ramp: bool = False

    def __post_init__(self) -> None:
        integer("replicas", self.replicas, least=1)
        integer("seed", self.seed, least=0)
        flag("fixman", self.fixman)
        flag("resume", self.resume)
        if self.resume and self.file is None:
            raise ArgumentError("resume=True continues a file: give file=...")

    def begin(self, torsions: Torsions) -> Array:
        """Return the first configurations.

        Parameters
        ----------
        torsions : Torsions
            The molecule.

        Returns
        -------
        q : (replicas, nq) ndarray
            Those of `start`, or the molecule's own.
        """
        model = torsions.model
        q = model.neutral() if self.start is None else self.start
        q = real_array("start", q, (model.nq,), (self.replicas, model.nq))
        return np.broadcast_to(q, (self.replicas, model.nq)).copy()

    def kT(self, share: float) -> Array:
        """Compute the temperatures as energies.

        Parameters
        ----------
        share : float
            The completed share of the run, 0 to 1.

        Returns
        -------
        kT : (replicas,) ndarray
            In kJ/mol.
        """
        if not self.ramp:
            return BOLTZMANN * temperatures(self.temperature, self.replicas)
        first, last = (temperatures(T, 1)[0] for T in self.temperature)
        return BOLTZMANN * np.full(self.replicas, first * (last / first) ** share)


def run(torsions: Torsions, method: Dynamics | Ladder, frames: int, setting: Setting) -> MolecularRun:
    """Record frames of a method; the first frame is the start."""
    integer("frames", frames, least=1)
    potential = setting.potential
    if potential is None and torsions.molecule.system is not None:
        potential = torsions.molecule.potential(setting.platform, setting.threads)
    mover = Mover(torsions, potential, setting.kT(0.0), setting.fixman)
    about = {"method": method.name, **asdict(method), "seed": setting.seed, "fixman": setting.fixman,
             "temperature": np.asarray(setting.temperature, float).tolist(),
             "frames": frames if setting.ramp else None}  # fmt: skip
    counts: dict[str, float] = {}
    if setting.resume:
        states, rows, counts, recorder = _recalled(torsions, setting, about)
    else:
        states = mover.start(setting.begin(torsions), generators(setting, 0))
        rows = [_row(mover, states, 0.0)]
        recorder = _recorder(torsions, setting, about, rows[0], frames)
        if recorder is not None:
            recorder.append(rows[0][None], _memory(states, counts))
    for frame in range(len(rows), frames + 1):
        mover.kT = setting.kT((frame - 1) / frames)
        states, found = method.frame(mover, states, generators(setting, frame))
        found = {"failed steps": mover.unsettled} | found
        mover.unsettled = 0
        counts = {name: counts.get(name, 0.0) + x for name, x in ({**dict.fromkeys(counts, 0.0), **found}).items()}
        rows.append(_row(mover, states, frame * method.interval))
        if recorder is not None:
            recorder.append(rows[-1][None], _memory(states, counts))
        if setting.progress is not None:
            setting.progress(frame, frames)
    return _result(torsions, np.array(rows), counts, about, setting.replicas)


def _recorder(torsions: Torsions, setting: Setting, about: dict[str, Any], row: Array, frames: int) -> Recorder | None:
    """The recorder of a new file, if the run is recorded."""
    if setting.file is None:
        return None
    model = torsions.model
    header = {"model": model.name, "model_key": model.key, "width": len(row), "about": about}
    return Recorder.create(setting.file, header, 8 * len(row) * (frames + 1))


def generators(setting: Setting, frame: int) -> list[np.random.Generator]:
    """The random generator of every replica for a frame."""
    return [np.random.default_rng([setting.seed, MOLECULE, r, frame]) for r in range(setting.replicas)]


def _row(mover: Mover, s: Walkers, t: float) -> Array:
    """t, then U, kinetic energy, log det M of every replica, then q of every replica."""
    return np.concatenate([[t], s.at.U, mover.kinetic(s), mover.log_det(s.q), s.q.ravel()])


def _memory(s: Walkers, counts: dict[str, float]) -> dict[str, Array]:
    return s.memory() | {COUNTS + name: np.array([x]) for name, x in counts.items()}


def _recalled(torsions: Torsions, setting: Setting, about: dict[str, Any]) -> Any:
    """(states, rows, counts, recorder) of the file to continue."""
    assert setting.file is not None
    found = read(setting.file)
    if found.header["model_key"] != torsions.model.key:
        raise RecordingError(f"{found.path} holds a run of another molecule, or of other torsions")
    if found.header["about"] != about:
        differing = sorted(k for k in about if found.header["about"].get(k) != about[k])
        raise RecordingError(f"{found.path} was made with another {', '.join(differing)}: continue it with the same")
    if not found.chunks:
        raise RecordingError(f"{found.path} holds no frame")
    memory = found.chunks[-1].memory
    counts = {name.removeprefix(COUNTS): float(x[0]) for name, x in memory.items() if name.startswith(COUNTS)}
    return Walkers.recalled(memory), list(found.rows), counts, Recorder.reopen(found)


def _result(
    torsions: Torsions, rows: Array, counts: dict[str, float], about: dict[str, Any], replicas: int
) -> MolecularRun:
    t, energies, q = rows[:, 0], rows[:, 1 : 1 + 3 * replicas].reshape(-1, 3, replicas), rows[:, 1 + 3 * replicas :]
    potential, kinetic, log_det = energies.transpose(1, 0, 2)
    return MolecularRun(torsions, t, q.reshape(len(t), replicas, -1), potential, kinetic, log_det, counts, about)


# The methods by name -----------------------------------------------------------------------------------------------


def _frames(duration: float, interval: float) -> int:
    return max(1, round(number("duration", duration, above=0) / interval))


def dynamics(torsions: Torsions, duration: float, *, step: float = FIRST_STEP, every: int = 10,
             **setting: Any) -> MolecularRun:  # fmt: skip
    """Move a molecule at constant energy from random momenta, without Fixman's potential.

    Parameters
    ----------
    torsions : Torsions
        The molecule, and what turns.
    duration : float
        In ps.
    step : float, default 0.008
        In ps.
    every : int, default 10
        Steps from frame to frame.
    **setting : object
        The keywords of `Setting`.

    Returns
    -------
    run : MolecularRun
        The frames; the first one is the start.

    Examples
    --------
    >>> import numpy as np
    >>> from torsor import molecule
    >>> chain = molecule.polymers.freely_rotating(10)
    >>> run = molecule.dynamics(chain, 1.0, temperature=300.0)
    >>> energy = run.potential + run.kinetic
    >>> bool(np.ptp(energy) < 0.01 * run.kinetic.mean())
    True
    """
    method = Dynamics(step, every)
    return run(torsions, method, _frames(duration, method.interval), Setting(**({"fixman": False} | setting)))


def langevin(torsions: Torsions, duration: float, *, step: float = FIRST_STEP, friction: float = 1.0, every: int = 100,
             **setting: Any) -> MolecularRun:  # fmt: skip
    """Move a molecule by Langevin dynamics (BAOAB), with one call of the potential per step.

    Parameters
    ----------
    torsions : Torsions
        The molecule, and what turns.
    duration : float
        In ps.
    step : float, default 0.008
        In ps.
    friction : float, default 1
        In 1/ps.
    every : int, default 100
        Steps from frame to frame.
    **setting : object
        The keywords of `Setting`.

    Returns
    -------
    run : MolecularRun
        The frames; the first one is the start.

    Examples
    --------
    >>> from torsor import molecule
    >>> run = molecule.langevin(molecule.polymers.freely_rotating(10), 2.0, every=50, replicas=3)
    >>> run
    MolecularRun(freely rotating chain of 10, 6 frames of 3 replicas, 0 to 2 ps)
    """
    method = Langevin(step, every, friction)
    return run(torsions, method, _frames(duration, method.interval), Setting(**setting))


def hmc(torsions: Torsions, draws: int, *, step: float = HMC_STEP, steps: int = 10, jitter: float = 0.2, every: int = 1,
        **setting: Any) -> MolecularRun:  # fmt: skip
    """Sample by hybrid Monte Carlo: trajectories with jittered steps, accepted or rejected by their change of energy.

    The distribution is exact for any step; a step that is too long is rejected more often (`MolecularRun.acceptance`).

    Parameters
    ----------
    torsions : Torsions
        The molecule, and what turns.
    draws : int
        Trajectories, per replica.
    step : float, default 0.012
        In ps.
    steps : int, default 10
        Per trajectory.
    jitter : float, default 0.2
        The largest relative difference between the step of a trajectory and `step`.
    every : int, default 1
        Trajectories from frame to frame.
    **setting : object
        The keywords of `Setting`.

    Returns
    -------
    run : MolecularRun
        The frames; the first one is the start. `t` is the total length of all trajectories.

    Notes
    -----
    Duane, Kennedy, Pendleton & Roweth 1987.

    Examples
    --------
    The mean square end-to-end distance of a freely rotating chain, next to its closed form:

    >>> from torsor import molecule
    >>> from torsor.molecule import polymers
    >>> run = molecule.hmc(polymers.freely_rotating(12), 60, step=0.03, steps=20, replicas=100, seed=1)
    >>> mean = (run.end_to_end(0, 11)[20:] ** 2).mean()
    >>> bool(abs(mean / polymers.mean_square_end_to_end(11, 0.153, 0.3746) - 1) < 0.1)
    True
    """
    method = HybridMonteCarlo(step, every, steps, jitter)
    return run(torsions, method, max(1, integer("draws", draws, least=1) // every), Setting(**setting))


def tempering(torsions: Torsions, duration: float, temperature: ArrayLike, *, step: float = FIRST_STEP,
              friction: float = 1.0, every: int = 100, **setting: Any) -> MolecularRun:  # fmt: skip
    """Sample by parallel tempering: Langevin dynamics at several temperatures, whose neighbours exchange states.

    Exchanges are tried at every frame.

    Parameters
    ----------
    torsions : Torsions
        The molecule, and what turns.
    duration : float
        In ps.
    temperature : (replicas,) array_like
        In kelvin, one per replica.
    step : float, default 0.008
        In ps.
    friction : float, default 1
        In 1/ps.
    every : int, default 100
        Steps from frame to frame.
    **setting : object
        The other keywords of `Setting`.

    Returns
    -------
    run : MolecularRun
        The frames; replica k is at temperature k. `counts` says how many exchanges were tried and made.

    Raises
    ------
    ArgumentError
        There are fewer than two temperatures.

    Examples
    --------
    >>> from torsor import molecule
    >>> chain = molecule.polymers.freely_rotating(8)
    >>> molecule.tempering(chain, 1.0, [300.0, 350.0, 400.0], every=25).replicas
    3
    """
    T = np.asarray(temperature, float)
    if T.ndim != 1 or len(T) < 2:
        raise ArgumentError("tempering needs at least two temperatures")
    given = Setting(**setting, temperature=T, replicas=len(T))
    method = Ladder(Langevin(step, every, friction), given.seed)
    return run(torsions, method, _frames(duration, method.interval), given)


def anneal(torsions: Torsions, duration: float, begin: float, end: float, *, step: float = FIRST_STEP,
           friction: float = 1.0, every: int = 100, **setting: Any) -> MolecularRun:  # fmt: skip
    """Move a molecule by Langevin dynamics whose temperature falls by the same factor per frame.

    Parameters
    ----------
    torsions : Torsions
        The molecule, and what turns.
    duration : float
        In ps.
    begin : float
        The first temperature, in kelvin.
    end : float
        The last one.
    step : float, default 0.008
        In ps.
    friction : float, default 1
        In 1/ps.
    every : int, default 100
        Steps from frame to frame.
    **setting : object
        The other keywords of `Setting`.

    Returns
    -------
    run : MolecularRun
        The frames; the first one is the start.

    Examples
    --------
    >>> from torsor import molecule
    >>> run = molecule.anneal(molecule.polymers.freely_rotating(8), 1.0, 500.0, 100.0, every=25)
    >>> len(run)
    6
    """
    given = Setting(**setting, temperature=(begin, end), ramp=True)
    method = Langevin(step, every, friction)
    return run(torsions, method, _frames(duration, method.interval), given)
