/** The public API: requests with the user's token, errors with their hints, and answers that never end. */
import { current, set } from "./store.js";

export const OWN = "/apis/headgate.dev/v1";
export const EVENTING = "/apis/eventing.knative.dev/v1";
const JSON_TYPE = "application/json";

/** Kept in memory alone: whoever closes the page has signed out. */
let token = "";
export function useToken(text) {
  token = text;
}

/** An answer that is no success: what was wrong, and what to do. */
export class ApiError extends Error {
  constructor(status, body) {
    const said = body.message ?? body.title ?? `the server answered ${status}`;
    const [message, inner] = said.split(/ \(hint: (.*)\)$/s);
    super(body.detail ?? message);
    this.status = status;
    this.hint = body.details?.hint ?? body.hint ?? inner ?? "";
    this.reason = body.reason ?? "";
    this.causes = body.details?.causes ?? [];
    this.caret = body.details?.caret ?? "";
    this.position = body.details?.position;
    this.retryAfterSeconds = body.details?.retryAfterSeconds;
  }
}

async function failure(response) {
  const text = await response.text();
  try {
    return new ApiError(response.status, JSON.parse(text));
  } catch {
    return new ApiError(response.status, { message: text.slice(0, 500) || undefined });
  }
}

/** Nobody answered: what the page shows is old from now on. */
export function gone() {
  if (!current().silentSince) set({ silentSince: Date.now() });
  return Object.assign(new ApiError(0, { message: "the server does not answer", hint: "is it running? The page asks again" }), { isGone: true });
}

async function answer(method, path, { body, type = JSON_TYPE, accept = JSON_TYPE, signal } = {}) {
  const headers = { accept };
  if (token) headers.authorization = `Bearer ${token}`;
  if (body !== undefined) headers["content-type"] = type;
  const sent = body === undefined || typeof body === "string" ? body : JSON.stringify(body);
  let response;
  try {
    response = await fetch(path, { method, headers, body: sent, signal, credentials: "omit", cache: "no-store" });
  } catch (error) {
    throw signal?.aborted ? error : gone();
  }
  if (current().silentSince) set({ silentSince: 0 });
  if (response.status === 401) set({ mustSignIn: true });
  if (!response.ok) throw await failure(response);
  return response;
}

/** An answer as a whole. `warnings` are those of its headers. */
export async function call(method, path, options) {
  const response = await answer(method, path, options);
  const text = await response.text().catch((error) => {
    throw options?.signal?.aborted ? error : gone();
  });
  const warnings = [...(response.headers.get("warning") ?? "").matchAll(/299 - "((?:[^"\\]|\\.)*)"/g)];
  return { data: text ? parsed(text) : null, warnings: warnings.map(([, said]) => said.replace(/\\(.)/g, "$1")) };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new ApiError(0, { message: `the answer is no JSON: ${text.slice(0, 80)}`, hint: "does something between here and the server answer for it?" });
  }
}

export const get = async (path, options) => (await call("GET", path, options)).data;
export const post = async (path, body, options) => (await call("POST", path, { ...options, body })).data;

/**
 * The lines of an answer that goes on, each a JSON value, some at a time.
 * @returns {AsyncGenerator<any[]>}
 */
export async function* lines(path, signal) {
  const response = await answer("GET", path, { accept: "application/x-ndjson", signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch((error) => {
        throw signal.aborted ? error : gone();
      });
      if (done) return;
      const found = (rest + value).split("\n");
      rest = found.pop();
      yield found.filter(Boolean).map(parsed);
    }
  } finally {
    reader.cancel().catch(() => {}); // whoever reads no further leaves no connection open
  }
}

/** Where the objects or questions `plural` are: of a namespace, or of all. */
export const within = (root, namespace, plural) =>
  namespace ? `${root}/namespaces/${encodeURIComponent(namespace)}/${plural}` : `${root}/${plural}`;

/** Where one object is. */
export const objectPath = (root, namespace, plural, name) =>
  `${within(root, namespace, plural)}/${encodeURIComponent(name)}`;
