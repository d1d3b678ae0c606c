"""Helpers for tests of a report that is one HTML page."""

import html.parser
import shutil
import subprocess
import tempfile

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(html.parser.HTMLParser):
    """Collects what an HTML page refers to and its text, and checks that its elements are closed."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.references, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        self.text.append(data.strip())


def shown_by_a_browser(path):
    """The page as a headless browser lays it out, with width and height of its pictures; None if there is no browser.

    Fails if the browser complains about the page.
    """
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        return None
    page = path.read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        probe = path.with_name("probe.html")
        # The browser's own measure of each picture: one that it cannot draw has no size.
        probe.write_text(page.replace("</body>", """<script>
for (const svg of document.querySelectorAll("svg")) {
  const box = svg.getBoundingClientRect();
  const drawn = [...svg.querySelectorAll("path, polyline, line, rect")].filter((part) => {
    const size = part.getBBox();
    return size.width + size.height > 0;
  });
  svg.setAttribute("data-measured", [box.width, box.height, drawn.length].map(Math.round).join(" "));
}
</script></body>"""), "utf-8")
        done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}",
                               "--enable-logging=stderr", "--dump-dom", probe.as_uri()],
                              capture_output=True, text=True, check=False, timeout=120)
        probe.unlink()
    wrong = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert done.returncode == 0 and not wrong, f"exit status {done.returncode}: {wrong}"
    return done.stdout


def measured_pictures(dom):
    """Width, height and number of drawn parts of each picture in what shown_by_a_browser returned."""
    return [tuple(int(number) for number in part.split('"', 1)[0].split())
            for part in dom.split('data-measured="')[1:]]
