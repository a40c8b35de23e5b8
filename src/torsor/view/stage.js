// What every page has: renderer, camera, lights with soft shadows, ground, themes, labels. No environment map: it takes
// 20 s to prepare without a graphics card.
"use strict";

const element = (id) => document.getElementById(id);
const isNarrow = () => window.innerWidth <= 700; // as page.html has it

// The palettes of style.py. Thin lines and text have the lighter one on dark pages.
const PALETTES = {
  light: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6E6E6E"],
  dark: ["#56B4E9", "#F0803C", "#3CC79E", "#E2A5C6", "#F0C04A", "#4F7BE0", "#B4B4B4"],
};
const PALETTE = PALETTES.light.slice(0, 6); // of solids; what stands still is grey
const css = (k) => PALETTES[document.documentElement.dataset.theme][k % PALETTES.light.length];

const CELLS = 40; // of the ground, from its middle to its edge

function decode(base64, Kind) {
  const letters = atob(base64), bytes = new Uint8Array(letters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
  return new Kind(bytes.buffer);
}

async function inflate(base64, Kind) {
  const stream = new Blob([decode(base64, Uint8Array)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Kind(await new Response(stream).arrayBuffer());
}

async function inflatedText(id) {
  return new TextDecoder().decode(await inflate(element(id).textContent, Uint8Array));
}

const GROUND = { light: { back: 0xeef1f5, line: 0xc9d0d9, main: 0xaab4c0, shadow: 0.2, sky: 2.2, sun: 2.6 },
                 dark: { back: 0x12161d, line: 0x232b36, main: 0x39444f, shadow: 0.5, sky: 1.7, sun: 2.4 } };

// A disc of square cells that fades into the background; every fifth line is darker. Lines are as short as cells,
// because some drivers lose long lines that begin behind the camera.
function makeGrid(cell, { back, line, main }) {
  const points = [], colors = [], from = new THREE.Color(), far = new THREE.Color(back), last = CELLS * cell;
  function vertex(x, z, k) {
    points.push(x, 0, z);
    from.set(k % 5 ? line : main).lerp(far, Math.min(1, Math.hypot(x, z) / last) ** 1.5);
    colors.push(from.r, from.g, from.b);
  }
  for (let i = -CELLS; i <= CELLS; i++) {
    for (let k = -CELLS; k < CELLS; k++) {
      if (Math.hypot(i, k) > CELLS) continue;
      vertex(i * cell, k * cell, i);
      vertex(i * cell, (k + 1) * cell, i);
      vertex(k * cell, i * cell, i);
      vertex((k + 1) * cell, i * cell, i);
    }
  }
  const geometry = new THREE.BufferGeometry();
  geometry.setAttribute("position", new THREE.BufferAttribute(new Float32Array(points), 3));
  geometry.setAttribute("color", new THREE.BufferAttribute(new Float32Array(colors), 3));
  return new THREE.LineSegments(geometry, new THREE.LineBasicMaterial({ vertexColors: true, toneMapped: false, fog: false }));
}

function makeStage(data) {
  const renderer = new THREE.WebGLRenderer({ antialias: true, preserveDrawingBuffer: true });
  renderer.setPixelRatio(window.devicePixelRatio);
  renderer.toneMapping = THREE.NeutralToneMapping;
  renderer.shadowMap.enabled = true;
  renderer.shadowMap.type = THREE.PCFShadowMap;
  document.body.prepend(renderer.domElement);

  const R = data.reach, up = new THREE.Vector3(...data.up), scene = new THREE.Scene();
  const camera = new THREE.PerspectiveCamera(40, 1, R * 5e-3, R * 1e3);
  camera.up.copy(up);
  const controls = new THREE.OrbitControls(camera, renderer.domElement);
  const sky = new THREE.HemisphereLight(0xffffff, 0x8d8478, 1), sun = new THREE.DirectionalLight(0xffffff, 1);
  sky.position.copy(up);
  sun.castShadow = true;
  sun.shadow.mapSize.set(2048, 2048);
  const wide = 1.3 * Math.max(data.spread, R / 3);
  Object.assign(sun.shadow.camera, { left: -wide, right: wide, top: wide, bottom: -wide, near: 0.1 * wide, far: 12 * wide });
  Object.assign(sun.shadow, { bias: -1e-3, normalBias: 4e-3 * wide, radius: 4 }); // against stripes on flat faces
  scene.add(sky, sun, sun.target);
  const side = new THREE.Vector3().crossVectors(up, new THREE.Vector3(...data.eye).sub(new THREE.Vector3(...data.center))).normalize();
  const fromSun = up.clone().multiplyScalar(4).addScaledVector(side, -1.8).addScaledVector(new THREE.Vector3().crossVectors(side, up), 2.2);

  // a grid of cells whose size is 1, 2 or 5 times a power of ten
  const power = 10 ** Math.floor(Math.log10(data.spread)), cell = [0.1, 0.2, 0.5, 1].map((k) => k * power).findLast((x) => x <= data.spread / 2);
  const floor = new THREE.Group(), grids = new THREE.Group(), shade = new THREE.ShadowMaterial({ opacity: 0.2, depthWrite: false });
  const plane = new THREE.Mesh(new THREE.PlaneGeometry(400 * cell, 400 * cell), shade);
  plane.rotation.x = -Math.PI / 2;
  plane.receiveShadow = true;
  floor.add(plane, grids);
  floor.quaternion.setFromUnitVectors(new THREE.Vector3(0, 1, 0), up);
  const middle = new THREE.Vector3(...data.center); // the ground is below it
  floor.position.copy(middle).addScaledVector(up, data.floor - middle.dot(up));
  scene.add(floor);

  function setTheme(theme) {
    const colors = GROUND[theme];
    document.documentElement.dataset.theme = theme;
    scene.background = new THREE.Color(colors.back);
    scene.fog = new THREE.Fog(colors.back, 5 * wide, 22 * wide);
    shade.opacity = colors.shadow;
    sky.intensity = colors.sky;
    sun.intensity = colors.sun;
    grids.clear();
    grids.add(makeGrid(cell, colors));
  }

  // What panels cover: on the right, more than on the left; of a narrow window, below.
  function covered() {
    const [side, plots] = ["side", "plots"].map((id) => element(id).getBoundingClientRect());
    return isNarrow() ? [0, side.height && window.innerHeight - side.top] : [side.width - 0.6 * plots.width, 0];
  }
  function resize() {
    const { innerWidth: w, innerHeight: h } = window, [right, below] = covered();
    renderer.setSize(w, h);
    camera.aspect = w / h;
    camera.setViewOffset(w, h, right / 2, below / 2, w, h);
    camera.updateProjectionMatrix();
  }

  function look(center, eye) { // as far away as a window that is narrower than high needs
    const { innerWidth: w, innerHeight: h } = window, [right, below] = covered();
    const factor = Math.max(1, h / (w - right), h / (h - below));
    controls.target.copy(center);
    camera.position.copy(center).addScaledVector(eye.clone().sub(center), factor);
    controls.update();
  }

  function follow(shift) { // the camera and its target
    controls.target.add(shift);
    camera.position.add(shift);
  }

  function render() {
    sun.target.position.copy(controls.target);
    sun.position.copy(controls.target).addScaledVector(fromSun, 1.2 * wide);
    controls.update();
    renderer.render(scene, camera);
  }

  const screen = new THREE.Vector3();
  function onScreen(point) { // pixels, or nothing behind the camera
    screen.copy(point).project(camera);
    return screen.z < 1 ? [(screen.x + 1) * window.innerWidth / 2, (1 - screen.y) * window.innerHeight / 2] : null;
  }

  window.addEventListener("resize", resize);
  return { renderer, scene, camera, controls, up, floor, cell, setTheme, resize, look, follow, render, onScreen };
}
