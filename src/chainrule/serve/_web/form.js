// A form from a schema. Every field reads its value, shows errors where they belong, and finds a part of itself.

import { ArrayEditor, gradientNote } from "./array_field.js";
import { decodeTree, encode, formatNumber, isArray, isComplex, parseNumber, simplest, toNested } from "./arrays.js";
import { button, h, newId, select } from "./dom.js";
import { parseJson, toJson } from "./json.js";
import { markdown } from "./markdown.js";
import { describeArray } from "./schema.js";

/** A value that cannot be read from the form, and the field that holds it. */
export class FieldError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

/** The form of all inputs. */
export class Form {
  constructor(schema) {
    this.schema = schema;
    this.element = h("div", { class: "form" });
    this.fill();
  }

  /** Show inputs as they were sent; without any those that the form begins with. */
  fill(payload) {
    this.root = makeField(this.schema, this.schema.inputs, "", payload === undefined ? undefined : decodeTree(payload), "inputs");
    this.element.replaceChildren(this.root instanceof ModelField ? this.root.body : this.root.element);
  }

  /** Let fields show the gradient of a number, by path; without one they show none. */
  showGradient(gradient = null) {
    for (const place of this.element.querySelectorAll(".gradient")) place.remove();
    for (const cell of this.element.querySelectorAll("[data-slope]")) {
      delete cell.dataset.slope;
      cell.style.removeProperty("--slope");
    }
    if (!gradient) return;
    for (const [path, array] of Object.entries(gradient.arrays)) this.root.locate(keysOf(path)).showGradient?.(array, gradient);
  }

  /** The inputs with arrays as `{shape, dtype, data}`; throws a FieldError after every wrong field is marked. */
  read() {
    this.clearErrors();
    const errors = [];
    const inputs = readField(this.root, errors);
    for (const error of errors) error.field.showError(error.message);
    if (errors.length) throw errors[0];
    return inputs;
  }

  /** The inputs as `read` gives them, or null where something is wrong; nothing is marked. */
  peek() {
    const errors = [];
    const inputs = readField(this.root, errors);
    return errors.length ? null : inputs;
  }

  /** Put arrays into the fields at their paths, and leave the others as they are. */
  set(arrays) {
    const payload = toPayload(this.peek() ?? {});
    for (const [path, array] of Object.entries(arrays)) {
      const keys = keysOf(path);
      const parent = keys.slice(0, -1).reduce((node, key) => node[key], payload);
      parent[keys.at(-1)] = encode(array);
    }
    this.fill(payload);
  }

  /** The bounds of the field at a path, in words. */
  boundsAt(path) {
    return limits(this.root.locate(keysOf(path)).node);
  }

  /** Paths of the inputs that are left to the author's default. */
  leftOut() {
    return this.root instanceof ModelField ? this.root.leftOut() : [];
  }

  clearErrors() {
    for (const place of this.element.querySelectorAll(".error")) place.textContent = "";
    for (const place of this.element.querySelectorAll(".has-error")) place.classList.remove("has-error");
    for (const control of this.element.querySelectorAll("[aria-invalid]")) {
      control.removeAttribute("aria-invalid");
      control.removeAttribute("aria-errormessage");
    }
  }

  /** Show what a server said, each part at the field it names; what has no field is returned. */
  showProblems(detail) {
    const homeless = [];
    let first = null;
    for (const { loc, msg } of detail) {
      const path = loc.filter((part, i) => !(i === 0 && part === "body"));
      const field = path[0] === "inputs" ? this.root.locate(path.slice(1)) : null;
      if (field && field !== this.root) {
        field.showError(msg);
        first ??= field;
      } else homeless.push(msg);
    }
    first?.reveal();
    return homeless;
  }
}

/** The keys of a path such as `parts.[0].{a}.x`. */
export const keysOf = (path) => [...path.matchAll(/\[(\d+)\]|\{([^}]*)\}|([^.]+)/g)].map(([, index, key, name]) => (index === undefined ? key ?? name : Number(index)));

/** Inputs as they are sent. */
export function toPayload(value) {
  if (isArray(value)) return encode(value);
  if (Array.isArray(value)) return value.map(toPayload);
  if (value !== null && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, toPayload(inner)]));
  }
  return value;
}

/** The value of a field; what is wrong with it is added to the errors, so that its neighbours are read, too. */
function readField(field, errors) {
  try {
    return field.read(errors);
  } catch (error) {
    if (!(error instanceof FieldError)) throw error;
    errors.push(error);
    return undefined;
  }
}

class Field {
  /** @param label is shown  @param spoken names controls that have no label */
  constructor(schema, node, label, start, spoken = label) {
    this.schema = schema;
    this.node = node;
    this.label = label;
    this.spoken = spoken;
    this.start = start === undefined ? node.default : start;
    this.id = newId();
    this.errorPlace = h("p", { class: "error", role: "alert", id: `${this.id}-error` });
  }

  /** Label, control, help and a place for errors. */
  frame(control, { type = "", tags = [], target = this.id, isCompact = false } = {}) {
    this.body = control;
    const help = [this.node.description, limits(this.node)].filter(Boolean).join(" · ");
    const isProse = /[`*\n[]/.test(help);
    this.element = h(
      "div",
      { class: isCompact && this.label ? "field compact" : "field" },
      this.label && h("div", { class: "field-head" }, h("label", { for: target }, this.label), h("span", { class: "type" }, type), tags),
      control,
      help && (isProse ? h("div", { class: "help" }, markdown(help)) : h("p", { class: "help" }, help)),
      this.errorPlace,
    );
    return this;
  }

  locate() {
    return this;
  }

  showError(message) {
    this.errorPlace.textContent = message;
    this.element?.classList.add("has-error");
    this.#control?.setAttribute("aria-invalid", "true");
    this.#control?.setAttribute("aria-errormessage", this.errorPlace.id);
  }

  reveal() {
    this.element?.scrollIntoView({ block: "center", behavior: "smooth" });
    this.#control?.focus({ preventScroll: true });
  }

  get #control() {
    return this.element?.querySelector("input, textarea, select");
  }

  fail(message) {
    throw new FieldError(this, message);
  }

  /** Refuse values outside the bounds of the schema, in the words of the server. */
  checkBounds(values) {
    for (const { bound, words, holds } of bounds(this.node)) {
      const wrong = values.find((value) => !holds(Number(value), bound));
      if (wrong !== undefined) this.fail(`Input should be ${words} ${formatNumber(bound)}; found ${formatNumber(wrong)}.`);
    }
  }
}

const BOUNDS = [
  [["minimum", "ge"], "≥", "greater than or equal to", (value, bound) => !(value < bound)],
  [["exclusiveMinimum", "gt"], ">", "greater than", (value, bound) => !(value <= bound)],
  [["maximum", "le"], "≤", "less than or equal to", (value, bound) => !(value > bound)],
  [["exclusiveMaximum", "lt"], "<", "less than", (value, bound) => !(value >= bound)],
];

/** The bounds that a node declares. */
function bounds(node) {
  return BOUNDS.flatMap(([[name, other], sign, words, holds]) => {
    const bound = node[name] ?? node[other];
    return bound === undefined ? [] : [{ bound: Number(bound), sign, words, holds }];
  });
}

/** The smallest and largest value of a number that is bounded on both sides, or null. */
export function rangeOf(node) {
  const found = bounds(node);
  const side = (signs) => found.filter(({ sign }) => signs.includes(sign)).map(({ bound, sign }) => [bound, sign.length === 1 && "<>".includes(sign)]);
  const [low] = side("≥>").sort((a, b) => b[0] - a[0]), [high] = side("≤<").sort((a, b) => a[0] - b[0]);
  if (!low || !high || !(high[0] > low[0]) || !Number.isFinite(high[0] - low[0])) return null;
  return { low: low[0], high: high[0], isOpenBelow: low[1], isOpenAbove: high[1] };
}

const SLIDER_STEPS = 200;

/** A slider beside the text of a bounded number; nothing for other numbers. */
function sliderFor(input, node, spoken, isInteger) {
  const range = rangeOf(node);
  if (!range) return null;
  const step = isInteger ? 1 : (range.high - range.low) / SLIDER_STEPS;
  const [low, high] = [range.low + (range.isOpenBelow ? step : 0), range.high - (range.isOpenAbove ? step : 0)];
  const follow = () => {
    input.value = String(isInteger ? Math.round(slider.value) : Number(Number(slider.value).toPrecision(6)));
    input.dispatchEvent(new Event("input", { bubbles: true }));
  };
  const slider = h("input", { type: "range", min: low, max: high, step: isInteger ? 1 : "any", "aria-label": `${spoken}: slider` });
  slider.value = input.value;
  slider.addEventListener("input", (event) => { event.stopPropagation(); follow(); });
  // "any" lets the slider keep the exact number; the keys then need a step of their own.
  slider.addEventListener("keydown", (event) => {
    const sign = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (!sign || isInteger) return;
    event.preventDefault();
    slider.value = String(Math.min(high, Math.max(low, Number(slider.value) + sign * step)));
    follow();
  });
  input.addEventListener("input", () => { if (Number.isFinite(Number(input.value))) slider.value = input.value; });
  return slider;
}

const limits = (node) => bounds(node).map(({ bound, sign }) => `${sign} ${formatNumber(bound)}`).join(", ");

class ModelField extends Field {
  constructor(schema, node, label, start, spoken) {
    super(schema, node, label, start, spoken);
    const { fields, required } = schema.classify(node);
    this.children = Object.entries(fields).map(([name, field]) => [name, makeChild(schema, field, name, plain(this.start)?.[name], required.includes(name))]);
    this.body = h("div", { class: "fields" }, this.children.map(([, field]) => field.element));
    this.element = h(
      "fieldset",
      { class: "model" },
      h("legend", {}, label, h("span", { class: "type" }, (node.title ?? "").replace(/^Apply_/, ""))),
      node.description && h("p", { class: "help" }, node.description),
      this.body,
      this.errorPlace,
    );
  }

  read(errors) {
    const values = this.children.map(([name, field]) => [name, readField(field, errors)]);
    return Object.fromEntries(values.filter(([, value]) => value !== undefined));
  }

  /** Paths of the fields that are left out, so that the component uses its author's default. */
  leftOut(path = []) {
    return this.children.flatMap(([name, field]) => {
      if (field.isLeftOut) return [[...path, name].join(".")];
      return field instanceof ModelField ? field.leftOut([...path, name]) : [];
    });
  }

  locate([name, ...rest]) {
    const child = this.children.find(([key]) => key === name)?.[1];
    return child ? child.locate(rest) : this;
  }
}

class ArrayField extends Field {
  constructor(schema, node, label, start, spoken) {
    super(schema, node, label, start, spoken);
    const facts = schema.classify(node);
    this.editor = new ArrayEditor({ ...facts, exampleShape: schema.exampleShape(facts), exampleValue: clamp(1, node) }, isArray(this.start) ? this.start : plain(this.start), this.spoken);
    const tags = [...arrayTags(facts), ...(this.editor.isGuess ? [h("span", { class: "muted small" }, "no default: an example")] : [])];
    const isScalar = facts.shape?.length === 0;
    this.frame(this.editor.element, { type: describeArray(facts), tags, target: this.editor.id, isCompact: isScalar });
    const scalar = isScalar && this.editor.element.querySelector("input[type=text]");
    if (scalar) this.editor.element.append(...[sliderFor(scalar, node, this.spoken, facts.dtype.includes("int"))].filter(Boolean));
  }

  /** Tint the cells by how strongly the number reacts to them, and say it in figures. */
  showGradient(array, { number }) {
    this.editor.showGradient(array);
    this.element.append(gradientNote(array, this.editor, { label: this.spoken, number }));
  }

  read() {
    let array;
    try {
      array = this.editor.read();
    } catch (error) {
      return this.fail(error.message);
    }
    if (!isComplex(array)) this.checkBounds(array.data);
    return array;
  }
}

/** The units of an array, and whether it is differentiable. */
function arrayTags({ units, isDifferentiable }) {
  return [units && h("span", { class: "unit" }, units), isDifferentiable && h("span", { class: "tag", title: "differentiable" }, "∂")].filter(Boolean);
}

class NumberField extends Field {
  constructor(schema, node, label, start, spoken) {
    super(schema, node, label, start, spoken);
    const isInteger = node.type === "integer";
    const value = this.start ?? clamp(1, node);
    this.input = h("input", { id: this.id, type: "text", inputmode: isInteger ? "numeric" : "decimal", autocomplete: "off", value: String(value) });
    const units = node.units ?? node.unit;
    const control = h("div", { class: "number-field" }, this.input, sliderFor(this.input, node, this.spoken, isInteger));
    this.frame(control, { type: node.type, tags: units ? [h("span", { class: "unit" }, units)] : [], isCompact: true });
  }

  read() {
    const isInteger = this.node.type === "integer";
    let value;
    try {
      value = simplest(parseNumber(this.input.value, isInteger ? "int64" : "float64"));
    } catch (error) {
      return this.fail(error.message);
    }
    if (isInteger && typeof value === "number" && !Number.isInteger(value)) return this.fail("Expected a whole number.");
    if (typeof value === "number" && !Number.isFinite(value)) return this.fail("JSON has finite numbers only.");
    this.checkBounds([value]);
    return value;
  }
}

function clamp(value, node) {
  const [minimum, maximum, exclusiveMaximum] = [node.minimum, node.maximum, node.exclusiveMaximum].map((bound) => (bound === undefined ? bound : Number(bound)));
  return Math.min(Math.max(value, minimum ?? value), maximum ?? (exclusiveMaximum !== undefined ? exclusiveMaximum / 2 : value));
}

class BooleanField extends Field {
  constructor(schema, node, label, start, spoken) {
    super(schema, node, label, start, spoken);
    this.input = h("input", { id: this.id, type: "checkbox", checked: Boolean(this.start) });
    this.frame(this.input, { type: "yes / no", isCompact: true });
  }

  read() {
    return this.input.checked;
  }
}

class TextField extends Field {
  constructor(schema, node, label, start, spoken) {
    super(schema, node, label, start, spoken);
    this.input = h("input", { id: this.id, type: "text", value: this.start ?? "" });
    this.frame(this.input, { type: node.format ?? "text", isCompact: true });
  }

  read() {
    return this.input.value;
  }
}

/** The path of a file that the component reads, relative to the folder that its operator grants. */
class FileField extends Field {
  constructor(schema, node, label, start, spoken) {
    super(schema, node, label, start, spoken);
    this.input = h("input", { id: this.id, type: "text", value: this.start ?? "", placeholder: "path of a file on the server" });
    this.chooser = h("input", { type: "file", class: "visually-hidden", tabindex: "-1", "aria-label": `${this.spoken}: file to upload`, on: { change: () => this.#upload() } });
    const choose = button("upload…", () => this.chooser.click(), { class: "link", "aria-label": `${this.spoken}: upload` });
    this.frame(h("div", { class: "file-field" }, this.input, schema.upload ? [choose, this.chooser] : null), { type: "file" });
  }

  async #upload() {
    const [file] = this.chooser.files;
    this.chooser.value = "";
    try {
      this.input.value = await this.schema.upload(file);
      this.input.dispatchEvent(new Event("input", { bubbles: true }));
      this.errorPlace.textContent = "";
    } catch (error) {
      this.showError(`${file.name}: ${error.message}`);
    }
  }

  read() {
    return this.input.value;
  }
}

class ChoiceField extends Field {
  constructor(schema, node, label, start, spoken) {
    super(schema, node, label, start, spoken);
    this.values = node.enum;
    this.input = select(this.values.map((value, i) => [i, String(value)]), null, { id: this.id });
    this.input.value = String(Math.max(0, this.values.indexOf(this.start)));
    this.frame(this.input, { type: "choice", isCompact: true });
  }

  read() {
    return this.values[Number(this.input.value)];
  }
}

class ConstantField extends Field {
  constructor(schema, node, label, start, spoken) {
    super(schema, node, label, start, spoken);
    this.value = node.type === "null" ? null : node.const;
    this.frame(h("code", {}, String(this.value)), { type: "fixed", isCompact: true });
    this.element.classList.add("constant");
  }

  read() {
    return this.value;
  }
}

class JsonField extends Field {
  constructor(schema, node, label, start, spoken) {
    super(schema, node, label, start, spoken);
    this.input = h("textarea", { id: this.id, rows: 3, spellcheck: "false" });
    this.input.value = toJson(this.start ?? null);
    this.frame(this.input, { type: "JSON" });
  }

  read() {
    try {
      return parseJson(this.input.value);
    } catch {
      return this.fail("This is not JSON.");
    }
  }
}

/** A field that has a value only where its box is ticked. */
class TickedField extends Field {
  /** Make the box and, under it, the field of `item`. */
  build(item, isSet, { type, otherwise = "", example = "an example" }) {
    this.inner = makeField(this.schema, { ...item, description: undefined, default: undefined }, "", isSet ? this.start : undefined, this.spoken);
    this.box = h("input", { id: this.id, type: "checkbox", checked: isSet, on: { change: () => this.#sync() } });
    this.otherwise = h("span", { class: "muted small" }, otherwise);
    // What the field begins with is ours until the user types a value.
    this.example = h("span", { class: "muted small" }, isSet ? "" : example);
    this.inner.element.addEventListener("input", () => { this.example.textContent = ""; });
    const toggle = h("div", { class: "row" }, this.otherwise, h("label", { class: "inline" }, this.box, " give a value"), this.example);
    this.frame(h("div", { class: "optional" }, toggle, this.inner.element), { type, tags: arrayTags(this.schema.classify(item)) });
    this.#sync();
  }

  #sync() {
    this.inner.element.hidden = !this.box.checked;
    this.otherwise.hidden = this.box.checked;
    this.example.hidden = !this.box.checked;
  }

  locate(rest) {
    const found = this.inner.locate(rest);
    return found === this.inner ? this : found;
  }

  showGradient(array, gradient) {
    if (this.box.checked) this.inner.showGradient?.(array, gradient);
    else this.element.append(gradientNote(array, null, { label: this.spoken, number: gradient.number }));
  }
}

class OptionalField extends TickedField {
  constructor(schema, node, label, start, spoken) {
    super(schema, node, label, start, spoken);
    this.build(schema.classify(node).item, this.start !== null && this.start !== undefined, { type: "optional" });
  }

  read(errors) {
    return this.box.checked ? this.inner.read(errors) : null;
  }
}

/** A field whose default the schema does not show, because a function of the author makes it. */
class AuthorsDefaultField extends TickedField {
  constructor(schema, node, label, start) {
    super(schema, node, label, start);
    this.build(node, start !== undefined, { type: typeOf(schema, node), otherwise: "author's default", example: "an example, not the author's default" });
  }

  get isLeftOut() {
    return !this.box.checked;
  }

  read(errors) {
    return this.isLeftOut ? undefined : this.inner.read(errors);
  }
}

/** The type of a node in one word. */
function typeOf(schema, node) {
  const facts = schema.classify(node);
  return facts.kind === "array" ? describeArray(facts) : facts.kind === "model" ? (node.title ?? "").replace(/^Apply_/, "") : facts.kind;
}

class UnionField extends Field {
  constructor(schema, node, label, start, spoken) {
    super(schema, node, label, start, spoken);
    this.members = schema.classify(node).members;
    this.place = h("div", { class: "member" });
    this.select = select(this.members.map(([name], i) => [i, name]), (index) => this.#choose(Number(index)), { id: this.id });
    this.frame(h("div", { class: "union" }, this.select, this.place), { type: "one of" });
    this.#choose(this.#startingMember(node.discriminator));
  }

  #startingMember(discriminator) {
    const value = plain(this.start);
    const name = discriminator && value?.[discriminator.propertyName];
    const fits = ([, member]) => (discriminator ? name && member.properties?.[discriminator.propertyName]?.const === name : value !== undefined && fitsKind(this.schema.classify(member).kind, value));
    return Math.max(0, this.members.findIndex(fits));
  }

  #choose(index) {
    this.select.value = String(index);
    this.inner = makeField(this.schema, this.members[index][1], "", this.inner ? undefined : this.start, this.spoken);
    this.place.replaceChildren(this.inner.body);
  }

  read(errors) {
    return this.inner.read(errors);
  }

  // Pydantic names the member before the place in it.
  locate([tag, ...rest]) {
    const direct = this.inner.locate([tag, ...rest]);
    const found = direct === this.inner && rest.length ? this.inner.locate(rest) : direct;
    return found === this.inner ? this : found;
  }
}

/** Whether a value can be one of a kind of field. */
function fitsKind(kind, value) {
  const isObject = value !== null && typeof value === "object" && !Array.isArray(value);
  switch (kind) {
    case "integer": return typeof value === "bigint" || Number.isInteger(value);
    case "number": return typeof value === "number";
    case "boolean": return typeof value === "boolean";
    case "text": case "file": return typeof value === "string";
    case "model": case "dict": return isObject;
    default: return !isObject && typeof value !== "string";
  }
}

/** Lists, tuples and dicts: several fields, with buttons where their number is free. */
class SeveralField extends Field {
  constructor(schema, node, label, start, spoken) {
    super(schema, node, label, start, spoken);
    const facts = schema.classify(node);
    this.kind = facts.kind;
    this.entries = [];
    this.place = h("div", { class: "several" });
    const given = Object.entries(plain(this.start) ?? {});
    if (this.kind === "tuple") facts.items.forEach((item, i) => this.#add(item, given[i]?.[1]));
    else {
      for (const [key, value] of given) this.#add(facts.item, value, key);
    }
    const more = this.kind === "tuple" ? null : button("+ add", () => this.#add(facts.item, undefined, ""), { class: "tiny", "aria-label": `${this.spoken}: add` });
    this.frame(h("div", {}, this.place, more), { type: this.kind, target: "" });
  }

  #add(item, start, key = "") {
    const entry = { field: makeField(this.schema, item, "", start, this.spoken) };
    entry.key = this.kind === "dict" ? h("input", { type: "text", value: key, placeholder: "name", class: "narrow", "aria-label": `${this.spoken}: name` }) : null;
    const remove = this.kind === "tuple" ? null : button("×", () => this.#remove(entry), { class: "tiny", "aria-label": `${this.spoken}: remove` });
    entry.row = h("div", { class: "several-row" }, entry.key, entry.field.element, remove);
    this.entries.push(entry);
    this.place.append(entry.row);
  }

  #remove(entry) {
    this.entries = this.entries.filter((other) => other !== entry);
    entry.row.remove();
  }

  read(errors) {
    const values = this.entries.map(({ field }) => readField(field, errors));
    if (this.kind !== "dict") return values;
    return Object.fromEntries(this.entries.map(({ key }, i) => [key.value || this.fail("Every entry needs a name."), values[i]]));
  }

  locate([index, ...rest]) {
    const entry = this.kind === "dict" ? this.entries.find(({ key }) => key.value === index) : this.entries[index];
    return entry ? entry.field.locate(rest) : this;
  }
}

const FIELDS = {
  model: ModelField, array: ArrayField, number: NumberField, integer: NumberField, boolean: BooleanField, text: TextField,
  file: FileField, choice: ChoiceField, constant: ConstantField, json: JsonField, optional: OptionalField, union: UnionField,
  list: SeveralField, tuple: SeveralField, dict: SeveralField,
};

/** The field of a node; `label` is shown, `spoken` names controls that have no label of their own. */
function makeField(schema, node, label, start, spoken = label) {
  const resolved = schema.resolve(node);
  const field = new FIELDS[schema.classify(resolved).kind](schema, resolved, label, start, spoken);
  if (!label) {
    for (const control of field.element.querySelectorAll("input, textarea, select")) {
      const isNamed = control.hasAttribute("aria-label") || field.element.querySelector(`label[for="${control.id}"]`);
      if (!isNamed) control.setAttribute("aria-label", spoken);
    }
  }
  return field;
}

/** The field of a model's field. */
function makeChild(schema, node, name, start, isRequired) {
  const resolved = schema.resolve(node);
  const isKnown = isRequired || resolved.default !== undefined || "const" in resolved;
  return isKnown ? makeField(schema, resolved, name, start) : new AuthorsDefaultField(schema, resolved, name, start);
}

/** A default in which arrays are lists: defaults of models hold them encoded. */
function plain(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
  if (isArray(value)) return toNested(value);
  if ("shape" in value && "dtype" in value && value.data?.encoding === "json") return value.data.buffer;
  return value;
}
