// The life of connections as a river: it comes in as SYNs, and what each stage turns away falls out of it.
// One ribbon a stage; they meet at the edges of their boxes. In a narrow window the river runs down the left edge.

import { attributes, byId, count, grouped, h, list, rate, s, text } from "./dom.js";

/** The stages, and the question that each answers (docs/architecture.md). */
const STAGES = [
  ["police", "May this SYN come in at all?"],
  ["establish", "Is there room?"],
  ["queue", "Who is accepted first?"],
  ["server", "Accepted and served"],
  ["close", "Is a half-closed one worth work?"],
  ["timewait", "Who remembers it?"],
];

/** A stream that is there at all is as wide as this, in px. */
const LEAST = 2;
/** From the edge of its box to the river, and how a stream that leaves it bends, in px. */
const BANK = 8;
const BEND = 14;
/** What a stream falls through below the river, in px. */
const FALL = 34;

let number = 0;

/** Draws the flow of the model's listener of this name (null: of all). */
export function drawFlow(place, model, name) {
  const flow = model.flow(name);
  const chosen = model.status.listeners.filter((listener) => name === null || listener.name === name);
  const refuses = (listener) => [...model.refuses].some((verdict) => listener.counters[verdict] > 0);
  const observed = chosen.filter((listener) => listener.mode === "observe" && refuses(listener)).map((listener) => listener.name);
  byId("observed").hidden = observed.length === 0;
  place.classList.toggle("observed", chosen.length > 0 && observed.length === chosen.length);
  text(byId("observed"), `${observed.slice(0, 5).join(", ")}${observed.length > 5 ? ", …" : ""}: mode observe. What falls out here would be refused, and is let in.`);
  const most = flow ? Math.max(flow.police.in, 1) : 1;
  list(place, STAGES, ([stage]) => stage, make, (box, [stage]) => {
    const figures = flow?.[stage];
    box.classList.toggle("unknown", !figures);
    update(box, stage, figures, most, model);
  });
}

function make([stage, question]) {
  const id = `fall-${(number += 1)}`;
  const fade = s("linearGradient", { id, gradientUnits: "userSpaceOnUse" }, s("stop", { class: "near" }), s("stop", { class: "far", offset: 1 }));
  const river = s("svg", { "aria-hidden": "true", class: "river" }, s("defs", {}, fade), s("path", { class: "leave", fill: `url(#${id})` }),
    s("path", { class: "run" }), s("path", { class: "drift" }));
  return h("li", { class: `stage ${stage}` }, h("div", { class: "gate" }, h("h3", {}, stage), h("p", { class: "faint" }, question)),
    river, h("div", { class: "figures" }, h("p", { class: "through" }), h("ul", { class: "left" }), h("ul", { class: "state" })));
}

function update(box, stage, figures, most, model) {
  const through = box.querySelector(".through");
  if (!figures) {
    text(through, "…");
    return;
  }
  draw(box.querySelector("svg"), figures, most);
  text(through, label(stage, figures));
  list(box.querySelector(".left"), figures.leave, (verdict) => verdict.name, () => h("li", {}, h("b"), " ", h("span")), (item, verdict) => {
    text(item.firstChild, `${rate(verdict.rate)}/s`);
    text(item.lastChild, verdict.name);
    attributes(item, { title: verdict.text });
  });
  const lines = state(stage, figures, model);
  list(box.querySelector(".state"), lines, (line) => line.key, () => h("li"), (item, line) => {
    text(item, line.text);
    attributes(item, { class: line.class ?? null, title: line.title ?? null });
  });
}

function label(stage, { in: come, out: go }) {
  switch (stage) {
    case "police": return `${rate(come)} SYNs/s`;
    case "establish": return `${rate(go)}/s let in`;
    case "queue": return `${rate(come)}/s queue`;
    case "server": return `≈ ${rate(go)}/s accepted`;
    default: return `≈ ${rate(go)}/s`;
  }
}

/** What a stage holds, beside what goes through it. */
function state(stage, figures, model) {
  const lines = [];
  const line = (key, text, look, title) => lines.push({ key, text, class: look, title });
  if (stage === "police") {
    const held = model.held();
    if (held.length > 0) {
      line("held", `control holds ${count(held.length, "class", "classes")}`, "control", held.map((one) => `${one.name}: ${one.reason}`).join("\n"));
    }
  }
  if (stage === "establish") {
    if (figures.cookies > 0) line("cookies", `${rate(figures.cookies)}/s SYN cookies`, "notable");
    line("half", `${grouped(figures.halfOpen)} half-open`);
  }
  if (stage === "queue") line("waits", `${grouped(figures.waits)} of ${grouped(figures.places)} places taken`);
  if (stage === "server") {
    const proxies = model.status.proxies.map((proxy) => model.ofProxy(proxy)).filter(Boolean);
    const requests = proxies.reduce((sum, one) => sum + ["requests", "tunnels"].reduce((more, name) => more
      + Math.max(0, ((one.now[name] ?? 0) - (one.before[name] ?? 0)) / one.seconds), 0), 0);
    if (proxies.length > 0) line("transfer", `transfer: ${rate(requests)}/s by weir proxy`);
  }
  if (stage === "timewait") {
    line("here", `${grouped(figures.held)} records here`);
    if (figures.heldByPeer > 0) line("peer", `${grouped(figures.heldByPeer)} held by the peer`);
    if (figures.avoided > 0) line("avoided", `${grouped(figures.avoided)} avoided here`);
    if (figures.refused > 0) line("refused", `${grouped(figures.refused)} refused`, "bad");
  }
  return lines;
}

/** The ribbon in its box: what comes in, what goes on, and between them what leaves. */
function draw(svg, { in: come, out: go }, most) {
  const box = svg.getBoundingClientRect();
  const down = box.height > box.width;
  const [length, across] = down ? [box.height, box.width] : [box.width, box.height];
  const wide = (value) => (value > 0 ? Math.max(LEAST, (value / most) * (across - BANK - FALL)) : 0);
  const [rest, all] = [BANK + wide(go), BANK + wide(come)];
  // A point along and across the river, however it runs.
  const at = (along, over) => (down ? `${over.toFixed(1)} ${along.toFixed(1)}` : `${along.toFixed(1)} ${over.toFixed(1)}`);
  attributes(svg, { viewBox: `0 0 ${box.width} ${box.height}` });
  const run = go > 0 ? `M${at(0, BANK)}L${at(length, BANK)}L${at(length, rest)}L${at(0, rest)}Z` : "";
  attributes(svg.querySelector(".run"), { d: run });
  // Round the bend and out across the bank; the outer edge is that of what stays.
  const bend = length * 0.28;
  const [near, far] = [bend + BEND, bend + BEND + Math.max(0, all - rest)];
  const out = `M${at(0, rest)}L${at(bend, rest)}Q${at(far, rest)} ${at(far, all + BEND)}L${at(far, across)}L${at(near, across)}`
    + `L${at(near, all + BEND)}Q${at(near, all)} ${at(bend, all)}L${at(0, all)}Z`;
  attributes(svg.querySelector(".leave"), { d: all > rest ? out : "" });
  const [x1, y1, x2, y2] = down ? [all, 0, across, 0] : [0, all, 0, across];
  attributes(svg.querySelector("linearGradient"), { x1, y1, x2, y2 });
  const drift = svg.querySelector(".drift");
  const middle = (BANK + rest) / 2;
  attributes(drift, { d: go > 0 ? `M${at(0, middle)}L${at(length, middle)}` : "" });
  // From a drop now and then to a race.
  const seconds = Math.min(6, Math.max(0.7, 6 - Math.log10(go + 1) * 1.5));
  drift.style.setProperty("--pace", `${seconds.toFixed(1)}s`);
}
