// The queue: what runs, what waits, what was; the log of any of them.

import { button, h } from "./dom.js";

const IS_OPEN = ["queued", "running"];

export class Jobs {
  constructor(client) {
    this.client = client;
    this.rows = h("tbody");
    this.load = h("p", { class: "muted" });
    this.log = h("pre", { class: "log", hidden: true, tabindex: "0", "aria-label": "log" });
    const head = ["job", "endpoint", "state", "progress", "submitted", "actions"].map((title) => h("th", { scope: "col" }, title === "actions" ? h("span", { class: "visually-hidden" }, title) : title));
    this.element = h(
      "div", {}, this.load,
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "list of jobs" }, h("table", { class: "lines" }, h("thead", {}, h("tr", {}, head)), this.rows)),
      this.log,
    );
  }

  /** Ask again; `true` while something is under way. */
  async refresh() {
    const [{ jobs }, status] = await Promise.all([this.client.getFromServer("jobs?limit=20"), this.client.getFromServer("status")]);
    const busy = status.workers.filter((worker) => worker.state === "busy").length;
    this.load.textContent = `${busy} of ${status.workers.length} workers busy · waiting: jobs ${status.jobs.queued}, calls ${status.queue.length} (room for ${status.queue.limit}) · ${status.requests.total} requests since the start`;
    this.rows.replaceChildren(...(jobs.length ? jobs.map((job) => this.#row(job)) : [h("tr", {}, h("td", { colspan: 6, class: "muted" }, "Nothing was run yet."))]));
    return jobs.some((job) => IS_OPEN.includes(job.state));
  }

  #row(job) {
    const isOpen = IS_OPEN.includes(job.state);
    return h(
      "tr", {},
      h("td", {}, h("code", {}, job.id.slice(0, 8))),
      h("td", {}, `${job.component} · ${job.endpoint}`),
      h("td", {}, h("span", { class: `state ${job.state}` }, job.state)),
      h("td", {}, progressText(job)),
      h("td", { class: "number" }, new Date(job.submitted_at).toLocaleTimeString()),
      h("td", { class: "actions" },
        button("log", () => this.#showLog(job), { class: "link", "aria-label": `log of ${job.id.slice(0, 8)}` }),
        isOpen ? button("cancel", () => this.client.cancel(job.id).then(() => this.refresh()), { class: "link bad" }) : null),
    );
  }

  async #showLog(job) {
    const text = await this.client.textFromServer(`jobs/${job.id}/log`);
    this.log.hidden = false;
    this.log.textContent = text || "The job wrote nothing.";
  }
}

/** Where a job stands, in words. */
export function progressText(job) {
  if (job.state === "queued") return job.queue_position === null ? "waiting" : `${job.queue_position} before it`;
  const share = job.fraction === null ? "" : `${Math.round(100 * job.fraction)} %`;
  const what = job.error?.message ?? job.message ?? "";
  return [share, what].filter(Boolean).join(" · ") || (job.state === "running" ? "working" : "");
}
