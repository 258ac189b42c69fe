// A form from a schema. Every field reads its value, shows errors where they belong, and finds a part of itself.

import { ArrayEditor } from "./array_field.js";
import { encode, formatNumber, isArray, parseNumber, simplest, toNested } from "./arrays.js";
import { button, h, newId, select } from "./dom.js";
import { parseJson, toJson } from "./json.js";
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
    this.root = makeField(schema, schema.inputs, "", undefined, "inputs");
    this.element = h("div", { class: "form" }, this.root instanceof ModelField ? this.root.body : this.root.element);
  }

  /** The inputs with arrays as `{shape, dtype, data}`. */
  read() {
    this.clearErrors();
    try {
      return this.root.read();
    } catch (error) {
      if (error instanceof FieldError) error.field.showError(error.message);
      throw error;
    }
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

/** Inputs as they are sent. */
export function toPayload(value) {
  if (isArray(value)) return encode(value);
  if (Array.isArray(value)) return value.map(toPayload);
  if (value !== null && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, toPayload(inner)]));
  }
  return value;
}

class Field {
  constructor(schema, node, label, start) {
    this.schema = schema;
    this.node = node;
    this.label = label;
    this.start = start ?? node.default;
    this.id = newId();
    this.errorPlace = h("p", { class: "error", role: "alert", id: `${this.id}-error` });
  }

  /** Label, control, help and a place for errors. */
  frame(control, { type = "", tags = [], target = this.id, isCompact = false } = {}) {
    this.body = control;
    const help = [this.node.description, limits(this.node)].filter(Boolean).join(" · ");
    this.element = h(
      "div",
      { class: isCompact && this.label ? "field compact" : "field" },
      this.label && h("div", { class: "field-head" }, h("label", { for: target }, this.label), h("span", { class: "type" }, type), tags),
      control,
      help && h("p", { class: "help" }, help),
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
}

function limits(node) {
  const parts = [];
  const low = node.minimum ?? node.ge, high = node.maximum ?? node.le;
  const above = node.exclusiveMinimum ?? node.gt, below = node.exclusiveMaximum ?? node.lt;
  if (low !== undefined) parts.push(`≥ ${formatNumber(low)}`);
  if (above !== undefined) parts.push(`> ${formatNumber(above)}`);
  if (high !== undefined) parts.push(`≤ ${formatNumber(high)}`);
  if (below !== undefined) parts.push(`< ${formatNumber(below)}`);
  return parts.join(", ");
}

class ModelField extends Field {
  constructor(schema, node, label, start) {
    super(schema, node, label, start);
    const { fields } = schema.classify(node);
    this.children = Object.entries(fields).map(([name, field]) => [name, makeField(schema, field, name, plain(this.start)?.[name])]);
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

  read() {
    return Object.fromEntries(this.children.map(([name, field]) => [name, field.read()]));
  }

  locate([name, ...rest]) {
    const child = this.children.find(([key]) => key === name)?.[1];
    return child ? child.locate(rest) : this;
  }
}

class ArrayField extends Field {
  constructor(schema, node, label, start) {
    super(schema, node, label, start);
    const facts = schema.classify(node);
    this.editor = new ArrayEditor({ ...facts, exampleShape: schema.exampleShape(facts), exampleValue: clamp(1, node) }, plain(this.start), label);
    const tags = [
      facts.units && h("span", { class: "unit" }, facts.units),
      facts.isDifferentiable && h("span", { class: "tag", title: "differentiable" }, "∂"),
      this.editor.isGuess && h("span", { class: "muted small" }, "no default: an example"),
    ].filter(Boolean);
    this.frame(this.editor.element, { type: describeArray(facts), tags, target: this.editor.id, isCompact: facts.shape?.length === 0 });
  }

  read() {
    try {
      return this.editor.read();
    } catch (error) {
      return this.fail(error.message);
    }
  }
}

class NumberField extends Field {
  constructor(schema, node, label, start) {
    super(schema, node, label, start);
    const isInteger = node.type === "integer";
    const value = this.start ?? clamp(1, node);
    this.input = h("input", { id: this.id, type: "text", inputmode: isInteger ? "numeric" : "decimal", autocomplete: "off", value: String(value) });
    const units = node.units ?? node.unit;
    this.frame(this.input, { type: node.type, tags: units ? [h("span", { class: "unit" }, units)] : [], isCompact: true });
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
    return value;
  }
}

function clamp(value, node) {
  const [minimum, maximum, exclusiveMaximum] = [node.minimum, node.maximum, node.exclusiveMaximum].map((bound) => (bound === undefined ? bound : Number(bound)));
  return Math.min(Math.max(value, minimum ?? value), maximum ?? (exclusiveMaximum !== undefined ? exclusiveMaximum / 2 : value));
}

class BooleanField extends Field {
  constructor(schema, node, label, start) {
    super(schema, node, label, start);
    this.input = h("input", { id: this.id, type: "checkbox", checked: Boolean(this.start) });
    this.frame(this.input, { type: "yes / no", isCompact: true });
  }

  read() {
    return this.input.checked;
  }
}

class TextField extends Field {
  constructor(schema, node, label, start) {
    super(schema, node, label, start);
    this.input = h("input", { id: this.id, type: "text", value: this.start ?? "" });
    this.frame(this.input, { type: node.format ?? "text", isCompact: true });
  }

  read() {
    return this.input.value;
  }
}

class ChoiceField extends Field {
  constructor(schema, node, label, start) {
    super(schema, node, label, start);
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
  constructor(schema, node, label, start) {
    super(schema, node, label, start);
    this.value = node.type === "null" ? null : node.const;
    this.frame(h("code", {}, String(this.value)), { type: "fixed", isCompact: true });
    this.element.classList.add("constant");
  }

  read() {
    return this.value;
  }
}

class JsonField extends Field {
  constructor(schema, node, label, start) {
    super(schema, node, label, start);
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

class OptionalField extends Field {
  constructor(schema, node, label, start) {
    super(schema, node, label, start);
    const { item } = schema.classify(node);
    const isSet = this.start !== null && this.start !== undefined;
    this.inner = makeField(schema, { ...item, description: undefined, default: undefined }, "", isSet ? this.start : undefined, label);
    this.box = h("input", { id: this.id, type: "checkbox", checked: isSet, on: { change: () => this.#sync() } });
    const toggle = h("label", { class: "inline" }, this.box, " give a value");
    this.frame(h("div", { class: "optional" }, toggle, this.inner.element), { type: "optional" });
    this.#sync();
  }

  #sync() {
    this.inner.element.hidden = !this.box.checked;
  }

  read() {
    return this.box.checked ? this.inner.read() : null;
  }

  locate(rest) {
    const found = this.inner.locate(rest);
    return found === this.inner ? this : found;
  }
}

class UnionField extends Field {
  constructor(schema, node, label, start) {
    super(schema, node, label, start);
    this.members = schema.classify(node).members;
    this.place = h("div", { class: "member" });
    this.select = select(this.members.map(([name], i) => [i, name]), (index) => this.#choose(Number(index)), { id: this.id });
    this.frame(h("div", { class: "union" }, this.select, this.place), { type: "one of" });
    this.#choose(this.#startingMember(node.discriminator));
  }

  #startingMember(discriminator) {
    const name = discriminator && plain(this.start)?.[discriminator.propertyName];
    const index = this.members.findIndex(([, member]) => name && member.properties?.[discriminator.propertyName]?.const === name);
    return Math.max(0, index);
  }

  #choose(index) {
    this.select.value = String(index);
    this.inner = makeField(this.schema, this.members[index][1], "", this.inner ? undefined : this.start, this.label);
    this.place.replaceChildren(this.inner.body);
  }

  read() {
    return this.inner.read();
  }

  // Pydantic names the member before the place in it.
  locate([tag, ...rest]) {
    const direct = this.inner.locate([tag, ...rest]);
    const found = direct === this.inner && rest.length ? this.inner.locate(rest) : direct;
    return found === this.inner ? this : found;
  }
}

/** Lists, tuples and dicts: several fields, with buttons where their number is free. */
class SeveralField extends Field {
  constructor(schema, node, label, start) {
    super(schema, node, label, start);
    const facts = schema.classify(node);
    this.kind = facts.kind;
    this.entries = [];
    this.place = h("div", { class: "several" });
    const given = Object.entries(plain(this.start) ?? {});
    if (this.kind === "tuple") facts.items.forEach((item, i) => this.#add(item, given[i]?.[1]));
    else {
      for (const [key, value] of given) this.#add(facts.item, value, key);
    }
    const more = this.kind === "tuple" ? null : button("+ add", () => this.#add(facts.item, undefined, ""), { class: "tiny", "aria-label": `${label}: add` });
    this.frame(h("div", {}, this.place, more), { type: this.kind, target: "" });
  }

  #add(item, start, key = "") {
    const entry = { field: makeField(this.schema, item, "", start, this.label) };
    entry.key = this.kind === "dict" ? h("input", { type: "text", value: key, placeholder: "name", class: "narrow", "aria-label": `${this.label}: name` }) : null;
    const remove = this.kind === "tuple" ? null : button("×", () => this.#remove(entry), { class: "tiny", "aria-label": `${this.label}: remove` });
    entry.row = h("div", { class: "several-row" }, entry.key, entry.field.element, remove);
    this.entries.push(entry);
    this.place.append(entry.row);
  }

  #remove(entry) {
    this.entries = this.entries.filter((other) => other !== entry);
    entry.row.remove();
  }

  read() {
    const values = this.entries.map(({ field }) => field.read());
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
  choice: ChoiceField, constant: ConstantField, json: JsonField, optional: OptionalField, union: UnionField,
  list: SeveralField, tuple: SeveralField, dict: SeveralField,
};

/** The field of a node; `label` is shown, `spoken` names controls that have no label of their own. */
function makeField(schema, node, label, start, spoken = label) {
  const resolved = schema.resolve(node);
  const field = new FIELDS[schema.classify(resolved).kind](schema, resolved, label, start);
  if (!label) {
    for (const control of field.element.querySelectorAll("input, textarea, select")) {
      const isNamed = control.hasAttribute("aria-label") || field.element.querySelector(`label[for="${control.id}"]`);
      if (!isNamed) control.setAttribute("aria-label", spoken);
    }
  }
  return field;
}

/** A default in which arrays are lists: defaults of models hold them encoded. */
function plain(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
  if (isArray(value)) return toNested(value);
  if ("shape" in value && "dtype" in value && value.data?.encoding === "json") return value.data.buffer;
  return value;
}
