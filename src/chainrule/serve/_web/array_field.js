// The editor of one array: a number, a grid of numbers, or text with a file next to it.

import { complexText, describe, formatNumber, fromFlat, fromNested, isArray, isComplex, parseNumber, parseText, readNpy, sizeOf, toNested, toNumber } from "./arrays.js";
import { button, h, newId, select } from "./dom.js";
import { toJson } from "./json.js";
import { gradientPicture, thumbnail } from "./thumbnails.js";

const GRID_ROWS = 12, GRID_COLUMNS = 8;

/** What an array starts as when its author gave no default: ones. */
function startingArray({ exampleShape, exampleValue = 1, dtype }) {
  const size = sizeOf(exampleShape);
  const isPair = isComplex({ dtype });
  return fromFlat(exampleShape, dtype, Array.from({ length: isPair ? 2 * size : size }, (_, i) => (dtype === "bool" || (isPair && i % 2) ? 0 : exampleValue)));
}

const fitsGrid = ({ shape, dtype }) =>
  !isComplex({ dtype }) &&
  ((shape.length === 1 && shape[0] <= GRID_ROWS * 2) ||
    (shape.length === 2 && shape[0] <= GRID_ROWS && shape[1] <= GRID_COLUMNS));

export class ArrayEditor {
  /** @param facts of the declaration, see schema.js  @param start nested lists, an array, or undefined */
  constructor(facts, start, label) {
    this.facts = facts;
    this.id = newId();
    this.label = label;
    this.isGuess = start === undefined;
    this.body = h("div", { class: "array-body" });
    this.shapeTag = h("span", { class: "muted small", role: "status" });
    this.modeButton = button("as text", () => this.#switchMode(), { class: "link" });
    this.picture = h("div", { class: "array-picture" });
    this.element = h("div", { class: "array" }, this.body);
    if (facts.shape?.length !== 0) this.element.append(this.#tools(), this.picture);
    this.body.addEventListener("change", () => this.#redraw());
    this.#show(start === undefined ? startingArray(facts) : isArray(start) ? start : fromNested(start, facts.dtype));
  }

  /** Tint every cell by how strongly a number reacts to it. */
  showGradient(gradient) {
    const cells = [...this.body.querySelectorAll("input")];
    if (cells.length !== gradient.data.length) return;
    const largest = Math.max(...Array.from(gradient.data, Math.abs)) || 1;
    cells.forEach((cell, i) => {
      cell.dataset.slope = gradient.data[i] < 0 ? "falls" : "grows";
      cell.style.setProperty("--slope", `${Math.round((45 * Math.abs(gradient.data[i])) / largest)}%`);
    });
  }

  #redraw() {
    let picture = null;
    try {
      picture = thumbnail(this.read());
    } catch {
      // What cannot be read has no picture; the run says why.
    }
    this.picture.replaceChildren(picture ?? "");
  }

  /** The array as typed; throws with a message for people. */
  read() {
    const array = this.reader();
    return { ...array, dtype: this.facts.dtype };
  }

  /** Run an action that may fail on typed numbers, and show the error beside them. */
  #attempt(action) {
    try {
      action();
    } catch (error) {
      this.#complain(error.message);
    }
  }

  #complain(message) {
    this.shapeTag.textContent = message;
    this.shapeTag.className = "bad small";
  }

  #showShape(array) {
    this.shapeTag.textContent = array.shape.length ? describe({ ...array, dtype: this.facts.dtype }) : "";
    this.shapeTag.className = "muted small";
  }

  #show(array, mode = null) {
    this.mode = mode ?? (array.shape.length === 0 && !isComplex(array) ? "scalar" : fitsGrid(array) ? "grid" : "text");
    this.body.replaceChildren({ scalar: () => this.#scalar(array), grid: () => this.#grid(array), text: () => this.#text(array) }[this.mode]());
    this.#showShape(array);
    this.#redraw();
    this.element.dispatchEvent(new Event("input", { bubbles: true }));
    this.modeButton.textContent = this.mode === "grid" ? "as text" : "as grid";
    this.modeButton.hidden = this.mode !== "grid" && !fitsGrid(array);
  }

  #scalar(array) {
    const input = cellInput(array.data[0], this.facts.dtype, { id: this.id });
    this.reader = () => fromFlat([], this.facts.dtype, [readCell(input, this.facts.dtype)]);
    return input;
  }

  #grid(array) {
    const rank = array.shape.length;
    const [rows, columns] = rank === 1 ? [1, array.shape[0]] : array.shape;
    const cells = Array.from(array.data, (value, i) =>
      cellInput(value, this.facts.dtype, {
        id: i === 0 ? this.id : null,
        "aria-label": `${this.label} ${rank === 1 ? i : `${Math.floor(i / columns)}, ${i % columns}`}`,
        on: { keydown: (event) => moveInGrid(event, cells, i, rank === 1 ? 1 : columns), paste: (event) => this.#paste(event) },
      }),
    );
    this.reader = () => fromFlat(array.shape, this.facts.dtype, cells.map((cell) => readCell(cell, this.facts.dtype)));
    const line = (row) => h("div", { class: "grid-row" }, cells.slice(row * columns, (row + 1) * columns));
    const grid = h("div", { class: rank === 1 ? "grid vector" : "grid", role: "group", "aria-label": this.label });
    grid.append(...Array.from({ length: rows }, (_, row) => line(row)));
    return h("div", {}, grid, this.#resizers(array));
  }

  /** Buttons that make open axes longer and shorter. */
  #resizers({ shape }) {
    const declared = this.facts.shape ?? shape.map(() => null);
    const names = shape.length === 1 ? ["value"] : ["row", "column"];
    const resize = (axis, by) => {
      const next = shape.map((size, i) => size + (i === axis ? by : 0));
      if (next[axis] >= 1) this.#attempt(() => this.#show(resized(this.reader(), next)));
    };
    const buttons = shape.flatMap((_, axis) =>
      declared[axis] === null
        ? [
            button("−", () => resize(axis, -1), { class: "tiny", "aria-label": `${this.label}: one ${names[axis]} less` }),
            button(`+ ${names[axis]}`, () => resize(axis, 1), { class: "tiny", "aria-label": `${this.label}: one ${names[axis]} more` }),
          ]
        : [],
    );
    return buttons.length ? h("div", { class: "resizers" }, buttons) : null;
  }

  #text(array) {
    const area = h("textarea", { id: this.id, rows: 4, spellcheck: "false", "aria-label": this.label });
    const isLarge = array.data.length > 2000;
    // A large array does not change until the user types over its summary.
    area.value = isLarge ? "" : isComplex(array) ? complexText(array) : compactJson(toNested(array));
    if (isLarge) area.placeholder = `${describe(array)}: too large to show. Paste to replace it.`;
    this.reader = () => {
      if (isLarge && !area.value.trim()) return array;
      const read = parseText(area.value, this.facts.dtype);
      return this.facts.shape?.length === 0 ? { ...read, shape: [] } : read;
    };
    area.addEventListener("change", () => this.#attempt(() => this.#showShape(this.read())));
    return area;
  }

  #tools() {
    const file = h("input", { type: "file", class: "visually-hidden", accept: ".npy,.json,.csv,.txt", "aria-label": `${this.label}: file`, on: { change: () => this.#load(file) } });
    const fill = isComplex(this.facts) ? null : button("fill…", () => this.#openFill(), { class: "link" });
    return h("div", { class: "array-tools" }, this.shapeTag, this.modeButton, fill, button("file…", () => file.click(), { class: "link" }), file);
  }

  async #load(input) {
    const file = input.files[0];
    try {
      const array = file.name.endsWith(".npy") ? readNpy(await file.arrayBuffer()) : parseText(await file.text(), this.facts.dtype);
      this.#show(array);
    } catch (error) {
      this.#complain(`${file.name}: ${error.message}`);
    }
    input.value = "";
  }

  #paste(event) {
    const text = event.clipboardData.getData("text");
    if (!/[\s,;[]/.test(text.trim())) return;
    event.preventDefault();
    this.#attempt(() => this.#show(parseText(text, this.facts.dtype)));
  }

  #switchMode() {
    this.#attempt(() => this.#show(this.reader(), this.mode === "grid" ? "text" : "grid"));
  }

  /** A row of controls that fills the array: shape, pattern, two numbers. */
  #openFill() {
    this.element.querySelector(".fill")?.remove();
    let current;
    try {
      current = this.reader();
    } catch {
      current = startingArray(this.facts);
    }
    const shape = h("input", { value: current.shape.join(" × "), "aria-label": "shape", class: "narrow" });
    const [low, high] = [0, 1].map((value) => h("input", { value, inputmode: "decimal", "aria-label": value ? "to" : "from or value", class: "narrow" }));
    const pattern = select([["constant", "constant"], ["linspace", "from … to"], ["uniform", "random uniform"], ["normal", "random normal"], ["bump", "bump"]], null, { "aria-label": "pattern" });
    low.value = "1";
    const fill = () => {
      const sizes = shape.value.split(/[^\d]+/).filter(Boolean).map(Number);
      const values = FILLS[pattern.value](sizeOf(sizes), toNumber(low.value), toNumber(high.value), sizes);
      this.#show(fromFlat(sizes, this.facts.dtype, this.facts.dtype.includes("int") ? values.map(Math.round) : values));
      panel.remove();
    };
    const panel = h("div", { class: "fill" }, shape, pattern, low, high, button("Fill", () => this.#attempt(fill)));
    this.element.append(panel);
    shape.focus();
  }
}

/** The gradient of a number by an array, in figures and as a picture; `editor` has its values, if they are known. */
export function gradientNote(gradient, editor, { label, number }) {
  const text = gradient.shape.length ? largestText(gradient) : formatNumber(gradient.data[0], 4);
  let array = null;
  try {
    array = editor?.read() ?? null;
  } catch {
    // Without its values a gradient is drawn by itself.
  }
  const picture = gradient.shape.length ? gradientPicture(array, gradient) : null;
  return h("div", { class: "gradient" }, h("p", {}, h("span", { class: "tag" }, "∂"), ` ${number} by ${label}: ${text}`), picture);
}

function largestText({ shape, data }) {
  const at = data.reduce((best, slope, i) => (Math.abs(slope) > Math.abs(data[best]) ? i : best), 0);
  let rest = at;
  const index = [...shape].reverse().map((size) => { const i = rest % size; rest = Math.floor(rest / size); return i; }).reverse();
  return data.length ? `largest ${formatNumber(data[at], 4)} at [${index.join(", ")}]` : "no values";
}

const gaussian = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
const range = (count) => Array.from({ length: count }, (_, i) => i);
const FILLS = {
  constant: (count, value) => range(count).map(() => value),
  linspace: (count, low, high) => range(count).map((i) => low + ((high - low) * i) / Math.max(1, count - 1)),
  uniform: (count, low, high) => range(count).map(() => low + (high - low) * Math.random()),
  normal: (count, mean, deviation) => range(count).map(() => mean + deviation * gaussian()),
  // A bell in the middle: from `low` outside to `high` at its top.
  bump: (count, low, high, shape) => range(count).map((flat) => {
    let rest = flat, square = 0;
    for (const size of [...shape].reverse()) {
      const at = size > 1 ? (rest % size) / (size - 1) - 0.5 : 0;
      square += at * at;
      rest = Math.floor(rest / size);
    }
    return low + (high - low) * Math.exp(-square / 0.05);
  }),
};

/** An array with other sizes; what is new repeats the last value of its axis. */
function resized(array, shape) {
  const rank = shape.length;
  const [oldRows, oldColumns] = rank === 1 ? [1, array.shape[0]] : array.shape;
  const [rows, columns] = rank === 1 ? [1, shape[0]] : shape;
  const values = range(rows * columns).map((flat) => {
    const row = Math.min(Math.floor(flat / columns), oldRows - 1);
    return array.data[row * oldColumns + Math.min(flat % columns, oldColumns - 1)];
  });
  return fromFlat(shape, array.dtype, values);
}

const readCell = (cell, dtype) => (dtype === "bool" ? Number(cell.checked) : parseNumber(cell.value, dtype));

function cellInput(value, dtype, options) {
  if (dtype === "bool") return h("input", { type: "checkbox", checked: Boolean(value), ...options });
  const text = typeof value === "bigint" || Number.isFinite(value) ? String(value) : formatNumber(value).replace("−", "-");
  return h("input", { type: "text", inputmode: dtype.includes("int") ? "numeric" : "decimal", autocomplete: "off", value: text, ...options });
}

function moveInGrid(event, cells, index, stride) {
  const step = { ArrowUp: -stride, ArrowDown: stride, Enter: stride }[event.key];
  const target = step && cells[index + step];
  if (!target) return;
  event.preventDefault();
  target.focus();
  target.select();
}

function compactJson(nested) {
  const isMatrix = Array.isArray(nested?.[0]);
  return isMatrix ? `[${nested.map(toJson).join(",\n ")}]` : toJson(nested);
}
