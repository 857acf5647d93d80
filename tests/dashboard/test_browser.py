"""The pages in a browser: they work, say nothing wrong, and refresh by themselves."""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rayshim
from live_dashboard import Dashboard, start

pytestmark = pytest.mark.slow

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
EVIL = "<script>document.title='taken'</script>"
LIMIT_S = 30.0


@rayshim.remote
def square(number: int) -> int:
    return number * number


@rayshim.remote
def evil() -> None:
    print(EVIL, flush=True)


@rayshim.remote(num_cpus=64)
class Large:
    """No node has room for it."""


@pytest.fixture(scope="module")
def dashboard() -> Iterator[Dashboard]:
    """A dashboard that has ten thousand tasks and five hundred actors to show."""
    found = start(num_cpus=2, log_to_driver=False)
    rayshim.get([square.remote(number) for number in range(10_000)])
    rayshim.get([evil.options(name=EVIL).remote() for _ in range(3)])
    actors = [Large.remote() for _ in range(500)]
    waits = square.options(num_gpus=2).remote(1)
    yield found
    del actors, waits
    rayshim.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if BROWSER is None or DRIVER is None:
        pytest.skip("chromium and chromedriver are not installed")
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    folder = tmp_path_factory.mktemp("profile")
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1400,900",
        f"--user-data-dir={folder}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_page_load_timeout(LIMIT_S)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def signed_in(browser: Any, dashboard: Dashboard) -> Any:
    """A browser that was shown the token."""
    browser.get(f"http://{dashboard.address}/login?token={dashboard.token}")
    wait(lambda: heading(browser) == "Overview")
    browser.get_log("browser")
    return browser


def wait(condition: Callable[[], Any], browser: Any = None) -> Any:
    """What a condition gives when it is met; if it is not, the browser's page is told.

    Args:
        condition: is asked until it gives something.
        browser: that shows why.
    """
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline_s:
            script = "return document.body.innerText"
            pytest.fail(browser.execute_script(script) if browser else "it took long")
        time.sleep(0.02)


def heading(browser: Any) -> str:
    found = browser.execute_script("return document.querySelector('h1')?.textContent")
    return str(found or "").strip()


def complaints(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser")]


def live_text(browser: Any) -> str:
    found = browser.execute_script("return document.getElementById('live').textContent")
    return str(found)


def test_each_page_opens_by_its_link_and_nothing_is_wrong(signed_in: Any) -> None:
    links = signed_in.find_elements("css selector", "header nav a")
    names = [link.text for link in links]
    assert len(names) == 13

    for name in names:
        signed_in.find_element("link text", name).click()
        current = wait(
            lambda name=name: signed_in.execute_script(  # type: ignore[misc]
                "const a = document.querySelector('nav a[aria-current]');"
                "return document.readyState === 'complete' && a &&"
                " a.textContent === arguments[0] && document.body.innerText",
                name,
            )
        )
        assert "cannot be shown" not in current
        assert complaints(signed_in) == []
        assert signed_in.title != "taken"
        # Something was drawn, and nothing reaches over the edge of the window.
        assert len(base64.b64decode(signed_in.get_screenshot_as_base64())) > 10_000
        is_wide = "return document.documentElement.scrollWidth > innerWidth + 1"
        assert not signed_in.execute_script(is_wide)


@pytest.mark.parametrize("path", ["/", "/tasks", "/actors", "/timeline?span=0"])
def test_the_first_paint_comes_soon(
    signed_in: Any, dashboard: Dashboard, path: str
) -> None:
    def paint_ms() -> float:
        signed_in.get(f"http://{dashboard.address}{path}")
        script = "return performance.getEntriesByName('first-contentful-paint')[0]"
        return float(wait(lambda: signed_in.execute_script(script))["startTime"])

    assert min(paint_ms() for _ in range(3)) < 1000


def test_a_task_is_found_by_its_table(signed_in: Any, dashboard: Dashboard) -> None:
    signed_in.get(f"http://{dashboard.address}/tasks")
    assert "of 10," in live_text(signed_in)
    box = signed_in.find_element("name", "q")
    box.send_keys("taken\n")
    wait(lambda: "q=taken" in signed_in.current_url)
    assert "1–3 of 3 tasks" in live_text(signed_in)
    assert EVIL in live_text(signed_in)

    signed_in.find_element("css selector", "tbody a.id").click()
    wait(lambda: heading(signed_in) == f"Task {EVIL}")
    assert complaints(signed_in) == []


def test_a_page_refreshes_and_keeps_the_focus(
    signed_in: Any, dashboard: Dashboard
) -> None:
    signed_in.get(f"http://{dashboard.address}/tasks?q=fresh_name")
    assert "no tasks" in live_text(signed_in)
    head = signed_in.find_element("css selector", "#live th a")
    signed_in.execute_script("arguments[0].focus()", head)

    rayshim.get(square.options(name="fresh_name").remote(2))

    wait(lambda: "1–1 of 1 tasks" in live_text(signed_in))
    script = "return document.activeElement.getAttribute('href')"
    assert "sort=task_id" in signed_in.execute_script(script)


def test_a_page_that_is_paused_or_hidden_asks_nothing(
    signed_in: Any, dashboard: Dashboard
) -> None:
    signed_in.get(f"http://{dashboard.address}/nodes")
    count = "return performance.getEntriesByType('resource').length"
    wait(lambda: signed_in.execute_script(count) >= 6)  # it refreshes

    signed_in.execute_script(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'));"
    )
    before = signed_in.execute_script(count)
    time.sleep(3)  # longer than its period: that nothing happens takes time to see
    after = signed_in.execute_script(count)
    # One that was under way may have come.
    assert after - before <= 1

    signed_in.execute_script(
        "delete document.hidden;document.dispatchEvent(new Event('visibilitychange'));"
    )
    wait(lambda: signed_in.execute_script(count) > after)


def test_a_log_is_followed(signed_in: Any, dashboard: Dashboard) -> None:
    @rayshim.remote
    def talk() -> int:
        print("first words", flush=True)
        while not Path(stop).exists():
            print(f"still here {EVIL}", flush=True)
            time.sleep(0.2)
        return 1

    stop = str(dashboard.folder / "stop-talking")
    talking = talk.remote()
    signed_in.get(f"http://{dashboard.address}/logs?q=talk&kind=out")
    link = wait(lambda: signed_in.find_elements("css selector", "tbody td.long a"))
    link[0].click()
    text = "return document.getElementById('log')?.textContent || ''"
    first = wait(lambda: len(signed_in.execute_script(text)))
    wait(lambda: len(signed_in.execute_script(text)) > first)
    Path(stop).touch()

    assert rayshim.get(talking) == 1
    assert EVIL in signed_in.execute_script(text)
    assert complaints(signed_in) == []


def test_a_job_is_submitted_by_the_form(signed_in: Any, dashboard: Dashboard) -> None:
    signed_in.get(f"http://{dashboard.address}/jobs")
    form = signed_in.find_element("id", "submit-job")
    if not form.is_displayed():
        signed_in.find_element("css selector", "details summary").click()
    signed_in.find_element("id", "runtime_env").send_keys("{not json")
    signed_in.find_element("id", "entrypoint").send_keys("echo hello from the form")
    form.find_element("css selector", "button").click()
    wait(lambda: "is not JSON" in signed_in.find_element("id", "lost").text)

    signed_in.find_element("id", "runtime_env").clear()
    form.find_element("css selector", "button").click()

    wait(lambda: heading(signed_in).startswith("Job raysubmit_"), signed_in)
    text = "return document.getElementById('log').textContent"
    wait(lambda: "hello from the form" in signed_in.execute_script(text), signed_in)
    wait(lambda: "succeeded" in live_text(signed_in), signed_in)
    assert complaints(signed_in) == []


def test_everything_is_reached_by_the_keyboard(
    signed_in: Any, dashboard: Dashboard
) -> None:
    from selenium.webdriver import ActionChains, Keys

    signed_in.get(f"http://{dashboard.address}/actors")
    seen = set()
    for _ in range(40):
        # To whatever has the focus: a refresh may put another element in its place.
        ActionChains(signed_in).send_keys(Keys.TAB).perform()
        script = (
            "const e = document.activeElement;"
            "return [e.tagName, e.getAttribute('href') || e.name || e.id || '']"
        )
        seen.add(tuple(signed_in.execute_script(script)))

    assert {("A", "#content"), ("A", "/tasks"), ("INPUT", "q")} <= seen
    assert ("A", "/actors?sort=class_name") in seen


def test_a_dashboard_that_is_gone_is_named(browser: Any, dashboard: Dashboard) -> None:
    browser.get(f"http://{dashboard.address}/dask")
    if heading(browser) != "Dask":
        browser.get(f"http://{dashboard.address}/login?token={dashboard.token}")
        browser.get(f"http://{dashboard.address}/dask")
    assert heading(browser) == "Dask"

    rayshim.shutdown()

    wait(lambda: "does not answer" in browser.find_element("id", "lost").text)
    assert "Dask's scheduler" in browser.find_element("id", "live").text
