// What the reports have said: the last two, and a history of each listener. Pure: no page, no clock.
// A rate is between two reports, as `weir top` has it (crates/weir/src/top/rates.rs).

/** Samples that the history goes back, one a report. */
export const HISTORY = 900;

export class Model {
  /** `verdicts`: /verdicts.json. */
  constructor(verdicts) {
    this.verdicts = verdicts;
    const named = (is) => new Set(verdicts.filter(is).map((verdict) => verdict.name));
    this.admits = named((verdict) => verdict.admits);
    this.refuses = named((verdict) => verdict.refuses);
    this.now = null;
    this.before = null;
    this.sources = null;
    this.failure = null;
    this.history = new Map();
    this.length = 0;
  }

  /** Takes a report. `at`: in ms, of a clock that nobody sets; `unixMs`: the time of day. */
  take(status, sources, at, unixMs) {
    this.failure = null;
    this.before = this.now;
    this.now = { status, at, unixMs };
    this.sources = sources;
    const samples = new Map(this.guarded().map((listener) => [listener.name, this.sample(listener)]));
    for (const name of samples.keys()) {
      if (!this.history.has(name)) this.history.set(name, Array(this.length).fill(null));
    }
    this.push((name) => samples.get(name) ?? null);
  }

  /** Takes a question that had no answer. */
  fail(why) {
    this.failure = why;
    if (this.now) this.push(() => null);
  }

  push(sample) {
    this.length = Math.min(this.length + 1, HISTORY);
    for (const [name, samples] of this.history) {
      samples.push(sample(name));
      if (samples.length > HISTORY) samples.shift();
      // Nothing is left of a listener that a reload has removed.
      if (samples.every((one) => one === null)) this.history.delete(name);
    }
  }

  sample(listener) {
    return {
      unixMs: this.now.unixMs,
      waitUs: listener.wait_us,
      targetUs: this.targetUs(listener),
      queue: listener.queue_length,
      ...this.fates(listener),
    };
  }

  get status() {
    return this.now?.status ?? null;
  }

  /** All that is guarded: the listeners, and the QUIC listeners as such. */
  guarded() {
    return [...this.status.listeners, ...(this.status.quic ?? []).map(asListener)];
  }

  /** Seconds between the last two reports; null without two. */
  get seconds() {
    const seconds = this.before ? (this.now.at - this.before.at) / 1000 : 0;
    return seconds > 0 ? seconds : null;
  }

  /** The report before, if it is of the same process: the counters of another one began at 0. */
  get guardBefore() {
    const [one, other] = [this.before?.status, this.status];
    const same = one?.process && other?.process && one.process.pid === other.process.pid
      && one.process.started_unix_ms === other.process.started_unix_ms;
    return same ? one : null;
  }

  /** The counters of one thing now and before, to be asked for rates; null without a report before. */
  interval(now, before) {
    return this.seconds === null ? null : { now, before: before ?? {}, seconds: this.seconds };
  }

  ofListener(listener) {
    return this.interval(listener.counters, this.listenerBefore(listener)?.counters);
  }

  listenerBefore(listener) {
    const { quic } = listener;
    if (quic) return this.guardBefore?.quic?.find((other) => other.name === quic.name);
    return this.guardBefore?.listeners.find((other) => other.name === listener.name);
  }

  /** Of a workload of a listener: a network namespace has one server at its port. */
  ofWorkload(listener, one) {
    return this.interval(one.counters, this.workloadBefore(listener, one)?.counters);
  }

  workloadBefore(listener, one) {
    const before = this.guardBefore?.listeners.find((other) => other.name === listener.name);
    return before?.workloads?.find((other) => other.netns_cookie === one.netns_cookie);
  }

  /** The workloads of a listener with their rates, the worst first: those that are not guarded, that refuse most, that wait longest. */
  workloads(listener) {
    const all = (listener.workloads ?? []).map((one) => ({ one, ...this.wouldOr(this.ofWorkload(listener, one), one, this.workloadBefore(listener, one)) }));
    const worse = (a, b) => a.one.in_force - b.one.in_force || (b.refused ?? 0) - (a.refused ?? 0)
      || (b.one.wait_us ?? 0) - (a.one.wait_us ?? 0) || a.one.name.localeCompare(b.one.name);
    return all.sort(worse);
  }

  /** Of a class of one listener, or of all (null). */
  ofClass(listener, one) {
    const status = this.guardBefore;
    const owner = listener === null ? status : status?.listeners.find((other) => other.name === listener);
    const before = owner?.classes?.find((other) => other.name === one.name);
    // It may have been among those that the report before left out.
    if (!before && owner?.classes_left_out) return null;
    return this.interval(one.counters, before?.counters);
  }

  proxyBefore(proxy) {
    return this.before?.status.proxies.find((other) => other.name === proxy.name && other.pid === proxy.pid);
  }

  ofProxy(proxy) {
    return this.interval(proxy.counters, this.proxyBefore(proxy)?.counters);
  }

  ofBackend(proxy, backend) {
    const before = this.proxyBefore(proxy)?.backends.find((other) => other.address === backend.address);
    return this.interval(backend.counters, before?.counters);
  }

  /** Connections/s that are admitted and refused; null each without a report before. */
  sums(interval) {
    if (!interval) return { admitted: null, refused: null };
    return { admitted: rates(interval, this.admits), refused: rates(interval, this.refuses) };
  }

  /** The same of a listener; of one that is only observed, what enforcement would have done. */
  fates(listener) {
    return this.wouldOr(this.ofListener(listener), listener, this.listenerBefore(listener));
  }

  wouldOr(interval, one, before) {
    if (interval === null || (one.would_refuse ?? null) === null) return this.sums(interval);
    const more = (key) => Math.max(0, one[key] - (before?.[key] ?? 0)) / interval.seconds;
    const refused = more("would_refuse");
    return { admitted: Math.max(0, more("offered") - refused), refused };
  }

  /** The wait to keep, in µs: the target in force; of an older report the listener's own, else the controller's; null: none. */
  targetUs(listener) {
    if (listener.target_in_force_us) return listener.target_in_force_us;
    const own = listener.admit === "wait" && listener.establish !== "default" ? listener.target_wait : null;
    if (own !== null && listener.kept_wait_us) return Math.max(microseconds(own), listener.kept_wait_us);
    return microseconds(own ?? this.status.controller?.target_wait);
  }

  /** What a class is held at and why, as the controller sees it. */
  held() {
    const classes = this.status?.controller?.statistics.classes ?? [];
    return classes.filter((one) => one.controlled_rate !== null);
  }

  /**
   * The flow of connections through the stages: connections/s that come in, go on, and leave by reason. Of one listener, or
   * of all (null). Null without a report before.
   */
  flow(name) {
    const listeners = this.status.listeners.filter((listener) => name === null || listener.name === name);
    const intervals = listeners.map((listener) => this.ofListener(listener));
    if (intervals.some((interval) => interval === null)) return null;
    const all = this.verdicts.map((verdict) => ({
      ...verdict,
      rate: intervals.reduce((sum, interval) => sum + rateOf(interval, verdict.name), 0),
    }));
    const sum = (is) => all.filter(is).reduce((sum, verdict) => sum + verdict.rate, 0);
    const leave = (stage) => all
      .filter((verdict) => verdict.stage === stage && verdict.kind === "refuse" && verdict.rate > 0)
      .sort((a, b) => b.rate - a.rate);
    const [syns, letIn] = [sum((verdict) => verdict.is_syn), sum((verdict) => verdict.lets_in)];
    const police = Math.max(0, syns - total(leave("police")));
    const queued = letIn;
    // What went in and neither waits nor was reset has gone on.
    const grown = this.grown(listeners);
    const accepted = Math.max(0, queued - total(leave("queue")) - grown);
    const cookies = all.filter((verdict) => verdict.name.startsWith("cookie_sent")).reduce((sum, one) => sum + one.rate, 0);
    const waits = listeners.reduce((sum, listener) => sum + listener.queue_length, 0);
    const places = listeners.reduce((sum, listener) => sum + listener.queue_limit, 0);
    const halfOpen = listeners.reduce((sum, listener) => sum + listener.half_open, 0);
    return {
      police: { in: syns, out: police, leave: leave("police") },
      establish: { in: police, out: queued, leave: leave("establish"), cookies, halfOpen },
      queue: { in: queued, out: accepted, leave: leave("queue"), waits, places, grown },
      server: { in: accepted, out: accepted, leave: [] },
      close: { in: accepted, out: accepted, leave: leave("close") },
      timewait: { in: accepted, out: accepted, leave: [], ...this.timewait(listeners, name) },
    };
  }

  /** Connections/s by which the queues have grown. */
  grown(listeners) {
    const before = this.guardBefore;
    const grown = listeners.map((listener) => {
      const then = before?.listeners.find((other) => other.name === listener.name);
      return listener.queue_length - (then?.queue_length ?? listener.queue_length);
    });
    return grown.reduce((sum, one) => sum + one, 0) / this.seconds;
  }

  /** TIME-WAIT of the listeners, and of the destinations too where all listeners are meant. */
  timewait(listeners, name) {
    const owners = [...listeners, ...(name === null ? this.status.destinations : [])];
    const figures = owners.map((owner) => owner.timewait).filter(Boolean);
    const sum = (field) => figures.reduce((sum, one) => sum + (one[field] ?? 0), 0);
    return { held: sum("held"), heldByPeer: sum("held_by_peer"), avoided: sum("avoided"), refused: sum("refused") };
  }
}

const total = (verdicts) => verdicts.reduce((sum, verdict) => sum + verdict.rate, 0);

/** Events per second of a counter. One that is lower than before has restarted, and counts from 0. */
export function rateOf(interval, name) {
  const [now, before] = [interval.now[name] ?? 0, interval.before[name] ?? 0];
  return (now >= before ? now - before : now) / interval.seconds;
}

/** The sum of several. */
export function rates(interval, names) {
  if (!interval) return null;
  return [...names].reduce((sum, name) => sum + rateOf(interval, name), 0);
}

/** `"20ms"` as 20000; null of what is no duration. */
export function microseconds(text) {
  const parts = /^([\d.]+)(ns|us|µs|ms|s|min|h)$/.exec(text ?? "");
  if (!parts) return null;
  const units = { ns: 1e-3, us: 1, µs: 1, ms: 1e3, s: 1e6, min: 60e6, h: 3600e6 };
  return Number(parts[1]) * units[parts[2]];
}

/** A QUIC listener with the fields of a listener, for what is drawn of both. Attempts that are not answered stand for its queue. */
function asListener(quic) {
  const waits = quic.sockets.map((socket) => socket.wait_us).filter((wait) => wait !== null);
  const shares = quic.sockets.map((socket) => socket.buffer / Math.max(1, socket.buffer_limit));
  return {
    quic,
    // A listener may have the same name.
    name: `${quic.name} (QUIC)`,
    address: quic.address,
    mode: quic.mode,
    policy: `refuse ${quic.refuse}, wait ${quic.target_wait}, room ${quic.room}, floor ${quic.floor}`,
    in_force: quic.in_force,
    not_in_force_because: quic.warning,
    listening: true,
    queue_length: quic.sockets.reduce((sum, socket) => sum + socket.pending, 0),
    queue_limit: 0,
    buffer: shares.length > 0 ? Math.max(...shares) : null,
    wait_us: waits.length > 0 ? Math.max(...waits) : null,
    target_in_force_us: microseconds(quic.target_wait),
    counters: quic.counters,
    offered: quic.offered,
    would_refuse: quic.would_refuse,
  };
}

/** What an operator should know besides, a sentence each: `{ grave, text }`. */
export function notes(status) {
  const notes = [];
  const note = (grave, text) => notes.some((other) => other.text === text) || notes.push({ grave, text });
  for (const listener of (status.quic ?? []).map(asListener)) {
    const { name, not_in_force_because: because } = listener;
    if (!listener.in_force) note(true, `${name}: not in force: ${because ?? "weir is attached to none of its interfaces"}`);
    else if (because && !status.warnings.includes(because)) note(false, `${name}: ${because}`);
  }
  for (const listener of status.listeners) {
    const { name } = listener;
    if (!listener.in_force) note(true, `${name}: not in force: ${listener.not_in_force_because ?? "weir is attached to none of its interfaces"}`);
    if (!listener.listening) note(false, `${name}: nothing listens at ${listener.address} at the moment`);
    if (listener.fallback) note(false, `${name}: fallback to ${listener.fallback}: ${listener.fallback_because}`);
    if (listener.queue_way_because) note(false, `${name}: not by priority: ${listener.queue_way_because}`);
  }
  const reloads = [status.last_reload, ...status.proxies.map((proxy) => proxy.last_reload)];
  for (const reload of reloads) {
    if (reload && !reload.succeeded) note(true, `The config file is not in force: ${reload.failure}`);
  }
  for (const proxy of status.proxies) {
    for (const backend of proxy.backends) {
      if (backend.health === "down") note(true, `${proxy.name}: backend ${backend.address} is down: ${backend.last_check}`);
    }
  }
  const { log_lost: lost = 0, unconfirmed_s: unconfirmed = null, observes_s: observes = null } = status.process ?? {};
  if (lost > 0) note(false, `${lost} lines of weir's log lost: nobody read them in time`);
  if (unconfirmed !== null) note(true, `The last reload is on trial: ${unconfirmed} s until weir goes back to the config before it`);
  if (observes !== null) note(true, `weir refuses nobody for ${observes} s (weir observe)`);
  for (const warning of status.warnings) note(false, warning);
  return notes;
}
