// The common part of Markdown, as elements: paragraphs, lists, code, emphasis, links. Markup in the text stays text.

import { h } from "./dom.js";

const INLINE = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^\s*][^*]*)\*|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/g;
const BULLET = /^\s*[-*+]\s+/, NUMBER = /^\s*\d+[.)]\s+/;

/** The blocks of a text. Links lead to http and https only. */
export function markdown(text) {
  const blocks = [];
  const lines = text.split("\n");
  while (lines.length) blocks.push(...nextBlock(lines));
  return blocks;
}

function nextBlock(lines) {
  const line = lines.shift();
  if (!line.trim()) return [];
  if (/^\s*```/.test(line)) {
    const end = lines.findIndex((each) => /^\s*```/.test(each));
    const code = lines.splice(0, end < 0 ? lines.length : end + 1);
    return [h("pre", {}, h("code", {}, (end < 0 ? code : code.slice(0, -1)).join("\n")))];
  }
  if (/^#{1,6}\s/.test(line)) return [h("p", {}, h("strong", {}, inline(line.replace(/^#+\s+/, ""))))];
  for (const [mark, tag] of [[BULLET, "ul"], [NUMBER, "ol"]]) {
    if (mark.test(line)) return [h(tag, {}, listItems([line, ...take(lines, (each) => mark.test(each) || /^\s+\S/.test(each))], mark))];
  }
  const rest = take(lines, (each) => each.trim() && !BULLET.test(each) && !NUMBER.test(each) && !/^(\s*```|#{1,6}\s)/.test(each));
  return [h("p", {}, inline([line, ...rest].join("\n")))];
}

function take(lines, isMore) {
  const end = lines.findIndex((line) => !isMore(line));
  return lines.splice(0, end < 0 ? lines.length : end);
}

function listItems(lines, mark) {
  const items = [];
  for (const line of lines) {
    if (mark.test(line)) items.push(line.replace(mark, ""));
    else items[items.length - 1] += `\n${line.trim()}`;
  }
  return items.map((item) => h("li", {}, inline(item)));
}

function inline(text) {
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(INLINE)) {
    const [whole, code, strong, emphasis, words, address] = found;
    parts.push(text.slice(end, found.index));
    if (code) parts.push(h("code", {}, code));
    else if (strong) parts.push(h("strong", {}, strong));
    else if (emphasis) parts.push(h("em", {}, emphasis));
    else parts.push(h("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, words));
    end = found.index + whole.length;
  }
  return [...parts, text.slice(end)];
}
