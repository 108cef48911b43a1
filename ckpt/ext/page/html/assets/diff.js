// Two checkpoints: what did not change first, then what moved, by depth.

const BARS = 48;
const label_of = (row) => row.after ?? row.before ?? "";
// Whether a parameter did not change although others did, and the comparison says why or that it cannot.
const is_still = (row, moved) => moved && is_parameter(row) && row.status === "same" && row.reason !== null;
// The causes of a finding of level warning. Whatever else holds a parameter is information, and not red.
const WARNED = ["never", "no-gradient", "zero-gradient", "not-stepped"];
const is_warned = (row) => WARNED.includes(row.cause);

function diff_view(view) {
  const rows = rows_of(view.tensors);
  const values = rows_of(view.values);
  for (const row of rows) row.name = shown_name(label_of(row), row.parameter);
  const moved = rows.some((row) => is_parameter(row) && row.status === "changed");
  for (const row of rows) row.still = is_still(row, moved);
  for (const row of rows) row.alarms = row.still && is_warned(row);
  const has_values = !view.structure_only && !view.quick;
  return [
    headline([name_of(view.before.path, 400), el("span", { class: "arrow" }, " → "), name_of(view.after.path, 400)], [
      diff_verdict(view, rows, values),
      sentence(view.before.format) === sentence(view.after.format) ? sentence(view.after.format) : `${sentence(view.before.format)} → ${sentence(view.after.format)}`,
    ]),
    view.damaged && view.damaged.length > 0 &&
      el("div", { class: "danger", role: "alert" }, el("b", {}, "DAMAGED"), el("p", {}, `The bytes do not match the checksums: ${and_more(view.damaged.map((name) => show(name)), 5)}.`)),
    bad_part(bad_rows(rows), rows.length),
    still_part(rows, true),
    still_part(rows, false),
    findings_part(view.findings, bad_rows(rows).length ? BAD_CODES : []),
    has_values && rows.some((row) => row.status === "changed") && part("What moved", "Relative L2: the norm of the change over the norm before; of a layer, that of the tensor in it that changed most (the text of ckpt diff has one figure for all tensors of a module). From top to bottom in the order of the model.", () => moved_bars(rows)),
    counts_part(rows),
    rows.length > 0 && part("Modules", has_values && rows.some((row) => row.status === "changed") ? "Area: elements. Colour: the largest relative change below." : "Area: elements.", () => change_map(rows)),
    rows.length > 0 && part("Tensors", null, () => change_list(rows)),
    values.length > 0 && part("Values", `${plural(values.length, "value")} that ${values.length === 1 ? "differs and is" : "differ and are"} no tensor.`, () => changed_values(values)),
    notes_part(view),
    ...(view.files ? [part("Files", null, () => file_table(view.files))] : []),
  ];
}

// What holds NaN or Inf after the change, with how many elements did so before.
function bad_rows(rows) {
  const pair = (row, key) => (Array.isArray(row[key]) ? row[key] : [0, 0]);
  return rows.map((row) => ({ name: row.name, nan: pair(row, "nan")[1], inf: pair(row, "inf")[1], before: pair(row, "nan")[0] + pair(row, "inf")[0] })).filter((row) => row.nan || row.inf);
}

function diff_verdict(view, rows, values) {
  const judged = view.judged && el("b", { class: view.judged.is_within ? "good" : "" }, sentence(view.judged.text));
  return judged ? [judged, " · ", counted_verdict(view, rows, values)] : counted_verdict(view, rows, values);
}

function counted_verdict(view, rows, values) {
  if (view.same) return el("b", { class: "good" }, `same: ${plural(rows.length, "tensor")}`);
  const counts = new Map();
  for (const row of rows) counts.set(row.status, (counts.get(row.status) || 0) + 1);
  const order = ["changed", "reshaped", "retyped", "renamed", "added", "removed", "unchecked", "same"];
  const texts = order.filter((status) => counts.get(status)).map((status) => `${whole(counts.get(status))} ${status}`);
  if (values.length) texts.push(plural(values.length, "value"));
  return el("b", {}, `differ: ${texts.join(", ")}`);
}

// The parameters that did not move while others did: where the eye falls first.
function still_part(rows, alarms) {
  const still = rows.filter((row) => row.still && Boolean(row.alarms) === alarms);
  if (!still.length) return null;
  const sure = still.every((row) => row.role === "parameter");
  // What may be a buffer is counted only among its own kind.
  const counted = rows.filter((row) => is_parameter(row) && (row.still || row.status === "changed") && (!sure || row.role === "parameter"));
  const all = counted.length;
  // A second box counts what the first one has not.
  const more_of = !alarms && rows.some((row) => row.still && row.alarms) ? " more of" : " of";
  const unsure = still.filter((row) => row.role !== "parameter").length;
  const doubt = unsure === still.length ? "not sure that they are parameters" : `${whole(unsure)} of them may be ${unsure === 1 ? "a buffer" : "buffers"}`;
  const noun = sure ? "" : ` (${doubt})`;
  const reasons = new Map();
  for (const row of still) {
    const reason = row.reason || "did not change";
    if (!reasons.has(reason)) reasons.set(reason, []);
    reasons.get(reason).push(row);
  }
  return el(
    "section",
    { class: alarms ? "still" : "still info", "aria-label": "Parameters that did not change" },
    el("p", { class: "big" }, el("b", {}, whole(still.length)), `${more_of} ${plural(all, "parameter")} did not change`, noun && el("span", { class: "soft" }, noun)),
    [...reasons].map(([reason, some]) => {
      const list = el("ul", { class: "names strong" });
      const more = unfolding(some, (row) => el("li", {}, name_of(row.name), " ", el("span", { class: "soft" }, shape_text((row.shape || [])[1]))), 12, list);
      return el("div", {}, el("p", { class: "reason" }, sentence(reason)), list, more);
    })
  );
}

function counts_part(rows) {
  const table = ROLES.map(([key, label, has]) => ({ key, label, rows: rows.filter(has) })).filter((each) => each.rows.length);
  if (!table.length) return null;
  const statuses = ["changed", "same", "reshaped", "retyped", "renamed", "added", "removed", "unchecked"].filter((status) => rows.some((row) => row.status === status));
  const columns = [
    { title: "Role", cell: (row) => row.label },
    ...statuses.map((status) => ({
      title: status === "same" ? "unchanged" : status,
      right: true,
      cell: (row) => {
        const count = row.rows.filter((each) => each.status === status).length;
        const still = row.rows.filter((each) => status === "same" && each.still);
        return count ? el(still.length ? "b" : "span", { class: still_class(still) }, whole(count)) : el("span", { class: "soft" }, "0");
      },
    })),
  ];
  return part("Counts", null, () => sheet(columns, table, { class: "counts", label: "Counts by role" }).element);
}

// Red for what gives a warning, bold for what else did not change.
const still_class = (rows) => (rows.some((row) => row.alarms) ? "alarm" : rows.some((row) => row.still) ? "held" : "");

// The rows of a legend for parameters that did not change.
const still_keys = (palette, rows) => [
  ...(rows.some((row) => row.still && row.alarms) ? [[palette.alarm, "parameters that did not change"]] : []),
  ...(rows.some((row) => row.still && !row.alarms) ? [[palette.held, `${rows.some((row) => row.alarms) ? "others" : "parameters"} that did not change`]] : []),
];

function moved_bars(rows) {
  const roles = ROLES.map(([key, label, has]) => ({ key, label, rows: rows.filter((row) => has(row) && row.status !== "added" && row.status !== "removed") })).filter((each) => each.rows.length);
  if (!roles.length) return null;
  const role_rows = roles.flatMap((each) => each.rows);
  let role = roles[0];
  let depth = 0;
  let groups = [];
  const place = el("div", { class: "inline" });
  const drawn = chart("Relative change of each layer", () => Math.min(Math.max(groups.length * 19 + 46, 120), 1100), (palette, width) => bars_option(groups, palette, width, palette.roles[role.key]));

  const regroup = () => {
    const some = grouped(role.rows, depth).map(measured_group);
    groups = [...some.filter((group) => group.bad), ...some.filter((group) => !group.bad)];
    drawn.draw();
  };
  const pick = (each) => {
    role = each;
    const found = folded(role.rows, BARS);
    depth = found.chosen;
    const label = "Layers";
    emptied(place, found.options.length > 1 && choice(label, found.options, depth, (value) => {
      depth = value;
      regroup();
    }));
    regroup();
  };
  pick(role);
  const key = keyed((palette) => [...roles.map((each) => [palette.roles[each.key], each.label.toLowerCase()]), ...still_keys(palette, role_rows), ...(bad_rows(role_rows).length ? [[palette.bad, "NaN or Inf"]] : [])]);
  return el(
    "div",
    {},
    el("div", { class: "tools" }, roles.length > 1 && choice("Role", roles.map((each) => [each, each.label]), role, pick), place),
    drawn.element,
    key
  );
}

// A group of rows as one bar: `value` is the largest relative change in it.
function measured_group(group) {
  const numbers = group.rows.map((row) => row.rel_l2).filter((value) => typeof value === "number" && value > 0);
  const same = group.rows.filter((row) => row.status === "same").length;
  return {
    ...group,
    value: numbers.length ? largest_of(numbers) : null,
    same,
    is_same: same === group.rows.length,
    still: group.rows.filter((row) => row.still).length,
    alarms: group.rows.filter((row) => row.alarms).length,
    bad: bad_rows(group.rows).reduce((sum, row) => sum + row.nan + row.inf, 0),
  };
}

function group_text(group) {
  if (group.bad) return `${whole(group.bad)} NaN or Inf`;
  if (group.is_same) return "did not change";
  const text = group.value === null ? "changed, without a relative number" : number_text(group.value);
  return group.same ? `${text}, ${whole(group.same)} of ${whole(group.rows.length)} did not change` : text;
}

// The words beside a bar. What has no number has no length: it is a mark at zero.
function bar_text(group, is_narrow) {
  if (group.bad) return group_text(group);
  if (group.is_same) return "did not change";
  if (group.value === null) return "from zero";
  const partly = group.same && !is_narrow ? `, ${whole(group.same)} of ${whole(group.rows.length)} did not change` : "";
  return number_text(group.value) + partly;
}

function bars_option(groups, palette, width, colour) {
  const numbers = groups.map((group) => group.value).filter((value) => value !== null);
  // Bars are drawn as decades above the smallest: an axis of logarithms has no zero to begin at.
  const low = numbers.length ? Math.floor(Math.log10(smallest_of(numbers) * 0.999)) : -3;
  const high = Math.max(numbers.length ? Math.ceil(Math.log10(largest_of(numbers))) - low : 1, 1);
  const size = label_size(width);
  const names = groups.map((group) => group.name);
  const zoomed = groups.length > 56;
  const length = (group) => (group.bad || group.value === null ? 0 : Math.log10(group.value) - low);
  const mark = (group) => (group.bad ? palette.bad : group.alarms ? palette.alarm : group.still ? palette.held : palette.soft);
  const ink_of = (group) => (group.still && !group.alarms && !group.bad ? palette.text : mark(group));
  const data = groups.map((group) => ({
    value: length(group),
    itemStyle: { color: colour },
    label: { show: true, position: "right", distance: length(group) ? 5 : 8, color: ink_of(group), fontWeight: group.bad || group.still ? 600 : 400, formatter: bar_text(group, width < 600) },
  }));
  const marks = groups.map((group, at) => ({ value: [0, at], itemStyle: { color: mark(group) } })).filter((_, at) => length(groups[at]) === 0);
  return {
    grid: { left: label_room(names, size), right: zoomed ? 118 : 104, top: 4, bottom: 26 },
    tooltip: tooltip(palette, ({ dataIndex }) => `${show(names[dataIndex])}\n${group_text(groups[dataIndex])}`),
    xAxis: { ...axis(palette), type: "value", min: 0, max: high, minInterval: 1, axisLabel: { color: palette.soft, fontSize: 11, formatter: (value) => number_text(10 ** (value + low)), hideOverlap: true } },
    yAxis: names_axis(palette, names, size),
    dataZoom: zoomed
      ? [
          { type: "slider", yAxisIndex: 0, right: 4, width: 14, startValue: 0, endValue: 52, showDetail: false, brushSelect: false, borderColor: palette.line, fillerColor: palette.line },
          { type: "inside", yAxisIndex: 0, zoomOnMouseWheel: "shift", moveOnMouseWheel: false },
        ]
      : [],
    series: [
      { type: "bar", data, barCategoryGap: "25%", barMaxWidth: 16, label: { fontSize: 11 } },
      { type: "scatter", data: marks, symbol: "rect", symbolSize: [4, 13], symbolOffset: [2, 0], silent: true, clip: false },
    ],
  };
}

// The tree with the relative change as colour; what did not change stands out.
function change_map(rows) {
  const of_model = rows.filter((row) => is_parameter(row) || row.role === "buffer");
  if (of_model.length) rows = of_model;
  for (const row of rows) row.numel = typeof row.numel === "number" ? row.numel : elements_of((row.shape || [])[1] || (row.shape || [])[0]);
  const numbers = rows.map((row) => row.rel_l2).filter((value) => typeof value === "number" && value > 0);
  const [low, high] = numbers.length ? [Math.log10(smallest_of(numbers)), Math.log10(largest_of(numbers))] : [0, 1];
  const change = (palette) => ({
    of(node) {
      if (common(node, (row) => row.still) === true) return common(node, (row) => row.alarms) === false ? palette.held : palette.alarm;
      const value = largest(node, (row) => row.rel_l2);
      if (value === null || value <= 0) return palette.none;
      return ramp(palette.ramp, high > low ? (Math.log10(value) - low) / (high - low) : 1);
    },
    legend: [
      ...still_keys(palette, rows),
      ...(numbers.length ? scale(palette, 10 ** low, 10 ** high, number_text) : []),
      [palette.none, "other that did not change, or no number"],
    ],
  });
  const about = (row) => [shape_text((row.shape || [])[1] || (row.shape || [])[0]), row.role, change_text(row)].filter(Boolean).join(", ");
  const paints = [
    ["change", "Change", change],
    ["status", "Status", by_word(rows, (row) => row.status)],
    ["role", "Role", by_word(rows, (row) => row.role)],
  ];
  const areas = [["numel", "Elements", (node) => node.numel, (value) => `${count_text(value)} elements`]];
  return treemap(rows, areas, paints.slice(numbers.length ? 0 : 1), about, "Modules by change");
}

const elements_of = (shape) => (Array.isArray(shape) ? shape.reduce((product, size) => product * size, 1) : 0);

function change_text(row) {
  if (row.status === "same") return row.reason ? sentence(row.reason) : "did not change";
  if (row.status !== "changed") return sentence(row.status);
  const texts = [row.differing === row.numel ? "all elements" : `${whole(row.differing || 0)} of ${plural(row.numel || 0, "element")}`];
  if (row.max_abs !== null) texts.push(`max |Δ| ${number_text(row.max_abs)}${Array.isArray(row.at) && row.at.length ? ` at [${row.at.join(", ")}]` : ""}`);
  if (row.rel_l2 !== null) texts.push(`relative L2 ${number_text(row.rel_l2)}`);
  for (const [name, pair] of [["NaN", row.nan], ["Inf", row.inf]]) if (pair && pair[0] !== pair[1]) texts.push(`${name} ${whole(pair[0])} → ${whole(pair[1])}`);
  return texts.join(", ");
}

function change_list(rows) {
  const has_histograms = rows.some((row) => row.histogram);
  const names = (row) => (row.before && row.after && row.status === "renamed" ? `${row.before} → ${row.after}` : row.name);
  const shapes = (row) => {
    const [one, two] = row.shape || [];
    return one && two && String(one) !== String(two) ? `${shape_text(one)} → ${shape_text(two)}` : shape_text(two || one);
  };
  const columns = [
    { title: "Name", cell: (row) => name_of(names(row), 400), key: names },
    { title: "Status", cell: (row) => el("span", { class: still_class([row]) || `status ${row.status}` }, row.status === "same" ? "unchanged" : sentence(row.status)), key: (row) => row.status },
    { title: "Role", cell: (row) => sentence(row.role), key: (row) => row.role },
    { title: "Shape", cell: shapes },
    { title: "Rel. L2", cell: (row) => number_text(row.rel_l2), key: (row) => (typeof row.rel_l2 === "number" ? row.rel_l2 : null), right: true },
    { title: "Max |Δ|", cell: (row) => number_text(row.max_abs), key: (row) => (typeof row.max_abs === "number" ? row.max_abs : null), right: true },
    { title: "Differing", cell: (row) => (row.differing === null ? "–" : whole(row.differing)), key: (row) => row.differing, right: true },
    ...(has_histograms ? [{ title: "Δ", cell: (row) => histogram_of(row.histogram) }] : []),
    ...(rows.some((row) => row.reason) ? [{ title: "Reason", cell: (row) => (row.reason ? sentence(row.reason) : ""), wraps: true }] : []),
  ];
  const count = (node, has) => [...rows_below(node)].filter(has).length;
  const sums = [];
  sums[1] = (node) => {
    const still = count(node, (row) => row.still);
    return still ? el("span", { class: count(node, (row) => row.alarms) ? "alarm" : "held" }, `${whole(still)} unchanged`) : el("span", { class: "soft" }, `${whole(count(node, (row) => row.status !== "same"))} of ${whole(node.tensors)} differ`);
  };
  sums[4] = (node) => el("span", { class: "soft" }, number_text(largest(node, (row) => row.rel_l2)));
  return tensor_table(rows, columns, { sums, text: (row) => [row.before, row.after, row.status, row.role, row.reason].join(" ") });
}

function changed_values(values) {
  const columns = [
    { title: "Name", cell: (row) => name_of(row.name, 400), key: (row) => row.name },
    { title: "Before", cell: (row) => (row.status === "added" ? "" : el("bdi", { class: "value" }, show(row.before, 200))) },
    { title: "After", cell: (row) => (row.status === "removed" ? "" : el("bdi", { class: "value" }, show(row.after, 200))) },
    { title: "Status", cell: (row) => sentence(row.status), key: (row) => row.status },
  ];
  return filtered(columns, values, { label: "Values", filter: "Filter values", text: (row) => `${row.name} ${row.before} ${row.after}`, step: 25 });
}

function notes_part(view) {
  const notes = [...view.notes.map(sentence), ...view.not_compared.map((name) => `Not compared: ${show(name)} is not in the other file.`)];
  return notes.length ? part("Notes", null, () => el("ul", { class: "names" }, notes.slice(0, 100).map((note) => el("li", {}, note)))) : null;
}
