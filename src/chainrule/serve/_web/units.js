// Units as text: `N/m`, `m^2`, `kg·m/s**2`, `W/(m K)`.

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const TOKEN = /\s*(\*\*|\^|[()/·*]|[-−]?\d+|[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+|[^\s()/·*^\d⁻⁰¹²³⁴⁵⁶⁷⁸⁹−-]+)/gy;

/** The units of a derivative, simplified: of `m` by `N/m` that is `m²/N`; undefined where none are known. */
export function quotient(above, below) {
  if (!below) return above;
  const exponents = parseUnits(above ?? "1"), divisor = parseUnits(below);
  if (!exponents || !divisor) return `(${above ?? "1"}) / (${below})`;
  for (const [name, power] of divisor) exponents.set(name, (exponents.get(name) ?? 0) - power);
  return formatUnits(exponents);
}

/** Name → exponent, or null for text that is not a product of powers. */
function parseUnits(text) {
  TOKEN.lastIndex = 0;
  const tokens = [...text.trim().matchAll(TOKEN)];
  if (tokens.map(([whole]) => whole).join("") !== text.trim()) return null;
  const words = tokens.map(([, word]) => word);
  try {
    const found = product(words);
    return words.length ? null : found;
  } catch {
    return null;
  }
}

function product(words) {
  const total = new Map();
  let sign = 1;
  while (words.length && words[0] !== ")") {
    if ("/·*".includes(words[0])) {
      sign = words.shift() === "/" ? -1 : 1;
      continue;
    }
    for (const [name, exponent] of factor(words)) total.set(name, (total.get(name) ?? 0) + sign * exponent);
    sign = 1;
  }
  return total;
}

/** A name, a one or a product in brackets, to a power. */
function factor(words) {
  const word = words.shift();
  let base;
  if (word === "(") {
    base = product(words);
    if (words.shift() !== ")") throw new Error("a bracket is not closed");
  } else if (/^[-−\d⁻⁰-⁹^]/.test(word) && word !== "1") throw new Error("a number");
  else base = new Map(word === "1" ? [] : [[word, 1]]);
  const exponent = power(words);
  return [...base].map(([name, own]) => [name, own * exponent]);
}

function power(words) {
  if (words[0] === "^" || words[0] === "**") {
    words.shift();
    const exponent = Number(words.shift()?.replace("−", "-"));
    if (!Number.isInteger(exponent)) throw new Error("an exponent is not a whole number");
    return exponent;
  }
  if (!/^[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]/.test(words[0] ?? "")) return 1;
  return Number([...words.shift()].map((digit) => (digit === "⁻" ? "-" : SUPERSCRIPTS.indexOf(digit))).join(""));
}

/** `m²/N`; `1` where everything cancels. */
function formatUnits(exponents) {
  const side = (sign) => [...exponents].filter(([, exponent]) => sign * exponent > 0).map(([name, exponent]) => name + raised(Math.abs(exponent)));
  const [above, below] = [side(1), side(-1)];
  const top = above.join("·") || "1";
  if (!below.length) return top;
  return `${top}/${below.length > 1 ? `(${below.join("·")})` : below[0]}`;
}

const raised = (exponent) => (exponent === 1 ? "" : [...String(exponent)].map((digit) => SUPERSCRIPTS[digit]).join(""));
