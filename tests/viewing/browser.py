"""What a person sees of a page and does with it, and how well its colours can be told apart."""

import re
from importlib.resources import files


class Reader:
    def __init__(self, driver, path, width=1280):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get("about:blank")
        driver.get_log("browser")  # what was said of another page
        driver.get(path.as_uri())
        self.driver = driver

    def run(self, script):
        return self.driver.execute_script(script)

    def text(self, selector):
        return self.run(f"return document.querySelector({selector!r}).textContent")

    def each(self, selector, expression):
        """Of every such element ``e`` what an expression says."""
        return self.run(
            f"return [...document.querySelectorAll({selector!r})].map(e => {expression})"
        )

    def texts(self, selector):
        return self.each(selector, "e.innerText")

    def click(self, selector):
        self.driver.find_element("css selector", selector).click()

    def press(self, key):
        """A letter, or a key by its name."""
        from selenium.webdriver.common.keys import Keys  # which need not be installed

        self.driver.find_element("css selector", "body").send_keys(getattr(Keys, key, key))

    def choose(self, name, value):
        event = "dispatchEvent(new Event('change'))"
        box = f"document.getElementById({name!r})"
        self.run(f"{box}.value = {value!r}; {box}.{event}")
        return self.text("#count")

    def assert_sound(self):
        """It opens without errors and without a network, fits the screen, and can be read aloud."""
        assert self.driver.get_log("browser") == []
        assert self.run("return performance.getEntriesByType('resource').length") == 0
        assert self.run("return document.documentElement.scrollWidth <= innerWidth")
        assert self.run("return document.documentElement.lang") == "en"
        named = """e.getAttribute('aria-label') || e.labels?.length
            || document.getElementById(e.getAttribute('aria-labelledby'))?.textContent.trim()
            || e.matches('button') && e.textContent.trim()"""
        parts = "button, select, svg[role=img], section, figure, nav"
        assert all(self.each(parts, named))


def asset(name, package="viewing"):
    return (files("torchrl_glam") / package / "assets" / name).read_text(encoding="utf-8")


def themes(*styles):
    """The colours of style sheets, by day and by night."""
    sheets = [re.findall(r":root \{(.*?)\}", asset(*style), re.S) for style in styles]
    assert {len(sheet) for sheet in sheets} == {2}
    for parts in zip(*sheets, strict=True):
        yield dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", "".join(parts)))


def _luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first, second):
    """By WCAG 2.2, from 1 to 21."""
    light, dark = sorted(map(_luminance, (first, second)))[::-1]
    return (light + 0.05) / (dark + 0.05)
