// Results for the eye: numbers, curves, images and slices, by rank.

import { describe, formatNumber, formatTogether, isArray, isComplex, sizeOf, statistics, toNested, writeNpy } from "./arrays.js";
import { button, h, saveFile, select } from "./dom.js";
import { toJson } from "./json.js";
import { bars, curve, image } from "./plots.js";

/** Cards of every leaf of a tree; `node` is its schema where there is one, else `unitsOf` a path may be known. */
export function showTree(tree, { schema = null, node = null, path = "", isDiverging = false, unitsOf = () => undefined } = {}) {
  if (isArray(tree) || tree === null || typeof tree !== "object") {
    return [card(path, tree, schema && node ? facts(schema, node) : { units: unitsOf(path) }, isDiverging)];
  }
  return Object.entries(tree).flatMap(([key, value]) => {
    const inner = schema && node ? childNode(schema, node, key) : null;
    const name = Array.isArray(tree) ? `[${key}]` : key;
    return showTree(value, { schema, node: inner, path: path ? `${path}.${name}` : name, isDiverging, unitsOf });
  });
}

/** The units of the array at a path of a schema. */
export function unitsAt(schema, node, path) {
  const keys = path.split(".").map((part) => part.replace(/^[[{]|[\]}]$/g, ""));
  const found = keys.reduce((inner, key) => inner && childNode(schema, inner, key), node);
  return found ? facts(schema, found).units : undefined;
}

function childNode(schema, node, key) {
  const found = schema.resolve(node);
  const child = found.properties?.[key] ?? found.items ?? (typeof found.additionalProperties === "object" ? found.additionalProperties : null);
  return child && schema.resolve(child);
}

function facts(schema, node) {
  const found = schema.resolve(node);
  return { units: schema.classify(found).units ?? found.units, description: found.description };
}

function card(path, value, { units, description }, isDiverging) {
  const type = isArray(value) ? describe(value) : value === null ? "none" : typeof value;
  const head = h("header", {}, h("h3", {}, path || "result"), h("span", { class: "type" }, type), units && h("span", { class: "unit" }, units));
  const body = isArray(value) ? showArray(value, path, units, isDiverging) : h("p", { class: "value" }, value === null ? "—" : String(value));
  return h("article", { class: "card" }, head, description && h("p", { class: "help" }, description), body);
}

function showArray(array, label, units, isDiverging) {
  if (isComplex(array)) return showComplex(array, label, units, isDiverging);
  const body = h("div", {}, byRank(array, label, units, isDiverging));
  if (array.shape.length === 0) return body;
  return h("div", {}, body, summary(array), array.data.length ? tools(array, label) : null);
}

function byRank(array, label, units, isDiverging) {
  const { shape, data } = array;
  if (shape.length === 0) return h("p", { class: "value" }, formatNumber(data[0], 8), units && h("small", {}, ` ${units}`));
  const values = Array.from(data);
  if (sizeOf(shape) === 0) return h("p", { class: "muted" }, "no values");
  if (shape.length === 1) {
    const few = values.length <= 12;
    const labelled = values.map((value, i) => ({ label: `[${i}]`, value }));
    return few ? bars(labelled, { label }) : curve(values, { label });
  }
  if (shape.length === 2) return image(values, shape[0], shape[1], { label, isDiverging });
  return slices(array, label, isDiverging);
}

/** One image out of many: a slider for every axis but the last two. */
function slices({ shape, data }, label, isDiverging) {
  const leading = shape.slice(0, -2);
  const [rows, columns] = shape.slice(-2);
  const at = leading.map(() => 0);
  const place = h("div");
  const limits = statistics(data);
  const draw = () => {
    const start = at.reduce((flat, index, axis) => flat * leading[axis] + index, 0) * rows * columns;
    const values = Array.from(data.slice(start, start + rows * columns));
    place.replaceChildren(image(values, rows, columns, { label: `${label}[${at.join(", ")}]`, isDiverging, limits }));
  };
  const sliders = leading.map((size, axis) => {
    const shown = h("output", {}, "0");
    const slider = h("input", {
      type: "range", min: 0, max: size - 1, value: 0, "aria-label": `${label}: position on axis ${axis}`,
      on: { input: (event) => { at[axis] = Number(event.target.value); shown.textContent = event.target.value; draw(); } },
    });
    return h("label", { class: "slider" }, `axis ${axis}`, slider, shown);
  });
  draw();
  return [h("div", { class: "sliders" }, sliders), place];
}

const PARTS = {
  absolute: (re, im) => Math.hypot(re, im), phase: (re, im) => Math.atan2(im, re), real: (re) => re, imaginary: (_, im) => im,
};

function showComplex(array, label, units, isDiverging) {
  const place = h("div");
  const draw = (part) => {
    const data = Float64Array.from({ length: sizeOf(array.shape) }, (_, i) => PARTS[part](array.data[2 * i], array.data[2 * i + 1]));
    place.replaceChildren(byRank({ ...array, dtype: "float64", data }, `${part}(${label})`, units, isDiverging || part !== "absolute"));
  };
  draw("absolute");
  const choice = select(Object.keys(PARTS).map((part) => [part, part]), draw, { "aria-label": `${label}: part shown` });
  return h("div", {}, choice, place, tools(array, label));
}

function summary({ data }) {
  const { low, high, mean, count } = statistics(data);
  const odd = data.length - count;
  if (!data.length) return null;
  const [least, middle, most] = formatTogether([low, mean, high], 4);
  const text = `min ${least} · mean ${middle} · max ${most}`;
  return h("p", { class: "summary" }, text, odd ? h("strong", { class: "bad" }, ` · ${odd} not finite`) : null);
}

function tools(array, label) {
  const name = label.replace(/[^\w]+/g, "_") || "result";
  const place = h("div");
  const numbers = button("numbers", () => {
    const isOpen = place.hasChildNodes();
    place.replaceChildren(...(isOpen ? [] : [table(array)]));
    numbers.setAttribute("aria-expanded", String(!isOpen));
  }, { class: "link", "aria-expanded": "false" });
  return [
    h("p", { class: "tools" }, isComplex(array) ? null : numbers, button(".npy", () => saveFile(`${name}.npy`, writeNpy(array)), { class: "link", "aria-label": `save ${label} as .npy` }),
      isComplex(array) ? null : button(".json", () => saveFile(`${name}.json`, toJson(toNested(array)), "application/json"), { class: "link", "aria-label": `save ${label} as .json` })),
    place,
  ];
}

const SHOWN = 100;

/** The first rows and columns as numbers. */
function table({ shape, data }) {
  const columns = shape.length === 1 ? 1 : shape[shape.length - 1];
  const rows = data.length / columns;
  const line = (row) => h("tr", {}, h("th", { scope: "row" }, String(row)), Array.from(data.slice(row * columns, row * columns + Math.min(columns, SHOWN)), (value) => h("td", { class: "number" }, formatNumber(value, 7))));
  const shown = Array.from({ length: Math.min(rows, SHOWN) }, (_, row) => line(row));
  const more = rows > SHOWN || columns > SHOWN ? h("p", { class: "muted small" }, `the first ${SHOWN} of ${rows} × ${columns}`) : null;
  return h("div", { class: "numbers", tabindex: "0" }, h("table", {}, h("tbody", {}, shown)), more);
}
