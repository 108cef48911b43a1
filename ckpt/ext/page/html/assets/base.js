// Elements, texts and numbers. Text from a file becomes a node only through `textContent`.

// What moves the cursor, reorders text or cannot be seen, as in ckpt/model/text.py.
const UNPRINTABLE = new RegExp(
  "[\\u0000-\\u001f\\u007f-\\u00a0\\u00ad\\u034f\\u0600-\\u0605\\u061c\\u06dd\\u070f\\u0890\\u0891\\u08e2\\u115f\\u1160\\u1680" +
    "\\u17b4\\u17b5\\u180b-\\u180f\\u2000-\\u200f\\u2028-\\u202f\\u205f-\\u206f\\u2800\\u3000\\u3164\\ue000-\\uf8ff" +
    "\\ufdd0-\\ufdef\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb\\ufffe\\uffff]|[\\ud800-\\udbff](?![\\udc00-\\udfff])" +
    "|(?<![\\ud800-\\udbff])[\\udc00-\\udfff]|\\udb40[\\udc00-\\udfff]|[\\udb80-\\udbff][\\udc00-\\udfff]",
  "g"
);

function escaped(text) {
  return text.replace(UNPRINTABLE, (found) => {
    const code = found.codePointAt(0);
    if (found === "\n") return "\\n";
    if (found === "\r") return "\\r";
    if (found === "\t") return "\\t";
    if (code < 0x100) return "\\x" + code.toString(16).padStart(2, "0");
    if (code < 0x10000) return "\\u" + code.toString(16).padStart(4, "0");
    return "\\U" + code.toString(16).padStart(8, "0");
  });
}

// A name or a value as one line; a backslash is doubled, so that an escape is unambiguous.
function show(text, limit = 200) {
  const whole = String(text);
  const cut = whole.length > limit ? whole.slice(0, limit - 1) : whole;
  return escaped(cut.replace(/\\/g, "\\\\")) + (cut === whole ? "" : "…");
}

// A sentence, whose parts may be escaped already.
function sentence(text) {
  return escaped(String(text).slice(0, 2000));
}

// An empty name can be seen.
const NO_NAME = '""';

// The end of a name tells it apart.
function shortened(name, size) {
  const text = show(name, 400) || NO_NAME;
  return text.length > size ? "…" + text.slice(text.length - size + 1) : text;
}

function el(tag, properties, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  add(made, children);
  return made;
}

function add(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return parent;
}

function emptied(parent, ...children) {
  parent.replaceChildren();
  return add(parent, children);
}

// A name in pieces between which a line may break: after dots and slashes, and within what is no word any more, at a `_` or `-` if there is one.
const LONGEST_WORD = 24;
const WORDS = new RegExp(`.{8,${LONGEST_WORD - 1}}[_-]|.{1,${LONGEST_WORD}}`, "gsu");
const pieces_of = (text) => (text.match(/(?:\d\.(?=\d)|[^./])*[./]+|(?:\d\.(?=\d)|[^./])+/g) || []).flatMap((piece) => ([...piece].length > LONGEST_WORD ? piece.match(WORDS) : [piece]));

const name_of = (text, limit, title) =>
  el("bdi", { class: "name", title: title || null }, pieces_of(show(text, limit) || NO_NAME).map((piece, at) => [at > 0 && el("wbr", {}), piece]));
const code_of = (text) => el("code", { class: "command", translate: "no" }, sentence(text));

const whole = (count) => Number(count).toLocaleString("en-US");
const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;

// A number between two of three digits goes to the even one, as Python rounds it: JavaScript takes the larger one.
const to_even = (value) => (/^-?\d\.\d[02468]50*e/.test(value.toExponential(100)) ? value * (1 - Number.EPSILON) : value);

function three(value) {
  value = to_even(value);
  return value < 9.995 ? value.toFixed(2) : value < 99.95 ? value.toFixed(1) : value.toFixed(0);
}

function size_text(bytes) {
  if (bytes === null || bytes === undefined) return "";
  if (bytes < 1024) return `${Math.round(bytes)} B`; // a legend has numbers between those of tensors
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let unit = 0;
  for (; bytes >= 999.5 && unit < 6; unit++) bytes /= 1024;
  return `${three(bytes)} ${units[unit]}`;
}

function count_text(count) {
  if (count === null || count === undefined) return "";
  if (count < 1000) return String(Math.round(count));
  let unit = 0;
  for (; count >= 999.5 && unit < 5; unit++) count /= 1000;
  return `${three(count)} ${["", "K", "M", "B", "T", "Q"][unit]}`;
}

// Three digits, as Python's `.3g`. What is no finite number stands as its name.
function number_text(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return sentence(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-4 && size < 1e5) return String(Number(to_even(value).toPrecision(3)));
  return to_even(value).toExponential(2).replace(/\.?0+e/, "e");
}

// A number that a run recorded. A step and an epoch are whole numbers, and losses of two epochs may differ in their fourth digit.
function recorded_text(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return number_text(value);
  if (Number.isSafeInteger(value)) return whole(value);
  const size = Math.abs(value);
  if (size >= 1e-4 && size < 1e6) return value.toLocaleString("en-US", { maximumSignificantDigits: 6 });
  return value.toExponential(5).replace(/\.?0+e/, "e");
}

const shape_text = (shape) => (Array.isArray(shape) ? `[${shape.join(", ")}]` : "");
const percent = (share) => (share === 1 ? "100 %" : share === 0 ? "0 %" : `${Math.min(Math.max(share * 100, 0.1), 99.9).toFixed(1)} %`);

// `a, b and 3 more`
function and_more(texts, count) {
  const more = texts.length - count;
  return texts.slice(0, count).join(", ") + (more > 0 ? ` and ${whole(more)} more` : "");
}

// --- roles -------------------------------------------------------------------------------------------------------

const is_parameter = (row) => row.role === "parameter" || row.role === "unknown";
// The roles of tensors on all pages: key, label, what has it. The colour is the variable `role-` and the key.
const ROLES = [
  ["parameter", "Parameters", (row) => row.role === "parameter"],
  ["unknown", "Parameters (not sure)", (row) => row.role === "unknown"],
  ["buffer", "Buffers", (row) => row.role === "buffer"],
  ["optimizer", "Optimizer", (row) => row.role === "optimizer"],
  ["other", "Other", (row) => !is_parameter(row) && row.role !== "buffer" && row.role !== "optimizer"],
];
const role_key = (row) => ROLES.find(([, , has]) => has(row))[0];

// --- the page ---------------------------------------------------------------------------------------------------

// A part of the page. A document that does not fit it costs this part, and not the page.
function part(title, note, draw) {
  const body = el("div", { class: "body" });
  const made = el("section", { class: "part", "data-part": title }, el("h2", {}, title), note && el("p", { class: "note" }, note), body);
  try {
    if (add(body, [draw(body)]).childNodes.length === 0) return null;
  } catch (error) {
    emptied(body, el("p", { class: "note" }, `This part cannot be drawn: ${sentence(error.message)}`));
  }
  return made;
}

// Buttons of which one is pressed.
function choice(label, options, chosen, pick) {
  const buttons = options.map(([value, text]) =>
    el("button", { type: "button", "aria-pressed": String(value === chosen), "data-value": value }, text)
  );
  buttons.forEach((button, at) =>
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      pick(options[at][0]);
    })
  );
  return el("div", { class: "choice", role: "group", "aria-label": label }, el("span", {}, label), buttons);
}

// Long lists: the first of them, and a button for more.
function unfolding(items, make, step, into) {
  let shown = 0;
  const more = el("button", { type: "button", class: "more" });
  const grow = () => {
    into.append(...items.slice(shown, shown + step).map(make));
    shown = Math.min(shown + step, items.length);
    more.textContent = `Show ${whole(Math.min(step, items.length - shown))} more of ${whole(items.length)}`;
    more.hidden = shown >= items.length;
  };
  more.addEventListener("click", grow);
  grow();
  return more;
}
