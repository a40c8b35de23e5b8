// The bodies of a machine: links, joints and shapes, and what explains them: frames, axes, mass centres, inertias.
"use strict";

const GREY = 0x9aa3ad, DARK = 0x66707c;
const BLACK = 0.035; // of the light is scattered by what files call black; else it has no shape, and vanishes on dark pages

function paintOf(color, opacity = 1) {
  return new THREE.MeshStandardMaterial({ color, roughness: 0.6, metalness: 0.05, transparent: opacity < 1, opacity, depthWrite: opacity === 1 });
}

function rod(from, to, radius, paint, Kind = THREE.CapsuleGeometry) {
  const a = new THREE.Vector3(...from), along = new THREE.Vector3(...to).sub(a), length = along.length();
  const shape = Kind === THREE.CapsuleGeometry ? new Kind(radius, length, 6, 16) : new Kind(radius, radius, length, 24);
  const mesh = new THREE.Mesh(shape, paint);
  mesh.position.copy(a).addScaledVector(along, 0.5);
  if (length > 0) mesh.quaternion.setFromUnitVectors(new THREE.Vector3(0, 1, 0), along.normalize());
  return mesh;
}

function axesOf(size) { // x red, y green, z blue
  const group = new THREE.Group();
  [[1, 0, 0, 0xd8352b], [0, 1, 0, 0x2e9e4f], [0, 0, 1, 0x2b6cd8]].forEach(([x, y, z, color]) => {
    group.add(rod([0, 0, 0], [x * size, y * size, z * size], size / 60, new THREE.MeshBasicMaterial({ color }), THREE.CylinderGeometry));
  });
  return group;
}

// The colour of a limb; towards its end, lighter and darker by turns, so that its parts are told apart.
function colorOf(body) {
  const color = new THREE.Color(body.limb < 0 ? GREY : PALETTE[body.limb % PALETTE.length]);
  return body.place % 2 ? color.lerp(new THREE.Color(0xffffff), 0.12) : color;
}

function makeBodies(data, stage) {
  const { scene } = stage, radius = data.radius;
  const layers = { shapes: [], links: [], joints: [], "mass centres": [], inertia: [], axes: [], frames: [], labels: [], traces: [], ground: [stage.floor] };

  function jointOf(body) {
    const paint = paintOf(DARK);
    if (body.joint === "prismatic") return new THREE.Mesh(new THREE.BoxGeometry(2.6 * radius, 2.6 * radius, 2.6 * radius), paint);
    if (body.joint !== "revolute" && body.joint !== "helical") return new THREE.Mesh(new THREE.SphereGeometry(1.5 * radius, 20, 14), paint);
    return rod(body.axis.map((x) => -1.6 * radius * x), body.axis.map((x) => 1.6 * radius * x), 1.45 * radius, paint, THREE.CylinderGeometry);
  }

  function ellipsoid({ size, center, quaternion }, color) { // with the inertia of the body: (5/12)^(1/2) of the sides of the box
    const mesh = new THREE.Mesh(new THREE.SphereGeometry(1, 24, 16), paintOf(color, 0.4));
    mesh.scale.set(...size.map((x) => Math.max(x * 0.6455, radius / 20)));
    mesh.position.set(...center);
    mesh.quaternion.set(...quaternion);
    return mesh;
  }

  const groups = data.bodies.map((body) => {
    const group = new THREE.Group(), color = colorOf(body);
    const add = (layer, object) => { layers[layer].push(object); group.add(object); };
    body.segments.forEach(([from, to]) => add("links", rod(from, to, radius, paintOf(color))));
    add("joints", jointOf(body));
    if (body.box) {
      add("inertia", ellipsoid(body.box, color));
      const ball = new THREE.Mesh(new THREE.SphereGeometry(0.7 * radius, 16, 12), new THREE.MeshBasicMaterial({ color: 0xe69f00, depthTest: false, transparent: true }));
      ball.position.set(...body.box.center);
      ball.renderOrder = 2;
      add("mass centres", ball);
    }
    if (body.axis.some((x) => x)) add("axes", rod(body.axis.map((x) => -4 * radius * x), body.axis.map((x) => 6 * radius * x), radius / 6, new THREE.MeshBasicMaterial({ color: 0xcc79a7 }), THREE.CylinderGeometry));
    add("frames", axesOf(6 * radius));
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
    const [r, g, b, opacity] = spec.color, isMesh = spec.shape === "mesh", paint = paintOf(0xffffff, opacity);
    paint.color.setRGB(r, g, b, "srgb").lerp(new THREE.Color(0xffffff), BLACK);
    paint.flatShading = isMesh;
    paint.side = isMesh ? 2 : 0; // both sides: normals of mesh files point either way
    const mesh = new THREE.Mesh(isMesh ? geometries[spec.mesh] : solid(spec), paint);
    mesh.position.set(...spec.position);
    mesh.quaternion.set(...spec.quaternion);
    layers.shapes.push(mesh);
    (spec.body < 0 ? scene : groups[spec.body]).add(mesh);
  });

  data.base.forEach((to) => { // the pillar on which the first joint sits
    const pillar = rod([0, 0, 0], to, radius, paintOf(GREY));
    layers.links.push(pillar);
    scene.add(pillar);
  });
  const world = axesOf(12 * radius);
  layers.frames.push(world);
  scene.add(world);

  // A sliding link has no fixed length: a rod from its joint on the parent to its origin, stretched every frame.
  const rods = data.bodies.map((body, i) => ({ body, i })).filter(({ body }) => body.joint === "prismatic").map(({ body, i }) => {
    const mesh = new THREE.Mesh(new THREE.CylinderGeometry(0.6 * radius, 0.6 * radius, 1, 16), paintOf(GREY));
    layers.links.push(mesh);
    scene.add(mesh);
    return { mesh, i, parent: body.parent, anchor: new THREE.Vector3(...body.anchor) };
  });

  function stretch({ mesh, i, parent, anchor }) {
    const from = anchor.clone();
    if (parent >= 0) from.applyQuaternion(groups[parent].quaternion).add(groups[parent].position);
    const along = groups[i].position.clone().sub(from), length = along.length();
    mesh.position.copy(from).addScaledVector(along, 0.5);
    mesh.scale.set(1, Math.max(length, 1e-9), 1);
    if (length > 1e-9) mesh.quaternion.setFromUnitVectors(new THREE.Vector3(0, 1, 0), along.normalize());
  }

  scene.traverse((x) => { if (x.isMesh && x.material.isMeshStandardMaterial && x.material.opacity === 1) x.castShadow = x.receiveShadow = true; });

  // ---- names of bodies, beside them; of names that would cover each other, the nearest ----
  const named = data.bodies.slice(0, 200).map(({ name }, i) => ({ name, object: groups[i] }));
  const names = [...named, { name: "world", object: world }].map(({ name, object }) => {
    const span = document.createElement("span");
    span.textContent = name;
    element("labels").append(span);
    return { span, object, size: null };
  });
  layers.labels.push({ set visible(x) { element("labels").hidden = !x; } });

  function placeLabels() {
    if (element("labels").hidden) return;
    const taken = [], eye = stage.camera.position;
    names.forEach((name) => { name.far = name.object.position.distanceTo(eye); });
    names.sort((a, b) => a.far - b.far).forEach((name) => {
      const at = name.object.visible && stage.onScreen(name.object.position);
      name.size ||= [name.span.offsetWidth, name.span.offsetHeight];
      const [w, h] = name.size, isFree = at && !taken.some(([x, y, v]) => x < at[0] + w && at[0] < x + v && Math.abs(y - at[1]) < h);
      name.span.style.visibility = isFree ? "" : "hidden";
      if (!isFree) return;
      taken.push([...at, w]);
      Object.assign(name.span.style, { left: `${at[0]}px`, top: `${at[1]}px` });
    });
  }

  const matrix = new THREE.Matrix4(), one = new THREE.Vector3();
  function setPoses(P) { // rows of 4 x 4 matrices, one body after the other
    groups.forEach((group, i) => { matrix.fromArray(P, 16 * i).transpose().decompose(group.position, group.quaternion, one); });
    rods.forEach(stretch);
  }

  const shown = { shapes: true, links: data.withLinks, joints: data.withLinks, traces: data.withLinks, ground: true };
  return { groups, layers, shown, setPoses, placeLabels, stretch: () => rods.forEach(stretch) };
}
