// Several files of one model over time, and lists of files.

const GRID_ROWS = 32;
const FILES = 400;

function series_view(view) {
  const series = series_of(view);
  const { files, labels, rows } = series;
  return [
    headline(`${plural(files.length, "file")} of a series`, [
      files.length > 1 && [name_of(labels[0], 60, show(files[0], 400)), " to ", name_of(labels[labels.length - 1], 60, show(files[files.length - 1], 400))],
      plural(rows.length, "tensor"),
    ]),
    strangers_part(view, files, labels),
    unread_part(view.stats, (path) => labels[files.indexOf(path)] || base(path)),
    series_facts(series),
    curves_part(view, files, labels),
    rows.length > 0 && part("Over time", "One row for each layer, in the order of the model, with the change of the tensor in it that changed most. One column for each file.", () => heat_map(series)),
    rows.length > 0 && part("Numbers", null, () => series_table(series)),
    ...(view.files ? file_parts(view.files, labels_of(view)) : []),
  ];
}

// The labels of files by their paths. A path is no key of an object: it may be `__proto__`.
const labels_of = (view) => new Map(view.labels || []);

// The tensors over the files: `rms[at]`, `change[at]` (from the file before to this one), `bad[at]`.
function series_of(view) {
  const stats = view.stats.map((each) => ({ path: each.file.path, rows: rows_of(each.tensors) }));
  const diffs = view.diffs.map((each) => ({ before: each.before.path, after: each.after.path, rows: rows_of(each.tensors) }));
  const files = (stats.length ? stats.map((each) => each.path) : [...new Set(diffs.flatMap((each) => [each.before, each.after]))]).slice(0, FILES);
  const known = labels_of(view);
  const labels = files.map((path) => known.get(path) || base(path));
  const rows = new Map();
  const row_of = (name) => {
    if (!rows.has(name)) rows.set(name, { name, role: null, numel: 0, rms: [], change: [], bad: [] });
    return rows.get(name);
  };
  const place_of = (diff) => files.findIndex((path, place) => path === diff.after && (place === 0 || files[place - 1] === diff.before));
  // A file may name its tensors otherwise than the file before (`w` after `state_dict.w`): a row has the first of the names.
  const firsts = new Map(files.map((path) => [path, new Map()]));
  const first_name = (path, name) => (firsts.has(path) && firsts.get(path).get(name)) || name;
  for (const diff of [...diffs].sort((one, two) => place_of(one) - place_of(two))) {
    if (place_of(diff) < 0) continue;
    for (const each of diff.rows) {
      if (each.before === null || each.after === null) continue;
      const name = first_name(diff.before, each.before);
      if (name !== each.after) firsts.get(diff.after).set(each.after, name);
    }
  }
  // The order of the model is that of a comparison.
  for (const diff of diffs) for (const each of diff.rows) row_of(first_name(each.after === null ? diff.before : diff.after, label_of(each)));
  stats.forEach((file, at) => {
    for (const each of file.rows) {
      const row = row_of(first_name(file.path, each.name));
      row.numel = each.numel || row.numel;
      row.rms[at] = each.rms;
      row.bad[at] = (each.nan || 0) + (each.inf || 0);
    }
  });
  for (const diff of diffs) {
    const at = place_of(diff);
    const moved = diff.rows.some((each) => is_parameter(each) && each.status === "changed");
    if (at < 0) continue;
    for (const each of diff.rows) {
      const row = row_of(first_name(each.after === null ? diff.before : diff.after, label_of(each)));
      row.role = each.role;
      row.numel = row.numel || each.numel || 0;
      row.change[at] = { value: typeof each.rel_l2 === "number" ? each.rel_l2 : null, status: each.status, still: is_still(each, moved), alarms: is_still(each, moved) && is_warned(each) };
    }
  }
  return { files, labels, rows: [...rows.values()], has_stats: stats.length > 0, has_diffs: diffs.length > 0 };
}

const CURVES = 12;

// The numbers that all files record, such as loss and lr, one curve for each that is not the same everywhere.
function curves_part(view, files, labels) {
  const all = (view.curves || []).map(({ names, values }) => ({ names, values: values.slice(0, files.length) }));
  const curves = all.filter(({ values }) => values.length === files.length && new Set(values).size > 1);
  if (files.length < 2 || !curves.length) return null;
  const list = el("div", { class: "curves" });
  const more = unfolding(curves, (curve) => curve_of(curve, files, labels), CURVES, list);
  return part("Recorded values", "Numbers that all files record and that differ, from the first file to the last.", () => [list, more]);
}

function curve_of({ names, values }, files, labels) {
  const drawn = chart(`${show(names[0])} over the files`, 150, (palette, width) => curve_option(values, files, labels, palette, width));
  const ends = `${recorded_text(values[0])} → ${recorded_text(values[values.length - 1])}`;
  const title = el("p", { class: "curve-title" }, name_of(names[0], 80), el("span", { class: "soft" }, ` ${ends}`), names.length > 1 && el("span", { class: "soft", title: names.slice(1, 20).map((name) => show(name)).join(", ") }, `, and ${plural(names.length - 1, "value")} equal to it`));
  return el("figure", { class: "curve" }, title, drawn.element);
}

const CURVE_TICKS = 3;

// The axis of a curve: round numbers, few, and each with a text of its own. `to` places a value on it.
function curve_axis(values) {
  const numbers = values.filter((value) => typeof value === "number" && Number.isFinite(value));
  const is_log = numbers.length === values.length && smallest_of(numbers) > 0 && largest_of(numbers) >= 1000 * smallest_of(numbers);
  const to = is_log ? Math.log10 : (value) => value;
  const [low, high] = [to(smallest_of(numbers)), to(largest_of(numbers))];
  const nice = nice_step(high - low || Math.abs(high) || 1, CURVE_TICKS);
  const step = is_log ? Math.max(Math.ceil(nice), 1) : nice;
  const [min, max] = [Math.floor(low / step) * step, Math.ceil(high / step) * step];
  const decimals = Math.min(Math.max(-Math.floor(Math.log10(step) + 1e-9), 0), 20);
  const size = Math.max(Math.abs(min), Math.abs(max));
  const is_plain = size < 1e5 && (step >= 1e-4 || size >= 1);
  const label = (value) => {
    if (is_log) return number_text(10 ** Math.round(value));
    const near = Math.round(value / step) * step;
    if (near === 0) return "0";
    if (is_plain) return near.toFixed(decimals);
    const digits = Math.floor(Math.log10(Math.abs(near)) + 1e-9) - Math.floor(Math.log10(step) + 1e-9);
    return near.toExponential(Math.min(Math.max(digits, 0), 20)).replace(/\.?0+e/, "e");
  };
  return { to, min, max, step, label };
}

const CURVE_LEFT = 64;
const CURVE_RIGHT = 14;
const CURVE_LETTERS = 14;

// Every how many files a curve has the name of one, so that no two names lie over each other.
function curve_every(labels, width) {
  const longest = largest_of(labels.map((text) => Math.min(text.length, CURVE_LETTERS)));
  const fitting = Math.floor((width - CURVE_LEFT - CURVE_RIGHT) / (6 * longest + 10));
  return Math.ceil(labels.length / Math.max(fitting, 1));
}

function curve_option(values, files, labels, palette, width) {
  const { to, min, max, step, label } = curve_axis(values);
  return {
    grid: { left: CURVE_LEFT, right: CURVE_RIGHT, top: 10, bottom: 24 },
    tooltip: tooltip(palette, ({ dataIndex }) => `${show(files[dataIndex])}\n${recorded_text(values[dataIndex])}`, { trigger: "item" }),
    xAxis: { ...axis(palette), type: "category", data: labels.map((_, at) => String(at)), axisLabel: { color: palette.soft, fontSize: 10, interval: curve_every(labels, width) - 1, formatter: (at) => shortened(labels[Number(at)], CURVE_LETTERS) } },
    yAxis: { ...axis(palette), type: "value", min, max: max > min ? max : min + step, interval: step, axisLabel: { color: palette.soft, fontSize: 10, formatter: label, hideOverlap: true } },
    series: [{ type: "line", data: values.map((value) => (typeof value === "number" && Number.isFinite(value) ? to(value) : null)), symbolSize: 5, lineStyle: { color: palette.accent, width: 2 }, itemStyle: { color: palette.accent } }],
  };
}

// The files that do not belong to their neighbours.
function strangers_part(view, files, labels) {
  const found = view.diffs.filter((each) => each.strangers);
  if (!found.length) return null;
  const label = (path) => labels[files.indexOf(path)] || base(path);
  const item = (each) =>
    el("li", { class: "finding warning" }, el("span", { class: "badge" }, "warning"), el("div", {}, el("p", {}, name_of(label(each.before.path), 60, show(each.before.path, 400)), " and ", name_of(label(each.after.path), 60, show(each.after.path, 400)), ` have ${sentence(each.strangers)}.`)));
  return part("Files of other models", null, () => el("ul", { class: "findings" }, found.slice(0, NAMES).map(item)));
}

// What the numbers say in words.
function series_facts({ files, labels, rows, has_diffs }) {
  const facts = new Map();
  const say = (key, level, text, row) => {
    if (!facts.has(key)) facts.set(key, { level, text, names: [] });
    facts.get(key).names.push(row.name);
  };
  for (const row of rows) {
    const steps = files.map((_, at) => row.change[at]).filter(Boolean);
    const last = files.length - 1;
    let at = last;
    // Between two files in which nothing moved, a tensor is the same too, which neither begins nor ends a standstill.
    while (at > 0 && row.change[at] && row.change[at].status === "same") at -= 1;
    if (has_diffs && row.change.slice(at + 1).some((step) => step && step.still)) {
      const level = steps.some((step) => step.alarms) ? "warning" : "info";
      if (steps.every((step) => step.status === "same")) say(`never ${level}`, level, "did not change in any file, while other parameters did.", row);
      else say(`still ${at} ${level}`, level, `did not change after ${show(labels[at])}, while other parameters did.`, row);
    }
    const bad = files.findIndex((_, at) => row.bad[at] > 0);
    if (bad >= 0) say(`bad ${bad}`, "error", `with NaN or Inf, first in ${show(labels[bad])}.`, row);
    const dead = files.findIndex((_, at) => at > 0 && row.rms[at] === 0 && row.rms[at - 1] > 0);
    if (dead >= 0) say(`dead ${dead}`, "info", `all zero in ${show(labels[dead])}, and not in the file before.`, row);
    const grown = files.findIndex((_, at) => at > 0 && row.role !== "buffer" && row.rms[at - 1] > 0 && row.rms[at] >= 10 * row.rms[at - 1]);
    if (grown >= 0) say(`grown ${grown}`, "info", `with ten times the RMS or more in ${show(labels[grown])} than in the file before.`, row);
  }
  if (!facts.size) return null;
  const found = by_level([...facts.values()]);
  return part("What stands out", null, () =>
    el(
      "ul",
      { class: "findings" },
      found.map(({ level, text, names }) =>
        el(
          "li",
          { class: `finding ${level}` },
          el("span", { class: "badge" }, level),
          el(
            "div",
            {},
            el("p", {}, el("b", {}, plural(names.length, "tensor")), ` ${text}`),
            el("ul", { class: "names" }, names.slice(0, 8).map((name) => el("li", {}, name_of(name))), names.length > 8 && el("li", { class: "soft" }, `and ${whole(names.length - 8)} more`))
          )
        )
      )
    )
  );
}

function heat_map(series) {
  const roles = ROLES.map(([key, label, has]) => ({ key, label, rows: series.rows.filter((row) => (row.role === null ? key === "parameter" : has(row))) })).filter((each) => each.rows.length);
  const modes = [series.has_diffs && ["change", "Change"], series.has_stats && ["rms", "RMS"]].filter(Boolean);
  let mode = modes[0][0];
  let role = roles[0];
  let groups = [];
  let depth = 0;
  const place = el("div", { class: "inline" });
  const drawn = chart("Change and RMS of each layer over the files", () => Math.min(groups.length * 17 + label_depth(series.labels) + 8, 1100), (palette, width) => heat_option(series, groups, mode, palette, width));
  const key = el("div", {});
  const draw = () => {
    drawn.draw();
    emptied(key, legend(heat_keys(series, groups, mode, colours())));
  };
  themed.add(draw);
  const regroup = () => {
    groups = grouped(role.rows, depth);
    draw();
  };
  const pick = (each) => {
    role = each;
    const found = folded(role.rows, GRID_ROWS);
    depth = found.chosen;
    emptied(place, found.options.length > 1 && choice("Layers", found.options, depth, (value) => {
      depth = value;
      regroup();
    }));
    regroup();
  };
  pick(role);
  const tools = el(
    "div",
    { class: "tools" },
    modes.length > 1 && choice("Show", modes, mode, (value) => {
      mode = value;
      draw();
    }),
    roles.length > 1 && choice("Role", roles.map((each) => [each, each.label]), role, pick),
    place
  );
  return [tools, drawn.element, key];
}

// The cells of a map that have something to show, the smallest and the largest of their numbers.
function heat_cells({ labels }, groups, mode) {
  const first = mode === "change" ? 1 : 0; // nothing is known of a change to the first file
  const shown = labels.slice(first);
  const cells = [];
  groups.forEach((group, y) => shown.forEach((_, x) => {
    const cell = cell_of(group, x + first, mode);
    if (cell) cells.push({ x, y, ...cell });
  }));
  const known = cells.filter((cell) => cell.value).map((cell) => cell.value);
  return { shown, cells, low: known.length ? smallest_of(known) : 0, high: known.length ? largest_of(known) : 0 };
}

// The legend of a map: a number beside each colour of its ramp, and the other colours that are there.
function heat_keys(series, groups, mode, palette) {
  const { cells, low, high } = heat_cells(series, groups, mode);
  const has = (test) => cells.some(test);
  const noun = mode === "change" ? "relative change" : "RMS";
  const steps = high > 0 ? scale(palette, low, high, number_text) : [];
  return [
    ...steps.map(([colour, text], at) => [colour, at === 0 ? `${noun} ${text}` : text]),
    ...(has((cell) => cell.kind === "still" && cell.alarms) ? [[palette.alarm, "parameters that did not change"]] : []),
    ...(has((cell) => cell.kind === "still" && !cell.alarms) ? [[palette.held, `${has((cell) => cell.alarms) ? "others" : "parameters"} that did not change`]] : []),
    ...(has((cell) => cell.kind === "bad") ? [[palette.bad, "NaN or Inf"]] : []),
    ...(has((cell) => cell.kind === "none") ? [[palette.none, "zero, or no number"]] : []),
  ];
}

// The pixels that labels take below a map.
const label_depth = (labels) => 20 + Math.round(5.2 * Math.min(largest_of(labels.map((label) => show(label).length)), 24));

// One cell: a colour and a text.
function cell_of(group, at, mode) {
  if (group.rows.some((row) => row.bad[at] > 0)) return { kind: "bad", text: `${whole(group.rows.reduce((sum, row) => sum + (row.bad[at] || 0), 0))} elements are NaN or Inf` };
  if (mode === "change") {
    const steps = group.rows.map((row) => row.change[at]).filter(Boolean);
    if (!steps.length) return null;
    if (steps.every((step) => step.still)) return { kind: "still", text: "did not change", ...(steps.some((step) => step.alarms) ? { alarms: true } : {}) };
    const values = steps.map((step) => step.value).filter((value) => value !== null && value > 0);
    if (!values.length) return { kind: "none", text: steps.every((step) => step.status === "same") ? "did not change" : and_more([...new Set(steps.map((step) => step.status))], 3) };
    return { value: largest_of(values), text: `relative change ${number_text(largest_of(values))}` };
  }
  const known = group.rows.filter((row) => typeof row.rms[at] === "number");
  if (!known.length) return null;
  const count = known.reduce((sum, row) => sum + row.numel, 0);
  const rms = count ? Math.sqrt(known.reduce((sum, row) => sum + row.rms[at] ** 2 * row.numel, 0) / count) : 0;
  return rms > 0 ? { value: rms, text: `RMS ${number_text(rms)}` } : { kind: "none", text: "all zero" };
}

function heat_option(series, groups, mode, palette, width) {
  const { files, labels } = series;
  const { shown, cells, low: least, high: most } = heat_cells(series, groups, mode);
  const [low, high] = most > 0 ? [Math.log10(least), Math.log10(most)] : [0, 0];
  const colour = (cell) => {
    if (!cell.value) return { still: cell.alarms ? palette.alarm : palette.held, bad: palette.bad, none: palette.none }[cell.kind];
    return ramp(palette.ramp, high > low ? (Math.log10(cell.value) - low) / (high - low) : 0.5);
  };
  const size = label_size(width);
  const names = groups.map((group) => group.name);
  const zoomed = groups.length > 56;
  const draw = (params, api) => {
    const cell = cells[params.dataIndex];
    const [x, y] = api.coord([cell.x, cell.y]);
    const [wide, tall] = api.size([1, 1]);
    const gap = wide > 6 ? 1 : 0;
    return { type: "rect", shape: { x: x - wide / 2, y: y - tall / 2, width: Math.max(wide - gap, 1), height: Math.max(tall - 1, 1) }, style: { fill: colour(cell) } };
  };
  const every = Math.max(Math.ceil(shown.length / Math.max(Math.floor((width - label_room(names, size)) / 26), 1)) - 1, 0);
  return {
    grid: { left: label_room(names, size), right: zoomed ? 26 : 8, top: 4, bottom: label_depth(labels) },
    tooltip: tooltip(palette, ({ dataIndex }) => {
      const cell = cells[dataIndex];
      const where = mode === "change" ? `${show(files[cell.x])} → ${show(files[cell.x + 1])}` : show(files[cell.x]);
      return `${show(names[cell.y])}\n${where}\n${cell.text}`;
    }),
    xAxis: { ...axis(palette), type: "category", data: shown.map((_, at) => String(at)), axisLabel: { color: palette.soft, fontSize: 11, rotate: 55, interval: every, formatter: (at) => shortened(shown[Number(at)], 24) } },
    yAxis: names_axis(palette, names, size),
    dataZoom: zoomed ? [{ type: "slider", yAxisIndex: 0, right: 2, width: 12, startValue: 0, endValue: 52, showDetail: false, brushSelect: false, borderColor: palette.line, fillerColor: palette.line }] : [],
    series: [{ type: "custom", renderItem: draw, data: cells.map((cell) => [cell.x, cell.y]), encode: { x: 0, y: 1 }, clip: true }],
  };
}

function series_table({ files, labels, rows, has_stats, has_diffs }) {
  const make = (mode) => {
    const first = mode === "change" ? 1 : 0;
    const shown = files.map((_, at) => at).slice(first, first + 60);
    const columns = [
      { title: "Name", cell: (row) => name_of(row.name, 400), key: (row) => row.name },
      ...shown.map((at) => ({
        title: el("span", { title: show(files[at], 400) }, show(labels[at], 40)),
        right: true,
        cell: (row) => number_cell(cell_of({ rows: [row] }, at, mode)),
        key: (row) => (mode === "rms" ? row.rms[at] : row.change[at] && row.change[at].value),
      })),
    ];
    const sums = [];
    shown.forEach((at, place) => (sums[place + 1] = (node) => number_cell(cell_of({ rows: [...rows_below(node)] }, at, mode), true)));
    return tensor_table(rows, columns, { sums, text: (row) => row.name, placeholder: "Filter by name", step: Math.max(Math.floor(1200 / (files.length + 1)), 8) });
  };
  return [
    has_diffs && [el("h3", {}, "Relative change from the file before"), make("change")],
    has_stats && [el("h3", {}, "RMS"), make("rms")],
  ];
}

// A cell of the map as a number of the table.
function number_cell(cell, is_sum = false) {
  if (!cell) return "";
  if (cell.kind === "bad") return el("b", { class: "alarm" }, "NaN or Inf");
  if (cell.kind === "still") return el("b", { class: cell.alarms ? "alarm" : "held", title: "did not change" }, "0");
  const text = cell.value ? number_text(cell.value) : cell.text === "did not change" || cell.text === "all zero" ? "0" : cell.text;
  return is_sum ? el("span", { class: "soft" }, text) : text;
}
