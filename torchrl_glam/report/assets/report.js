"use strict";

// Values under the pointer: of each line of a chart the point nearest to it. The page says everything
// without this script too, in the tables.

const SVG = "http://www.w3.org/2000/svg";

function pointsOf(line) {
  const [x, y] = [line.dataset.x.split(" "), line.dataset.y.split(" ")];
  return [...line.points].map((at, index) => ({ at, x: x[index], y: y[index] }));
}

const distance = (point, x) => Math.abs(point.at.x - x);
const nearest = (points, x) => points.reduce((a, b) => (distance(b, x) < distance(a, x) ? b : a));

function dot(line, at) {
  const made = document.createElementNS(SVG, "circle");
  const colour = [...line.classList].find((name) => /^l\d$/.test(name));
  made.setAttribute("class", `dot ${colour}`);
  made.setAttribute("cx", at.x);
  made.setAttribute("cy", at.y);
  made.setAttribute("r", 2.6);
  return made;
}

for (const chart of document.querySelectorAll("svg.chart")) {
  const stretches = [...chart.querySelectorAll("polyline")];
  for (const line of stretches) {
    if (line.classList.contains("marked") || line.points.length === 1) {
      chart.append(...[...line.points].map((at) => dot(line, at)));
    }
  }
  const lines = new Map(); // a line with gaps has several stretches
  for (const line of stretches) {
    lines.set(line.dataset.label, [...(lines.get(line.dataset.label) || []), ...pointsOf(line)]);
  }
  const values = chart.parentElement.querySelector(".values");
  const pointer = chart.querySelector(".pointer");
  if (!lines.size) continue;

  function show(event) {
    const x = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse()).x;
    const found = [...lines].map(([label, points]) => ({ label, ...nearest(points, x) }));
    const first = nearest(found, x);
    const told = found.map(({ label, x, y }) => `${label} ${y}${x === first.x ? "" : ` (at ${x})`}`);
    values.replaceChildren(...[`at ${first.x}`, ...told].map((text) => {
      const item = document.createElement("li");
      item.textContent = text;
      return item;
    }));
    values.hidden = false;
    values.style[first.at.x > 228 ? "left" : "right"] = "1rem"; // away from the pointer
    values.style[first.at.x > 228 ? "right" : "left"] = "auto";
    pointer.setAttribute("transform", `translate(${first.at.x} 0)`);
    pointer.setAttribute("visibility", "visible");
  }

  chart.addEventListener("pointermove", show);
  chart.addEventListener("pointerdown", show);
  chart.addEventListener("pointerleave", () => {
    values.hidden = true;
    pointer.setAttribute("visibility", "hidden");
  });
}
