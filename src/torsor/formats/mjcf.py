"""MJCF, compiled by MuJoCo itself: the arrays of its compiled model become links and joints (extra `mjcf`).

MuJoCo handles defaults, classes, includes, masses from geoms and meshes; nothing of this is repeated here.  q is
MuJoCo's qpos, joint by joint in the same order: a `ref` is folded into the placement of its joint.  The configuration
drawn in the file is the keyframe "qpos0", if it is not the neutral one.  Contacts, constraints, tendons and fluids are
not modelled, and each is noted, except that a linear equality of two joints becomes a coupling.

If a joint is not at the origin of its body, the body of the Model is at the joint and has the joint's name; the
name of MuJoCo's body is then a frame, as are the names of sites.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import cached_property
from math import cos, inf, sin
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.errors import ModelError
from torsor.formats.folders import Folders
from torsor.formats.robot import ONE, ROOT_JOINT, Robot, RobotLink, color, unused
from torsor.formats.xml import LATIN_REMARK, OPTENV_REMARK, Document
from torsor.later import Later, loaded
from torsor.lie import log_quaternion, quaternion_to_matrix, rodrigues
from torsor.linalg import Vec

mujoco = Later("mujoco", "MJCF files are compiled by MuJoCo", "torsor[mjcf]")

Array = NDArray[Any]

FREE, BALL, SLIDE, HINGE = range(4)
JOINTS = {FREE: "free", BALL: "spherical", SLIDE: "prismatic", HINGE: "revolute"}
MOST_INCLUDES = 500
VISIBLE_GROUPS = 3  # MuJoCo's viewer hides the others, which are for collisions
GEOMS = {2: "sphere", 3: "capsule", 4: "ellipsoid", 5: "cylinder", 6: "box", 7: "mesh"}
PLAIN = (0.5, 0.5, 0.5, 1.0)  # the colour of a geom without a given colour
MOST = 1e10  # MuJoCo's largest number: a limit beyond it means no limit
# Prefixes of attributes that name files, attributes that name folders, and elements whose files are parsed.
FILE, DIRECTORIES, PARSED = "file", ("meshdir", "texturedir", "assetdir"), ("include", "model")


def read(document: Document, folders: Folders, base: str | None) -> Robot:
    """The robot of an MJCF file."""
    loaded(mujoco, where=f"{document.path}: ")
    _check_paths(document, folders)
    try:
        spec = mujoco.MjSpec.from_file(document.path)
        spec.compiler.fusestatic, spec.compiler.discardvisual = False, False
        _set_base(spec, base)
        compiled = spec.compile()
    except (ValueError, RuntimeError, TypeError) as error:
        raise ModelError(f"{document.path}: MuJoCo refuses it: {' '.join(str(error).split())}") from None
    return _MujocoReader(mujoco, compiled, document, folders, spec).robot()


# ---- before compiling ----


def _check_paths(document: Document, folders: Folders) -> None:
    """Refuse files that MuJoCo would open outside the allowed folders, also through includes."""
    documents = _included(document, folders)
    named = {e.get(key, "") for each in documents for e in each.root.iter("compiler") for key in DIRECTORIES}
    for each in documents:
        for remark in {OPTENV_REMARK, LATIN_REMARK}.intersection(each.remarks):
            raise each.error(None, f"MuJoCo reads UTF-8 without $(optenv): change the file ({remark})")
        for element in each.root.iter():
            for key, name in element.items():
                choices = _choices(each, folders, name, named if key.startswith(FILE) else ())
                if key.startswith((FILE, *DIRECTORIES)) and not all(map(folders.bounds, choices)):
                    raise each.error(element, f"{key}={name!r} lies outside the folders of this file; folders= adds")


def _choices(document: Document, folders: Folders, name: str, named: Collection[str] = ()) -> list[str]:
    """Where MuJoCo may look for a file: beside the document or the first document, in one of the folders they name."""
    places = (os.path.dirname(os.path.abspath(document.path)), folders.home)
    return [os.path.join(place, folder, name) for place in places for folder in {"", *named}]


def _included(document: Document, folders: Folders) -> list[Document]:
    """The document, and all documents that it makes MuJoCo parse."""
    found, seen = [document], {os.path.abspath(document.path)}
    for current in found:
        for element in current.root.iter():
            choices = _choices(current, folders, element.get(FILE, "")) if element.tag in PARSED else ()
            for path in {os.path.abspath(path) for path in map(folders.inside, choices) if path} - seen:
                seen.add(path)
                found.append(Document.read(path))
        if len(seen) > MOST_INCLUDES:
            raise ModelError(f"{document.path}: it includes more than {MOST_INCLUDES} files")
    return found


def _set_base(spec: Any, base: str | None) -> None:
    """Free or fix the bodies on the world that carry joints (all bodies on the world if none does)."""
    if base is None:
        return
    tops = list(spec.worldbody.bodies)
    moving = [body for body in tops if body.find_all("joint")] or tops
    for body in moving:
        joints = list(body.joints)
        free = [joint for joint in joints if joint.type == mujoco.mjtJoint.mjJNT_FREE]
        if base == "free" and not joints and not body.mocap:
            name = ROOT_JOINT if len(moving) == 1 else f"{body.name}_{ROOT_JOINT}"
            body.add_freejoint(name=name)
        if base == "fixed":
            for joint in free:
                spec.delete(joint)


# ---- after compiling ----


class _MujocoReader:
    """The compiled model, and the robot made from it."""

    def __init__(self, mujoco: Any, compiled: Any, document: Document, folders: Folders, spec: Any):
        self.mujoco, self.m, self.folders, self.spec = mujoco, compiled, folders, spec
        name = spec.modelname if spec.modelname != "MuJoCo Model" else ""
        self.result = Robot(name or Path(document.path).stem, document.path)
        m = self.m
        self.bodies = [m.body(i).name or f"body{i}" for i in range(m.nbody)]
        # the world, which is a link if something is attached to it, gives way to a site of the same name
        self.bodies[0] = unused(self.bodies[0], {*self.bodies[1:], *(m.site(i).name for i in range(m.nsite))}, "/body")
        self.taken = set(self.bodies)
        self.joints = self._joint_names()
        self.has_world = False

    def robot(self) -> Robot:
        m, robot = self.m, self.result
        robot.gravity = np.zeros(3) if self._disabled("GRAVITY") else np.array(m.opt.gravity)
        for i in range(1, m.nbody):
            self._body(i)
        for i in range(m.nsite):
            self._site(i)
        for i in range(m.ngeom):
            self._geom(i)
        for i in range(getattr(m, "nactuator", m.nu)):
            self._actuator(i)
        self._keyframes()
        self._notes()
        return robot

    def _joint_names(self) -> list[str]:
        """Names of joints; a joint without a name gets that of its body and its index there, such as body/0."""
        m, names = self.m, []
        for j in range(m.njnt):
            body = int(m.jnt_bodyid[j])
            names.append(m.joint(j).name or f"{self.bodies[body]}/{j - int(m.body_jntadr[body])}")
        return names

    def _unused(self, name: str, suffix: str) -> str:
        """A name for a body of the Model, different from all others."""
        name = unused(name, self.taken, suffix)
        self.taken.add(name)
        return name

    def _disabled(self, flag: str) -> bool:
        bit = getattr(self.mujoco.mjtDisableBit, f"mjDSBL_{flag}", None)
        return bit is not None and bool(self.m.opt.disableflags & int(bit))

    # ---- bodies ----

    def _body(self, i: int) -> None:
        """A body: one link per joint, the last with the mass; without joints, one fixed link."""
        m, name = self.m, self.bodies[i]
        parent = None if m.body_parentid[i] == 0 else self.bodies[m.body_parentid[i]]
        R, p, anchor = _rotation(m.body_quat[i]), np.array(m.body_pos[i]), np.zeros(3)
        count, first = int(m.body_jntnum[i]), int(m.body_jntadr[i])
        for j in range(first, first + count):
            at = np.array(m.jnt_pos[j])
            own = j == first + count - 1 and not at.any()
            link = self._joint(j, name if own else self._unused(self.joints[j], "/joint"))
            link.parent = parent
            if m.jnt_type[j] != FREE:  # the qpos of a free joint is the pose itself
                link.R, link.p = self._referred(j, R, p + R @ (at - anchor))
                anchor = at
            self.result.links.append(link)
            R, p, parent = ONE, np.zeros(3), link.name
        if not count or anchor.any():
            self.result.links.append(link := RobotLink(name, parent, R=R, p=p - R @ anchor))
        turn = _rotation(m.body_iquat[i])
        inertia = (turn * m.body_inertia[i]) @ turn.T
        link.mass, link.com, link.inertia = float(m.body_mass[i]), np.array(m.body_ipos[i]), (inertia + inertia.T) / 2

    def _referred(self, j: int, R: Array, p: Array) -> tuple[Array, Array]:
        """The placement for which qpos = ref is the pose drawn in the file: M exp(-S ref)."""
        m, kind = self.m, int(self.m.jnt_type[j])
        ref = float(m.qpos0[m.jnt_qposadr[j]]) if kind in (SLIDE, HINGE) else 0.0
        if kind == SLIDE:
            return R, p - R @ m.jnt_axis[j] * ref
        if kind == HINGE and ref:
            return R @ np.array(rodrigues(Vec(*m.jnt_axis[j].tolist()), cos(ref), -sin(ref))), p
        return R, p

    def _joint(self, j: int, name: str) -> RobotLink:
        m, kind = self.m, int(self.m.jnt_type[j])
        link = RobotLink(name, joint=JOINTS[kind], joint_name=self.joints[j])
        if kind in (SLIDE, HINGE):
            link.axis = np.array(m.jnt_axis[j])
        dofs = slice(int(m.jnt_dofadr[j]), int(m.jnt_dofadr[j]) + (6, 3, 1, 1)[kind])
        found = link.freedoms
        arrays = {"damping": m.dof_damping, "friction": m.dof_frictionloss, "armature": m.dof_armature}
        for key, flag in (("damping", "DAMPER"), ("friction", "FRICTIONLOSS"), ("armature", "")):
            values = np.array(arrays[key][dofs])
            if values.any() and not self._disabled(flag):
                found[key] = np.roll(values, 3) if kind == FREE else values  # torsor: angular first
        if m.jnt_stiffness[j] and not self._disabled("SPRING"):
            self._spring(j, kind, found)
        limited = bool(m.jnt_limited[j]) and not self._disabled("LIMIT")
        if limited and kind in (SLIDE, HINGE):
            found["lower"], found["upper"] = _limits(m.jnt_range[j])
        elif limited:
            self.result.note("ignored", f"joint {self.joints[j]!r}", "its limit: the angle of a ball joint")
        if m.jnt_actfrclimited[j] and kind in (SLIDE, HINGE):
            found["effort"] = float(np.abs(m.jnt_actfrcrange[j]).max())
        return link

    def _spring(self, j: int, kind: int, found: dict[str, Any]) -> None:
        m, at = self.m, int(self.m.jnt_qposadr[j])
        if kind == FREE:
            self.result.note("ignored", f"joint {self.joints[j]!r}", "its springs: those of a free joint")
            return
        found["stiffness"] = float(m.jnt_stiffness[j])
        if kind == BALL:
            found["rest"] = log_quaternion(np.array(m.qpos_spring[at : at + 4]))
        else:
            found["rest"] = float(m.qpos_spring[at])

    # ---- frames, shapes, inputs ----

    def _host(self, body: int) -> str:
        """The link that carries something; the world becomes a link when needed."""
        if body == 0 and not self.has_world:
            self.has_world = True
            self.result.links.append(RobotLink(self.bodies[0]))
        return self.bodies[body]

    def _site(self, i: int) -> None:
        m, name = self.m, self.m.site(i).name
        if name:
            host = self._host(int(m.site_bodyid[i]))
            R, p = _rotation(m.site_quat[i]), np.array(m.site_pos[i])
            self.result.links.append(RobotLink(self._unused(name, "/site"), host, R=R, p=p))

    def _geom(self, i: int) -> None:
        m, kind = self.m, int(self.m.geom_type[i])
        rgba = m.mat_rgba[m.geom_matid[i]] if m.geom_matid[i] >= 0 else m.geom_rgba[i]
        if kind not in GEOMS or m.geom_group[i] >= VISIBLE_GROUPS or rgba[3] == 0 or self._only_collides(i):
            return
        R, p, size, words = _rotation(m.geom_quat[i]), np.array(m.geom_pos[i]), m.geom_size[i].tolist(), {}
        shape = GEOMS[kind]
        sizes: tuple[float, ...] = {
            "sphere": (size[0],), "box": tuple(2 * x for x in size), "ellipsoid": tuple(size),
        }.get(shape, (size[0], 2 * size[1]))  # fmt: skip
        if shape == "mesh":
            mesh = int(m.geom_dataid[i])
            words["file"] = self._mesh_file(mesh)
            sizes = tuple(map(float, m.mesh_scale[mesh]))
            # MuJoCo moves a mesh to its mass centre and rotates it to its principal axes
            turn = R @ _rotation(m.mesh_quat[mesh]).T
            R, p = turn, p - turn @ m.mesh_pos[mesh]
        host = self._host(int(m.geom_bodyid[i]))
        self.result.visuals.append((host, dict(shape=shape, size=sizes, R=R, p=p, color=color(rgba), **words)))

    def _only_collides(self, i: int) -> bool:
        """Whether a geom is only for collisions: it has no colour, and its body has geoms that do not collide."""
        m = self.m
        seen_only = (m.geom_contype == 0) & (m.geom_conaffinity == 0)
        plain = m.geom_matid[i] < 0 and (m.geom_rgba[i] == PLAIN).all()
        return plain and not seen_only[i] and bool((seen_only & (m.geom_bodyid == m.geom_bodyid[i])).any())

    @cached_property
    def _mesh_files(self) -> dict[str, str]:
        """Name of a mesh -> its file; a mesh without a name gets that of its file."""
        return {x.name or Path(x.file).stem: x.file for x in reversed(list(self.spec.meshes))}

    def _mesh_file(self, mesh: int) -> str:
        """The file of a mesh if it exists, else its name."""
        name = self.m.mesh(mesh).name
        file = self._mesh_files.get(name) or name
        folder = self.spec.meshdir or getattr(self.spec.compiler, "meshdir", "")
        home = self.folders.home
        choices = (os.path.join(home, folder, file), os.path.join(home, file))
        return next((found for found in map(self.folders.inside, choices) if found), file)

    def _actuator(self, i: int) -> None:
        m, mj = self.m, self.mujoco
        name = m.actuator(i).name or f"actuator{i}"
        joint = int(m.actuator_trnid[i, 0])
        transmission = int(m.actuator_trntype[i])
        if transmission not in (int(mj.mjtTrn.mjTRN_JOINT), int(mj.mjtTrn.mjTRN_JOINTINPARENT)):
            kind = mj.mjtTrn(transmission).name.removeprefix("mjTRN_").lower()
            self.result.note("ignored", f"actuator {name!r}", f"it acts on a {kind}, not on a joint")
            return
        kind, gear = int(m.jnt_type[joint]), np.array(m.actuator_gear[i])
        if kind == FREE or (kind == BALL and transmission == int(mj.mjtTrn.mjTRN_JOINTINPARENT)):
            self.result.note("ignored", f"actuator {name!r}", "it acts on a free joint, or in the frame of the parent")
            return
        words = {"name": name, "gain": float(m.actuator_gainprm[i, 0])}
        if m.actuator_biastype[i] == int(mj.mjtBias.mjBIAS_AFFINE):
            words["bias"] = tuple(map(float, m.actuator_biasprm[i, :3]))
        plain = m.actuator_gaintype[i] == int(mj.mjtGain.mjGAIN_FIXED) and m.actuator_biastype[i] <= int(
            mj.mjtBias.mjBIAS_AFFINE
        )
        if not plain or m.actuator_dyntype[i] != int(mj.mjtDyn.mjDYN_NONE):
            self.result.note("ignored", f"actuator {name!r}", "its own dynamics, or a gain that depends on the state")
        for key, limited, limits in (("control", "ctrllimited", "ctrlrange"), ("effort", "forcelimited", "forcerange")):
            if getattr(m, f"actuator_{limited}")[i]:
                words[key] = _limits(getattr(m, f"actuator_{limits}")[i])
        self.result.actuators.append(({self.joints[joint]: gear[: (6, 3, 1, 1)[kind]]}, words))

    def _keyframes(self) -> None:
        """Named configurations, including qpos0 if it is not the neutral one."""
        m = self.m
        named = {m.key(k).name or f"key{k}": m.key_qpos[k] for k in range(m.nkey)}
        neutral = np.zeros(m.nq)
        for j in range(m.njnt):
            if m.jnt_type[j] in (FREE, BALL):
                neutral[m.jnt_qposadr[j] + (3 if m.jnt_type[j] == FREE else 0)] = 1.0
        if not np.array_equal(m.qpos0, neutral):
            named.setdefault("qpos0", m.qpos0)
        widths = {FREE: 7, BALL: 4, SLIDE: 1, HINGE: 1}
        for name, qpos in named.items():
            starts = [(self.joints[j], int(m.jnt_qposadr[j]), widths[int(m.jnt_type[j])]) for j in range(m.njnt)]
            self.result.keyframes[name] = {joint: np.array(qpos[at : at + width]) for joint, at, width in starts}

    # ---- what is not modelled ----

    def _notes(self) -> None:
        m, note = self.m, self.result.note
        for i in range(m.neq):
            self._equality(i)
        for i in range(m.ntendon):
            note("ignored", f"tendon {m.tendon(i).name or i!r}", "its springs, damping, limits and armature")
        for i in np.flatnonzero(m.body_gravcomp).tolist():
            note("ignored", f"body {self.bodies[i]!r}", f"its gravity compensation {m.body_gravcomp[i]:g}")
        if m.opt.density or m.opt.viscosity:
            note("ignored", "<option>", f"the fluid of density {m.opt.density:g} and viscosity {m.opt.viscosity:g}")
        for key in ("flex", "skin", "plugin"):
            if count := getattr(m, f"n{key}", 0):
                note("ignored", f"<{key}>", f"{count} of them")
        for key in ("dof_dampingpoly", "jnt_stiffnesspoly", "actuator_damping"):
            if np.any(getattr(m, key, 0)):
                note("ignored", key, "terms beyond linear springs and dampers at the joints")
        if m.nmocap:
            note("read", "mocap bodies", f"{m.nmocap} of them, fixed to the base")
        note("read", "contacts", f"{m.ngeom} geoms, which touch nothing here")

    def _equality(self, i: int) -> None:
        """A linear equality of two joints becomes a coupling; every other constraint is noted and omitted."""
        m, mj = self.m, self.mujoco
        kind = mj.mjtEq(int(m.eq_type[i])).name.removeprefix("mjEQ_").lower()
        ends = [self._object(int(m.eq_objtype[i]), int(x), kind) for x in (m.eq_obj1id[i], m.eq_obj2id[i])]
        where, words = f"equality {m.equality(i).name or i}", f"{kind} of {' and '.join(e for e in ends if e)}"
        if self._disabled("EQUALITY") or not m.eq_active0[i]:
            self.result.note("read", where, f"{words}: it is not active")
        elif kind == "joint" and m.eq_obj2id[i] >= 0 and not m.eq_data[i, 2:5].any() and self._couple(i):
            self.result.note("read", where, f"{words}: one follows the other exactly; MuJoCo lets it give a little")
        else:
            self.result.note("ignored", where, words)

    def _couple(self, i: int) -> bool:
        """Let one joint follow another: q1 - ref1 = c0 + c1 (q2 - ref2); False if both already follow others."""
        m, mimics = self.m, self.result.mimics
        (first, second), (c0, c1) = (int(m.eq_obj1id[i]), int(m.eq_obj2id[i])), map(float, m.eq_data[i, :2])
        refs = [float(m.qpos0[m.jnt_qposadr[j]]) for j in (first, second)]
        offset = refs[0] + c0 - c1 * refs[1]
        ways = [(first, second, c1, offset)] + ([(second, first, 1 / c1, -offset / c1)] if c1 else [])
        for follower, leader, ratio, shift in ways:
            name, other = self.joints[follower], self.joints[leader]
            if name not in mimics and name != self._first_leader(other):
                mimics[name] = other, ratio, shift
                return True
        return False

    def _first_leader(self, joint: str) -> str:
        while joint in self.result.mimics:
            joint = self.result.mimics[joint][0]
        return joint

    def _object(self, objtype: int, i: int, kind: str) -> str:
        word = next((word for word in ("joint", "tendon", "flex") if kind.startswith(word)), "")
        if i < 0:
            return "" if word else "the world"
        if word == "joint":
            return repr(self.joints[i])
        if word:
            kind_of = getattr(self.mujoco.mjtObj, f"mjOBJ_{word.upper()}")
            return repr(self.mujoco.mj_id2name(self.m, kind_of, i) or i)
        if objtype == int(self.mujoco.mjtObj.mjOBJ_BODY):
            return repr(self.bodies[i])
        return f"{self.mujoco.mjtObj(objtype).name.removeprefix('mjOBJ_').lower()} {i}"


def _rotation(quaternion: Any) -> Array:
    return np.asarray(quaternion_to_matrix(np.array(quaternion)), dtype=np.float64)


def _limits(ends: Any) -> tuple[float, float]:
    """A lower and an upper limit; the largest numbers mean no limit."""
    lower, upper = map(float, ends)
    return lower if lower > -MOST else -inf, upper if upper < MOST else inf
