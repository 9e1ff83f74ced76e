// Keys of the viewer's pages; everything that they do can be done without them.
"use strict";

(() => {
  const rounds = () => [...document.querySelectorAll(".rounds tbody tr")];
  const follow = (rel) => document.querySelector(`a[rel="${rel}"]`)?.click();

  function step(direction) {
    const rows = rounds();
    const here = rows.findIndex((row) => row.getBoundingClientRect().top > 4);
    const at = direction > 0 ? rows.findIndex((row) => row.getBoundingClientRect().top > 12) : here < 0 ? rows.length - 1 : here - 1;
    rows[Math.max(at, 0)]?.scrollIntoView();
  }

  function toggle() {
    const all = [...document.querySelectorAll("main details")];
    const open = !all.some((details) => details.open);
    all.forEach((details) => (details.open = open));
  }

  const actions = {
    j: () => step(1),
    k: () => step(-1),
    n: () => follow("next"),
    p: () => follow("prev"),
    o: toggle,
    "/": () => document.querySelector('input[type="search"]')?.focus(),
  };

  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input, select, textarea");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !(event.key in actions)) return;
    event.preventDefault();
    actions[event.key]();
  });
})();
