// The layers of a model as a strip of cells in its order: what a module holds, or what its numbers are.

const CELLS = 480;

// The modules of some tensors as cells: the innermost ones, less deep where they are too many.
function modules_of(rows, most = CELLS) {
  let found = [];
  for (let depth = 12; depth > 0; depth--) {
    found = grouped(rows, depth);
    if (found.length <= most) break;
  }
  return found;
}

// Modules as stretches of the model, {title, blocks: [{label, cells}]}: each number of a layer is a block.
function stretches_of(modules) {
  const found = [];
  for (const module of modules) {
    const words = module.name.split(".");
    const at = words.findIndex((word) => /^\d+$/.test(word));
    const title = at < 0 ? words.slice(0, -1).join(".") : words.slice(0, at).join(".");
    const label = at < 0 ? "" : words[at];
    let stretch = found[found.length - 1];
    if (!stretch || stretch.title !== title || stretch.is_layers !== at >= 0) {
      stretch = { title, is_layers: at >= 0, blocks: [] };
      found.push(stretch);
    }
    let block = stretch.blocks[stretch.blocks.length - 1];
    if (!block || block.label !== label) {
      block = { label, cells: [] };
      stretch.blocks.push(block);
    }
    block.cells.push(module);
  }
  for (const stretch of found) {
    const cells = stretch.blocks.flatMap((block) => block.cells);
    if (!stretch.is_layers && cells.length === 1) stretch.title = cells[0].name;
    else if (!stretch.title && !stretch.is_layers) stretch.title = and_more(cells.map((cell) => cell.name), 3);
  }
  return found;
}

// What the tensors of a module are together. `rms`, `zeros` and `bad` are of its statistics.
function measured_module({ name, rows }) {
  const sum = (key, some = rows) => some.reduce((total, row) => total + (row[key] || 0), 0);
  const known = rows.filter((row) => typeof row.rms === "number");
  const count = sum("numel", known);
  const counted = rows.filter((row) => typeof row.zeros === "number");
  return {
    name,
    tensors: rows.length,
    bytes: sum("bytes"),
    dtype: heaviest(rows, (row) => row.dtype),
    role: heaviest(rows, role_key),
    rms: count ? Math.sqrt(known.reduce((total, row) => total + row.rms ** 2 * row.numel, 0) / count) : null,
    zeros: sum("numel", counted) ? sum("zeros", counted) / sum("numel", counted) : null,
    bad: sum("nan") + sum("inf"),
  };
}

// The word of most bytes, of most elements where no bytes are known.
function heaviest(rows, word) {
  const sums = new Map();
  for (const row of rows) sums.set(word(row), (sums.get(word(row)) || 0) + (row.bytes || row.numel || 0));
  return [...sums].reduce((most, each) => (each[1] > most[1] ? each : most))[0];
}

// The ways to colour cells, as choices; the first is the one to begin with.
function strip_modes(cells) {
  const differ = (key) => new Set(cells.map((cell) => cell[key])).size > 1;
  const has = (key) => cells.some((cell) => cell[key] !== null);
  const measured = has("rms") || has("zeros") || cells.some((cell) => cell.bad);
  return [
    measured && ["rms", "RMS"],
    measured && ["zeros", "Zeros"],
    measured && ["bad", "NaN or Inf"],
    differ("dtype") && ["dtype", "dtype"],
    cells.some((cell) => cell.bytes) && ["bytes", "Bytes"],
    differ("role") && ["role", "Role"],
  ].filter(Boolean);
}

// How cells look in a mode: {colours, legend}.
function strip_colours(cells, mode, palette) {
  if (mode === "role" || mode === "dtype") {
    const words = [...new Set(cells.map((cell) => cell[mode]))];
    const kind = (word) => palette.kinds[Math.min(words.indexOf(word), palette.kinds.length - 1)];
    const colour = (word) => (mode === "role" ? palette.roles[word] : kind(word));
    return { colours: cells.map((cell) => colour(cell[mode])), legend: words.slice(0, palette.kinds.length).map((word) => [colour(word), show(word, 60)]) };
  }
  const bad = [palette.bad, "NaN or Inf"];
  const has_bad = cells.some((cell) => cell.bad);
  if (mode === "bad") {
    return { colours: cells.map((cell) => (cell.bad ? palette.bad : palette.ramp[0])), legend: [[palette.ramp[0], "none"], ...(has_bad ? [bad] : [])] };
  }
  if (mode === "zeros") {
    const colours = cells.map((cell) => (cell.zeros === null ? palette.none : ramp(palette.ramp, cell.zeros)));
    const last = palette.ramp.length - 1;
    const words = (at) => (at === 0 ? ", no zeros" : at === last ? ", all zero" : "");
    return { colours, legend: palette.ramp.map((colour, at) => [colour, percent(at / last) + words(at)]) };
  }
  const known = cells.filter((cell) => cell[mode] > 0).map((cell) => cell[mode]);
  const [low, high] = known.length ? [smallest_of(known), largest_of(known)] : [1, 1];
  const text = mode === "rms" ? number_text : size_text;
  const share = (value) => (high > low ? Math.log(value / low) / Math.log(high / low) : 0.5);
  const colours = cells.map((cell) => (mode === "rms" && cell.bad ? palette.bad : cell[mode] > 0 ? ramp(palette.ramp, share(cell[mode])) : palette.none));
  return {
    colours,
    legend: [
      ...scale(palette, low, high, text),
      ...(colours.includes(palette.none) ? [[palette.none, mode === "rms" ? "zero, or no number" : "no bytes"]] : []),
      ...(has_bad && mode === "rms" ? [bad] : []),
    ],
  };
}

const module_text = (cell) =>
  [
    show(cell.name),
    [
      plural(cell.tensors, "tensor"),
      cell.bytes > 0 && size_text(cell.bytes),
      cell.dtype && sentence(cell.dtype),
      cell.rms !== null && `RMS ${number_text(cell.rms)}`,
      cell.zeros > 0 && `${percent(cell.zeros)} zeros`,
      cell.bad > 0 && `${whole(cell.bad)} NaN or Inf`,
    ].filter(Boolean).join(", "),
  ].join(": ");

// The strip of some tensors; `stats` are rows of their numbers.
function strip_part(tensors, stats) {
  const model = tensors.filter((row) => row.role !== "optimizer");
  const numbers = new Map((stats || []).map((row) => [row.name, row]));
  const rows = (model.length ? model : tensors).map((row) => ({ ...numbers.get(row.name), ...row }));
  const modules = modules_of(rows);
  if (modules.length < 2) return null;
  const shown = modules.slice(0, CELLS);
  const note = `One cell for each module, in the order of the model.${modules.length > CELLS ? ` The first ${whole(CELLS)} of ${whole(modules.length)}.` : ""}`;
  return part("Layers", note, () => strip(shown));
}

function strip(modules) {
  const cells = [];
  const marks = new Map();
  const said = el("p", { class: "said", role: "status" });
  const key = el("div", {});
  const cell_for = (module) => {
    const cell = measured_module(module);
    const mark = el("span", { class: "cell", title: module_text(cell) });
    cells.push({ cell, mark });
    marks.set(mark, cell);
    return mark;
  };
  const block_for = (block) =>
    el("span", { class: "block" }, el("span", { class: "cells" }, block.cells.map(cell_for)), block.label && el("span", { class: "number" }, show(block.label, 6)));
  const stretches = stretches_of(modules).map((stretch) =>
    el("div", { class: "stretch" }, el("span", { class: "title" }, stretch.title ? name_of(stretch.title, 80) : "\u00a0"), el("span", { class: "blocks" }, stretch.blocks.map(block_for)))
  );
  const holder = el("div", { class: `strip ${cells.length <= 48 ? "few" : cells.length <= 144 ? "some" : ""}`, role: "img", "aria-label": `${plural(cells.length, "module")} in the order of the model` }, stretches);
  holder.addEventListener("click", ({ target }) => marks.has(target) && (said.textContent = module_text(marks.get(target))));
  const modes = strip_modes(cells.map((each) => each.cell));
  let mode = modes.length ? modes[0][0] : "bytes";
  const paint = () => {
    const { colours: found, legend: rows } = strip_colours(cells.map((each) => each.cell), mode, colours());
    cells.forEach((each, at) => (each.mark.style.background = found[at]));
    emptied(key, legend(rows));
  };
  paint();
  themed.add(paint);
  return [
    modes.length > 1 &&
      el("div", { class: "tools" }, choice("Colour", modes, mode, (value) => {
        mode = value;
        paint();
      })),
    holder,
    key,
    said,
  ];
}
