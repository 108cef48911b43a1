// The documents: unpacked, and the tree of the names of their tensors.

async function documents() {
  const element = document.getElementById("data");
  if (element.type === "application/json") return JSON.parse(element.textContent);
  const bytes = Uint8Array.from(atob(element.textContent), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// Columns as rows.
function rows_of(table) {
  if (!table) return [];
  const rows = Array.from({ length: table.count }, () => ({}));
  for (const [name, column] of Object.entries(table.columns)) {
    if ("all" in column) for (const row of rows) row[name] = column.all;
    else if (column.of) column.at.forEach((number, at) => (rows[at][name] = column.of[number]));
    else column.is.forEach((value, at) => (rows[at][name] = value));
  }
  return rows;
}

// The name of a tensor as it is shown: the state of an optimizer bears the name of its parameter, not its number.
const shown_name = (name, parameter) => (parameter ? name.replace(/(^|\.)state\.\d+(?=\.[^.]+$)/, (_, begin) => `${begin}state.${parameter}`) : name);

// A tree of dotted names. A node has `label`, `path`, `children` (a Map), `rows` below it, `bytes` and `numel`.
function tree_of(rows) {
  const root = node_of("", "", null);
  for (const row of rows) {
    let at = root;
    count_in(at, row);
    const words = String(row.name).split(".");
    for (let depth = 0; depth < words.length; depth++) {
      const is_leaf = depth === words.length - 1;
      const key = is_leaf ? `=${words[depth]}` : words[depth];
      let next = at.children.get(key);
      if (!next || (is_leaf && next.row)) {
        next = node_of(words[depth], at.path ? `${at.path}.${words[depth]}` : words[depth], at);
        at.children.set(is_leaf && at.children.has(key) ? `${key}#${at.children.size}` : key, next);
      }
      if (is_leaf) next.row = row;
      count_in(next, row);
      at = next;
    }
  }
  joined(root);
  return root;
}

function node_of(label, path, parent) {
  return { label, path, parent, children: new Map(), row: null, tensors: 0, bytes: 0, numel: 0, first: null };
}

function count_in(node, row) {
  node.tensors += 1;
  node.bytes += row.bytes || 0;
  node.numel += row.numel || 0;
  node.first = node.first || row;
}

// A module with one part is joined with it: `model.module`.
function joined(root) {
  const todo = [root];
  while (todo.length) {
    const node = todo.pop();
    for (let [key, child] of [...node.children]) {
      while (!child.row && child.children.size === 1 && ![...child.children.values()][0].row) {
        const only = [...child.children.values()][0];
        only.label = `${child.label}.${only.label}`;
        only.parent = node;
        node.children.set(key, only);
        child = only;
      }
      todo.push(child);
    }
  }
}

const parts_of = (node) => [...node.children.values()];

function* rows_below(node) {
  const todo = [node];
  while (todo.length) {
    const each = todo.pop();
    if (each.row) yield each.row;
    todo.push(...parts_of(each).reverse());
  }
}

// What all rows below a node agree on; `null` where they differ.
function common(node, value) {
  let found;
  for (const row of rows_below(node)) {
    const each = value(row);
    if (found === undefined) found = each;
    else if (found !== each) return null;
  }
  return found === undefined ? null : found;
}

// The largest of some numbers, or zero: a list may be longer than what a call takes.
const largest_of = (values) => values.reduce((most, value) => (value > most ? value : most), 0);
const smallest_of = (values) => values.reduce((least, value) => (value < least ? value : least), Infinity);

function largest(node, value) {
  let found = null;
  for (const row of rows_below(node)) {
    const each = value(row);
    if (typeof each === "number" && (found === null || each > found)) found = each;
  }
  return found;
}

// --- names in groups, for charts ---------------------------------------------------------------------------------

// Rows in groups by the first `depth` parts of their names, in the order of the rows; 0 leaves every row alone.
function grouped(rows, depth, name = (row) => row.name) {
  const groups = new Map();
  for (const row of rows) {
    const words = String(name(row)).split(".");
    const key = depth === 0 ? String(name(row)) : words.slice(0, Math.max(Math.min(depth, words.length - 1), 1)).join(".");
    const kept = groups.get(depth === 0 ? `${key}#${groups.size}` : key);
    if (kept) kept.rows.push(row);
    else groups.set(depth === 0 ? `${key}#${groups.size}` : key, { name: key, rows: [row] });
  }
  return [...groups.values()];
}

// The depth at which most names have the number of their layer: `blocks.3`. 0 where most have none.
function layer_depth(rows, name = (row) => row.name) {
  const counts = new Map();
  for (const row of rows) {
    const words = String(name(row)).split(".").slice(0, -1);
    const depth = words.findIndex((word) => /^\d+$/.test(word)) + 1;
    counts.set(depth, (counts.get(depth) || 0) + 1);
  }
  return counts.size ? [...counts].reduce((most, each) => (each[1] > most[1] ? each : most))[0] : 0;
}

// The choices of depth, of which one row for each layer is chosen where there is room for them.
function folded(rows, most) {
  const found = depths(rows, most);
  const depth = layer_depth(rows);
  const has_room = depth > 0 && found.options.some(([each]) => each === depth) && grouped(rows, depth).length <= most;
  return has_room ? { ...found, chosen: depth } : found;
}

// The depths that differ, as choices, and the deepest of them with at most `most` groups.
function depths(rows, most, name) {
  const choices = [];
  let last = 0;
  for (let depth = 1; depth <= 12 && last < rows.length; depth++) {
    const count = grouped(rows, depth, name).length;
    if (count > last) choices.push([depth, count]);
    last = Math.max(count, last);
  }
  if (last < rows.length || choices.length === 0) choices.push([0, rows.length]);
  const fitting = choices.filter(([, count]) => count <= most);
  const best = fitting.length ? fitting[fitting.length - 1] : choices[0];
  const options = choices.map(([depth, count]) => [depth, `${whole(count)}${depth === 0 ? " tensors" : ""}`]);
  return { options, chosen: best[0] };
}
