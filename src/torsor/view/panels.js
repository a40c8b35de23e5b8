// What surrounds the machine: sliders, ticks, the card of a body, charts.
"use strict";

const SVG = (name, attributes, text = "") => `<${name} ${Object.entries(attributes).map(([k, v]) => `${k}="${v}"`).join(" ")}>${text}</${name}>`;
const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
const DEGREES = 180 / Math.PI;
const shownUnit = (unit) => unit.replace("rad", "°");
const perUnit = (unit) => (unit.startsWith("rad") ? DEGREES : 1); // angles are shown in degrees

function round(x, digits = 3) {
  if (!Number.isFinite(x)) return "–";
  const size = Math.abs(x);
  return size && (size < 1e-3 || size >= 1e5) ? x.toExponential(1) : String(Number(x.toPrecision(digits)));
}

// A slider that shows its number; returns a function that moves it.
function slider(where, name, { low, high, value, label, set }) {
  element(where).hidden = false;
  const box = element(where).querySelector("div");
  box.insertAdjacentHTML("beforeend", `<label class="row"><span></span><input type="range" min="${low}" max="${high}" step="any"><output></output></label>`);
  const [span, range, out] = box.lastElementChild.children, tell = (x) => { out.textContent = label(x); };
  span.textContent = span.title = name;
  range.value = value;
  tell(value);
  range.addEventListener("input", () => { tell(Number(range.value)); set(Number(range.value)); });
  return (x) => { if (document.activeElement !== range) range.value = x; tell(x); };
}

function choice(where, name, words, set) {
  element(where).querySelector("div").insertAdjacentHTML("beforeend", `<label class="row"><span>${name}</span><select></select></label>`);
  const select = element(where).querySelector("div").lastElementChild.children[1];
  select.innerHTML = words.map((x) => `<option>${x}</option>`).join("");
  select.addEventListener("change", () => set(select.value));
  return select;
}

function tick(where, name, checked, set) {
  element(where).hidden = false;
  element(where).querySelector("div").insertAdjacentHTML("beforeend", `<label class="tick"><input type="checkbox" ${checked ? "checked" : ""}> ${name}</label>`);
  const box = element(where).querySelector("div").lastElementChild.firstElementChild;
  box.addEventListener("change", () => set(box.checked));
  set(checked);
  return box;
}

function showMissing(words) {
  if (!words.length) return;
  const box = element("missing");
  box.hidden = false;
  box.querySelector("summary").textContent = "⚠ not everything is drawn";
  box.querySelector("ul").innerHTML = words.map((x) => `<li>${escaped(x)}</li>`).join("");
}

function showCard(data, i) {
  const body = data.bodies[i], card = element("card"), { mass, length } = data.units;
  const numbers = (x) => x.map((y) => round(y)).join(", ");
  card.hidden = false;
  card.querySelector("summary").textContent = body.name;
  const limits = body.limits.filter(([low, high]) => low !== null || high !== null);
  const rows = [
    ["joint", `${escaped(body.label)}, ${body.joint}`],
    ["parent", body.parent < 0 ? "the base" : escaped(data.bodies[body.parent].name)],
    ["mass", `${round(body.mass, 4)} ${mass}`],
    ["centre", `${numbers(body.com)} ${length}`],
    ["inertia", `${numbers(body.moments)} ${mass} ${length}²`],
    ...(body.axis.some((x) => x) ? [["axis", numbers(body.axis)]] : []),
    ...limits.map(([low, high, unit]) => ["limits", [low, high].map((x) => (x === null ? "none" : round(x * perUnit(unit), 4))).join(" … ") + ` ${shownUnit(unit)}`]),
    ["frame", `<span id="origin"></span>`],
  ];
  card.querySelector("table").innerHTML = rows.map(([a, b]) => `<tr><td>${a}</td><td>${b}</td></tr>`).join("");
  return (position) => { element("origin").textContent = `${numbers(position.toArray())} ${length}`; };
}

// ---- charts: curves over time, with a cursor ----

const DASHES = ["", "5 2", "2 2", "7 2 2 2"]; // as in style.py
const MOST_CURVES = 8, POINTS = 300;

// Round numbers between two, at most six, and their words.
function ticksOf(low, high) {
  const most = Math.max(Math.abs(low), Math.abs(high)), power = 10 ** Math.floor(Math.log10((high - low) / 5));
  const step = power * [1, 2, 5, 10].find((k) => k * power >= (high - low) / 5), first = Math.ceil(low / step);
  const digits = Math.min(Math.max(0, Math.round(-Math.log10(power))), 9), far = Math.min(3, Math.floor(Math.log10(most / power)));
  const words = (y) => (y === 0 ? "0" : most < 1e-3 || most >= 1e5 ? y.toExponential(far) : y.toFixed(digits));
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, k) => (first + k) * step).map((y) => [y, words(y)]);
}

function makeChart(columns, time, seek) { // columns: {quantity: [{name, unit, limb}]}; the unit of time
  const quantities = Object.keys(columns), select = element("quantity"), limbs = element("limb"), svg = element("chart");
  if (!quantities.length) return null;
  element("plots").hidden = false;
  const words = { q: "positions", v: "velocities", tau: "torques" };
  select.innerHTML = quantities.map((x) => `<option value="${x}">${words[x] || x}</option>`).join("");
  function fillLimbs() {
    const own = columns[select.value], names = [...new Set(own.map((x) => x.limb))];
    limbs.hidden = own.length <= MOST_CURVES || names.length < 2;
    limbs.innerHTML = names.map((x) => `<option>${escaped(x)}</option>`).join("");
  }
  fillLimbs();
  let area = [0, 1];
  svg.addEventListener("pointerdown", (event) => {
    const { left, width } = svg.getBoundingClientRect(), share = ((event.clientX - left) / width * 310 - 40) / 264;
    if (seek) seek(area[0] + Math.min(Math.max(share, 0), 1) * (area[1] - area[0]));
  });

  // rows: times and a function (row, column) -> number
  function draw(times, value, now) {
    const quantity = select.value, all = columns[quantity].map((x, k) => ({ ...x, k }));
    const own = all.filter((x) => limbs.hidden || x.limb === limbs.value).slice(0, MOST_CURVES), stride = Math.max(1, Math.ceil(times.length / POINTS));
    const rows = [];
    for (let r = 0; r < times.length; r += stride) rows.push(r);
    if (rows.at(-1) !== times.length - 1) rows.push(times.length - 1);
    const curves = own.map((x) => rows.map((r) => value(quantity, r, x.k) * perUnit(x.unit)));
    const finite = curves.flat().filter(Number.isFinite);
    let low = Math.min(...finite), high = Math.max(...finite);
    if (!(high > low)) [low, high] = [low - 1, high + 1];
    const t0 = times[0], t1 = Math.max(times.at(-1), t0 + 1e-9), ink = getComputedStyle(document.body).color;
    area = [t0, t1];
    const X = (t) => 40 + 264 * (t - t0) / (t1 - t0), Y = (y) => 112 - 102 * (y - low) / (high - low);
    const text = (x, y, s, anchor = "end") => SVG("text", { x, y, "font-size": 9, fill: ink, "text-anchor": anchor }, s);
    const ticks = ticksOf(low, high).map(([y, words]) => SVG("line", { x1: 40, x2: 304, y1: Y(y), y2: Y(y), stroke: ink, "stroke-opacity": 0.15 }) + text(37, Y(y) + 3, words));
    const lines = curves.map((c, k) => SVG("polyline", { fill: "none", stroke: css(k), "stroke-width": 1.5, "stroke-dasharray": DASHES[(k + Math.floor(k / PALETTES.light.length)) % DASHES.length], points: c.map((y, i) => (Number.isFinite(y) ? `${X(times[rows[i]]).toFixed(1)},${Y(y).toFixed(1)}` : "")).join(" ") }));
    const cursor = now === null ? "" : SVG("line", { x1: X(now), x2: X(now), y1: 6, y2: 114, stroke: ink, "stroke-width": 1 });
    svg.innerHTML = [...ticks, ...lines, cursor, text(40, 125, `${round(t0)} ${time}`, "start"), times.length > 1 ? text(304, 125, `${round(t1)} ${time}`) : ""].join("");
    element("legend").innerHTML = `<span>${shownUnit(own[0].unit)}:</span>` + own.map((x, k) => `<span style="color:${css(k)}">${escaped(x.name)}</span>`).join("");
  }
  const changed = new Set();
  select.addEventListener("change", () => { fillLimbs(); changed.forEach((f) => f()); });
  limbs.addEventListener("change", () => changed.forEach((f) => f()));
  return { draw, changed };
}
