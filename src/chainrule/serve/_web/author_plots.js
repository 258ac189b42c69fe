// The author's own plots: HTML of the component's, in frames that have no origin and no network.

import { h } from "./dom.js";

/** A card for every plot of `{title: HTML}`. */
export function plotCards(documents) {
  return Object.entries(documents).map(([title, text]) => {
    const frame = h("iframe", { src: "_page/frame.html", sandbox: "allow-scripts", title: `plot of the author: ${title}`, class: "author-plot" });
    frame.addEventListener("load", () => frame.contentWindow.postMessage(text, "*"), { once: true });
    return h("article", { class: "card wide" }, h("header", {}, h("h3", {}, title), h("span", { class: "type" }, "author's plot")), frame);
  });
}

// A frame gets the size of the picture in it, so that no white ground is left around that in the dark.
addEventListener("message", ({ source, data }) => {
  const frame = [...document.querySelectorAll(".author-plot")].find(({ contentWindow }) => contentWindow === source);
  if (!frame || !Number.isFinite(data?.width) || !Number.isFinite(data.height)) return;
  frame.style.maxWidth = `${data.width}px`;
  frame.style.height = `${Math.min(data.height, 2000)}px`;
});
