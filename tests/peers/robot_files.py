"""Robot files as Pinocchio and MuJoCo read them: M, bias, accelerations and poses at states given joint by joint.

A state maps the name of a joint to its q and v in torsor's conventions (a free joint: position and quaternion, twist in
the body's frame).  Nothing of torsor is used.
"""

import numpy as np

from .installed import peer

NQ = {"revolute": 1, "prismatic": 1, "spherical": 4, "planar": 3, "free": 7}
NV = {"revolute": 1, "prismatic": 1, "spherical": 3, "planar": 3, "free": 6}
GRAVITY = np.array([0.0, 0.0, -9.81])


def random_state(kinds, rng):
    """{joint: (q, v)} for {joint: kind}."""
    state = {}
    for name in sorted(kinds):
        kind = kinds[name]
        if kind in ("spherical", "free"):
            turn = rng.normal(size=4)
            turn /= np.linalg.norm(turn)
            q = turn if kind == "spherical" else np.concatenate([rng.uniform(-1, 1, 3), turn])
        else:
            q = rng.uniform(-1, 1, NQ[kind]) * (0.5 if kind == "prismatic" else np.pi)
        state[name] = q, rng.normal(size=NV[kind])
    return state


def rotation(w, x, y, z):
    return np.array([
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ])  # fmt: skip


def physical(inertia):
    """The nearest inertia of a body that can be: negative second moments of its mass are set to zero."""
    moments = np.trace(inertia) / 2 * np.eye(3) - inertia
    values, axes = np.linalg.eigh(moments)
    if values[0] >= -1e-9 * abs(np.trace(inertia)):
        return inertia
    moments = sum(max(value, 0) * np.outer(axis, axis) for value, axis in zip(values, axes.T))
    return np.trace(moments) * np.eye(3) - moments


class Engine:
    """`joints` maps names to (kind, first index of q, first index of v) in the engine's own vectors."""

    joints: dict
    nv: int
    without_rotors = False  # whether its M lacks the inertias of rotors

    @property
    def kinds(self):
        return {name: kind for name, (kind, _, _) in self.joints.items()}

    def terms(self, state, order):
        """(M, bias, {link: (p, R)}) with the joints in this order.  v_engine = T v, a_engine = T a + drift."""
        q, drift = self.neutral(), np.zeros(self.nv)
        T = np.zeros((self.nv, sum(NV[self.joints[name][0]] for name in order)))
        column = 0
        for name in order:
            kind, iq, iv = self.joints[name]
            theirs, block, rate = self.converted(name, kind, *state[name])
            q[iq : iq + len(theirs)] = theirs
            T[iv : iv + NV[kind], column : column + NV[kind]] = block
            drift[iv : iv + NV[kind]] = rate
            column += NV[kind]
        M, bias, links = self.evaluated(q, T @ np.concatenate([state[name][1] for name in order]))
        return T.T @ M @ T, T.T @ (bias + M @ drift), links


class PinocchioFile(Engine):
    """A URDF; impossible inertias are replaced by the nearest possible ones, once fixed links are merged."""

    without_rotors = True

    def __init__(self, path, base):
        pin = peer("pinocchio")
        root = (pin.JointModelFreeFlyer(),) if base == "free" else ()
        self.pin, self.model = pin, pin.buildModelFromUrdf(str(path), *root)
        self.joints, self.unbounded = {}, set()
        for i in range(1, self.model.njoints):
            joint, name = self.model.joints[i], self.model.names[i]
            self.joints[name] = self._kind(joint), joint.idx_q, joint.idx_v
            if (joint.nq, joint.nv) == (2, 1):
                self.unbounded.add(name)
            body = self.model.inertias[i]
            self.model.inertias[i] = pin.Inertia(body.mass, body.lever, physical(body.inertia))
        self.data, self.nv = self.model.createData(), self.model.nv

    @staticmethod
    def _kind(joint):
        name = joint.shortname()
        for word, kind in {"FreeFlyer": "free", "Spherical": "spherical", "Planar": "planar"}.items():
            if word in name:
                return kind
        return "prismatic" if "Prismatic" in name or name.startswith("JointModelP") else "revolute"

    def neutral(self):
        return self.pin.neutral(self.model)

    def converted(self, name, kind, q, v):
        if kind == "free":
            swap = np.roll(np.eye(6), 3, axis=0)
            return np.concatenate([q[:3], q[4:], q[3:4]]), swap, 0
        if kind == "spherical":
            return np.concatenate([q[1:], q[:1]]), np.eye(3), 0
        if kind == "planar":
            c, s = np.cos(q[2]), np.sin(q[2])
            turn = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]])
            rate = np.array([[-s, c, 0], [-c, -s, 0], [0, 0, 0]]) * v[2]
            return np.array([q[0], q[1], c, s]), turn, rate @ v
        return (np.array([np.cos(q[0]), np.sin(q[0])]) if name in self.unbounded else q), np.eye(1), 0

    def evaluated(self, q, v):
        pin, model, data = self.pin, self.model, self.data
        M = np.array(pin.crba(model, data, q))
        M = np.triu(M) + np.triu(M, 1).T
        bias = np.array(pin.nonLinearEffects(model, data, q, v))
        pin.framesForwardKinematics(model, data, q)
        kinds = (pin.FrameType.BODY, pin.FrameType.FIXED_JOINT)
        named = sorted((f.type == pin.FrameType.BODY, i) for i, f in enumerate(model.frames) if i and f.type in kinds)
        poses = {model.frames[i].name: data.oMf[i] for _, i in named}  # a link goes before a joint of the same name
        return M, bias, {name: (pose.translation, pose.rotation) for name, pose in poses.items()}


class MuJoCoFile(Engine):
    """An MJCF file as MuJoCo computes it, without constraints, contacts and actuators."""

    KINDS = ("free", "spherical", "prismatic", "revolute")

    def __init__(self, path):
        mujoco = peer("mujoco")
        self.mujoco, self.model = mujoco, mujoco.MjModel.from_xml_path(str(path))
        m, bits = self.model, mujoco.mjtDisableBit
        if m.opt.disableflags & int(bits.mjDSBL_GRAVITY):
            m.opt.gravity[:] = 0
        m.opt.disableflags |= int(bits.mjDSBL_CONSTRAINT) | int(bits.mjDSBL_ACTUATION)
        self.tendon_armature = bool(m.ntendon and np.any(m.tendon_armature))
        self.data, self.nv, self.joints = mujoco.MjData(m), m.nv, {}
        for j in range(m.njnt):
            body = int(m.jnt_bodyid[j])
            name = m.joint(j).name or f"{m.body(body).name or f'body{body}'}/{j - m.body_jntadr[body]}"
            self.joints[name] = self.KINDS[m.jnt_type[j]], int(m.jnt_qposadr[j]), int(m.jnt_dofadr[j])

    def neutral(self):
        return np.array(self.model.qpos0)

    def converted(self, name, kind, q, v):
        if kind != "free":
            return q, np.eye(NV[kind]), 0
        R, zero = rotation(*q[3:]), np.zeros((3, 3))  # MuJoCo: velocity of the origin in the world, omega in the body
        drift = np.concatenate([R @ np.cross(v[:3], v[3:]), np.zeros(3)])
        return q, np.block([[zero, R], [np.eye(3), zero]]), drift

    def evaluated(self, q, v):
        mujoco, m, d = self.mujoco, self.model, self.data
        mujoco.mj_resetData(m, d)
        d.qpos[:], d.qvel[:] = q, v
        mujoco.mj_forward(m, d)
        M = np.zeros((m.nv, m.nv))
        mujoco.mj_fullM(m, d, M)
        links = {m.body(b).name: (np.array(d.xpos[b]), d.xmat[b].reshape(3, 3).copy()) for b in range(1, m.nbody)}
        links.pop("", None)
        return M, np.array(d.qfrc_bias), links
