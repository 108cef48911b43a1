"""The page in headless Chromium: it is drawn without an error or a request, it is used,
and names stay names.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import Browser, browser, found
from inside import inside
from process import ROOT, SAMPLES
from reports import EVIL, compared, documents, inspected, pages

import ckpt
from ckpt.ext.page.html import html_page

pytestmark = [
    pytest.mark.skipif(found() is None, reason="there is no Chromium"),
    pytest.mark.slow,
]

KINDS = ("checkpoint", "diff", "stats", "series", "folder", "evil", "large")
_MOST_NODES = 5_000


@pytest.fixture
def show(tmp_path: Path) -> Any:
    """Shows the page of that name, or of these bytes."""

    def open_page(name: str | bytes, **options: Any) -> Browser:
        path = tmp_path / "page.html"
        path.write_bytes(pages(name) if isinstance(name, str) else name)
        made = browser()
        made.open(path, **options)
        return made

    return open_page


def texts(shown: Browser, selector: str) -> list[str]:
    """The texts of all elements of a selector that can be seen."""
    code = f"""[...document.querySelectorAll({json.dumps(selector)})].filter((each) => each.checkVisibility())
      .map((each) => each.textContent)"""
    return list(shown.run(code))


def press(shown: Browser, text: str, inside: str = "body") -> None:
    """Click the first button with this text."""
    code = f"""(() => {{
      const all = [...document.querySelectorAll({json.dumps(inside + " button")})];
      const found = all.find((each) => each.checkVisibility() && each.textContent.trim() === {json.dumps(text)});
      if (!found) throw new Error("no such button among: " + all.map((each) => each.textContent).join(", "));
      found.scrollIntoView({{ block: "center" }});
      const box = found.getBoundingClientRect();
      return [box.x + box.width / 2, box.y + box.height / 2];
    }})()"""
    shown.click(*shown.run(code))


def write(shown: Browser, label: str, text: str) -> None:
    """Write into a field."""
    shown.run(
        f"document.querySelector('input[aria-label={json.dumps(label)}]').focus()"
    )
    shown.run(f"document.activeElement.value = {json.dumps(text)}")
    shown.run(
        "document.activeElement.dispatchEvent(new Event('input', { bubbles: true }))"
    )
    shown.settle()


def is_quiet(shown: Browser) -> bool:
    """Whether nothing went wrong and nothing was asked for but the page itself."""
    assert shown.errors == []
    assert [
        url
        for url in shown.requests
        if not url.startswith("file:") or not url.endswith("/page.html")
    ] == []
    assert shown.run("performance.getEntriesByType('resource').length") == 0
    return True


def colours_of(shown: Browser, number: int = 0) -> dict[str, int]:
    """How many pixels of a chart have which colour."""
    code = f"""(() => {{
      const canvas = document.querySelectorAll(".chart canvas")[{number}];
      const copy = Object.assign(document.createElement("canvas"), {{ width: canvas.width, height: canvas.height }});
      copy.getContext("2d", {{ willReadFrequently: true }}).drawImage(canvas, 0, 0);
      const data = copy.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      const found = {{}};
      for (let at = 0; at < data.length; at += 4) {{
        const colour = [data[at], data[at + 1], data[at + 2]].map((each) => each.toString(16).padStart(2, "0")).join("");
        if (data[at + 3] === 255) found["#" + colour] = (found["#" + colour] || 0) + 1;
      }}
      return found;
    }})()"""
    return dict(shown.run(code))


def variable(shown: Browser, name: str) -> str:
    return str(
        shown.run(
            f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()"
        )
    )


@pytest.mark.parametrize("name", KINDS)
def test_a_page_is_drawn_without_an_error_a_request_or_too_many_elements(
    show: Any, name: str
) -> None:
    shown = show(name)

    assert is_quiet(shown)
    assert shown.run("document.querySelectorAll('*').length") <= _MOST_NODES
    assert not [text for text in texts(shown, ".note") if "cannot be drawn" in text]
    assert texts(shown, "h1") and all(texts(shown, ".part > h2"))
    blank = [
        at
        for at in range(shown.run("document.querySelectorAll('.chart').length"))
        if len(colours_of(shown, at)) < 3
    ]
    assert blank == []


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dark", [False, True])
def test_a_page_fits_a_phone_in_both_schemes(show: Any, name: str, dark: bool) -> None:
    shown = show(name, width=375, height=700, dark=dark)

    assert shown.run("document.documentElement.scrollWidth") == 375
    code = """[...document.querySelectorAll("#page *")].filter((each) => each.checkVisibility() && !each.closest(".scroll")
      && !each.closest("canvas") && each.getBoundingClientRect().right > 376).map((each) => each.className)"""
    assert shown.run(code) == []
    assert shown.run("getComputedStyle(document.body).backgroundColor") == (
        "rgb(22, 23, 25)" if dark else "rgb(251, 250, 248)"
    )
    assert is_quiet(shown)


def test_the_verdict_and_the_findings_come_first(show: Any) -> None:
    shown = show("checkpoint")

    assert texts(shown, ".part > h2")[:4] == [
        "Findings",
        "Layers",
        "Modules",
        "Optimizer",
    ]
    findings = inspected()["findings"]
    levels = ["error", "warning", "info"]
    by_level = sorted(findings, key=lambda row: levels.index(row["level"]))
    assert texts(shown, ".finding .code") == [row["code"] for row in by_level]
    said = "\n".join(texts(shown, ".finding"))
    for row in findings:
        assert (
            row["message"] in said
            and (row["hint"] or "") in said
            and (row["consequence"] or "") in said
        )
    assert "3.96 K parameters" in texts(shown, ".pieces")[0]
    facts = texts(shown, ".facts")[0]
    assert "weights_only=True refuses" in facts and "--plain -o" in facts
    assert "or, only if you trust its author, with weights_only=False:" in facts


def test_what_loading_runs_stands_below_the_name_and_above_all_else(show: Any) -> None:
    shown = show(html_page([inspected(SAMPLES / "hostile.pth")]))

    first, second = shown.run(
        "[...document.querySelector('#main').children].slice(0, 2).map((each) => "
        "each.textContent)"
    )
    assert "hostile.pth" in first and second.startswith(
        "DANGERloading this file runs posix.system('echo ckpt-sample') (stored at "
        "version)."
    )
    assert texts(shown, ".finding .code") == ["weights-only"]
    assert not any("values" in text for text in texts(shown, ".facts dt"))
    assert [
        "version",
        "posix.system('echo ckpt-sample')",
        "posix.system",
    ] in rows_of(shown, "table.values")


def test_the_optimizer_tells_who_never_had_a_gradient(show: Any) -> None:
    shown = show("checkpoint")
    rows = texts(shown, '[data-part="Optimizer"] tbody tr')

    assert rows[:3] == [
        "model.module.aux_head.weightnever80",
        "model.module.aux_head.biasnever10",
        "model.module.conv1.weight12 of 12216",
    ]
    assert (
        "2 parameters never had a gradient in it."
        in texts(shown, '[data-part="Optimizer"] .note')[0]
    )


def test_the_state_of_an_optimizer_stands_below_its_parameters(show: Any) -> None:
    shown = show("checkpoint")
    write(shown, "Filter tensors", "module.bn1.weight exp_avg_sq")

    code = (
        "[...document.querySelectorAll('[data-part=Tensors] tbody th "
        "bdi')].filter((each) => each.checkVisibility()).map((each) => each.title)"
    )
    assert texts(shown, "[data-part=Tensors] tbody th") == [
        "optimizer.state.model.module.bn1.weight.exp_avg_sq"
    ]
    assert shown.run(code) == ["optimizer.state.1.exp_avg_sq"]
    write(shown, "Find a module or tensor", "state.model.module.bn1")
    assert texts(shown, ".hits button") == ["optimizer.state.model.module.bn1"]
    assert is_quiet(shown)


def test_the_treemap_opens_by_a_click_and_by_its_buttons(show: Any) -> None:
    shown = show("checkpoint")
    box = shown.run(
        "(() => { const e = document.querySelector('.chart'); e.scrollIntoView({ "
        "block: 'center' });"
        " const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; "
        "})()"
    )
    assert texts(shown, ".crumbs button") == ["all"]
    before = colours_of(shown)

    shown.click(
        box[0] + box[2] * 0.9, box[1] + box[3] * 0.25
    )  # a tensor, in the model on the right
    assert texts(shown, ".crumbs button") == ["all"]
    assert "parameter" in texts(shown, ".treemap .said")[0]
    shown.click(box[0] + box[2] * 0.9, box[1] + 10)  # the title of the model
    assert texts(shown, ".crumbs button") == ["all", "model.module"]
    press(shown, "layers 14.3 KiB", ".treemap")
    assert texts(shown, ".crumbs button") == ["all", "model.module", "layers"]
    assert texts(shown, ".treemap .said")[0].startswith(
        "model.module.layers: 36 tensors, 14.3 KiB"
    )
    chips = texts(shown, ".chips:not(.hits) button")
    assert sorted(chips) == ["0 4.77 KiB", "1 4.77 KiB", "2 4.77 KiB"]
    assert colours_of(shown) != before

    press(shown, "model.module", ".crumbs")
    assert texts(shown, ".crumbs button") == ["all", "model.module"]
    press(shown, "all", ".crumbs")
    shown.move(2, 2)
    assert colours_of(shown) == before
    press(shown, "Device", ".treemap")
    assert colours_of(shown) != before
    assert texts(shown, ".treemap .legend li") == ["cuda:0", "cuda:1"]
    write(shown, "Find a module or tensor", "aux_head")
    assert texts(shown, ".hits button") == ["model.module.aux_head"]
    press(shown, "model.module.aux_head", ".hits")
    assert texts(shown, ".crumbs button") == ["all", "model.module", "aux_head"]
    assert is_quiet(shown)


def test_a_tip_of_a_chart_is_text_on_its_canvas(show: Any) -> None:
    shown = show("evil")
    press(
        shown,
        *[
            text
            for text in texts(shown, ".views button")
            if text.startswith("/tmp") and "→" not in text
        ],
    )
    before = colours_of(shown)
    box = shown.run(
        "(() => { const e = document.querySelector('.chart'); e.scrollIntoView({ "
        "block: 'center' });"
        " const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; "
        "})()"
    )
    for across in (0.1, 0.3, 0.5, 0.7, 0.9):
        for down in (0.2, 0.5, 0.8):
            shown.move(box[0] + box[2] * across, box[1] + box[3] * down)
    assert colours_of(shown) != before
    assert shown.run("document.querySelectorAll('.chart *').length") == shown.run(
        "document.querySelectorAll('.chart canvas, .chart > div').length"
    )
    assert shown.run("String(window.pwned)") == "undefined" and is_quiet(shown)


def test_names_stay_names(show: Any) -> None:
    shown = show("evil")
    views = texts(shown, ".views button")
    assert len(views) == 2

    for view in views:
        press(shown, view, ".views")
        press(shown, "List, sortable")
        for name in ("script", "img", "svg", "<", "onload"):
            write(shown, "Filter tensors", name)
            write(shown, "Find a module or tensor", name)
        write(shown, "Filter tensors", "")
        text = "".join(texts(shown, "table"))
        assert "model.</script><script>window.pwned=1</script>" in text
        assert (
            "\\u202eevil\\u2066" in text
            and "\u202e" not in text
            and "\u2028" not in text
        )
        assert "back\\\\slash" in text and "tab\\there\\nline" in text
        assert (
            shown.run(
                "document.querySelectorAll('#page script, #page img, #page iframe, "
                "#page b i').length"
            )
            == 0
        )
        assert shown.run("String(window.pwned)") == "undefined"
    assert is_quiet(shown)
    assert len(EVIL) > 10


def test_markup_in_a_page_that_is_changed_does_nothing(show: Any) -> None:
    """The policy holds where all else would fail: an element with a handler is put into
    the page.
    """
    shown = show("checkpoint")
    shown.run(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x "
        'onerror="window.pwned=1">\')'
    )
    shown.run(
        "document.body.append(Object.assign(document.createElement('script'), { "
        "textContent: 'window.pwned=1' }))"
    )
    shown.run(
        "document.body.append(Object.assign(document.createElement('style'), { "
        "textContent: 'h1 { color: red }' }))"
    )
    asked = shown.run("fetch('data:text/plain,x').then(() => 'asked', () => 'refused')")
    shown.settle()

    assert asked == "refused" and shown.run("String(window.pwned)") == "undefined"
    assert (
        shown.run("getComputedStyle(document.querySelector('h1')).color")
        != "rgb(255, 0, 0)"
    )
    assert any("Content Security Policy" in text for text in shown.errors)


def test_the_tensors_open_sort_and_filter(show: Any) -> None:
    shown = show("checkpoint")
    part = '[data-part="Tensors"]'

    rows = texts(shown, f"{part} tbody tr")
    assert rows[0].startswith("model.module") and "conv1" in rows[1] and len(rows) < 40
    press(shown, "layers", part)
    press(shown, "0", part)
    opened = texts(shown, f"{part} tbody tr")
    assert len(opened) == len(rows) + 3 + 4
    press(shown, "layers", part)
    assert texts(shown, f"{part} tbody tr") == rows

    write(shown, "Filter tensors", "bn1 buffer")
    found = texts(shown, f"{part} tbody th")
    assert len(found) == 12 and all("bn1" in name for name in found)
    assert texts(shown, f"{part} .found") == ["12 of 115 tensors"]
    write(shown, "Filter tensors", "fc*weight parameter")
    assert texts(shown, f"{part} tbody th") == ["model.module.fc.weight"]
    write(shown, "Filter tensors", "")
    press(shown, "List, sortable", part)
    press(shown, "Elements", part)
    sizes = [
        int(text.replace(",", ""))
        for text in texts(shown, f"{part} tbody td:nth-of-type(5)")
    ]
    assert (
        len(sizes) == 100 and sizes == sorted(sizes, reverse=True) and sizes[0] == 576
    )
    assert (
        shown.run(
            f"document.querySelector(`{part} [aria-sort]`).getAttribute('aria-sort')"
        )
        == "descending"
    )
    press(shown, "Elements", part)
    sizes = [
        int(text.replace(",", ""))
        for text in texts(shown, f"{part} tbody td:nth-of-type(5)")
    ]
    assert sizes == sorted(sizes)
    press(shown, "Show 15 more of 115", part)
    assert len(texts(shown, f"{part} tbody tr")) == 115
    assert is_quiet(shown)


def test_what_did_not_change_stands_first_and_in_red(show: Any) -> None:
    shown = show("diff")

    assert texts(shown, ".pieces b") == ["differ: 46 changed, 2 same, 2 values"]
    assert texts(shown, ".still .big") == ["2 of 12 parameters did not change"]
    assert texts(shown, ".still .name") == [
        "model.module.fc3.weight",
        "model.module.fc3.bias",
    ]
    order = shown.run(
        "[...document.querySelectorAll('.headline, .still, .part')].map((each) => "
        "each.className)"
    )
    assert order[:3] == ["headline", "still", "part"]
    top = shown.run("document.querySelector('.still').getBoundingClientRect().bottom")
    assert top < 400
    alarm = variable(shown, "alarm")
    blue = variable(shown, "role-parameter")
    bars, tiles = colours_of(shown, 0), colours_of(shown, 1)
    assert 100 < bars[alarm] < bars[blue] / 10, "a mark at zero, and a word"
    assert tiles[alarm] > 5_000
    press(shown, "Buffers")
    bars = colours_of(shown, 0)
    assert (
        alarm not in bars
        and blue not in bars
        and bars[variable(shown, "role-buffer")] > 1_000
    )
    rows = {row[0]: row[1:] for row in rows_of(shown, ".counts")}
    assert rows == {
        "Parameters": ["10", "2"],
        "Buffers": ["6", "0"],
        "Optimizer": ["30", "0"],
    }
    assert is_quiet(shown)


def rows_of(shown: Browser, table: str) -> list[list[str]]:
    code = f"""[...document.querySelectorAll({json.dumps(table)} + " tbody tr")]
      .map((row) => [...row.children].map((cell) => cell.textContent))"""
    return list(shown.run(code))


def test_a_histogram_is_drawn_where_a_document_has_one(show: Any) -> None:
    from reports import documents

    counts = {"low": -0.5, "high": 0.5, "counts": [0] * 31 + [3, 9] + [0] * 31}
    (diff,) = json.loads(json.dumps(documents("diff")))
    (stats,) = json.loads(json.dumps(documents("stats")))
    diff["tensors"][0]["change"]["histogram"] = counts
    stats["tensors"][0]["histogram"] = counts
    shown = show(html_page([diff, stats]))

    for view in texts(shown, ".views button"):
        press(shown, view, ".views")
        if "→" in view:
            press(shown, "List, sortable")
        assert texts(shown, ".limits") == ["-0.5 … 0.5"]
        path = shown.run("document.querySelector('.histogram path').getAttribute('d')")
        assert (
            len(re.findall(r"M", path)) == 64
            and "v-30.00" in path
            and "v-10.00" in path
        )
    assert is_quiet(shown)


def test_dead_channels_and_infinities_are_marked(show: Any) -> None:
    shown = show("stats")

    assert texts(shown, ".part > h2")[:3] == ["NaN or Inf", "Findings", "Layers"]
    assert texts(shown, ".finding.error") == ["16 Inffc.weight"]
    assert texts(shown, ".finding .code") == ["dead-channels"]
    notes = texts(shown, ".note")
    assert any("4 dead channels in 1 of" in note for note in notes)
    alarm, bad = variable(shown, "alarm"), variable(shown, "bad")
    assert colours_of(shown, 0)[bad] > 100 and colours_of(shown, 1)[alarm] > 300
    rows = {row[0]: row for row in rows_of(shown, '[data-part="Numbers"] table')}
    assert rows["fc.weight"][-1] == "16" and rows["conv.bias"][2:5] == ["1", "1", "1"]
    before = colours_of(shown, 0)
    press(shown, "Linear")
    assert colours_of(shown, 0) != before
    assert is_quiet(shown)


def test_a_series_shows_who_freezes_explodes_and_dies(show: Any) -> None:
    shown = show("series")

    assert len(texts(shown, '[data-part="What stands out"] .finding')) == 5
    held, alarm, bad = (variable(shown, name) for name in ("held", "alarm", "bad"))
    first = colours_of(shown, 0)
    assert first[held] > 1_000 and first[bad] > 100
    assert alarm not in first and texts(shown, ".finding.info"), (
        "what is information is never red"
    )
    assert texts(shown, '[data-part="Over time"] .legend li')[0].startswith(
        "relative change "
    )
    press(shown, "RMS")
    second = colours_of(shown, 0)
    assert held not in second and second[bad] > 100 and second != first
    assert texts(shown, '[data-part="Over time"] .legend li')[0].startswith("RMS ")
    tables = texts(shown, '[data-part="Numbers"] thead')
    assert tables[0].startswith("Nameepoch_1epoch_2") and tables[1].startswith(
        "Nameepoch_0epoch_1"
    )
    changes, sizes = (
        {
            row[0]: row[1:]
            for row in rows_of(
                shown, f'[data-part="Numbers"] h3:nth-of-type({at}) + div'
            )
        }
        for at in (1, 2)
    )
    assert changes["blocks"][-1] == "NaN or Inf" == sizes["blocks"][-1]
    assert changes["aux"][0] == "0" and sizes["aux"][0] == "1"
    assert is_quiet(shown)


def test_a_folder_is_a_table_with_all_findings(show: Any) -> None:
    shown = show("folder")
    rows = {
        Path(row[0]).name: row for row in rows_of(shown, '[data-part="Files"] table')
    }

    assert (
        rows["hostile.pth"][-2] == "RUNS CODE"
        and "called-on-load" in rows["hostile.pth"][-1]
    )
    assert rows["train_cuda.pth"][2:6] == ["80.3 KiB", "3.96 K", "float32", "cuda:0"]
    assert rows["train_cuda.pth"][6].startswith("epoch 12")
    (danger,) = texts(shown, ".danger")
    assert "1 of " in danger and "files runs code when loaded: do not load it" in danger
    assert danger.endswith("hostile.pth")
    tiles = texts(shown, ".tiles li")
    assert tiles[1:4] == ["3safe only if trusted", "1runs code", "0unreadable"]
    assert tiles[0].endswith("safe to load")
    write(shown, "Filter files", "RUNS CODE")
    assert [
        Path(row[0]).name for row in rows_of(shown, '[data-part="Files"] table')
    ] == ["hostile.pth"]


def test_files_of_several_folders_open_close_and_sort_below_them(show: Any) -> None:
    from reports import listed

    rows = [
        listed(SAMPLES / name)
        for name in ("legacy.pth", "llama_bf16.pth", "train_cuda.pth")
    ]
    for row, path in zip(rows, ("b/one.pth", "a/two.pth", "b/three.pth"), strict=True):
        row["path"] = row["file"]["path"] = path
    shown = show(html_page(rows, date="2026-03-01"))
    part = '[data-part="Files"]'

    assert "drawn on 2026-03-01" in texts(shown, ".pieces")[0]
    assert texts(shown, f"{part} tbody th") == [
        "a 1 file, 63.4 KiB", "two.pth", "b 2 files, 94.1 KiB", "one.pth", "three.pth",
    ]  # fmt: skip
    press(shown, "Size", part)
    assert texts(shown, f"{part} tbody th")[3:] == ["three.pth", "one.pth"]
    press(shown, "b", part)
    assert texts(shown, f"{part} tbody th")[1:] == ["two.pth", "b 2 files, 94.1 KiB"]
    press(shown, "b", part)
    assert len(texts(shown, f"{part} tbody th")) == 5
    assert is_quiet(shown)


def test_the_strip_shows_layers_in_their_order_and_says_what_a_cell_is(
    show: Any,
) -> None:
    shown = show("checkpoint")
    titles = texts(shown, ".strip .title")
    assert (
        titles.index("model.module.layers") > titles.index("model.module")
        and "model.module.aux_head" not in titles
    )
    see = (
        "(() => { const e = document.querySelectorAll('.cell'); return [e.length, new "
        "Set([...e].map((each) => each.style.background)).size]; })()"
    )
    count, colours = shown.run(see)
    assert count > 9 and colours > 3
    box = shown.run(
        "(() => { const e = document.querySelector('.cell'); e.scrollIntoView({ block: "
        "'center' });"
        " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + "
        "b.height / 2]; })()"
    )
    shown.click(*box)
    title = shown.run("document.querySelector('.cell').title")
    assert texts(shown, '[data-part="Layers"] .said') == [title] and title.startswith(
        "model.module.conv1: "
    )
    press(shown, "Role", '[data-part="Layers"]')
    assert texts(shown, '[data-part="Layers"] .legend li') == ["parameter", "buffer"]
    assert is_quiet(shown)


def test_few_tensors_fill_no_page(show: Any) -> None:
    shown = show(html_page([inspected(SAMPLES / "hostile.pth")]))
    assert texts(shown, ".chart") == [] and "Modules" not in texts(shown, ".part > h2")


@pytest.mark.parametrize("name", ["checkpoint", "series", "folder"])
def test_no_name_of_a_table_breaks_within_a_word(show: Any, name: str) -> None:
    """Each piece of a name that lies between two places to break stands on one line."""
    shown = show(name, width=390, height=800)
    code = """[...document.querySelectorAll("table .name")].filter((each) => each.checkVisibility()).flatMap((name) =>
      [...name.childNodes].filter((each) => each.nodeType === 3).filter((text) => {
        const range = document.createRange();
        range.selectNodeContents(text);
        return range.getClientRects().length > 1;
      }).map((text) => text.data))"""
    assert len(texts(shown, "table .name")) > 5 and shown.run(code) == []


def test_a_long_name_leaves_room_for_its_row_on_a_phone(
    show: Any, tmp_path: Path
) -> None:
    torch.save(
        {"x" * 200: torch.ones(2), f"{'y' * 90}.w": torch.ones(2)},
        tmp_path / "long.pth",
    )
    shown = show(html_page([inspected(tmp_path / "long.pth")]), width=390, height=800)

    widths = (
        "[...document.querySelectorAll('[data-part=Tensors] tbody th')].map((each) => "
        "each.offsetWidth)"
    )
    assert 0 < max(shown.run(widths)) < 240


@pytest.mark.parametrize("name", ["checkpoint", "diff", "stats", "folder", "evil"])
def test_no_table_is_wider_than_a_desk(show: Any, name: str) -> None:
    shown = show(name, width=1440)
    code = """[...document.querySelectorAll(".scroll")].filter((each) => each.checkVisibility()
      && each.scrollWidth > each.clientWidth + 1).map((each) => each.ariaLabel)"""
    assert shown.run(code) == []


def test_two_equal_files_have_no_bars_of_what_moved(show: Any) -> None:
    shown = show(
        html_page([compared(SAMPLES / "ddp_before.pth", SAMPLES / "ddp_before.pth")])
    )
    assert "What moved" not in texts(shown, ".part > h2") and texts(
        shown, "[data-part=Modules] .note"
    ) == ["Area: elements."]


def test_a_legend_has_the_colours_that_are_there(show: Any) -> None:
    shown = show("diff")
    assert texts(shown, '[data-part="What moved"] .legend li') == [
        "parameters", "buffers", "optimizer", "parameters that did not change",
    ]  # fmt: skip
    shown = show("stats")
    assert "holds NaN or Inf" in texts(
        shown, '[data-part="Values of the tensors"] .legend li'
    )
    shown = show("series")
    assert "NaN or Inf" in texts(shown, '[data-part="Over time"] .legend li')
    same = [documents("series")[at] for at in (0, 1, 12, 13, 24)]
    shown = show(html_page(same))
    legend = texts(shown, '[data-part="Over time"] .legend li')
    assert re.fullmatch("relative change [0-9.e-]+", legend[0]), (
        "one number has one colour"
    )
    assert legend[1:] == ["parameters that did not change"]
    legend = texts(show("series"), '[data-part="Over time"] .legend li')
    assert re.fullmatch("relative change [0-9.e-]+, the smallest", legend[0])
    assert all(re.fullmatch("[0-9.e-]+", text) for text in legend[1:4])
    assert re.fullmatch("[0-9.e-]+, the largest", legend[4])


def test_what_is_information_is_never_red(show: Any, tmp_path: Path) -> None:
    before = {f"layers.{i}.weight": torch.randn(8, 8) for i in range(4)}
    after = {
        name: tensor + (0.1 if "3" not in name else 0)
        for name, tensor in before.items()
    }
    torch.save(before, tmp_path / "a.pth")
    torch.save(after, tmp_path / "b.pth")
    shown = show(html_page([compared(tmp_path / "a.pth", tmp_path / "b.pth")]))

    assert texts(shown, ".still .big") == ["1 of 4 parameters did not change"]
    assert texts(shown, ".finding.info .code") == ["frozen"] and not texts(
        shown, ".finding.warning"
    )
    alarm = variable(shown, "alarm")
    for number in (0, 1):
        assert alarm not in colours_of(shown, number)
    code = """(alarm) => [...document.querySelectorAll("main *")].filter((each) => {
      const { color, borderLeftColor, backgroundColor } = getComputedStyle(each);
      return [color, borderLeftColor, backgroundColor].includes(alarm);
    }).length"""
    red = f"rgb({', '.join(str(int(alarm[at : at + 2], 16)) for at in (1, 3, 5))})"
    assert shown.run(f"({code})({json.dumps(red)})") == 0
    warned = show("diff")
    assert warned.run(f"({code})({json.dumps(red)})") > 0
    assert is_quiet(shown)


def test_a_series_draws_what_its_files_record(show: Any) -> None:
    rows = documents("series")
    paths = [row["path"] for row in rows if "path" in row]
    numbers = {
        path: {
            "epoch": at,
            "loss": 2 / (at + 1),
            "optimizer.param_groups.0.lr": 0.1**at,
            "beta": 0.9,
            "last": at,
        }
        for at, path in enumerate(paths)
    }
    shown = show(html_page(rows, numbers=numbers))

    titles = texts(shown, '[data-part="Recorded values"] .curve-title')
    assert [title.split()[0].partition("→")[0] for title in titles] == [
        "loss",
        "optimizer.param_groups.0.lr",
        "last",
    ]
    assert titles[0].startswith("loss 2 → ") and titles[2].endswith(
        "1 value equal to it"
    )
    charts = shown.run("document.querySelectorAll('.curve canvas').length")
    assert charts == 3 and colours_of(shown, 0)[variable(shown, "accent")] > 100
    assert is_quiet(shown)


def test_recorded_numbers_are_not_rounded_to_three_digits(show: Any) -> None:
    rows = documents("series")
    paths = [row["path"] for row in rows if "path" in row]
    numbers = {
        path: {
            "step": 123456 + 1777 * at,
            "elo": 1000 + 13.5 * at,
            "loss": 2.34567 - 0.001 * at,
            "lr": 2.5e-5 / (at + 1),
        }
        for at, path in enumerate(paths)
    }
    last = len(paths) - 1
    shown = show(html_page(rows, numbers=numbers))

    titles = texts(shown, '[data-part="Recorded values"] .curve-title')

    assert f"step 123,456 → {123456 + 1777 * last:,}" in titles
    assert f"elo 1,000 → {1000 + 13.5 * last:,.6g}" in titles
    assert f"loss 2.34567 → {2.34567 - 0.001 * last:.6g}" in titles
    assert any(title.startswith("lr 2.5e-5 → ") for title in titles)
    assert is_quiet(shown)


def test_what_could_not_be_read_is_said_before_all_numbers(
    show: Any, tmp_path: Path
) -> None:
    """Damage in most elements looks like a large step."""
    for epoch in range(3):
        state = {"a.weight": torch.full((40, 40), epoch + 1.0), "b": torch.ones(4)}
        torch.save(state, tmp_path / f"epoch_{epoch}.pth")
    path = tmp_path / "epoch_1.pth"
    data = bytearray(path.read_bytes())
    begin = data.index(torch.full((40, 40), 2.0).numpy().tobytes())
    data[begin : begin + 6400] = bytes(6400)
    path.write_bytes(data)
    names = [f"epoch_{epoch}.pth" for epoch in range(3)]
    assert inside("report", *names, "-o", "x.html", cwd=tmp_path).code == 2
    measured = ckpt.stats(path).to_json()
    said = "a.weight (lost, or the bytes do not match the checksum: ckpt verify)."

    shown = show((tmp_path / "x.html").read_bytes())
    assert texts(shown, ".danger") == [f"NOT READepoch_1: {said}"]
    assert is_quiet(shown)
    for documents_of in ([measured], [ckpt.inspect(path).to_json(), measured]):
        assert texts(show(html_page(documents_of)), ".danger") == [f"NOT READ{said}"]


def test_findings_of_a_folder_are_grouped_by_code(show: Any) -> None:
    shown = show("folder")
    part = '[data-part="Findings"]'
    codes = texts(shown, f"{part} .finding > div > p > .code")
    levels = texts(shown, f"{part} .badge")

    assert len(set(zip(codes, levels, strict=True))) == len(codes) > 5
    assert levels == sorted(levels, key=["error", "warning", "info"].index)
    shown.run(
        f"[...document.querySelectorAll('{part} details')].forEach((each) => "
        "(each.open = true))"
    )
    (cuda,) = (
        text for text in texts(shown, f"{part} .finding") if text.startswith("infocuda")
    )
    assert "legacy.pth" in cuda and "llama_bf16.pth" in cuda
    assert is_quiet(shown)


def test_what_is_unreadable_stands_in_the_page(show: Any) -> None:
    error = {
        "code": "cut-off",
        "message": "cut off: <b>here</b>",
        "hint": "download again",
    }
    failure = {
        "schema": {"name": "ckpt.inspect", "version": 1},
        "ckpt": "0",
        "file": {"path": "<x>.pth"},
        "error": error,
    }
    for made, first in (
        ([failure], "Unreadable"),
        ([inspected(), failure], "Unreadable"),
    ):
        shown = show(html_page(made))

        assert texts(shown, ".part > h2")[0] == first
        assert "<x>.pth: cut off: <b>here</b>" in texts(shown, ".finding.error")[0]
        assert is_quiet(shown)


def test_a_document_that_lies_costs_its_part_and_not_the_page(show: Any) -> None:
    document = json.loads(json.dumps(inspected()))
    document["imports"][0]["where"] = [{"a": 1}]
    document["totals"]["devices"] = 7
    document["tensors"][0]["shape"] = ["<b>", None]
    document["file"]["parts"] = "x"
    shown = show(html_page([document]))

    assert "Findings" in texts(shown, ".part > h2") and is_quiet(shown)
    document["file"]["bytes"] = {"a": []}
    document["totals"] = {}
    shown = show(html_page([document]))
    assert texts(shown, "main") and is_quiet(shown)


def test_the_scheme_can_be_chosen_and_charts_follow(show: Any) -> None:
    shown = show("diff")
    light = colours_of(shown, 0)

    press(shown, "Dark", ".top")
    assert (
        shown.run("getComputedStyle(document.body).backgroundColor")
        == "rgb(22, 23, 25)"
    )
    dark = colours_of(shown, 0)
    assert dark != light and dark[variable(shown, "role-parameter")] > 1_000
    assert texts(shown, ".theme") == ["Light"]
    press(shown, "Light", ".top")
    assert colours_of(shown, 0) == light
    shown.scheme("dark")
    shown.settle()
    assert (
        shown.run("getComputedStyle(document.body).backgroundColor")
        == "rgb(251, 250, 248)"
    )  # as it was chosen
    assert is_quiet(shown)


def test_the_keyboard_reaches_and_opens_everything(show: Any) -> None:
    shown = show("checkpoint")
    reached = []
    for _ in range(40):
        shown.press("Tab")
        reached.append(
            shown.run(
                "document.activeElement.textContent.trim() || "
                "document.activeElement.ariaLabel"
            )
        )
        if reached[-1] == "model.module 16.0 KiB":
            break
    assert reached[0] == "Dark" and {
        "2 tensors",
        "Bytes",
        "Device",
        "Find a module or tensor",
        "all",
    } <= set(reached)
    shown.press("Enter")
    assert texts(shown, ".crumbs button") == ["all", "model.module"]
    outline = shown.run(
        "(() => { const e = document.querySelector('.crumbs button'); e.focus(); "
        "return getComputedStyle(e).outlineStyle; })()"
    )
    assert outline in ("solid", "auto")


@pytest.mark.parametrize("dark", [False, True])
def test_texts_can_be_read(show: Any, dark: bool) -> None:
    """WCAG AA: a contrast of 4.5 for text."""
    shown = show("checkpoint", dark=dark)
    pairs = [
        (text, ground)
        for text in ("text", "soft", "link", "alarm", "good", "warn", "info")
        for ground in ("ground", "panel", "hover")
    ]
    pairs += [
        ("alarm", "alarm-soft"),
        ("warn", "warn-soft"),
        ("info", "info-soft"),
        ("soft", "alarm-soft"),
        ("text", "alarm-soft"),
    ]
    low = {
        pair: round(contrast(*(variable(shown, name) for name in pair)), 2)
        for pair in pairs
    }

    assert {pair: value for pair, value in low.items() if value < 4.5} == {}


def contrast(one: str, two: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
            for part in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_many_tensors_open_on_demand(show: Any) -> None:
    shown = show("large")
    part = '[data-part="Tensors"]'
    before = shown.run("document.querySelectorAll('*').length")

    write(shown, "Filter tensors", "layers.7.mlp experts.12*down")
    assert "of 100,000 tensors" in texts(shown, ".found")[0]
    write(shown, "Filter tensors", "")
    press(
        shown,
        next(text for text in texts(shown, f"{part} .twist") if text.startswith("0")),
        part,
    )
    assert before < shown.run("document.querySelectorAll('*').length") <= _MOST_NODES
    assert is_quiet(shown)


def test_the_pictures_of_the_docs_are_small() -> None:
    for name in ("report", "report-diff"):
        data = (ROOT / "docs" / "img" / f"{name}.png").read_bytes()
        assert data.startswith(b"\x89PNG") and len(data) < 150_000


@pytest.mark.needs("dcp")
def test_a_set_shows_how_evenly_its_files_are_filled(show: Any) -> None:
    document = inspected(SAMPLES / "dcp")
    shown = show(html_page([document]))

    assert document["file"]["part_bytes"] == [
        (SAMPLES / "dcp" / name).stat().st_size for name in document["file"]["parts"]
    ]
    assert texts(shown, '[data-part="Balance of the files"] .note') == [
        "The largest file has 1.30 times the mean of 39.3 KiB."
    ]
    assert is_quiet(shown)
