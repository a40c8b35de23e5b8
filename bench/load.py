"""How long a robot file takes to load, and how many targets of inverse kinematics a second.

Robots are looked for in the folder that TORSOR_ROBOTS names; without one, the file of the tests is loaded.
"""

import os
import warnings
from pathlib import Path
from time import thread_time

import numpy as np
import pinocchio as pin
from harness import Claim, Contender, Report, Row, progress, race

import torsor as ts
from torsor.model.extras import Extras

HERE = Path(__file__).parent.parent / "tests" / "robots" / "features.urdf"
ROBOTS = {"Panda": "robots/panda_description/urdf/panda.urdf", "Talos": "talos_data/robots/talos_full_v2.urdf",
          "G1": "g1_description/urdf/g1_29dof_rev_1_0.urdf"}  # fmt: skip
FEWEST = 1 / 3  # of Pinocchio's speed: torsor also reads limits, shapes, colours, and checks every number
TARGETS, WITHIN = 10_000, 1e-6
FEW, STEPS, RESTARTS = 100, 50, 20  # targets, steps and starts of pink


def measure(rounds: int) -> Report:
    report = Report("load", "Robot files, and inverse kinematics")
    warnings.simplefilter("ignore")
    for name, path in files().items():
        contenders = [
            Contender("pin.buildModelFromUrdf", pin.buildModelFromUrdf, [(str(path),)], answer=total_mass_of_pinocchio),
            Contender("torsor.load", ts.load, [(path,)], answer=total_mass, target=FEWEST if name in ROBOTS else None),
        ]
        report.rows += race(f"load {name}", contenders, unit="file", rounds=rounds, clock=thread_time)
    inverse_kinematics(report, rounds)
    return report


def files() -> dict[str, Path]:
    found = {"features.urdf": HERE}
    folder = os.environ.get("TORSOR_ROBOTS")
    for name, end in ROBOTS.items() if folder else ():
        for path in Path(folder).rglob(Path(end).name):
            if path.as_posix().endswith(end):
                found[name] = path
    return found


def total_mass(model: ts.Model) -> np.ndarray:
    return np.array([model.mass.sum()])


def total_mass_of_pinocchio(model) -> np.ndarray:
    return np.array([sum(model.inertias[i].mass for i in range(1, model.njoints))])


def inverse_kinematics(report: Report, rounds: int) -> None:
    """Random reachable poses of the last link of the zoo's Panda, joints within 2.5 rad; one core."""
    from dataclasses import replace
    from time import perf_counter

    model = replace(ts.zoo.panda(), lower=-2.5, upper=2.5)
    q = np.random.default_rng(0).uniform(-2.5, 2.5, (TARGETS, 7))
    targets = ts.frame_poses(model, q, 6)
    times, found = [], ts.inverse_kinematics(model, 6, targets)
    for r in range(min(rounds, 7)):
        progress(f"inverse kinematics: round {r + 1}")
        begin = perf_counter()
        found = ts.inverse_kinematics(model, 6, targets)
        times.append(perf_counter() - begin)
    progress("")
    case = f"{TARGETS} poses of a seven-joint arm"
    report.rows.append(Row(case, "torsor.inverse_kinematics", "all", min(times), float(np.median(times))))
    reached = ts.frame_poses(model, found.q, 6)
    within = np.abs(reached - targets).max(axis=(1, 2)) <= WITHIN
    report.claims.append(Claim("inverse kinematics: seconds for all", min(times), at_most=1.0))
    report.claims.append(Claim(f"inverse kinematics: share solved within {WITHIN:g}", within.mean(), at_least=0.99))
    peer_kinematics(report, model, targets)
    pink_kinematics(report, model, targets)


def pink_kinematics(report: Report, model: ts.Model, targets: np.ndarray) -> None:
    """The same targets, a few of them, by pink (steps by a quadratic program), started again at random if stuck."""
    try:
        import pink
    except ImportError:
        return
    from tempfile import TemporaryDirectory
    from time import perf_counter

    with TemporaryDirectory() as folder:
        joints = Extras(joint_names=tuple(f"joint{i}" for i in range(1, 8)))  # for pink, links must be called otherwise
        ts.save(model.with_extras(joints), f"{folder}/arm.urdf")
        robot = pin.buildModelFromUrdf(f"{folder}/arm.urdf")
    task = pink.FrameTask(model.names[6], position_cost=1.0, orientation_cost=1.0)
    rng, few, answers = np.random.default_rng(1), targets[:FEW], []
    begin = perf_counter()
    for T in few:
        task.set_target(pin.SE3(T))
        for _ in range(RESTARTS):
            arm = pink.Configuration(robot, robot.createData(), rng.uniform(-2.5, 2.5, 7))
            for _ in range(STEPS):
                if np.abs(task.compute_error(arm)).max() < WITHIN / 10:
                    break
                try:
                    arm.integrate_inplace(pink.solve_ik(arm, [task], 1.0, solver="quadprog", damping=1e-8), 1.0)
                except pink.exceptions.PinkError:  # beyond a limit
                    break
            if np.abs(task.compute_error(arm)).max() < WITHIN / 10:
                break
        answers.append(arm.q)
    seconds = (perf_counter() - begin) * TARGETS / FEW
    within = np.abs(ts.frame_poses(model, np.array(answers), 6) - few).max(axis=(1, 2)) <= WITHIN
    case = f"{TARGETS} poses of a seven-joint arm"
    report.rows.append(Row(case, f"pink, {TARGETS // FEW} x {FEW}", "all", seconds, seconds))
    report.claims.append(Claim(f"pink: share solved within {WITHIN:g}", within.mean()))


def peer_kinematics(report: Report, model: ts.Model, targets: np.ndarray) -> None:
    """The same targets, fewer of them, by the C++ solver of the Robotics Toolbox (`ik_LM`), where it is installed."""
    try:
        import roboticstoolbox as rtb
    except ImportError:
        return
    from time import perf_counter

    links = []
    for i in range(model.n):
        T = np.eye(4)
        T[:3, :3], T[:3, 3] = model.R[i], model.p[i]
        ets = rtb.ET.SE3(T) * rtb.ET.Rz(qlim=(-2.5, 2.5))  # the zoo's Panda turns about z everywhere
        links.append(rtb.Link(ets, parent=links[-1] if links else None))
    robot, few = rtb.Robot(links).ets(), targets[:1000]
    begin = perf_counter()
    answers = [robot.ik_LM(T, ilimit=30, slimit=100, tol=1e-13) for T in few]
    seconds = perf_counter() - begin
    reached = ts.frame_poses(model, np.array([answer[0] for answer in answers]), 6)
    within = np.abs(reached - few).max(axis=(1, 2)) <= WITHIN
    case = f"{TARGETS} poses of a seven-joint arm"
    report.rows.append(Row(case, "roboticstoolbox ik_LM, 10 x 1000", "all", 10 * seconds, 10 * seconds))
    report.claims.append(Claim(f"ik_LM: share solved within {WITHIN:g}", within.mean()))
