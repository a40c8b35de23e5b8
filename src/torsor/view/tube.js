// Very many bodies: one tube of equal cylinders, some of them left out where they are smaller than pixels.
"use strict";

const PIXELS = 3, FEWEST = 500, MANY = 5000; // length of a cylinder; number that is always drawn; from where simple

async function makeTube(spec, radius, { scene, camera }, layers) {
  const { points, quantum } = spec, Kind = { 1: Int8Array, 2: Int16Array, 4: Int32Array }[spec.bytes];
  const steps = await inflate(spec.steps, Kind), starts = decode(spec.roots, Float32Array);
  const above = Int32Array.from({ length: points }, (_, i) => i - 1), root = new Int32Array(points);
  spec.parents.forEach(([i, parent]) => { above[i] = parent; });
  let roots = 0;
  for (let i = 0; i < points; i++) root[i] = above[i] < 0 ? roots++ : root[above[i]];
  const levels = makeLevels(above), most = levels[0].length / 2, open = most > MANY;
  const cylinder = new THREE.CylinderGeometry(1, 1, 1, open ? 6 : 12, 1, open);
  const mesh = new THREE.InstancedMesh(cylinder, paintOf(0xffffff), Math.max(most, 1));
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
    setCylinders(mesh, levels[k], now, radius);
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
function setCylinders(mesh, links, { a, b, s }, r) {
  const m = mesh.instanceMatrix.array;
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
