// The page of a component: inputs on the left, what comes of them on the right.

import { decodeTree } from "./arrays.js";
import { GradientCheck } from "./check.js";
import { Client, Problem } from "./client.js";
import { Derivatives } from "./derivatives.js";
import { button, h } from "./dom.js";
import { FieldError, Form, toPayload } from "./form.js";
import { Jobs, progressText } from "./jobs.js";
import { toJson } from "./json.js";
import { showTree } from "./results.js";
import { Schema } from "./schema.js";
import { Snippets } from "./snippets.js";
import { tabs, themeButton } from "./shell.js";

const base = new URL("./", location.href);
const root = new URL(base.href.replace(/c\/[^/]+\/$/, ""));

/** Everything the panels share: the point on the form, runs, messages. */
class Session {
  constructor(client, schema) {
    this.client = client;
    this.schema = schema;
    this.form = new Form(schema);
    this.snippets = new Snippets(client);
    this.message = h("p", { class: "message", role: "status", "aria-live": "polite" });
    this.bar = h("progress", { max: 1, hidden: true });
    this.log = h("pre", { class: "log", hidden: true, "aria-label": "log of the run" });
    this.stop = button("Cancel", () => this.job && client.cancel(this.job.id), { hidden: true });
    this.point = null;
  }

  say(text, isBad = false) {
    this.message.textContent = text;
    this.message.classList.toggle("bad", isBad);
  }

  /** Inputs and outputs at the values on the form, or null when they cannot be had. */
  async currentPoint({ isFresh = false } = {}) {
    const inputs = this.#readForm();
    if (!inputs) return null;
    const key = toJson(toPayload(inputs));
    if (this.point?.key === key) return this.point;
    if (!isFresh && !this.point) return null;
    const outputs = await this.run("apply", inputs);
    if (!outputs) return null;
    this.point = { key, inputs, outputs: decodeTree(outputs), leftOut: this.form.leftOut() };
    this.onPoint?.(this.point);
    return this.point;
  }

  #readForm() {
    try {
      return this.form.read();
    } catch (error) {
      if (!(error instanceof FieldError)) throw error;
      error.field.reveal();
      this.say("The marked values on the form have to be corrected first.", true);
      return null;
    }
  }

  /** Run an endpoint and show how it goes; what comes back, or null after saying why not. */
  async run(endpoint, inputs, rest = {}) {
    const began = performance.now();
    this.#begin(endpoint);
    try {
      const payload = { inputs: toPayload(inputs), ...toPayload(rest) };
      const result = await this.client.run(endpoint, payload, { onJob: (job) => this.#onJob(job), onLog: (line) => this.#onLog(line) });
      this.snippets.show(endpoint, inputs, rest, this.job?.id);
      this.say(`${endpoint} took ${duration(performance.now() - began)}.`);
      return result;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.#explain(error);
      return null;
    } finally {
      this.bar.hidden = this.stop.hidden = true;
      this.job = null;
    }
  }

  #begin(endpoint) {
    this.form.clearErrors();
    this.say(`${endpoint} …`);
    this.log.textContent = "";
    this.log.hidden = true;
  }

  #onJob(job) {
    this.job = job;
    this.bar.hidden = this.stop.hidden = !["queued", "running"].includes(job.state);
    if (job.fraction === null) this.bar.removeAttribute("value");
    else this.bar.value = job.fraction;
    if (["queued", "running"].includes(job.state)) this.say(`${job.endpoint}: ${progressText(job)}`);
  }

  #onLog(line) {
    this.log.hidden = false;
    this.log.textContent += `${line}\n`;
    this.log.scrollTop = this.log.scrollHeight;
  }

  #explain(problem) {
    const homeless = this.form.showProblems(problem.detail);
    const isPlaced = problem.detail.length > homeless.length;
    const text = isPlaced && !homeless.length ? "The component refuses these inputs; see the marked fields." : homeless[0] ?? problem.message;
    this.say(`${text} [${problem.code}]`, true);
    if (problem.traceback) this.#onLog(problem.traceback);
  }
}

const duration = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

/** Ask for the token until there is one. It lives in this tab only, and never in an address. */
function askForToken(wasWrong) {
  const dialog = document.getElementById("token-dialog");
  const input = document.getElementById("token");
  document.getElementById("token-error").textContent = wasWrong ? "The server does not know this token." : "";
  input.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    document.getElementById("token-form").onsubmit = (event) => {
      event.preventDefault();
      dialog.close();
      resolve(input.value.trim());
    };
  });
}

function header(schema, status) {
  const { title, version, description } = schema.info;
  const native = Object.entries(schema.capabilities).filter(([, { status: how }]) => how !== "absent");
  const chips = native.map(([name, { status: how, via }]) => h("span", { class: how === "native" ? "chip native" : "chip", title: how === "native" ? "written by the author" : `derived from ${via}` }, name.replaceAll("_", " ")));
  return h(
    "div", {},
    h("h1", {}, title, h("span", { class: "version" }, version === "unknown" ? "" : version)),
    description && h("p", { class: "lead" }, description),
    h("div", { class: "endpoints" }, chips),
    status.components?.length > 1 ? others(status.components, title) : null,
  );
}

function others(components, current) {
  const links = components.map(({ name }) => name === current ? h("strong", {}, name) : h("a", { href: new URL(`c/${encodeURIComponent(name)}/`, root).href }, name));
  return h("nav", { class: "others", "aria-label": "components of this server" }, "On this server: ", links.flatMap((link, i) => (i ? [" · ", link] : [link])));
}

async function start() {
  document.getElementById("theme").replaceWith(themeButton());
  const client = new Client(base, root, askForToken);
  const schema = new Schema(await client.get("openapi.json"));
  document.title = `${schema.info.title} · Chainrule`;
  const status = await client.getFromServer("status").catch(() => ({}));
  document.getElementById("about").replaceChildren(header(schema, status));
  build(new Session(client, schema));
}

function build(session) {
  const results = h("div", { class: "cards" }, h("p", { class: "muted" }, "Results appear here: numbers, curves, images and slices."));
  const derivatives = new Derivatives(session);
  const check = new GradientCheck(session);
  const jobs = new Jobs(session.client);
  session.onPoint = ({ outputs }) => {
    results.replaceChildren(...showTree(outputs, { schema: session.schema, node: session.schema.outputs }));
    results.classList.remove("stale");
  };
  session.form.element.addEventListener("input", () => results.classList.toggle("stale", Boolean(session.point)));
  const panels = tabs([
    ["Result", results],
    ["Derivatives", derivatives.element, () => derivatives.refresh()],
    ["Gradient check", check.element],
    ["Jobs", jobs.element, () => watch(jobs)],
    ["Code", session.snippets.element],
  ]);
  const run = async () => {
    session.point = null;
    panels.open("Result");
    const point = await session.currentPoint({ isFresh: true });
    if (point && isNarrow()) outputs.scrollIntoView({ behavior: "smooth" });
  };
  const inputs = h(
    "form", { class: "inputs", novalidate: true, on: { submit: (event) => { event.preventDefault(); run(); } } },
    h("h2", {}, "Inputs"), session.form.element,
    h("div", { class: "run-bar" }, h("button", { type: "submit", class: "primary" }, "Run"), session.stop, session.bar, session.message),
  );
  const outputs = h("section", { class: "outputs", "aria-label": "results" }, session.log, panels.element);
  document.getElementById("main").replaceChildren(inputs, outputs);
}

/** Whether results are below the form and not beside it, as page.css has it. */
const isNarrow = () => matchMedia("(max-width: 60rem)").matches;

/** Keep the list of jobs fresh while it is in sight and something runs. */
async function watch(jobs) {
  while (jobs.element.isConnected && !jobs.element.closest("[hidden]")) {
    const isActive = await jobs.refresh();
    await new Promise((resolve) => setTimeout(resolve, isActive ? 500 : 2500));
  }
}

start().catch((error) => {
  document.getElementById("about").replaceChildren(h("h1", {}, "This page cannot be shown"), h("p", { class: "bad" }, error.message));
});
