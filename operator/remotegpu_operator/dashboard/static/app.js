// The page: signing in, where one is, and the state that the stream keeps up to date.

import { html, render, useEffect, useState } from "./vendor/htm.js";
import { Claim } from "./claim.js";
import { Claims } from "./claims.js";
import { Pools } from "./pools.js";
import { follow } from "./stream.js";
import { Usage } from "./usage.js";

const CLOCK_MILLISECONDS = 5000;

function App() {
  const [token, setToken] = useState("");
  const [refusal, setRefusal] = useState("");
  const [state, setState] = useState(null);
  const route = useRoute();
  const now = useClock();

  useEffect(() => {
    if (!token) return undefined;
    const ending = new AbortController();
    follow(token, setState, ending.signal).catch((error) => {
      if (ending.signal.aborted) return;
      setRefusal(error.message);
      setToken("");
      setState(null);
    });
    return () => ending.abort();
  }, [token]);

  if (!token) {
    return html`<${SignIn} refusal=${refusal} onToken=${(given) => (setRefusal(""), setToken(given))} />`;
  }
  return html`
    <header>
      <h1>remotegpu</h1>
      <nav aria-label="Pages">
        <${Tab} to="#/" now=${route.page === "pools"}>Pools<//>
        <${Tab} to="#/claims" now=${route.page === "claims"}>Claims<//>
        <${Tab} to="#/usage" now=${route.page === "usage"}>Usage<//>
      </nav>
      <p class="who">
        <span role="status" class=${state?.problem ? "bad" : ""}>
          ${state?.problem || (state?.user ? "Live" : "Connecting")}
        </span>
        ${state?.user && html`<span>${state.user}</span>`}
        <button type="button" onClick=${() => (setToken(""), setState(null))}>Sign out</button>
      </p>
    </header>
    <main>
      ${state?.user ? html`<${Page} ...${{ route, state, token, now }} />` : html`<p>Waiting for the operator</p>`}
    </main>
  `;
}

function Page({ route, state, token, now }) {
  if (route.page === "pools") return html`<${Pools} ...${{ state, token, now }} />`;
  if (route.page === "usage") return html`<${Usage} ...${{ ...route, state, token, now }} />`;
  if (!route.claim) return html`<${Claims} key=${route.text} state=${state} text=${route.text} now=${now} />`;
  const claim = state.claims[route.claim];
  return html`<${Claim} key=${route.claim} id=${route.claim} claim=${claim} token=${token} now=${now} />`;
}

function Tab({ to, now, children }) {
  return html`<a href=${to} aria-current=${now ? "page" : undefined}>${children}</a>`;
}

function SignIn({ refusal, onToken }) {
  const submit = (event) => {
    event.preventDefault();
    const given = new FormData(event.target).get("token").trim();
    if (given) onToken(given);
  };
  return html`
    <header><h1>remotegpu</h1></header>
    <main class="sign-in">
      <form onSubmit=${submit}>
        <label for="token">Token of the cluster</label>
        <input id="token" name="token" type="password" autocomplete="off" required aria-describedby="about" />
        <button type="submit">Sign in</button>
        <p id="about">
          <code>kubectl create token ACCOUNT -n NAMESPACE</code> makes one for a service account. The page shows the
          pools and claims that the account may list. It forgets the token when it is closed or loaded again.
        </p>
        ${refusal && html`<p role="alert" class="bad">${refusal}</p>`}
      </form>
    </main>
  `;
}

// "#/", "#/claims?text=GPU-1", "#/claims/NAMESPACE/NAME", "#/usage?range=day&by=pool"
function useRoute() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const moved = () => setHash(location.hash);
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const [page, namespace, name] = path.split("/").map(decodeURIComponent);
  const asked = new URLSearchParams(query);
  if (page === "usage") return { page, range: asked.get("range"), by: asked.get("by") };
  if (page !== "claims") return { page: "pools" };
  return { page, text: asked.get("text") ?? "", claim: namespace && name ? `${namespace}/${name}` : "" };
}

function useClock() {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), CLOCK_MILLISECONDS);
    return () => clearInterval(timer);
  }, []);
  return now;
}

document.body.replaceChildren();
render(html`<${App} />`, document.body);
