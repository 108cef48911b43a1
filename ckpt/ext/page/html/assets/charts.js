// Charts of ECharts on a canvas, in the colours of the page. Their texts are drawn, so none of them is markup.

const charts = new Set();
// What else is drawn again when the colours of the page change.
const themed = new Set();

function colours() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    text: value("text"),
    soft: value("soft"),
    line: value("line"),
    panel: value("panel"),
    hover: value("hover"),
    ground: value("ground"),
    accent: value("accent"),
    alarm: value("alarm"),
    alarm_soft: value("alarm-soft"),
    held: value("held"),
    none: value("none"),
    bad: value("bad"),
    ramp: ["ramp-1", "ramp-2", "ramp-3", "ramp-4", "ramp-5"].map(value),
    roles: Object.fromEntries(ROLES.map(([key]) => [key, value(`role-${key}`)])),
    kinds: ["kind-1", "kind-2", "kind-3", "kind-4", "kind-5", "kind-6", "kind-7", "kind-8"].map(value),
  };
}

// A canvas with the chart that `option(colours, width)` describes; `label` says what it shows.
function chart(label, height, option) {
  const holder = el("div", { class: "chart", role: "img", "aria-label": label });
  let canvas = null;
  const made = {
    element: holder,
    on: [],
    draw() {
      if (!holder.isConnected || holder.clientWidth === 0) return;
      const tall = typeof height === "function" ? height() : height;
      holder.style.height = `${tall}px`;
      if (!canvas) {
        canvas = echarts.init(holder, null, { renderer: "canvas" });
        for (const [event, act] of made.on) canvas.on(event, act);
      }
      canvas.resize({ width: holder.clientWidth, height: tall });
      const palette = colours();
      canvas.dispatchAction({ type: "hideTip" });
      canvas.clear(); // or a treemap moves its tiles from what was drawn before
      made.canvas = canvas;
      canvas.setOption({ ...common_option(palette), ...option(palette, holder.clientWidth) }, { notMerge: true });
    },
  };
  charts.add(made);
  new ResizeObserver(() => {
    if (holder.clientWidth !== made.width) {
      made.width = holder.clientWidth;
      made.draw();
    }
  }).observe(holder);
  return made;
}

function common_option(palette) {
  return {
    animation: false,
    backgroundColor: "transparent",
    textStyle: { fontFamily: "system-ui, sans-serif", color: palette.text },
  };
}

const tooltip = (palette, formatter, more = {}) => ({
  renderMode: "richText",
  confine: true,
  hideDelay: 0,
  transitionDuration: 0,
  backgroundColor: palette.panel,
  borderColor: palette.line,
  borderWidth: 1,
  textStyle: { color: palette.text, fontSize: 12, fontFamily: "ui-monospace, monospace" },
  // `{word|` begins a style in the text of a canvas
  formatter: (params) => String(formatter(params)).replace(/\{(?=\w+\|)/g, "{ "),
  ...more,
});

const axis = (palette) => ({
  axisLine: { lineStyle: { color: palette.line } },
  axisTick: { show: false },
  splitLine: { lineStyle: { color: palette.line, opacity: 0.6 } },
  axisLabel: { color: palette.soft, fontSize: 11 },
});

// An axis of names, the first on top.
const names_axis = (palette, names, size) => ({
  ...axis(palette),
  type: "category",
  inverse: true,
  data: names.map((_, at) => String(at)),
  axisLabel: {
    color: palette.text,
    fontSize: 11,
    fontFamily: "ui-monospace, monospace",
    interval: names.length > 400 ? "auto" : 0,
    formatter: (at) => shortened(names[Number(at)], size),
  },
});

const label_size = (width) => (width < 500 ? 18 : width < 800 ? 30 : 44);

// The room that names take: 6.7 px for each character.
function label_room(names, size) {
  const longest = names.reduce((most, name) => Math.max(most, Math.min(shortened(name, size).length, size)), 4);
  return Math.ceil(longest * 6.7) + 14;
}

function legend(items) {
  return el(
    "ul",
    { class: "legend" },
    items.map(([colour, text]) => {
      const mark = el("span", { class: "swatch" });
      mark.style.background = colour;
      return el("li", {}, mark, text);
    })
  );
}

// The rows of a legend for a ramp of logarithms: a number beside each of its colours.
function scale(palette, low, high, text) {
  if (!(high > low)) return [[ramp(palette.ramp, 0.5), text(low)]];
  const last = palette.ramp.length - 1;
  const values = palette.ramp.map((_, at) => (at === last ? high : low * (high / low) ** (at / last)));
  const ends = (at) => (at === 0 ? ", the smallest" : at === last ? ", the largest" : "");
  return palette.ramp.map((colour, at) => [colour, text(values[at]) + ends(at)]);
}

// A legend that follows the colours of the page; `items(palette)` are its rows.
function keyed(items) {
  const key = el("div", {});
  const redo = () => emptied(key, legend(items(colours())));
  redo();
  themed.add(redo);
  return key;
}

// The step of an axis: 1, 2 or 5 times a power of ten, so that at most `most` of them cover a span.
function nice_step(span, most) {
  const power = 10 ** Math.floor(Math.log10(span / most));
  return [1, 2, 5, 10].map((times) => times * power).find((step) => span / step <= most * (1 + 1e-9));
}

// A colour between those of a ramp; `share` is from 0 to 1.
function ramp(colours, share) {
  const place = Math.min(Math.max(share, 0), 1) * (colours.length - 1);
  const at = Math.min(Math.floor(place), colours.length - 2);
  const [one, two] = [channels(colours[at]), channels(colours[at + 1])];
  const mixed = one.map((value, channel) => Math.round(value + (two[channel] - value) * (place - at)));
  return `rgb(${mixed.join(",")})`;
}

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

// Black or white, whichever can be read on a colour.
function ink(colour) {
  const parts = colour.startsWith("#") ? channels(colour) : colour.match(/\d+/g).map(Number);
  const linear = parts.map((value) => ((value / 255) <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  const light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return light > 0.18 ? "#000000" : "#ffffff";
}

// A histogram as one path of SVG, with its limits as text.
function histogram_of(found) {
  if (!found || !found.counts.length) return "";
  const most = Math.max(largest_of(found.counts), 1);
  const wide = 128 / found.counts.length;
  const steps = found.counts.map((count, at) => {
    const tall = count ? Math.max((count / most) * 30, 1) : 0;
    return `M${(at * wide).toFixed(2)} 32v-${tall.toFixed(2)}h${wide.toFixed(2)}v${tall.toFixed(2)}z`;
  });
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 128 32");
  svg.setAttribute("class", "histogram");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `histogram from ${number_text(found.low)} to ${number_text(found.high)}`);
  path.setAttribute("d", steps.join(""));
  svg.append(path);
  return el("span", { class: "spread" }, svg, el("span", { class: "limits" }, `${number_text(found.low)} … ${number_text(found.high)}`));
}
