// Refreshes what changes on a page, and nothing while nobody looks at it.
//
// The server renders the same page without its frame; text that did not change is
// not sent again (204). What has the focus keeps it, and what is selected stays.
import { startLog } from "./log.js";
import { startActions } from "./actions.js";

const main = document.querySelector("main");
const live = document.getElementById("live");
const lost = document.getElementById("lost");
const box = document.getElementById("refresh");
const period = 1000 * Number(main.dataset.refresh || 0);
let mark = "-";
let timer = 0;
let asking = null;

function say(text) {
  lost.textContent = text;
  lost.hidden = !text;
}

function isBusy() {
  const selection = document.getSelection();
  const selects = selection && !selection.isCollapsed && live.contains(selection.anchorNode);
  const active = document.activeElement;
  const types = active && live.contains(active) && active.matches("input, select, textarea");
  return selects || types;
}

function show(html) {
  const active = document.activeElement;
  const inside = active && live.contains(active);
  const href = inside ? active.getAttribute("href") : null;
  const id = inside ? active.id : "";
  const opened = [...live.querySelectorAll("details")].map((one) => one.open);
  const scrolled = [...live.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  live.replaceChildren(...new DOMParser().parseFromString(html, "text/html").body.childNodes);
  live.querySelectorAll("details").forEach((one, i) => { if (opened[i]) one.open = true; });
  live.querySelectorAll(".scroll").forEach((one, i) => { one.scrollLeft = scrolled[i] || 0; });
  if (id || href) {
    const again = id ? document.getElementById(id)
      : [...live.querySelectorAll("a")].find((one) => one.getAttribute("href") === href);
    if (again) again.focus({ preventScroll: true });
  }
}

async function refresh() {
  clearTimeout(timer);
  if (document.hidden || !box.checked || asking) return;
  const began = performance.now();
  try {
    asking = new AbortController();
    const limit = setTimeout(() => asking.abort(), 15000);
    const answer = await fetch(location.href, { headers: { "x-part": mark }, signal: asking.signal });
    const text = answer.status === 204 ? "" : await answer.text();
    clearTimeout(limit);
    if (answer.status === 401) {
      say("This browser is not signed in (any more): open the link that the program or `rayshim status` shows.");
    } else if (answer.status !== 204 && !answer.headers.get("x-part")) {
      say(`The dashboard answers with ${answer.status}: ${text.slice(0, 300)}`);
    } else {
      say("");
      if (answer.status !== 204 && !isBusy()) {
        show(text);
        mark = answer.headers.get("x-part");
      }
    }
  } catch (error) {
    say("The dashboard does not answer: the cluster has ended, or its head is gone. This page shows what was last known.");
  } finally {
    asking = null;
    // A slow answer makes for a longer pause: at most half of the time is asked.
    schedule(Math.max(period, performance.now() - began));
  }
}

function schedule(delay) {
  clearTimeout(timer);
  if (!document.hidden && box.checked) timer = setTimeout(refresh, delay);
}

if (period && box) {
  const state = document.getElementById("refresh-state");
  box.addEventListener("change", () => {
    state.textContent = box.checked ? "live" : "paused";
    if (box.checked) refresh(); else clearTimeout(timer);
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(timer); else refresh();
  });
  schedule(period);
}

for (const select of document.querySelectorAll(".filters select")) {
  select.addEventListener("change", () => select.form.requestSubmit());
}
for (const form of document.querySelectorAll(".filters")) {
  // Addresses without what is empty are shorter to read and to pass on.
  form.addEventListener("formdata", (event) => {
    for (const [name, value] of [...event.formData]) if (!value) event.formData.delete(name);
  });
}
startLog();
startActions();
