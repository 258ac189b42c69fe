// What the theme leaves open for keyboards and screen readers.
const wide = ".md-typeset__scrollwrap, .md-typeset__table, .wide, div:has(> svg.chainrule-view), math[display=block]";

// What is wider than its place is scrolled with the arrow keys.
const mendPlaces = () => {
  for (const place of document.querySelectorAll(wide)) {
    if (place.scrollWidth > place.clientWidth) place.tabIndex = 0;
    else place.removeAttribute("tabindex");
  }
};

// The copy button of a block is a button, not one more navigation.
const mendButtons = () => {
  for (const place of document.querySelectorAll(".md-code__nav")) place.role = "none";
};

// Pictures in frames have the theme of the page, which need not be the system's.
const mendFrames = () => {
  const theme = document.body.dataset.mdColorScheme === "slate" ? "dark" : "light";
  for (const frame of document.querySelectorAll("iframe[srcdoc]")) {
    if (frame.contentDocument) frame.contentDocument.documentElement.dataset.theme = theme;
  }
};

// Widths are read once per frame, however often the theme changes the page in it.
let isDue = false;
const mend = () => {
  mendButtons();
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => { isDue = false; mendPlaces(); });
};

addEventListener("load", mend);
addEventListener("load", mendFrames);
new MutationObserver(mendFrames).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
addEventListener("resize", mend);
new MutationObserver(mend).observe(document.querySelector(".md-content"), { childList: true, subtree: true });
