// A card for each listener and QUIC listener: its state, the wait against its target and what came of its connections, over time.

import { Chart } from "./chart.js";
import { attributes, byId, clock, count, grouped, h, list, percent, rate, rows, text, time } from "./dom.js";

/** Cards at a time: a weir may have hundreds of listeners. */
const CARDS = 12;
/** Workloads of a card: the worst. Those that the filter finds come first. */
const WORKLOADS = 8;
/** Samples in the table of a card. */
const SAMPLES = 20;

const cards = new Map();

/** Draws the cards of the listeners whose names have the filter, with charts of so many samples. */
export function drawListeners(model, fits, places) {
  const names = (listener) => (listener.workloads ?? []).map((one) => one.name);
  const all = model.guarded().filter((listener) => fits(listener.name, listener.address, listener.mode, ...names(listener)));
  const shown = busiest(model, all);
  list(byId("cards"), shown, (listener) => listener.name, make, (card, listener) => {
    update(card, listener, model, places);
    drawWorkloads(cards.get(listener.name), listener, model, fits);
  });
  for (const name of cards.keys()) {
    if (!shown.some((listener) => listener.name === name)) cards.delete(name);
  }
  const more = byId("more");
  const none = model.guarded().length === 0 ? "No listener is guarded: weir.toml has no [[listener]] and no [[quic]]." : "No listener has this in its name.";
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
    name: listener.quic ? "wait for the answer" : "wait for accept()",
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
  const heads = ["Time", "Wait", "Target", listener.quic ? "Pending" : "Queue", "Admitted/s", "Refused/s"];
  const looks = ["", "number", "number wide", "number", "number", "number"];
  const head = heads.map((name, at) => h("th", { scope: "col", class: looks[at] || null }, name));
  const table = h("table", {}, h("caption", { class: "sr" }, `The last samples of ${listener.name}, the newest first`),
    h("thead", {}, h("tr", {}, ...head)), h("tbody"));
  const details = h("details", {}, h("summary", {}, "The charts as a table"), h("div", { class: "table" }, table));
  const places = h("table", {}, h("caption", { class: "sr" }, `Where ${listener.name} is guarded, the worst first`),
    h("thead", {}, h("tr", {}, ...["Workload", "State", "Queue", "Wait", "Admitted/s", "Refused/s"]
      .map((name, at) => h("th", { scope: "col", class: ["", "", "number wide", "number", "number wide", "number"][at] || null }, name)))), h("tbody"));
  const workloads = h("details", { class: "workloads", open: true, hidden: true }, h("summary"), h("div", { class: "table" }, places),
    h("p", { class: "faint more" }));
  const figures = h("dl", { class: "gauges" });
  const card = h("article", { class: "card" }, h("header", {}, h("h3", {}, listener.name), h("span", { class: "address" }), h("span", { class: "pill" })),
    figures, workloads, wait.element, connections.element, h("p", { class: "policy faint" }), details);
  cards.set(listener.name, { wait, connections, table, details, workloads, places });
  return card;
}

/** The places where a listener is guarded: containers, units, network namespaces. */
function drawWorkloads({ workloads, places }, listener, model, fits) {
  const all = model.workloads(listener);
  workloads.hidden = all.length === 0;
  if (all.length === 0) return;
  const off = all.filter(({ one }) => !one.in_force).length;
  text(workloads.querySelector("summary"), `${count(all.length, "workload")}${off > 0 ? `, ${grouped(off)} not in force` : ""}`);
  const found = [...all.filter(({ one }) => fits(one.name)), ...all.filter(({ one }) => !fits(one.name))];
  const shown = found.slice(0, WORKLOADS);
  const target = model.targetUs(listener);
  text(places.tHead.rows[0].cells[5], listener.mode === "observe" ? "Would refuse/s" : "Refused/s");
  rows(places, shown, ({ one }) => `${one.netns_cookie} ${one.name}`, ({ one, admitted, refused }) => {
    const { word, class: look } = state({ ...one, mode: listener.mode });
    const over = target !== null && (one.wait_us ?? 0) > target;
    return [
      { text: one.name, title: one.not_in_force_because ?? kind(one) },
      { text: word, class: look },
      one.listening ? `${grouped(one.queue_length)} of ${grouped(one.queue_limit)}` : "-",
      { text: time(one.wait_us), class: over ? "bad" : "" },
      rate(admitted),
      { text: rate(refused), class: refused > 0 ? "bad" : "" },
    ];
  }, "");
  const more = workloads.querySelector(".more");
  text(more, `${count(all.length - shown.length, "more workload")}: the filter finds them by name.`);
  more.hidden = all.length === shown.length;
}

/** `docker 3f2a9c0b3f2a`, `netns blue`, `nginx.service`. */
function kind(one) {
  if (one.runtime && one.container_id) return `${one.runtime} ${one.container_id.slice(0, 12)}`;
  return one.netns ? `netns ${one.netns}` : one.unit;
}

/** `enforce`, `observe`, or what is wrong with it. */
export function state(listener) {
  if (!listener.in_force) return { word: "not in force", class: "bad" };
  if (!listener.listening) return { word: "nothing listens", class: "notable" };
  return { word: listener.mode, class: listener.mode === "enforce" ? "good" : "notable" };
}

/** How long requests stay in the server, where weir watches that. */
function residence(listener) {
  const seen = listener.residence;
  if (!seen) return [];
  const upstream = typeof listener.residence_of === "number";
  const unheard = upstream && seen.listening === false;
  const where = upstream ? ` at port ${listener.residence_of}` : "";
  const figures = `${grouped(Math.round(seen.outstanding))} outstanding${where}${seen.queue_inside ? ", queue inside" : ""}`;
  const more = unheard ? `nobody listens${where}` : seen.blind ? "cannot be seen" : figures;
  return [{ key: "residence", value: unheard || seen.blind ? "-" : time(seen.residence_us), more, class: seen.queue_inside ? "bad" : "" }];
}

/** Who waits: in a listen queue; or for the answer of a server of QUIC, beside how full its receive buffer is. */
function waiting(listener) {
  const { quic, listening, queue_length: length, queue_limit: limit, buffer } = listener;
  if (quic) {
    return [
      { key: "pending", value: grouped(length), more: "not answered" },
      { key: "buffer", value: buffer === null ? "-" : percent(buffer), more: quic.room > 0 ? `of ${percent(quic.room)}` : "", part: Math.min(1, buffer ?? 0),
        class: quic.room > 0 && buffer > quic.room ? "bad" : "" },
    ];
  }
  return [{ key: "queue", value: listening ? grouped(length) : "-", more: listening ? `of ${grouped(limit)}` : "",
    part: limit > 0 ? Math.min(1, length / limit) : 0 }];
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
  const { admitted, refused } = model.fates(listener);
  const target = model.targetUs(listener);
  const over = target !== null && (listener.wait_us ?? 0) > target;
  const gauges = [
    { key: "wait", value: time(listener.wait_us), more: target === null ? "" : `of ${time(target)}`, class: over ? "bad" : "" },
    ...waiting(listener),
    { key: "admitted/s", value: rate(admitted), more: "" },
    { key: listener.mode === "observe" ? "would refuse/s" : "refused/s", value: rate(refused), more: refused > 0 ? percent(refused / (admitted + refused)) : "",
      class: refused > 0 ? "bad" : "" },
    ...residence(listener),
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
