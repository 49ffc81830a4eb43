"use strict";
// A loss curve that can be hovered, zoomed, smoothed and laid over other runs. It replaces the still picture in its figure;
// without scripts that one stays. Data is in the figure's own JSON. No "less than" sign stands here: the pages' rewriter
// takes every one of them for a tag.
const NAME = "http://www.w3.org/2000/svg";
const COLOURS = ["var(--good)", "var(--bad)", "var(--care)", "var(--soft)", "var(--link)", "var(--ink)"];
const four = value => {
  const size = Math.abs(value);
  if (size >= 1e4) return Math.round(Number(value.toPrecision(4))).toLocaleString("en");
  return size > 0 && 1e-3 > size ? value.toExponential(2) : String(Number(value.toPrecision(4)));
};
const STEPS = 0, TOKENS = 1, TIME = 3; // columns of a point; the loss is column 2
const AXES = {[STEPS]: "iteration", [TOKENS]: "tokens seen", [TIME]: "time since the first step"};
const duration = seconds => seconds >= 5400 ? four(seconds / 3600) + " h" : seconds >= 90 ? four(seconds / 60) + " min" : four(seconds) + " s";
const whole = value => Math.round(value).toLocaleString("en");

function ticksOf(low, high, log) {
  const found = [];
  if (log) {
    for (let power = Math.floor(Math.log10(low)); Math.log10(high) >= power; power++)
      for (const factor of [1, 2, 5]) {
        const value = factor * 10 ** power;
        if (value >= low && high >= value) found.push(value);
      }
    if (found.length > 1) return found;
    found.length = 0;
  }
  const raw = (high - low) / 5 || 1, unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(factor => factor * unit).find(size => size >= raw * 0.999);
  for (let value = Math.ceil(low / step) * step; high + 1e-9 * step >= value; value += step) found.push(Number(value.toPrecision(12)));
  return found;
}

// Exponential mean whose first values are not pulled towards zero, as trackers of experiments draw it.
function smoothed(points, weight) {
  let mean = 0, mass = 0;
  return points.map(point => {
    mean = weight * mean + (1 - weight) * point[2];
    mass = weight * mass + (1 - weight);
    return [point[0], point[1], mean / mass, point[3]];
  });
}

function makeChart(figure) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const own = data.series[0];
  // Several runs side by side are all shown at first; a run's own page shows that run.
  const state = {shown: new Set(data.together ? data.series.keys() : [0]), weight: 0, logX: false, logY: false, axis: STEPS, chosen: STEPS, span: null, at: null};
  const add = (parent, tag, attributes, text) => {
    const element = tag.startsWith("svg:") ? document.createElementNS(NAME, tag.slice(4)) : document.createElement(tag);
    Object.entries(attributes || {}).forEach(([key, value]) => element.setAttribute(key, value));
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  };
  const still = figure.querySelector("svg");
  const bar = add(figure, "div", {class: "controls"});
  const place = add(figure, "div", {class: "drawing"});
  const said = add(figure, "output", {class: "soft", "aria-live": "polite"});
  const control = (label, type, change, attributes) => {
    const holder = add(bar, "label", {});
    const input = document.createElement("input");
    Object.entries({type, ...attributes}).forEach(([key, value]) => input.setAttribute(key, value));
    if (type === "range") holder.append(label + " ", input); else holder.append(input, " " + label);
    input.addEventListener("input", () => { change(input); draw(); });
    return input;
  };
  control("smoothing", "range", input => { state.weight = Number(input.value); }, {min: "0", max: "0.98", step: "0.01", value: "0"});
  control("log loss", "checkbox", input => { state.logY = input.checked; });
  control("log x", "checkbox", input => { state.logX = input.checked; state.span = null; });
  const holder = add(bar, "label", {}, "by ");
  const axis = add(holder, "select", {});
  const hasTime = data.series.some(series => series.points.some(point => point.length > TIME));
  [[STEPS, "step"], [TOKENS, "tokens"], ...(hasTime ? [[TIME, "time"]] : [])].forEach(([column, name]) => add(axis, "option", {value: column}, name));
  axis.addEventListener("input", () => { state.chosen = Number(axis.value); settle(); draw(); });
  const back = add(bar, "button", {type: "button"}, "whole run");
  back.addEventListener("click", () => { state.span = null; draw(); });
  // Iterations of another model or batch are other steps: such curves share no axis of iterations.
  function settle() {
    const models = new Set([...state.shown].map(one => data.series[one].model));
    const column = models.size > 1 && state.chosen === STEPS ? TOKENS : state.chosen;
    if (column !== state.axis) state.span = null;
    state.axis = column;
    axis.options[0].disabled = models.size > 1;
    axis.value = String(column);
  }
  data.series.forEach((series, index) => {
    if (index === 0 && !data.together) return;
    const box = control(series.name, "checkbox", input => {
      state.shown[input.checked ? "add" : "delete"](index);
      settle();
    });
    box.checked = state.shown.has(index);
  });
  settle();

  function draw() {
    const width = Math.max(280, place.clientWidth), height = 340 > width * 0.75 ? 300 : 360;
    const left = 46, right = width - 10, top = 12, bottom = height - 40, column = state.axis;
    const shown = [...state.shown].sort().map(index => ({index, ...data.series[index]}));
    const inside = point => (!state.span || (point[column] >= state.span[0] && state.span[1] >= point[column])) && (!state.logX || point[column] > 0);
    const curves = shown.map(series => ({...series, raw: series.points.filter(inside), line: smoothed(series.points, state.weight).filter(inside)}));
    const all = curves.flatMap(curve => [...curve.raw, ...curve.validation.filter(inside)]);
    if (all.length === 0) { state.span = null; place.replaceChildren(); return; }
    let [x0, x1] = state.span || [Math.min(...all.map(point => point[column])), Math.max(...all.map(point => point[column]))];
    let y0 = Math.min(...all.map(point => point[2])), y1 = Math.max(...all.map(point => point[2]));
    if (own.untrained && !state.span) y1 = Math.max(y1, own.untrained);
    const room = (y1 - y0) * 0.05 || 0.1;
    y1 += room;
    y0 = state.logY ? y0 * 0.97 : y0 - room;
    const scale = (value, from, to, log) => log ? Math.log(value / from) / Math.log(to / from) : (value - from) / (to - from || 1);
    const X = value => left + (right - left) * scale(value, x0, x1, state.logX);
    const Y = value => bottom - (bottom - top) * scale(value, y0, y1, state.logY);
    place.replaceChildren();
    const svg = add(place, "svg:svg", {viewBox: `0 0 ${width} ${height}`, width, height, role: "img", tabindex: "0", "font-size": "12", "font-family": "system-ui, sans-serif",
      "aria-label": `Loss of ${shown.map(series => series.name).join(", ")}. Arrow keys read single points; drag zooms.`});
    const text = (x, y, words, anchor) => add(svg, "svg:text", {x, y, "text-anchor": anchor, fill: "currentColor"}, words);
    ticksOf(y0, y1, state.logY).forEach(value => {
      add(svg, "svg:line", {x1: left, x2: right, y1: Y(value), y2: Y(value), stroke: "currentColor", opacity: "0.15"});
      text(left - 6, Y(value) + 4, four(value), "end");
    });
    let free = 0;
    const short = value => {
      if (column === TIME) return duration(value);
      return column === TOKENS && value >= 1e4 ? Intl.NumberFormat("en", {notation: "compact"}).format(value) : four(value);
    };
    ticksOf(x0, x1, state.logX).forEach(value => { if (X(value) > free) { text(X(value), bottom + 16, short(value), X(value) > right - 12 ? "end" : "middle"); free = X(value) + 44; } });
    text(right, bottom + 34, AXES[column], "end");
    text(left, bottom + 34, "loss (nat/token)", "start");
    add(svg, "svg:path", {d: `M${left} ${top}V${bottom}H${right}`, fill: "none", stroke: "currentColor"});
    if (own.untrained && y1 >= own.untrained && own.untrained >= y0) {
      add(svg, "svg:line", {x1: left, x2: right, y1: Y(own.untrained), y2: Y(own.untrained), stroke: "currentColor", "stroke-dasharray": "8 4", opacity: "0.6"});
      text(right, Y(own.untrained) - 5, `untrained: ln V = ${four(own.untrained)}`, "end");
    }
    const path = points => points.map(point => `${X(point[column]).toFixed(1)},${Y(point[2]).toFixed(1)}`).join(" ");
    curves.forEach(curve => {
      const stroke = COLOURS[curve.index % COLOURS.length];
      curve.restarts.filter(inside).forEach(point => {
        add(svg, "svg:line", {x1: X(point[column]), x2: X(point[column]), y1: top, y2: bottom, stroke, "stroke-dasharray": "2 4"});
        text(X(point[column]) + 3, bottom - 6, "restart", "start");
      });
      if (state.weight) add(svg, "svg:polyline", {points: path(curve.raw), fill: "none", stroke, opacity: "0.25"});
      add(svg, "svg:polyline", {points: path(curve.line), fill: "none", stroke, "stroke-width": "1.8"});
      curve.validation.filter(inside).forEach(point => add(svg, "svg:path", {d: `M${X(point[column]) - 5} ${Y(point[2])}l5 -5l5 5l-5 5z`, fill: "var(--paper)", stroke, "stroke-width": "1.6"}));
    });
    const names = shown.map(series => [series.name, COLOURS[series.index % COLOURS.length]]);
    names.forEach(([name, stroke], index) => {
      add(svg, "svg:line", {x1: right - 178, x2: right - 156, y1: top + 34 + 18 * index, y2: top + 34 + 18 * index, stroke, "stroke-width": "2.4"});
      text(right - 150, top + 38 + 18 * index, name.length > 22 ? name.slice(0, 21) + "…" : name, "start");
    });
    const cursor = add(svg, "svg:line", {y1: top, y2: bottom, stroke: "currentColor", opacity: "0"});
    const marks = curves.map(curve => add(svg, "svg:circle", {r: "4", fill: COLOURS[curve.index % COLOURS.length], opacity: "0"}));
    const band = add(svg, "svg:rect", {y: top, height: bottom - top, fill: "currentColor", opacity: "0"});

    function read(value) {
      state.at = value;
      const found = curves.map((curve, index) => {
        const near = curve.line.reduce((best, point, number) => !best || Math.abs(best[0][column] - value) > Math.abs(point[column] - value) ? [point, number] : best, null);
        if (!near) return "";
        marks[index].setAttribute("cx", X(near[0][column]));
        marks[index].setAttribute("cy", Y(near[0][2]));
        marks[index].setAttribute("opacity", "1");
        const raw = curve.raw[near[1]][2], mean = state.weight ? `, smoothed ${four(near[0][2])}` : "";
        const after = column === TIME ? ` after ${duration(near[0][TIME])}` : "";
        return `${curve.name}: iteration ${whole(near[0][0])}, ${whole(near[0][1])} tokens${after}, loss ${four(raw)}${mean}`;
      });
      cursor.setAttribute("x1", X(value));
      cursor.setAttribute("x2", X(value));
      cursor.setAttribute("opacity", "0.5");
      said.textContent = found.filter(Boolean).join(" · ");
    }
    const valueAt = event => {
      const box = svg.getBoundingClientRect();
      const share = Math.min(1, Math.max(0, ((event.clientX - box.left) * width / box.width - left) / (right - left)));
      return state.logX ? x0 * (x1 / x0) ** share : x0 + share * (x1 - x0);
    };
    let start = null;
    svg.addEventListener("pointerdown", event => { if (event.pointerType === "mouse") start = valueAt(event); else read(valueAt(event)); });
    svg.addEventListener("pointermove", event => {
      const value = valueAt(event);
      read(value);
      if (start === null) return;
      band.setAttribute("x", Math.min(X(start), X(value)));
      band.setAttribute("width", Math.abs(X(start) - X(value)));
      band.setAttribute("opacity", "0.15");
    });
    svg.addEventListener("pointerup", event => {
      if (start === null) return;
      const span = [start, valueAt(event)].sort((a, b) => a - b);
      start = null;
      const inSpan = curves[0].points.filter(point => point[column] >= span[0] && span[1] >= point[column]);
      if (inSpan.length > 2) { state.span = span; draw(); } else band.setAttribute("opacity", "0");
    });
    svg.addEventListener("pointerleave", () => { start = null; band.setAttribute("opacity", "0"); });
    svg.addEventListener("dblclick", () => { state.span = null; draw(); });
    svg.addEventListener("keydown", event => {
      const line = curves[0].line, step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (!step || line.length === 0) return;
      event.preventDefault();
      const now = state.at === null ? -1 : line.findIndex(point => point[column] >= state.at);
      read(line[Math.min(line.length - 1, Math.max(0, now + step))][column]);
    });
    back.disabled = !state.span;
  }
  if (still) still.remove();
  figure.receive = curve => {
    const index = data.series.findIndex(series => series.name === curve.name);
    if (index === -1) return;
    Object.assign(data.series[index], curve);
    settle();
    draw();
  };
  draw();
  let width = place.clientWidth;
  new ResizeObserver(() => { if (place.clientWidth !== width) { width = place.clientWidth; draw(); } }).observe(place);
}
document.querySelectorAll("figure.chart").forEach(makeChart);
