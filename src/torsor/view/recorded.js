// A recorded motion: poses of every frame, the paths of the tips, and time.
"use strict";

function makeRecorded(data, stage, bodies, tube) {
  const { groups, layers } = bodies, poses = decode(data.poses, Float32Array); // frame, body, (x, y, z, qx, qy, qz, qw)
  const traces = decode(data.traces, Float32Array), frames = data.times.length, tips = traces.length / (3 * frames);
  const begin = data.times[0], end = data.times[frames - 1], next = new THREE.Object3D(), state = { t: begin, playing: false };
  const still = frames < 2;

  for (let k = 0; k < (still ? 0 : tips); k++) {
    const line = new THREE.BufferGeometry(), xyz = new Float32Array(3 * frames);
    for (let f = 0; f < frames; f++) xyz.set(traces.subarray(3 * (f * tips + k), 3 * (f * tips + k + 1)), 3 * f);
    line.setAttribute("position", new THREE.BufferAttribute(xyz, 3));
    const mesh = new THREE.Line(line, new THREE.LineBasicMaterial({ color: PALETTE[(k + 1) % PALETTE.length] }));
    mesh.frustumCulled = false;
    layers.traces.push(mesh);
    stage.scene.add(mesh);
  }
  const ghosts = (data.ghosts || []).map((spec) => makeGhost(spec, data, stage.scene, layers));

  function place(object, body, frame) {
    const at = 7 * (frame * groups.length + body);
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

  const root = new THREE.Vector3(), before = new THREE.Vector3();
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
    bodies.stretch();
    if (tube) tube.seek(f, g, s);
    ghosts.forEach((ghost) => ghost.seek(f, g, s));
    layers.traces.forEach((line) => line.geometry.setDrawRange(0, g + 1));
    state.t = t;
    if (data.moving && groups.length) { // the camera keeps a base that moves in view
      root.copy(groups[data.moving.body].position);
      if (state.seen && element("bar").dataset.follow) stage.follow(root.clone().sub(before));
      before.copy(root);
      state.seen = true;
    }
  }
  return { seek, state, begin, end, still };
}

// Another trajectory of the same machine, as thin lines from joint to joint.
function makeGhost(spec, data, scene, layers) {
  const points = decode(spec.points, Float32Array), links = data.ghostLinks, n = spec.size; // frame, point, (x, y, z)
  const geometry = new THREE.BufferGeometry(), xyz = new Float32Array(3 * links.length);
  geometry.setAttribute("position", new THREE.BufferAttribute(xyz, 3));
  const lines = new THREE.LineSegments(geometry, new THREE.LineBasicMaterial({ color: PALETTE[5], transparent: true, opacity: 0.45 }));
  lines.frustumCulled = false;
  (layers.ghosts ||= []).push(lines);
  scene.add(lines);
  return {
    seek(f, g, s) {
      links.forEach((point, k) => {
        for (let c = 0; c < 3; c++) {
          const a = points[3 * (f * n + point) + c], b = points[3 * (g * n + point) + c];
          xyz[3 * k + c] = a + s * (b - a);
        }
      });
      geometry.attributes.position.needsUpdate = true;
    },
  };
}
