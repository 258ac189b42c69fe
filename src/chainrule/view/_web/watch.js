// A run: its curves, and its inputs and fields at the step that the slider is at. Saved, or live over events.

import { decodeTree, formatNumber, statistics, toNumber } from "./arrays.js";
import { button, h } from "./dom.js";
import { figureOf, rangeOf } from "./figure.js";
import { fitFrame } from "./frame.js";
import { linesPlot } from "./lines.js";

const FEW = 12; // elements of an input that are lines over the steps
const PAUSE_MS = 90; // between two frames of the animation

const read = (frame) => ({ ...decodeTree(frame), cost: number(frame.cost), gradients: mapValues(frame.gradients, number) });
const number = (value) => (value === null ? null : toNumber(value));
const mapValues = (object, change) => Object.fromEntries(Object.entries(object).map(([key, value]) => [key, change(value)]));

/** The page of a run in `main`; `add(news)` takes what came since. */
class Run {
  constructor(main, data) {
    this.frames = data.frames.map(read);
    this.at = Math.max(0, this.frames.length - 1);
    this.isFollowing = true; // of a live run: the slider stays at the end
    this.isLog = null; // until it is chosen: where the costs span more than two decades
    this.state = h("span", { class: "chip state" }, data.isLive ? "waiting for the first step" : "finished");
    this.about = h("p", { class: "lead" });
    this.note = h("p", { class: "bad", role: "status" });
    this.slider = h("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "step", on: { input: () => this.go(Number(this.slider.value)) } });
    this.play = button("▶", () => this.toggle(), { "aria-label": "play" });
    this.shown = h("span", { class: "step-number" });
    this.log = h("input", { type: "checkbox", on: { change: () => { this.isLog = this.log.checked; this.draw(); } } });
    this.steady = h("input", { type: "checkbox", checked: true, on: { change: () => this.showFields() } });
    this.curves = h("section", { "aria-label": "cost and gradients" });
    this.fields = h("section", { "aria-label": "fields at this step" });
    this.variables = h("section", { "aria-label": "inputs" });
    const scrubber = h("div", { class: "scrubber" }, this.play, this.slider, this.shown,
      h("label", { class: "choice" }, this.log, "log cost"), h("label", { class: "choice" }, this.steady, "same colours at all steps"));
    main.replaceChildren(
      h("header", { class: "top" }, h("div", {}, h("h1", {}, data.title), this.about), this.state),
      h("main", { class: "run" }, this.note, scrubber, h("div", { class: "panels" }, this.curves, this.fields, this.variables)),
    );
    this.say(data);
    this.draw();
  }

  add(news) {
    const kept = new Set(news.kept);
    const current = this.frames[this.at]?.number;
    this.frames = [...this.frames, ...news.frames.map(read)].filter((frame) => kept.has(frame.number));
    const last = this.frames.length - 1;
    const before = this.frames.findLastIndex((frame) => frame.number <= current);
    this.at = this.isFollowing ? last : Math.max(0, before);
    this.say(news);
    this.draw();
  }

  say({ count, note, firstOdd }) {
    const odd = firstOdd ? `${firstOdd.name} is ${firstOdd.value} at step ${firstOdd.step}, the first value that is not finite. ` : "";
    this.note.textContent = odd + (note ?? "");
    this.note.hidden = !this.note.textContent;
    this.count = count;
  }

  go(index) {
    this.at = index;
    this.isFollowing = index === this.frames.length - 1;
    this.show();
  }

  toggle() {
    if (!this.frames.length) return;
    if (this.timer) {
      this.stop();
      return;
    }
    this.go(this.at < this.frames.length - 1 ? this.at : 0);
    this.play.textContent = "❚❚";
    this.play.setAttribute("aria-label", "pause");
    this.timer = setInterval(() => {
      this.go(Math.min(this.at + 1, this.frames.length - 1));
      if (this.isFollowing) this.stop();
    }, PAUSE_MS);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = undefined;
    this.play.textContent = "▶";
    this.play.setAttribute("aria-label", "play");
  }

  /** Everything that depends on which frames there are. */
  draw() {
    const { frames } = this;
    if (!frames.length) {
      this.about.textContent = "no step yet";
      return;
    }
    this.at = Math.min(this.at, frames.length - 1);
    this.slider.max = frames.length - 1;
    const steps = frames.map((frame) => frame.step);
    const options = { onPick: (index) => this.go(index) };
    const costs = frames.map((frame) => frame.cost);
    const isLog = this.isLog ?? spansDecades(costs);
    this.log.checked = isLog;
    this.plots = [];
    const plot = (place, title, series, more = {}) => {
      if (!series.some(({ values }) => values.some((value) => value !== null))) return;
      const made = linesPlot(series, steps, { label: title, ...options, ...more });
      this.plots.push(made);
      place.append(card(title, made.element));
    };
    this.curves.replaceChildren();
    this.variables.replaceChildren();
    plot(this.curves, "cost", [{ name: "cost", values: costs }], { isLog });
    const norms = namesOf(frames, "gradients").map((name) => ({ name, values: frames.map((frame) => frame.gradients[name] ?? null) }));
    // A norm of 0 has no place on a logarithmic axis; its number stands below.
    const positive = norms.flatMap(({ values }) => values).filter((value) => value !== 0);
    plot(this.curves, "norms of gradients", norms, { isLog: spansDecades(positive, 1) });
    for (const name of namesOf(frames, "inputs")) {
      const size = Math.max(...frames.map((frame) => frame.inputs[name]?.data.length ?? 0));
      if (size > FEW) continue;
      for (const elements of bySize(elementsOf(frames, name, size))) {
        plot(this.variables, elements.length === size ? name : elements.map((each) => name + each.name).join(", "), elements);
      }
    }
    this.limits = {};
    this.show();
  }

  /** Everything that depends on the step. */
  show() {
    const frame = this.frames[this.at];
    this.slider.value = this.at;
    this.shown.textContent = `step ${frame.step}`;
    this.slider.setAttribute("aria-valuetext", `step ${frame.step}`);
    const cost = frame.cost === null ? "" : ` · cost ${formatNumber(frame.cost)}`;
    const kept = this.count > this.frames.length ? ` · ${this.frames.length} of ${this.count} steps are kept` : "";
    this.about.textContent = `step ${frame.step} of ${this.frames.at(-1).step}${cost}${kept}`;
    for (const plot of this.plots) plot.mark(this.at);
    this.showFields();
  }

  showFields() {
    const cards = [];
    for (const kind of ["fields", "inputs"]) {
      for (const name of namesOf(this.frames, kind)) {
        const from = this.frames.slice(0, this.at + 1).findLast((frame) => frame[kind][name]);
        const array = from?.[kind][name];
        if (array && (kind === "fields" || array.data.length > FEW)) cards.push(this.field(kind, name, array, from));
      }
    }
    this.fields.replaceChildren(...cards);
  }

  field(kind, name, array, from) {
    const limits = this.steady.checked ? this.limitsOf(kind, name) : statistics(array.data);
    const late = from.step === this.frames[this.at].step ? "" : ` · recorded at step ${from.step}`;
    return card(name, figureOf(array, name, limits), rangeOf(array, late));
  }

  limitsOf(kind, name) {
    this.limits[name] ??= this.frames.map((frame) => frame[kind][name]).filter(Boolean).map(({ data }) => statistics(data))
      .reduce((all, own) => ({ low: Math.min(all.low, own.low), high: Math.max(all.high, own.high) }), { low: Infinity, high: -Infinity });
    return this.limits[name];
  }
}

const namesOf = (frames, kind) => [...new Set(frames.flatMap((frame) => Object.keys(frame[kind])))];
const card = (title, ...content) => h("article", { class: "panel-card" }, h("h2", {}, title), content);

function elementsOf(frames, name, size) {
  return Array.from({ length: size }, (_, i) => ({
    name: size === 1 ? name : `[${i}]`,
    values: frames.map((frame) => frame.inputs[name]?.data[i] ?? null),
  }));
}

/** Curves that can share an axis: the largest values of those in a group differ by a factor of ten at most. */
function bySize(series) {
  const largest = ({ values }) => Math.max(0, ...values.filter((value) => value !== null && Number.isFinite(value)).map(Math.abs));
  const sizes = new Map(series.map((each) => [each, largest(each)]));
  const groups = [];
  for (const each of [...series].sort((a, b) => sizes.get(b) - sizes.get(a))) {
    const group = groups.at(-1);
    if (group && (sizes.get(each) === 0 || sizes.get(group[0]) <= 10 * sizes.get(each))) group.push(each);
    else groups.push([each]);
  }
  const inOrder = groups.map((group) => series.filter((each) => group.includes(each)));
  return inOrder.sort((a, b) => series.indexOf(a[0]) - series.indexOf(b[0]));
}

function spansDecades(values, decadesWide = 2) {
  const finite = values.filter((value) => value !== null && Number.isFinite(value));
  return finite.length > 1 && Math.min(...finite) > 0 && Math.max(...finite) > 10 ** decadesWide * Math.min(...finite);
}

function follow(run) {
  const source = new EventSource("events");
  const say = (text, kind) => { run.state.textContent = text; run.state.className = `chip state ${kind}`; };
  source.addEventListener("news", (event) => { say("live", "running"); run.add(JSON.parse(event.data)); });
  source.addEventListener("end", () => { source.close(); say("finished", ""); });
  source.addEventListener("error", () => { source.close(); say("the program has ended", "failed"); });
}

const data = JSON.parse(document.getElementById("data").textContent);
const run = new Run(document.getElementById("main"), data);
if (data.isLive) follow(run);
fitFrame();
