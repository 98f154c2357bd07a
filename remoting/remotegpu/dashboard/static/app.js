// The page: signing in, where one is, and the state that the stream keeps up to date.

import { html, render, useEffect, useState } from "./vendor/htm.js";
import { Claim } from "./claim.js";
import { Claims } from "./claims.js";
import { Pools } from "./pools.js";
import { follow, get } from "./stream.js";
import { Usage } from "./usage.js";

const CLOCK_MILLISECONDS = 5000;

function App() {
  const [about, setAbout] = useState(null);
  const [token, setToken] = useState("");
  const [refusal, setRefusal] = useState("");
  const [state, setState] = useState(null);
  const route = useRoute();
  const now = useClock();

  const open = about && (token || !about.signIn);

  useEffect(() => {
    get("api/about", "")
      .then((response) => response.json())
      .then(setAbout)
      .catch((error) => setRefusal(error.message));
  }, []);
  useEffect(() => {
    if (!open) return undefined;
    const ending = new AbortController();
    follow(token, setState, ending.signal).catch((error) => {
      if (ending.signal.aborted) return;
      setRefusal(error.message);
      setToken("");
      setState(null);
    });
    return () => ending.abort();
  }, [open, token]);

  if (!open || (refusal && !about.signIn)) {
    const onToken = (given) => (setRefusal(""), setToken(given));
    return html`
      <header><h1>remotegpu</h1></header>
      <main class="sign-in">
        ${about?.signIn && html`<${SignIn} of=${about.of} onToken=${onToken} />`}
        ${refusal && html`<p role="alert" class="bad">${refusal}</p>`}
      </main>
    `;
  }
  const cluster = about.of === "cluster";
  return html`
    <header>
      <h1>remotegpu</h1>
      <nav aria-label="Pages">
        <${Tab} to="#/" now=${route.page === "pools"}>${cluster ? "Pools" : "GPUs"}<//>
        <${Tab} to="#/claims" now=${route.page === "claims"}>${cluster ? "Claims" : "Leases"}<//>
        ${cluster && html`<${Tab} to="#/usage" now=${route.page === "usage"}>Usage<//>`}
      </nav>
      <p class="who">
        <span role="status" class=${state?.problem ? "bad" : ""}>
          ${state?.problem || (state?.user ? "Live" : "Connecting")}
        </span>
        ${state?.user && html`<span>${state.user}</span>`}
        ${about.signIn &&
        html`<button type="button" onClick=${() => (setToken(""), setState(null))}>Sign out</button>`}
      </p>
    </header>
    <main>
      ${state?.user
        ? html`<${Page} ...${{ route, state, token, now, cluster }} />`
        : html`<p>Waiting for the ${cluster ? "operator" : "appliance"}</p>`}
    </main>
  `;
}

function Page({ route, state, token, now, cluster }) {
  if (route.page === "usage" && cluster) return html`<${Usage} ...${{ ...route, state, token, now }} />`;
  if (route.page !== "claims") return html`<${Pools} ...${{ state, token, now, cluster }} />`;
  if (!route.claim) return html`<${Claims} key=${route.text} ...${{ state, text: route.text, now, cluster }} />`;
  const claim = state.claims[route.claim];
  return html`<${Claim} key=${route.claim} id=${route.claim} ...${{ claim, token, now, cluster }} />`;
}

function Tab({ to, now, children }) {
  return html`<a href=${to} aria-current=${now ? "page" : undefined}>${children}</a>`;
}

function SignIn({ of, onToken }) {
  const submit = (event) => {
    event.preventDefault();
    const given = new FormData(event.target).get("token").trim();
    if (given) onToken(given);
  };
  const whence = {
    cluster: html`
      <code>kubectl create token ACCOUNT -n NAMESPACE</code> makes one for a service account. The page shows the pools
      and claims that the account may list.
    `,
    appliance: html`
      It is the one that <code>remotegpu run</code> uses, of the appliance's file of tokens; without one, its log names where it lies. The page shows its
      holder's leases, and an administrator all.
    `,
  };
  return html`
    <form onSubmit=${submit}>
      <label for="token">Token of the ${of}</label>
      <input id="token" name="token" type="password" autocomplete="off" required aria-describedby="about" />
      <button type="submit">Sign in</button>
      <p id="about">${whence[of]} It forgets the token when it is closed or loaded again.</p>
    </form>
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
