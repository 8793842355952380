"use strict";
// Runs in a page that holds another in a frame of the same origin; leaves what it found in #result.
const channel = (value) => {
  const part = value / 255;
  return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;  // WCAG 2.1, relative luminance
};
const rgba = (text) => {
  const parts = text.match(/[\d.]+/g);
  return parts ? parts.map(Number) : [0, 0, 0, 0];
};
const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const contrast = (a, b) => {
  const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (high + 0.05) / (low + 0.05);
};

function background(element, view) {
  for (let e = element; e; e = e.parentElement) {
    const colour = rgba(view.getComputedStyle(e).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
}

// Texts with less contrast than WCAG AA asks for: 4.5, of large ones 3.
function lowContrast(page, view) {
  const found = [], walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, style = view.getComputedStyle(element);
    if (!walker.currentNode.textContent.trim() || style.visibility === "hidden" || element.getClientRects().length === 0)
      continue;
    const is_drawn = element instanceof view.SVGElement;
    const ratio = contrast(rgba(is_drawn ? style.fill : style.color), background(is_drawn ? element.closest("svg").parentElement : element, view));
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5))
      found.push(`${walker.currentNode.textContent.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return found;
}

// What reaches beyond the page's right edge and does not scroll by itself.
function tooWide(page, view) {
  const found = [];
  if (page.documentElement.scrollWidth > view.innerWidth)
    found.push(`the page scrolls: ${page.documentElement.scrollWidth} of ${view.innerWidth} px`);
  for (const element of page.body.querySelectorAll("*"))
    if (!element.closest(".wide, .picture, details:not([open])") && element.getBoundingClientRect().right > view.innerWidth + 1)
      found.push(`${element.tagName} ${element.className}`);
  return found;
}

// Everything that can be operated takes the focus, and shows it.
function keyboard(page, view) {
  const found = [];
  for (const element of page.querySelectorAll("summary, a[href], .wide, figure[data-points]")) {
    if (element.closest("details:not([open])") && element.tagName !== "SUMMARY") continue;
    element.focus();
    if (page.activeElement !== element) found.push(`${element.tagName} ${element.className} takes no focus`);
  }
  return found;
}

function timeline(page, view) {
  const figure = page.querySelector("figure[data-points]");
  if (!figure) return null;
  const at = figure.querySelector(".at"), svg = figure.querySelector("svg"), said = [];
  figure.focus();
  for (const key of ["Home", "ArrowRight", "ArrowRight", "End", "ArrowLeft"]) {
    figure.dispatchEvent(new view.KeyboardEvent("keydown", {key, bubbles: true}));
    said.push(at.textContent);
  }
  const box = svg.getBoundingClientRect();
  svg.dispatchEvent(new view.PointerEvent("pointermove", {clientX: box.left + box.width / 2, clientY: box.top + 5, bubbles: true}));
  return {keys: said, hover: at.textContent, points: JSON.parse(figure.querySelector("script").textContent).length};
}

addEventListener("load", () => {
  const frame = document.querySelector("iframe"), page = frame.contentDocument, view = frame.contentWindow;
  const began = performance.now();
  page.body.getBoundingClientRect();
  const result = {
    errors: view.plimsollErrors, title: page.title, contrast: lowContrast(page, view), wide: tooWide(page, view),
    keyboard: keyboard(page, view), timeline: timeline(page, view),
    values: [...page.querySelectorAll("data")].slice(0, 400).map((e) => [e.value, e.textContent]),
    headings: [...page.querySelectorAll("h1,h2,h3")].map((e) => e.tagName),
    unnamed: [...page.querySelectorAll("svg")].filter((e) => !e.getAttribute("aria-label") && !e.closest("[aria-label]") && e.getAttribute("aria-hidden") !== "true").length,
    language: page.documentElement.lang, layout_milliseconds: performance.now() - began,
  };
  const out = document.createElement("pre");
  out.id = "result";
  out.textContent = JSON.stringify(result);
  document.body.append(out);
});
