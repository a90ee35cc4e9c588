/** Signing in: OpenID Connect's code flow with PKCE, or a pasted token. No cookie is set. A token is kept for the tab on request. */
import { get, OWN, post, useToken } from "./api.js";
import { forgetRights } from "./rights.js";
import { current, set } from "./store.js";

const PENDING = "headgate-sign-in"; // what must outlive the way to the provider and back: no token
const KEPT = "headgate-token"; // only where its user has asked for it; the tab forgets it when it is closed
const SELF = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/** What the tab keeps, in a browser that keeps anything. */
function keep(token) {
  try {
    if (token) sessionStorage.setItem(KEPT, token);
    else sessionStorage.removeItem(KEPT);
  } catch {
    // it holds until the page is left
  }
}

function kept() {
  try {
    return sessionStorage.getItem(KEPT);
  } catch {
    return null;
  }
}

const base64url = (bytes) =>
  btoa(String.fromCharCode(...new Uint8Array(bytes)))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
const random = () => base64url(crypto.getRandomValues(new Uint8Array(32)));
const redirectUri = () => location.origin + location.pathname;

async function provider() {
  const { issuer } = current().signIn;
  const response = await fetch(`${issuer.replace(/\/$/, "")}/.well-known/openid-configuration`);
  if (!response.ok) throw new Error(`the OpenID provider ${issuer} answered ${response.status}`);
  return response.json();
}

/** Sends the browser to the provider. */
export async function goToProvider(isKept) {
  const { authorization_endpoint: endpoint } = await provider();
  const [verifier, state, nonce] = [random(), random(), random()];
  sessionStorage.setItem(PENDING, JSON.stringify({ verifier, state, nonce, isKept, hash: location.hash }));
  const challenge = base64url(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier)));
  const query = {
    response_type: "code",
    client_id: current().signIn.clientId,
    redirect_uri: redirectUri(),
    scope: "openid profile email",
    code_challenge: challenge,
    code_challenge_method: "S256",
    state,
    nonce,
  };
  const separator = endpoint.includes("?") ? "&" : "?";
  location.assign(`${endpoint}${separator}${new URLSearchParams(query)}`);
}

/** Whether the browser comes from the provider. */
export const comesFromProvider = () => /[?&](code|error)=/.test(location.search);

/** Takes the code that the provider has sent along, and gets the token for it. */
export async function returnFromProvider() {
  const given = new URLSearchParams(location.search);
  const pending = JSON.parse(sessionStorage.getItem(PENDING) ?? "{}");
  sessionStorage.removeItem(PENDING);
  history.replaceState(null, "", redirectUri() + (pending.hash ?? ""));
  if (given.has("error")) throw new Error(given.get("error_description") ?? given.get("error"));
  if (!pending.state || given.get("state") !== pending.state) {
    throw new Error("this answer of the provider belongs to no sign-in that was begun here");
  }
  const { token_endpoint: endpoint } = await provider();
  const body = new URLSearchParams({
    grant_type: "authorization_code",
    code: given.get("code"),
    redirect_uri: redirectUri(),
    client_id: current().signIn.clientId,
    code_verifier: pending.verifier,
  });
  const response = await fetch(endpoint, { method: "POST", body, credentials: "omit" });
  if (!response.ok) throw new Error(`the OpenID provider refused the code: ${response.status}`);
  const { id_token: token } = await response.json();
  const claims = JSON.parse(atob(token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/")));
  if (claims.nonce !== pending.nonce) throw new Error("the provider's token belongs to another sign-in");
  await signInWith(token, pending.isKept);
}

/** Makes every request with this token from now on, if the server believes it; `isKept`: until the tab is closed. */
export async function signInWith(token, isKept = false) {
  useToken(token.trim());
  forgetRights();
  try {
    await learnUser(isKept ? token.trim() : "");
  } catch (error) {
    if (!error.isGone) keep(""); // a page that is left in between hears of nobody, either
    useToken("");
    throw error;
  }
}

/** Who the user is, with the token that was kept for this tab, where there is one. */
export async function signInAgain() {
  const token = kept();
  if (token) await signInWith(token, true);
  else await learnUser();
}

export function signOut() {
  keep("");
  useToken("");
  forgetRights();
  set({ user: "", mustSignIn: true, drafts: {} });
}

/** Asks who the user is, and which namespaces he may see; keeps the token before anybody sees that it has worked. */
async function learnUser(token = "") {
  const question = { apiVersion: "authentication.k8s.io/v1", kind: "SelfSubjectReview" };
  const { status } = await post(SELF, question);
  const namespaces = await get(`${OWN}/selfsubjectnamespaces`);
  keep(token);
  const { username } = status.userInfo;
  const { user, drafts } = current();
  const isAnother = user && user !== "system:anonymous" && user !== username;
  set({ user: username, mustSignIn: false, namespaces, drafts: isAnother ? {} : drafts });
}
