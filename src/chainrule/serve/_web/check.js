// The gradient check: every derivative endpoint against finite differences, and against each other, as pictures.

import { formatNumber, statistics } from "./arrays.js";
import { button, h, newId, svg } from "./dom.js";
import { markdown } from "./markdown.js";

const MEANINGS = {
  pointwise: "entries of the Jacobian agree with central differences",
  taylor: "the remainder of a linear step vanishes like its square",
  adjoint: "⟨u, J v⟩ = ⟨Jᵀ u, v⟩ in every mode",
  curvature: "second derivatives agree with differences of first ones",
  shapes: "shapes and dtypes equal those of abstract_eval",
};

export class GradientCheck {
  constructor(session) {
    this.session = session;
    const id = newId();
    this.budget = h("input", { id, type: "text", inputmode: "numeric", value: "200", class: "narrow" });
    this.results = h("div");
    this.element = h(
      "div",
      {},
      h("p", {}, "Compares the component's derivatives with finite differences at the inputs on the left. It runs as one job on one worker."),
      h("div", { class: "field row" }, h("label", { for: id }, "Evaluations to spend"), this.budget, button("Check gradients", () => this.run(), { class: "primary" })),
      this.results,
    );
  }

  async run() {
    const point = await this.session.currentPoint({ isFresh: true });
    if (!point) return;
    const report = await this.session.run("check_gradients", point.inputs, { max_evals: Number(this.budget.value) });
    if (report) this.results.replaceChildren(verdict(report), pictures(report), checkTable(report));
  }
}

function verdict({ passed, checks }) {
  const wrong = checks.filter((check) => !check.passed).length;
  const text = passed ? `All ${checks.length} checks passed.` : `${wrong} of ${checks.length} checks failed.`;
  return h("p", { class: passed ? "verdict good" : "verdict bad", role: "status" }, passed ? "✓ " : "✗ ", text);
}

/** One card per endpoint: its entries against what they should be, and how the remainder falls. */
function pictures({ checks }) {
  const endpoints = [...new Set(checks.map(({ endpoint }) => endpoint))];
  const cards = endpoints.flatMap((endpoint) => {
    const own = checks.filter((check) => check.endpoint === endpoint);
    const drawn = [
      ...own.filter(({ entries }) => entries?.length).map(foundAgainstExpected),
      ...own.filter(({ remainders }) => remainders?.length > 1).map(taylorPlot),
    ];
    const isGood = own.every(({ passed }) => passed);
    const sign = h("span", { class: isGood ? "good" : "bad" }, isGood ? "✓ passed" : "✗ FAILED");
    return drawn.length ? [h("article", { class: "card" }, h("header", {}, h("h3", {}, endpoint), sign), drawn)] : [];
  });
  return h("div", { class: "cards" }, cards);
}

const SIZE = 220, EDGE = 46, FAR = SIZE - 12;

/** `place(value)` from `EDGE` to `FAR`. */
const axis = (low, high) => (value) => EDGE + ((FAR - EDGE) * (value - low)) / (high - low || 1);
const upright = (place) => (value) => SIZE - place(value);

/** A square picture with its axes named, and the smallest and largest value on each. */
function frame(label, { across, up }, marks) {
  const text = (x, y, words, anchor = "middle") => svg("text", { class: "tick", x, y, "text-anchor": anchor }, words);
  const box = svg("rect", { class: "frame", x: EDGE, y: SIZE - FAR, width: FAR - EDGE, height: FAR - EDGE });
  const [left, right] = across.ends, [bottom, top] = up.ends;
  return svg("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, class: "plot square-plot", role: "img", "aria-label": label },
    box, text(EDGE, SIZE - 30, left, "start"), text(FAR, SIZE - 30, right, "end"), text((EDGE + FAR) / 2, SIZE - 12, across.name),
    text(EDGE - 4, SIZE - EDGE, bottom, "end"), text(EDGE - 4, SIZE - FAR + 9, top, "end"),
    svg("text", { class: "tick", transform: `translate(12 ${SIZE / 2}) rotate(-90)`, "text-anchor": "middle" }, up.name), marks);
}

/** Every entry as a dot; right ones lie on the diagonal. Entries of many sizes are drawn by their logarithms. */
function foundAgainstExpected({ endpoint, entries, summary }) {
  const sizes = entries.flat().map(Math.abs).filter((size) => size > 0);
  const { low: least, high: most } = statistics(sizes);
  const isSpread = sizes.length > 0 && most > 1000 * least;
  const floor = isSpread ? Math.max(least, most * 1e-9) : 1;
  const shown = isSpread ? (value) => Math.sign(value) * Math.max(0, Math.log10(Math.abs(value) / floor)) : (value) => value;
  const { low, high } = statistics(entries.flat().map(shown));
  const place = low === high ? axis(low - 1, high + 1) : axis(low, high);
  const back = (value) => (isSpread ? Math.sign(value) * floor * 10 ** Math.abs(value) : value);
  const ends = (low === high ? [low - 1, high + 1] : [low, high]).map((value) => formatNumber(back(value), 2));
  const dots = entries.map(([found, expected]) => {
    const isFar = Math.abs(found - expected) > 0.1 * Math.abs(expected) + 1e-8 * most;
    return svg("circle", { class: isFar ? "dot wrong" : "dot", cx: place(shown(expected)), cy: upright(place)(shown(found)), r: 2.5 });
  });
  const diagonal = svg("line", { class: "diagonal", x1: EDGE, y1: SIZE - EDGE, x2: FAR, y2: SIZE - FAR });
  const picture = frame(`found against expected, ${endpoint}`, { across: { name: "expected", ends }, up: { name: "found", ends } }, [diagonal, dots]);
  return h("figure", {}, picture, h("figcaption", { class: "small" }, markdown(summary)));
}

/** The remainder of a linear step over its length, both by their logarithms, beside lines of order one and two. */
function taylorPlot({ endpoint, remainders, summary }) {
  const usable = remainders.filter(([, size]) => size > 0);
  if (usable.length < 2) return h("figure", {}, h("figcaption", { class: "small" }, markdown(summary)));
  const logs = usable.map((pair) => pair.map(Math.log10));
  const steps = statistics(logs.map(([step]) => step));
  const [lastStep, lastSize] = logs.reduce((most, pair) => (pair[0] > most[0] ? pair : most));
  const along = (order) => [[steps.low, lastSize + order * (steps.low - lastStep)], [steps.high, lastSize + order * (steps.high - lastStep)]];
  const sizes = statistics([...logs, ...along(2)].map(([, size]) => size));
  const [x, y] = [axis(steps.low, steps.high), upright(axis(sizes.low, sizes.high))];
  const line = (points, kind) => svg("path", { class: kind, d: points.map(([step, size], i) => `${i ? "L" : "M"}${x(step).toFixed(1)} ${y(size).toFixed(1)}`).join("") });
  const named = [1, 2].map((order) => {
    const [[, start], [, stop]] = along(order);
    const share = order === 1 ? 0.1 : 0.6;
    return svg("text", { class: "tick", x: EDGE + share * (FAR - EDGE), y: y(start + share * (stop - start)) + 16 }, `order ${order}`);
  });
  const marks = [line(along(1), "diagonal"), line(along(2), "diagonal"), named, line(logs, "curve"), logs.map(([step, size]) => svg("circle", { class: "dot", cx: x(step), cy: y(size), r: 3 }))];
  const ends = ({ low, high }) => [low, high].map((power) => formatNumber(10 ** power, 2));
  const picture = frame(`remainder over the step, ${endpoint}`, { across: { name: "step", ends: ends(steps) }, up: { name: "remainder", ends: ends(sizes) } }, marks);
  return h("figure", {}, picture, h("figcaption", { class: "small" }, markdown(summary)));
}

function checkTable({ checks }) {
  const rows = checks.map((check) =>
    h("tr", { class: check.passed ? "" : "failed" },
      h("td", {}, h("code", {}, check.endpoint)),
      h("td", { title: MEANINGS[check.test] }, check.test),
      h("td", { class: check.passed ? "good" : "bad" }, check.passed ? "passed" : "FAILED"),
      h("td", { class: "number" }, String(check.count)),
      h("td", { class: "prose" }, markdown(check.summary), check.mismatches.length ? h("ul", { class: "mismatches" }, check.mismatches.map((line) => h("li", {}, line))) : null)),
  );
  const head = ["endpoint", "test", "result", "values", "what was found"].map((title) => h("th", { scope: "col" }, title));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "checks" }, h("table", { class: "lines" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
}
