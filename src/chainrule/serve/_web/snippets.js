// What was just done, as Python, curl and a shell command.

import { encode, isArray, isComplex, toNested } from "./arrays.js";
import { button, h, saveFile } from "./dom.js";

const SHORT = 900;
const COMMANDS = {
  apply: "apply", jacobian: "jacobian", jacobian_vector_product: "jvp", vector_jacobian_product: "vjp", check_gradients: "check-gradients",
};

/** The panel; `show` fills it. */
export class Snippets {
  constructor(schema, client) {
    this.schema = schema;
    this.client = client;
    this.element = h("div", {}, h("p", { class: "muted" }, "Run something, and it appears here as code."));
  }

  /** @param rest the arguments after the inputs, in order */
  show(endpoint, inputs, rest = {}) {
    const readable = { inputs: readableTree(inputs), ...mapValues(rest, readableTree) };
    const body = JSON.stringify(readable);
    const isLong = body.length > SHORT;
    const blocks = [
      ["Python", this.#python(endpoint, readable, isLong)],
      ["curl", this.#curl(endpoint, body, isLong)],
      ["Command line", this.#shell(endpoint, readable, isLong)],
    ];
    this.element.replaceChildren(
      isLong ? h("p", {}, "The inputs are long: ", button("save inputs.json", () => saveFile("inputs.json", body, "application/json")), " next to your script.") : "",
      ...blocks.map(([title, code]) => block(title, code)),
    );
  }

  get #address() {
    return this.client.base.href.replace(/\/$/, "");
  }

  #python(endpoint, readable, isLong) {
    const name = identifier(this.schema.info.title);
    const token = this.client.token ? ', token=os.environ["CHAINRULE_TOKEN"]' : "";
    const lines = [this.client.token && "import os", isLong && "import json", (this.client.token || isLong) && "", "from chainrule import Component"];
    if (endpoint === "check_gradients") lines.push("from chainrule.runtime.testing import check_gradients");
    lines.push("", `${name} = Component.from_url(${JSON.stringify(this.#address)}${token})`);
    const { inputs, ...rest } = readable;
    if (isLong) lines.push('given = json.load(open("inputs.json"))');
    else lines.push("inputs = {", ...Object.entries(inputs).map(([key, value]) => `    ${JSON.stringify(key)}: ${python(value)},`), "}");
    const from = (key) => (isLong ? `given["${key}"]` : key === "inputs" ? "inputs" : python(rest[key]));
    if (endpoint === "check_gradients") {
      const options = Object.entries(rest).map(([key, value]) => `, ${key}=${python(value)}`).join("");
      lines.push(`report = check_gradients(${name}, {"inputs": ${from("inputs")}}${options})`, "print(report.passed)");
    } else {
      const args = [from("inputs"), ...Object.keys(rest).map(from)].join(", ");
      lines.push(`result = ${name}.${endpoint}(${args})`);
    }
    return lines.filter((line) => line !== false && line !== null && line !== undefined).join("\n");
  }

  #curl(endpoint, body, isLong) {
    const token = this.client.token ? ' \\\n  -H "Authorization: Bearer $CHAINRULE_TOKEN"' : "";
    const data = isLong ? "@inputs.json" : quoted(body);
    return `curl ${this.#address}/${endpoint} \\\n  -H "Content-Type: application/json"${token} \\\n  --data ${data}`;
  }

  #shell(endpoint, readable, isLong) {
    const { inputs, ...rest } = readable;
    const file = `${identifier(this.schema.info.title)}.py`;
    const isCheck = endpoint === "check_gradients";
    const options = isCheck
      ? ["input_paths", "output_paths"].flatMap((key) => (rest[key] ?? []).map((path) => ` --${key.replace("_", "-")} ${quoted(path)}`)).join("") + ` --max-evals ${rest.max_evals}`
      : "";
    const payload = isLong ? "@inputs.json" : quoted(JSON.stringify(isCheck ? { inputs } : readable));
    return `# with the component's own file\nchainrule ${COMMANDS[endpoint]} ${file} ${payload}${options}`;
  }
}

function block(title, code) {
  const shown = h("pre", { tabindex: "0" }, h("code", {}, code));
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

function readableTree(tree) {
  if (isArray(tree)) return isComplex(tree) ? encode(tree) : toNested(tree);
  if (Array.isArray(tree)) return tree.map(readableTree);
  return tree !== null && typeof tree === "object" ? mapValues(tree, readableTree) : tree;
}

function python(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "number") return Number.isFinite(value) ? String(value) : `float("${String(value).toLowerCase()}")`;
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, inner]) => `${JSON.stringify(key)}: ${python(inner)}`).join(", ")}}`;
  return JSON.stringify(value);
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function identifier(name) {
  const text = name.replace(/\W+/g, "_").replace(/^(\d)/, "_$1");
  return text || "component";
}
