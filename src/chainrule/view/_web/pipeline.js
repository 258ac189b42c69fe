// A pipeline: its graph or its matrix, and what is known about the link or the program that is chosen.

import { decodeTree, formatNumber, toNumber } from "./arrays.js";
import { button, h } from "./dom.js";
import { figureOf, rangeOf } from "./figure.js";
import { fitFrame } from "./frame.js";
import { Matrix, choosable } from "./matrix.js";

const read = (flow) => decodeTree(flow);
const said = (norm) => (norm === null ? null : formatNumber(toNumber(norm), 3));
const MOST_SHRUNK = 0.8; // a graph that would be smaller is shown as a matrix

class Pipeline {
  constructor(main, { nodes, links, isMatrix, hasValues }) {
    Object.assign(this, { nodes, links, hasValues });
    this.graph = main.querySelector(".static");
    this.details = h("section", { class: "details", "aria-label": "details", "aria-live": "polite" });
    this.matrix = new Matrix(nodes, links.flatMap((link) => this.cells(link)), {
      legend: hasValues ? [["value", "values, above the diagonal"], ["cotangent", "cotangents, below"]] : [],
      onNode: (index) => this.node(index),
      onCells: (cells) => this.show([...new Set(cells.map(({ link }) => link))]),
    });
    this.views = [["graph", this.graph], ["matrix", this.matrix.element]];
    this.buttons = this.views.map(([name]) => button(name, () => this.view(name), { class: "tiny" }));
    const chosen = isMatrix ? null : h("div", { class: "views", role: "group", "aria-label": "view" }, this.buttons);
    main.replaceChildren(h("main", { class: "pipeline" }, h("h1", { class: "visually-hidden" }, "Pipeline"), chosen, h("div", { class: "picture" }, isMatrix ? null : this.graph, this.matrix.element), this.details));
    if (isMatrix) this.graph.remove();
    else this.prepare();
    this.view(isMatrix || this.isTooWide() ? "matrix" : "graph");
    const odd = links.find(({ value }) => value === "odd") ?? links.findLast(({ cotangent }) => cotangent === "odd"); // where it begins
    if (odd) this.show([odd]);
    else this.details.append(h("p", { class: "muted" }, "Choose a link or a program to see more of it."));
  }

  isTooWide() {
    const picture = this.graph.querySelector("svg");
    return this.graph.clientWidth < MOST_SHRUNK * Number(picture.getAttribute("width"));
  }

  view(wanted) {
    this.views.forEach(([name, element], k) => {
      element.hidden = name !== wanted;
      this.buttons[k].setAttribute("aria-pressed", String(name === wanted));
    });
    this.matrix.resize();
  }

  /** The shapes of the graph react. */
  prepare() {
    const picture = this.graph.querySelector("svg");
    picture.setAttribute("role", "group");
    picture.setAttribute("aria-label", "graph of programs");
    for (const shape of picture.querySelectorAll("[data-name]")) {
      const [kind, number] = shape.dataset.name.split("-");
      const index = Number(number);
      if (kind === "link") choosable(shape, this.label(this.links[index]), () => this.show([this.links[index]]));
      else choosable(shape, this.nodes[index].name, () => this.node(index));
    }
  }

  cells(link) {
    const { source, target } = link;
    const cells = [{ row: source, column: target, kind: "value", level: link.value, label: this.label(link), link }];
    if (link.cotangent !== null) cells.push({ row: target, column: source, kind: "cotangent", level: link.cotangent, label: `cotangent, ${this.label(link)}`, link });
    return cells;
  }

  title({ source, target }) {
    return `${this.nodes[source].name} → ${this.nodes[target].name}`;
  }

  label(link) {
    const norms = [["value", link.valueNorm], ["cotangent", link.cotangentNorm]].filter(([, norm]) => norm !== null);
    return [this.title(link), ...norms.map(([word, norm]) => `${word} ${said(norm)}`)].join(", ");
  }

  show(links) {
    this.details.replaceChildren(...links.map((link) => this.link(link)));
  }

  link(link) {
    return h("article", { class: "panel-card" }, h("h2", {}, this.title(link)), link.flows.map(read).map((flow) => this.flow(flow)));
  }

  flow({ name, type, value, cotangent, valueNorm, cotangentNorm }) {
    const sides = [["value", value, valueNorm], ["cotangent", cotangent, cotangentNorm]].filter(([, , norm]) => norm !== null);
    return h("section", { class: "flow" }, h("h3", {}, [name, type].filter(Boolean).join(" ")),
      h("div", { class: "sides" }, sides.map(([word, array, norm]) => h("div", { class: "side" },
        h("p", { class: "side-name" }, h("span", { class: `swatch ${word}`, "aria-hidden": "true" }), `${word}, norm ${said(norm)}`),
        array ? [figureOf(array, `${word} of ${name || type}`), rangeOf(array)] : h("p", { class: "muted" }, "no entries")))));
  }

  node(index) {
    const { name, lines, program } = this.nodes[index];
    this.details.replaceChildren(h("article", { class: "panel-card" }, h("h2", {}, name),
      h("ul", { class: "facts" }, lines.map((line) => h("li", {}, line))), program ? h("pre", { tabindex: 0 }, program) : null));
  }
}

new Pipeline(document.getElementById("main"), JSON.parse(document.getElementById("data").textContent));
fitFrame();
