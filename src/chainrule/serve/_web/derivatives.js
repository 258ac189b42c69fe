// Asking for derivatives: a gradient of one number, a change along a direction, or a whole Jacobian.

import { decodeTree, fromFlat, sizeOf } from "./arrays.js";
import { button, h, newId, select } from "./dom.js";
import { bars } from "./plots.js";
import { showTree, unitsAt } from "./results.js";
import { quotient } from "./units.js";
import { arraysAt, differentiableInputs, shapeText } from "./schema.js";

const MODES = [
  ["vector_jacobian_product", "gradient of one number", "How one number made of an output changes with every input."],
  ["jacobian_vector_product", "change along a direction", "How outputs change when inputs grow by one percent."],
  ["jacobian", "Jacobian", "Every derivative of the chosen outputs by the chosen inputs."],
];
const REDUCTIONS = [["sum", "the sum of"], ["mean", "the mean of"], ["element", "one element of"]];

export class Derivatives {
  /** @param session runs endpoints and knows the current point, see page.js */
  constructor(session) {
    this.session = session;
    const { schema } = session;
    this.modes = MODES.filter(([endpoint]) => schema.has(endpoint));
    this.element = h("div");
    if (!this.modes.length || !schema.differentiable.inputs.length || !schema.differentiable.outputs.length) {
      this.element.append(h("p", { class: "muted" }, "This component has no derivatives. Add `derivatives=\"finite\"` or an endpoint such as vector_jacobian_product to it."));
      return;
    }
    this.mode = this.modes[0][0];
    this.controls = h("div", { class: "controls" });
    this.results = h("div", { class: "cards" });
    this.hint = h("p", { class: "help" });
    const id = newId();
    this.modeSelect = select(this.modes.map(([endpoint, label]) => [endpoint, label]), (mode) => { this.mode = mode; this.refresh(); }, { id });
    this.element.append(
      h("div", { class: "field" }, h("label", { for: id }, "Ask for"), this.modeSelect, this.hint),
      this.controls,
      h("p", {}, button("Differentiate", () => this.run(), { class: "primary" })),
      this.results,
    );
  }

  /** Show the paths of the current point; runs `apply` first when there are no outputs yet. */
  async refresh() {
    if (!this.controls) return;
    this.hint.textContent = this.modes.find(([endpoint]) => endpoint === this.mode)[2];
    const point = await this.session.currentPoint();
    if (!point) {
      this.controls.replaceChildren(h("p", { class: "muted" }, "Run the component at a point first."));
      return;
    }
    this.#take(point);
    const isGradient = this.mode === "vector_jacobian_product";
    this.controls.replaceChildren(
      isGradient ? this.#reduction() : checkboxes("of the outputs", this.outputs, this.mode === "jacobian" ? smallest(this.outputs) : null),
      checkboxes(isGradient || this.mode === "jacobian" ? "with respect to" : "growing", this.inputs),
    );
  }

  #take(point) {
    const { schema } = this.session;
    const inputs = differentiableInputs(schema, point);
    this.inputs = this.mode === "jacobian_vector_product" ? inputs.filter(([, array]) => array) : inputs; // a direction needs shapes
    this.outputs = arraysAt(schema.differentiable.outputs, point.outputs);
  }

  #reduction() {
    const labels = this.outputs.map(([path, array]) => [path, `${path} ${shapeText(array)}`]);
    const sync = () => {
      this.reduction.hidden = !this.#chosenOutput().shape.length;
      this.index.hidden = this.reduction.hidden || this.reduction.value !== "element";
    };
    this.output = select(labels, sync, { "aria-label": "output" });
    this.output.value = smallest(this.outputs);
    this.reduction = select(REDUCTIONS, sync, { "aria-label": "which number" });
    this.index = h("input", { type: "text", class: "narrow", placeholder: "index, e.g. 0, 3", "aria-label": "index of the element" });
    sync();
    return h("div", { class: "field row" }, h("span", { class: "muted" }, "of"), this.reduction, this.output, this.index);
  }

  #chosenOutput() {
    return this.outputs.find(([path]) => path === this.output.value)[1];
  }

  async run() {
    const point = await this.session.currentPoint({ isFresh: true });
    if (!point) return;
    if (this.inputs) this.#take(point);
    else await this.refresh();
    try {
      const rest = this.#request();
      const answer = await this.session.run(this.mode, point.inputs, rest);
      if (!answer) return;
      const found = decodeTree(answer);
      this.results.replaceChildren(...this.#show(found));
      if (this.mode === "vector_jacobian_product") this.session.showGradient({ arrays: found, number: this.#numberName(), value: this.#number(), inputs: point.inputs });
    } catch (error) {
      this.session.say(error.message, true);
    }
  }

  /** The arguments after the inputs. */
  #request() {
    const inputs = chosen(this.controls.lastChild);
    if (!inputs.length) throw new Error("Choose at least one input.");
    if (this.mode === "vector_jacobian_product") {
      const path = this.output.value;
      return { vjp_inputs: inputs, vjp_outputs: [path], cotangent_vector: { [path]: this.#weights(this.#chosenOutput()) } };
    }
    const outputs = chosen(this.controls.firstChild);
    if (!outputs.length) throw new Error("Choose at least one output.");
    if (this.mode === "jacobian") return { jac_inputs: inputs, jac_outputs: outputs };
    const tangents = this.inputs.filter(([path]) => inputs.includes(path));
    const grown = ([path, array]) => [path, fromFlat(array.shape, array.dtype, Array.from(array.data, (value) => 0.01 * value))];
    return { jvp_inputs: inputs, jvp_outputs: outputs, tangent_vector: Object.fromEntries(tangents.map(grown)) };
  }

  #weights({ shape, dtype }) {
    const size = sizeOf(shape);
    const kind = shape.length ? this.reduction.value : "sum";
    if (kind !== "element") return fromFlat(shape, dtype, new Array(size).fill(kind === "mean" ? 1 / size : 1));
    const index = this.index.value.split(/[\s,]+/).filter(Boolean).map(Number);
    const isInside = index.length === shape.length && index.every((i, axis) => Number.isInteger(i) && i >= 0 && i < shape[axis]);
    if (!isInside) throw new Error(`Give an index into [${shape.join(", ")}], such as ${shape.map(() => 0).join(", ")}.`);
    const flat = index.reduce((at, i, axis) => at * shape[axis] + i, 0);
    return fromFlat(shape, dtype, Array.from({ length: size }, (_, i) => Number(i === flat)));
  }

  /** The number that was differentiated, at the point. */
  #number() {
    const { data } = this.#weights(this.#chosenOutput());
    return this.#chosenOutput().data.reduce((sum, value, i) => sum + value * data[i], 0);
  }

  #numberName() {
    return this.reduction.hidden ? this.output.value : `${REDUCTIONS.find(([kind]) => kind === this.reduction.value)[1]} ${this.output.value}`;
  }

  #show(result) {
    const { schema } = this.session;
    const above = (path) => unitsAt(schema, schema.outputs, path);
    const below = (path) => unitsAt(schema, schema.inputs, path);
    if (this.mode === "vector_jacobian_product") {
      const unitsOf = (path) => quotient(above(this.output.value), below(path));
      return [this.#sensitivities(result, above(this.output.value)), ...showTree(result, { isDiverging: true, unitsOf })];
    }
    if (this.mode === "jacobian_vector_product") return showTree(result, { isDiverging: true, unitsOf: above });
    const blocks = Object.entries(result).flatMap(([out, row]) => Object.entries(row).map(([into, block]) => [out, into, block]));
    return blocks.flatMap(([out, into, block]) => showTree(asMatrix(block, this.outputs.find(([path]) => path === out)?.[1]), { path: `∂ ${out} / ∂ ${into}`, isDiverging: true, unitsOf: () => quotient(above(out), below(into)) }));
  }

  /** Which input matters most: the change when all of it grows by one percent. */
  #sensitivities(gradient, units) {
    const entries = this.inputs.filter(([path, array]) => array && path in gradient).map(([path, array]) => {
      let change = 0;
      gradient[path].data.forEach((slope, i) => { change += 0.01 * slope * array.data[i]; });
      return { label: path, value: change };
    });
    entries.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    const title = `How ${this.#numberName()} changes when an input grows by 1 %, strongest first.`;
    return h("article", { class: "card" }, h("header", {}, h("h3", {}, "Sensitivities"), units && h("span", { class: "unit" }, units)), h("p", { class: "help" }, title), bars(entries, { label: "sensitivities" }));
  }
}

const smallest = (entries) => [...entries].sort((a, b) => a[1].data.length - b[1].data.length)[0]?.[0];

/** A group of boxes; `only` ticks one of them, otherwise all are. */
function checkboxes(title, entries, only = null) {
  const boxes = entries.map(([path, array]) =>
    h("label", { class: "chip" }, h("input", { type: "checkbox", value: path, checked: only === null || path === only }), ` ${path} `, h("span", { class: "type" }, shapeText(array))),
  );
  return h("fieldset", { class: "chips" }, h("legend", {}, title), boxes);
}

const chosen = (group) => [...group.querySelectorAll("input:checked")].map((box) => box.value);

/** A block as it is best looked at: like its output or input where the other is one number, else as a matrix. */
function asMatrix(block, output) {
  const rank = output?.shape.length ?? 0;
  const [down, across] = [block.shape.slice(0, rank), block.shape.slice(rank)];
  const [rows, columns] = [sizeOf(down), sizeOf(across)];
  return { ...block, shape: columns === 1 ? down : rows === 1 ? across : [rows, columns] };
}
