// Talking to the server: every call carries the token, every run is a job that can be watched.

import { saveFile } from "./dom.js";
import { parseJson, toJson } from "./json.js";

const ARRAYS = "application/json+base64, application/json;q=0.5";
const FINAL = ["succeeded", "failed", "cancelled"];

/** An answer that says what went wrong; `detail` lists it by field. */
export class Problem extends Error {
  constructor(status, content) {
    super(content.message ?? (typeof content.detail === "string" ? content.detail : `The server answered ${status}.`));
    this.status = status;
    this.code = content.code ?? "http_error";
    this.detail = Array.isArray(content.detail) ? content.detail : [];
    this.traceback = content.traceback;
  }
}

export class Client {
  /**
   * @param {URL} base where the component answers
   * @param {URL} root where the server answers
   * @param {(wasWrong: boolean) => Promise<string>} askForToken
   */
  constructor(base, root, askForToken) {
    this.base = base;
    this.root = root;
    this.token = sessionStorage.getItem("chainrule-token");
    this.askForToken = askForToken;
  }

  async #fetch(address, options = {}) {
    for (;;) {
      const headers = { ...options.headers };
      if (this.token) headers.Authorization = `Bearer ${this.token}`;
      let answer;
      try {
        answer = await fetch(address, { ...options, headers, cache: "no-store" });
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new Problem(0, { code: "unreachable", message: "The server does not answer. Is it still running?" });
      }
      if (answer.status !== 401) return answer;
      const token = await this.askForToken(Boolean(this.token));
      this.token = token;
      sessionStorage.setItem("chainrule-token", token);
    }
  }

  async #read(answer) {
    if (answer.ok) return parseJson(await answer.text());
    const content = await answer.json().catch(() => ({}));
    throw new Problem(answer.status, content);
  }

  /** JSON of a component's own address. */
  async get(path) {
    return this.#read(await this.#fetch(new URL(path, this.base)));
  }

  /** JSON of a server's address, such as `status` and `jobs`. */
  async getFromServer(path) {
    return this.#read(await this.#fetch(new URL(path, this.root)));
  }

  /** Text of a server's address. */
  async textFromServer(path) {
    const answer = await this.#fetch(new URL(path, this.root));
    return answer.ok ? answer.text() : "";
  }

  /** Put a file into the folder that the component reads from; its path there. */
  async upload(file, maxBytes) {
    if (file.size > maxBytes) throw new Error(`it has ${file.size} bytes; the server takes ${maxBytes}.`);
    const answer = await this.#fetch(new URL(`files?name=${encodeURIComponent(file.name)}`, this.root), { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: file });
    return (await this.#read(answer)).path;
  }

  /** Let the user save a file that the component wrote. */
  async download(path) {
    const answer = await this.#fetch(new URL(`files?path=${encodeURIComponent(path)}`, this.root));
    if (!answer.ok) await this.#read(answer);
    saveFile(path.split("/").at(-1), await answer.blob());
  }

  async cancel(id) {
    await this.#fetch(new URL(`jobs/${id}`, this.root), { method: "DELETE" });
  }

  /** Run an endpoint as a job; `onJob` and `onLog` hear of it while it runs. */
  async run(endpoint, payload, { onJob = () => {}, onLog = () => {} } = {}) {
    const answer = await this.#fetch(new URL(`${endpoint}?wait=false`, this.base), {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: ARRAYS },
      body: toJson(payload),
    });
    if (answer.status !== 202) return this.#read(answer);
    let job = await answer.json();
    onJob(job);
    for (;;) {
      job = await this.#follow(job, onJob, onLog);
      if (FINAL.includes(job.state)) return this.#result(job);
    }
  }

  async #result(job) {
    if (job.state === "cancelled") throw new Problem(410, { code: "cancelled", message: "The run was cancelled." });
    return this.#read(await this.#fetch(new URL(`jobs/${job.id}/result`, this.root), { headers: { Accept: ARRAYS } }));
  }

  /** Listen until the job ends or the stream does; the job as it is then. */
  async #follow(job, onJob, onLog) {
    const answer = await this.#fetch(new URL(`jobs/${job.id}/events`, this.root), { headers: { Accept: "text/event-stream" } });
    if (answer.ok) {
      for await (const { event, data } of eventsOf(answer.body)) {
        if (event === "log") onLog(data.line);
        else onJob(data);
      }
    }
    const now = await this.getFromServer(`jobs/${job.id}`);
    onJob(now);
    if (!FINAL.includes(now.state)) await new Promise((resolve) => setTimeout(resolve, 250));
    return now;
  }
}

/** The events of a `text/event-stream`; `EventSource` could not send the token. */
async function* eventsOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value.replaceAll("\r\n", "\n");
    const blocks = buffer.split("\n\n");
    buffer = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n");
      const event = lines.find((line) => line.startsWith("event:"))?.slice(6).trim() ?? "message";
      const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
      if (data) yield { event, data: JSON.parse(data) };
    }
  }
}
