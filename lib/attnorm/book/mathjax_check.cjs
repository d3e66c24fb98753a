// Let MathJax parse all mathematics of built pages, and report what it cannot read or leaves unresolved.
// stdin: {"mathjax": folder, "config": window.MathJax of the pages, "pages": {name: HTML}}
// stdout: [{"page", "tex", "message"}]
const fs = require("fs");
const path = require("path");

const job = JSON.parse(fs.readFileSync(0, "utf8"));
const faults = [];
let current = { page: null, tex: null };

function report(message) {
  faults.push({ ...current, message });
}

// An unclosed brace hides the end of a formula, so that MathJax sees no formula at all.
function unread(adaptor, document, items, page) {
  const seen = new Set();
  for (const item of items) {
    for (let node = item.start.node; node; node = adaptor.parent(node)) seen.add(node);
  }
  for (const element of adaptor.elementsByClass(adaptor.body(document.document), "math")) {
    current = { page, tex: adaptor.textContent(element) };
    if (!seen.has(element)) report("no formula found: is a brace left open?");
  }
}

function listed(packages, key) {
  return packages && !Array.isArray(packages) ? packages[key] || [] : [];
}

const given = job.config || {};
const tex = given.tex || {};
// In the browser, noundefined shows an unknown macro in red and noerrors a broken formula as its source.
const hiding = ["noundefined", "noerrors"];
const packages = Array.isArray(tex.packages)
  ? tex.packages.filter((name) => !hiding.includes(name))
  : { "[+]": listed(tex.packages, "[+]"), "[-]": [...listed(tex.packages, "[-]"), ...hiding] };
const loader = given.loader || {};

require(path.join(job.mathjax, "node-main.js"))
  .init({
    ...given,
    tex: {
      ...tex,
      packages,
      formatError: (jax, error) => {
        report(error.message);
        return jax.formatError(error);
      },
    },
    loader: {
      ...loader,
      paths: { ...loader.paths, mathjax: job.mathjax },
      load: ["input/tex", ...(loader.load || [])],
      require,
    },
    startup: { typeset: false },
  })
  .then(async (MathJax) => {
    const mathjax = MathJax._.mathjax.mathjax;
    for (const [page, html] of Object.entries(job.pages)) {
      const document = mathjax.document(html, {
        ...MathJax.config.options,
        InputJax: MathJax.startup.input,
      });
      document.findMath();
      const items = Array.from(document.math);
      unread(MathJax.startup.adaptor, document, items, page);
      for (const item of items) {
        current = { page, tex: item.math };
        // A macro of an extension makes MathJax load it and start the formula again.
        await mathjax.handleRetriesFor(() => item.compile(document));
      }
      const labels = MathJax.startup.input[0].parseOptions.tags.allLabels;
      for (const item of items) {
        current = { page, tex: item.math };
        for (const [macro, label] of item.math.matchAll(/\\(?:eq)?ref\s*\{([^}]*)\}/g)) {
          if (!(label in labels)) report(`${macro} refers to nothing that MathJax knows on this page`);
        }
      }
      MathJax.startup.input[0].reset();
    }
    process.stdout.write(JSON.stringify(faults));
  })
  .catch((error) => {
    process.stderr.write(`${(error && error.stack) || error}\n`);
    process.exit(1);
  });
