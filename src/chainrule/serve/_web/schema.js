// Reading a component's OpenAPI document: which kind of field a node describes.

import { isArray } from "./arrays.js";

const PATHS = ["path", "file-path", "directory-path"];

/** The document of one component. */
export class Schema {
  constructor(document) {
    this.document = document;
    this.schemas = document.components.schemas;
    this.info = document.info;
    this.capabilities = document["x-capabilities"] ?? {};
    this.inputs = this.resolve({ $ref: "#/components/schemas/Apply_InputSchema" });
    this.outputs = this.resolve({ $ref: "#/components/schemas/Apply_OutputSchema" });
    this.differentiable = {
      inputs: Object.keys(this.schemas.ApplyInputSchema?.differentiable_arrays ?? {}),
      outputs: Object.keys(this.schemas.ApplyOutputSchema?.differentiable_arrays ?? {}),
    };
    // Endpoints that the server adds to those of the component.
    this.added = document["x-added"] ?? [];
    this.isCheap = document["x-cheap"] === true;
    this.exampleSizes = this.#exampleSizes();
  }

  /** Sizes to begin with, by the name of a dimension: those of defaults, else small ones that agree. */
  #exampleSizes() {
    const sizes = {}, isGiven = {};
    const models = Object.values(this.schemas).filter((model) => model.properties);
    for (const node of models.flatMap((model) => Object.values(model.properties)).filter(isEncodedArray)) {
      const { shape, dims } = arrayFacts(node);
      dims.forEach((name, axis) => {
        if (!name || isGiven[name]) return;
        const given = sizesOf(node.default)[axis];
        isGiven[name] = given !== undefined;
        sizes[name] = given ?? Math.min(sizes[name] ?? Infinity, exampleSize(shape));
      });
    }
    return sizes;
  }

  /** The shape that an array without a default begins with. */
  exampleShape({ shape, dims }) {
    return (shape ?? [null]).map((size, axis) => size ?? this.exampleSizes[dims[axis]] ?? exampleSize(shape ?? [null]));
  }

  has(endpoint) {
    return `/${endpoint}` in this.document.paths;
  }

  /** A node with references followed; what stands next to a reference wins. */
  resolve(node) {
    let found = node;
    while (found.$ref || (found.allOf?.length === 1)) {
      const { $ref, allOf, ...beside } = found;
      const target = $ref ? this.schemas[$ref.split("/").pop()] : allOf[0];
      found = { ...target, ...beside };
    }
    return found;
  }

  /** `{kind, …}` of a resolved node; the kinds are the fields of form.js. */
  classify(node) {
    const members = (node.anyOf ?? node.oneOf)?.map((member) => this.resolve(member));
    if (members) return this.#classifyUnion(node, members);
    if (isEncodedArray(node)) return { kind: "array", ...arrayFacts(node) };
    if ("const" in node) return { kind: "constant", value: node.const };
    if (node.type === "string" && PATHS.includes(node.format)) return { kind: "file" };
    if (node.enum) return { kind: "choice", values: node.enum };
    switch (node.type) {
      case "object":
        if (node.properties) return { kind: "model", fields: node.properties, required: node.required ?? [] };
        return { kind: "dict", item: typeof node.additionalProperties === "object" ? node.additionalProperties : {} };
      case "array":
        if (node.prefixItems) return { kind: "tuple", items: node.prefixItems };
        return { kind: "list", item: node.items ?? {} };
      case "boolean": case "integer": case "number":
        return { kind: node.type };
      case "string":
        return { kind: "text" };
      case "null":
        return { kind: "constant", value: null };
      default:
        return { kind: "json" };
    }
  }

  #classifyUnion(node, members) {
    const rest = members.filter((member) => member.type !== "null");
    const { anyOf, oneOf, discriminator, ...beside } = node;
    if (rest.length < members.length) {
      const inner = rest.length === 1 ? rest[0] : { anyOf: rest, discriminator };
      return { kind: "optional", item: { ...inner, title: inner.title ?? beside.title } };
    }
    if (rest.length === 1) return this.classify({ ...rest[0], ...beside });
    return { kind: "union", members: rest.map((member) => [this.#label(member), member]), discriminator };
  }

  #label(member) {
    const facts = this.classify(member);
    if (facts.kind === "array") return describeArray(facts);
    return (member.title ?? facts.kind).replace(/^Apply_/, "");
  }
}

function isEncodedArray({ type, properties }) {
  return type === "object" && properties?.shape && properties.dtype && properties.data;
}

function arrayFacts(node) {
  const { shape, dtype } = node.properties;
  const open = "minItems" in shape ? (shape.prefixItems ?? []).map(size) : null;
  return {
    shape: open,
    dims: node.array_dims ?? (open ?? []).map(() => null),
    dtype: dtype.examples?.[0] ?? dtype.const ?? "float64",
    units: node.array_units?.replaceAll("*", "·"),
    isDifferentiable: node.array_flags?.includes("DIFFERENTIABLE") ?? false,
  };
}

/** A field gets a grid to look at, anything else a few values. */
const exampleSize = (shape) => (shape.length === 2 && shape.every((size) => size === null) ? 16 : 4);

function sizesOf(nested) {
  return Array.isArray(nested) ? [nested.length, ...sizesOf(nested[0])] : [];
}

const size = (node) => node.const ?? (node.enum ? Math.max(...node.enum) : null);

/** `f64[n,3]` of a declaration. */
export function describeArray({ shape, dims, dtype }) {
  const short = dtype.replace(/^bfloat/, "bf").replace(/^float/, "f").replace(/^uint/, "u").replace(/^int/, "i").replace(/^complex/, "c");
  if (shape?.length === 0) return short;
  return `${short}[${shape === null ? "…" : shape.map((n, axis) => n ?? dims[axis] ?? "·").join(",")}]`;
}

/** The paths that a pattern (`a.[].{}`) has in a tree, each with its value. */
export function expandPattern(pattern, tree) {
  let found = [[[], tree]];
  for (const part of pattern.split(".")) {
    found = found.flatMap(([path, node]) => {
      if (node === null || node === undefined) return [];
      if (part === "[]") return node.map((child, i) => [[...path, `[${i}]`], child]);
      if (part === "{}") return Object.entries(node).map(([key, child]) => [[...path, `{${key}}`], child]);
      const key = /^\[\d+\]$/.test(part) ? part.slice(1, -1) : part;
      return key in Object(node) ? [[[...path, part], node[key]]] : [];
    });
  }
  return found.filter(([, value]) => value !== null && value !== undefined).map(([path, value]) => [path.join("."), value]);
}

/** `[path, array]` of the arrays that patterns have in a tree. */
export const arraysAt = (patterns, tree) => patterns.flatMap((pattern) => expandPattern(pattern, tree)).filter(([, value]) => isArray(value));

/** `[path, array]` of the differentiable inputs of a point; null in place of an array that the author's default fills. */
export function differentiableInputs({ differentiable }, { inputs, leftOut }) {
  const filled = leftOut.filter((path) => differentiable.inputs.includes(path));
  return [...arraysAt(differentiable.inputs, inputs), ...filled.map((path) => [path, null])];
}

/** The shape of an input as it is shown; of `null` it is only known where it comes from. */
export const shapeText = (array) => (array ? `[${array.shape.join(",")}]` : "author's default");
