// Draws every element with data-chart: asks for a figure, draws it, asks again until it is final.
"use strict";
(function () {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const palette = () => [1, 2, 3, 4, 5, 6, 7, 8].map((n) => css(`--chart-${n}`));

  function dressed(layout) {
    const axis = { gridcolor: css("--line"), linecolor: css("--line"), zerolinecolor: css("--line"), automargin: true };
    return Object.assign({}, layout, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", colorway: palette(),
      font: { family: css("--sans"), size: 12, color: css("--text") },
      margin: { l: 52, r: 12, t: 24, b: 40 }, legend: { orientation: "h", x: 0, y: 1.12 }, hovermode: "x unified",
      hoverlabel: { bgcolor: css("--surface"), bordercolor: css("--line"), font: { color: css("--text") } },
      xaxis: Object.assign({}, axis, layout.xaxis), yaxis: Object.assign({}, axis, layout.yaxis),
    });
  }

  function start(element) {
    const state = { etag: null, figure: null, timer: null };
    const draw = () => {
      if (!state.figure) return;
      Plotly.react(element, state.figure.data, dressed(state.figure.layout),
        { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] });
    };
    const again = (final) => {
      if (final || !element.dataset.poll) return;
      state.timer = setTimeout(ask, Number(element.dataset.poll) * 1000 * (0.9 + 0.2 * Math.random()));
    };
    async function ask() {
      if (!element.isConnected) return;
      if (document.hidden) { again(false); return; }
      try {
        const answer = await fetch(element.dataset.chart, { headers: state.etag ? { "If-None-Match": state.etag } : {} });
        if (answer.status === 200) {
          state.etag = answer.headers.get("ETag");
          state.figure = await answer.json();
          const isEmpty = state.figure.data.length === 0;
          element.classList.toggle("chart-empty", isEmpty);
          if (isEmpty) { if (window.Plotly) Plotly.purge(element); element.textContent = element.dataset.empty || "No data yet."; }
          else { if (element.firstChild && element.firstChild.nodeType === 3) element.textContent = ""; draw(); }
        } else if (answer.status !== 304) { throw new Error(`status ${answer.status}`); }
        element.classList.remove("chart-stale");
        again(answer.headers.get("X-Final") === "1");
      } catch (error) {
        element.classList.add("chart-stale");
        again(false);
      }
    }
    document.addEventListener("themechange", draw);
    ask();
  }

  function startNew() {
    for (const element of document.querySelectorAll("[data-chart]:not([data-started])")) {
      element.dataset.started = "1";
      start(element);
    }
  }
  startNew();
  document.addEventListener("htmx:afterSettle", startNew);
})();
