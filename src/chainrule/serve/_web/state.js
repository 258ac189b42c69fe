// Inputs that outlive a reload, and a link that carries them. They stand behind the #, which is not sent to servers.

import { parseJson, toJson } from "./json.js";

const LONGEST_LINK = 30_000, MARK = "#inputs=";

/** What a tab remembers of one component. */
export class State {
  constructor(base, version) {
    this.key = `chainrule-inputs:${base.pathname}:${version}`;
  }

  save(payload) {
    try {
      sessionStorage.setItem(this.key, toJson(payload));
    } catch {
      sessionStorage.removeItem(this.key); // too large for the browser: a reload shows the defaults
    }
  }

  /** The inputs of an earlier load, or undefined. */
  saved() {
    const text = sessionStorage.getItem(this.key);
    return text === null ? undefined : parseJson(text);
  }

  clear() {
    sessionStorage.removeItem(this.key);
  }
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
