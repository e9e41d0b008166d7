// Elements and figures. Text only ever becomes text: nothing here reads a string as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `h("td", { class: "number" }, "12")`. A property that is null or false is left out. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  attributes(element, properties);
  element.append(...children);
  return element;
}

/** An element of SVG. */
export function s(tag, properties = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  attributes(element, properties);
  element.append(...children);
  return element;
}

/** Sets those that have changed, and takes those away that are null or false. */
export function attributes(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) element.removeAttribute(name);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
  }
}

export const byId = (id) => document.getElementById(id);

/** Sets a text, if it is another one: a screen reader is not told the same again. */
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

/** Makes the children of `parent` one for each item, in their order. Those that stay are kept, with focus and scroll. */
export function list(parent, items, key, make, update) {
  const wanted = new Set(items.map(key));
  for (const child of [...parent.children]) if (!wanted.has(child.dataset.key)) child.remove();
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let child = old.get(name);
    if (!child) {
      child = make(item);
      child.dataset.key = name;
    }
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
    update(child, item);
  }
}

/** Rows of a table. `cells` gives the text of each, or `{ text, class, title, bar }`. */
export function rows(table, items, key, cells, none) {
  const heads = [...table.tHead.rows[0].cells];
  const make = () => h("tr", {}, ...heads.map((_, at) => (at === 0 ? h("th", { scope: "row" }) : h("td"))));
  list(table.tBodies[0], items, key, make, (row, item) => {
    cells(item).forEach((cell, at) => {
      const { text: value, class: look = "", title = null, bar = null } = typeof cell === "string" ? { text: cell } : cell;
      const element = row.cells[at];
      const classes = `${heads[at].className} ${look}`.trim();
      attributes(element, { class: classes || null, title });
      text(element, value);
      // A bar behind the figure.
      element.style.setProperty("--part", bar === null ? "0" : String(bar));
    });
  });
  const shown = items.length > 0;
  table.hidden = !shown;
  let instead = table.parentElement.querySelector(".none");
  if (!instead) {
    instead = h("p", { class: "none faint" });
    table.parentElement.append(instead);
  }
  instead.hidden = shown;
  text(instead, none);
}

/** `1440`, `1.5`, `0.03`; `-` while not known. As `weir top` has it. */
export function rate(value) {
  if (value === null || value === undefined) return "-";
  if (value === 0) return "0";
  if (value < 0.095) return Math.max(value, 0.01).toFixed(2);
  return value < 9.95 ? value.toFixed(1) : grouped(Math.round(value));
}

/** `12 345`, with thin spaces that do not break. */
export function grouped(value) {
  return String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** `508 ms`; `-` while not known. As `weir top` has it. */
export function time(us) {
  if (us === null || us === undefined) return "-";
  const ms = us / 1000;
  if (ms < 0.005) return "0 ms";
  if (ms < 0.995) return `${ms.toFixed(2)} ms`;
  if (ms < 9.95) return `${ms.toFixed(1)} ms`;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  return ms < 9950 ? `${(ms / 1000).toFixed(1)} s` : duration(ms);
}

/** `33 %`. As `weir top` has it. */
export function percent(part) {
  const value = part * 100;
  if (value === 0) return "0 %";
  return value < 0.995 ? `${Math.max(value, 0.1).toFixed(1)} %` : `${Math.round(value)} %`;
}

/** `14:05:09`, in the reader's time. */
export function clock(unixMs) {
  const date = new Date(unixMs);
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}

/** `3 h 12 min`. */
export function duration(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

/** `1.2 Mbit/s`, of bits per second. */
export function bits(value) {
  const units = [[1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"]];
  const [size, unit] = units.find(([size]) => value >= size) ?? [1, "bit/s"];
  return `${trimmed((value / size).toFixed(1))} ${unit}`;
}

/** `1 class`, `2 classes`. */
export function count(number, one, many = `${one}s`) {
  return `${grouped(number)} ${number === 1 ? one : many}`;
}
