// JSON whose whole numbers stay exact: those that a float cannot hold are BigInts on this side.

/** The value of a text; older browsers, which do not tell what was written, round as they always did. */
export function parseJson(text) {
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source) ? BigInt(context.source) : value,
  );
}

/** The text of a value. */
export function toJson(value) {
  if (typeof value === "bigint") return String(value);
  if (Array.isArray(value)) return `[${value.map(toJson).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([key, inner]) => `${JSON.stringify(key)}:${toJson(inner)}`).join(",")}}`;
}
