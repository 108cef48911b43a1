// The numbers inside of tensors: a band for each tensor in the order of the model, dead channels, NaN and Inf.

function stats_view(view) {
  const { stats } = view;
  const rows = stats_rows(stats, null);
  return [
    headline(name_of(stats.file.path, 400), [
      sentence(stats.file.format || ""),
      stats.section && `of ${show(stats.section)}`,
      plural(stats.totals.tensors, "tensor"),
      stats.totals.numel > 0 && `${percent(stats.totals.zeros / stats.totals.numel)} zeros`,
    ]),
    unread_part([stats], () => null),
    bad_part(rows),
    findings_part(stats.findings, BAD_CODES),
    strip_part(rows, null),
    ...stats_parts(rows, stats.threshold),
  ];
}

// What could not be read, or does not match its checksum, has no numbers: it is said before all of them.
function unread_part(all, label_of_path) {
  const lines = all
    .filter((stats) => stats.unread && stats.unread.length > 0)
    .map((stats) => [label_of_path(stats.file.path), and_more(stats.unread.map((name) => show(name)), 5)]);
  if (!lines.length) return null;
  return el("div", { class: "danger", role: "alert" },
    el("b", {}, "NOT READ"),
    ...lines.slice(0, 20).map(([label, names]) => el("p", {}, label ? name_of(label, 60) : "", label ? ": " : "", `${names} (lost, or the bytes do not match the checksum: ckpt verify).`)),
    lines.length > 20 && el("p", {}, `… ${plural(lines.length - 20, "more file")}`));
}

// The rows of statistics. `order` are the names of all tensors in the order of the model, where a document says it.
function stats_rows(stats, order) {
  const places = new Map((order || []).map((name, at) => [name, at]));
  const rows = rows_of(stats.tensors);
  if (order) rows.sort((one, two) => (places.get(one.name) ?? places.size) - (places.get(two.name) ?? places.size));
  return rows;
}

function stats_parts(rows, threshold) {
  if (!rows.length) return [];
  return [
    part("Values of the tensors", `Light: minimum to maximum. Dark: mean ± std. Line: mean. One column for each ${rows.length > COLUMNS ? "module" : "tensor"}, in order.`, () => band(rows)),
    dead_part(rows, threshold),
    part("Numbers", null, () => stats_list(rows)),
  ];
}

const COLUMNS = 1000;
const LABEL = 24;

// More tensors than the chart has room for, as one row for each module.
function merged(rows) {
  const { chosen } = depths(rows, COLUMNS);
  return grouped(rows, chosen).map(({ name, rows: some }) => {
    const known = some.filter((row) => has_numbers(row) && typeof row.mean === "number" && row.numel > 0);
    const count = known.reduce((sum, row) => sum + row.numel, 0);
    const mean = known.reduce((sum, row) => sum + row.mean * row.numel, 0) / (count || 1);
    const square = known.reduce((sum, row) => sum + ((row.std || 0) ** 2 + row.mean ** 2) * row.numel, 0) / (count || 1);
    const least = (key, best) => (known.length ? known.reduce((found, row) => best(found, row[key]), known[0][key]) : null);
    return {
      name,
      min: least("min", Math.min),
      max: least("max", Math.max),
      mean: known.length ? mean : null,
      std: known.length ? Math.sqrt(Math.max(square - mean * mean, 0)) : null,
      rms: known.length ? Math.sqrt(square) : null,
      nan: some.reduce((sum, row) => sum + (row.nan || 0), 0),
      inf: some.reduce((sum, row) => sum + (row.inf || 0), 0),
    };
  });
}

const has_numbers = (row) => typeof row.min === "number" && typeof row.max === "number";

function band(rows) {
  const some = rows.filter((row) => has_numbers(row) || row.nan || row.inf);
  const shown = some.length > COLUMNS ? merged(some) : some;
  if (!shown.length) return null;
  const sizes = shown.flatMap((row) => [row.min, row.max]).filter((value) => typeof value === "number" && value !== 0).map(Math.abs);
  const inner = shown.map((row) => row.rms).filter((value) => typeof value === "number" && value > 0).sort((one, two) => one - two);
  const high = sizes.length ? largest_of(sizes) : 1;
  const middle = inner.length ? inner[Math.floor(inner.length / 2)] : high;
  // The scale begins a decade below the usual values, and spans eight of them at most.
  const floor = Math.max(Math.floor(Math.log10(middle)) - 1, Math.ceil(Math.log10(high)) - 8);
  let is_log = high / middle > 50;
  const to = (value) => (is_log ? Math.sign(value) * Math.max(Math.log10(Math.abs(value)) - floor, 0) : value);
  const from = (value) => (is_log ? Math.sign(value) * 10 ** (Math.abs(value) + floor) : value);
  const drawn = chart("Minimum, mean, deviation and maximum of each tensor", 460, (palette, width) => band_option(shown, palette, width, to, from, () => is_log));
  const small = el("span", { class: "found" });
  const tell = () => (small.textContent = is_log ? `What is below ${number_text(10 ** floor)} is drawn at zero.` : "");
  tell();
  return [
    el("div", { class: "tools" }, choice("Scale", [[true, "Logarithmic"], [false, "Linear"]], is_log, (value) => {
      is_log = value;
      tell();
      drawn.draw();
    }), small),
    drawn.element,
    keyed((palette) => [[palette.ramp[0], "minimum to maximum"], [palette.accent, "mean ± std"], ...(shown.some((row) => row.nan || row.inf) ? [[palette.bad, "holds NaN or Inf"]] : [])]),
  ];
}

function band_option(rows, palette, width, to, from, is_log) {
  const names = rows.map((row) => row.name);
  const column = (params, api) => {
    const row = rows[params.dataIndex];
    const at = api.coord([params.dataIndex, 0])[0];
    const wide = Math.max(api.size([1, 0])[0], 1);
    const gap = wide > 6 ? 1 : 0;
    const y = (value) => api.coord([params.dataIndex, to(value)])[1];
    const box = (one, two, fill) => {
      const [top, bottom] = [Math.min(y(one), y(two)), Math.max(y(one), y(two))];
      return { type: "rect", shape: { x: at - wide / 2 + gap / 2, y: top, width: wide - gap, height: Math.max(bottom - top, 1) }, style: { fill } };
    };
    const children = [];
    if (has_numbers(row)) {
      children.push(box(row.min, row.max, palette.ramp[0]));
      if (typeof row.mean === "number") {
        const std = typeof row.std === "number" ? row.std : 0;
        children.push(box(Math.max(row.mean - std, row.min), Math.min(row.mean + std, row.max), palette.accent));
        children.push({ type: "rect", shape: { x: at - wide / 2 + gap / 2, y: y(row.mean) - 1, width: wide - gap, height: 2 }, style: { fill: palette.text } });
      }
    }
    if (row.nan || row.inf) {
      const area = params.coordSys;
      children.push({ type: "rect", shape: { x: at - Math.max(wide, 3) / 2, y: area.y, width: Math.max(wide, 3), height: area.height }, style: { fill: palette.bad, opacity: 0.35 } });
      children.push({ type: "rect", shape: { x: at - Math.max(wide, 6) / 2, y: area.y, width: Math.max(wide, 6), height: 6 }, style: { fill: palette.bad } });
    }
    return { type: "group", children };
  };
  const lows = rows.map((row) => (has_numbers(row) ? to(row.min) : 0));
  const highs = rows.map((row) => (has_numbers(row) ? to(row.max) : 0));
  const [low, high] = [-largest_of(lows.map((value) => -value)), largest_of(highs)];
  const step = is_log() ? 1 : nice_step(high - low || 1, 8);
  const longest = largest_of(names.map((name) => shortened(name, LABEL).length));
  const every = Math.max(Math.ceil((rows.length * 15) / Math.max(width - 74, 1)), 1);
  return {
    grid: { left: 62, right: 12, top: 12, bottom: 20 + Math.ceil(longest * 5.2) },
    tooltip: tooltip(palette, ({ dataIndex }) => stats_text(rows[dataIndex])),
    xAxis: {
      ...axis(palette),
      type: "category",
      data: names.map((_, at) => String(at)),
      axisLabel: { color: palette.soft, fontSize: 10, fontFamily: "ui-monospace, monospace", rotate: 60, interval: every - 1, formatter: (at) => shortened(names[Number(at)], LABEL) },
    },
    yAxis: {
      ...axis(palette),
      type: "value",
      min: Math.floor(low / step) * step,
      max: Math.ceil(high / step) * step,
      ...(is_log() ? { minInterval: 1 } : { interval: step }),
      axisLabel: { color: palette.soft, fontSize: 11, formatter: (value) => (value === 0 ? "0" : number_text(from(value))) },
    },
    series: [{ type: "custom", renderItem: column, data: rows.map((_, at) => [at, 0]), encode: { x: 0, y: 1 }, clip: true }],
  };
}

function stats_text(row) {
  const numbers = ["min", "mean", "max", "std", "rms"].map((key) => `${key} ${number_text(row[key])}`);
  const bad = [row.nan && `${whole(row.nan)} NaN`, row.inf && `${whole(row.inf)} Inf`].filter(Boolean);
  return [show(row.name), numbers.slice(0, 3).join(", "), numbers.slice(3).join(", "), ...bad].join("\n");
}

// The channels of each layer as a strip: dead ones are marked.
function dead_part(rows, threshold) {
  const layers = rows.filter((row) => row.channels && Array.isArray(row.channels.dead) && row.channels.count > 0);
  const dead = layers.filter((row) => row.channels.dead.length);
  if (!layers.length) return null;
  const total = dead.reduce((sum, row) => sum + row.channels.dead.length, 0);
  const count = total ? `${plural(total, "dead channel")} in ${whole(dead.length)} of ${plural(layers.length, "layer")}.` : `No dead channel in ${plural(layers.length, "layer")}.`;
  const note = `${count} A channel is dead below ${number_text(threshold)} times the largest one of its layer.`;
  return part("Dead channels", null, () => [el("p", { class: "note" }, note), dead.length > 0 && strips(dead)]);
}

function strips(layers) {
  const shown = layers.slice(0, 60);
  const names = shown.map((row) => row.name);
  const drawn = chart("Dead channels of each layer", shown.length * 22 + 34, (palette, width) => {
    const size = label_size(width);
    const strip = (params, api) => {
      const { count, dead } = shown[params.dataIndex].channels;
      const area = params.coordSys;
      const at = api.coord([0, params.dataIndex])[1];
      const wide = area.width / count;
      const rect = (x, width, fill) => ({ type: "rect", shape: { x, y: at - 7, width, height: 14 }, style: { fill } });
      return {
        type: "group",
        children: [rect(area.x, area.width, palette.ramp[0]), ...dead.slice(0, 4096).map((number) => rect(area.x + number * wide, Math.max(wide - (wide > 4 ? 1 : 0), 1), palette.alarm))],
      };
    };
    return {
      grid: { left: label_room(names, size), right: 90, top: 4, bottom: 24 },
      tooltip: tooltip(palette, ({ dataIndex }) => {
        const { count, dead } = shown[dataIndex].channels;
        return `${show(names[dataIndex])}\n${whole(dead.length)} of ${plural(count, "channel")}: ${and_more(dead.map(String), 12)}`;
      }),
      xAxis: { ...axis(palette), type: "value", min: 0, max: 1, splitLine: { show: false }, axisLabel: { color: palette.soft, fontSize: 11, formatter: (value) => (value === 0 ? "first" : value === 1 ? "last channel" : "") } },
      yAxis: names_axis(palette, names, size),
      series: [{ type: "custom", renderItem: strip, data: shown.map((_, at) => [0, at]), encode: { x: 0, y: 1 } }],
    };
  });
  return [drawn.element, dead_list(layers)];
}

function dead_list(layers) {
  const columns = [
    { title: "Layer", cell: (row) => name_of(row.name, 400), key: (row) => row.name },
    { title: "Dead", cell: (row) => whole(row.channels.dead.length), key: (row) => row.channels.dead.length, right: true },
    { title: "Of", cell: (row) => whole(row.channels.count), key: (row) => row.channels.count, right: true },
    { title: "Channels", cell: (row) => and_more(row.channels.dead.map(String), 16) },
  ];
  const sorted = [...layers].sort((one, two) => two.channels.dead.length - one.channels.dead.length);
  return filtered(columns, sorted, { label: "Dead channels", filter: "Filter layers", text: (row) => row.name, step: 10 });
}

function stats_list(rows) {
  const number = (key, title) => ({ title, cell: (row) => number_text(row[key]), key: (row) => row[key], right: true });
  const bad = (key, title) => ({ title, cell: (row) => (row[key] ? el("b", { class: "alarm" }, whole(row[key])) : ""), key: (row) => row[key], right: true });
  const columns = [
    { title: "Name", cell: (row) => name_of(row.name, 400), key: (row) => row.name },
    { title: "Shape", cell: (row) => shape_text(row.shape) },
    number("min", "Min"),
    number("mean", "Mean"),
    number("max", "Max"),
    number("std", "Std"),
    number("rms", "RMS"),
    { title: "Zeros", cell: (row) => (row.numel ? percent(row.zeros / row.numel) : ""), key: (row) => (row.numel ? row.zeros / row.numel : null), right: true },
    ...(rows.some((row) => row.nan) ? [bad("nan", "NaN")] : []),
    ...(rows.some((row) => row.inf) ? [bad("inf", "Inf")] : []),
    ...(rows.some((row) => row.histogram) ? [{ title: "Histogram", cell: (row) => histogram_of(row.histogram) }] : []),
    ...(rows.some((row) => row.why_not) ? [{ title: "Note", cell: (row) => (row.why_not ? sentence(row.why_not) : "") }] : []),
  ];
  return filtered(columns, rows, { label: "Numbers", filter: "Filter tensors", text: (row) => `${row.name} ${row.dtype}`, step: 50 });
}
