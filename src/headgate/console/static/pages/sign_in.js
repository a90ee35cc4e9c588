/** Sign in. */
import { Problem } from "../parts/basics.js";
import { goToProvider, signInWith } from "../sign_in.js";
import { useStore } from "../store.js";
import { html, useState, useTitle } from "../ui.js";

export function SignIn() {
  const { issuer, clientId } = useStore((state) => state.signIn);
  const user = useStore((state) => state.user);
  const [token, setToken] = useState("");
  const [isKept, setKept] = useState(false);
  const [error, setError] = useState(null);
  useTitle("Sign in");
  const attempt = (work) => async (event) => {
    event.preventDefault();
    setError(null);
    try {
      await work();
    } catch (failed) {
      setError(failed);
    }
  };
  return html`<main class="sign-in">
    <img src="mark.svg" alt="" width="40" height="40" />
    <h1>Sign in to Headgate</h1>
    ${user && html`<p class="warning">The server takes the token of ${user} no longer. What you were writing is still there.</p>`}
    ${clientId &&
    html`<button type="button" class="primary" onClick=${attempt(() => goToProvider(isKept))}>Continue with ${new URL(issuer).host}</button>
      <p class="or"><span>or</span></p>`}
    <form onSubmit=${attempt(() => signInWith(token, isKept))}>
      <label for="token">Token</label>
      <input id="token" type="password" autocomplete="off" spellcheck="false" value=${token} onInput=${(event) => setToken(event.target.value)} />
      <button type="submit" class=${clientId ? "" : "primary"} disabled=${!token.trim()}>Sign in</button>
    </form>
    <${Problem} error=${error} />
    <label class="keep"><input type="checkbox" checked=${isKept} onChange=${(event) => setKept(event.target.checked)} /> Stay signed in until this tab is closed</label>
    <p class="muted">${isKept ? "The browser keeps the token for this tab, also when you reload the page." : "The token stays in this page's memory. Closing or reloading the page signs you out."}</p>
  </main>`;
}
