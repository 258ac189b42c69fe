// A picture of an array of a page, and its range in words.

import { formatNumber, statistics } from "./arrays.js";
import { h } from "./dom.js";
import { curve, image } from "./plots.js";

/** An image, a curve or a number; `limits` of its colours or its axis are its own by default. */
export function figureOf(array, label, limits = statistics(array.data)) {
  if (array.shape.length === 2) return image(array.data, ...array.shape, { label, limits });
  if (array.data.length === 1) return h("p", { class: "one-number" }, formatNumber(array.data[0]));
  return curve(array.data, { label, limits });
}

/** Smallest and largest value, what is not finite, and a remark. */
export function rangeOf(array, remark = "") {
  const { low, high, count } = statistics(array.data);
  const odd = array.data.length - count;
  const range = count ? `${formatNumber(low)} … ${formatNumber(high)}` : "no finite value";
  return h("p", { class: "summary" }, range + remark, odd ? h("strong", { class: "bad" }, ` · ${odd} not finite`) : null);
}
