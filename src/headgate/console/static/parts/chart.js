/** Charts of the last minutes by uPlot, in the colours of the page. */
import { colour } from "../theme.js";
import { useStore } from "../store.js";
import { html, useEffect, useRef } from "../ui.js";

const HEIGHT = 190;
const minute = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
const { uPlot } = globalThis; // index.html loads it: its small build is no module
const SHOWN_S = 900;
const SPARSE = 12; // so few values make no line
const FONT = "11px Inter, sans-serif";

/**
 * @param {{label: string, times: number[], lines: {name: string, tone: string, values: (number|null)[], dash?: number[]}[],
 *   format: (value: number) => string}} given `times` are seconds since 1970.
 */
export function Chart({ label, times, lines, format }) {
  const at = useRef(null);
  const plot = useRef(null);
  const isDark = useStore((state) => state.isDark);
  useEffect(() => {
    const axis = { stroke: colour("muted"), font: FONT, grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
    plot.current = new uPlot(
      {
        width: at.current.clientWidth || 400,
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false, points: { size: 6 } },
        padding: [8, 8, 0, 0],
        scales: { x: { range: (_, low, high) => [high - SHOWN_S, high] }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
        axes: [{ ...axis, grid: { show: false }, size: 28, space: 70, incrs: [60, 120, 300], values: (_, ticks) => ticks.map(minute) }, { ...axis, size: 58, values: (_, ticks) => ticks.map(format) }],
        series: [{}, ...lines.map((one) => ({ label: one.name, stroke: colour(one.tone), width: 1.5, dash: one.dash, spanGaps: true, points: { size: 4, show: one.values.filter((value) => value !== null).length < SPARSE }, fill: one.fill && `${colour(one.tone)}1a` }))],
      },
      [times, ...lines.map((one) => one.values)],
      at.current,
    );
    const watcher = new ResizeObserver(() => plot.current?.setSize({ width: at.current.clientWidth, height: HEIGHT }));
    watcher.observe(at.current);
    return () => {
      watcher.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [isDark, lines.length]);
  useEffect(() => plot.current?.setData([times, ...lines.map((one) => one.values)]), [times]);
  return html`<figure class="chart">
    <figcaption>${lines.map((one) => html`<span key=${one.name} class="key ${one.tone}"><i class=${one.dash ? "dashed" : ""} aria-hidden="true"></i>${one.name}</span>`)}</figcaption>
    <div ref=${at} role="img" aria-label=${label}></div>
  </figure>`;
}
