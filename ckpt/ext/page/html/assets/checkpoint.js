// One checkpoint: how it loads, its findings, and what it holds.

function checkpoint_view(view) {
  const tensors = rows_of(view.tensors);
  const storages = rows_of(view.storages);
  const values = rows_of(view.values);
  const imports = rows_of(view.imports);
  const sections = rows_of(view.sections);
  const { file, totals } = view;
  const stats = view.stats ? stats_rows(view.stats, tensors.map((row) => row.name)) : null;
  for (const row of tensors) [row.key, row.name] = [row.name, shown_name(row.name, row.parameter)];
  return [
    headline(name_of(file.path, 400), headline_pieces(view, tensors, sections)),
    danger(view.findings),
    facts([
      ["loads", loads_of(view)],
      ...sections.map((section) => [section.name ? name_of(section.name, 60) : "tensors", section_text(section)]),
      ...rows_of(view.prefixes).map((row) => [
        "prefix",
        [`${whole(row.tensors)} of ${plural(row.of, "name")} of ${row.section ? show(row.section) : "the root"} begin with `, name_of(row.prefix), ` (${sentence(row.writer)})`],
      ]),
      ["values", top_values(values)],
    ]),
    stats && unread_part([view.stats], () => null),
    stats && bad_part(stats),
    findings_part([...view.findings, ...(stats ? view.stats.findings : [])], stats ? BAD_CODES : []),
    strip_part(tensors, stats),
    map_height(tensors.length) > 0 && part("Modules", null, () => module_map(view, tensors, storages)),
    optimizer_part(tensors),
    ranks_part(file),
    tensors.length > 0 && part("Tensors", null, () => tensor_list(tensors)),
    ...(stats ? stats_parts(stats, view.stats.threshold) : []),
    values.length > 0 && part("Values", "What is no tensor.", () => value_list(values)),
    imports.length > 0 && part("Imports", "What the pickles name. Nothing of it was run.", () => import_list(imports)),
    storages.length > 0 && part("Storages", storage_note(totals, storages), () => storage_list(storages)),
  ];
}

function section_text(section) {
  const kind = section.kind === section.name ? "" : `${sentence(section.kind)}, `;
  return kind + (section.tensors ? `${plural(section.tensors, "tensor")}, ${size_text(section.bytes)}` : "no tensors");
}

// The scalars of the root: epoch, step, a metric.
function top_values(values) {
  const plain = ["int", "float", "bool", "str", "NoneType", "None"]; // a call is no scalar, whatever its argument is
  const rows = values.filter((row) => plain.includes(row.type) && row.text !== null && !String(row.name).includes(".") && row.text.length <= 60);
  if (!rows.length) return null;
  return [
    rows.slice(0, 8).map((row, at) => [at > 0 && " · ", name_of(row.name, 60), " ", el("bdi", { class: "value" }, show(row.text, 60))]),
    rows.length > 8 && ` and ${whole(rows.length - 8)} more`,
  ];
}

// What the first line of `ckpt inspect` says. A stored document of an older version has no such totals.
function counted_parameters(totals) {
  if (typeof totals.parameters !== "number") return [];
  const { parameters: sure, unknown } = totals;
  if (!sure) return [];
  return [`${count_text(sure)} parameters`, unknown > 0 && `perhaps ${count_text(unknown)} more`];
}

function headline_pieces(view, tensors, sections) {
  const { file, totals } = view;
  const models = new Set(sections.filter((section) => section.kind === "model").map((section) => section.name));
  const parameters = tensors.filter((row) => models.has(row.section) && (row.role === "parameter" || row.role === "unknown"));
  const devices = Object.keys(totals.devices || {});
  const dtypes = new Set((parameters.length ? parameters : tensors).map((row) => row.dtype));
  return [
    sentence(file.layout || file.format),
    Array.isArray(file.parts) && file.parts.length > 0 && plural(file.parts.length, "file"),
    size_text(file.bytes),
    plural(tensors.length, "tensor"),
    ...counted_parameters(totals),
    and_more([...dtypes].map((text) => show(text)), 3),
    devices.length > 0 && `saved on ${and_more(devices.map((text) => show(text, 40)), 4)}`,
  ];
}

function loads_of(view) {
  const only = view.weights_only;
  const safe = only && only.loads === true;
  const note = view.load_note ? sentence(view.load_note) : null;
  return [
    // A note is of another loader than torch.load, or of what torch.load asks for.
    safe && !note ? el("span", { class: "good" }, "safe: weights_only=True loads it") : note,
    view.load_command ? el("div", {}, code_of(view.load_command)) : null,
    view.load_command && view.load ? el("div", {}, "or, only if you trust its author, with weights_only=False:") : null,
    view.load ? el("div", {}, code_of(view.load)) : null,
  ].filter(Boolean);
}

function module_map(view, tensors, storages) {
  const findings = finding_of(by_level([...view.findings, ...(view.stats ? view.stats.findings : [])]));
  const kinds = new Map(storages.map((row) => [row.id, row.kind]));
  const areas = [
    ["bytes", "Bytes", (node) => node.bytes, size_text],
    ["numel", "Elements", (node) => node.numel, (value) => `${count_text(value)} elements`],
  ];
  const words = [
    ["role", "Role", role_key],
    ["dtype", "dtype", (row) => row.dtype],
    ["device", "Device", (row) => row.device || "no device"],
    ["sharing", "Sharing", (row) => kinds.get(row.storage) || "own"],
    ["finding", "Finding", (row) => findings.get(row.key) || "none"],
  ];
  const differing = words.filter(([, , word]) => new Set(tensors.map(word)).size > 1);
  const telling = differing.length ? differing : words.slice(0, 1);
  return treemap(tensors, areas, telling.map(([key, label, word]) => [key, label, by_word(tensors, word, key === "role")]), tensor_line, "Modules by size");
}

const tensor_line = (row) =>
  [shape_text(row.shape), row.dtype, size_text(row.bytes), row.device, row.role].filter(Boolean).map((text) => escaped(String(text))).join(", ");

function tensor_list(tensors) {
  // The headline says the dtype and the device of all.
  const columns = telling([
    { title: "Name", cell: (row) => name_of(row.name, 400, show(row.key, 400)), key: (row) => row.name },
    { title: "Shape", cell: (row) => shape_text(row.shape) },
    { title: "dtype", cell: (row) => sentence(row.dtype), key: (row) => row.dtype, folds: true },
    { title: "Device", cell: (row) => (row.device === null ? "" : show(row.device, 40)), key: (row) => row.device, folds: true },
    { title: "Role", cell: role_cell, key: (row) => row.role },
    { title: "Elements", cell: (row) => whole(row.numel), key: (row) => row.numel, right: true },
    { title: "Size", cell: (row) => size_text(row.bytes), key: (row) => row.bytes, right: true },
  ], tensors);
  const sums = [];
  sums[columns.length - 2] = (node) => whole(node.numel);
  sums[columns.length - 1] = (node) => size_text(node.bytes);
  return tensor_table(tensors, columns, {
    sums,
    text: (row) => [row.name, row.key, row.dtype, row.device, row.role].join(" "),
  });
}

function role_cell(row) {
  const { trust, note } = row.evidence || {};
  const title = [trust, note].filter((text) => typeof text === "string" && text).map(sentence).join(": ");
  return el("span", { title: title || null, class: `role ${role_key(row)}${trust === "likely" || trust === "none" ? " soft" : ""}` }, sentence(row.role));
}

// What the optimizer knows of each layer: steps, never a gradient.
function optimizer_part(tensors) {
  const rows = tensors.filter((row) => row.optimizer_state);
  if (!rows.length) return null;
  const never = (row) => row.optimizer_state.held === false || row.optimizer_state.steps === 0;
  const lags = (row) => !never(row) && typeof row.optimizer_state.steps === "number" && row.optimizer_state.steps < row.optimizer_state.of;
  const steps_text = (row) =>
    never(row)
      ? el("b", { class: "held" }, "never")
      : row.optimizer_state.zero
        ? el("b", { class: "held" }, "zeros only")
      : typeof row.optimizer_state.steps === "number"
        ? [lags(row) && el("b", { class: "held" }, "lags: "), `${whole(row.optimizer_state.steps)} of ${whole(row.optimizer_state.of)}`]
        : "has state";
  const without = rows.filter(never);
  const lagging = rows.filter(lags);
  const columns = [
    { title: "Parameter", cell: (row) => name_of(row.name, 400), key: (row) => row.name },
    { title: "Steps", cell: steps_text, key: (row) => (never(row) ? 0 : row.optimizer_state.steps), right: true },
    { title: "Elements", cell: (row) => whole(row.numel), key: (row) => row.numel, right: true },
  ];
  const first = new Set([...without, ...lagging]);
  const rest = rows.filter((row) => !first.has(row));
  const verdict = [
    `The optimizer has state for ${whole(rows.length - without.length)} of ${plural(rows.length, "parameter")} that are known by name.`,
    without.length ? ` ${plural(without.length, "parameter")} never had a gradient in it.` : "",
    lagging.length ? ` ${plural(lagging.length, "counter")} of steps lag.` : "",
  ].join("");
  return part("Optimizer", verdict, () =>
    filtered(columns, [...first, ...rest], { label: "Steps of the optimizer", text: (row) => row.name, filter: "Filter parameters", step: 12 })
  );
}

// How evenly the files of a set are filled.
function ranks_part(file) {
  const parts = Array.isArray(file.parts) ? file.parts : [];
  const sizes = Array.isArray(file.part_bytes) ? file.part_bytes : [];
  const rows = parts.map((name, at) => ({ name, bytes: sizes[at] })).filter((row) => typeof row.bytes === "number");
  if (rows.length < 2 || sizes.length !== parts.length) return null;
  const mean = rows.reduce((sum, row) => sum + row.bytes, 0) / rows.length;
  const most = largest_of(rows.map((row) => row.bytes));
  return part("Balance of the files", `The largest file has ${three(mean ? most / mean : 1)} times the mean of ${size_text(mean)}.`, () =>
    size_bars(rows, "Bytes of each file")
  );
}

// Sizes as bars and as a table.
function size_bars(rows, title) {
  const shown = rows.slice(0, 60);
  const most = largest_of(shown.map((row) => row.bytes));
  const unit = 1024 ** Math.floor(Math.log2(Math.max(most, 1)) / 10);
  const step = nice_step(Math.max(most, 1) / unit, 4) * unit;
  const drawn = chart(title, Math.max(shown.length * 20 + 40, 90), (palette, width) => {
    const size = label_size(width);
    const names = shown.map((row) => row.name);
    return {
      grid: { left: label_room(names, size), right: 64, top: 4, bottom: 24 },
      tooltip: tooltip(palette, ({ dataIndex }) => `${show(shown[dataIndex].title || names[dataIndex])}\n${size_text(shown[dataIndex].bytes)}`),
      xAxis: { ...axis(palette), type: "value", interval: step, max: Math.ceil(most / step) * step, axisLabel: { color: palette.soft, fontSize: 11, formatter: size_text, hideOverlap: true } },
      yAxis: names_axis(palette, names, size),
      series: [
        {
          type: "bar",
          data: shown.map((row) => row.bytes),
          barMaxWidth: 14,
          itemStyle: { color: palette.accent, borderRadius: 2 },
          label: { show: true, position: "right", color: palette.soft, fontSize: 11, formatter: ({ value }) => size_text(value) },
        },
      ],
    };
  });
  return [drawn.element, rows.length > shown.length && el("p", { class: "note" }, `and ${whole(rows.length - shown.length)} more files`)];
}

function value_list(values) {
  const columns = [
    { title: "Name", cell: (row) => name_of(row.name, 400), key: (row) => row.name },
    { title: "Value", cell: (row) => (row.text === null ? el("span", { class: "soft" }, plural(row.fields || 0, "field")) : el("bdi", { class: "value" }, show(row.text, 300))), key: (row) => row.text },
    { title: "Type", cell: (row) => el("span", { class: "soft" }, show(row.type, 80)), key: (row) => row.type },
  ];
  return filtered(columns, values, { label: "Values", filter: "Filter values", text: (row) => `${row.name} ${row.text} ${row.type}`, step: 25, class: "values" });
}

function import_list(imports) {
  const serious = { called: 0, unknown: 1, known: 2 };
  const rows = [...imports].sort((one, two) => (serious[one.group] ?? 1) - (serious[two.group] ?? 1));
  const columns = [
    { title: "Import", cell: (row) => name_of(`${row.module}.${row.name}`, 300), key: (row) => `${row.module}.${row.name}` },
    { title: "Group", cell: (row) => el("span", { class: { known: "soft", called: "alarm" }[row.group] || "held" }, sentence(row.group)), key: (row) => row.group },
    { title: "Where", cell: (row) => el("bdi", {}, and_more(row.where.map((text) => (text === "" ? "the root" : show(text, 80))), 3)) },
    rows.some((row) => row.calls.length) && { title: "Calls", cell: (row) => el("bdi", { class: "value" }, and_more(row.calls.map((text) => sentence(text).slice(0, 200)), 2)), wraps: true },
  ].filter(Boolean);
  return filtered(columns, rows, { label: "Imports", filter: "Filter imports", text: (row) => `${row.module}.${row.name} ${row.group}`, step: 25 });
}

function storage_note(totals, storages) {
  const unused = storages.reduce((sum, row) => sum + Math.max(row.bytes - row.used_bytes, 0), 0);
  const device = is_told(STORAGE_DEVICE, storages) && storages[0].device !== null ? ` on ${show(storages[0].device, 40)}` : "";
  return `${plural(storages.length, "storage")}${device}, ${size_text(totals.storage_bytes)}${unused ? `, ${size_text(unused)} of them unused` : ""}.`;
}

const STORAGE_DEVICE = { title: "Device", cell: (row) => (row.device === null ? "" : show(row.device, 40)), key: (row) => row.device, folds: true };

function storage_list(storages) {
  const columns = telling([
    { title: "Storage", cell: (row) => name_of(row.id), key: (row) => row.id },
    STORAGE_DEVICE,
    { title: "Kind", cell: (row) => el("span", { class: row.kind === "own" ? "soft" : "" }, sentence(row.kind)), key: (row) => row.kind, folds: storages[0].kind === "own" },
    { title: "Tensors", cell: (row) => whole(row.tensors), key: (row) => row.tensors, right: true },
    { title: "Size", cell: (row) => size_text(row.bytes), key: (row) => row.bytes, right: true },
    { title: "Used", cell: (row) => size_text(row.used_bytes), key: (row) => row.used_bytes, right: true },
  ], storages);
  return filtered(columns, storages, { label: "Storages", filter: "Filter storages", text: (row) => `${row.id} ${row.device} ${row.kind}`, step: 25 });
}
