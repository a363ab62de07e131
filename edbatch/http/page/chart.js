// A line chart of the last minutes, drawn as SVG, with the values under the pointer.

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 38, RIGHT = 8, TOP = 8, BOTTOM = 20;

export function shown(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 10000) return `${(value / 1000).toFixed(0)}k`;
  if (value >= 100 || value === Math.round(value)) return value.toFixed(0);
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function element(name, attributes = {}, text = "") {
  const found = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  found.textContent = text;
  return found;
}

// The least of 1, 2, 5, 10, ... that is no smaller, so that the axis keeps still.
function above(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return power * [1, 2, 5, 10].find((step) => step * power >= value * 0.9999);
}

export class Chart {
  // series: [{key, label, color}], color a class of the style sheet.
  constructor(figure, title, series, least = 1) {
    this.series = series;
    this.least = least;
    this.title = title;
    this.seconds = [];
    this.at = null;
    const heading = document.createElement("h2");
    heading.textContent = title;
    const legend = document.createElement("ul");
    legend.className = "legend";
    this.labels = series.map(({ label, color }) => {
      const item = document.createElement("li");
      const mark = document.createElement("i");
      mark.className = color;
      const text = document.createElement("span");
      text.textContent = label;
      item.append(mark, text);
      legend.append(item);
      return text;
    });
    this.svg = element("svg", { role: "img" });
    figure.append(heading, legend, this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => { this.at = null; this.draw(); });
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  show(seconds, span) {
    this.seconds = seconds;
    this.span = span;
    this.draw();
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    this.at = this.end() - (1 - Math.min(1, Math.max(0, share))) * this.span;
    this.draw();
  }

  end() {
    return this.seconds.length ? this.seconds[this.seconds.length - 1].time : 0;
  }

  draw() {
    const { width, height } = this.svg.getBoundingClientRect();
    if (!width) return;
    const values = this.seconds.flatMap((second) => this.series.map(({ key }) => second[key]));
    const known = values.filter((value) => value !== null && value !== undefined);
    const top = above(Math.max(this.least, ...known));
    const end = this.end(), span = this.span || 300;
    const x = (time) => LEFT + (1 - (end - time) / span) * (width - LEFT - RIGHT);
    const y = (value) => height - BOTTOM - (value / top) * (height - TOP - BOTTOM);
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      const line = { x1: LEFT, x2: width - RIGHT, y1: y(share * top), y2: y(share * top) };
      parts.push(element("line", { ...line, class: "grid" }));
      const place = { x: LEFT - 5, y: y(share * top) + 4, "text-anchor": "end" };
      parts.push(element("text", place, shown(share * top)));
    }
    const step = width < 420 ? 2 : 1;  // so that labels do not meet
    for (let minutes = 0; minutes <= span / 60; minutes += step) {
      const anchor = minutes ? (minutes * 60 === span ? "start" : "middle") : "end";
      const place = { x: x(end - minutes * 60), y: height - 5, "text-anchor": anchor };
      parts.push(element("text", place, minutes ? `−${minutes} min` : "now"));
    }
    for (const { key, color } of this.series)
      parts.push(element("path", { d: this.path(key, x, y), class: color }));
    if (!known.length) {
      const place = { x: (LEFT + width) / 2, y: height / 2, "text-anchor": "middle" };
      parts.push(element("text", place, "no requests in the last five minutes"));
    }
    this.tell(parts, x, height);
    this.svg.replaceChildren(...parts);
  }

  // A second without a value ends the line; one between two such is a dot.
  path(key, x, y) {
    let found = "", down = false;
    for (const second of this.seconds) {
      const value = second[key];
      if (value === null || value === undefined) { down = false; continue; }
      const place = `${x(second.time).toFixed(1)},${y(value).toFixed(1)}`;
      found += down ? `L${place}` : `M${place}h0.01`;
      down = true;
    }
    return found;
  }

  // Writes values into the legend: those under the pointer, or the latest.
  tell(parts, x, height) {
    const last = this.seconds[this.seconds.length - 1];
    let second = last;
    if (this.at !== null && last) {
      second = this.seconds.reduce((best, each) =>
        Math.abs(each.time - this.at) < Math.abs(best.time - this.at) ? each : best);
      const place = x(second.time);
      parts.push(element("line", { x1: place, x2: place, y1: TOP, y2: height - BOTTOM,
        class: "cursor" }));
    }
    const told = this.series.map(({ key, label }, k) => {
      const text = `${label} ${second ? shown(second[key]) : "–"}`;
      this.labels[k].textContent = text;
      return text;
    });
    const when = this.at !== null && second
      ? new Date(second.time * 1000).toLocaleTimeString() : "now";
    this.svg.setAttribute("aria-label", `${this.title}, ${when}: ${told.join(", ")}`);
  }
}
