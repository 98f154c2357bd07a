// The snapshot, live: a stream that fetch reads, since EventSource sends no header. The token is kept here alone.

const RETRY_MILLISECONDS = 2000;

export class Refused extends Error {}

export async function get(path, token, signal) {
  const response = await fetch(path, { headers: { "X-Remotegpu-Token": token }, credentials: "omit", signal });
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  const error = said.error || `${path} answers ${response.status}: is this page served by remotegpu?`;
  throw response.status === 401 || response.status === 403 ? new Refused(error) : new Error(error);
}

// Calls `onState` with {user, pools, claims, problem} until `signal` ends it. Throws Refused if the token is no good.
export async function follow(token, onState, signal) {
  let state = { user: "", pools: [], claims: {}, problem: "" };
  const show = (next) => onState((state = next));
  while (!signal.aborted) {
    try {
      for await (const message of messages(await get("api/events", token, signal))) {
        if (message.error) throw new Error(message.error);
        show({ ...(message.changes ? changed(state, message.changes) : message), problem: "" });
      }
      throw new Error("the server has ended the connection");
    } catch (error) {
      if (error instanceof Refused) throw error;
      if (signal.aborted) return;
      show({ ...state, problem: `${error.message}; trying again` });
      await new Promise((resolve) => setTimeout(resolve, RETRY_MILLISECONDS));
    }
  }
}

function changed(state, changes) {
  const claims = { ...state.claims, ...changes.claims };
  for (const gone of changes.gone ?? []) delete claims[gone];
  return { user: state.user, pools: changes.pools ?? state.pools, claims };
}

async function* messages(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    // A snapshot comes in many pieces, which are put together once: JSON has no line end inside.
    parts.push(value);
    if (!value.includes("\n")) continue;
    const events = parts.join("").split("\n\n");
    parts = [events.pop()];
    for (const event of events) if (event.startsWith("data: ")) yield JSON.parse(event.slice(6));
  }
}
