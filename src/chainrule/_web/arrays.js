// Arrays: `{shape, dtype, data}` with row-major numbers; of complex arrays real and imaginary parts alternate.
// Integers of 64 bits are BigInts, since a float holds only those up to 2⁵³.

import { parseJson } from "./json.js";

const VIEWS = {
  float64: Float64Array, float32: Float32Array, int8: Int8Array, int16: Int16Array, int32: Int32Array,
  int64: BigInt64Array, uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array,
  bool: Uint8Array, complex64: Float32Array, complex128: Float64Array,
};
const SHORT_NAMES = { float: "f", int: "i", uint: "u", complex: "c", bfloat: "bf", bool: "bool" };

export const sizeOf = (shape) => shape.reduce((total, size) => total * size, 1);
export const isComplex = (array) => array.dtype.startsWith("complex");
const isBig = (dtype) => dtype.endsWith("int64");
export const isArray = (value) => value !== null && typeof value === "object" && ArrayBuffer.isView(value.data);

/** `f64[3,4]`, the way the library writes it. */
export function describe({ shape, dtype }) {
  const [, word, bits] = /^([a-z]+)(\d*)$/.exec(dtype) ?? [null, dtype, ""];
  return `${SHORT_NAMES[word] ?? word}${bits}[${shape.join(",")}]`;
}

/** A tree from the wire with every encoded array decoded. */
export function decodeTree(tree) {
  if (Array.isArray(tree)) return tree.map(decodeTree);
  if (tree === null || typeof tree !== "object") return tree;
  if ("shape" in tree && "dtype" in tree && "data" in tree) return decode(tree);
  return Object.fromEntries(Object.entries(tree).map(([key, value]) => [key, decodeTree(value)]));
}

function decode({ shape, dtype, data }) {
  if (data.encoding !== "base64") return fromFlat(shape, dtype, flatten(data.buffer));
  const text = atob(data.buffer);
  const bytes = Uint8Array.from(text, (character) => character.charCodeAt(0));
  return { shape, dtype, data: numbers(dtype, bytes.buffer) };
}

function numbers(dtype, buffer) {
  if (dtype === "float16") return Float32Array.from(new Uint16Array(buffer), halfToNumber);
  if (dtype === "bfloat16") {
    return new Float32Array(Uint32Array.from(new Uint16Array(buffer), (bits) => bits << 16).buffer);
  }
  return new VIEWS[dtype](buffer);
}

function halfToNumber(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** An array from numbers in row-major order. */
export function fromFlat(shape, dtype, values) {
  const data = isBig(dtype) ? bigIntegers(dtype, values) : (dtype === "float32" ? Float32Array : Float64Array).from(values, Number);
  return { shape: [...shape], dtype, data };
}

function bigIntegers(dtype, values) {
  const data = VIEWS[dtype].from(values, toBigInt);
  const odd = Array.from(values).find((value, i) => data[i] !== toBigInt(value));
  if (odd !== undefined) throw new Error(`${odd} does not fit ${dtype}.`);
  return data;
}

function toBigInt(value) {
  if (typeof value === "bigint") return value;
  if (!Number.isInteger(Number(value))) throw new Error(`${value} is not a whole number.`);
  return BigInt(Number(value));
}

const flatten = (nested) => [nested].flat(Infinity);

/** An array from nested lists (or a number); ragged lists throw. */
export function fromNested(nested, dtype) {
  const shape = [];
  for (let level = nested; Array.isArray(level); level = level[0]) shape.push(level.length);
  const check = (level, depth) => {
    if (depth === shape.length) {
      if (!["number", "bigint", "boolean"].includes(typeof level)) throw new Error("Expected numbers.");
    } else {
      if (!Array.isArray(level) || level.length !== shape[depth]) throw new Error("Rows differ in length.");
      level.forEach((inner) => check(inner, depth + 1));
    }
  };
  check(nested, 0);
  return fromFlat(shape, dtype, flatten(nested));
}

/** Nested lists of an array of real numbers; whole numbers are BigInts only where they must be. */
export function toNested({ shape, dtype, data }) {
  const build = (depth, start, stride) => {
    if (depth === shape.length) return dtype === "bool" ? Boolean(data[start]) : simplest(data[start]);
    const inner = shape[depth] ? stride / shape[depth] : 0;
    return Array.from({ length: shape[depth] }, (_, i) => build(depth + 1, start + i * inner, inner));
  };
  return build(0, 0, sizeOf(shape));
}

/** A whole number as a plain number where that is exact. */
export const simplest = (value) => (typeof value === "bigint" && Number.isSafeInteger(Number(value)) ? Number(value) : value);

const LARGE = 512;

/** What is sent for an array: lists where people may read it, bytes where it is large or not finite. */
export function encode(array) {
  const isPlain = array.data.length <= LARGE && !isComplex(array) && array.data.every((value) => typeof value === "bigint" || Number.isFinite(value));
  return isPlain ? toNested(array) : toBase64(array);
}

function toBase64({ shape, dtype, data }) {
  const sent = VIEWS[dtype] ? dtype : "float64";
  const bytes = new Uint8Array(VIEWS[sent].from(data).buffer);
  let text = "";
  for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
  return { object_type: "array", shape, dtype: sent, data: { buffer: btoa(text), encoding: "base64" } };
}

const DIGITS = "(?:\\d+\\.?\\d*|\\.\\d+)(?:e[+-]?\\d+)?";
const COMPLEX = new RegExp(`^(?:(?<real>[+-]?${DIGITS})(?=[+-]|$))?(?:(?<imaginary>[+-]?(?:${DIGITS})?)[ij])?$`, "i");

/** Complex numbers as Python writes them, `1+2j`, in rows. */
function parseComplex(text, dtype) {
  const rows = text.split(/[\n;]+/).map((row) => row.split(/[\s,[\]()]+/).filter(Boolean)).filter((row) => row.length);
  if (rows.some((row) => row.length !== rows[0].length)) throw new Error("Rows differ in length.");
  const parts = rows.flat().flatMap((word) => {
    const found = COMPLEX.exec(word)?.groups;
    if (!found) throw new Error(`${word} is not a complex number such as 1+2j.`);
    const { real = "0", imaginary = "0" } = found;
    return [Number(real), Number(/\d/.test(imaginary) ? imaginary : `${imaginary}1`)];
  });
  const shape = rows.length > 1 ? [rows.length, rows[0].length] : [rows[0].length];
  return fromFlat(shape, dtype, parts);
}

/** The text that `parseText` reads a complex array from. */
export function complexText({ shape, data }) {
  const columns = shape.length === 2 ? shape[1] : data.length / 2;
  const word = (i) => `${data[2 * i]}${data[2 * i + 1] < 0 ? "" : "+"}${data[2 * i + 1]}j`;
  const rows = Array.from({ length: data.length / 2 / columns }, (_, row) => Array.from({ length: columns }, (_, i) => word(row * columns + i)).join(" "));
  return rows.join("\n");
}

/** Typed, pasted or loaded numbers: JSON lists, or rows of numbers. */
export function parseText(text, dtype) {
  const trimmed = text.trim();
  if (!trimmed) throw new Error("Expected numbers.");
  if (dtype.startsWith("complex") && !trimmed.startsWith("{")) return parseComplex(trimmed, dtype);
  if (/^[[{]/.test(trimmed)) {
    let tree;
    try {
      tree = parseJson(trimmed);
    } catch {
      throw new Error("This is not JSON: check brackets and commas.");
    }
    const found = decodeTree(tree);
    return isArray(found) ? found : fromNested(found, dtype);
  }
  const rows = trimmed.split(/[\n;]+/).map((row) => row.trim().split(/[\s,]+/).filter(Boolean).map((word) => parseNumber(word, dtype)));
  const kept = rows.filter((row) => row.length);
  if (kept.length === 1 && kept[0].length === 1) return fromNested(kept[0][0], dtype);
  return fromNested(kept.length === 1 ? kept[0] : kept, dtype);
}

/** A number as people write it, `NaN` and `inf` included. */
export function toNumber(text) {
  const word = String(text).trim().toLowerCase();
  if (/^[+-]?inf(inity)?$/.test(word)) return word.startsWith("-") ? -Infinity : Infinity;
  const value = word === "nan" ? NaN : Number(word);
  if (word === "" || (Number.isNaN(value) && word !== "nan")) throw new Error(`${text || "Nothing"} is not a number.`);
  return value;
}

/** A number of an array of this type as people write it. */
export function parseNumber(text, dtype) {
  const isExact = isBig(dtype) && /^[+-]?\d+$/.test(text.trim());
  return isExact ? BigInt(text.trim().replace(/^\+/, "")) : toNumber(text);
}

const NPY_KINDS = { f: "float", i: "int", u: "uint", b: "bool", c: "complex" };

/** The array in a `.npy` file. */
export function readNpy(buffer) {
  const bytes = new DataView(buffer);
  const major = bytes.getUint8(6);
  const start = major === 1 ? 10 : 12;
  const length = major === 1 ? bytes.getUint16(8, true) : bytes.getUint32(8, true);
  const header = new TextDecoder("latin1").decode(new Uint8Array(buffer, start, length));
  const [, order, kind, width] = /'descr':\s*'([<>|=])([a-z])(\d+)'/.exec(header) ?? [];
  if (!NPY_KINDS[kind] || order === ">") throw new Error("Only little-endian numbers can be read from .npy files.");
  if (/'fortran_order':\s*True/.test(header)) throw new Error("Save it in C order: np.save(file, np.ascontiguousarray(x)).");
  const shape = /'shape':\s*\(([^)]*)\)/.exec(header)[1].split(",").filter((part) => part.trim()).map(Number);
  const dtype = kind === "b" ? "bool" : `${NPY_KINDS[kind]}${width * 8}`;
  return { shape, dtype, data: numbers(dtype, buffer.slice(start + length)) };
}

/** A `.npy` file of an array, in its own type; short floats are widened. */
export function writeNpy({ shape, dtype, data }) {
  const kept = VIEWS[dtype] ? dtype : "float32";
  const [, word, bits] = /^([a-z]+)(\d*)$/.exec(kept);
  const kind = kept === "bool" ? "|b1" : `${bits === "8" ? "|" : "<"}${word[0]}${bits / 8}`;
  const body = VIEWS[kept].from(data);
  const tuple = shape.length === 1 ? `${shape[0]},` : shape.join(", ");
  const text = `{'descr': '${kind}', 'fortran_order': False, 'shape': (${tuple}), }`;
  const padded = text.padEnd(Math.ceil((text.length + 11) / 64) * 64 - 11) + "\n";
  const head = new Uint8Array(10 + padded.length);
  head.set([0x93, 78, 85, 77, 80, 89, 1, 0, padded.length & 255, padded.length >> 8]);
  head.set(new TextEncoder().encode(padded), 10);
  return new Blob([head, body]);
}

/** Few digits for people. */
export function formatNumber(value, digits = 5) {
  if (typeof value !== "number") return String(value).replace(/^-(?=\d)/, "−");
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "inf" : "−inf";
  if (value === 0 || (Number.isInteger(value) && Math.abs(value) < 1e6)) return String(value).replace("-", "−");
  const size = Math.abs(value);
  const text = size >= 1e5 || size < 1e-3 ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
  return text.replace(/(\.\d*?)0+(?=e|$)/, "$1").replace(/\.(?=e|$)/, "").replace("e+", "e").replaceAll("-", "−");
}

/** Numbers beside each other, with as many digits as their differences need: 300, 300.1, 300.2. */
export function formatTogether(values, digits = 3) {
  const finite = values.map(Number).filter(Number.isFinite);
  const size = Math.max(...finite.map(Math.abs));
  const span = Math.max(...finite) - Math.min(...finite);
  const needed = span > 0 ? Math.ceil(Math.log10(size / span)) + 2 : digits;
  return values.map((value) => formatNumber(value, Math.min(15, Math.max(digits, needed))));
}

/** Whether values differ by no more than rounding does. */
export const isFlat = ({ low, high }) => !(high - low > 1e-12 * Math.max(Math.abs(low), Math.abs(high)));

/** Smallest and largest finite value, and the mean: 0 where it is no more than the rounding of the sum. */
export function statistics(data) {
  let low = Infinity, high = -Infinity, sum = 0, count = 0;
  for (const entry of data) {
    const value = Number(entry);
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
    sum += value;
    count += 1;
  }
  const rounding = Number.EPSILON * count * Math.max(Math.abs(low), Math.abs(high));
  const mean = Math.abs(sum) <= count * rounding ? 0 : sum / count;
  return { low, high, mean: count ? mean : NaN, count };
}
