// Inputs that outlive a reload, and a link that carries them. They stand behind the #, which is not sent to servers.

import { parseJson, toJson } from "./json.js";

const LONGEST_LINK = 30_000, MARK = "#inputs=";

/** What a tab remembers of one component. */
export class State {
  /** @param read the inputs as they are sent, or null; it is called when the page is left */
  constructor(base, version, read) {
    this.key = `chainrule-inputs:${base.pathname}:${version}`;
    this.isEdited = false;
    addEventListener("pagehide", () => this.#save(read));
  }

  #save(read) {
    const payload = this.isEdited ? read() : null;
    if (!payload) return;
    try {
      sessionStorage.setItem(this.key, toJson(payload));
    } catch {
      sessionStorage.removeItem(this.key); // too large for the browser: a reload shows the defaults
    }
  }

  /** The inputs are no longer those of the link or of an earlier load. */
  edit() {
    this.isEdited = true;
    dropLink();
  }

  /** The inputs of an earlier load, or undefined. */
  saved() {
    const text = sessionStorage.getItem(this.key);
    return text === null ? undefined : parseJson(text);
  }

  /** Begin with the defaults again. */
  clear() {
    this.isEdited = false;
    sessionStorage.removeItem(this.key);
    dropLink();
  }
}

function dropLink() {
  if (location.hash.startsWith(MARK)) history.replaceState(null, "", location.href.split("#")[0]);
}

/** The address of the page with these inputs; null if they are too long for one. */
export async function linkTo(payload) {
  const bytes = await piped(new TextEncoder().encode(toJson(payload)), new CompressionStream("deflate-raw"));
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  const word = btoa(text).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
  return word.length > LONGEST_LINK ? null : `${location.href.split("#")[0]}${MARK}${word}`;
}

/** The inputs in the address of the page, or undefined. */
export async function linkedInputs() {
  if (!location.hash.startsWith(MARK)) return undefined;
  const text = atob(location.hash.slice(MARK.length).replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(text, (character) => character.charCodeAt(0));
  return parseJson(new TextDecoder().decode(await piped(bytes, new DecompressionStream("deflate-raw"))));
}

async function piped(bytes, transform) {
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(transform)).arrayBuffer());
}
