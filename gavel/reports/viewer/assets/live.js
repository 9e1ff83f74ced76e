// Keeps a page as the service would render it now. Asks for the page itself, and puts the parts that changed in place:
// the children of each [data-live] element, by their ids, so that what is open or focused stays so.
"use strict";

(() => {
  const DEADLINE = 10_000;
  const SLOWEST = 30_000;
  const seconds = () => Number(document.querySelector('meta[name="gavel-live-seconds"]')?.content ?? 0);
  const note = document.getElementById("live-note");
  const pause = document.createElement("button");
  const words = document.createElement("span");
  const given = new WeakMap(); // the HTML of a child as the service gave it
  let period = 1000 * seconds();
  let failures = 0;
  let isPaused = false;
  let isLooking = false;
  let timer;
  let tag = "";

  const regions = (page) => page.querySelectorAll("[data-live]");
  const keyOf = (child, place) => child.id || `child ${place}`;

  function remember(region) {
    for (const child of region.children) given.set(child, child.outerHTML);
  }

  function replace(mine, fresh) {
    const inner = "a, button, summary, input";
    const focused = [...mine.querySelectorAll(inner)].indexOf(document.activeElement);
    const open = [...mine.querySelectorAll("details")].map((details) => details.open);
    [...fresh.querySelectorAll("details")].forEach((details, place) => (details.open = open[place] ?? false));
    mine.replaceWith(fresh);
    if (focused >= 0) fresh.querySelectorAll(inner)[focused]?.focus();
  }

  function update(region, freshRegion) {
    const known = new Map([...region.children].map((child, place) => [keyOf(child, place), child]));
    [...freshRegion.children].forEach((freshChild, place) => {
      const key = keyOf(freshChild, place);
      const html = freshChild.outerHTML;
      let child = known.get(key);
      known.delete(key);
      if (child === undefined || given.get(child) !== html) {
        const mine = child;
        child = document.importNode(freshChild, true);
        if (mine) replace(mine, child);
        given.set(child, html);
      }
      if (region.children[place] !== child) region.insertBefore(child, region.children[place] ?? null);
    });
    for (const child of known.values()) child.remove();
  }

  function apply(page) {
    const pairs = [...regions(document)].map((region) => [region, page.getElementById(region.id)]);
    if (pairs.some(([, fresh]) => !fresh)) {
      location.reload(); // another kind of page: an open group is being judged now
      return;
    }
    pairs.forEach(([region, fresh]) => update(region, fresh));
    document.title = page.title;
    const said = page.getElementById("live-note")?.textContent.trim() ?? "";
    if (words.textContent !== said) words.textContent = said;
    period = 1000 * Number(page.querySelector('meta[name="gavel-live-seconds"]')?.content ?? 0);
    if (!period) pause.remove();
  }

  async function look() {
    const headers = tag ? { "If-None-Match": tag } : {};
    const signal = AbortSignal.timeout(DEADLINE);
    const answer = await fetch(location.href, { headers, signal, cache: "no-store", redirect: "manual" });
    if (answer.status === 304) return 0;
    if (answer.status === 401 || answer.status === 404) {
      location.reload(); // its key was revoked, or it was deleted: the service says it in full
      return 0;
    }
    if (!answer.ok) return 1000 * Number(answer.headers.get("Retry-After") ?? 0) || SLOWEST;
    const html = await answer.text();
    tag = answer.headers.get("ETag") ?? "";
    apply(new DOMParser().parseFromString(html, "text/html"));
    return 0;
  }

  async function tick() {
    if (isLooking || isPaused || document.hidden || !period) return;
    isLooking = true;
    clearTimeout(timer);
    let wait = 0;
    try {
      wait = await look();
      if (failures) words.textContent = "";
      failures = 0;
    } catch {
      failures += 1;
      words.textContent = "The service does not answer. Trying again.";
      wait = Math.min(period * 2 ** failures, SLOWEST);
    } finally {
      isLooking = false;
      if (period) timer = setTimeout(tick, Math.max(wait, period));
    }
  }

  if (!period || !note) return;
  regions(document).forEach(remember);
  words.textContent = note.textContent.trim();
  pause.type = "button";
  pause.textContent = "Pause updates";
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Go on updating" : "Pause updates";
    tick();
  });
  note.replaceChildren(words);
  note.after(pause);
  pause.className = "pause";
  document.addEventListener("visibilitychange", tick);
  timer = setTimeout(tick, period);
})();
