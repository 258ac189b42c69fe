// Meshes: found in inputs and outputs by their shapes and names, drawn as a surface with a field on it.
//
// One WebGL context draws for all meshes of a page, since browsers allow only few; each picture is copied to a
// canvas of its own.

import { formatNumber, isArray, isComplex, statistics } from "./arrays.js";
import { button, h, select } from "./dom.js";
import { colourBar, colourOf, colourScale, isWide } from "./plots.js";
import { isDark } from "./shell.js";

const POINT_NAMES = /^(points|vertices|nodes|coordinates|coords|positions)$/i;
// Of four corners these are quads in space, too; other cells of four corners are tetrahedra there.
const SURFACE_NAMES = /^(faces|quads)$/i;
const CELL_NAMES = /^(triangles|cells|faces|elements|simplices|quads|tets|tetrahedra|connectivity)$/i;

/** `[path, array]` of every array in a tree. */
export function arraysIn(tree, path = "") {
  if (isArray(tree)) return [[path, tree]];
  if (tree === null || typeof tree !== "object") return [];
  return Object.entries(tree).flatMap(([key, value]) => arraysIn(value, path ? `${path}.${key}` : key));
}

/** The meshes of some trees, each with the fields on its points and cells; trees that come first win. */
export function findMeshes(...trees) {
  const arrays = trees.flatMap((tree) => arraysIn(tree));
  const named = (pattern) => arrays.filter(([path]) => pattern.test(path.split(".").at(-1)));
  const points = named(POINT_NAMES).filter(([, { shape, dtype }]) => shape.length === 2 && [2, 3].includes(shape[1]) && shape[0] > 2 && dtype.startsWith("float"));
  const meshes = named(CELL_NAMES).filter(([, array]) => isConnectivity(array)).flatMap(([path, cells]) => {
    const highest = cells.data.reduce((most, index) => Math.max(most, Number(index)), 0);
    const own = points.find(([other, { shape }]) => shape[0] > highest && folder(other) === folder(path)) ?? points.find(([, { shape }]) => shape[0] > highest);
    if (!own) return [];
    const isSurface = own[1].shape[1] === 2 || SURFACE_NAMES.test(path.split(".").at(-1));
    return [{ path: own[0], points: own[1], cells, isSurface, fields: fieldsOn(arrays, own[1], cells) }];
  });
  return meshes.filter((mesh, i) => meshes.findIndex(({ points: other }) => other === mesh.points) === i);
}

const folder = (path) => path.split(".").slice(0, -1).join(".");
const isConnectivity = ({ shape, dtype, data }) => shape.length === 2 && [3, 4].includes(shape[1]) && shape[0] > 0 && dtype.includes("int") && data.every((index) => index >= 0);

/** The arrays that the pictures of meshes show. */
export const arraysOf = (meshes) => new Set(meshes.flatMap(({ points, cells, fields }) => [points, cells, ...fields.map(({ array }) => array)]));

/** Arrays with a number or a vector for every point or every cell. */
function fieldsOn(arrays, points, cells) {
  return arrays.flatMap(([path, array]) => {
    const { shape, data } = array;
    const isField = array !== points && array !== cells && !isComplex(array) && (shape.length === 1 || (shape.length === 2 && shape[1] <= 3));
    const place = isField && shape[0] === points.shape[0] ? "points" : isField && shape[0] === cells.shape[0] ? "cells" : null;
    if (!place) return [];
    if (shape.length === 1) return [{ name: path, place, array, values: Float64Array.from(data, Number) }];
    const length = (i) => Math.hypot(...Array.from({ length: shape[1] }, (_, k) => Number(data[shape[1] * i + k])));
    return [{ name: `|${path}|`, place, array, values: Float64Array.from({ length: shape[0] }, (_, i) => length(i)) }];
  });
}

/** Triangles as three points and the cell that they are part of; of tetrahedra those at the boundary. */
function trianglesOf({ cells, isSurface }) {
  const [count, corners] = cells.shape;
  const corner = (cell, i) => Number(cells.data[corners * cell + i]);
  const triangle = (cell, ...places) => [places.map((place) => corner(cell, place)), cell];
  const every = (make) => Array.from({ length: count }, (_, cell) => make(cell)).flat(1);
  if (corners === 3) return every((cell) => [triangle(cell, 0, 1, 2)]);
  if (isSurface) return every((cell) => [triangle(cell, 0, 1, 2), triangle(cell, 0, 2, 3)]);
  const faces = new Map();
  for (const face of every((cell) => [triangle(cell, 0, 1, 2), triangle(cell, 0, 1, 3), triangle(cell, 0, 2, 3), triangle(cell, 1, 2, 3)])) {
    const key = [...face[0]].sort((a, b) => a - b).join();
    faces.set(key, faces.has(key) ? null : face);
  }
  return [...faces.values()].filter(Boolean);
}

const VERTEX = `#version 300 es
in vec3 position; in vec3 colour; uniform mat3 turn; uniform float zoom; uniform vec2 shift; uniform float aspect; uniform float lift;
out vec3 shade; out vec3 place;
void main() {
  place = turn * position; shade = colour;
  gl_Position = vec4((place.xy * zoom + shift) * vec2(1.0 / aspect, 1.0), -place.z * 0.2 - lift, 1.0);
}`;
const FRAGMENT = `#version 300 es
precision highp float;
in vec3 shade; in vec3 place; uniform float dim; out vec4 result;
void main() {
  float light = dim > 0.0 ? 0.55 + 0.45 * abs(normalize(cross(dFdx(place), dFdy(place))).z) : 1.0;
  result = vec4(shade * light, 1.0);
}`;

/** The one context of the page, with its program; null where the browser has no WebGL. */
class Painter {
  static #shared;

  static shared() {
    if (Painter.#shared === undefined) {
      const gl = document.createElement("canvas").getContext("webgl2", { antialias: true, preserveDrawingBuffer: true });
      Painter.#shared = gl && new Painter(gl);
    }
    return Painter.#shared;
  }

  constructor(gl) {
    this.gl = gl;
    this.program = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(this.program, shader);
    }
    gl.linkProgram(this.program);
    gl.useProgram(this.program);
    gl.enable(gl.DEPTH_TEST);
    this.buffers = Object.fromEntries(["position", "colour"].map((name) => [name, gl.createBuffer()]));
  }

  /** Draw triangles, and their edges in the given colour, as they are seen by a camera. */
  draw(canvas, { position, colour, edges, edgeColour, isSolid }, camera) {
    const { gl } = this;
    gl.canvas.width = canvas.width;
    gl.canvas.height = canvas.height;
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    gl.uniformMatrix3fv(this.#place("turn"), true, camera.turn);
    gl.uniform1f(this.#place("zoom"), camera.zoom);
    gl.uniform2f(this.#place("shift"), ...camera.shift);
    gl.uniform1f(this.#place("aspect"), canvas.width / canvas.height);
    gl.uniform1f(this.#place("dim"), isSolid ? 1 : 0);
    gl.uniform1f(this.#place("lift"), 0);
    this.#triangles(position, colour, gl.TRIANGLES);
    if (edges) {
      gl.uniform1f(this.#place("dim"), 0);
      gl.uniform1f(this.#place("lift"), 1e-3); // edges lie in their triangles, and are drawn in front of them
      this.#triangles(edges, Float32Array.from(edges, (_, i) => edgeColour[i % 3]), gl.LINES);
    }
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(gl.canvas, 0, 0);
  }

  #place(name) {
    return this.gl.getUniformLocation(this.program, name);
  }

  #triangles(position, colour, kind) {
    const { gl } = this;
    for (const [name, data] of [["position", position], ["colour", colour]]) {
      const place = gl.getAttribLocation(this.program, name);
      gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[name]);
      gl.bufferData(gl.ARRAY_BUFFER, data, gl.DYNAMIC_DRAW);
      gl.enableVertexAttribArray(place);
      gl.vertexAttribPointer(place, 3, gl.FLOAT, false, 0, 0);
    }
    gl.drawArrays(kind, 0, position.length / 3);
  }
}

const MOST_EDGES = 20_000;
const FLAT = [1, 0, 0, 0, 1, 0, 0, 0, 1];

/** A view of a mesh that turns, grows and shows a field. */
class MeshView {
  constructor(mesh) {
    this.mesh = mesh;
    this.triangles = trianglesOf(mesh);
    this.isSolid = mesh.points.shape[1] === 3;
    this.field = mesh.fields[0] ?? null;
    this.canvas = h("canvas", { class: "mesh", tabindex: "0", role: "img", "aria-label": `mesh ${mesh.path}; arrow keys ${this.isSolid ? "turn" : "move"} it, plus and minus zoom` });
    this.bar = h("div", { class: "mesh-bar" });
    this.readout = h("output", { class: "readout" });
    this.#place();
    this.#listen();
    this.reset();
  }

  reset() {
    this.turns = this.isSolid ? [0.6, -1.0] : [0, 0];
    this.camera = { zoom: 0.92, shift: [0, 0] };
    this.draw();
  }

  /** Positions of the points between −1 and 1, and of the triangles' corners. */
  #place() {
    const { points: { shape: [count, rank], data } } = this.mesh;
    const at = (i, k) => (k < rank ? Number(data[rank * i + k]) : 0);
    const sides = [0, 1, 2].map((k) => statistics(Array.from({ length: count }, (_, i) => at(i, k))));
    this.ratio = this.isSolid ? 1.2 : Math.min(3, Math.max(0.8, (sides[0].high - sides[0].low) / (sides[1].high - sides[1].low || 1)));
    const centre = sides.map(({ low, high }) => (low + high) / 2);
    const radius = () => Array.from({ length: count }, (_, i) => Math.hypot(...centre.map((middle, k) => at(i, k) - middle))).reduce((most, far) => Math.max(most, far), 0);
    const half = this.isSolid ? radius() || 1 : Math.max((sides[0].high - sides[0].low) / (2 * this.ratio), (sides[1].high - sides[1].low) / 2) || 1;
    this.points = Array.from({ length: count }, (_, i) => centre.map((middle, k) => (at(i, k) - middle) / half));
    this.position = Float32Array.from(this.triangles.flatMap(([corners]) => corners.flatMap((i) => this.points[i])));
    const lines = this.triangles.length <= MOST_EDGES ? this.triangles : [];
    this.edges = Float32Array.from(lines.flatMap(([corners]) => [0, 1, 1, 2, 2, 0].flatMap((k) => this.points[corners[k]])));
  }

  show(field, isLog) {
    this.field = field;
    this.isLog = isLog;
    this.draw();
  }

  draw() {
    const painter = Painter.shared();
    if (!painter) return;
    this.canvas.width = 720;
    this.canvas.height = Math.round(720 / this.ratio);
    this.canvas.style.aspectRatio = String(this.ratio);
    this.camera.turn = turnOf(...this.turns);
    const edgeColour = isDark() ? [0.08, 0.09, 0.12] : [0.16, 0.18, 0.24];
    painter.draw(this.canvas, { position: this.position, colour: this.#colours(), edges: this.hasEdges && this.edges, edgeColour, isSolid: this.isSolid }, this.camera);
  }

  #colours() {
    if (!this.field) {
      this.bar.replaceChildren();
      return new Float32Array(this.position.length).fill(0.65);
    }
    const { values, place } = this.field;
    const scale = colourScale(statistics(values), { isLog: this.isLog });
    this.bar.replaceChildren(colourBar(scale));
    const rgb = Array.from(values, (value) => colourOf(scale, value));
    const colour = new Float32Array(this.position.length);
    this.triangles.forEach(([corners, cell], t) => corners.forEach((point, k) => {
      const found = rgb[place === "points" ? point : cell];
      for (let c = 0; c < 3; c++) colour[9 * t + 3 * k + c] = found[c] / 255;
    }));
    return colour;
  }

  #listen() {
    let last = null;
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      last = [event.clientX, event.clientY];
      canvas.setPointerCapture(event.pointerId);
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { last = null; });
    canvas.addEventListener("pointermove", (event) => {
      if (!last) return this.#read(event);
      const { width, height } = canvas.getBoundingClientRect();
      const [dx, dy] = [event.clientX - last[0], event.clientY - last[1]];
      last = [event.clientX, event.clientY];
      return this.#drag((2 * dx * this.ratio) / width, (-2 * dy) / height);
    });
    canvas.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, 0.15], ArrowDown: [0, -0.15] }[event.key];
      const zoom = { "+": 1.25, "=": 1.25, "-": 0.8 }[event.key];
      if (!move && !zoom) return;
      event.preventDefault();
      if (move) this.#drag(...move);
      else this.zoomBy(zoom);
    });
    const redraw = () => {
      if (canvas.isConnected) this.draw();
      else document.removeEventListener("theme", redraw);
    };
    document.addEventListener("theme", redraw);
  }

  #drag(dx, dy) {
    if (this.isSolid) this.turns = [this.turns[0] + 1.5 * dx, this.turns[1] - 1.5 * dy];
    else this.camera.shift = [this.camera.shift[0] + dx, this.camera.shift[1] + dy];
    this.draw();
  }

  zoomBy(factor) {
    this.camera.zoom *= factor;
    this.camera.shift = this.camera.shift.map((at) => at * factor);
    this.draw();
  }

  /** The value at the point next to the pointer. */
  #read(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * 2 * this.ratio - this.ratio, y = 1 - ((event.clientY - box.top) / box.height) * 2;
    const { turn, zoom, shift } = this.camera;
    let best = -1, least = 0.01, depth = -Infinity;
    this.points.forEach(([a, b, c], i) => {
      const [px, py, pz] = [0, 3, 6].map((row) => turn[row] * a + turn[row + 1] * b + turn[row + 2] * c);
      const far = (px * zoom + shift[0] - x) ** 2 + (py * zoom + shift[1] - y) ** 2;
      if (far < 0.01 && (pz > depth + 0.05 || (far < least && pz > depth - 0.05))) [best, least, depth] = [i, far, pz];
    });
    if (best < 0) return;
    const { shape: [, rank], data } = this.mesh.points;
    const at = Array.from(data.slice(rank * best, rank * best + rank), (each) => formatNumber(each, 4)).join(", ");
    const value = this.field?.place === "points" ? ` · ${this.field.name} = ${formatNumber(this.field.values[best], 6)}` : "";
    this.readout.textContent = `point ${best} at (${at})${value}`;
  }
}

/** Turned around the vertical axis, then towards the viewer; rows of a matrix. */
function turnOf(around, up) {
  if (!around && !up) return FLAT;
  const [c, s, d, t] = [Math.cos(around), Math.sin(around), Math.cos(up), Math.sin(up)];
  return [c, s, 0, -s * d, c * d, -t, -s * t, c * t, d];
}

/** The card of a mesh. */
export function meshCard(mesh) {
  const { points, cells, fields, path } = mesh;
  const head = h("header", {}, h("h3", {}, `mesh ${path}`), h("span", { class: "type" }, `${points.shape[0]} points, ${cells.shape[0]} cells`));
  if (!Painter.shared()) return h("article", { class: "card" }, head, h("p", { class: "muted" }, "This browser has no WebGL 2, so the mesh is not drawn."));
  const view = new MeshView(mesh);
  const log = h("input", { type: "checkbox", "aria-label": `${path}: logarithmic` });
  const logLabel = h("label", { class: "inline" }, log, " logarithmic");
  const show = () => {
    const field = fields[Number(choice.value)] ?? null;
    logLabel.hidden = !field || !isWide(statistics(field.values));
    view.show(field, log.checked && !logLabel.hidden);
  };
  const choice = select([...fields.map(({ name, place }, i) => [i, `${name} (on ${place})`]), [-1, "no field"]], show, { "aria-label": `${path}: field` });
  log.addEventListener("change", show);
  const edges = h("input", { type: "checkbox", "aria-label": `${path}: edges`, on: { change: () => { view.hasEdges = edges.checked; view.draw(); } } });
  show();
  const switches = h("div", { class: "switches" }, choice, logLabel, view.edges.length ? h("label", { class: "inline" }, edges, " edges") : null,
    button("+", () => view.zoomBy(1.25), { class: "tiny", "aria-label": `${path}: zoom in` }), button("−", () => view.zoomBy(0.8), { class: "tiny", "aria-label": `${path}: zoom out` }), button("reset view", () => view.reset(), { class: "link" }));
  return h("article", { class: "card wide" }, head, switches, h("figure", {}, h("div", { class: "image-row" }, view.canvas, view.bar), view.readout));
}
