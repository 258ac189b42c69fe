// A page in the cell of a notebook: the frame around it gets its height.

export function fitFrame() {
  const frame = window.frameElement;
  if (!frame) return;
  const fit = () => { frame.style.height = `${document.documentElement.offsetHeight + 2}px`; };
  new ResizeObserver(fit).observe(document.body);
}
