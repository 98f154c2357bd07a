// A claim's whole story: what it is, why it is so, what happened.

import { html } from "./vendor/htm.js";
import { age, bytes, gpuHours, link, load, percent, seconds } from "./format.js";
import { Table, useFetched } from "./parts.js";

const USAGE_MILLISECONDS = 15000;
const LOAD_MILLISECONDS = 5000;

export function Claim({ id, claim, token, now, cluster }) {
  const path = `api/claims/${id.split("/").map(encodeURIComponent).join("/")}`;
  // What becomes of a claim has an event; its place in the queue alone has none.
  const state = `${claim?.phase} ${claim?.reason} ${claim?.message}`;
  const story = useFetched(`${path}/events`, cluster && state, token, { events: [], problem: "" });
  const why = useFetched(`${path}/why`, claim?.position ? state : "", token, null);
  const loads = useFetched("api/load", claim?.shares.length && now - (now % LOAD_MILLISECONDS), token, null);
  const usage = useFetched(`${path}/usage`, cluster && claim && `${state} ${now - (now % USAGE_MILLISECONDS)}`, token, null);

  if (!claim) {
    const one = cluster ? "claim" : "lease";
    return html`<h2>${id}</h2><p>This ${one} has gone, or you may not list it. <a href="#/claims">All ${one}s</a></p>`;
  }
  const facts = {
    ...(cluster ? { Pool: claim.pool } : {}),
    "Asked for": claim.mode ? `${claim.asks}, ${claim.mode}` : claim.asks,
    GPUs: claim.gpus,
    ...(cluster ? ofClaim(claim) : {}),
    Age: age(claim.created, now),
    ...(claim.position ? { "Place in queue": claim.position } : {}),
    ...(loads?.claims[id] ? { Now: load(loads.claims[id]) } : {}),
    ...(usage ? used(usage, claim.shares.length > 0) : {}),
  };
  const shares = claim.shares.map((each) => [each.appliance, each.gpu, bytes(each.memory)]);
  const conditions = claim.conditions.map((each) => [
    age(each.lastTransitionTime, now), each.type, each.status, each.reason, each.message,
  ]);
  const events = [...story.events]
    .sort((one, other) => (one.lastTimestamp < other.lastTimestamp ? 1 : -1))
    .map((each) => [age(each.lastTimestamp, now), each.type, each.reason, each.message]);
  return html`
    <h2>${id} <span class=${`phase ${claim.phase}`}>${claim.phase}</span></h2>
    <p><strong>${claim.reason}</strong> ${claim.message}</p>
    <dl>
      ${Object.entries(facts).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
    </dl>
    ${claim.position > 0 && why && html`<${Why} why=${why} />`}
    ${claim.shares.length > 0 &&
    html`<${Table} title="Shares" head=${["Appliance", "GPU", "Memory"]} rows=${shares} />`}
    ${cluster &&
    html`
      <${Table} title="Conditions" head=${["Since", "Type", "Status", "Reason", "Message"]} rows=${conditions} />
      <${Table} title="Events" head=${["Before", "Type", "Reason", "Message"]} rows=${events} />
    `}
    ${story.problem && html`<p class="bad">${story.problem}</p>`}
  `;
}

function ofClaim(claim) {
  return {
    Priority: claim.priority,
    Suspendable: claim.suspendable ? "yes" : "no",
    Pods: claim.pods.join(", ") || "none",
  };
}

function used({ gpu_seconds, used_gpu_seconds, cost, idle_seconds }, holds) {
  const held = gpuHours(gpu_seconds);
  return {
    "Held in the last hour": cost === null ? `${held} GPU hours` : `${held} GPU hours, which cost ${cost.toFixed(2)}`,
    "Used of that": percent(used_gpu_seconds, gpu_seconds),
    ...(holds ? { Programs: idle_seconds === null ? "have a session" : `none for ${seconds(idle_seconds)}` } : {}),
  };
}

function Why({ why }) {
  return html`
    <section aria-labelledby="why">
      <h3 id="why">Why it waits</h3>
      <p>
        ${why.starts_in_seconds === null
          ? "Nobody can say when it starts. "
          : `It probably starts in ${seconds(why.starts_in_seconds)}. `}
        ${why.estimate && `That rests on this: ${why.estimate}.`}
        ${why.smaller.length > 0 && ` This would start now: ${why.smaller.join(", or ")}.`}
      </p>
      ${why.holders.length > 0 &&
      html`
        <p>What has to end before:</p>
        <ul>
          ${why.holders.map(
            (each) => html`
              <li key=${each.claim}>
                <a href=${link(each.claim)}>${each.claim}</a> has ${each.has}, for
                ${" "}${seconds(each.held_seconds)} now
              </li>
            `,
          )}
        </ul>
      `}
    </section>
  `;
}
