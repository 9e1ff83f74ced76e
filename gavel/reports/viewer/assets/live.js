// Shows what a page's [data-live] parts would be now: asks for the page itself, and replaces the parts that changed.
"use strict";

(() => {
  const seconds = (page) => Number(page.querySelector('meta[name="gavel-live-seconds"]')?.content ?? 0);
  const parts = (page) => [...page.querySelectorAll("[data-live], #live-note")];
  const note = document.getElementById("live-note");
  const shown = parts(document).map((part) => part.innerHTML); // as the viewer gave them

  async function look() {
    const answer = await fetch(location.href, { signal: AbortSignal.timeout(10_000), cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = parts(page);
    parts(document).forEach((part, at) => {
      if (fresh[at].innerHTML === shown[at]) return;
      const focused = [...part.querySelectorAll("a")].indexOf(document.activeElement);
      part.innerHTML = shown[at] = fresh[at].innerHTML;
      part.querySelectorAll("a")[focused]?.focus();
    });
    return seconds(page);
  }

  async function follow(wait) {
    while (wait) {
      await new Promise((resolve) => setTimeout(resolve, 1000 * wait));
      if (document.hidden) continue;
      try {
        wait = await look();
      } catch {
        note.textContent = "The viewer does not answer. Trying again.";
        shown[parts(document).indexOf(note)] = undefined;
      }
    }
  }

  follow(seconds(document));
})();
