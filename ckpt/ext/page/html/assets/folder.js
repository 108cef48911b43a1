// A folder of checkpoints: what is safe to load, what runs code, and each file below its folder.

// Loads that build tensors and nothing else: weights_only, or a format that holds no pickle and no program.
const REFUSED = ["RUNS CODE", "unreadable", "not by torch", "not as it is"];
// Loads that run a program or a pickle without a limit: pickle.load, and torch and DeepSpeed with the pickles of a folder.
const TRUSTED = /^(weights_only=False$|needs |torch\.|DCP$|DeepSpeed\b|(plain|joblib) pickle)/;
const is_safe = ({ loads }) => Boolean(loads) && !REFUSED.includes(loads) && !TRUSTED.test(loads);

const base = (path) => String(path).split("/").filter(Boolean).pop() || String(path);
const folder_of = (path) => String(path).split("/").slice(0, -1).join("/") || (String(path).startsWith("/") ? "/" : ".");

function folder_view(view, { unreadable, date }) {
  const { files } = view;
  const codes = files.filter((file) => file.loads === "RUNS CODE");
  return [
    headline(plural(files.length, "checkpoint"), [size_text(bytes_of(files)), date && `drawn on ${sentence(date)}`]),
    runs_code(codes, files.length),
    view.note && el("div", { class: "notice" }, sentence(view.note)),
    tiles(folder_counts(files, unreadable)),
    ...file_parts(files, labels_of(view)),
  ];
}

// [count, title, level] of what a reader asks first.
function folder_counts(files, unreadable) {
  const findings = files.flatMap((file) => file.findings);
  const codes = files.filter((file) => file.loads === "RUNS CODE").length;
  const asked = files.filter((file) => TRUSTED.test(file.loads || "")).length;
  const worst = by_level(findings)[0];
  return [
    [files.filter(is_safe).length, "safe to load", "good"],
    ...(asked ? [[asked, "safe only if trusted", "warning"]] : []),
    [codes, codes === 1 ? "runs code" : "run code", codes ? "error" : ""],
    [unreadable.length, "unreadable", unreadable.length ? "error" : ""],
    [findings.length, findings.length === 1 ? "finding" : "findings", worst ? level_of(worst) : ""],
  ];
}

const tiles = (counts) =>
  el("ul", { class: "tiles" }, counts.map(([count, title, level]) => el("li", { class: level }, el("b", {}, whole(count)), el("span", {}, title))));

// What runs code, counted in one line.
function runs_code(codes, count) {
  if (!codes.length) return null;
  const one = codes.length === 1;
  return el(
    "div",
    { class: "danger", role: "alert" },
    el("b", {}, "DANGER"),
    el(
      "div",
      {},
      el("p", {}, `${whole(codes.length)} of ${plural(count, "file")} ${one ? "runs" : "run"} code when loaded: do not load ${one ? "it" : "them"}`),
      el("ul", { class: "names" }, codes.slice(0, 4).map((file) => el("li", {}, name_of(file.path, 400))), codes.length > 4 && el("li", {}, `and ${whole(codes.length - 4)} more`))
    )
  );
}

const counters_text = (file) => Object.entries(file.counters || {}).slice(0, 3).map(([name, value]) => `${show(name, 20)} ${typeof value === "number" ? whole(value) : show(value, 20)}`).join(", ");

const codes_of = (file) => [...new Set(by_level(file.findings).map((finding) => finding.code))];
const worst_of = (file) => smallest_of([...file.findings.map((finding) => LEVELS.indexOf(level_of(finding))), LEVELS.length]);
const bytes_of = (files) => files.reduce((sum, file) => sum + (file.bytes || 0), 0);

// The number of parameters, as `ckpt ls` shows it: with a question mark where some tensors may be buffers.
function parameters_text(file) {
  const sure = count_text(file.parameters || null), most = count_text(file.parameters + (file.unknown || 0) || null);
  return most === sure ? sure : `${most}?`;
}

function file_table(files) {
  const has_findings = files.some((file) => file.findings.length);
  const all = [
    { title: "File", cell: (file) => name_of(base(file.path), 400, show(file.path, 400)), key: (file) => base(file.path) },
    { title: "Format", cell: (file) => sentence(file.format || ""), key: (file) => file.format, folds: true },
    { title: "Size", cell: (file) => size_text(file.bytes), key: (file) => file.bytes, right: true },
    { title: "Parameters", cell: parameters_text, key: (file) => file.parameters + (file.unknown || 0), right: true },
    { title: "dtype", cell: (file) => and_more(file.dtypes.map((text) => show(text)), 1), key: (file) => file.dtypes.join(" "), folds: true },
    { title: "Device", cell: (file) => and_more(file.devices.map((text) => show(text, 40)), 2), key: (file) => file.devices.join(" "), folds: true },
    ...(files.some(counters_text) ? [{ title: "Records", cell: counters_text, key: counters_text }] : []),
    { title: "Loads", cell: (file) => el("span", { class: file.loads === "RUNS CODE" ? "alarm" : is_safe(file) ? "good" : "" }, sentence(file.loads || "")), key: (file) => file.loads, folds: true },
    has_findings && { title: "Findings", cell: (file) => el("span", { class: "codes" }, codes_of(file).map((code) => el("span", { class: `code ${level_of(file.findings.find((each) => each.code === code))}` }, sentence(code)))), key: (file) => worst_of(file) * 1000 - file.findings.length },
  ].filter(Boolean);
  const columns = telling(all, files);
  const told = all.filter((column) => is_told(column, files) && column.key(files[0])).map((column, at) => [at > 0 && " · ", column.cell(files[0])]);
  const group = new Set(files.map((file) => folder_of(file.path))).size > 1 ? (file) => folder_of(file.path) : null;
  const sum = (some) => `${plural(some.length, "file")}, ${size_text(bytes_of(some))}`;
  const table = filtered(columns, files, { label: "Files", filter: "Filter files", group, sum, text: (file) => `${file.path} ${file.format} ${file.loads} ${codes_of(file).join(" ")}` });
  return el("div", {}, told.length > 0 && el("p", { class: "note told" }, files.length === 2 ? "Both: " : "All: ", told), table);
}

function file_parts(files, labels) {
  const found = files.filter((file) => file.findings.length);
  const sized = files.filter((file) => file.bytes > 0).sort((one, two) => two.bytes - one.bytes).map((file) => ({ name: labels.get(file.path) || base(file.path), title: file.path, bytes: file.bytes }));
  const differ = sized.length > 1 && sized[0].bytes > 1.01 * sized[sized.length - 1].bytes;
  return [
    part("Files", null, () => file_table(files)),
    differ ? part("Size by file", null, () => size_bars(sized, "Bytes of each file")) : null,
    found.length > 0 ? part("Findings", null, () => findings_by_code(found, files.length)) : null,
  ];
}

// The findings of all files in groups by their code and level, the most serious first: [{code, level, found: [{file, finding}]}].
function grouped_findings(files) {
  const groups = new Map();
  for (const file of files) {
    for (const finding of file.findings) {
      const key = `${finding.code} ${level_of(finding)}`;
      if (!groups.has(key)) groups.set(key, { code: finding.code, level: level_of(finding), found: [] });
      groups.get(key).found.push({ file, finding });
    }
  }
  return by_level([...groups.values()]);
}

const FILES_OF_CODE = 50;

// One entry for each code: what it says, once where it says the same of all files, and the files.
function findings_by_code(files, count) {
  const item = ({ code, level, found }) => {
    const names = new Set(found.map(({ file }) => file.path));
    const texts = new Set(found.map(({ finding }) => finding.message));
    const first = found[0].finding;
    const of_file = ({ file, finding }) =>
      el("li", {}, name_of(file.path, 400), texts.size > 1 && [": ", sentence(finding.message)], finding.hint && finding.hint !== first.hint && [" ", code_of(finding.hint)]);
    const list = el("ul", { class: "names of-files" });
    return el(
      "li",
      { class: `finding ${level}`, "data-code": code },
      el("span", { class: "badge" }, level),
      el(
        "div",
        {},
        el("p", {}, el("b", { class: "code" }, sentence(code)), " ", el("span", { class: "soft" }, `${whole(names.size)} of ${plural(count, "file")}: `), sentence(first.message), texts.size > 1 && el("span", { class: "soft" }, ` (${show(base(found[0].file.path), 80)})`)),
        first.consequence && el("p", { class: "follows" }, sentence(first.consequence)),
        first.hint && el("p", {}, code_of(first.hint)),
        el("details", {}, el("summary", {}, plural(names.size, "file")), list, unfolding(found, of_file, FILES_OF_CODE, list))
      )
    );
  };
  return el("ul", { class: "findings" }, grouped_findings(files).map(item));
}
