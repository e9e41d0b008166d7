// The page: asks weir once a second, and draws. Keys, theme and token are here; what is shown is in the other files.

import { attributes, byId, clock, h, list, text } from "./dom.js";
import { drawFlow } from "./flow.js";
import { drawListeners } from "./listeners.js";
import { Model } from "./model.js";
import { drawClasses, drawController, drawEvents, drawHead, drawProxies, drawShapes, drawSources, drawVerdicts } from "./panels.js";

/** Time between two questions, in ms, and how long weir has for an answer. */
const EVERY = 1000;
const PATIENCE = 8000;
/** The sources are averages over a minute: they are asked for every so many reports. */
const SOURCES_EVERY = 3;
/** Events that the page keeps, of refusals and of all others each, and asks for at a time. */
const EVENTS = 300;
const AT_A_TIME = 1000;
const TOKEN = "weir-token";
const THEME = "weir-theme";
const PARTS = ["life", "listeners", "controller", "sources", "classes", "proxies", "events"];

let model = null;
const noEvents = (since) => ({ last: 0, since, refusals: [], others: [] });
let events = noEvents(null);
let reports = 0;
let frozen = false;
let filter = "";
let kind = null;

class Refused extends Error {
  constructor(status, why) {
    super(why);
    this.status = status;
  }
}

async function get(path) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { headers, signal: AbortSignal.timeout(PATIENCE), cache: "no-store" });
  if (answer.ok) return answer.json();
  const said = await answer.json().catch(() => null);
  throw new Refused(answer.status, said?.causes?.map((cause) => cause.message).join("; ") ?? `HTTP ${answer.status}`);
}

/** One that was cut off is asked again at once: weir ends a connection after some minutes, and the browser has a new one. */
async function ask(path) {
  try {
    return await get(path);
  } catch (failure) {
    if (failure instanceof Refused || failure.name === "TimeoutError") throw failure;
    return get(path);
  }
}

/** The sources that are refused most; null where nothing is guarded. */
async function askSources() {
  try {
    return await ask("v1/sources");
  } catch (failure) {
    if (failure.status === 404) return null;
    throw failure;
  }
}

async function askEvents() {
  for (;;) {
    const answer = await ask(`v1/events?after=${events.last}&most=${AT_A_TIME}`);
    if (events.since !== null && answer.since_unix_ms !== events.since) {
      // Another process, whose events begin again.
      events = noEvents(answer.since_unix_ms);
      continue;
    }
    events.since = answer.since_unix_ms;
    events.last = answer.last;
    const isRefusal = ({ kind }) => kind === "refusal" || kind === "left_out";
    const keep = (kept, isKept) => [...kept, ...answer.events.filter(isKept)].slice(-EVENTS);
    events.refusals = keep(events.refusals, isRefusal);
    events.others = keep(events.others, (event) => !isRefusal(event));
    if (!answer.more) return;
  }
}

async function report() {
  model ??= new Model(await ask("verdicts.json"));
  const asked = performance.now();
  const status = ask("v1/status").then((status) => ({ status, at: (asked + performance.now()) / 2, unixMs: Date.now() }));
  const top = reports % SOURCES_EVERY === 0 ? askSources() : model.sources;
  const [{ status: said, at, unixMs }, sources] = await Promise.all([status, top, askEvents()]);
  reports += 1;
  model.take(said, sources, at, unixMs);
}

async function turn() {
  const begun = performance.now();
  let again = true;
  try {
    await report();
    signIn(false);
  } catch (failure) {
    if (failure.status === 401) {
      again = false;
      signIn(true);
    } else {
      model?.fail(why(failure));
      banner(why(failure));
    }
  }
  if (model?.status && !frozen) draw();
  document.body.dataset.turns = String(Number(document.body.dataset.turns ?? 0) + 1);
  // After a slow answer, no questions are made up for.
  if (again) setTimeout(turn, Math.max(EVERY / 10, EVERY - (performance.now() - begun)));
}

function why(failure) {
  if (failure.name === "TimeoutError") return `no answer within ${PATIENCE / 1000} s`;
  return failure instanceof Refused ? failure.message : "weir cannot be reached";
}

function banner(why) {
  const since = model?.now ? ` The figures are of ${clock(model.now.unixMs)}.` : "";
  byId("banner").hidden = why === null;
  attributes(byId("banner"), { class: "banner bad" });
  if (why !== null) text(byId("banner"), `No answer: ${why}. Asking again every second.${since}`);
  document.body.classList.toggle("stale", why !== null);
}

function draw() {
  banner(model.failure);
  byId("figures").hidden = false;
  if (model.failure !== null) document.title = "weir: no answer";
  const now = drawHead(model);
  if (model.failure === null) document.title = { busy: "● weir: refusing", bad: "● weir: not in force" }[now] ?? "weir";
  if (now !== kind) {
    kind = now;
    text(byId("spoken"), byId("headline").textContent);
  }
  const whose = choice();
  drawFlow(byId("flow"), model, whose);
  drawVerdicts(model, whose, fits);
  drawShapes(model);
  drawListeners(model, fits, Number(byId("span").value));
  drawController(model, fits);
  drawSources(model, fits);
  drawClasses(model, fits);
  drawProxies(model, fits);
  drawEvents(byId("refusals").checked ? [...events.others, ...events.refusals] : events.others, fits);
}

/** The listener whose flow is shown; null: all. */
function choice() {
  const select = byId("whose");
  const names = model.status.listeners.map((listener) => listener.name);
  list(select, ["", ...names], (name) => name, (name) => h("option", { value: name }, name || "all listeners"), () => {});
  return names.includes(select.value) ? select.value : null;
}

/** Whether one of the texts has the filter, in capitals or not. */
function fits(...texts) {
  return filter === "" || texts.some((one) => one.toLowerCase().includes(filter));
}

function signIn(needed) {
  const form = byId("sign-in");
  const was = !form.hidden;
  form.hidden = !needed;
  if (!needed) return;
  byId("figures").hidden = true;
  byId("banner").hidden = true;
  byId("wrong").hidden = sessionStorage.getItem(TOKEN) === null;
  if (!was) byId("token").focus();
}

/** A token after the # of the address, where no log has it, is taken over once. */
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given === null) return;
  sessionStorage.setItem(TOKEN, given);
  history.replaceState(null, "", location.pathname);
}

function theme(next) {
  const root = document.documentElement;
  const themes = ["system", "light", "dark"];
  const now = root.dataset.theme ?? "system";
  const chosen = next ?? themes[(themes.indexOf(now) + 1) % themes.length];
  if (chosen === "system") delete root.dataset.theme;
  else root.dataset.theme = chosen;
  localStorage.setItem(THEME, chosen);
  text(byId("theme"), { system: "Theme", light: "Light", dark: "Dark" }[chosen]);
}

function freeze() {
  frozen = !frozen;
  attributes(byId("freeze"), { "aria-pressed": frozen });
  text(byId("freeze"), frozen ? "Frozen" : "Freeze");
  if (!frozen && model?.status) draw();
}

function setFilter(value) {
  byId("filter").value = value;
  filter = value.trim().toLowerCase();
  if (model?.status) draw();
}

function go(part) {
  const section = byId(part);
  section.tabIndex = -1;
  section.focus({ preventScroll: true });
  section.scrollIntoView();
}

function onKey(event) {
  const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
  if (event.key === "Escape" && event.target.id === "filter") {
    setFilter("");
    byId("filter").blur();
    return;
  }
  if (typing || event.ctrlKey || event.altKey || event.metaKey || byId("help").open) return;
  const onControl = event.target.matches("button, summary, input, a");
  const keys = {
    "?": () => byId("help").showModal(),
    "/": () => byId("filter").focus(),
    t: () => theme(),
    Escape: () => setFilter(""),
    // Space presses the control that has the focus.
    ...(onControl ? {} : { " ": freeze }),
  };
  const part = PARTS[Number(event.key) - 1];
  const act = keys[event.key] ?? (part ? () => go(part) : null);
  if (!act) return;
  event.preventDefault();
  act();
}

function start() {
  takeToken();
  theme(localStorage.getItem(THEME) ?? "system");
  text(byId("host"), location.hostname);
  byId("theme").addEventListener("click", () => theme());
  byId("freeze").addEventListener("click", freeze);
  byId("keys").addEventListener("click", () => byId("help").showModal());
  byId("filter").addEventListener("input", () => setFilter(byId("filter").value));
  for (const id of ["whose", "span", "refusals"]) byId(id).addEventListener("change", () => model?.status && draw());
  addEventListener("resize", () => model?.status && !frozen && draw());
  addEventListener("keydown", onKey);
  byId("sign-in").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, byId("token").value.trim());
    byId("token").value = "";
    turn();
  });
  turn();
}

start();
