// The page of a component: inputs on the left, what comes of them on the right.

import { decodeTree, formatNumber, isArray } from "./arrays.js";
import { plotCards } from "./author_plots.js";
import { GradientCheck } from "./check.js";
import { Client, Problem } from "./client.js";
import { Derivatives } from "./derivatives.js";
import { button, h } from "./dom.js";
import { FieldError, Form, keysOf, toPayload } from "./form.js";
import { Jobs, progressText } from "./jobs.js";
import { toJson } from "./json.js";
import { markdown } from "./markdown.js";
import { arraysOf, findMeshes, meshCard } from "./mesh.js";
import { Optimise } from "./optimise.js";
import { showTree } from "./results.js";
import { Schema } from "./schema.js";
import { Snippets } from "./snippets.js";
import { tabs, themeButton } from "./shell.js";
import { State, linkTo, linkedInputs } from "./state.js";

const base = new URL("./", location.href);
const root = new URL(base.href.replace(/c\/[^/]+\/$/, ""));

/** Everything the panels share: the point on the form, runs, messages. */
class Session {
  constructor(client, schema) {
    this.client = client;
    this.schema = schema;
    this.form = new Form(schema);
    this.state = new State(client.base, schema.info["x-content-hash"], () => this.form.peek() && toPayload(this.form.peek()));
    this.snippets = new Snippets(client);
    this.message = h("p", { class: "message", role: "status", "aria-live": "polite" });
    this.bar = h("progress", { max: 1, hidden: true });
    this.log = h("pre", { class: "log", hidden: true, "aria-label": "log of the run" });
    this.prediction = h("p", { class: "prediction", "aria-live": "polite" });
    this.gradient = null;
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
    this.point = { key, inputs, outputs: decodeTree(outputs), sent: outputs, leftOut: this.form.leftOut() };
    if (this.gradient && this.gradient.key !== key) this.showGradient(null);
    this.onPoint?.(this.point);
    return this.point;
  }

  /** Show a gradient on the inputs until there is another point. */
  showGradient(gradient) {
    this.gradient = gradient && { ...gradient, key: this.point.key };
    this.prediction.textContent = "";
    this.form.showGradient(gradient);
  }

  /** What the gradient says of the inputs as they are now: the number, to first order. */
  predict() {
    const now = this.gradient && this.form.peek();
    if (!now) return;
    const { arrays, inputs, number, value } = this.gradient;
    let change = 0;
    for (const [path, slopes] of Object.entries(arrays)) {
      const [before, after] = [inputs, now].map((tree) => keysOf(path).reduce((node, key) => node?.[key], tree));
      if (before === undefined && after === undefined) continue; // both times the author's default
      if (!isArray(after) || !isArray(before) || after.data.length !== slopes.data.length) return;
      slopes.data.forEach((slope, i) => { change += slope * (after.data[i] - before.data[i]); });
    }
    const isPart = withoutPaths(now, Object.keys(arrays)) !== withoutPaths(inputs, Object.keys(arrays));
    const rest = isPart ? "; other inputs changed as well, which this leaves out" : "";
    this.prediction.textContent = change === 0 ? "" : `${number} ≈ ${formatNumber(value + change)} to first order (was ${formatNumber(value)})${rest}`;
  }

  /** Put arrays into the form, and run. */
  use(arrays) {
    this.form.set(arrays);
    this.onEdit?.();
    return this.onRun?.();
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
  async run(endpoint, inputs, rest = {}, onProgress = () => {}) {
    const began = performance.now();
    this.#begin(endpoint);
    try {
      const payload = { inputs: toPayload(inputs), ...toPayload(rest) };
      const result = await this.client.run(endpoint, payload, { onJob: (job) => { this.#onJob(job); onProgress(job); }, onLog: (line) => this.#onLog(line) });
      if (endpoint !== "plot") this.snippets.show(endpoint, inputs, rest, this.job?.id);
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

/** A text of the inputs that are at none of the paths. */
function withoutPaths(inputs, paths) {
  const payload = toPayload(inputs);
  for (const path of paths) {
    const keys = keysOf(path);
    const parent = keys.slice(0, -1).reduce((node, key) => node?.[key], payload);
    if (parent) delete parent[keys.at(-1)];
  }
  return toJson(payload);
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
    description && h("div", { class: "lead" }, markdown(description)),
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
  if (schema.document["x-files"]) schema.upload = (file) => client.upload(file, schema.document["x-files"].max_bytes);
  const session = new Session(client, schema);
  const isEdited = await restore(session);
  const run = build(session);
  if (schema.isCheap && !isEdited) await run();
}

/** Fill the form with the inputs of the link, or of an earlier load; whether there were any. */
async function restore(session) {
  try {
    const given = (await linkedInputs()) ?? session.state.saved();
    if (given === undefined) return false;
    session.form.fill(given);
    return true;
  } catch {
    session.form.fill();
    session.say("The inputs of this link do not fit the component; these are its defaults.", true);
    return false;
  }
}

function build(session) {
  const { schema, form } = session;
  const results = h("div", { class: "cards" }, h("p", { class: "muted" }, "Results appear here: numbers, curves, images, meshes and tables."));
  const derivatives = new Derivatives(session);
  const check = new GradientCheck(session);
  const optimise = new Optimise(session);
  const jobs = new Jobs(session.client);
  const fileAt = schema.document["x-files"] ? (path) => button("download", () => session.client.download(path), { class: "link", "aria-label": `download ${path}` }) : null;
  session.onPoint = (point) => {
    const plots = h("div", { class: "plots" });
    const meshes = findMeshes(point.outputs, point.inputs);
    results.replaceChildren(plots, ...meshes.map(meshCard), ...showTree(point.outputs, { schema, node: schema.outputs, fileAt, onMesh: arraysOf(meshes) }));
    results.classList.remove("stale");
    if (schema.added.includes("plot")) showPlots(session, point, plots);
  };
  session.onEdit = () => {
    results.classList.toggle("stale", Boolean(session.point));
    session.state.edit();
    session.predict();
  };
  form.element.addEventListener("input", session.onEdit);
  const panels = tabs([
    ["Result", results],
    ["Derivatives", derivatives.element, () => derivatives.refresh()],
    ["Optimise", optimise.element, () => optimise.refresh()],
    ["Gradient check", check.element],
    ["Jobs", jobs.element, () => watch(jobs)],
    ["Code", session.snippets.element],
  ]);
  const run = async () => {
    session.point = null;
    panels.open("Result");
    return session.currentPoint({ isFresh: true });
  };
  session.onRun = run;
  const submit = async (event) => {
    event.preventDefault();
    if ((await run()) && isNarrow()) outputs.scrollIntoView({ behavior: "smooth" });
  };
  const inputs = h(
    "form", { class: "inputs", novalidate: true, on: { submit } },
    h("header", { class: "inputs-head" }, h("h2", {}, "Inputs"), button("Copy link", () => copyLink(session), { class: "link" }), button("Reset", () => reset(session), { class: "link" })),
    form.element,
    h("div", { class: "run-bar" }, session.prediction, h("button", { type: "submit", class: "primary" }, "Run"), session.stop, session.bar, session.message),
  );
  const outputs = h("section", { class: "outputs", "aria-label": "results" }, session.log, panels.element);
  document.getElementById("main").replaceChildren(inputs, outputs);
  return run;
}

/** The author's plots, which come after our own pictures. */
async function showPlots(session, point, place) {
  const took = session.message.textContent;
  const documents = await session.run("plot", point.inputs, { outputs: point.outputs });
  if (!documents) return;
  place.replaceChildren(...plotCards(documents));
  session.say(took);
}

async function copyLink(session) {
  const inputs = session.form.peek();
  const link = inputs && (await linkTo(toPayload(inputs)));
  if (!link) return session.say(inputs ? "These inputs are too large for a link. Code saves them as a file." : "The marked values on the form have to be corrected first.", true);
  history.replaceState(null, "", link);
  return navigator.clipboard.writeText(link).then(() => session.say("The link with these inputs is copied."), () => session.say("The address of this page has these inputs now."));
}

/** The form as it was at the beginning. */
function reset(session) {
  session.form.fill();
  session.showGradient(null);
  session.state.clear();
  session.say("These are the defaults.");
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
