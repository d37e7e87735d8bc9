const DATA = JSON.parse(document.getElementById("data").textContent);
const UNLIKELY = 0.1; // a sampled action of less probability is a surprise
const TIE = 0.0015; // values are rounded to three digits
const byId = (id) => document.getElementById(id);
const text = (id) => DATA.strings[id];
let shown = []; // indices of the episodes that the filters let through
let episode = 0;
let step = 0;

// --- small tools --------------------------------------------------------------------------------

function element(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === "class") made.className = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function percent(value) {
  return value < 0.0005 ? "0 %" : `${(100 * value).toFixed(value > 0.9995 ? 0 : 1)} %`;
}

const words = (kind) => kind.replaceAll("_", " ");

// --- what a step says ---------------------------------------------------------------------------

function chosenProbability(at) {
  return at.p[at.a] / 1000;
}

// The largest Q; a value that is not a number is null, and no value is undefined.
function largest(at) {
  const values = (at.q || []).filter((value) => value !== null);
  return values.length ? Math.max(...values) : undefined;
}

const isNumber = (value) => value !== undefined && value !== null;
const shownValue = (value) => (value === null ? "not a number" : value.toFixed(3));

function againstCritic(at) {
  return isNumber(at.q?.[at.a]) && largest(at) - at.q[at.a] > TIE;
}

function isUnlikely(at) {
  return chosenProbability(at) < UNLIKELY;
}

const isSurprise = (at) => isUnlikely(at) || againstCritic(at);

const runsOf = (index) => DATA.episodes[index].runs;
const anyStep = (index, test) => runsOf(index).some((run) => run.steps.some(test));
const least = (index) => Math.min(...runsOf(index).flatMap((r) => r.steps.map(chosenProbability)));
const longest = (index) => Math.max(...runsOf(index).map((run) => run.steps.length));

// --- the list -----------------------------------------------------------------------------------

const several = DATA.agents.length > 1;
const OUTCOMES = {
  "all": () => true,
  "success": (runs) => runs.every((run) => run.success),
  "failure": (runs) => runs.every((run) => !run.success),
};
if (several) {
  OUTCOMES[`only ${DATA.agents[0].name}`] = (r) => r[0].success && !r[1].success;
  OUTCOMES[`only ${DATA.agents[1].name}`] = (r) => r[1].success && !r[0].success;
}
const SURPRISES = {
  "all": () => true,
  "unlikely action (under 10 %)": (index) => anyStep(index, isUnlikely),
  "not the largest Q": (index) => anyStep(index, againstCritic),
  "unlikely and not the largest Q": (i) => anyStep(i, (at) => isUnlikely(at) && againstCritic(at)),
};
const ORDERS = {
  "as played": () => 0,
  "most surprising first": (a, b) => least(a) - least(b),
  "longest first": (a, b) => longest(b) - longest(a),
};

const FILTERS = ["outcome", "kind", "surprise", "order"];

// The options of a filter, and the one that the address names: a reload keeps what was chosen.
function fill(id, names, chosen) {
  byId(id).replaceChildren(...names.map((name) => element("option", { value: name }, words(name))));
  if (names.includes(chosen)) byId(id).value = chosen;
  byId(id).addEventListener("change", filter);
}

function filter() {
  const outcome = OUTCOMES[byId("outcome").value];
  const surprise = SURPRISES[byId("surprise").value];
  const kind = byId("kind").value;
  shown = [...DATA.episodes.keys()].filter((index) => {
    const of = DATA.kinds[DATA.episodes[index].kind];
    return outcome(runsOf(index)) && (kind === "all" || kind === of) && surprise(index);
  });
  shown.sort(ORDERS[byId("order").value]);
  byId("count").textContent = `${shown.length} of ${DATA.episodes.length} episodes`;
  byId("episodes").replaceChildren(...shown.map(listed));
  if (shown.length && !shown.includes(episode)) return open(shown[0]);
  mark();
  draw();
}

function listed(index) {
  const { goal, kind, runs } = DATA.episodes[index];
  const signs = runs.map((run) =>
    element("span", { class: run.success ? "good" : "bad" }, run.success ? "✓" : "✗"));
  const outcome = runs.map((run) => (run.success ? "success" : "failure")).join(", ");
  const note = `${words(DATA.kinds[kind])}, ${runs.map((r) => r.steps.length).join(" and ")} steps, ` +
    `least likely ${percent(least(index))}`;
  const button = element(
    "button", { "data-index": index, type: "button" },
    element("span", { class: "mark", "aria-hidden": "true" }, ...signs),
    element("span", {}, text(goal), element("span", { class: "hidden" }, ` (${outcome})`)),
    element("span", { class: "note" }, note),
  );
  button.addEventListener("click", () => open(index));
  return element("li", {}, button);
}

function mark() {
  for (const button of byId("episodes").querySelectorAll("button")) {
    const current = Number(button.dataset.index) === episode;
    button.setAttribute("aria-current", current);
    if (current) button.scrollIntoView({ block: "nearest" });
  }
}

// --- a run --------------------------------------------------------------------------------------

function bar(kind, from, to) {
  const style = `left: ${100 * from}%; width: ${Math.max(100 * (to - from), 0)}%`;
  return element("td", { class: "bar", "aria-hidden": "true" },
    element("div", { class: "track" }, element("div", { class: `fill ${kind}`, style })));
}

function candidates(run, at) {
  const values = run.steps.flatMap((other) => other.q || []);
  const low = values.reduce((a, b) => Math.min(a, b), 0);
  const span = values.reduce((a, b) => Math.max(a, b), 0) - low || 1;
  const best = largest(at);
  const order = [...at.c.keys()].sort((a, b) => at.p[b] - at.p[a]);
  const rows = order.map((index) => {
    const chosen = index === at.a;
    const p = at.p[index] / 1000;
    const name = element("th", { scope: "row" }, (chosen ? "▸ " : "") + text(at.c[index]));
    if (chosen) name.append(element("span", { class: "hidden" }, " (chosen)"));
    const row = element("tr", chosen ? { class: "chosen" } : {}, name,
      element("td", { class: "number" }, percent(p)), bar("", 0, p));
    if (at.q) {
      const q = at.q[index];
      const [from, to] = [(Math.min(q, 0) - low) / span, (Math.max(q, 0) - low) / span];
      const isLargest = isNumber(q) && best - q <= TIE;
      const number = element("td", { class: "number" + (isLargest ? " largest" : "") }, shownValue(q));
      if (isLargest) number.append(element("span", { class: "hidden" }, " (largest)"));
      row.append(number, bar("value", from, to));
    }
    return row;
  });
  const heads = ["Candidate", "Prob.", ""].concat(at.q ? ["Q", ""] : []);
  return element("table", {},
    element("caption", {}, "Candidates, the likeliest first; the chosen one is marked ▸, the largest Q bold"),
    element("thead", {}, element("tr", {}, ...heads.map((head) =>
      head ? element("th", { scope: "col" }, head) : element("td", {})))),
    element("tbody", {}, ...rows));
}

function facts(run, at) {
  const list = element("ul", { class: "facts" });
  const add = (words, kind = "") => list.append(element("li", { class: kind }, words));
  add(`reward ${at.r}`, at.r > 0 ? "strong good" : "");
  if (at.v !== undefined) add(`state value ${shownValue(at.v)}`);
  if (isUnlikely(at)) add(`unlikely action: ${percent(chosenProbability(at))}`, "strong bad");
  if (againstCritic(at)) {
    const best = at.q.indexOf(largest(at));
    add(`largest Q: ${text(at.c[best])} (+${(at.q[best] - at.q[at.a]).toFixed(3)})`, "strong");
  }
  if (at === run.steps.at(-1)) {
    const ended = run.over ? "ended without success" : "the record breaks off";
    add(run.success ? "goal reached" : ended, run.success ? "strong good" : run.over ? "strong bad" : "");
  }
  return list;
}

const namesGoals = [...DATA.episodes.keys()].some((index) => anyStep(index, (at) => at.n.length));

function named(run, at) {
  const list = element("ul", { class: "named" }, ...at.n.map((id) => element("li", {}, text(id))));
  const title = run.objects // of Playground-Text, which has a social partner
    ? `The social partner then named ${at.n.length || "nothing"}`
    : `Goals that the step reached: ${at.n.length || "none"}`;
  return element("div", { class: "section" }, element("h3", {}, title), list);
}

function prompt(agent, at, goal) {
  const slots = { goal, observation: at.o.map(text).join("\n") };
  return agent.template.replace(/\{(goal|observation)\}/g, (_, slot) => slots[slot]);
}

function drawRun(run, agent, goal) {
  const over = step >= run.steps.length;
  const at = run.steps[Math.min(step, run.steps.length - 1)];
  const about = over ? `ended after ${run.steps.length} steps` : run.success ? "reaches the goal"
    : run.over ? "does not reach the goal" : `does not reach the goal in ${run.steps.length} steps`;
  const title = element("h3", {}, agent.name, element("span", { class: "muted" }, ` ${about}`));
  const seen = element("div", {});
  if (run.objects) seen.append(drawScene(run.objects, at));
  seen.append(element("div", { class: "section" }, element("h3", {}, "Prompt of this step"),
    element("pre", { tabindex: "0" }, prompt(agent, at, goal))));
  const done = element("div", {}, candidates(run, at), facts(run, at));
  if (namesGoals) done.append(named(run, at));
  return element("section", { class: "run", "aria-label": agent.name }, title,
    element("div", { class: "parts section" }, seen, done));
}

// --- stepping -----------------------------------------------------------------------------------

function draw() {
  const { goal, kind, runs } = DATA.episodes[episode];
  const length = longest(episode);
  byId("goal").textContent = text(goal);
  byId("about-episode").textContent = `episode ${episode + 1}, ${words(DATA.kinds[kind])}`;
  byId("where").textContent = `Step ${step + 1} of ${length}`;
  byId("runs").className = several ? "runs two" : "runs";
  byId("runs").replaceChildren(...runs.map((run, i) => drawRun(run, DATA.agents[i], text(goal))));
  byId("first").disabled = byId("back").disabled = step === 0;
  byId("last").disabled = byId("forward").disabled = step === length - 1;
  const chosen = FILTERS.filter((id) => byId(id).selectedIndex > 0).map((id) => [id, byId(id).value]);
  const query = new URLSearchParams(chosen).toString();
  const place = `#${episode + 1}.${step + 1}${query && `&${query}`}`;
  if (location.hash !== place) history.replaceState(null, "", place);
}

function go(to) {
  step = Math.max(0, Math.min(to, longest(episode) - 1));
  draw();
}

function open(index, at = 0) {
  episode = index;
  go(at);
  mark();
}

function neighbour(by) {
  const place = shown.indexOf(episode) + by;
  if (place >= 0 && place < shown.length) open(shown[place]);
}

function nextSurprise() {
  for (let at = step + 1; at < longest(episode); at += 1) {
    if (runsOf(episode).some((run) => run.steps[at] && isSurprise(run.steps[at]))) return go(at);
  }
  const place = shown.indexOf(episode);
  for (const index of [...shown.slice(place + 1), ...shown.slice(0, place + 1)]) {
    const steps = runsOf(index).flatMap((run) => run.steps.flatMap((at, i) => (isSurprise(at) ? [i] : [])));
    if (steps.length) return open(index, Math.min(...steps));
  }
  byId("where").textContent = "No surprise";
}

const KEYS = {
  ArrowLeft: () => go(step - 1), ArrowRight: () => go(step + 1),
  Home: () => go(0), End: () => go(Infinity),
  j: () => neighbour(1), k: () => neighbour(-1), s: nextSurprise,
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, pre")) return;
  const act = KEYS[event.key];
  if (act) { event.preventDefault(); act(); }
});

byId("first").addEventListener("click", () => go(0));
byId("back").addEventListener("click", () => go(step - 1));
byId("forward").addEventListener("click", () => go(step + 1));
byId("last").addEventListener("click", () => go(Infinity));
byId("next-surprise").addEventListener("click", nextSurprise);

byId("about").textContent = DATA.about;
if (matchMedia("(max-width: 46rem)").matches) document.querySelector(".list").open = false;
const [wanted, wantedStep] = location.hash.slice(1).split("&")[0].split(".").map(Number);
const asked = new URLSearchParams(location.hash.split("&").slice(1).join("&"));
const kinds = DATA.kinds.filter((_, index) => DATA.episodes.some(({ kind }) => kind === index));
const valued = [...DATA.episodes.keys()].some((index) => anyStep(index, (at) => at.q));
const surprises = Object.keys(SURPRISES).filter((name) => valued || !name.includes("Q"));
fill("outcome", Object.keys(OUTCOMES), asked.get("outcome"));
fill("kind", ["all", ...kinds], asked.get("kind"));
fill("surprise", surprises, asked.get("surprise"));
fill("order", Object.keys(ORDERS), asked.get("order"));
if (wanted >= 1 && wanted <= DATA.episodes.length) {
  episode = wanted - 1;
  step = Math.max(0, Math.min((wantedStep || 1) - 1, longest(episode) - 1));
}
filter();
