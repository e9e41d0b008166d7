// The parts below the charts, and the head above them: each draws what the model has into its place.

import { attributes, bits, byId, clock, count, duration, grouped, h, list, percent, rate, rows, text, time } from "./dom.js";
import { notes, rateOf, rates } from "./model.js";

/** Rows of a table at most. */
const ROWS = 50;
const DECISIONS = 12;
const EVENTS = 100;

/** Whom it is about, and how it is, in a sentence. Gives what a screen reader is to be told when it changes. */
export function drawHead(model) {
  const { status } = model;
  const { process } = status;
  text(byId("about"), process ? `${process.command}, version ${process.version}, for ${duration(model.now.unixMs - process.started_unix_ms)}` : "");
  const { kind, words } = headline(model);
  text(byId("headline"), words);
  attributes(byId("headline"), { class: kind });
  drawSums(model);
  const all = notes(status);
  list(byId("notes"), all, (note) => note.text, () => h("li"), (item, note) => {
    text(item, note.text);
    attributes(item, { class: note.grave ? "bad" : "notable" });
  });
  byId("notes").hidden = all.length === 0;
  return kind;
}

/** How it is, in a sentence, and in a word. */
function headline(model) {
  const { proxies, shapes } = model.status;
  const listeners = model.guarded();
  if (listeners.length === 0) {
    const else_ = [proxies.length > 0 ? count(proxies.length, "proxy", "proxies") : null, shapes.length > 0 ? count(shapes.length, "shaped interface") : null].filter(Boolean);
    return { kind: "idle", words: `Nothing is guarded here${else_.length > 0 ? `; there is ${else_.join(" and ")}` : ""}.` };
  }
  const off = listeners.filter((listener) => !listener.in_force);
  if (off.length === listeners.length) return { kind: "bad", words: "Nothing is in force: weir is attached to none of the listeners' interfaces." };
  const sums = listeners.map((listener) => ({ listener, ...model.fates(listener) }));
  const refusing = sums.filter((one) => one.refused > 0).sort((a, b) => b.refused - a.refused);
  if (off.length > 0 && refusing.length === 0) return { kind: "bad", words: `${count(off.length, "listener is", "listeners are")} not in force.` };
  if (refusing.length === 0) {
    const waits = listeners.map((listener) => listener.wait_us ?? 0);
    const what = model.status.quic?.length > 0 ? "longest wait" : "longest wait for accept()";
    return { kind: "good", words: `All connections are let in; the ${what} is ${time(Math.max(...waits))}.` };
  }
  const [{ listener, admitted, refused }] = refusing;
  const verb = listener.mode === "observe" ? "would turn away" : "turns away";
  const target = model.targetUs(listener);
  const wait = target === null || (listener.wait_us ?? null) === null ? "" : `; those let in wait ${time(listener.wait_us)}, the target is ${time(target)}`;
  const more = refusing.length > 1 ? ` ${count(refusing.length - 1, "other listener refuses", "other listeners refuse")} too.` : "";
  return { kind: listener.mode === "observe" ? "notable" : "busy", words: `${listener.name} ${verb} ${percent(refused / (admitted + refused))} of its connections${wait}.${more}` };
}

function drawSums(model) {
  const { proxies } = model.status;
  const listeners = model.guarded();
  const sums = listeners.map((listener) => model.fates(listener));
  const add = (field) => (sums.some((one) => one[field] === null) ? null : sums.reduce((sum, one) => sum + one[field], 0));
  const [admitted, refused] = [add("admitted"), add("refused")];
  const held = model.held().length;
  const boxes = [
    { key: "admitted/s", value: rate(admitted) },
    { key: "refused/s", value: rate(refused), class: refused > 0 ? "bad" : "" },
    { key: "waiting", value: grouped(listeners.reduce((sum, listener) => sum + listener.queue_length, 0)) },
    { key: "classes held", value: grouped(held), class: held > 0 ? "control" : "" },
    { key: "in force", value: `${listeners.filter((listener) => listener.in_force).length} of ${listeners.length}`,
      class: listeners.every((listener) => listener.in_force) ? "" : "bad" },
  ];
  if (proxies.length > 0) {
    const backends = proxies.flatMap((proxy) => proxy.backends);
    const down = backends.filter((backend) => backend.health === "down").length;
    boxes.push({ key: "backends down", value: `${down} of ${backends.length}`, class: down > 0 ? "bad" : "" });
  }
  list(byId("sums"), boxes, (box) => box.key, () => h("div", {}, h("dt"), h("dd")), (element, box) => {
    text(element.firstChild, box.key);
    text(element.lastChild, box.value);
    attributes(element, { class: box.class || null });
  });
}

/** The picture of the flow as a table: every verdict that has fallen. */
export function drawVerdicts(model, whose, fits) {
  const rowsOf = (listener) => {
    const interval = model.ofListener(listener);
    return model.verdicts.filter((verdict) => listener.counters[verdict.name] > 0).map((verdict) => ({
      listener: listener.name, verdict, count: listener.counters[verdict.name], rate: interval ? rateOf(interval, verdict.name) : null,
    }));
  };
  const listeners = model.guarded().filter((listener) => (whose === null || listener.name === whose) && fits(listener.name));
  rows(byId("verdicts"), listeners.flatMap(rowsOf), (row) => `${row.listener} ${row.verdict.name}`, (row) => [
    row.listener,
    row.verdict.stage,
    { text: row.verdict.name, class: row.verdict.kind === "refuse" ? "bad" : "", title: row.verdict.text },
    grouped(row.count),
    rate(row.rate),
    row.verdict.text,
  ], "No connection has come yet.");
}

/** Interfaces that weir shapes. */
export function drawShapes(model) {
  const { shapes } = model.status;
  byId("shapes").hidden = shapes.length === 0;
  const sent = (shape, field) => shape.queues.reduce((sum, queue) => sum + queue[field], 0);
  list(byId("shapes"), shapes, (shape) => `${shape.dev} ${shape.direction}`, () => h("li"), (item, shape) => {
    const before = model.guardBefore?.shapes.find((other) => other.dev === shape.dev && other.direction === shape.direction);
    const per = (field) => (before ? Math.max(0, sent(shape, field) - sent(before, field)) / model.seconds : null);
    const bytes = per("sent_bytes");
    text(item, `shape ${shape.dev} (${shape.direction}): ${bytes === null ? "-" : bits(bytes * 8)} of ${bits(shape.rate_bits_per_s)}, ${shape.discipline} (${shape.backend}), `
      + `${grouped(sent(shape, "waiting_packets"))} packets wait, ${rate(per("dropped_packets"))}/s dropped`);
  });
}

/** The controller: its objective, whom it holds and why, and its decisions. */
export function drawController(model, fits) {
  const { controller } = model.status;
  const table = byId("decisions");
  const decisions = (controller?.decisions ?? []).filter((decision) => fits(decision.class, decision.reason)).slice(-DECISIONS).reverse();
  if (!controller) {
    text(byId("objective"), "There is no controller: add [controller] with target_wait = \"20ms\" to the config.");
  } else {
    const aims = [controller.target_wait ? `wait ${controller.target_wait}` : null, controller.max_cpu !== null ? `CPU ${percent(controller.max_cpu)}` : null].filter(Boolean);
    const { cpu, cgroup_cpu: cgroup } = controller.statistics;
    const sees = [cpu === null ? null : `CPU ${percent(cpu)}`, cgroup === null ? null : `its cgroup ${percent(cgroup)}`].filter(Boolean);
    const mode = controller.mode === "observe" ? " Mode observe: it only says what it would do." : "";
    text(byId("objective"), `Keeps ${aims.join(" and ")}${sees.length > 0 ? `; sees ${sees.join(", ")}` : ""}.${mode}`);
  }
  const held = model.held().filter((one) => fits(one.name));
  list(byId("held"), held, (one) => one.name, () => h("li", {}, h("b"), " ", h("span")), (item, one) => {
    text(item.firstChild, `${one.name} held at ${rate(one.controlled_rate)}/s`);
    text(item.lastChild, one.reason ?? "");
  });
  byId("held").hidden = held.length === 0;
  const limit = (value) => (value === null ? "none" : rate(value));
  rows(table, decisions, (decision) => `${decision.at_unix_ms} ${decision.class}`, (decision) => [
    clock(decision.at_unix_ms),
    decision.class,
    { text: `${limit(decision.from)} → ${limit(decision.to)}`, class: decision.to === null ? "good" : "control" },
    decision.observed ? `${decision.reason} (observed)` : decision.reason,
  ], controller ? "It has held no class yet." : "");
}

/** Addresses and networks that are refused most. */
export function drawSources(model, fits) {
  const { sources } = model;
  const all = sources ? [...sources.networks, ...sources.addresses] : [];
  const shown = all.filter((one) => fits(one.source, one.listener, one.class ?? "")).sort((a, b) => b.share - a.share).slice(0, 16);
  text(byId("sources-about"), all.length > 0
    ? `Averaged over about ${sources.half_life_s} s. The command weir why ADDRESS says more of one.` : "");
  rows(byId("top-sources"), shown, (one) => one.source, (one) => [
    one.source,
    { text: percent(one.share), bar: Math.min(1, one.share) },
    rate(one.per_second),
    one.class ? `${one.listener}, ${one.class}` : one.listener,
    { text: one.verdict, title: model.verdicts.find((verdict) => verdict.name === one.verdict)?.text },
  ], "Nobody is refused.");
}

/** Classes: those of one listener, and those of all. */
export function drawClasses(model, fits) {
  const { status } = model;
  const owned = status.listeners.flatMap((listener) => listener.classes.map((one) => ({ listener: listener.name, one })));
  const all = [...owned, ...(status.classes ?? []).map((one) => ({ listener: null, one }))];
  const several = status.listeners.length > 1;
  const shown = all.filter(({ listener, one }) => fits(one.name, listener ?? "")).sort((a, b) => a.one.priority - b.one.priority);
  rows(byId("class-list"), shown.slice(0, ROWS), ({ listener, one }) => `${listener} ${one.name}`, ({ listener, one }) => {
    const { admitted, refused } = model.sums(model.ofClass(listener, one));
    const held = one.controlled_rate !== null && (one.rate === null || one.controlled_rate < one.rate);
    const limit = held ? one.controlled_rate : one.rate;
    return [
      several && listener ? `${one.name} of ${listener}` : one.name,
      String(one.priority),
      limit === null ? "none" : { text: rate(limit), class: held ? "control" : "", title: held ? "held by the controller" : "the operator's rate" },
      one.waiting === null ? "-" : grouped(one.waiting),
      rate(admitted),
      { text: rate(refused), class: refused > 0 ? "bad" : "" },
    ];
  }, "There are no classes.");
}

/** Proxies, each with its backends. */
export function drawProxies(model, fits) {
  const { proxies } = model.status;
  const shown = proxies.filter((proxy) => fits(proxy.name, proxy.address, ...proxy.backends.map((backend) => backend.address)));
  const all = shown.flatMap((proxy) => [{ proxy }, ...proxy.backends.map((backend) => ({ proxy, backend }))]);
  rows(byId("proxy-list"), all.slice(0, ROWS), ({ proxy, backend }) => `${proxy.pid} ${proxy.name} ${backend?.address ?? ""}`, ({ proxy, backend }) => {
    const interval = backend ? model.ofBackend(proxy, backend) : model.ofProxy(proxy);
    const state = backend ? backend.health : proxyState(proxy);
    const look = { down: "bad", up: "good", accepting: "good", full: "notable", draining: "notable" }[state] ?? "";
    const failures = rates(interval, backend ? ["connects_failed", "failures"] : ["replies_5xx"]);
    return [
      { text: backend ? backend.address : proxy.name, class: backend ? "under" : "", title: backend ? backend.last_check : proxy.address },
      { text: state, class: look },
      backend ? `${grouped(backend.connections.in_use)} in use` : `${grouped(proxy.clients)}, ${grouped(proxy.waiting)} wait`,
      rate(rates(interval, backend ? ["connects", "reused"] : ["requests", "tunnels"])),
      { text: rate(failures), class: failures > 0 ? "bad" : "" },
      time((backend ? backend.times.first_byte : proxy.times.request_duration)?.p99_us),
    ];
  }, "No weir proxy runs beside this guard.");
}

function proxyState(proxy) {
  if (!proxy.accepting) return "draining";
  return proxy.threads.some((thread) => thread.state === "full") ? "full" : "accepting";
}

/** What happened, the newest first. */
export function drawEvents(events, fits) {
  const names = (event) => [event.text, event.listener, event.class, event.proxy, event.backend, event.refusal?.source].filter(Boolean);
  const shown = events.filter((event) => fits(...names(event))).sort((a, b) => b.number - a.number).slice(0, EVENTS);
  const make = () => h("li", {}, h("time"), h("span", { class: "kind" }), h("span", { class: "what" }));
  const place = byId("event-list");
  list(place, shown, (event) => `${event.pid} ${event.number}`, make, (item, event) => {
    const [when, kind, what] = item.children;
    attributes(when, { datetime: event.time, title: event.time });
    text(when, clock(event.at_unix_ms));
    text(kind, event.kind);
    text(what, event.text);
    attributes(item, { class: { warn: "notable", error: "bad" }[event.severity] ?? null });
  });
  place.hidden = shown.length === 0;
}
