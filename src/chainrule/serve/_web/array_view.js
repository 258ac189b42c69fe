// One array as a picture: numbers, bars, curves, images and slices, by rank, with switches for what its values allow.

import { formatNumber, isComplex, sizeOf, statistics } from "./arrays.js";
import { button, h, newId, select } from "./dom.js";
import { bars, curve, image, isWide, rgbImage } from "./plots.js";

/** The picture of an array, and above it the switches that it has. */
export function arrayView(array, label, { units, isDiverging = false } = {}) {
  const shapes = waysToShow(array, label, { units, isDiverging });
  const names = Object.keys(shapes);
  const place = h("div");
  const state = { name: names[0], isLog: false };
  const log = checkbox("logarithmic", label, (isOn) => { state.isLog = isOn; draw(); });
  const draw = () => {
    const { figures, limits } = shapes[state.name];
    log.hidden = !limits || !isWide(limits());
    place.replaceChildren(...[figures({ isLog: state.isLog && !log.hidden })].flat());
  };
  const choice = names.length > 1 ? select(names.map((name) => [name, name]), (name) => { state.name = name; draw(); }, { "aria-label": `${label}: part shown` }) : null;
  draw();
  return h("div", {}, choice || !log.hidden ? h("div", { class: "switches" }, choice, log) : null, place);
}

/** A switch of a figure. */
export function checkbox(text, label, onChange) {
  const id = newId();
  const box = h("input", { id, type: "checkbox", "aria-label": `${label}: ${text}`, on: { change: () => onChange(box.checked) } });
  return h("label", { class: "inline", for: id }, box, ` ${text}`);
}

/** Name → `{figures(options), limits()}`; the first is shown at once. */
function waysToShow(array, label, options) {
  if (isComplex(array)) return waysOfComplex(array, label, options);
  const plain = way(array, label, options);
  const channels = options.isDiverging ? 0 : channelsOf(array);
  if (!channels) return { values: plain };
  const [rows, columns] = array.shape;
  return {
    picture: { figures: () => rgbImage(array.data, rows, columns, channels, { label, full: array.dtype === "uint8" ? 255 : 1 }) },
    channels: way(withLastAxisFirst(array), label, options),
  };
}

function way(array, label, options) {
  const canBeLog = array.data.length > 12 && array.dtype !== "bool";
  return { figures: (more) => byRank(array, label, { ...options, ...more }), limits: canBeLog ? () => statistics(array.data) : null };
}

const PARTS = {
  magnitude: (re, im) => Math.hypot(re, im), phase: (re, im) => Math.atan2(im, re), real: (re) => re, imaginary: (_, im) => im,
};

function waysOfComplex(array, label, options) {
  const part = (name) => {
    const data = Float64Array.from({ length: sizeOf(array.shape) }, (_, i) => PARTS[name](array.data[2 * i], array.data[2 * i + 1]));
    const more = { ...options, isDiverging: ["real", "imaginary"].includes(name) || options.isDiverging, isCyclic: name === "phase", units: name === "phase" ? "rad" : options.units };
    return way({ ...array, dtype: "float64", data }, `${name}(${label})`, more);
  };
  const parts = Object.fromEntries(Object.keys(PARTS).map((name) => [name, part(name)]));
  const titled = (name, settings) => [h("p", { class: "part" }, name), parts[name].figures(settings)].flat();
  const both = (settings) => [...titled("magnitude", settings), ...titled("phase", { isLog: false })];
  return { "magnitude and phase": { figures: both, limits: parts.magnitude.limits }, ...parts };
}

/** How many colour channels an array has, or none if it is no picture: bytes, or shares from 0 to 1. */
function channelsOf({ shape, dtype, data }) {
  if (shape.length !== 3 || ![3, 4].includes(shape[2]) || Math.min(shape[0], shape[1]) < 2) return 0;
  if (dtype === "uint8") return shape[2];
  const { low, high, count } = statistics(data);
  return dtype.startsWith("float") && count === data.length && low >= 0 && high <= 1 && high > low ? shape[2] : 0;
}

function withLastAxisFirst({ shape: [rows, columns, last], dtype, data }) {
  const moved = data.map((_, i) => data[(i % (rows * columns)) * last + Math.floor(i / (rows * columns))]);
  return { shape: [last, rows, columns], dtype, data: moved };
}

function byRank(array, label, options) {
  const { shape, data } = array;
  if (shape.length === 0) return h("p", { class: "value" }, formatNumber(data[0], 8), options.units && h("small", {}, ` ${options.units}`));
  if (sizeOf(shape) === 0) return h("p", { class: "muted" }, "no values");
  if (shape.length === 1 && data.length <= 12) return bars(Array.from(data, (value, i) => ({ label: `[${i}]`, value })), { label });
  if (shape.length === 1) return zoomable((part, onZoom) => wholeCurve(data, label, part, onZoom, options));
  if (shape.length === 2) return wholeImage(data, ...shape, label, options);
  return slices(array, label, options);
}

/** A figure whose parts can be selected, and a way back to the whole. */
function zoomable(draw) {
  const place = h("div");
  const show = (part) => place.replaceChildren(draw(part, (...found) => show(found)), part ? button("show all", () => show(null), { class: "link" }) : "");
  show(null);
  return place;
}

function wholeCurve(data, label, part, onZoom, options) {
  const [first, stop] = part ?? [0, data.length];
  return curve(Array.from(data.slice(first, stop)), { label, ...options, first, onZoom });
}

function wholeImage(data, rows, columns, label, options) {
  return zoomable((part, onZoom) => {
    const [[top, bottom], [left, right]] = part ?? [[0, rows], [0, columns]];
    const values = Array.from({ length: (bottom - top) * (right - left) }, (_, i) => data[(top + Math.floor(i / (right - left))) * columns + left + (i % (right - left))]);
    return image(values, bottom - top, right - left, { label, limits: statistics(data), ...options, origin: [top, left], onZoom });
  });
}

/** One image out of many: a slider for every axis but the last two. */
function slices({ shape, data }, label, options) {
  const leading = shape.slice(0, -2);
  const [rows, columns] = shape.slice(-2);
  const at = leading.map(() => 0);
  const place = h("div");
  const limits = statistics(data);
  const draw = () => {
    const start = at.reduce((flat, index, axis) => flat * leading[axis] + index, 0) * rows * columns;
    place.replaceChildren(wholeImage(data.slice(start, start + rows * columns), rows, columns, `${label}[${at.join(", ")}]`, { ...options, limits }));
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
