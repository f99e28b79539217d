"""Open a page in Chromium and print the observations as JSON: run by the Python of `.venv-auditors`.

`browser.py CHROMIUM PAGE PDF [SEARCH]`; the searched text is typed into the first search of the page.
"""

import json
import sys
import time
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

GRAVE = ("serious", "critical")
OVERLAPS = """() => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  const found = [];
  for (const svg of document.querySelectorAll("svg.chart")) {
    const whole = svg.getBoundingClientRect();
    const boxes = [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
    for (const [index, [text, a]] of boxes.entries()) {
      if (a.left < whole.left - 1 || a.right > whole.right + 1 || a.bottom > whole.bottom + 1)
        found.push([text, "outside"]);
      for (const [other, b] of boxes.slice(0, index))
        if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
          found.push([text, other]);
    }
  }
  return found;
}"""
# A row with no text cell inside the screen width, or only its name although it has others.
EMPTY_ROWS = """() => [...document.querySelectorAll("tr")].filter(row => row.offsetHeight).filter(row =>
  row.cells.length > 1 && ![...row.cells].slice(1).some(cell => {
  const box = cell.getBoundingClientRect();
  return cell.textContent.trim() && box.left < innerWidth - 20 && box.right > 20;
})).map(row => row.textContent.slice(0, 80))"""

# Cells of the overview's table that end outside of the screen.
CLIPPED_CELLS = """() => [...document.querySelectorAll(".overview td, .overview th")].filter(cell =>
  cell.getBoundingClientRect().right > innerWidth).map(cell => cell.textContent)"""
# Tables of tokenizers with columns that are seen only by scrolling.
WIDE_TABLES = """() => [...document.querySelectorAll("#tokenizer .scroll")].filter(part =>
  part.scrollWidth > part.clientWidth).map(part => part.ariaLabel)"""
# Cells that a style takes out of the columns of their table.
SHIFTED_CELLS = """() => [...document.querySelectorAll("td, th")].filter(cell => cell.offsetHeight &&
  getComputedStyle(cell).display !== "table-cell").map(cell => cell.outerHTML.slice(0, 80))"""


def visit(chromium: str, page: Path, pdf: Path, searched: str | None) -> dict[str, object]:
    """Return what a reader sees of the page, on a desktop, on a phone, on paper and without JavaScript."""
    observations: dict[str, object] = {}
    requests: list[str] = []
    dialogs: list[str] = []
    console: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        desk = browser.new_page(viewport={"width": 1280, "height": 900})
        desk.on("request", lambda request: requests.append(request.url))
        desk.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        desk.on("console", lambda message: console.append(message.text))
        desk.on("pageerror", lambda error: console.append(str(error)))
        started = time.perf_counter()
        desk.goto(page.as_uri())
        observations["load_seconds"] = time.perf_counter() - started
        observations["title"] = desk.title()
        desk.keyboard.press("Tab")
        observations["first_focus"] = desk.evaluate("document.activeElement.tagName")
        if searched is not None:
            field = desk.locator("input[type=search]").first
            field.evaluate(
                "field => { for (let at = field; at; at = at.parentElement) if (at.open === false) at.open = true; }"
            )
            field.fill(searched)
            observations["found"] = desk.locator(".search output").first.text_content()
            field.fill("")
        observations["searches"] = desk.locator("input[type=search]").count()
        observations["overlaps"] = desk.evaluate(OVERLAPS)
        observations["shifted_cells"] = desk.evaluate(SHIFTED_CELLS)
        observations["wide_tables"] = desk.evaluate(WIDE_TABLES)
        axe = Axe().run(desk).response
        observations["axe"] = [
            [result["impact"], result["id"], [node["html"][:160] for node in result["nodes"][:3]]]
            for result in axe["violations"]
            if result["impact"] in GRAVE
        ]
        phone = browser.new_page(viewport={"width": 390, "height": 844})
        phone.goto(page.as_uri())
        observations["clipped_cells"] = phone.evaluate(CLIPPED_CELLS)
        observations["phone_width"] = phone.evaluate("document.documentElement.scrollWidth")
        phone.evaluate("() => { for (const details of document.querySelectorAll('details')) details.open = true; }")
        observations["empty_rows"] = phone.evaluate(EMPTY_ROWS)
        phone_axe = Axe().run(phone).response["violations"]
        observations["phone_axe"] = [
            [result["impact"], result["id"]] for result in phone_axe if result["impact"] in GRAVE
        ]
        observations["phone_overlaps"] = phone.evaluate(OVERLAPS)
        plain = browser.new_context(java_script_enabled=False).new_page()
        plain.goto(page.as_uri())
        observations["rows_without_script"] = plain.locator("tr").count()
        plain.pdf(path=str(pdf), format="A4")
        browser.close()
    return {**observations, "requests": requests, "dialogs": dialogs, "console": console}


if __name__ == "__main__":
    print(json.dumps(visit(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *(sys.argv[4:] or [None]))))
