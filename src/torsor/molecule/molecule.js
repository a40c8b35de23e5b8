// Plays a molecule: sticks for bonds, and a ribbon along each chain of CA atoms, wide where it is a helix or a strand.
"use strict";
(() => {
  const element = (id) => document.getElementById(id);
  const data = JSON.parse(element("scene").textContent);
  const numbers = decode(data.frames); // frame, atom, (x, y, z), in quanta from the middle
  const atoms = data.colors.length, frames = data.times.length;
  const x = new Float32Array(3 * atoms); // of the frame that is shown, nm
  const SEGMENTS = 8, AROUND = 10; // of a ribbon: pieces per residue, points around
  const SHAPES = { H: [0.13, 0.022], E: [0.11, 0.022], C: [0.028, 0.028] }; // half widths, nm
  const PAINT = { H: 0xd55e00, E: 0x0072b2, C: 0x8a8f98 };

  function decode(base64) {
    const letters = atob(base64), bytes = new Uint8Array(letters.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
    return new Int16Array(bytes.buffer);
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
  scene.background = new THREE.Color(0xffffff);
  scene.add(new THREE.HemisphereLight(0xffffff, 0xb0b0b0, 2.0));
  const sun = new THREE.DirectionalLight(0xffffff, 1.6);
  scene.add(sun);
  const camera = new THREE.PerspectiveCamera(35, 1, data.reach * 1e-2, data.reach * 1e2);
  camera.position.set(...data.eye);
  camera.up.set(...data.up);
  const controls = new THREE.OrbitControls(camera, renderer.domElement);
  controls.autoRotateSpeed = 1.5;

  const material = (options) => new THREE.MeshStandardMaterial({ roughness: 0.5, metalness: 0.0, ...options });
  const at = (k) => new THREE.Vector3(x[3 * k], x[3 * k + 1], x[3 * k + 2]);

  // ---- sticks: two halves per bond, each with the colour of its atom, and a ball at each atom ----

  function sticks(light) {
    const bonds = data.bonds.filter(([a, b]) => Boolean(data.light[a] || data.light[b]) === light);
    const chosen = [...Array(atoms).keys()].filter((k) => Boolean(data.light[k]) === light);
    const radius = light ? 0.008 : 0.014;
    const halves = new THREE.InstancedMesh(new THREE.CylinderGeometry(radius, radius, 1, 10, 1, true), material({}), 2 * bonds.length);
    const balls = new THREE.InstancedMesh(new THREE.SphereGeometry(radius, 12, 8), material({}), chosen.length);
    bonds.forEach(([a, b], k) => [a, b].forEach((atom, side) => halves.setColorAt(2 * k + side, new THREE.Color(data.colors[atom]))));
    chosen.forEach((atom, k) => balls.setColorAt(k, new THREE.Color(data.colors[atom])));
    const group = new THREE.Group().add(halves, balls), matrix = new THREE.Matrix4(), up = new THREE.Vector3(0, 1, 0);
    halves.frustumCulled = balls.frustumCulled = false;
    scene.add(group);
    const turn = new THREE.Quaternion(), one = new THREE.Vector3(1, 1, 1);
    return { group, update() {
      bonds.forEach(([a, b], k) => {
        const from = at(a), along = at(b).sub(from), half = along.length() / 2;
        turn.setFromUnitVectors(up, along.clone().normalize());
        [0.25, 0.75].forEach((share, side) => {
          const size = new THREE.Vector3(1, half, 1);
          halves.setMatrixAt(2 * k + side, matrix.compose(from.clone().addScaledVector(along, share), turn, size));
        });
      });
      chosen.forEach((atom, k) => balls.setMatrixAt(k, matrix.compose(at(atom), turn.identity(), one)));
      halves.instanceMatrix.needsUpdate = balls.instanceMatrix.needsUpdate = true;
    } };
  }

  // ---- ribbons: a spline through the CA atoms; its flat side faces along the C=O bonds ----

  // the cubic of Catmull and Rom between the middle two of four points, and its direction
  function spline([a, b, c, d], f) {
    const ff = f * f, fff = ff * f;
    const sum = (weights) => [a, b, c, d].reduce((total, p, k) => total.addScaledVector(p, weights[k] / 2), new THREE.Vector3());
    const here = sum([2 * ff - f - fff, 2 - 5 * ff + 3 * fff, f + 4 * ff - 3 * fff, fff - ff]);
    return [here, sum([4 * f - 1 - 3 * ff, 9 * ff - 10 * f, 1 + 8 * f - 9 * ff, 3 * ff - 2 * f]).normalize()];
  }

  function ribbon(chain) {
    const rings = (chain.ca.length - 1) * SEGMENTS + 1, points = rings * AROUND;
    const place = new Float32Array(3 * points), color = new Float32Array(3 * points), index = [];
    for (let r = 0; r + 1 < rings; r++) for (let k = 0; k < AROUND; k++) {
      const a = r * AROUND + k, b = r * AROUND + (k + 1) % AROUND;
      index.push(a, a + AROUND, b, b, a + AROUND, b + AROUND);
    }
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute("position", new THREE.BufferAttribute(place, 3));
    geometry.setAttribute("color", new THREE.BufferAttribute(color, 3));
    geometry.setIndex(index);
    const mesh = new THREE.Mesh(geometry, material({ vertexColors: true, side: THREE.DoubleSide }));
    mesh.frustumCulled = false;
    scene.add(mesh);
    for (let r = 0; r < rings; r++) {
      const paint = new THREE.Color(PAINT[chain.kind[Math.min(Math.round(r / SEGMENTS), chain.ca.length - 1)]]);
      for (let k = 0; k < AROUND; k++) paint.toArray(color, 3 * (r * AROUND + k));
    }
    return { group: mesh, update() {
      const ca = chain.ca.map(at), last = ca.length - 1, sides = [];
      chain.o.forEach((o, k) => {
        const along = ca[Math.min(k + 1, last)].clone().sub(ca[Math.max(k - 1, 0)]).normalize();
        const side = at(o).sub(at(chain.c[k]));
        side.addScaledVector(along, -side.dot(along)).normalize();
        if (k && side.dot(sides[k - 1]) < 0) side.negate(); // a strand turns over at every residue
        sides.push(side);
      });
      for (let r = 0; r < rings; r++) {
        const s = r / SEGMENTS, k = Math.min(Math.floor(s), last - 1), f = s - k;
        const [here, along] = spline([k - 1, k, k + 1, k + 2].map((j) => ca[Math.min(Math.max(j, 0), last)]), f);
        const side = sides[k].clone().lerp(sides[k + 1], f);
        side.addScaledVector(along, -side.dot(along)).normalize();
        const across = along.clone().cross(side);
        const [w0, h0] = SHAPES[chain.kind[k]], [w1, h1] = SHAPES[chain.kind[k + 1]];
        const width = w0 + (w1 - w0) * f, height = h0 + (h1 - h0) * f;
        for (let a = 0; a < AROUND; a++) {
          const angle = 2 * Math.PI * a / AROUND, p = here.clone();
          p.addScaledVector(side, width * Math.cos(angle)).addScaledVector(across, height * Math.sin(angle));
          p.toArray(place, 3 * (r * AROUND + a));
        }
      }
      geometry.attributes.position.needsUpdate = true;
      geometry.computeVertexNormals();
    } };
  }

  const heavy = sticks(false), hydrogens = sticks(true), ribbons = data.chains.map(ribbon);
  if (!ribbons.length) element("ribbon").parentElement.hidden = true;
  if (ribbons.length) element("sticks").checked = data.bonds.length < 4000;
  const parts = [heavy, hydrogens, ...ribbons];

  // ---- time ----

  const slider = element("time"), button = element("play");
  slider.max = frames - 1;
  let shown = -1, playing = false, next = 0;
  function show(frame) {
    for (let k = 0; k < 3 * atoms; k++) x[k] = numbers[3 * atoms * frame + k] * data.quantum;
    parts.forEach((part) => part.update());
    element("clock").textContent = `${data.times[frame].toFixed(2)} ps, ${frame + 1} of ${frames}`;
    shown = frame;
  }
  function visible() {
    ribbons.forEach((part) => { part.group.visible = element("ribbon").checked; });
    heavy.group.visible = element("sticks").checked;
    hydrogens.group.visible = element("sticks").checked && element("hydrogens").checked;
    controls.autoRotate = element("turn").checked;
  }
  ["ribbon", "sticks", "hydrogens", "turn"].forEach((id) => element(id).addEventListener("change", visible));
  slider.addEventListener("input", () => { playing = false; button.textContent = "play"; });
  button.addEventListener("click", () => {
    playing = !playing;
    button.textContent = playing ? "pause" : "play";
  });
  if (frames < 2) element("bar").hidden = true;

  function resize() {
    renderer.setSize(window.innerWidth, window.innerHeight);
    camera.aspect = window.innerWidth / window.innerHeight;
    camera.updateProjectionMatrix();
  }
  window.addEventListener("resize", resize);
  resize();
  visible();
  element("subtitle").textContent = data.words;
  renderer.setAnimationLoop((now) => {
    if (playing && now > next) {
      slider.value = (Number(slider.value) + 1) % frames;
      next = now + 40;
    }
    if (Number(slider.value) !== shown) show(Number(slider.value));
    controls.update();
    sun.position.copy(camera.position);
    renderer.render(scene, camera);
    document.body.dataset.state = "ready";
  });
})();
