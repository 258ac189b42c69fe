// Small pictures beside an input: what is in an array, and how a number reacts to it.

import { formatNumber, isComplex, statistics } from "./arrays.js";
import { h, svg } from "./dom.js";
import { colourOf, colourScale } from "./plots.js";

const MOST_POINTS_DRAWN = 2000, FEWEST = 8, SIDE = 96;

/** Whether rows of an array may be positions in a plane or in space. */
const arePositions = ({ shape, dtype }) => shape.length === 2 && [2, 3].includes(shape[1]) && dtype.startsWith("float") && shape[0] <= MOST_POINTS_DRAWN;

/** What is in an array, or nothing for one that is small enough to be read. */
export function thumbnail(array) {
  const { low, high } = statistics(array.data);
  if (isComplex(array) || array.data.length < FEWEST || !(high > low)) return null;
  if (arePositions(array)) return positions(array);
  if (array.shape.length === 1) return line(array.data);
  return field(array);
}

/** The gradient of a number by an array, drawn where that says more than figures do. */
export function gradientPicture(array, gradient) {
  if (array && arePositions(array) && array.data.length === gradient.data.length) return positions(array, gradient);
  if (gradient.data.length < FEWEST || isComplex(gradient)) return null;
  return gradient.shape.length === 1 ? line(gradient.data) : field(gradient, { isDiverging: true });
}

function line(data) {
  const { low, high } = statistics(data);
  const every = Math.ceil(data.length / 300);
  const kept = Array.from({ length: Math.ceil(data.length / every) }, (_, i) => Number(data[i * every]));
  const x = (i) => 2 + (156 * i) / Math.max(1, kept.length - 1);
  const y = (value) => 30 - (28 * (value - low)) / (high - low || 1);
  const d = kept.map((value, i) => (Number.isFinite(value) ? `${i && Number.isFinite(kept[i - 1]) ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}` : "")).join("");
  return svg("svg", { viewBox: "0 0 160 32", class: "thumbnail", "aria-hidden": "true" }, svg("path", { class: "curve", d }));
}

/** The first matrix of an array, reduced to few pixels. */
function field({ shape, data }, options = {}) {
  const [rows, columns] = shape.slice(-2);
  const [height, width] = [Math.min(rows, SIDE), Math.min(columns, SIDE)];
  const canvas = h("canvas", { width, height, class: "thumbnail", "aria-hidden": "true" });
  const scale = colourScale(statistics(data), options);
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    const at = Math.floor((Math.floor(i / width) * rows) / height) * columns + Math.floor(((i % width) * columns) / width);
    pixels.data.set([...colourOf(scale, data[at]), 255], 4 * i);
  }
  context.putImageData(pixels, 0, 0);
  canvas.style.aspectRatio = String(Math.min(4, Math.max(0.5, columns / rows)));
  return canvas;
}

/** Points in a plane (of three coordinates the first two), with an arrow along the slope at each. */
function positions({ shape: [count, rank], data }, slopes = null) {
  const coordinate = (values, i, k) => Number(values[rank * i + k]);
  const sides = [0, 1].map((k) => statistics(Array.from({ length: count }, (_, i) => coordinate(data, i, k))));
  const size = Math.max(...sides.map(({ low, high }) => high - low)) || 1;
  const x = (value) => 80 + (110 * (value - (sides[0].low + sides[0].high) / 2)) / size;
  const y = (value) => 80 - (110 * (value - (sides[1].low + sides[1].high) / 2)) / size;
  const longest = slopes ? Math.max(...Array.from({ length: count }, (_, i) => Math.hypot(coordinate(slopes.data, i, 0), coordinate(slopes.data, i, 1)))) : 0;
  const marks = Array.from({ length: count }, (_, i) => {
    const [px, py] = [x(coordinate(data, i, 0)), y(coordinate(data, i, 1))];
    const dot = svg("circle", { class: "dot", cx: px, cy: py, r: count > 200 ? 1 : 2.5 });
    return longest ? [arrow(px, py, (24 * coordinate(slopes.data, i, 0)) / longest, (-24 * coordinate(slopes.data, i, 1)) / longest), dot] : dot;
  });
  const about = slopes ? { role: "img", "aria-label": `arrows: where the number grows, the longest is ${formatNumber(longest, 3)}` } : { "aria-hidden": "true" };
  return svg("svg", { viewBox: "0 0 160 160", class: "thumbnail square", ...about }, marks);
}

function arrow(x, y, dx, dy) {
  const length = Math.hypot(dx, dy);
  if (length < 0.5) return [];
  const [ux, uy] = [dx / length, dy / length];
  const head = Math.min(5, length / 2);
  const [ex, ey] = [x + dx, y + dy];
  const side = (sign) => `L${(ex - head * (ux + sign * 0.5 * uy)).toFixed(1)} ${(ey - head * (uy - sign * 0.5 * ux)).toFixed(1)}`;
  return svg("path", { class: "arrow", d: `M${x.toFixed(1)} ${y.toFixed(1)}L${ex.toFixed(1)} ${ey.toFixed(1)}${side(1)}M${ex.toFixed(1)} ${ey.toFixed(1)}${side(-1)}` });
}
