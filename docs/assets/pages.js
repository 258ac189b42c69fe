// What the theme leaves open for keyboards and screen readers.
const wide = ".md-typeset__scrollwrap, .md-typeset__table, .wide, div:has(> svg.chainrule-view), math[display=block]";

const mend = () => {
  // What is wider than its place is scrolled with the arrow keys.
  for (const place of document.querySelectorAll(wide)) {
    if (place.scrollWidth > place.clientWidth) place.tabIndex = 0;
    else place.removeAttribute("tabindex");
  }
  // The copy button of a block is a button, not one more navigation.
  for (const place of document.querySelectorAll(".md-code__nav")) place.role = "none";
};

let isDue = false;
const mendSoon = () => {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => { isDue = false; mend(); });
};

addEventListener("load", mendSoon);
addEventListener("resize", mendSoon);
new MutationObserver(mendSoon).observe(document.querySelector(".md-content"), { childList: true, subtree: true });
