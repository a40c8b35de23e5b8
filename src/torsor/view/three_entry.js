// What the pages use of three.js. Bundled to three.min.js (keep the licence at its head) with
//   npm i three@0.187 esbuild
//   npx esbuild three_entry.js --bundle --minify --format=iife --global-name=THREE --outfile=three.min.js
export {
  BoxGeometry, BufferAttribute, BufferGeometry, CapsuleGeometry, Color, CylinderGeometry, DirectionalLight, Fog,
  Group, HemisphereLight, InstancedMesh, Line, LineBasicMaterial, LineSegments, Matrix4, Mesh,
  MeshBasicMaterial, MeshStandardMaterial, NeutralToneMapping, Object3D, PCFShadowMap, PerspectiveCamera, Plane,
  PlaneGeometry, Quaternion, Raycaster, Scene, ShadowMaterial, SphereGeometry, Vector2, Vector3, WebGLRenderer,
} from "three";
export { OrbitControls } from "three/addons/controls/OrbitControls.js";
