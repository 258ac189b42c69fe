// Drawings by our own hand: curves and bars as SVG, fields on a canvas. Colours of marks come from the style sheet.

import { formatNumber, formatTogether, isFlat, statistics } from "./arrays.js";
import { h, svg } from "./dom.js";

// Anchors of colour maps: dark to light, blue–white–red, and a circle for phases; in between is interpolated
// in linear light.
const SEQUENTIAL = ["#1b0f3b", "#3b2273", "#5b3f9e", "#3c6fb4", "#2f9aa8", "#5bbf82", "#b5d957", "#fbf3a8"];
const DIVERGING = ["#0b3c7d", "#2f78b7", "#8fbfdc", "#f4f4f2", "#f0ab8d", "#cf5246", "#7d0f2b"];
const CYCLIC = ["#2a2459", "#3c6fb4", "#9fd0d8", "#f4f4f2", "#f0c27d", "#b5483f", "#2a2459"];

/** `[0, 1] → [r, g, b]` as a table of 256 colours. */
function colourTable(anchors) {
  const linear = anchors.map((hex) => [1, 3, 5].map((i) => (parseInt(hex.slice(i, i + 2), 16) / 255) ** 2.2));
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (linear.length - 1);
    const left = Math.min(Math.floor(at), linear.length - 2);
    return [0, 1, 2].map((c) => Math.round(255 * (linear[left][c] + (at - left) * (linear[left + 1][c] - linear[left][c])) ** (1 / 2.2)));
  });
}
const isNumber = (value) => typeof value === "bigint" || Number.isFinite(value);
const TABLES = { sequential: colourTable(SEQUENTIAL), diverging: colourTable(DIVERGING), cyclic: colourTable(CYCLIC) };
const GREY = [128, 128, 128];

/**
 * How values become places on a scale from 0 to 1: `{share(value), from, middle, to, table}`.
 *
 * Zero is in the middle of the colours where it is in the midst of the values.
 */
export function colourScale({ low, high }, { isLog = false, isDiverging = false, isCyclic = false } = {}) {
  if (isCyclic) return scaleBetween(-Math.PI, Math.PI, TABLES.cyclic);
  if (isLog && low > 0) {
    const [from, to] = isFlat({ low, high }) ? [low / 2, high * 2] : [low, high];
    const share = (value) => Math.log(Number(value) / from) / Math.log(to / from);
    return { share, from, middle: Math.sqrt(from * to), to, table: TABLES.sequential };
  }
  const isCentred = isDiverging || (low < 0 && high > 0 && Math.max(-low, high) < 10 * Math.min(-low, high));
  const bound = Math.max(Math.abs(low), Math.abs(high)) || 1;
  if (isCentred) return scaleBetween(-bound, bound, TABLES.diverging);
  return isFlat({ low, high }) ? scaleBetween(low - 0.5, high + 0.5, TABLES.sequential) : scaleBetween(low, high, TABLES.sequential);
}

const scaleBetween = (from, to, table) => ({ share: (value) => (Number(value) - from) / (to - from), from, middle: (from + to) / 2, to, table });

/** The colour of a value; grey for what is no number and, on a logarithmic scale, for what is not positive. */
export function colourOf({ share, table }, value) {
  const at = isNumber(value) ? share(value) : NaN;
  return Number.isFinite(at) ? table[Math.round(255 * Math.min(1, Math.max(0, at)))] : GREY;
}

/** Whether values are worth a logarithmic scale: positive, over two decades or more. */
export const isWide = ({ low, high }) => low > 0 && high >= 100 * low;

/** Let a rectangle be drawn on an element with the pointer; `onSelect` hears its sides as shares of the element. */
function selectable(element, onSelect) {
  const mark = h("span", { class: "selection", hidden: true });
  const frame = h("div", { class: "selectable" }, element, mark);
  let from = null;
  const place = (event) => {
    const box = element.getBoundingClientRect();
    const share = (at, start, size) => Math.min(1, Math.max(0, (at - start) / size));
    return [share(event.clientX, box.left, box.width), share(event.clientY, box.top, box.height)];
  };
  element.addEventListener("pointerdown", (event) => {
    from = place(event);
    element.setPointerCapture(event.pointerId);
  });
  const sides = (event) => place(event).map((end, axis) => [Math.min(from[axis], end), Math.max(from[axis], end)]);
  element.addEventListener("pointermove", (event) => {
    if (!from) return;
    const [[left, right], [top, bottom]] = sides(event);
    mark.hidden = false;
    Object.assign(mark.style, { left: `${100 * left}%`, width: `${100 * (right - left)}%`, top: `${100 * top}%`, height: `${100 * (bottom - top)}%` });
  });
  const end = (event) => {
    const found = from && event.type === "pointerup" ? sides(event) : null;
    from = null;
    mark.hidden = true;
    if (found?.some(([start, stop]) => stop - start > 0.03)) onSelect(...found);
  };
  for (const name of ["pointerup", "pointercancel"]) element.addEventListener(name, end);
  return frame;
}

/** Round numbers that cover a range. */
export function ticks(low, high, count = 5) {
  const span = high - low || Math.abs(high) || 1;
  const raw = span / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((candidate) => candidate >= raw);
  const first = Math.ceil(low / step - 1e-9) * step;
  const found = [];
  for (let i = 0; first + i * step <= high + 1e-9 * span; i++) found.push(Number((first + i * step).toPrecision(12)));
  return found;
}

const WIDTH = 340, HEIGHT = 168, LEFT = 56, RIGHT = 12, TOP = 8, BOTTOM = 36;

/**
 * A curve of values over their index, with the value under the pointer.
 *
 * `limits` of the axis are its own by default. `first` is the index of the first value. `onZoom(start, stop)`
 * hears which values the user selects.
 */
export function curve(values, { label = "", xLabel = "index", limits = statistics(values), isLog = false, first = 0, onZoom = null } = {}) {
  const { low, high } = limits.low <= limits.high ? limits : { low: 0, high: 1 }; // no value is finite
  const onAxis = isLog && low > 0 ? (value) => Math.log10(Number(value)) : Number;
  const [least, most] = [onAxis(low), onAxis(high)];
  const pad = isFlat({ low: least, high: most }) ? Math.abs(most) * 0.1 || 1 : 0.06 * (most - least);
  const [bottom, top] = [least - pad, most + pad];
  const x = (i) => LEFT + ((WIDTH - LEFT - RIGHT) * i) / Math.max(1, values.length - 1);
  const level = (place) => TOP + ((HEIGHT - TOP - BOTTOM) * (top - place)) / (top - bottom);
  const y = (v) => level(onAxis(v));
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "plot", role: "img", "aria-label": `curve of ${label}` });
  const levels = ticks(bottom, top, 4), texts = onAxis === Number ? formatTogether(levels, 4) : levels.map((power) => formatNumber(10 ** power, 2));
  levels.forEach((tick, i) => {
    picture.append(svg("line", { class: "gridline", x1: LEFT, x2: WIDTH - RIGHT, y1: level(tick), y2: level(tick) }));
    picture.append(svg("text", { class: "tick", x: LEFT - 8, y: level(tick) + 4, "text-anchor": "end" }, texts[i]));
  });
  for (const tick of ticks(first, first + values.length - 1, Math.min(6, Math.max(1, values.length - 1)))) {
    if (Number.isInteger(tick)) picture.append(svg("text", { class: "tick", x: x(tick - first), y: HEIGHT - 20, "text-anchor": "middle" }, String(tick)));
  }
  picture.append(svg("text", { class: "axis", x: WIDTH - RIGHT, y: HEIGHT - 4, "text-anchor": "end" }, xLabel));
  picture.append(svg("path", { class: "curve", d: pathOf(values, x, y) }));
  if (values.length <= 40) {
    values.forEach((v, i) => isNumber(v) && Number.isFinite(y(v)) && picture.append(svg("circle", { class: "dot", cx: x(i), cy: y(v), r: 3 })));
  }
  const indexAt = (share) => Math.round(((share * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT)) * (values.length - 1));
  const readout = h("output", { class: "readout" }, "");
  followPointer(picture, { values, x, y, indexAt, first, label, readout });
  const zoom = ([left, right]) => {
    const [start, stop] = [Math.max(0, indexAt(left)), Math.min(values.length, indexAt(right) + 1)];
    if (stop - start > 1) onZoom(first + start, first + stop);
  };
  return h("figure", {}, onZoom ? selectable(picture, zoom) : picture, readout);
}

const MOST_POINTS = 2000;

function pathOf(values, x, y) {
  let text = "", isOn = false;
  for (const i of drawnPoints(values)) {
    const height = isNumber(values[i]) ? y(values[i]) : NaN;
    if (Number.isFinite(height)) text += `${isOn ? "L" : "M"}${x(i).toFixed(2)} ${height.toFixed(2)}`;
    isOn = Number.isFinite(height);
  }
  return text;
}

/** Indices of the values to draw: all, or of each part of a long curve the smallest, the largest and a gap. */
function drawnPoints(values) {
  if (values.length <= MOST_POINTS) return values.keys();
  const width = Math.ceil((3 * values.length) / MOST_POINTS);
  const found = [];
  for (let start = 0; start < values.length; start += width) {
    let low = -1, high = -1, gap = -1;
    for (let i = start; i < Math.min(values.length, start + width); i++) {
      if (!isNumber(values[i])) gap = i;
      else {
        if (low < 0 || values[i] < values[low]) low = i;
        if (high < 0 || values[i] > values[high]) high = i;
      }
    }
    found.push(...new Set([low, high, gap].filter((i) => i >= 0).sort((a, b) => a - b)));
  }
  return found;
}

function followPointer(picture, { values, x, y, indexAt, first, label, readout }) {
  const line = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const dot = svg("circle", { class: "cursor-dot", r: 4, visibility: "hidden" });
  picture.append(line, dot);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const i = indexAt((event.clientX - box.left) / box.width);
    const isInside = i >= 0 && i < values.length && isNumber(values[i]) && Number.isFinite(y(values[i]));
    for (const mark of [line, dot]) mark.setAttribute("visibility", isInside ? "visible" : "hidden");
    if (!isInside) return;
    for (const name of ["x1", "x2"]) line.setAttribute(name, x(i));
    dot.setAttribute("cx", x(i));
    dot.setAttribute("cy", y(values[i]));
    readout.textContent = `${label}[${first + i}] = ${formatNumber(values[i], 7)}`;
  });
}

// Browsers refuse canvases with more than 65 535 pixels on a side, and no screen has as many as this.
const MOST_PIXELS = 1024;

/** `[values, rows, columns, down, across]`: a field of at most 1024 × 1024 means of `down` × `across` values. */
function reduce(values, rows, columns) {
  const down = Math.ceil(rows / MOST_PIXELS), across = Math.ceil(columns / MOST_PIXELS);
  if (down === 1 && across === 1) return [values, rows, columns, 1, 1];
  const height = Math.ceil(rows / down), width = Math.ceil(columns / across);
  const sums = new Float64Array(height * width), counts = new Uint32Array(height * width);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const at = Math.floor(row / down) * width + Math.floor(column / across);
      sums[at] += Number(values[row * columns + column]); // a part with a NaN becomes one, and is grey
      counts[at] += 1;
    }
  }
  return [sums.map((sum, i) => sum / counts[i]), height, width, down, across];
}

/**
 * A field of rows × columns values as an image with a colour bar; `limits` of the colours are its own by default.
 *
 * `origin` is the row and column of the first value. `onZoom(rows, columns)` hears which part the user selects,
 * as two pairs of start and stop.
 */
export function image(values, rows, columns, { label = "", limits = statistics(values), origin = [0, 0], onZoom = null, ...options } = {}) {
  const scale = colourScale(limits, options);
  const [shown, height, width, down, across] = reduce(values, rows, columns);
  const canvas = h("canvas", { width, height, class: "image", role: "img", "aria-label": `image of ${label}` });
  paint(canvas, shown, (v) => colourOf(scale, v));
  const readout = h("output", { class: "readout" });
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.min(columns - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * width * across)));
    const row = Math.min(rows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * height * down)));
    readout.textContent = `${label}[${origin[0] + row}, ${origin[1] + column}] = ${formatNumber(values[row * columns + column], 7)}`;
  });
  const part = ([from, to], size, start) => [start + Math.floor(from * size), start + Math.ceil(to * size)];
  const zoom = (sides, heights) => onZoom(part(heights, rows, origin[0]), part(sides, columns, origin[1]));
  const picture = inProportion(canvas, rows, columns, onZoom && zoom);
  const note = down * across > 1 ? h("p", { class: "muted small" }, `Each pixel is the mean of ${down} × ${across} values.`) : null;
  const bar = limits.low <= limits.high ? colourBar(scale) : null; // some value is finite
  return h("figure", {}, h("div", { class: "image-row" }, picture, bar), note, readout);
}

/** A picture of rows × columns × 3 or 4 channels, each from 0 to `full`. */
export function rgbImage(values, rows, columns, channels, { label = "", full = 255 } = {}) {
  const canvas = h("canvas", { width: columns, height: rows, class: "image", role: "img", "aria-label": `picture of ${label}` });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    for (let c = 0; c < 4; c++) pixels.data[4 * i + c] = c < channels ? (255 * Number(values[channels * i + c])) / full : 255;
  }
  context.putImageData(pixels, 0, 0);
  return h("figure", {}, h("div", { class: "image-row" }, inProportion(canvas, rows, columns)));
}

/** Pixels stay square where that fits, and thin fields are stretched so that they can be seen. */
function inProportion(canvas, rows, columns, onSelect = null) {
  const ratio = Math.min(4, Math.max(0.6, columns / rows));
  const found = onSelect ? selectable(canvas, onSelect) : canvas;
  canvas.style.aspectRatio = String(ratio);
  found.style.width = `min(100%, ${Math.round(300 * ratio)}px)`;
  return found;
}

function paint(canvas, values, colour) {
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(canvas.width, canvas.height);
  values.forEach((value, i) => pixels.data.set([...colour(value), 255], 4 * i));
  context.putImageData(pixels, 0, 0);
}

/** The colours of a scale with its limits. */
export function colourBar(scale) {
  const bar = h("canvas", { width: 1, height: 256, class: "bar", "aria-hidden": "true" });
  paint(bar, Array.from({ length: 256 }, (_, i) => 255 - i), (i) => scale.table[i]);
  const labels = formatTogether([scale.to, scale.middle, scale.from]).map((text) => h("span", {}, text));
  return h("div", { class: "colour-bar" }, bar, h("div", { class: "bar-labels" }, labels));
}

/** A path that may be broken after its parts and words. */
const withBreaks = (path) => path.split(/(?<=[._\]}])/).flatMap((part, i) => (i ? [h("wbr"), part] : [part]));

/** Horizontal bars around zero: one line per `{label, value}`. */
export function bars(entries, { label = "" } = {}) {
  const largest = Math.max(...entries.map(({ value }) => Math.abs(Number(value))).filter(Number.isFinite)) || 1;
  const rows = entries.map(({ label: name, value }) => {
    const fill = h("span", { class: value < 0 ? "bar-fill negative" : "bar-fill" });
    const share = (50 * Math.abs(Number(value))) / largest;
    fill.style.width = `${share}%`;
    fill.style.left = `${value < 0 ? 50 - share : 50}%`;
    return h("tr", {}, h("th", { scope: "row" }, withBreaks(name)), h("td", { class: "bar-cell" }, h("span", { class: "bar-track" }, fill)), h("td", { class: "number" }, formatNumber(value)));
  });
  return h("table", { class: "bars", "aria-label": label }, h("tbody", {}, rows));
}

/** A small curve without axes, from zero up, for a line of a table. */
export function sparkline(values, { top = statistics(values).high } = {}) {
  const x = (i) => (96 * i) / Math.max(1, values.length - 1) + 2;
  const y = (v) => 22 - (20 * v) / (top || 1);
  return svg("svg", { viewBox: "0 0 100 24", class: "sparkline", "aria-hidden": "true" }, svg("path", { class: "curve", d: pathOf(values, x, y) }));
}
