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

// Widths are read once per frame, however often the theme changes the page in it.
let isDue = false;
const mend = () => {
  mendButtons();
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => { isDue = false; mendPlaces(); });
};

addEventListener("load", mend);
addEventListener("resize", mend);
new MutationObserver(mend).observe(document.querySelector(".md-content"), { childList: true, subtree: true });
