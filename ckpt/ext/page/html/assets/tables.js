// Tables: a tree of tensors that opens on demand, and flat lists with sort and filter. Few rows are in the page at once.

const STEP = 100;
// A module with more parts is closed at first.
const OPEN = 30;

// A column that says the same in all rows is told elsewhere, once: one that `folds`.
const is_told = (column, rows) => Boolean(column.folds) && rows.length > 1 && new Set(rows.map((row) => String(column.key(row)))).size === 1;
const telling = (columns, rows) => columns.filter((column) => column && !is_told(column, rows));

// `columns` are {title, cell(row), key(row), right, wraps, folds}. A click on a title sorts.
function sheet(columns, rows, options = {}) {
  const table = el("table", { class: options.class });
  const holder = el("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": options.label || "table" }, table);
  const head = el("tr", {});
  const body = el("tbody", {});
  let order = null;
  const closed = new Set();
  const foot = el("div", {});
  columns.forEach((column, at) => {
    const button = column.key
      ? el("button", { type: "button", class: "sort", onclick: () => sort(at) }, column.title)
      : column.title;
    head.append(el("th", { scope: "col", class: column.right ? "right" : "" }, button));
  });
  add(table, [options.caption && el("caption", {}, options.caption), el("thead", {}, head), body]);

  function sort(at) {
    order = order && order.at === at ? (order.up === columns[at].right ? null : { at, up: !order.up }) : { at, up: !columns[at].right };
    [...head.children].forEach((cell, place) => {
      if (order && place === order.at) cell.setAttribute("aria-sort", order.up ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    });
    fill();
  }

  function ordered() {
    if (!order) return rows;
    const { key } = columns[order.at];
    return [...rows].sort((one, two) => compared(key(one), key(two), order.up));
  }

  function fill() {
    body.replaceChildren();
    emptied(foot, unfolding(lines(ordered()), (row) => (row.is_group ? head_of(row) : line(columns, row)), options.step || STEP, body));
  }

  // The rows below the head of their group, groups in natural order; those that are closed show their head alone.
  function lines(some) {
    if (!options.group) return some;
    return grouped_by(some, options.group).flatMap((group) => [group, ...(closed.has(group.name) ? [] : group.rows)]);
  }

  function head_of(group) {
    const twist = () => {
      if (!closed.delete(group.name)) closed.add(group.name);
      fill();
    };
    const button = el("button", { type: "button", class: "twist", "aria-expanded": String(!closed.has(group.name)), onclick: twist }, name_of(group.name, 400));
    return el("tr", { class: "group" }, el("th", { scope: "rowgroup", colSpan: columns.length }, button, el("span", { class: "soft" }, ` ${options.sum(group.rows)}`)));
  }
  fill();
  return {
    element: el("div", {}, holder, foot),
    show(some) {
      rows = some;
      fill();
    },
    get is_sorted() {
      return order !== null;
    },
  };
}

// Rows as {name, rows} of what they have in common, in natural order.
function grouped_by(rows, key) {
  const groups = new Map();
  for (const row of rows) {
    if (!groups.has(key(row))) groups.set(key(row), { is_group: true, name: key(row), rows: [] });
    groups.get(key(row)).rows.push(row);
  }
  return [...groups.values()].sort((one, two) => NATURAL.compare(one.name, two.name));
}

const NATURAL = new Intl.Collator("en", { numeric: true });

function compared(one, two, up) {
  const empty = (value) => value === null || value === undefined;
  if (empty(one) || empty(two)) return empty(one) - empty(two);
  const found = typeof one === "number" && typeof two === "number" ? one - two : NATURAL.compare(String(one), String(two));
  return up ? found : -found;
}

function line(columns, row, lead) {
  return el(
    "tr",
    {},
    columns.map((column, at) => {
      const content = at === 0 && lead ? lead : column.cell(row);
      return at === 0
        ? el("th", { scope: "row" }, content)
        : el("td", { class: column.right ? "right" : column.wraps ? "wraps" : "" }, content);
    })
  );
}

// A flat list with a field that filters it by any text of its rows.
function filtered(columns, rows, options = {}) {
  const flat = sheet(columns, rows, options);
  const found = el("span", { class: "found", role: "status" });
  const field = el("input", { type: "search", placeholder: "Filter", "aria-label": options.filter || "Filter" });
  field.addEventListener("input", () => {
    const some = matching(rows, field.value, options.text);
    flat.show(some);
    found.textContent = field.value ? `${whole(some.length)} of ${whole(rows.length)}` : "";
  });
  return rows.length > 8 ? el("div", {}, el("div", { class: "tools" }, field, found), flat.element) : flat.element;
}

// Words that must all occur; `*` stands for anything.
function matching(rows, text, text_of) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const tests = words.map((word) =>
    word.includes("*")
      ? (each) => new RegExp(word.split("*").map((piece) => piece.replace(/[.+?^${}()|[\]\\]/g, "\\$&")).join(".*")).test(each)
      : (each) => each.includes(word)
  );
  if (!tests.length) return rows;
  return rows.filter((row) => {
    const each = text_of(row).toLowerCase();
    return tests.every((test) => test(each));
  });
}

// The tensors as a tree whose first two levels are open, or as a flat list where something is filtered or sorted.
function tensor_table(rows, columns, options = {}) {
  const root = tree_of(rows);
  const flat = sheet(columns, rows, { class: "tensors", label: "Tensors", step: options.step });
  const body = el("tbody", {});
  const sums = options.sums || [];
  const titles = el("tr", {}, columns.map((column) => el("th", { scope: "col", class: column.right ? "right" : "" }, column.title)));
  const tree = el(
    "div",
    { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Tensors by module" },
    el("table", { class: "tensors" }, el("thead", {}, titles), body)
  );
  const field = el("input", { type: "search", placeholder: options.placeholder || "Filter by name, dtype, device, role", "aria-label": "Filter tensors" });
  const found = el("span", { class: "found", role: "status" });
  let mode = "tree";

  function update() {
    const some = matching(rows, field.value, options.text);
    const is_flat = mode === "list" || field.value.trim() !== "";
    flat.show(is_flat ? some : []);
    flat.element.hidden = !is_flat;
    tree.hidden = is_flat;
    found.textContent = field.value.trim() ? `${whole(some.length)} of ${plural(rows.length, "tensor")}` : plural(rows.length, "tensor");
  }

  // Rows of the parts of a node go into the table before `mark`.
  function open(node, depth, mark) {
    const parts = parts_of(node);
    let shown = 0;
    const grow = () => {
      const step = shown || !depth ? STEP : OPEN;
      for (const each of parts.slice(shown, shown + step)) place(each, depth, mark);
      shown = Math.min(shown + step, parts.length);
      if (shown < parts.length) {
        const more = el("button", { type: "button", class: "more" }, `Show ${whole(Math.min(STEP, parts.length - shown))} more of ${whole(parts.length)}`);
        const row = el("tr", {}, indent(el("td", { colSpan: columns.length }, more), depth));
        more.addEventListener("click", () => {
          mark = row.nextSibling;
          row.remove();
          grow();
        });
        body.insertBefore(row, mark);
      }
    };
    grow();
  }

  function place(node, depth, mark) {
    if (node.row) {
      const row = line(columns, node.row, name_of(node.label, 400, show(node.path, 400)));
      indent(row.firstChild, depth);
      row.dataset.depth = depth;
      body.insertBefore(row, mark);
      return;
    }
    const button = el("button", { type: "button", class: "twist", "aria-expanded": "false" }, name_of(node.label));
    const row = line(
      columns.map((column, at) => ({ ...column, cell: () => (sums[at] ? sums[at](node) : "") })),
      null,
      button
    );
    indent(row.firstChild, depth);
    row.className = "group";
    row.dataset.depth = depth;
    body.insertBefore(row, mark);
    const twist = (is_open) => {
      button.setAttribute("aria-expanded", String(is_open));
      if (is_open) open(node, depth + 1, row.nextSibling);
      else while (row.nextSibling && Number(row.nextSibling.dataset.depth ?? depth + 1) > depth) row.nextSibling.remove();
    };
    button.addEventListener("click", () => twist(button.getAttribute("aria-expanded") === "false"));
    if (depth < 1 && (node.children.size <= OPEN || root.children.size === 1)) twist(true);
  }

  open(root, 0, null);
  field.addEventListener("input", update);
  update();
  const shapes = choice("Show", [["tree", "Tree"], ["list", "List, sortable"]], mode, (value) => {
    mode = value;
    update();
  });
  return el("div", {}, el("div", { class: "tools" }, field, shapes, found), tree, flat.element);
}

function indent(cell, depth) {
  cell.style.paddingLeft = `${0.5 + depth * 1.1}rem`;
  return cell;
}
