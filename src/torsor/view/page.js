// The page: a machine that stands still, a recorded motion, or a machine that moves by its own equations.
"use strict";

const FRAME = 0.05, MOST_COMPUTING = 12; // s that a frame makes up for at most; ms of dynamics per frame at most
const MOST_TRAILS = 2; // tips whose paths are shown at first
const MOST_LOG = 10; // s of a chart of a live machine
const SHORT = 0.5, LONG = 120, WATCHED = 10; // s: motions that are shorter or longer are played within the third

function fail(words, state) {
  document.body.insertAdjacentHTML("beforeend", `<div id="error">${escaped(words)}</div>`);
  document.body.dataset.state = state;
}

async function openPage() {
  const data = JSON.parse(await inflatedText("scene")), hash = new URLSearchParams(window.location.hash.slice(1));
  (0, eval)(await inflatedText("three"));
  let stage;
  try {
    stage = makeStage(data);
  } catch (error) {
    fail("This browser cannot draw WebGL.", "no-webgl");
    return;
  }
  const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  stage.setTheme(hash.get("theme") || system);
  const bodies = makeBodies(data, stage);
  const tube = data.tube && await makeTube(data.tube, data.radius, stage, bodies.layers);
  const machine = data.machine && await makeMachine(data);
  const isLive = Boolean(machine && data.machine.arrays.tau);
  const recorded = isLive ? null : makeRecorded(data, stage, bodies, tube);
  const app = { data, stage, bodies, machine, recorded, tube };
  app.draw = () => {
    if (tube) tube.draw(false);
    bodies.placeLabels();
    stage.render();
  };
  app.setBare = () => { // for pictures: without title and panels
    app.isBare = true;
    ["title", "side", "bar", "plots"].forEach((id) => { element(id).hidden = true; });
    stage.resize();
    stage.look(new THREE.Vector3(...data.center), new THREE.Vector3(...data.eye));
  };

  element("subtitle").textContent = data.subtitle;
  showMissing(data.missing);
  if (isLive) setUpLive(app);
  else setUpRecorded(app);
  setUpLayers(app);
  setUpMouse(app);
  if (isNarrow()) document.querySelectorAll("#side details").forEach((part) => { part.open = false; });
  stage.resize();
  stage.look(new THREE.Vector3(...data.center), new THREE.Vector3(...data.eye));
  app.frame(0);
  app.draw();
  document.body.dataset.state = "ready";
  performance.mark("ready");
  document.body.dataset.triangles = stage.renderer.info.render.triangles;
  window.torsor = app;
  let last = performance.now();
  function draw(now) {
    if (app.isBare) return; // whoever takes pictures draws each
    app.frame(Math.max(0, (now - last) / 1000));
    last = now;
    app.draw();
    requestAnimationFrame(draw);
  }
  requestAnimationFrame(draw);
}

function setUpLayers({ data, stage, bodies, tube }) {
  const { layers, shown } = bodies;
  Object.entries(layers).forEach(([name, objects]) => {
    const some = objects.length && !(name === "labels" && (tube || !data.bodies.length));
    if (some) tick("show", name, Boolean(shown[name] ?? name === "ghosts"), (x) => objects.forEach((object) => { object.visible = x; }));
    else if (name === "labels") element("labels").hidden = true;
  });
  tick("show", "dark", document.documentElement.dataset.theme === "dark", (x) => stage.setTheme(x ? "dark" : "light"));
  element("show").querySelector("div").insertAdjacentHTML("beforeend", `<div><small>a cell of the ground: ${round(stage.cell)} ${data.units.length}</small></div>`);
}

// ---- joints: sliders of a machine that can be posed ----

function jointSliders({ data, machine }, set) {
  const moves = data.joints.map(({ name, at, low, high, unit, limited }) => {
    const s = perUnit(unit), digits = unit === "rad" ? 0 : 3;
    const move = slider("angles", name, { low: low * s, high: high * s, value: machine.x.q[at] * s,
      label: (x) => `${x.toFixed(digits)}${unit === "rad" ? "°" : ` ${unit}`}${limited ? "" : " *"}`,
      set: (x) => { machine.x.q[at] = x / s; machine.obey(); set(); } });
    return () => move(machine.x.q[at] * s);
  });
  if (data.joints.some((x) => !x.limited)) element("angles").querySelector("div").insertAdjacentHTML("beforeend", "<small>* no limit in the file</small>");
  return moves;
}

// ---- a recorded motion, or none ----

function setUpRecorded(app) {
  const { data, recorded, bodies, machine } = app, { state, begin, end } = recorded;
  if (recorded.still) {
    recorded.seek(begin);
    if (machine) {
      const show = () => bodies.setPoses(machine.poses());
      machine.x.q.set(data.machine.start);
      const moves = jointSliders(app, show), pose = (q) => { machine.x.q.set(q); show(); moves.forEach((move) => move()); };
      if (data.joints.length) element("angles").open = true;
      const names = Object.keys(data.keyframes);
      if (names.length) choice("angles", "pose", names, (name) => pose(data.keyframes[name]));
      show();
    }
    app.frame = () => {};
    return;
  }
  const series = data.series && Object.fromEntries(Object.entries(data.series).map(([name, text]) => [name, decode(text, Float32Array)]));
  element("bar").hidden = false;
  ["step", "reset"].forEach((id) => { element(id).hidden = true; });
  const width = (quantity) => data.columns[quantity].length;
  const chart = series && makeChart(data.columns, data.units.time, (t) => { setPlaying(false); seek(t); });
  const plot = () => chart && chart.draw(data.times, (quantity, r, k) => series[quantity][r * width(quantity) + k], state.t);
  if (chart) chart.changed.add(plot);
  const whole = end - begin, words = (t, digits) => (whole < 0.1 ? t.toExponential(digits) : t.toFixed(digits));
  if (whole < SHORT || whole > LONG) { // as long as people watch
    element("speed").insertAdjacentHTML("beforeend", `<option value="${whole / WATCHED}" selected>${round(whole / WATCHED, 2)} x</option>`);
  }
  function seek(t) {
    recorded.seek(t);
    element("time").value = state.t;
    element("clock").textContent = `${words(state.t, 3)} / ${words(end, 2)} ${data.units.time}`;
    plot();
  }
  function setPlaying(playing) {
    if (playing && state.t >= end) seek(begin);
    state.playing = playing;
    element("play").textContent = playing ? "pause" : "play";
  }
  if (data.moving) tick("show", "follow", true, (x) => { element("bar").dataset.follow = x ? "yes" : ""; });
  Object.assign(element("time"), { min: begin, max: end });
  element("time").addEventListener("input", (event) => { setPlaying(false); seek(Number(event.target.value)); });
  element("play").addEventListener("click", () => setPlaying(!state.playing));
  onSpace(() => setPlaying(!state.playing));
  const seekHash = () => { // page.html#t=1.5 opens at that time
    const match = /t=([-+.\deE]+)/.exec(window.location.hash.replace("theme", ""));
    seek(match ? Number(match[1]) : begin);
  };
  window.addEventListener("hashchange", seekHash);
  app.frame = (seconds) => {
    if (!state.playing) return;
    seek(state.t + seconds * Number(element("speed").value));
    if (state.t >= end) setPlaying(false);
  };
  Object.assign(app, { seek, setPlaying });
  seekHash();
}

function onSpace(action) {
  window.addEventListener("keydown", (event) => {
    if (event.code === "Space" && event.target.tagName !== "BUTTON") { event.preventDefault(); action(); }
  });
}

// ---- a machine that moves by its own equations ----

function setUpLive(app) {
  const { data, machine, bodies, stage } = app, { x } = machine, spec = data.machine, h = x.h[0], { pace } = spec;
  const state = { playing: !spec.paused, speed: pace, method: spec.method, debt: 0, t: 0, frames: 0, computing: 0, base: null, largest: 0, steps: 0 };
  element("bar").hidden = false;
  ["time", "speed"].forEach((id) => { element(id).hidden = true; });
  const log = [], up = stage.up, trails = makeTrails(app);

  const chart = makeChart(data.columns, data.units.time, null);
  const columns = { energy: (row) => row.energy, ...Object.fromEntries(["q", "v", "tau"].map((name) => [name, (row) => row[name]])) };
  const plot = () => log.length && chart.draw(log.map((row) => row.t), (quantity, r, k) => columns[quantity](log[r])[k], null);
  chart.changed.add(plot);

  function record() {
    const [T, V] = machine.energies(), E = T + V;
    if (state.base === null) [state.base, state.largest] = [E, 0];
    state.largest = Math.max(state.largest, T);
    const picked = (name) => data.columns[name].map(({ at }) => x[name][at]);
    const row = { t: state.t, energy: [T, V, E] };
    ["q", "v", "tau"].forEach((name) => { if (data.columns[name]) row[name] = picked(name); });
    if (!log.length || state.t > log.at(-1).t) log.push(row);
    while (log[0].t < state.t - MOST_LOG * pace) log.shift();
    state.drift = state.largest ? Math.abs(E - state.base) / state.largest : 0;
    return E;
  }
  const disturbed = () => { state.base = null; };

  function show() {
    bodies.setPoses(machine.poses());
    trails.show();
  }

  function step(count) {
    for (let k = 0; k < count; k++) {
      machine.step(state.method);
      state.t += h;
      if (++state.steps % 8 === 0) trails.grow();
    }
    if (!x.state.every(Number.isFinite)) {
      reset();
      setPlaying(false);
      element("clock").textContent = "the motion diverged: more damping or the other method may help";
    }
  }

  function setPlaying(playing) {
    state.playing = playing;
    element("play").textContent = playing ? "pause" : "play";
  }

  function reset() {
    machine.pulls.clear();
    x.external.fill(0);
    x.state.fill(0);
    x.q.set(spec.start);
    state.t = 0;
    log.length = 0;
    trails.clear();
    disturbed();
    spec.pins.forEach(({ body, point }, k) => machine.hold(`pin${k}`, body, point, machine.pointOf(machine.poses(), { body, point }), true));
    trails.pins();
    record();
    show();
  }

  const weight = Math.hypot(...spec.gravity) || 9.81, { length, time } = data.units;
  slider("world", "gravity", { low: 0, high: 2.5 * weight, value: Math.hypot(...spec.gravity), label: (g) => `${round(g)} ${length}/${time}²`,
    set: (g) => { x.gravities.set(up.clone().multiplyScalar(-g).toArray()); disturbed(); } });
  slider("world", "damping", { low: 0, high: 1, value: 0, label: (d) => round(spec.damping * d ** 2, 2), set: (d) => { machine.setDamping(spec.damping * d ** 2); disturbed(); } });
  slider("world", "speed", { low: 0.05 * pace, high: 2 * pace, value: pace, label: (s) => `${round(s, 2)} x`, set: (s) => { state.speed = s; } });
  const method = choice("world", "method", spec.methods, (name) => { state.method = name; disturbed(); });
  method.value = spec.method;
  element("world").querySelector("div").insertAdjacentHTML("beforeend", "<small>Drag a body to pull it. Double-click one to pin it there (an orange ball), or to let it go.</small>");
  const moves = jointSliders(app, () => { setPlaying(false); x.v.fill(0); machine.pulls.forEach((pull) => { pull.last = null; }); disturbed(); show(); });
  data.drives.forEach(({ name, at, most, unit }) => {
    slider("torques", name, { low: -most, high: most, value: 0, label: (tau) => `${round(tau, 2)} ${unit}`, set: (tau) => { x.tau[at] = spec.tau[at] + tau; disturbed(); } });
  });

  element("play").addEventListener("click", () => setPlaying(!state.playing));
  element("step").addEventListener("click", () => { setPlaying(false); step(16); record(); plot(); show(); });
  element("reset").addEventListener("click", () => { reset(); plot(); });
  onSpace(() => setPlaying(!state.playing));

  const root = new THREE.Vector3(), before = new THREE.Vector3();
  app.frame = (seconds) => {
    state.debt = Math.min(state.debt + (state.playing ? Math.min(seconds, FRAME) * state.speed : 0), FRAME * pace);
    const began = performance.now();
    let count = 0;
    while (state.debt >= h && performance.now() - began < MOST_COMPUTING) { step(1); state.debt -= h; count++; }
    if (count) state.computing = performance.now() - began;
    if (state.playing) record();
    if (state.frames++ % 6 === 0 && state.playing) {
      plot();
      if (element("angles").open) moves.forEach((move) => move());
    }
    if (state.frames % 10 === 1) {
      const change = spec.conservative && !machine.pulls.size ? ` · energy drift ${state.drift && state.drift.toExponential(0)}` : "";
      element("clock").textContent = `${pace === 1 ? state.t.toFixed(1) : round(state.t)} ${time} · dynamics ${state.computing.toFixed(1)} ms per frame${change}`;
    }
    if (count || state.frames < 3) show();
    if (data.moving) {
      root.copy(bodies.groups[data.moving.body].position);
      if (state.seen) stage.follow(root.clone().sub(before));
      before.copy(root);
      state.seen = true;
    }
  };
  Object.assign(app, { state, step, record, reset, setPlaying, disturbed, pinsChanged: trails.pins });
  reset();
  setPlaying(state.playing);
  plot();
}

// The paths that the tips of a live machine drew last, the threads of pulls, and pins.
function makeTrails({ data, machine, bodies, stage }) {
  const LAST = 500, red = new THREE.LineBasicMaterial({ color: 0xd55e00 });
  const paths = data.tips.slice(0, 6).map(({ body, point }, k) => {
    const geometry = new THREE.BufferGeometry(), xyz = new Float32Array(3 * LAST);
    geometry.setAttribute("position", new THREE.BufferAttribute(xyz, 3));
    const line = new THREE.Line(geometry, new THREE.LineBasicMaterial({ color: PALETTE[(k + 1) % PALETTE.length] }));
    line.frustumCulled = false;
    bodies.layers.traces.push(line);
    line.visible = bodies.shown.traces = bodies.shown.traces && data.tips.length <= MOST_TRAILS;
    stage.scene.add(line);
    return { body, point, xyz, geometry, count: 0 };
  });
  const thread = new THREE.Line(new THREE.BufferGeometry(), red), balls = new Map();
  thread.frustumCulled = false;
  stage.scene.add(thread);
  function grow() {
    const P = paths.length && machine.poses();
    paths.forEach((path) => {
      if (path.count === LAST) { path.xyz.copyWithin(0, 3); path.count--; }
      path.xyz.set(machine.pointOf(P, path), 3 * path.count++);
    });
  }
  function show() {
    const P = machine.poses();
    paths.forEach((path) => {
      path.geometry.setDrawRange(0, path.count);
      path.geometry.attributes.position.needsUpdate = true;
    });
    const hand = machine.pulls.get("hand");
    thread.visible = Boolean(hand);
    if (hand) thread.geometry.setFromPoints([machine.pointOf(P, hand), hand.target].map((p) => new THREE.Vector3(...p)));
  }
  function pins() {
    balls.forEach((ball) => stage.scene.remove(ball));
    balls.clear();
    machine.pulls.forEach(({ target }, key) => {
      if (key === "hand") return;
      const ball = new THREE.Mesh(new THREE.SphereGeometry(2.2 * data.radius, 20, 14), new THREE.MeshBasicMaterial({ color: 0xd55e00, depthTest: false, transparent: true, opacity: 0.8 }));
      ball.position.set(...target);
      ball.renderOrder = 3;
      stage.scene.add(ball);
      balls.set(key, ball);
    });
  }
  return { grow, show, pins, clear: () => paths.forEach((path) => { path.count = 0; }) };
}

// ---- the mouse: names, cards, hands and pins ----

function setUpMouse(app) {
  const { data, stage, bodies, machine, state } = app, ray = new THREE.Raycaster(), mouse = new THREE.Vector2();
  const canvas = stage.renderer.domElement, plane = new THREE.Plane(), target = new THREE.Vector3(), { groups } = bodies;
  let pressed = null, card = null, cardBody = -1;
  function under(event) { // [body, point] under the mouse
    mouse.set(event.clientX / window.innerWidth * 2 - 1, 1 - event.clientY / window.innerHeight * 2);
    ray.setFromCamera(mouse, stage.camera);
    const hit = ray.intersectObjects(groups, true).find(({ object }) => object.isMesh && object.visible);
    let group = hit && hit.object;
    while (group && !groups.includes(group)) group = group.parent;
    return group ? [groups.indexOf(group), hit.point] : [-1, null];
  }
  const local = (body, point) => groups[body].worldToLocal(point.clone()).toArray();

  canvas.addEventListener("pointerdown", (event) => {
    const [body, point] = under(event);
    pressed = { body, x: event.clientX, y: event.clientY };
    if (body < 0 || !state) return;
    groups[body].updateMatrixWorld();
    machine.hold("hand", body, local(body, point), point.toArray());
    plane.setFromNormalAndCoplanarPoint(stage.camera.getWorldDirection(new THREE.Vector3()), point);
    canvas.setPointerCapture(event.pointerId); // so that a hand that leaves the window lets go
    stage.controls.enabled = false;
    app.disturbed();
    event.stopImmediatePropagation();
  }, { capture: true });
  window.addEventListener("pointermove", (event) => {
    const [body] = event.target === canvas ? under(event) : [-1], tip = element("tip"), hand = machine && machine.pulls && machine.pulls.get("hand");
    if (hand && ray.ray.intersectPlane(plane, target)) hand.target = target.toArray();
    Object.assign(tip.style, { display: body >= 0 ? "block" : "none", left: `${event.clientX + 14}px`, top: `${event.clientY + 12}px` });
    if (body >= 0) tip.textContent = data.bodies[body].name;
  });
  function letGo() {
    if (state && machine.pulls.has("hand")) { machine.release("hand"); app.disturbed(); }
    stage.controls.enabled = true;
  }
  window.addEventListener("pointercancel", letGo);
  window.addEventListener("pointerup", (event) => {
    letGo();
    const still = pressed && Math.hypot(event.clientX - pressed.x, event.clientY - pressed.y) < 4;
    if (still && pressed.body >= 0 && event.target === canvas) {
      cardBody = pressed.body;
      card = showCard(data, cardBody);
      card(groups[cardBody].position);
    }
    pressed = null;
  });
  canvas.addEventListener("dblclick", (event) => {
    const [body, point] = under(event);
    if (body < 0 || !state) return;
    const key = [...machine.pulls.entries()].find(([name, pull]) => name !== "hand" && pull.body === body)?.[0];
    if (key) machine.release(key);
    else machine.hold(`pin on ${body}`, body, local(body, point), point.toArray(), true);
    app.disturbed();
    app.pinsChanged();
  });
  const frame = app.frame;
  app.frame = (seconds) => { frame(seconds); if (card) card(groups[cardBody].position); };
}

openPage().catch((error) => fail(`This page fails: ${error.message}`, "failed"));
