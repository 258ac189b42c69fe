// A graph as a matrix: nodes are rows and columns, a cell is what goes from its row to its column.
// Neighbours of one stage collapse to one row; a search leaves what it finds and what that is linked to.

import { button, h, svg } from "./dom.js";

const SIDE = 20, SMALLEST = 12, HIGHEST = 730, LETTER = 6.7, MOST_LETTERS = 26;
const RANK = { zero: -1, null: -2, odd: 99 };
const rankOf = (level) => RANK[level] ?? level;

/** Lets a shape of a drawing be chosen by pointer and by keys. */
export function choosable(shape, label, choose) {
  for (const [name, value] of Object.entries({ role: "button", tabindex: 0, "aria-label": label })) shape.setAttribute(name, value);
  shape.classList.add("choosable");
  shape.addEventListener("click", choose);
  shape.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose();
  });
  return shape;
}

/**
 * `nodes` are `{ name, stage, kind }`, `cells` are `{ row, column, kind, level, label, link }`; several cells that
 * come to lie on one place are one, with the highest level. `legend` is `[[class, text]]`. `onNode(index)` and
 * `onCells(cells)` hear what is chosen.
 */
export class Matrix {
  constructor(nodes, cells, { unit = "programs", collapsedFrom = 40, legend = [], onNode = () => {}, onCells = () => {} } = {}) {
    Object.assign(this, { nodes, cells, unit, onNode, onCells });
    this.runs = runsOf(nodes);
    const stages = this.runs.filter((run) => run.length > 1);
    this.collapsed = new Set(nodes.length > collapsedFrom ? stages : []);
    this.search = h("input", { type: "search", placeholder: "search", "aria-label": "search", on: { input: () => this.draw() } });
    this.all = stages.length ? button("", () => this.toggleAll(stages), { class: "tiny" }) : null;
    this.found = h("span", { class: "muted small", role: "status" });
    this.scroller = h("div", { class: "matrix-scroller", tabindex: 0, role: "region", "aria-label": "matrix" });
    const colours = legend.map(([kind, text]) => h("li", {}, h("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), h("span", { class: "legend-name" }, text)));
    this.element = h("div", { class: "matrix" }, h("div", { class: "matrix-tools" }, this.search, this.all, this.found),
      colours.length ? h("ul", { class: "legend" }, colours) : null, this.scroller);
    new ResizeObserver(() => this.resize()).observe(this.scroller);
    this.draw();
  }

  /** Other cells on the same nodes. */
  show(cells) {
    this.cells = cells;
    this.draw();
  }

  toggleAll(stages) {
    this.collapsed = new Set(this.collapsed.size ? [] : stages);
    this.draw();
  }

  toggle(run) {
    if (!this.collapsed.delete(run)) this.collapsed.add(run);
    this.draw();
  }

  resize() {
    if (this.scroller.clientWidth !== this.width) this.draw();
  }

  /** Rows as lists of nodes, with the run that they open or close. */
  rows() {
    const every = this.runs.flatMap((run) => {
      const { stage, name } = this.nodes[run[0]];
      if (run.length === 1) return [{ label: name, members: run }];
      if (this.collapsed.has(run)) return [{ label: `▸ ${stage} (${run.length})`, members: run, run }];
      const head = name.startsWith(stage) ? "▾ " : `▾ ${stage} · `;
      return run.map((node, k) => ({ label: `${k ? "  " : head}${this.nodes[node].name}`, members: [node], run: k ? null : run }));
    });
    const wanted = this.search.value.trim().toLowerCase();
    if (!wanted) return every;
    const isFound = (row) => row.label.toLowerCase().includes(wanted) || row.members.some((node) => this.nodes[node].name.toLowerCase().includes(wanted));
    const hits = new Set(every.filter(isFound).flatMap((row) => row.members));
    const near = new Set(this.cells.flatMap(({ row, column }) => (hits.has(row) || hits.has(column) ? [row, column] : [])));
    this.hits = hits;
    return every.filter((row) => row.members.some((node) => hits.has(node) || near.has(node)));
  }

  draw() {
    this.hits = null;
    const rows = this.rows();
    this.width = this.scroller.clientWidth;
    const letters = Math.min(MOST_LETTERS, Math.max(0, ...rows.map(({ label }) => label.length)));
    const left = letters * LETTER + 10;
    const room = Math.min((this.width || 800) - left - 4, HIGHEST);
    const side = Math.max(SMALLEST, Math.min(SIDE, room / Math.max(1, rows.length)));
    const size = rows.length * side;
    const place = new Map(rows.flatMap(({ members }, k) => members.map((node) => [node, k])));
    const picture = svg("svg", { width: left + size + 2, height: size + 2, role: "group", "aria-label": `matrix of ${this.unit}` });
    picture.append(svg("rect", { class: "matrix-ground", x: left, y: 0, width: size, height: size }));
    rows.forEach((row, k) => picture.append(this.row(row, k, left, side)));
    for (const [at, cells] of this.placed(place)) {
      const [y, x] = at.split(",").map(Number);
      picture.append(this.cell(cells, left + x * side, y * side, side));
    }
    this.scroller.replaceChildren(picture);
    this.found.textContent = this.hits ? `${this.hits.size} found` : `${this.nodes.length} ${this.unit}`;
    if (this.all) this.all.textContent = this.collapsed.size ? "expand all" : "collapse all";
  }

  row({ label, members, run }, k, left, side) {
    const isHit = this.hits && members.some((node) => this.hits.has(node));
    const shown = label.length > MOST_LETTERS ? `${label.slice(0, MOST_LETTERS - 1)}…` : label;
    const text = svg("text", { class: isHit ? "matrix-label hit" : "matrix-label", x: 2, y: (k + 0.5) * side + 4 }, shown);
    const kind = members.length > 1 ? "stage" : this.nodes[members[0]].kind;
    const diagonal = svg("rect", { class: `matrix-node ${kind}`, x: left + k * side, y: k * side, width: side, height: side });
    const row = svg("g", {}, svg("title", {}, label.trim()), svg("rect", { class: "matrix-row", x: 0, y: k * side, width: left, height: side }), text, diagonal);
    return choosable(row, run ? `${this.collapsed.has(run) ? "expand" : "collapse"} ${label.slice(2)}` : label.trim(), () => {
      if (members.length === 1) this.onNode(members[0]);
      if (run) this.toggle(run);
    });
  }

  /** `"row,column"` → cells that are there now; those inside of one row are on its diagonal, and not drawn. */
  placed(place) {
    const found = new Map();
    for (const cell of this.cells) {
      const row = place.get(cell.row), column = place.get(cell.column);
      if (row === undefined || column === undefined || row === column) continue;
      const at = `${row},${column}`;
      found.set(at, [...(found.get(at) ?? []), cell]);
    }
    return found;
  }

  cell(cells, x, y, side) {
    const { kind, level } = cells.reduce((best, cell) => (rankOf(cell.level) > rankOf(best.level) ? cell : best));
    const label = cells.length === 1 ? cells[0].label : `${cells.length} links: ${cells[0].label}, …`;
    const square = svg("rect", { class: `matrix-cell ${kind} level-${level}`, x: x + 1, y: y + 1, width: side - 2, height: side - 2, rx: 2 }, svg("title", {}, label));
    return choosable(square, label, () => this.onCells(cells));
  }
}

/** Neighbours of one stage together. */
function runsOf(nodes) {
  const runs = [];
  nodes.forEach(({ stage }, k) => {
    const last = runs.at(-1);
    if (last && stage && nodes[last[0]].stage === stage) last.push(k);
    else runs.push([k]);
  });
  return runs;
}
