// What scrolls sideways can be reached with the keyboard. The theme does so for code, not for tables.
function letItTakeFocus(box) {
  if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  else box.removeAttribute("tabindex");
}

window.addEventListener("load", () => {
  const boxes = [...document.querySelectorAll("article table, article .cell_output")];
  // Not the window's resize event: the sidebar is still moving then.
  const observer = new ResizeObserver((entries) => entries.forEach((entry) => letItTakeFocus(entry.target)));
  boxes.forEach((box) => observer.observe(box));
  // Formulas make a table wider than it was, but not its box.
  window.MathJax?.startup?.promise?.then(() => boxes.forEach(letItTakeFocus));
});
