// What scrolls sideways can be reached with the keyboard. The theme does so for code, not for tables.
// A table always can: fonts, formulas and open dropdowns change its width at any time.
function letScrollablesTakeFocus() {
  for (const table of document.querySelectorAll("article table")) table.tabIndex = 0;
  for (const box of document.querySelectorAll("article .cell_output")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

document.addEventListener("DOMContentLoaded", letScrollablesTakeFocus);
window.addEventListener("load", () => {
  letScrollablesTakeFocus();
  // Formulas make an output wider.
  if (window.MathJax?.startup?.promise) MathJax.startup.promise.then(letScrollablesTakeFocus);
});
window.addEventListener("resize", letScrollablesTakeFocus);
