// The gradient check: every derivative endpoint against finite differences, and against each other.

import { button, h, newId } from "./dom.js";

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
    if (report) this.results.replaceChildren(verdict(report), checkTable(report));
  }
}

function verdict({ passed, checks }) {
  const wrong = checks.filter((check) => !check.passed).length;
  const text = passed ? `All ${checks.length} checks passed.` : `${wrong} of ${checks.length} checks failed.`;
  return h("p", { class: passed ? "verdict good" : "verdict bad", role: "status" }, passed ? "✓ " : "✗ ", text);
}

function checkTable({ checks }) {
  const rows = checks.map((check) =>
    h("tr", { class: check.passed ? "" : "failed" },
      h("td", {}, h("code", {}, check.endpoint)),
      h("td", { title: MEANINGS[check.test] }, check.test),
      h("td", { class: check.passed ? "good" : "bad" }, check.passed ? "passed" : "FAILED"),
      h("td", { class: "number" }, String(check.count)),
      h("td", {}, check.summary, check.mismatches.length ? h("ul", { class: "mismatches" }, check.mismatches.map((line) => h("li", {}, line))) : null)),
  );
  const head = ["endpoint", "test", "result", "values", "what was found"].map((title) => h("th", { scope: "col" }, title));
  return h("div", { class: "scroll" }, h("table", { class: "lines" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
}
