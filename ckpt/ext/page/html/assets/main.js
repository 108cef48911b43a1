// The page: the views of its documents, one at a time, in dark or light.

const VIEWS = { checkpoint: checkpoint_view, diff: diff_view, stats: stats_view, series: series_view, folder: folder_view };

function is_dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
}

function recolour() {
  for (const redo of themed) redo();
  for (const each of charts) each.draw();
}

function theme_button() {
  const button = el("button", { type: "button", class: "theme" });
  const name = () => (button.textContent = is_dark() ? "Light" : "Dark");
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = is_dark() ? "light" : "dark";
    name();
    recolour();
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    name();
    recolour();
  });
  name();
  return button;
}

function drawn(view, data) {
  try {
    return VIEWS[view.kind](view, data);
  } catch (error) {
    return el("p", { class: "note" }, `This document cannot be drawn: ${sentence(error.message)}`);
  }
}

function page(data) {
  const main = el("main", { id: "main" });
  const tabs = el("nav", { class: "views", "aria-label": "Views" });
  const open = (at) => {
    for (const each of charts) if (each.canvas) each.canvas.dispose();
    charts.clear();
    themed.clear();
    emptied(main, data.views.length > 0 && drawn(data.views[at], data));
    const failures = unreadable_part(data.unreadable);
    const first = main.querySelector(".part");
    if (failures && first) first.before(failures);
    else if (failures) main.append(failures);
    [...tabs.querySelectorAll("button")].forEach((button, place) => button.setAttribute("aria-pressed", String(place === at)));
    for (const each of charts) each.draw();
  };
  if (data.views.length > 1) {
    const buttons = el("div", { class: "choice" });
    const more = unfolding(data.views, (view) => {
      const at = data.views.indexOf(view);
      return el("button", { type: "button", "aria-pressed": "false", onclick: () => open(at) }, name_of(view.title, 80));
    }, 24, buttons);
    add(tabs, [buttons, more]);
  }
  emptied(
    document.getElementById("page"),
    el("div", { class: "top" }, el("span", { class: "brand" }, "ckpt report"), theme_button()),
    data.views.length > 1 && tabs,
    main,
    el("footer", {}, `Drawn by ckpt ${sentence(data.ckpt)}${data.date ? ` on ${sentence(data.date)}` : ""} from its JSON documents. This page requests nothing. Charts: Apache ECharts, Apache License 2.0.`)
  );
  document.title = data.views.length ? `${show(data.views[0].title, 120)} · ckpt report` : "ckpt report";
  open(0);
  document.documentElement.dataset.ready = "yes";
}

documents().then(page, (error) => {
  emptied(document.getElementById("page"), el("p", { class: "note" }, `The documents of this page cannot be read: ${sentence(error.message)}`));
});
