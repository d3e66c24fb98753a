// What scrolls sideways can be reached with the keyboard. The theme does so for code, not for tables.
function letScrollablesTakeFocus() {
  for (const box of document.querySelectorAll("article table, article .cell_output")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

window.addEventListener("load", () => {
  letScrollablesTakeFocus();
  // Formulas make a table wider.
  if (window.MathJax?.startup?.promise) MathJax.startup.promise.then(letScrollablesTakeFocus);
});
window.addEventListener("resize", letScrollablesTakeFocus);
