// The log viewer: asks for new bytes only, follows the end, finds, and jumps to the first error.
"use strict";
(function () {
  const box = document.getElementById("log");
  if (!box) return;
  const partial = document.getElementById("log-partial");
  const follow = document.getElementById("log-follow");
  const note = document.getElementById("log-note");
  const MAX_LINES = 20000;
  let offset = Number(box.dataset.offset);

  const toEnd = () => { if (follow.checked) box.scrollTop = box.scrollHeight; };
  toEnd();
  box.addEventListener("scroll", () => {
    follow.checked = box.scrollHeight - box.scrollTop - box.clientHeight < 24;
  });
  follow.addEventListener("change", toEnd);
  document.getElementById("log-wrap").addEventListener("change", (event) => box.classList.toggle("wrap", event.target.checked));

  function add(lines) {
    const piece = document.createDocumentFragment();
    for (const [spans, isError] of lines) {
      const line = document.createElement("span");
      line.className = isError ? "l err" : "l";
      for (const [classes, text] of spans) {
        if (!classes) { line.append(text); continue; }
        const span = document.createElement("span");
        span.className = classes;
        span.textContent = text;
        line.append(span);
      }
      piece.append(line);
    }
    box.insertBefore(piece, partial);
    while (box.childElementCount > MAX_LINES) box.firstElementChild.remove();
  }

  async function ask() {
    if (document.hidden) return 2000;
    try {
      const answer = await fetch(`${box.dataset.url}&offset=${offset}`);
      if (!answer.ok) throw new Error(String(answer.status));
      const found = await answer.json();
      if (String(found.attempt) !== box.dataset.attempt) {  // it was tried again: a new log from its start
        box.dataset.attempt = found.attempt;
        offset = 0;
        box.replaceChildren(partial);
        return 0;
      }
      const moved = found.end !== offset;
      offset = found.end;
      add(found.lines);
      partial.textContent = found.partial;
      note.textContent = found.problem;
      toEnd();
      if (found.final) return null;
      return moved ? 1000 : 2000;
    } catch (error) {
      note.textContent = "The server does not answer; trying again.";
      return 5000;
    }
  }
  async function loop() {
    const wait = await ask();
    if (wait !== null) setTimeout(loop, wait * (0.9 + 0.2 * Math.random()));
  }
  if (!box.hasAttribute("data-final")) loop();

  function show(line) {
    box.querySelector(".here")?.classList.remove("here");
    if (!line) { note.textContent = "Not in what is shown."; return; }
    note.textContent = "";
    follow.checked = false;
    line.classList.add("here");
    line.scrollIntoView({ block: "center" });
  }
  document.getElementById("log-error").addEventListener("click", () => show(box.querySelector(".err")));
  let place = -1;
  document.getElementById("log-find").addEventListener("input", (event) => {
    const text = event.target.value.toLowerCase();
    place = -1;
    for (const line of box.children) line.classList.toggle("hit", text !== "" && line.textContent.toLowerCase().includes(text));
  });
  document.getElementById("log-find").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    const hits = box.querySelectorAll(".hit");
    place = hits.length ? (place + 1) % hits.length : -1;
    show(hits[place]);
  });
})();
