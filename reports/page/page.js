"use strict";
// Reads the timeline under the pointer, or under the arrow keys, out loud and in words.
for (const figure of document.querySelectorAll("figure[data-points]")) {
  const points = JSON.parse(figure.querySelector("script").textContent);
  const svg = figure.querySelector("svg"), out = figure.querySelector(".at");
  const names = figure.dataset.names.split(","), [left, width, top, height] =
      figure.dataset.points.split(" ").map(Number);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  line.setAttribute("class", "mark");
  line.setAttribute("y1", top);
  line.setAttribute("y2", top + height);
  line.style.visibility = "hidden";
  svg.append(line);
  let at = -1;
  const text = (bytes) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    for (; bytes >= 1023.5 && unit < 4; ++unit) bytes /= 1024;
    return (unit === 0 ? bytes : bytes.toPrecision(bytes < 999.5 ? 3 : 4)) + " " + units[unit];
  };
  const show = (index) => {
    at = Math.max(0, Math.min(points.length - 1, index));
    const [phase, op, ...parts] = points[at];
    const x = left + width * (at + 0.5) / points.length;
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
    line.style.visibility = "visible";
    const sum = parts.reduce((a, b) => a + b, 0);
    const all = parts.map((bytes, i) => [bytes, names[i]]).filter(([bytes]) => bytes > 0)
                    .map(([bytes, name]) => `${name} ${text(bytes)}`);
    out.textContent = `${phase}, ${op}: ${text(sum)} (${all.join(", ")})`;
  };
  const index = (event) => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    return Math.floor((x - left) / width * points.length);
  };
  svg.addEventListener("pointermove", (event) => show(index(event)));
  svg.addEventListener("pointerdown", (event) => show(index(event)));
  figure.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.round(points.length / 20));
    const moves = {ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - page, PageDown: at + page,
                   Home: 0, End: points.length - 1};
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(moves[event.key]);
  });
}
