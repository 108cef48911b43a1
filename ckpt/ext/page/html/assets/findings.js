// Findings as the terminal says them: what loading would run above all, then the most serious first.

const NAMES = 100;

function findings_part(findings, apart = []) {
  const rest = findings.filter((finding) => finding.code !== "called-on-load" && !apart.includes(finding.code));
  if (!rest.length) return null;
  const said = new Set(findings.filter((finding) => finding.code === "called-on-load").map((finding) => finding.hint));
  const once = (finding) => (finding.hint && said.has(finding.hint) ? { ...finding, hint: null, consequence: null } : finding);
  return part("Findings", null, () => el("ul", { class: "findings" }, by_level(rest).map((finding) => finding_item(once(finding)))));
}

function finding_item(finding) {
  const names = [...finding.tensors, ...finding.where];
  return el(
    "li",
    { class: `finding ${level_of(finding)}` },
    el("span", { class: "badge" }, sentence(finding.level)),
    el(
      "div",
      {},
      el("p", {}, el("b", { class: "code" }, sentence(finding.code)), " ", sentence(finding.message)),
      finding.consequence && el("p", { class: "follows" }, sentence(finding.consequence)),
      finding.hint && el("p", {}, code_of(finding.hint)),
      names.length > 1 &&
        el(
          "details",
          {},
          el("summary", {}, finding.tensors.length ? plural(finding.tensors.length, "tensor") : plural(names.length, "place")),
          el("ul", { class: "names" }, names.slice(0, NAMES).map((name) => el("li", {}, name_of(name)))),
          names.length > NAMES && el("p", { class: "soft" }, `and ${whole(names.length - NAMES)} more`)
        )
    )
  );
}

const LEVELS = ["error", "warning", "info"];
const by_level = (findings) => [...findings].sort((one, two) => LEVELS.indexOf(level_of(one)) - LEVELS.indexOf(level_of(two)));
const level_of = (finding) => (LEVELS.includes(finding.level) ? finding.level : "info");

// What loading a file calls: above everything else.
function danger(findings) {
  const calls = findings.filter((finding) => finding.code === "called-on-load");
  return calls.slice(0, NAMES).map((finding) => {
    const text = sentence(finding.message);
    const is_danger = text.startsWith("DANGER: ");
    return el(
      "div",
      { class: "danger", role: "alert" },
      el("b", {}, is_danger ? "DANGER" : sentence(finding.code)),
      el(
        "div",
        {},
        el("p", {}, text.replace(/^DANGER: /, "")),
        finding.consequence && el("p", {}, sentence(finding.consequence)),
        finding.hint && el("p", {}, code_of(finding.hint))
      )
    );
  });
}

// Tensors that hold NaN or Inf: above all other findings. `before` counts those of the file before.
const BAD_CODES = ["nan", "inf"];

function bad_part(rows, count = rows.length) {
  const bad = rows.filter((row) => row.nan || row.inf);
  if (!bad.length) return null;
  const list = el("ul", { class: "findings" });
  const item = (row) =>
    el(
      "li",
      { class: "finding error" },
      el("span", { class: "badge" }, bad_text(row)),
      el("div", {}, el("p", {}, name_of(row.name, 400), row.before > 0 && el("span", { class: "soft" }, ` ${whole(row.before)} in the file before`)))
    );
  return part("NaN or Inf", `${plural(bad.length, "tensor")} of ${whole(count)}.`, () => [list, unfolding(bad, item, 12, list)]);
}

const bad_text = (row) => [row.nan && `${whole(row.nan)} NaN`, row.inf && `${whole(row.inf)} Inf`].filter(Boolean).join(", ");

// `codes` -> the most serious finding of each tensor, for colours.
function finding_of(findings) {
  const found = new Map();
  for (const finding of findings) for (const name of finding.tensors) if (!found.has(name)) found.set(name, finding.code);
  return found;
}

function unreadable_part(rows) {
  if (!rows.length) return null;
  return part("Unreadable", null, () =>
    el(
      "ul",
      { class: "findings" },
      rows.map((row) =>
        el(
          "li",
          { class: "finding error" },
          el("span", { class: "badge" }, "unreadable"),
          el("div", {}, el("p", {}, name_of(row.path, 400), ": ", sentence(row.message || row.code || "")), row.hint && el("p", { class: "follows" }, sentence(row.hint)))
        )
      )
    )
  );
}

// The headline of a view: what it is about, in a line.
function headline(title, pieces) {
  const texts = pieces.filter(Boolean);
  return el(
    "header",
    { class: "headline" },
    el("h1", {}, title),
    texts.length > 0 && el("p", { class: "pieces" }, texts.map((piece) => el("span", {}, piece)))
  );
}

function facts(rows) {
  const kept = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return kept.length ? el("dl", { class: "facts" }, kept.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])) : null;
}
