// Results for the eye: a card for every leaf of a tree, tables for records.

import { describe, formatNumber, formatTogether, fromFlat, isArray, isComplex, statistics, toNested, writeNpy } from "./arrays.js";
import { arrayView } from "./array_view.js";
import { button, h, saveFile } from "./dom.js";
import { toJson } from "./json.js";
import { markdown } from "./markdown.js";

/**
 * Cards of every leaf of a tree.
 *
 * `node` is its schema where there is one, else `unitsOf` a path may be known. `fileAt(name)` gives the control
 * that fetches a file of the component. Arrays that are `onMesh` are drawn elsewhere, and have their numbers here.
 */
export function showTree(tree, { path = "", ...options } = {}) {
  const { schema = null, node = null } = options;
  if (isNumberList(tree)) return [card(path, fromFlat([tree.length], "float64", tree), options)];
  if (isLeaf(tree) || isEmpty(tree) || isTextList(tree) || recordsOf(tree, schema, node)) return [card(path, tree, options)];
  return Object.entries(tree).flatMap(([key, value]) => {
    const inner = schema && node ? childNode(schema, node, key) : null;
    const name = Array.isArray(tree) ? `[${key}]` : key;
    return showTree(value, { ...options, node: inner, path: path ? `${path}.${name}` : name });
  });
}

const isLeaf = (tree) => isArray(tree) || tree === null || typeof tree !== "object";
const isEmpty = (tree) => Object.keys(tree).length === 0;
const isNumberList = (tree) => Array.isArray(tree) && tree.length > 0 && tree.every((value) => typeof value === "number");
const isTextList = (tree) => Array.isArray(tree) && tree.length > 0 && tree.every((value) => typeof value === "string");

/** `[name, record]` of a list or dictionary of flat records, or nothing if it is none. */
function recordsOf(tree, schema, node) {
  const isDict = !Array.isArray(tree) && schema && node && schema.classify(schema.resolve(node)).kind === "dict";
  if (!Array.isArray(tree) && !isDict) return null;
  const isFlat = (value) => isLeaf(value) && !(isArray(value) && value.shape.length > 0);
  const records = Object.entries(tree);
  const areFlat = records.every(([, record]) => !isLeaf(record) && !Array.isArray(record) && !isEmpty(record) && Object.values(record).every(isFlat));
  return areFlat ? records : null;
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
  return { units: schema.classify(found).units ?? found.units, description: found.description, isFile: schema.classify(found).kind === "file" };
}

function card(path, value, { schema = null, node = null, isDiverging = false, unitsOf = () => undefined, fileAt = null, onMesh = new Set() }) {
  const { units, description, isFile } = schema && node ? facts(schema, node) : { units: unitsOf(path) };
  const type = typeName(value);
  const place = h("article", { class: "card" });
  const head = h("header", {}, h("h3", {}, path || "result"), h("span", { class: "type" }, type), units && h("span", { class: "unit" }, units));
  place.append(head, ...(description ? [h("div", { class: "help" }, markdown(description))] : []), ...body(value, { path, units, isDiverging, schema, node, file: isFile && fileAt, isElsewhere: onMesh.has(value) }));
  if (isArray(value) && value.shape.length > 0 && value.data.length > 12 && !onMesh.has(value)) head.append(enlarger(place, path));
  return place;
}

function typeName(value) {
  if (isArray(value)) return describe(value);
  if (Array.isArray(value)) return `list of ${value.length}`;
  return value === null ? "none" : typeof value === "object" ? "dict" : { string: "text", bigint: "integer", boolean: "yes / no" }[typeof value] ?? typeof value;
}

function body(value, { path, units, isDiverging, schema, node, file, isElsewhere }) {
  if (isElsewhere) return [h("p", { class: "muted small" }, "Drawn on the mesh above."), isComplex(value) ? "" : summary(value), ...tools(value, path)];
  if (isArray(value)) return arrayParts(value, path, units, isDiverging);
  if (value === null) return [h("p", { class: "value" }, "—")];
  if (typeof value === "string") return [h("p", { class: "value text" }, value), ...(file ? [file(value)] : [])];
  if (typeof value !== "object") return [h("p", { class: "value" }, String(value))];
  if (isEmpty(value)) return [h("p", { class: "muted" }, "no entries")];
  if (isTextList(value)) return [h("ul", { class: "texts" }, value.map((text) => h("li", {}, text)))];
  return [recordTable(recordsOf(value, schema, node), path)];
}

/** The whole width for a card, and back. */
function enlarger(place, path) {
  const toggle = button("enlarge", () => {
    const isWide = place.classList.toggle("wide");
    toggle.textContent = isWide ? "reduce" : "enlarge";
    toggle.setAttribute("aria-label", `${toggle.textContent} ${path}`);
  }, { class: "link", "aria-label": `enlarge ${path}` });
  return toggle;
}

function arrayParts(array, label, units, isDiverging) {
  const shown = arrayView(array, label, { units, isDiverging });
  if (array.shape.length === 0) return [shown];
  return [shown, ...(isComplex(array) ? [] : [summary(array)]), ...(array.data.length ? tools(array, label) : [])].filter(Boolean);
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
    place.replaceChildren(...(isOpen ? [] : [table(array, label)]));
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
function table({ shape, data }, label) {
  const columns = shape.length === 1 ? 1 : shape[shape.length - 1];
  const rows = data.length / columns;
  const line = (row) => h("tr", {}, h("th", { scope: "row" }, String(row)), Array.from(data.slice(row * columns, row * columns + Math.min(columns, SHOWN)), (value) => h("td", { class: "number" }, formatNumber(value, 7))));
  const shown = Array.from({ length: Math.min(rows, SHOWN) }, (_, row) => line(row));
  const more = rows > SHOWN || columns > SHOWN ? h("p", { class: "muted small" }, `the first ${SHOWN} of ${rows} × ${columns}`) : null;
  return framed(label, h("table", {}, h("tbody", {}, shown)), more);
}

/** Records with one column for each of their names. */
function recordTable(records, label) {
  const names = [...new Set(records.flatMap(([, record]) => Object.keys(record)))];
  const head = h("tr", {}, h("td"), names.map((name) => h("th", { scope: "col" }, name)));
  const line = ([key, record]) => h("tr", {}, h("th", { scope: "row" }, key), names.map((name) => cell(record[name])));
  const more = records.length > SHOWN ? h("p", { class: "muted small" }, `the first ${SHOWN} of ${records.length}`) : null;
  return framed(label, h("table", {}, h("thead", {}, head), h("tbody", {}, records.slice(0, SHOWN).map(line))), more);
}

function cell(value) {
  const found = isArray(value) ? (isComplex(value) ? `${formatNumber(value.data[0])} + ${formatNumber(value.data[1])}i` : value.data[0]) : value;
  const isNumber = ["number", "bigint"].includes(typeof found);
  return h("td", { class: isNumber ? "number" : "" }, found === null || found === undefined ? "—" : isNumber ? formatNumber(found, 6) : String(found));
}

const framed = (label, ...content) => h("div", { class: "numbers", tabindex: "0", role: "region", "aria-label": `numbers of ${label}` }, content);
