// What was just done, as Python, curl and a shell command. The token is named, never shown.

import { encode, isArray, isComplex, toNested } from "./arrays.js";
import { button, h, saveFile } from "./dom.js";
import { toJson } from "./json.js";

const INLINE_LIMIT = 900;
const COMMANDS = {
  apply: "apply", jacobian: "jacobian", jacobian_vector_product: "jvp", vector_jacobian_product: "vjp", check_gradients: "check-gradients",
};

/** The panel; `show` fills it. */
export class Snippets {
  constructor(client) {
    this.client = client;
    this.element = h("div", {}, h("p", { class: "muted" }, "Run something, and it appears here as code."));
  }

  /** @param rest the arguments after the inputs, in order  @param job the id under which the server keeps the run */
  show(endpoint, inputs, rest = {}, job = null) {
    const call = { inputs, ...rest };
    const body = toJson(asJson(call));
    if (!(endpoint in COMMANDS)) {
      this.element.replaceChildren(block("curl", this.#curl(endpoint, quoted(body))), ...(job ? this.#afterwards(job) : []));
      return;
    }
    // The check of gradients is the one endpoint whose command takes the body of `apply`, and the rest as options.
    const point = endpoint === "check_gradients" ? toJson(asJson({ inputs })) : body;
    const isLong = body.length > INLINE_LIMIT;
    const files = Object.entries(point === body ? { "inputs.json": body } : { "inputs.json": point, "check.json": body });
    const save = ([name, text]) => [button(`save ${name}`, () => saveFile(name, text, "application/json")), " "];
    this.element.replaceChildren(
      this.client.token ? h("p", {}, "Put the token into the environment first, for example ", h("code", {}, "read -rs CHAINRULE_TOKEN && export CHAINRULE_TOKEN"), ". It is not written into any of these.") : "",
      isLong ? h("p", {}, "The inputs are long: ", files.map(save), "next to your script.") : "",
      block("Python", this.#python(endpoint, call, isLong)),
      block("curl", this.#curl(endpoint, isLong ? `@${files.at(-1)[0]}` : quoted(body))),
      block("Command line", this.#shell(endpoint, rest, isLong ? "@inputs.json" : quoted(point))),
      ...(job ? this.#afterwards(job) : []),
    );
  }

  #python(endpoint, { inputs, ...rest }, isLong) {
    const isCheck = endpoint === "check_gradients";
    const from = (name, value) => (isLong ? `given[${toJson(name)}]` : python(value));
    const options = Object.entries(rest).map(([name, value]) => (isCheck ? `${name}=${python(value)}` : from(name, value)));
    const work = isCheck
      ? [`report = check_gradients(component, {"inputs": inputs}${options.map((option) => `, ${option}`).join("")})`, "print(report)"]
      : [`result = component.${endpoint}(${["inputs", ...options].join(", ")})`, "print(result)"];
    const text = [isLong ? 'with open("inputs.json") as file:\n    given = json.load(file)\ninputs = given["inputs"]' : `inputs = ${pythonDict(inputs)}`, ...work].join("\n");
    return [...this.#pythonHead(text), text].join("\n");
  }

  /** Imports that a text needs, and the component. */
  #pythonHead(text) {
    const imports = [/\bjson\./.test(text) && "import json", this.client.token && "import os", /\bnp\./.test(text) && "import numpy as np"].filter(Boolean);
    return [
      ...imports, ...(imports.length ? [""] : []),
      "from chainrule import Component",
      ...(/\bcheck_gradients\(/.test(text) ? ["from chainrule.runtime.testing import check_gradients"] : []),
      "", `component = Component.from_url(${toJson(address(this.client.base))}${this.client.token ? ', token=os.environ["CHAINRULE_TOKEN"]' : ""})`,
    ];
  }

  #curl(endpoint, payload) {
    return `curl ${shellWord(`${address(this.client.base)}/${endpoint}`)} \\\n  -H "Content-Type: application/json"${this.#curlToken()} \\\n  --data ${payload}`;
  }

  #curlToken() {
    return this.client.token ? ' \\\n  -H "Authorization: Bearer $CHAINRULE_TOKEN"' : "";
  }

  #shell(endpoint, rest, payload) {
    const settings = endpoint === "check_gradients" ? Object.entries(rest) : [];
    const options = settings.map(([name, value]) => ` --${name.replaceAll("_", "-")} ${value}`).join("");
    return `chainrule ${COMMANDS[endpoint]} ${shellWord(address(this.client.base))} ${payload}${options}${this.#shellToken()}`;
  }

  #shellToken() {
    return this.client.token ? ' \\\n  --token-file <(echo "$CHAINRULE_TOKEN")' : "";
  }

  /** The same run, fetched again: the server keeps it as a job. */
  #afterwards(job) {
    const root = address(this.client.root);
    const text = `job = component.job(${toJson(job)})\nprint(job.result())`;
    return [
      h("h2", {}, "This run, without running it again"),
      h("p", {}, "The server keeps it as a job. ", h("code", {}, "component.submit(…)"), " and ", h("code", {}, "?wait=false"), " start one that you need not wait for."),
      block("Python, job", [...this.#pythonHead(text), text].join("\n")),
      block("curl, job", `curl ${shellWord(`${root}/jobs/${job}/result`)}${this.#curlToken()}`),
      block("Command line, job", `chainrule job logs ${shellWord(root)} ${job}${this.#shellToken()}`),
    ];
  }
}

const address = (url) => url.href.replace(/\/$/, "");

function block(title, code) {
  const shown = h("pre", { tabindex: "0", "aria-label": title }, h("code", {}, code));
  const copy = button("copy", async () => {
    try {
      await navigator.clipboard.writeText(code);
      copy.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(shown);
      copy.textContent = "press Ctrl+C";
    }
    setTimeout(() => (copy.textContent = "copy"), 2000);
  }, { class: "tiny", "aria-label": `copy ${title}` });
  return h("section", { class: "snippet" }, h("header", {}, h("h3", {}, title), copy), shown);
}

const mapValues = (object, change) => Object.fromEntries(Object.entries(object).map(([key, value]) => [key, change(value)]));
const isLegible = (array) => !isComplex(array) && array.data.every((value) => typeof value === "bigint" || Number.isFinite(value));

/** A tree for a request: lists wherever JSON has the numbers, bytes elsewhere. */
function asJson(tree) {
  if (isArray(tree)) return isLegible(tree) ? toNested(tree) : encode(tree);
  if (Array.isArray(tree)) return tree.map(asJson);
  return tree !== null && typeof tree === "object" ? mapValues(tree, asJson) : tree;
}

/** A tree as Python writes it. */
function python(value) {
  if (isArray(value)) return isComplex(value) ? pythonComplex(value) : python(toNested(value));
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "bigint") return String(value);
  if (typeof value === "number") return Number.isFinite(value) ? String(value) : `float("${String(value).toLowerCase()}")`;
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, inner]) => `${toJson(key)}: ${python(inner)}`).join(", ")}}`;
  return toJson(value);
}

/** A mapping with one line for each key. */
function pythonDict(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value) || isArray(value)) return python(value);
  return ["{", ...Object.entries(value).map(([key, inner]) => `    ${toJson(key)}: ${python(inner)},`), "}"].join("\n");
}

function pythonComplex({ shape, dtype, data }) {
  const words = Array.from({ length: data.length / 2 }, (_, i) => `complex(${python(data[2 * i])}, ${python(data[2 * i + 1])})`);
  return `np.array([${words.join(", ")}], dtype="${dtype}").reshape(${shape.length ? shape.join(", ") : "()"})`;
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
/** A text as one word of a shell, quoted where it has to be. */
const shellWord = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : quoted(text));
