// A chart over time: areas one on the other, a line that is not to be passed, and what was at a moment.

import { attributes, clock, h, s, text } from "./dom.js";

const HEIGHT = 104;
const LEFT = 2;
const TOP = 6;
const BOTTOM = 16;
/** Horizontal lines of the scale. */
const LINES = 2;

let number = 0;

/** `series`: `[{ name, class, value(sample) }]`, the lowest first; `limit(sample)`: the line, if there is one; `format` a value. */
export class Chart {
  constructor({ name, series, limit = () => null, least, format }) {
    Object.assign(this, { name, series, limit, least, format, samples: [], places: 60, at: null });
    this.id = `chart-${(number += 1)}`;
    const [clip, rest] = [`${this.id}-over`, `${this.id}-under`];
    this.over = s("rect", { x: 0, y: 0, width: 0, height: 0 });
    this.under = s("rect", { x: 0, y: 0, width: 0, height: HEIGHT });
    this.areas = series.map((one) => s("path", { class: `area ${one.class}`, "clip-path": `url(#${rest})` }));
    this.edges = series.map((one) => s("path", { class: `edge ${one.class}`, "clip-path": `url(#${rest})` }));
    this.overArea = s("path", { class: "area over", "clip-path": `url(#${clip})` });
    this.overEdge = s("path", { class: "edge over", "clip-path": `url(#${clip})` });
    this.limitLine = s("path", { class: "limit" });
    this.scale = s("g", { class: "scale" });
    this.cursor = s("path", { class: "cursor" });
    this.svg = s("svg", { class: "chart", role: "img", tabindex: 0, height: HEIGHT }, s("defs", {}, s("clipPath", { id: clip }, this.over), s("clipPath", { id: rest }, this.under)),
      this.scale, ...this.areas, ...this.edges, this.overArea, this.overEdge, this.limitLine, this.cursor);
    this.read = h("p", { class: "read" });
    this.element = h("figure", {}, h("figcaption", {}, h("span", { class: "name" }, name), this.read), this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.choose(null));
    this.svg.addEventListener("blur", () => this.choose(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  /** Draws the samples, the newest last, in so many places. A sample that is null is a gap. */
  draw(samples, places) {
    this.samples = samples.slice(-places);
    this.places = places;
    this.width = this.svg.clientWidth || 300;
    attributes(this.svg, { viewBox: `0 0 ${this.width} ${HEIGHT}` });
    const known = this.samples.filter((sample) => sample !== null);
    const sums = known.map((sample) => this.series.reduce((sum, one) => sum + (one.value(sample) ?? 0), 0));
    const limits = known.map((sample) => this.limit(sample) ?? 0);
    this.most = nice(Math.max(this.least, ...sums, ...limits.map((limit) => limit * 1.6)));
    let below = () => 0;
    this.series.forEach((one, at) => {
      const [low, high] = [below, (sample) => low(sample) + (one.value(sample) ?? 0)];
      attributes(this.areas[at], { d: this.area(low, high) });
      attributes(this.edges[at], { d: this.line(high) });
      below = high;
    });
    this.drawLimit(below);
    this.drawScale();
    this.choose(this.at);
    attributes(this.svg, { "aria-label": this.summary(known, sums) });
  }

  drawLimit(sum) {
    const has = this.samples.some((sample) => sample !== null && this.limit(sample) !== null);
    attributes(this.limitLine, { d: has ? this.line((sample) => this.limit(sample)) : "" });
    const last = this.samples.findLast((sample) => sample !== null && this.limit(sample) !== null);
    const y = last ? this.y(this.limit(last)) : 0;
    attributes(this.over, { width: this.width, height: y });
    attributes(this.under, { width: this.width, y });
    attributes(this.overArea, { d: has ? this.area(() => 0, sum) : "" });
    attributes(this.overEdge, { d: has ? this.line(sum) : "" });
  }

  drawScale() {
    const lines = Array.from({ length: LINES + 1 }, (_, at) => (this.most * at) / LINES);
    const marks = lines.flatMap((value) => {
      const y = this.y(value);
      const label = value > 0 ? [s("text", { x: LEFT, y: y + 10 }, this.format(value))] : [];
      return [s("path", { d: `M0 ${y}H${this.width}` }), ...label];
    });
    const ends = [s("text", { x: LEFT, y: HEIGHT - 4 }, ago(this.places)), s("text", { x: this.width - 2, y: HEIGHT - 4, class: "end" }, "now")];
    this.scale.replaceChildren(...marks, ...ends);
  }

  x(at) {
    const step = this.width / Math.max(1, this.places - 1);
    return this.width - (this.samples.length - 1 - at) * step;
  }

  y(value) {
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - Math.min(1, value / this.most));
  }

  /** Calls with each run of samples without a gap: their places. */
  runs() {
    const runs = [];
    this.samples.forEach((sample, at) => {
      if (sample === null) return;
      if (at > 0 && this.samples[at - 1] !== null && runs.length > 0) runs.at(-1).push(at);
      else runs.push([at]);
    });
    return runs;
  }

  line(value) {
    return this.runs().map((run) => `M${run.map((at) => this.spot(at, value)).join("L")}`).join("");
  }

  area(low, high) {
    return this.runs().map((run) => {
      const back = [...run].reverse().map((at) => this.spot(at, low));
      return `M${run.map((at) => this.spot(at, high)).join("L")}L${back.join("L")}Z`;
    }).join("");
  }

  spot(at, value) {
    return `${this.x(at).toFixed(1)} ${this.y(value(this.samples[at]) ?? 0).toFixed(1)}`;
  }

  point(x) {
    const step = this.width / Math.max(1, this.places - 1);
    this.choose(Math.round((this.width - x) / step));
  }

  key(event) {
    const step = { ArrowLeft: 1, ArrowRight: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    this.choose(Math.max(0, (this.at ?? -step) + step));
  }

  /** Says what was so many samples ago; null: what is now. */
  choose(at) {
    this.at = at === null ? null : Math.max(0, Math.min(at, this.samples.length - 1));
    const index = this.samples.length - 1 - (this.at ?? 0);
    const sample = this.samples[index] ?? null;
    attributes(this.cursor, { d: this.at === null ? "" : `M${this.x(index)} ${TOP}V${HEIGHT - BOTTOM}` });
    text(this.read, this.at === null ? this.said(sample) : `${sample ? clock(sample.unixMs) : "no answer"}  ${this.said(sample)}`);
    this.read.classList.toggle("then", this.at !== null);
  }

  said(sample) {
    if (sample === null) return "";
    const limit = this.limit(sample);
    const values = this.series.map((one) => `${one.name}${one.name ? " " : ""}${one.value(sample) === null ? "-" : this.format(one.value(sample))}`);
    return values.join(" · ") + (limit === null ? "" : ` of ${this.format(limit)}`);
  }

  summary(known, sums) {
    const last = this.samples.at(-1) ?? null;
    const highest = known.length > 0 ? `; highest ${this.format(Math.max(...sums))}` : "";
    return `${this.name}: ${this.said(last) || "no answer"}${highest} in the last ${known.length} reports. Arrow keys read samples.`;
  }
}

/** The next figure that is 1, 2 or 5 times a power of ten. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

function ago(seconds) {
  return seconds < 120 ? `−${seconds} s` : `−${Math.round(seconds / 60)} min`;
}
