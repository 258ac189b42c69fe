// An elimination as a matrix: the edges that are left after each step.

import { button, h } from "./dom.js";
import { fitFrame } from "./frame.js";
import { Matrix } from "./matrix.js";

const times = (count) => (count === 1 ? "1 multiplication" : `${count} multiplications`);

class Elimination {
  constructor(main, { title, nodes, edges, steps }) {
    Object.assign(this, { title, nodes, edges, steps });
    this.slider = h("input", { type: "range", min: 0, max: steps.length, value: 0, "aria-label": "step", on: { input: () => this.go(Number(this.slider.value)) } });
    this.caption = h("p", { class: "caption", role: "status" });
    this.products = h("ul", { class: "facts" });
    this.matrix = new Matrix(nodes, [], {
      unit: "vertices",
      collapsedFrom: 120,
      legend: [["kept", "edge"], ["changed", "changed by this step"], ["new", "made by this step"]],
      onCells: (cells) => this.products.replaceChildren(...cells.map(({ label }) => h("li", {}, label))),
      onNode: (index) => this.products.replaceChildren(h("li", {}, `${nodes[index].name}${nodes[index].stage ? `, in ${nodes[index].stage}` : ""}`)),
    });
    const step = (by) => () => this.go(Math.min(steps.length, Math.max(0, Number(this.slider.value) + by)));
    main.replaceChildren(h("main", { class: "elimination" }, h("h1", {}, title),
      h("div", { class: "scrubber" }, button("◀", step(-1), { "aria-label": "step back" }), this.slider, button("▶", step(1), { "aria-label": "step on" })),
      this.caption, this.matrix.element, this.products));
    this.go(0);
  }

  go(number) {
    this.slider.value = number;
    const step = this.steps[number - 1];
    const spent = this.steps.slice(0, number).reduce((sum, { cost }) => sum + cost, 0);
    this.caption.textContent = step ? `Eliminate ${step.title}: ${times(step.cost)}, ${spent} so far` : `The graph: ${this.steps.length} steps follow`;
    this.slider.setAttribute("aria-valuetext", this.caption.textContent);
    this.products.replaceChildren(...(step?.lines ?? []).map((line) => h("li", {}, line)));
    const changed = new Set((step?.changed ?? []).map(String));
    const there = this.edges.filter(({ born, died }) => born <= number && number < died);
    this.matrix.show(there.map(({ row, column, born, structure }) => {
      const isTouched = changed.has(`${row},${column}`);
      const level = !isTouched ? 0 : this.edges.some((edge) => edge.row === row && edge.column === column && edge.born < number && edge.died >= number) ? 1 : 2;
      return { row, column, kind: "edge", level, label: `${this.nodes[row].name} → ${this.nodes[column].name}${structure ? `: ${structure}` : ""}${born ? `, since step ${born}` : ""}` };
    }));
  }
}

new Elimination(document.getElementById("main"), JSON.parse(document.getElementById("data").textContent));
fitFrame();
