// Optimisation: one number made of an output, the inputs that vary, and the curve of how it goes.

import { decodeTree, formatNumber, isArray, statistics } from "./arrays.js";
import { checkbox } from "./array_view.js";
import { button, h, newId, select } from "./dom.js";
import { curve, isWide } from "./plots.js";
import { showTree, unitsAt } from "./results.js";
import { arraysAt, differentiableInputs, shapeText } from "./schema.js";

const VALUE = /: (\S+)$/;

export class Optimise {
  /** @param session runs endpoints and knows the current point, see page.js */
  constructor(session) {
    this.session = session;
    this.element = h("div");
    this.values = [];
    if (!session.schema.added.includes("minimize") || !session.schema.differentiable.inputs.length) {
      this.element.append(h("p", { class: "muted" }, "An optimisation needs a component with gradients, and scipy on the server."));
      return;
    }
    const id = newId();
    this.controls = h("div", { class: "controls" });
    this.budget = h("input", { id, type: "text", inputmode: "numeric", value: "100", class: "narrow" });
    this.live = h("div");
    this.curve = new CostCurve();
    this.results = h("div", { class: "cards" });
    this.element.append(
      h("p", {}, "Moves the chosen inputs, within the bounds of the schema, until the number is as small or as large as it can be. It runs as one job on the server; Cancel ends it."),
      this.controls,
      h("div", { class: "field row" }, h("label", { for: id }, "Evaluations at most"), this.budget, button("▶ Optimise", () => this.run(), { class: "primary" })),
      this.live, this.results,
    );
  }

  /** Offer what the current point has; runs `apply` first when there is none. */
  async refresh() {
    if (!this.controls) return;
    const point = await this.session.currentPoint();
    if (!point) return void this.controls.replaceChildren(h("p", { class: "muted" }, "Run the component at a point first."));
    const { schema } = this.session;
    const outputs = arraysAt(schema.differentiable.outputs, point.outputs), inputs = differentiableInputs(schema, point);
    const smallest = [...outputs].sort((a, b) => a[1].data.length - b[1].data.length)[0]?.[0];
    this.goal = select([["min", "minimise"], ["max", "maximise"]], null, { "aria-label": "goal" });
    this.reduction = select([["sum", "the sum of"], ["mean", "the mean of"]], null, { "aria-label": "which number to optimise" });
    const sync = () => { this.reduction.hidden = !outputs.find(([path]) => path === this.output.value)?.[1].shape.length; };
    this.output = select(outputs.map(([path, array]) => [path, `${path} ${shapeText(array)}`]), sync, { "aria-label": "objective" });
    this.output.value = smallest;
    sync();
    const boxes = inputs.map(([path, array]) => h("label", { class: "chip" }, h("input", { type: "checkbox", value: path, checked: true }), ` ${path} `, h("span", { class: "type" }, `${shapeText(array)} ${this.session.form.boundsAt(path)}`)));
    this.free = h("fieldset", { class: "chips" }, h("legend", {}, "by moving"), boxes);
    this.controls.replaceChildren(h("div", { class: "field row" }, this.goal, this.reduction, this.output), this.free);
  }

  async run() {
    const { session } = this;
    const point = await session.currentPoint({ isFresh: true });
    if (!point) return;
    if (!this.free) await this.refresh();
    const free = [...this.free.querySelectorAll("input:checked")].map((box) => box.value);
    if (!free.length) return void session.say("Choose at least one input to move.", true);
    this.values = [];
    this.results.replaceChildren();
    this.live.replaceChildren(h("p", { class: "muted" }, "The curve appears with the second evaluation."));
    const rest = { objective: this.output.value, reduction: this.reduction.value, maximize: this.goal.value === "max", free, max_evaluations: Number(this.budget.value) };
    const answer = await session.run("minimize", point.inputs, rest, (job) => this.#onProgress(job));
    if (answer) this.#show(decodeTree(answer), point, rest);
  }

  /** The values come with the progress of the job; those that come too fast are in the result. */
  #onProgress({ message }) {
    const value = Number(VALUE.exec(message ?? "")?.[1]);
    if (!Number.isFinite(value) || value === this.values.at(-1)) return;
    this.values.push(value);
    if (this.values.length < 2) return;
    this.curve.show(this.values, this.output.value);
    if (!this.curve.element.isConnected) this.live.replaceChildren(this.curve.element);
  }

  #show({ inputs, value, history, success, message }, point, { objective, maximize }) {
    const { session } = this;
    const number = isArray(value) ? value.data[0] : value;
    const first = history.data[0];
    const verdict = h("p", { class: success ? "verdict good" : "verdict", role: "status" }, `${formatNumber(first)} → ${formatNumber(number)}`, h("small", {}, ` ${maximize ? "largest" : "smallest"} ${objective} of ${history.data.length} evaluations. ${message}`));
    this.curve.show(history.data, objective);
    this.live.replaceChildren(verdict, ...(history.data.length > 1 ? [this.curve.element] : []));
    const use = button("Use these inputs", () => session.use(inputs), { class: "primary" });
    const unitsOf = (path) => unitsAt(session.schema, session.schema.inputs, path);
    this.results.replaceChildren(h("p", {}, use), ...showTree(inputs, { unitsOf }));
  }
}

/** The values of an optimisation over its evaluations, on a logarithmic axis where the user wants one. */
class CostCurve {
  constructor() {
    this.title = h("h3");
    this.isLog = false;
    this.log = checkbox("logarithmic", "values", (isOn) => { this.isLog = isOn; this.#draw(); });
    this.place = h("div");
    this.element = h("article", { class: "card" }, h("header", {}, this.title), h("div", { class: "switches" }, this.log), this.place);
  }

  show(values, label) {
    this.values = Array.from(values);
    this.title.textContent = label;
    this.log.hidden = !isWide(statistics(this.values));
    this.#draw();
  }

  #draw() {
    const isLog = this.isLog && !this.log.hidden;
    this.place.replaceChildren(curve(this.values, { label: this.title.textContent, xLabel: "evaluation", isLog }));
  }
}
