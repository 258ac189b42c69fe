// Building elements. Text is always text: nothing here reads markup from a string.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element; `on` holds listeners, known properties are set as such, the rest are attributes. */
export function h(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "class") element.className = value;
    else if (["value", "checked", "disabled", "selected", "hidden", "open"].includes(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** A button that looks like text or like a button, never one that submits. */
export function button(label, onClick, options = {}) {
  return h("button", { type: "button", ...options, on: { click: onClick } }, label);
}

/** A select with options given as `[value, label]`. */
export function select(choices, onChange, options = {}) {
  return h(
    "select",
    { ...options, on: { change: (event) => onChange?.(event.target.value) } },
    choices.map(([value, label]) => h("option", { value }, label)),
  );
}

let count = 0;
/** An id that no other element has. */
export const newId = () => `e${++count}`;

/** Let the user save bytes or text under a name. */
export function saveFile(name, content, type = "application/octet-stream") {
  const address = URL.createObjectURL(new Blob([content], { type }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
