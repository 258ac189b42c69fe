// One card per server: health, load, latency, errors, and how they went in the last minutes.

import { formatNumber } from "./arrays.js";
import { h } from "./dom.js";
import { sparkline } from "./plots.js";
import { themeButton } from "./shell.js";

const EVERY_MS = 2000, KEPT = 90;
const histories = new Map();

function remember(url, status) {
  const history = histories.get(url) ?? [];
  const { requests, latency_s: latency } = status ?? {};
  history.push(status && { rate: requests.per_second, latency: latency.p50 ?? NaN, load: busyShare(status), total: requests.total, errors: requests.errors });
  histories.set(url, history.slice(-KEPT));
  return histories.get(url);
}

const busyShare = ({ workers }) => (workers.length ? workers.filter((worker) => worker.state === "busy").length / workers.length : 0);
const milliseconds = (seconds) => (seconds === null || seconds === undefined ? "–" : `${formatNumber(1000 * seconds, 3)} ms`);

function duration(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const [size, name] = units.find(([limit]) => seconds >= limit) ?? [1, "s"];
  return `${Math.floor(seconds / size)} ${name}`;
}

/** A measure with its history. */
function measure(title, value, history, key, options = {}) {
  const values = history.map((entry) => entry?.[key] ?? NaN);
  return h("div", { class: "measure" }, h("span", { class: "muted small" }, title), h("strong", {}, value), values.filter(Number.isFinite).length > 1 ? sparkline(values, options) : null);
}

/** Errors while this page was looking on: what was long ago is no reason to worry. */
function recentErrors(history) {
  const seen = history.filter(Boolean);
  // A server that was started again counts from zero.
  const since = seen.findLastIndex((entry, i) => i > 0 && entry.total < seen[i - 1].total);
  const [first, last] = [seen[Math.max(0, since)], seen.at(-1)];
  return { errors: last.errors - first.errors, total: last.total - first.total };
}

function card({ url, status, error, round_trip_s: roundTrip }) {
  const history = remember(url, status);
  const state = !status ? "down" : status.workers.some((worker) => worker.state === "starting") ? "starting" : "ok";
  const head = h("header", {}, h("h2", {}, h("a", { href: url }, url)), h("span", { class: `state ${state}` }, state));
  if (!status) return h("article", { class: "card down" }, head, h("p", { class: "bad" }, `${error.message} [${error.code}]`));
  const { requests, queue, latency_s: latency, workers, jobs, components } = status;
  const recent = recentErrors(history);
  const restarts = workers.reduce((total, worker) => total + worker.restarts, 0);
  return h(
    "article", { class: "card" }, head,
    h("p", { class: "help" }, components.map(({ name, version }) => `${name}${version === "unknown" ? "" : ` ${version}`}`).join(" · "), ` · up ${duration(status.uptime_s)} · Chainrule ${status.version}`),
    h("div", { class: "measures" },
      measure("requests / s", formatNumber(requests.per_second, 3), history, "rate"),
      measure("latency p50", milliseconds(latency.p50), history, "latency"),
      measure("workers busy", `${workers.filter((worker) => worker.state === "busy").length} of ${workers.length}`, history, "load", { top: 1 })),
    h("table", { class: "lines" }, h("tbody", {},
      row("queue", `${queue.length} of ${queue.limit}`, queue.length > 0.8 * queue.limit),
      row("latency p90, p99", `${milliseconds(latency.p90)}, ${milliseconds(latency.p99)}`),
      row("errors, lately", `${recent.errors} of ${recent.total} (${formatNumber((100 * recent.errors) / Math.max(1, recent.total), 2)} %)`, recent.errors > 0.01 * recent.total),
      row("errors, since its start", `${requests.errors} of ${requests.total}`),
      row("worker restarts", String(restarts), restarts > 0),
      row("jobs", `${jobs.running} running, ${jobs.queued} queued, ${jobs.succeeded} done, ${jobs.failed} failed, ${jobs.cancelled} cancelled`),
      row("round trip", milliseconds(roundTrip)))),
  );
}

const row = (name, value, isBad = false) => h("tr", {}, h("th", { scope: "row", class: "muted" }, name), h("td", { class: isBad ? "bad" : "" }, value));

async function refresh() {
  const { servers } = await (await fetch("servers", { cache: "no-store" })).json();
  document.getElementById("servers").replaceChildren(...servers.map(card));
  const down = servers.filter(({ status }) => !status).length;
  const rate = servers.reduce((total, { status }) => total + (status?.requests.per_second ?? 0), 0);
  document.getElementById("summary").textContent = `${servers.length - down} of ${servers.length} answer · ${formatNumber(rate, 3)} requests / s in all`;
  document.title = down ? `(${down} down) Chainrule dashboard` : "Chainrule dashboard";
}

document.getElementById("theme").replaceWith(themeButton());
for (;;) {
  await refresh().catch(() => {
    document.getElementById("summary").textContent = "The dashboard itself does not answer. Was it stopped?";
  });
  await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
}
