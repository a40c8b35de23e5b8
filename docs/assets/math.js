// Formulas: pymdownx.arithmatex marks them, KaTeX draws them, on every page that is shown.
document$.subscribe(() => {
  for (const place of document.querySelectorAll(".arithmatex")) {
    const text = place.textContent;
    if (!/^\\[([]/.test(text)) continue;
    katex.render(text.slice(2, -2), place, { displayMode: text.startsWith("\\["), throwOnError: false });
  }
});
