"use strict";

// A state of Playground-Text as a picture; viewer.js calls drawScene.

const SVG = "http://www.w3.org/2000/svg";

function thing(name, x, y, size) {
  const [colour, kind] = name.split(" ");
  return `<g class="thing" style="color: var(--${colour})" ` +
    `transform="translate(${x - size / 2} ${y - size / 2}) scale(${size / 48})">` +
    `${DRAWINGS.things[kind]}</g>`;
}

function star(x, y) {
  return `<g class="star" transform="translate(${x} ${y})">${DRAWINGS.star}</g>`;
}

function sceneWords(names, at) {
  const slot = (index) => (index < 0 ? "nothing" : names[index]);
  const grown = at.g.map((index) => names[index]).join(", ") || "nothing";
  return `In the room: ${names.join(", ")}. The agent is on ${slot(at.on)} and holds ` +
    `${slot(at.h)}. Grown: ${grown}.`;
}

// Objects in a row whose names can be read; at least three.
function fitting() {
  const beside = innerWidth > 960 ? (several ? 0.5 : 0.45) : 1; // as viewer.css has it
  return Math.max(3, Math.floor((byId("runs").clientWidth * beside) / 88));
}

function drawScene(objects, at) {
  const names = objects.map(text);
  const columns = Math.min(names.length <= 4 ? 4 : Math.ceil(Math.sqrt(names.length * 1.4)), fitting(), names.length);
  const rows = Math.ceil(names.length / columns);
  const [wide, high, floor] = [104, 104, 64];
  const [width, height] = [Math.max(columns, 3) * wide, rows * high + floor];
  const left = (width - columns * wide) / 2;
  let drawn = "";
  let agent = [width / 2, height - 34];
  let side = 1;
  names.forEach((name, slot) => {
    const x = left + (slot % columns) * wide + wide / 2;
    const y = Math.floor(slot / columns) * high + 46;
    if (slot === at.h) {
      drawn += `<rect class="gap" x="${x - 24}" y="${y - 24}" width="48" height="48" rx="6"/>`;
      drawn += `<text x="${x}" y="${y + 4}">held</text><text x="${x}" y="${y + 46}">${name}</text>`;
      return;
    }
    const grown = at.g.includes(slot);
    if (slot === at.on) {
      drawn += `<ellipse class="here" cx="${x}" cy="${y}" rx="48" ry="35"/>`;
      side = slot % columns === columns - 1 ? -1 : 1; // there is no room on the right
      agent = [x + 32 * side, y + 8];
    }
    drawn += thing(name, x, y, grown ? 62 : 46) + (grown ? star(x - 34, y - 26) : "");
    drawn += `<text x="${x}" y="${y + 46}">${name}</text>`;
  });
  drawn += `<g class="agent" transform="translate(${agent.join(" ")})">${DRAWINGS.agent}</g>`;
  if (at.h >= 0) {
    const grown = at.g.includes(at.h);
    drawn += thing(names[at.h], agent[0] + 28 * side, agent[1] - 2, grown ? 36 : 28);
    drawn += grown ? star(agent[0] + 48 * side, agent[1] - 18) : "";
  }
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("class", "scene");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", sceneWords(names, at));
  svg.innerHTML = drawn;
  return svg;
}
