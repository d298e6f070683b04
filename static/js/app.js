// Keys, theme, times, confirmations and bulk selection: what every page shares. No framework.
"use strict";
const byId = (id) => document.getElementById(id);

// -- theme
byId("theme")?.addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch (error) { /* only this page then */ }
  document.dispatchEvent(new CustomEvent("themechange"));
});

// -- menu on small screens
document.querySelector(".menu-button")?.addEventListener("click", (event) => {
  const button = event.currentTarget;
  const isOpen = document.body.classList.toggle("menu-open");
  button.setAttribute("aria-expanded", String(isOpen));
});

// -- keys
let pressedG = 0;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select, [contenteditable]")) return;
  if (event.key === "/") { event.preventDefault(); byId("search")?.focus(); return; }
  if (event.key === "?") { byId("keys")?.showModal(); return; }
  if (event.key === "g") { pressedG = Date.now(); return; }
  if (Date.now() - pressedG < 1500) {
    const link = document.querySelector(`.side a[data-key="${CSS.escape(event.key)}"]`);
    if (link) link.click();
    pressedG = 0;
  }
});
byId("keys-button")?.addEventListener("click", () => byId("keys").showModal());

// -- times in the viewer's zone, UTC on hover
const pad = (n) => String(n).padStart(2, "0");
function ago(seconds) {
  if (seconds < 0) return "now";
  if (seconds < 60) return `${Math.round(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}
function showTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
    const clock = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
    element.textContent = element.dataset.style === "ago" ? ago((Date.now() - at) / 1000)
      : element.dataset.style === "clock" ? clock : `${day} ${clock}`;
  }
}
showTimes(document);
setInterval(() => showTimes(document), 10000);

// -- htmx: the CSRF token goes along, unchanged fragments are not swapped, nothing is asked for in a hidden tab
const etags = new Map();
document.addEventListener("htmx:configRequest", (event) => {
  const token = document.cookie.match(/(?:^|; )csrftoken=([^;]+)/);
  if (token) event.detail.headers["X-CSRFToken"] = token[1];
  const known = etags.get(event.detail.elt.id);
  if (event.detail.verb === "get" && known) event.detail.headers["If-None-Match"] = known;
});
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden && event.detail.elt.hasAttribute("data-live")) event.preventDefault();
});
document.addEventListener("htmx:afterRequest", (event) => {
  const etag = event.detail.xhr.getResponseHeader("ETag");
  if (etag && event.detail.elt.id) etags.set(event.detail.elt.id, etag);
  const isDown = event.detail.failed && event.detail.xhr.status !== 304;
  document.body.classList.toggle("offline", isDown && event.detail.elt.hasAttribute("data-live"));
});
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.xhr.status === 304) event.detail.shouldSwap = false;
});
document.addEventListener("htmx:afterSwap", (event) => showTimes(event.detail.target));

// -- forms that ask first, and that are sent once
document.addEventListener("submit", (event) => {
  const form = event.target;
  const question = event.submitter?.dataset.confirm || form.dataset.confirm;
  const dialog = byId("confirm");
  if (question && dialog && !form.dataset.confirmed) {
    event.preventDefault();
    byId("confirm-text").textContent = question;
    const submitter = event.submitter;
    dialog.addEventListener("close", () => {
      if (dialog.returnValue !== "yes") return;
      form.dataset.confirmed = "1";
      form.requestSubmit(submitter);
    }, { once: true });
    dialog.returnValue = "";
    dialog.showModal();
    return;
  }
  if (form.method === "post" && !form.hasAttribute("hx-post")) {
    // Not disabled at once: a disabled button is not sent along.
    setTimeout(() => { for (const button of form.querySelectorAll("button")) button.disabled = true; }, 0);
  }
});
addEventListener("pageshow", () => {
  for (const button of document.querySelectorAll("form button:disabled")) button.disabled = false;
});

// -- copy buttons
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = byId(button.dataset.copy).textContent;
  const done = () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); };
  if (navigator.clipboard) navigator.clipboard.writeText(text).then(done);
});

// -- tables: one box for all, and how many are chosen
function countChosen(form) {
  const chosen = form.querySelectorAll("input[name=id]:checked").length;
  const bar = form.querySelector(".bulk");
  if (!bar) return;
  bar.hidden = chosen === 0;
  bar.querySelector(".bulk-count").textContent = String(chosen);
  for (const button of bar.querySelectorAll("[data-ask]")) {
    button.dataset.confirm = button.dataset.ask.replace("#", String(chosen));
  }
}
document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-bulk]");
  if (!form) return;
  if (event.target.matches("[data-all]")) {
    for (const box of form.querySelectorAll("input[name=id]")) box.checked = event.target.checked;
  }
  countChosen(form);
});
document.addEventListener("change", (event) => {
  if (event.target.matches("select[data-go]") && event.target.value) location.href = event.target.value;
});
document.querySelector("[data-focus]")?.focus();
