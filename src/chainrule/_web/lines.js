// Several lines over the steps of a run, with a mark at one step that the pointer moves.

import { formatNumber, formatTogether } from "./arrays.js";
import { h, svg } from "./dom.js";
import { ticks } from "./plots.js";

const WIDE = 400, HIGH = 180, PAD_LEFT = 58, PAD_RIGHT = 14, PAD_TOP = 10, PAD_BOTTOM = 26;

/**
 * A plot of `[{ name, values }]` over `steps`. Values that are not finite are red marks at the lower edge.
 * `onPick` gets the index of the step under the pointer. Returns the element and `mark(index)`.
 */
export function linesPlot(series, steps, { label = "", isLog = false, onPick } = {}) {
  const isDrawn = (value) => Number.isFinite(value) && (!isLog || value > 0);
  const height = (value) => (isLog ? Math.log10(value) : value);
  const drawn = series.flatMap(({ values }) => values.filter(isDrawn).map(height));
  const [low, high] = padded(drawn);
  const x = (i) => PAD_LEFT + ((WIDE - PAD_LEFT - PAD_RIGHT) * (steps[i] - steps[0])) / (steps.at(-1) - steps[0] || 1);
  const y = (v) => PAD_TOP + ((HIGH - PAD_TOP - PAD_BOTTOM) * (high - v)) / (high - low);
  const picture = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, class: "plot wide", role: "img", "aria-label": `${label} over the steps` });
  const levels = isLog ? decades(low, high) : ticks(low, high, 4);
  const texts = isLog ? levels.map((level) => formatNumber(10 ** level, 3)) : formatTogether(levels, 4);
  levels.forEach((level, i) => {
    picture.append(svg("line", { class: "gridline", x1: PAD_LEFT, x2: WIDE - PAD_RIGHT, y1: y(level), y2: y(level) }));
    picture.append(svg("text", { class: "tick", x: PAD_LEFT - 8, y: y(level) + 4, "text-anchor": "end" }, texts[i]));
  });
  for (const tick of ticks(steps[0], steps.at(-1), 6)) {
    const at = PAD_LEFT + ((WIDE - PAD_LEFT - PAD_RIGHT) * (tick - steps[0])) / (steps.at(-1) - steps[0] || 1);
    if (Number.isInteger(tick) && at <= WIDE) picture.append(svg("text", { class: "tick", x: at, y: HIGH - 6, "text-anchor": "middle" }, String(tick)));
  }
  series.forEach(({ values }, k) => {
    picture.append(svg("path", { class: `curve series-${k % 8}`, d: lineOf(values, isDrawn, x, (v) => y(height(v))) }));
    values.forEach((value, i) => {
      if (value !== null && !Number.isFinite(value)) picture.append(svg("circle", { class: "odd", cx: x(i), cy: HIGH - PAD_BOTTOM, r: 3.5 }));
    });
  });
  const cursor = svg("line", { class: "cursor", y1: PAD_TOP, y2: HIGH - PAD_BOTTOM });
  picture.append(cursor);
  const readouts = series.map(() => h("span", { class: "readout-value" }));
  const legend = h("ul", { class: "legend" }, series.map(({ name }, k) => h("li", {}, h("span", { class: `swatch series-${k % 8}`, "aria-hidden": "true" }), h("span", { class: "legend-name" }, name), readouts[k])));
  const mark = (index) => {
    for (const side of ["x1", "x2"]) cursor.setAttribute(side, x(index));
    series.forEach(({ values }, k) => {
      readouts[k].textContent = values[index] === null ? "–" : formatNumber(values[index]);
      readouts[k].classList.toggle("bad", values[index] !== null && !Number.isFinite(values[index]));
    });
  };
  if (onPick) pickWith(picture, (share) => onPick(nearest(steps, steps[0] + share * (steps.at(-1) - steps[0]))));
  return { element: h("figure", {}, picture, legend), mark };
}

function padded(values) {
  const low = Math.min(...values), high = Math.max(...values);
  if (!values.length) return [0, 1];
  const pad = high - low > 1e-12 * Math.max(Math.abs(low), Math.abs(high)) ? 0.06 * (high - low) : Math.abs(high) * 0.1 || 1;
  return [low - pad, high + pad];
}

function decades(low, high) {
  const whole = ticks(low, high, 4).filter(Number.isInteger);
  return whole.length > 1 ? whole : ticks(low, high, 4);
}

function lineOf(values, isDrawn, x, y) {
  let text = "", isOn = false, previous = -1;
  values.forEach((value, i) => {
    if (value === null) return; // not recorded at this step: the line goes on
    if (!isDrawn(value)) isOn = false;
    else {
      text += `${isOn ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
      if (!isOn && previous < 0) text += "h0.01"; // a single point is seen as a dot
      isOn = true;
      previous = i;
    }
  });
  return text;
}

function pickWith(picture, pick) {
  const at = (event) => {
    const box = picture.getBoundingClientRect();
    const share = (((event.clientX - box.left) / box.width) * WIDE - PAD_LEFT) / (WIDE - PAD_LEFT - PAD_RIGHT);
    pick(Math.min(1, Math.max(0, share)));
  };
  picture.classList.add("pickable");
  picture.addEventListener("pointerdown", (event) => { picture.setPointerCapture(event.pointerId); at(event); });
  picture.addEventListener("pointermove", (event) => event.buttons && at(event));
}

function nearest(steps, step) {
  let best = 0;
  steps.forEach((each, i) => { if (Math.abs(each - step) < Math.abs(steps[best] - step)) best = i; });
  return best;
}
