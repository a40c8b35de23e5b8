// A machine that computes: torsor's own functions and steps, compiled to WebAssembly, and forces on points of its bodies.
"use strict";

async function makeMachine(spec, bodies) {
  const env = { sin: Math.sin, cos: Math.cos };
  const { exports } = (await WebAssembly.instantiate(decode(spec.module, Uint8Array), { env })).instance;
  const view = ([at, size]) => new Float64Array(exports.memory.buffer, at, size);
  const views = (places) => Object.fromEntries(Object.entries(places).map(([name, place]) => [name, view(place)]));
  const x = views(spec.arrays), out = views(spec.outputs), gain0 = x.gain && Float64Array.from(x.gain);
  const call = (name) => { exports[name](); return out[name]; };

  function obey() { // joints that follow others
    spec.couplings.forEach(([follower, leader, ratio, offset]) => { x.q[follower] = ratio * x.q[leader] + offset; });
  }

  // ---- forces on points: a spring and a damper from each to a point of the world ----
  const pulls = new Map(), grips = [0.02, 0.04]; // how stiff a hand and a pin are: k h^2 / m of the point they hold

  function pointOf(P, { body, point }) {
    const b = 16 * body;
    return [0, 4, 8].map((r) => P[b + r] * point[0] + P[b + r + 1] * point[1] + P[b + r + 2] * point[2] + P[b + r + 3]);
  }

  // The mass that a point of a body feels in its lightest direction, from steps with and without a force on it.
  function feltMass(pull) {
    const before = Float64Array.from(x.state), force = spec.weight || 1, h = x.h[0];
    const moved = (F) => {
      x.pulls.fill(0);
      addForce(pull, F);
      exports["implicit-euler"]();
      const p = pointOf(call("poses"), pull);
      x.state.set(before);
      return p;
    };
    const rest = moved([0, 0, 0]);
    const masses = [0, 1, 2].map((k) => force * h * h / Math.abs(moved([0, 1, 2].map((i) => (i === k ? force : 0)))[k] - rest[k]));
    x.pulls.fill(0);
    return Math.min(...masses.filter(Number.isFinite), spec.mass);
  }

  function addForce({ body, point }, F) { // sum F, and the rows of sum F p^T
    const at = 12 * body;
    for (let i = 0; i < 3; i++) {
      x.pulls[at + i] += F[i];
      for (let k = 0; k < 3; k++) x.pulls[at + 3 + 3 * i + k] += F[i] * point[k];
    }
  }

  function hold(key, body, point, target, isPin = false) {
    const pull = { body, point, target, last: null }, m = feltMass(pull), h = x.h[0];
    const stiffest = grips[Number(isPin)] * m / h ** 2;
    pull.k = isPin ? stiffest : Math.min(stiffest, 12 * spec.mass * 9.81 / bodies.reach);
    pull.c = Math.sqrt(pull.k * m);
    pulls.set(key, pull);
  }

  function applyPulls() {
    if (!pulls.size) return;
    x.pulls.fill(0);
    const P = call("poses"), h = x.h[0];
    for (const pull of pulls.values()) {
      const p = pointOf(P, pull), last = pull.last || p;
      addForce(pull, p.map((here, k) => pull.k * (pull.target[k] - here) - pull.c * (here - last[k]) / h));
      pull.last = p;
    }
  }

  function release(key) {
    pulls.delete(key);
    if (x.pulls) x.pulls.fill(0);
  }

  function step(method) {
    applyPulls();
    exports[method]();
  }

  function setDamping(d) { for (let i = 0; i < x.gain.length; i++) x.gain[i] = gain0[i] + d * x.damping[i]; }

  return { x, call, obey, hold, release, pulls, step, setDamping, poses: () => call("poses"), pointOf,
           energies: () => [call("kinetic")[0], call("potential")[0]] };
}
