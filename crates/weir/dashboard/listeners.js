// A card for each listener: its state, the wait against its target and what came of its connections, over time.

import { Chart } from "./chart.js";
import { attributes, byId, clock, count, grouped, h, list, percent, rate, rows, text, time } from "./dom.js";

/** Cards at a time: a weir may have hundreds of listeners. */
const CARDS = 12;
/** Samples in the table of a card. */
const SAMPLES = 20;

const cards = new Map();

/** Draws the cards of the listeners whose names have the filter, with charts of so many samples. */
export function drawListeners(model, fits, places) {
  const all = model.status.listeners.filter((listener) => fits(listener.name, listener.address, listener.mode));
  const shown = busiest(model, all);
  list(byId("cards"), shown, (listener) => listener.name, make, (card, listener) => update(card, listener, model, places));
  for (const name of cards.keys()) {
    if (!shown.some((listener) => listener.name === name)) cards.delete(name);
  }
  const more = byId("more");
  const none = model.status.listeners.length === 0 ? "No listener is guarded: weir.toml has no [[listener]]." : "No listener has this in its name.";
  text(more, all.length === 0 ? none : `${count(all.length - shown.length, "listener")} more: the filter finds them by name.`);
  more.hidden = all.length > 0 && all.length === shown.length;
}

/** All of them in their order, or those with the most refusals and the longest waits. */
function busiest(model, listeners) {
  if (listeners.length <= CARDS) return listeners;
  const trouble = (listener) => {
    const samples = (model.history.get(listener.name) ?? []).slice(-60).filter((sample) => sample !== null);
    const refused = samples.reduce((sum, sample) => sum + (sample.refused ?? 0), 0);
    return (listener.in_force ? 0 : 1e12) + refused * 1e3 + (listener.wait_us ?? 0) / 1e3;
  };
  return [...listeners].sort((a, b) => trouble(b) - trouble(a) || a.name.localeCompare(b.name)).slice(0, CARDS);
}

function make(listener) {
  const wait = new Chart({
    name: "wait for accept()",
    series: [{ name: "", class: "wait", value: (sample) => sample.waitUs }],
    limit: (sample) => sample.targetUs,
    least: 1000,
    format: time,
  });
  const connections = new Chart({
    name: "connections/s",
    series: [
      { name: "admitted", class: "admitted", value: (sample) => sample.admitted },
      { name: "refused", class: "refused", value: (sample) => sample.refused },
    ],
    least: 10,
    format: rate,
  });
  const heads = ["Time", "Wait", "Target", "Queue", "Admitted/s", "Refused/s"];
  const looks = ["", "number", "number wide", "number", "number", "number"];
  const head = heads.map((name, at) => h("th", { scope: "col", class: looks[at] || null }, name));
  const table = h("table", {}, h("caption", { class: "sr" }, `The last samples of ${listener.name}, the newest first`),
    h("thead", {}, h("tr", {}, ...head)), h("tbody"));
  const details = h("details", {}, h("summary", {}, "The charts as a table"), h("div", { class: "table" }, table));
  const figures = h("dl", { class: "gauges" });
  const card = h("article", { class: "card" }, h("header", {}, h("h3", {}, listener.name), h("span", { class: "address" }), h("span", { class: "pill" })),
    figures, wait.element, connections.element, h("p", { class: "policy faint" }), details);
  cards.set(listener.name, { wait, connections, table, details });
  return card;
}

/** `enforce`, `observe`, or what is wrong with it. */
export function state(listener) {
  if (!listener.in_force) return { word: "not in force", class: "bad" };
  if (!listener.listening) return { word: "nothing listens", class: "notable" };
  return { word: listener.mode, class: listener.mode === "enforce" ? "good" : "notable" };
}

function update(card, listener, model, places) {
  const { wait, connections, table, details } = cards.get(listener.name);
  const samples = model.history.get(listener.name) ?? [];
  const pill = card.querySelector(".pill");
  const { word, class: look } = state(listener);
  text(pill, word);
  attributes(pill, { class: `pill ${look}` });
  text(card.querySelector(".address"), listener.address);
  text(card.querySelector(".policy"), listener.policy);
  card.setAttribute("aria-label", `Listener ${listener.name}`);
  const { admitted, refused } = model.sums(model.ofListener(listener));
  const target = model.targetUs(listener);
  const over = target !== null && (listener.wait_us ?? 0) > target;
  const gauges = [
    { key: "wait", value: time(listener.wait_us), more: target === null ? "" : `of ${time(target)}`, class: over ? "bad" : "" },
    { key: "queue", value: listener.listening ? grouped(listener.queue_length) : "-", more: listener.listening ? `of ${grouped(listener.queue_limit)}` : "",
      part: listener.queue_limit > 0 ? Math.min(1, listener.queue_length / listener.queue_limit) : 0 },
    { key: "admitted/s", value: rate(admitted), more: "" },
    { key: listener.mode === "observe" ? "would refuse/s" : "refused/s", value: rate(refused), more: refused > 0 ? percent(refused / (admitted + refused)) : "",
      class: refused > 0 ? "bad" : "" },
  ];
  list(card.querySelector(".gauges"), gauges, (gauge) => gauge.key, () => h("div", {}, h("dt"), h("dd", {}, h("b"), " ", h("small"))), (box, gauge) => {
    text(box.firstChild, gauge.key);
    text(box.querySelector("b"), gauge.value);
    text(box.querySelector("small"), gauge.more);
    attributes(box, { class: gauge.class || null });
    box.style.setProperty("--part", String(gauge.part ?? 0));
  });
  wait.draw(samples, places);
  connections.draw(samples, places);
  if (!details.open) return;
  const last = samples.filter((sample) => sample !== null).slice(-SAMPLES).reverse();
  rows(table, last, (sample) => String(sample.unixMs), (sample) => [clock(sample.unixMs), time(sample.waitUs), time(sample.targetUs),
    grouped(sample.queue), rate(sample.admitted), rate(sample.refused)], "No sample yet.");
}
