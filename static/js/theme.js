// Before the first paint: the theme the person chose, else what the system wants.
(function () {
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch (error) { /* storage may be closed to us; the system's wish it is */ }
})();
