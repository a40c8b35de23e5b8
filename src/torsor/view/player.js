// Plays a trajectory: builds the bodies once, then sets their poses for the time on the slider.
"use strict";
(async () => {
  const element = (id) => document.getElementById(id);
  const data = JSON.parse(element("scene").textContent);
  const poses = decode(data.poses, Float32Array); // frame, body, (x, y, z, qx, qy, qz, qw)
  const traces = decode(data.traces, Float32Array); // frame, tip, (x, y, z)
  const count = data.bodies.length, frames = data.times.length;
  const end = data.times[frames - 1], begin = data.times[0];
  const PALETTE = [0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7, 0xe69f00, 0x56b4e9];

  function decode(base64, Kind) {
    const letters = atob(base64), bytes = new Uint8Array(letters.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
    return new Kind(bytes.buffer);
  }

  async function inflate(base64, Kind) {
    const stream = new Blob([decode(base64, Uint8Array)]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Kind(await new Response(stream).arrayBuffer());
  }

  let renderer;
  try {
    renderer = new THREE.WebGLRenderer({ antialias: true, preserveDrawingBuffer: true });
  } catch (error) {
    document.body.insertAdjacentHTML("beforeend", '<div id="error">This browser cannot draw WebGL.</div>');
    document.body.dataset.state = "no-webgl";
    return;
  }
  renderer.setPixelRatio(window.devicePixelRatio);
  document.body.prepend(renderer.domElement);

  const scene = new THREE.Scene();
  scene.background = new THREE.Color(0xf4f5f7);
  scene.add(new THREE.HemisphereLight(0xffffff, 0x999999, 2.2));
  const sun = new THREE.DirectionalLight(0xffffff, 1.8);
  sun.position.set(2, -3, 5);
  scene.add(sun);

  const camera = new THREE.PerspectiveCamera(40, 1, data.reach * 1e-3, data.reach * 1e4);
  camera.up.set(...data.up);
  const controls = new THREE.OrbitControls(camera, renderer.domElement);

  // ---- bodies ----

  const layers = { shapes: [], links: [], joints: [], boxes: [], frames: [], traces: [] };
  const radius = data.radius;

  function material(color, opacity = 1) {
    return new THREE.MeshStandardMaterial({ color, roughness: 0.55, metalness: 0.05, transparent: opacity < 1, opacity,
                                            depthWrite: opacity === 1 });
  }

  function capsule(from, to, r, paint) {
    const a = new THREE.Vector3(...from), b = new THREE.Vector3(...to), along = b.clone().sub(a), length = along.length();
    const mesh = new THREE.Mesh(new THREE.CapsuleGeometry(r, length, 6, 16), paint);
    mesh.position.copy(a).addScaledVector(along, 0.5);
    if (length > 0) mesh.quaternion.setFromUnitVectors(new THREE.Vector3(0, 1, 0), along.normalize());
    return mesh;
  }

  function box(spec, paint) {
    const mesh = new THREE.Mesh(new THREE.BoxGeometry(...spec.size), paint);
    mesh.position.set(...spec.center);
    mesh.quaternion.set(...spec.quaternion);
    return mesh;
  }

  function joint(body) {
    const paint = material(0x444444);
    if (body.joint === "prismatic") return new THREE.Mesh(new THREE.BoxGeometry(2.6 * radius, 2.6 * radius, 2.6 * radius), paint);
    if (body.joint !== "revolute" && body.joint !== "helical") return new THREE.Mesh(new THREE.SphereGeometry(1.5 * radius, 20, 14), paint);
    const mesh = new THREE.Mesh(new THREE.CylinderGeometry(1.45 * radius, 1.45 * radius, 3.2 * radius, 24), paint);
    mesh.quaternion.setFromUnitVectors(new THREE.Vector3(0, 1, 0), new THREE.Vector3(...body.axis));
    return mesh;
  }

  function axes(size) {
    const group = new THREE.Group();
    [[1, 0, 0, 0xd62728], [0, 1, 0, 0x2ca02c], [0, 0, 1, 0x1f77b4]].forEach(([x, y, z, color]) => {
      const points = new THREE.BufferGeometry().setFromPoints([new THREE.Vector3(), new THREE.Vector3(x, y, z).multiplyScalar(size)]);
      group.add(new THREE.Line(points, new THREE.LineBasicMaterial({ color })));
    });
    return group;
  }

  const groups = data.bodies.map((body, i) => {
    const group = new THREE.Group(), color = PALETTE[i % PALETTE.length];
    body.segments.forEach(([from, to]) => layers.links.push(group.add(capsule(from, to, radius, material(color))).children.at(-1)));
    layers.joints.push(group.add(joint(body)).children.at(-1));
    if (body.box) layers.boxes.push(group.add(box(body.box, material(color, 0.35))).children.at(-1));
    layers.frames.push(group.add(axes(6 * radius)).children.at(-1));
    scene.add(group);
    return group;
  });
  // ---- shapes of the robot's file; solids stand along z there, along y here ----

  const geometries = data.meshes.map((mesh) => {
    const numbers = decode(mesh.points, Uint16Array), xyz = new Float32Array(numbers.length);
    for (let i = 0; i < numbers.length; i++) xyz[i] = mesh.low[i % 3] + numbers[i] / 65535 * mesh.side[i % 3];
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute("position", new THREE.BufferAttribute(xyz, 3));
    geometry.setIndex(new THREE.BufferAttribute(decode(mesh.triangles, mesh.wide ? Uint32Array : Uint16Array), 1));
    return geometry;
  });

  function solid({ shape, size }) {
    if (shape === "box") return new THREE.BoxGeometry(...size);
    if (shape === "sphere") return new THREE.SphereGeometry(size[0], 32, 20);
    if (shape === "ellipsoid") return new THREE.SphereGeometry(1, 32, 20).scale(...size);
    if (shape === "cylinder") return new THREE.CylinderGeometry(size[0], size[0], size[1], 32).rotateX(Math.PI / 2);
    return new THREE.CapsuleGeometry(size[0], size[1], 8, 24).rotateX(Math.PI / 2);
  }

  data.shapes.forEach((spec) => {
    const [r, g, b, opacity] = spec.color, isMesh = spec.shape === "mesh";
    const paint = material(0xffffff, opacity);
    paint.color.setRGB(r, g, b, "srgb");
    paint.flatShading = isMesh;
    paint.side = isMesh ? 2 : 0; // both sides: normals of mesh files point either way
    const mesh = new THREE.Mesh(isMesh ? geometries[spec.mesh] : solid(spec), paint);
    mesh.position.set(...spec.position);
    mesh.quaternion.set(...spec.quaternion);
    layers.shapes.push(mesh);
    (spec.body < 0 ? scene : groups[spec.body]).add(mesh);
  });
  if (data.shapes.length > 0) ["links", "joints", "traces"].forEach((name) => { element(name).checked = false; });
  else element("shapes").parentElement.remove();

  data.base.forEach((to) => { // the pillar on which the first joint sits
    const pillar = capsule([0, 0, 0], to, radius, material(0xb0b4ba));
    layers.links.push(pillar);
    scene.add(pillar);
  });
  scene.add(axes(12 * radius));

  // A sliding link has no fixed length: a rod from its joint on the parent to its origin, stretched every frame.
  const rods = data.bodies.map((body, i) => ({ body, i })).filter(({ body }) => body.joint === "prismatic").map(({ body, i }) => {
    const mesh = new THREE.Mesh(new THREE.CylinderGeometry(0.6 * radius, 0.6 * radius, 1, 16), material(0x888888));
    layers.links.push(mesh);
    scene.add(mesh);
    return { mesh, i, parent: body.parent, anchor: new THREE.Vector3(...body.anchor) };
  });

  // ---- ground and traces ----

  const ground = new THREE.GridHelper(4 * data.reach, 20, 0x9aa0a6, 0xd5d8dc);
  ground.quaternion.setFromUnitVectors(new THREE.Vector3(0, 1, 0), camera.up.clone());
  ground.position.copy(camera.up).multiplyScalar(data.floor);
  scene.add(ground);

  const tips = traces.length / (3 * frames);
  for (let k = 0; k < tips; k++) {
    const line = new THREE.BufferGeometry(), xyz = new Float32Array(3 * frames);
    for (let f = 0; f < frames; f++) xyz.set(traces.subarray(3 * (f * tips + k), 3 * (f * tips + k + 1)), 3 * f);
    line.setAttribute("position", new THREE.BufferAttribute(xyz, 3));
    const mesh = new THREE.Line(line, new THREE.LineBasicMaterial({ color: PALETTE[(k + 1) % PALETTE.length] }));
    mesh.frustumCulled = false;
    layers.traces.push(mesh);
    scene.add(mesh);
  }

  // ---- very many bodies: one tube of equal cylinders, some of them left out where they are smaller than pixels ----

  const PIXELS = 3, FEWEST = 500, MANY = 5000; // length of a cylinder; number that is always drawn; from where simple

  async function makeTube(spec) {
    const { points, quantum } = spec, Kind = { 1: Int8Array, 2: Int16Array, 4: Int32Array }[spec.bytes];
    const steps = await inflate(spec.steps, Kind), starts = decode(spec.roots, Float32Array);
    const above = Int32Array.from({ length: points }, (_, i) => i - 1), root = new Int32Array(points);
    spec.parents.forEach(([i, parent]) => { above[i] = parent; });
    let roots = 0;
    for (let i = 0; i < points; i++) root[i] = above[i] < 0 ? roots++ : root[above[i]];
    const levels = makeLevels(above), most = levels[0].length / 2, open = most > MANY;
    const cylinder = new THREE.CylinderGeometry(1, 1, 1, open ? 6 : 12, 1, open);
    const mesh = new THREE.InstancedMesh(cylinder, material(0xffffff), Math.max(most, 1));
    mesh.frustumCulled = false;
    layers.links.push(mesh);
    scene.add(mesh);

    const sums = new Int32Array(points), kept = new Map(); // the two frames in use
    function frame(f) { // positions of all points; the memory of the frame that was used before the last one is used again
      const free = kept.size < 2 ? new Float32Array(3 * points) : kept.values().next().value;
      const xyz = kept.get(f) || placed(f, free);
      for (const [k, numbers] of kept) if (k === f || numbers === xyz) kept.delete(k);
      return kept.set(f, xyz).get(f);
    }
    function placed(f, xyz) {
      for (let c = 0; c < 3; c++) {
        const own = steps.subarray((3 * f + c) * points, (3 * f + c + 1) * points);
        for (let i = 0; i < points; i++) {
          sums[i] = above[i] < 0 ? 0 : sums[above[i]] + own[i];
          xyz[3 * i + c] = starts[3 * (f * roots + root[i]) + c] + quantum * sums[i];
        }
      }
      return xyz;
    }

    let drawn = -1, now = { a: frame(0), b: frame(0), s: 0 };
    const first = levels.at(-1);
    const length = averageLength(levels[0], frame(0));
    function nearest() { // distance from the camera to the tube, by its coarsest level
      const { x, y, z } = camera.position, { a } = now;
      let least = Infinity;
      for (const i of first) least = Math.min(least, (a[3 * i] - x) ** 2 + (a[3 * i + 1] - y) ** 2 + (a[3 * i + 2] - z) ** 2);
      return Math.max(Math.sqrt(least) - length * 4 ** (levels.length - 1), camera.near);
    }
    function level() {
      const pixel = 2 * Math.tan(camera.fov * Math.PI / 360) * nearest() / window.innerHeight;
      let k = 0;
      while (k + 1 < levels.length && length * 4 ** (k + 1) < PIXELS * pixel) k++;
      return k;
    }
    function draw(again) {
      const k = level();
      if (!again && k === drawn) return;
      if (k !== drawn) paintTube(mesh, levels[k], points);
      drawn = k;
      setCylinders(mesh, levels[k], now);
      document.body.dataset.cylinders = mesh.count;
    }
    return { draw, seek: (f, g, s) => { now = { a: frame(f), b: frame(g), s }; draw(true); } };
  }

  // Links (from, to) of all points, then of every fourth, sixteenth, ... one with all tips and branchings.
  function makeLevels(above) {
    const n = above.length, depth = new Int32Array(n), children = new Int32Array(n), levels = [];
    for (let i = 0; i < n; i++) if (above[i] >= 0) { depth[i] = depth[above[i]] + 1; children[above[i]]++; }
    for (let stride = 1; ; stride *= 4) {
      const top = new Int32Array(n), links = []; // the nearest point that is kept, on the way to the root
      for (let i = 0; i < n; i++) {
        const stays = above[i] < 0 || children[i] !== 1 || depth[i] % stride === 0;
        top[i] = stays ? i : top[above[i]];
        if (stays && above[i] >= 0) links.push(top[above[i]], i);
      }
      if (stride > 1 && (links.length < 2 * FEWEST || links.length > 0.9 * levels.at(-1).length)) return levels;
      levels.push(Int32Array.from(links));
    }
  }

  function averageLength(links, p) {
    let sum = 0;
    for (let k = 0; k < links.length; k += 2) {
      const i = 3 * links[k], j = 3 * links[k + 1];
      sum += Math.hypot(p[j] - p[i], p[j + 1] - p[i + 1], p[j + 2] - p[i + 2]);
    }
    return 2 * sum / Math.max(links.length, 1);
  }

  function paintTube(mesh, links, points) {
    const from = new THREE.Color(PALETTE[0]), to = new THREE.Color(PALETTE[4]), color = new THREE.Color();
    mesh.count = links.length / 2;
    for (let k = 0; k < mesh.count; k++) mesh.setColorAt(k, color.lerpColors(from, to, links[2 * k + 1] / points));
    if (mesh.instanceColor) mesh.instanceColor.needsUpdate = true;
  }

  // Each cylinder from (0, -1/2, 0) to (0, 1/2, 0) is turned and stretched to its link, s of the way from a to b.
  function setCylinders(mesh, links, { a, b, s }) {
    const m = mesh.instanceMatrix.array, r = radius;
    for (let k = 0, at = 0; at < links.length; k += 16, at += 2) {
      const i = 3 * links[at], j = 3 * links[at + 1];
      const x = a[i] + s * (b[i] - a[i]), y = a[i + 1] + s * (b[i + 1] - a[i + 1]), z = a[i + 2] + s * (b[i + 2] - a[i + 2]);
      const dx = a[j] + s * (b[j] - a[j]) - x, dy = a[j + 1] + s * (b[j + 1] - a[j + 1]) - y, dz = a[j + 2] + s * (b[j + 2] - a[j + 2]) - z;
      const long = Math.sqrt(dx * dx + dy * dy + dz * dz) || 1e-30, aside = Math.abs(dz) < 0.9 * long;
      let ux = aside ? dy : 0, uy = aside ? -dx : dz, uz = aside ? 0 : -dy; // along x (0, 0, 1), or along x (1, 0, 0)
      const unit = r / (Math.sqrt(ux * ux + uy * uy + uz * uz) || 1);
      ux *= unit; uy *= unit; uz *= unit;
      m[k] = ux; m[k + 1] = uy; m[k + 2] = uz;
      m[k + 4] = dx; m[k + 5] = dy; m[k + 6] = dz;
      m[k + 8] = (uy * dz - uz * dy) / long; m[k + 9] = (uz * dx - ux * dz) / long; m[k + 10] = (ux * dy - uy * dx) / long;
      m[k + 12] = x + dx / 2; m[k + 13] = y + dy / 2; m[k + 14] = z + dz / 2; m[k + 15] = 1;
    }
    mesh.instanceMatrix.clearUpdateRanges(); // only what is drawn goes to the graphics card
    mesh.instanceMatrix.addUpdateRange(0, 8 * links.length);
    mesh.instanceMatrix.needsUpdate = true;
  }

  const tube = data.tube && await makeTube(data.tube);

  // ---- time ----

  const next = new THREE.Object3D();

  function place(object, body, frame) {
    const at = 7 * (frame * count + body);
    object.position.fromArray(poses, at);
    object.quaternion.fromArray(poses, at + 3);
  }

  function frameAt(t) {
    let low = 0, high = frames - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (data.times[middle] <= t) low = middle; else high = middle;
    }
    return low;
  }

  function seek(t) {
    t = Math.min(Math.max(t, begin), end);
    const f = frameAt(t), g = Math.min(f + 1, frames - 1);
    const s = g > f ? (t - data.times[f]) / (data.times[g] - data.times[f]) : 0;
    groups.forEach((group, body) => {
      place(group, body, f);
      place(next, body, g);
      group.position.lerp(next.position, s);
      group.quaternion.slerp(next.quaternion, s);
    });
    rods.forEach(stretch);
    if (tube) tube.seek(f, g, s);
    layers.traces.forEach((line) => line.geometry.setDrawRange(0, g + 1));
    element("time").value = t;
    element("clock").textContent = `${t.toFixed(3)} / ${end.toFixed(2)} s`;
    state.t = t;
    if (element("follow").checked) {
      const [here, there] = [f, g].map((k) => new THREE.Vector3().fromArray(traces, 3 * k * tips));
      const shift = here.lerp(there, s).sub(controls.target);
      controls.target.add(shift);
      camera.position.add(shift);
    }
  }

  function stretch({ mesh, i, parent, anchor }) {
    const from = anchor.clone();
    if (parent >= 0) from.applyQuaternion(groups[parent].quaternion).add(groups[parent].position);
    const along = groups[i].position.clone().sub(from), length = along.length();
    mesh.position.copy(from).addScaledVector(along, 0.5);
    mesh.scale.set(1, Math.max(length, 1e-9), 1);
    if (length > 1e-9) mesh.quaternion.setFromUnitVectors(new THREE.Vector3(0, 1, 0), along.normalize());
  }

  // ---- the person ----

  const state = { t: begin, playing: false, last: 0 };

  function setPlaying(playing) {
    if (playing && state.t >= end) seek(begin);
    state.playing = playing;
    element("play").textContent = playing ? "pause" : "play";
  }

  function resize() {
    renderer.setSize(window.innerWidth, window.innerHeight);
    camera.aspect = window.innerWidth / window.innerHeight;
    camera.updateProjectionMatrix();
  }

  function draw(now) {
    const seconds = (now - state.last) / 1000;
    state.last = now;
    if (state.playing) {
      seek(state.t + seconds * Number(element("speed").value));
      if (state.t >= end) setPlaying(false);
    }
    controls.update();
    if (tube) tube.draw(false);
    renderer.render(scene, camera);
    requestAnimationFrame(draw);
  }

  Object.keys(layers).forEach((name) => {
    if (!element(name)) return;
    const apply = () => layers[name].forEach((object) => { object.visible = element(name).checked; });
    element(name).addEventListener("change", apply);
    apply();
  });
  element("time").min = begin;
  element("time").max = end;
  element("time").addEventListener("input", (event) => { setPlaying(false); seek(Number(event.target.value)); });
  element("play").addEventListener("click", () => setPlaying(!state.playing));
  window.addEventListener("keydown", (event) => {
    if (event.code === "Space" && event.target.tagName !== "BUTTON") { event.preventDefault(); setPlaying(!state.playing); }
  });
  window.addEventListener("resize", resize);
  window.addEventListener("hashchange", seekHash);

  // page.html#t=1.5 opens at that time
  function seekHash() {
    const match = /t=([-+.\deE]+)/.exec(window.location.hash);
    seek(match ? Number(match[1]) : begin);
  }

  element("subtitle").textContent = data.subtitle;
  if (tube) ["joints", "boxes", "frames"].forEach((name) => element(name).parentElement.remove());
  controls.target.set(...data.center);
  camera.position.set(...data.eye);
  resize();
  seekHash();
  controls.update();
  renderer.render(scene, camera);
  document.body.dataset.state = "ready";
  document.body.dataset.triangles = renderer.info.render.triangles;
  requestAnimationFrame((now) => { state.last = now; draw(now); });
})();
