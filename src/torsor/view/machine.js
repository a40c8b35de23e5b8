// A machine that computes: torsor's own functions and steps, compiled to WebAssembly, and forces on points of its bodies.
"use strict";

async function makeMachine(data) {
  const spec = data.machine;
  const env = { sin: Math.sin, cos: Math.cos };
  const { exports } = (await WebAssembly.instantiate(await inflate(spec.module, Uint8Array), { env })).instance;
  const view = ([at, size]) => new Float64Array(exports.memory.buffer, at, size);
  const views = (places) => Object.fromEntries(Object.entries(places).map(([name, place]) => [name, view(place)]));
  const x = views(spec.arrays), out = views(spec.outputs), gain0 = x.gain && Float64Array.from(x.gain);
  const poses = () => { exports.bodies(); return out.pose; };

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
      x.external.fill(0);
      addForce(poses(), pull, F);
      exports["implicit-euler"]();
      const p = pointOf(poses(), pull);
      x.state.set(before);
      return p;
    };
    const rest = moved([0, 0, 0]);
    const masses = [0, 1, 2].map((k) => force * h * h / Math.abs(moved([0, 1, 2].map((i) => (i === k ? force : 0)))[k] - rest[k]));
    x.external.fill(0);
    return Math.min(...masses.filter(Number.isFinite), spec.mass);
  }

  function addForce(P, { body, point: [a, b, c] }, F) { // the wrench (p x f, f), f = R^T F, in the body's frame
    const [f, g, h] = [0, 1, 2].map((k) => [0, 1, 2].reduce((sum, r) => sum + P[16 * body + 4 * r + k] * F[r], 0));
    [b * h - c * g, c * f - a * h, a * g - b * f, f, g, h].forEach((y, k) => { x.external[6 * body + k] += y; });
  }

  function hold(key, body, point, target, isPin = false) {
    const pull = { body, point, target, last: null }, m = feltMass(pull), h = x.h[0];
    const stiffest = grips[Number(isPin)] * m / h ** 2;
    pull.k = isPin ? stiffest : Math.min(stiffest, 12 * spec.mass * 9.81 / data.reach);
    pull.c = Math.sqrt(pull.k * m);
    pulls.set(key, pull);
  }

  function applyPulls() {
    if (!pulls.size) return;
    x.external.fill(0);
    const P = poses(), h = x.h[0];
    for (const pull of pulls.values()) {
      const p = pointOf(P, pull), last = pull.last || p;
      addForce(P, pull, p.map((here, k) => pull.k * (pull.target[k] - here) - pull.c * (here - last[k]) / h));
      pull.last = p;
    }
  }

  function release(key) {
    pulls.delete(key);
    if (x.external) x.external.fill(0);
  }

  function step(method) {
    applyPulls();
    exports[method]();
  }

  function setDamping(d) { for (let i = 0; i < x.gain.length; i++) x.gain[i] = gain0[i] + d * x.damping[i]; }

  function energies() { // kinetic and potential
    const P = poses(), g = x.gravities, weigh = ({ mass, com }, body) =>
      mass * pointOf(P, { body, point: com }).reduce((sum, y, k) => sum + g[k] * y, 0);
    return [out.kinetic.reduce((a, b) => a + b), -data.bodies.map(weigh).reduce((a, b) => a + b)];
  }

  return { x, obey, hold, release, pulls, step, setDamping, poses, pointOf, energies };
}
