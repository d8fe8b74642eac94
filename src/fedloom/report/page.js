"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const pointer = matchMedia("(hover: hover)");
  const PRINT = 680; // pixels that A4 has between its margins
  let printing = false;

  // put in place what the controls choose
  const resolve = (value, state) => {
    if (Array.isArray(value)) return value.length && typeof value[0] === "object" ? value.map((v) => resolve(v, state)) : value;
    if (value === null || typeof value !== "object") return value;
    if ("$" in value) return resolve(value.of[state[value.$]], state);
    const found = {};
    for (const key of Object.keys(value)) if (value[key] !== null) found[key] = resolve(value[key], state);
    return found;
  };

  const element = (kind, cls, text) => {
    const made = document.createElement(kind);
    if (cls) made.className = cls;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  const chips = (chart) => chart.legend.map(([text, colour]) => {
    const item = element("span");
    const chip = element("i", "chip");
    chip.style.background = colour;
    item.append(chip, element("span", "", text));
    return item;
  });

  const draw = (chart) => {
    const box = document.getElementById("chart-" + chart.key);
    const width = printing ? PRINT : box.clientWidth;
    const narrow = width < 560;
    const traces = resolve(chart.traces, chart.state);
    const layout = resolve(chart.layout, chart.state);
    const scales = {
      sequential: [[0, css("--low")], [0.5, css("--middle")], [1, css("--high")]],
      staleness: [[0, css("--fresh")], [1, css("--stale")]],
      fresh: [[0, css("--fresh")], [1, css("--fresh")]],
    };
    for (const trace of traces) {
      if (trace.colorscale) trace.colorscale = scales[trace.colorscale];
      if (trace.marker?.colorscale) trace.marker.colorscale = scales[trace.marker.colorscale];
      if (narrow && trace.mode === "text") trace.visible = false;
      for (const part of [trace.line, trace.marker, trace.textfont]) if (part?.color === "soft") part.color = css("--soft");
    }
    if (chart.scale) {
      const said = resolve(chart.scale, chart.state);
      const scale = scales[said.colours || "sequential"];
      const strip = element("i", said.high ? "strip" : "chip");
      strip.style.background = `linear-gradient(to right, ${scale.map((stop) => stop[1]).join(", ")})`;
      const legend = document.getElementById("legend-" + chart.key);
      const ends = element("span", "ends");
      ends.append(element("span", "", said.low), strip, element("span", "", said.high));
      const runs = chart.controls.find((control) => control.name === "run");
      const run = runs ? runs.options.find((option) => option[0] === chart.state.run)[1] : "";
      const words = element("span", "", said.text);
      legend.replaceChildren(element("span", "printed", run), ...(said.high ? [words, ends] : [ends, words]), ...chips(chart));
      legend.classList.add("scale");
    }
    for (const trace of traces) if (trace.error_y) trace.error_y.color = css("--soft");
    for (const axis of [layout.xaxis, layout.yaxis]) {
      Object.assign(axis, { gridcolor: css("--grid"), zeroline: false, linecolor: css("--line"), automargin: true, fixedrange: !pointer.matches });
      if (axis.title) Object.assign(axis.title, { standoff: 14, font: { size: 13, color: css("--soft") } });
    }
    layout.xaxis.nticks = layout.xaxis.nticks || (narrow ? 5 : 10);
    const map = traces.some((trace) => trace.type === "heatmap");
    const height = chart.square ? Math.min(chart.height, width + 90) : narrow && !map && !chart.tall ? Math.min(chart.height, 340) : chart.height;
    if (chart.square && !narrow) { layout.xaxis.constrain = "domain"; layout.yaxis.scaleanchor = "x"; layout.yaxis.constrain = "domain"; }
    for (const shape of layout.shapes || []) shape.line.color = css("--soft");
    for (const text of layout.annotations || []) text.font = { color: css("--soft"), size: 12 };
    Object.assign(layout, {
      width, height, autosize: false, showlegend: false, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 8, r: 22, t: 12, b: 8 }, dragmode: pointer.matches ? "zoom" : false,
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: css("--ink") },
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink") } },
    });
    return Plotly.react(box, traces, layout, { displayModeBar: false, displaylogo: false, responsive: false });
  };

  const build = (chart) => {
    chart.state = Object.assign({}, chart.state);
    const bar = document.getElementById("controls-" + chart.key);
    for (const control of chart.controls) {
      chart.state[control.name] ??= control.options[0][0];
      const holder = element("div", "control");
      holder.append(element("span", "", control.label));
      const choose = (key) => { chart.state[control.name] = key; draw(chart); };
      if (control.name === "run" || control.options.length > 5) {
        const list = element("select");
        list.setAttribute("aria-label", control.label);
        for (const [key, text] of control.options) {
          const option = element("option", "", text);
          option.value = key;
          list.append(option);
        }
        list.value = chart.state[control.name];
        list.addEventListener("change", () => choose(list.value));
        holder.append(list);
      } else {
        const group = element("div", "buttons");
        group.setAttribute("role", "group");
        for (const [key, text] of control.options) {
          const button = element("button", "", text);
          button.type = "button";
          button.dataset.key = key;
          button.setAttribute("aria-pressed", String(key === chart.state[control.name]));
          button.addEventListener("click", () => {
            for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
            choose(key);
          });
          group.append(button);
        }
        holder.append(group);
      }
      bar.append(holder);
    }
    const legend = document.getElementById("legend-" + chart.key);
    legend.append(...chips(chart));
    return draw(chart);
  };

  const redraw = () => charts.forEach(draw);
  const copy = async (button) => {
    const text = button.parentElement.querySelector("pre").textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch (refused) { // not allowed here: mark the text, so that a key copies it
      const range = document.createRange();
      range.selectNodeContents(button.parentElement.querySelector("pre"));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = document.execCommand("copy") ? "copied" : "press Ctrl-C";
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  };
  for (const button of document.querySelectorAll(".copy")) button.addEventListener("click", () => copy(button));

  Promise.all(charts.map(build)).then(() => { document.documentElement.dataset.drawn = String(charts.length); });
  dark.addEventListener("change", redraw);
  let width = innerWidth, timer;
  addEventListener("resize", () => {
    if (innerWidth === width || printing) return;
    width = innerWidth;
    clearTimeout(timer);
    timer = setTimeout(redraw, 120);
  });
  addEventListener("beforeprint", () => {
    printing = true;
    document.documentElement.dataset.print = "";
    document.querySelectorAll("details").forEach((one) => { one.dataset.was = one.open ? "open" : ""; });
    redraw();
  });
  addEventListener("afterprint", () => {
    printing = false;
    delete document.documentElement.dataset.print;
    redraw();
  });
})();
