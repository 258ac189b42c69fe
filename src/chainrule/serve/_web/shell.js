// What pages have around their content: tabs and the choice of light or dark.

import { button, h, newId } from "./dom.js";

/** Tabs as the accessibility guide describes them: arrow keys, Home and End move, one is in the tab order. */
export function tabs(entries) {
  const list = h("div", { role: "tablist", class: "tabs" });
  const items = entries.map(([title, content, onOpen]) => {
    const id = newId();
    const tab = h("button", { type: "button", role: "tab", id: `${id}-tab`, "aria-controls": id }, title);
    const panel = h("div", { role: "tabpanel", id, "aria-labelledby": `${id}-tab`, class: "panel" }, content);
    return { title, tab, panel, onOpen };
  });
  const open = (title) => {
    for (const { title: own, tab, panel } of items) {
      const isOpen = own === title;
      tab.setAttribute("aria-selected", String(isOpen));
      tab.tabIndex = isOpen ? 0 : -1;
      panel.hidden = !isOpen;
    }
    items.find((item) => item.title === title).onOpen?.();
  };
  items.forEach(({ title, tab }, i) => {
    tab.addEventListener("click", () => open(title));
    tab.addEventListener("keydown", (event) => {
      const target = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: -1 }[event.key];
      if (target === undefined) return;
      event.preventDefault();
      const next = items.at(target % items.length);
      open(next.title);
      next.tab.focus();
    });
    list.append(tab);
  });
  open(items[0].title);
  return { element: h("div", {}, list, items.map(({ panel }) => panel)), open };
}

/** Whether the page is dark: as its switch says, or else as the system does. */
export const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

/** Switches between light and dark; the system's choice holds until it is used. */
export function themeButton() {
  const apply = (theme) => theme && document.documentElement.setAttribute("data-theme", theme);
  apply(localStorage.getItem("chainrule-theme"));
  return button("◐", () => {
    const theme = isDark() ? "light" : "dark";
    localStorage.setItem("chainrule-theme", theme);
    apply(theme);
    document.dispatchEvent(new Event("theme"));
  }, { id: "theme", class: "icon", "aria-label": "switch between light and dark" });
}
