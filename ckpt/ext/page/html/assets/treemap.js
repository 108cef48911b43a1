// The tree of modules as areas: two levels at a time, more where they are few, opened by a click or by the buttons below.

const TILES = 60;
const ALL_TILES = 600;
const MOST_TILES = 300;
const FEW_TENSORS = 3;
const CHIPS = 10;
const HITS = 12;
const HEADER = 20;
const LEAST_GROUP = 6000;

// `areas` are [key, label, value(node), text(value)], `paints` are [key, label, painter(palette)]; a painter gives
// {of(node), legend: [[colour, text]]}. `about(row)` describes a tensor in a line.
function treemap(rows, areas, paints, about, title) {
  const root = tree_of(rows);
  let at = root;
  let [area, paint] = [areas[0][0], paints[0][0]];
  let nodes = [];
  const crumbs = el("nav", { class: "crumbs", "aria-label": "Where you are" });
  const chips = el("div", { class: "chips" });
  const legend_place = el("div", {});
  const said = el("p", { class: "said", role: "status" });
  const field = el("input", { type: "search", placeholder: "Find a module or tensor", "aria-label": "Find a module or tensor" });
  const hits = el("div", { class: "chips hits" });
  const drawn = chart(title, () => Math.min(map_height(rows.length), window.innerWidth < 600 ? 340 : 460), option);

  const area_of = (node) => areas.find(([key]) => key === area)[2](node);
  const area_text = (node) => areas.find(([key]) => key === area)[3](area_of(node));

  function tile(node, painter, depth, siblings, place = 0) {
    const number = nodes.push(node) - 1;
    const parts = depth > 0 ? parts_of(node) : [];
    const colour = shaded(painter.of(node), painter.shades ? place : 0, painter.deep);
    return {
      name: escaped(tile_name(node)),
      value: area_of(node),
      at: number,
      itemStyle: { color: colour, borderColor: painter.ground },
      label: { color: ink(colour) },
      ...(parts.length ? { children: tiles(parts, painter, depth - 1, Math.max(Math.floor(ALL_TILES / siblings), 20)) } : {}),
    };
  }

  function tiles(parts, painter, depth, most) {
    const sorted = parts.filter((part) => area_of(part) > 0).sort((one, two) => area_of(two) - area_of(one));
    const made = sorted.slice(0, most).map((part, place) => tile(part, painter, depth, Math.min(sorted.length, most), place));
    const rest = sorted.slice(most);
    if (rest.length) {
      made.push({ name: `${whole(rest.length)} more`, value: rest.reduce((sum, part) => sum + area_of(part), 0), itemStyle: { color: painter.rest }, label: { color: ink(painter.rest) } });
    }
    return made;
  }

  // How many levels are drawn below some parts.
  function levels_below(parts) {
    const most = window.innerWidth < 600 ? MOST_TILES / 3 : MOST_TILES;
    let depth = 1;
    let layer = parts.slice(0, TILES).flatMap(parts_of);
    for (let count = parts.length + layer.length; depth < 4; depth++) {
      layer = layer.flatMap(parts_of);
      count += layer.length;
      if (!layer.length || count > most) break;
    }
    return depth;
  }

  function option(palette) {
    const painter = { rest: palette.none, ground: palette.hover, deep: palette.ground, ...paints.find(([key]) => key === paint)[2](palette) };
    emptied(legend_place, legend(painter.legend));
    nodes = [];
    const data = at.row ? [tile(at, painter, 0, 1)] : tiles(parts_of(at), painter, levels_below(parts_of(at)), TILES);
    return {
      tooltip: tooltip(palette, ({ data }) => {
        const node = nodes[data.at];
        return node ? `${show(node.path)}\n${node.row ? about(node.row) : `${plural(node.tensors, "tensor")}, ${area_text(node)}`}` : data.name;
      }),
      series: [
        {
          type: "treemap",
          animation: false,
          left: 0,
          right: 0,
          top: 0,
          bottom: 0,
          roam: false,
          nodeClick: false,
          breadcrumb: { show: false },
          sort: false, // they are sorted, and equal ones stay in the order of the model
          squareRatio: 1,
          visibleMin: 4,
          childrenVisibleMin: LEAST_GROUP, // or the header of a module is all that there is room for
          itemStyle: { borderColor: palette.ground },
          label: { show: true, fontSize: 11, formatter: fitting, position: "insideTopLeft", padding: [5, 3] },
          upperLabel: { show: true, height: HEADER, fontSize: 11, fontWeight: 600, color: palette.text, formatter: fitting },
          emphasis: { itemStyle: { borderColor: palette.text, borderWidth: 2 }, upperLabel: { show: true } },
          levels: [
            { itemStyle: { gapWidth: 3, borderWidth: 0 }, upperLabel: { show: false } },
            { itemStyle: { gapWidth: 1, borderWidth: 3 } },
            { itemStyle: { gapWidth: 1, borderWidth: 1 } },
            { itemStyle: { gapWidth: 1, borderWidth: 1 } },
            { itemStyle: { gapWidth: 1, borderWidth: 1 } },
          ],
          data,
        },
      ],
    };
  }

  // The name of a tile as far as there is room for it.
  function fitting({ name, dataIndex }) {
    const box = drawn.canvas.getModel().getSeriesByIndex(0).getData().getItemLayout(dataIndex);
    const wide = (text) => echarts.format.getTextRect(text, "600 11px system-ui, sans-serif").width;
    return box ? tile_text(name, box.width - 6, box.height, wide) : name;
  }

  function go(node) {
    at = node;
    const trail = [];
    for (let each = node; each; each = each.parent) trail.unshift(each);
    emptied(
      crumbs,
      trail.map((each, depth) => [
        depth > 0 && el("span", { class: "apart", "aria-hidden": "true" }, "/"),
        el(
          "button",
          { type: "button", "aria-current": each === at ? "location" : null, onclick: () => go(each) },
          each.parent ? name_of(each.label) : "all"
        ),
      ])
    );
    const parts = parts_of(node).filter((each) => !each.row).sort((one, two) => area_of(two) - area_of(one));
    emptied(
      chips,
      parts.slice(0, CHIPS).map((each) =>
        el("button", { type: "button", class: "chip", onclick: () => go(each) }, name_of(each.label, 40), ` ${area_text(each)}`)
      ),
      parts.length > CHIPS && el("span", { class: "soft" }, `and ${whole(parts.length - CHIPS)} more`)
    );
    say(node);
    drawn.draw();
  }

  function say(node) {
    emptied(
      said,
      node.parent ? name_of(node.path) : "All tensors",
      ": ",
      node.row ? about(node.row) : [plural(node.tensors, "tensor"), node.bytes > 0 && size_text(node.bytes), `${count_text(node.numel)} elements`].filter(Boolean).join(", ")
    );
  }

  function search() {
    const text = field.value.trim().toLowerCase();
    const found = [];
    const todo = text ? parts_of(root).reverse() : [];
    while (todo.length && found.length <= HITS) {
      const node = todo.pop();
      if (node.path.toLowerCase().includes(text) && !(node.parent && node.parent.path.toLowerCase().includes(text))) found.push(node);
      todo.push(...parts_of(node).reverse());
    }
    emptied(
      hits,
      found.slice(0, HITS).map((node) =>
        el("button", { type: "button", class: "chip", onclick: () => go(node) }, name_of(node.path, 80))
      ),
      text && !found.length && el("span", { class: "soft" }, "Nothing has this in its name."),
      found.length > HITS && el("span", { class: "soft" }, "and more")
    );
  }

  drawn.on.push(["click", ({ data }) => {
    const node = data && nodes[data.at];
    if (node && !node.row) go(node);
    else if (node) say(node);
  }]);
  field.addEventListener("input", search);
  go(root);
  return el(
    "div",
    { class: "treemap" },
    el(
      "div",
      { class: "tools" },
      areas.length > 1 && choice("Area", areas.map(([key, label]) => [key, label]), area, (value) => {
        area = value;
        go(at);
      }),
      paints.length > 1 && choice("Colour", paints.map(([key, label]) => [key, label]), paint, (value) => {
        paint = value;
        drawn.draw();
      }),
      field
    ),
    hits,
    crumbs,
    drawn.element,
    legend_place,
    said,
    chips
  );
}

// The pixels that a map of some tensors is high: a few of them need no map, and few of them no high one.
const map_height = (tensors) => (tensors <= FEW_TENSORS ? 0 : tensors <= 12 ? 160 : tensors <= 40 ? 280 : 460);

// A number alone says nothing: a layer is named with what it is a part of.
function tile_name(node) {
  const above = node.parent && node.parent.label.split(".").pop();
  return /^\d+$/.test(node.label) && above ? `${above}.${node.label}` : node.label || NO_NAME;
}

// What of a name fits a tile: all of it, its last part, or its end, behind the number of its layer, which tells it
// from its neighbours. Less than that tells nothing.
function tile_text(name, room, height, wide = (text) => text.length * 6.8) {
  const last = name.slice(name.lastIndexOf(".") + 1);
  if (height < HEADER - 4) return "";
  if (wide(name) <= room) return name;
  if (last && wide(last) <= room) return last;
  const layer = /(?:^|\.)(\d+)\./.exec(name);
  for (let size = Math.min(name.length - 1, 60); size >= (layer ? 2 : 5); size--) {
    const end = `${layer ? layer[1] : ""}…${name.slice(-size)}`;
    if (wide(end) <= room) return end;
  }
  return "";
}

// Neighbours of one colour differ a little, so that they can be told apart.
const shaded = (colour, place, deep) => (place % 3 === 0 ? colour : ramp([colour, deep], (place % 3) * 0.14));

// A painter by the words of rows: roles have their colours, else the word of most bytes gets the first one. A module
// has the colour of most of its bytes.
function by_word(rows, word, is_role = false) {
  const sums = new Map();
  for (const row of rows) sums.set(word(row), (sums.get(word(row)) || 0) + (row.bytes || 0) + 1);
  const words = [...sums].sort((one, two) => two[1] - one[1]).map(([each]) => each);
  return (palette) => {
    const kinds = palette.kinds;
    const colour = (each) => (is_role ? palette.roles[each] : kinds[Math.min(words.indexOf(each), kinds.length - 1)]);
    const shown = words.slice(0, is_role ? words.length : kinds.length - 1).map((each) => [colour(each), show(each, 60)]);
    const other = words.length - shown.length;
    return {
      shades: true,
      of: (node) => colour(heaviest([...rows_below(node)], word)),
      legend: [
        ...shown,
        ...(other === 1 ? [[kinds[kinds.length - 1], show(words[words.length - 1], 60)]] : []),
        ...(other > 1 ? [[kinds[kinds.length - 1], `${whole(other)} others`]] : []),
      ],
    };
  };
}
