// Pools, their appliances, and each GPU as a bar of shares.

import { html } from "./vendor/htm.js";
import { bytes, gpus, hue, load } from "./format.js";
import { useFetched } from "./parts.js";

const LOAD_MILLISECONDS = 5000;

export function Pools({ state, token, now, cluster }) {
  const loads = useFetched("api/load", now - (now % LOAD_MILLISECONDS), token, null);
  const shares = sharesByGpu(state.claims);
  const queues = {};
  for (const claim of Object.values(state.claims)) {
    if (claim.position) queues[claim.pool] = (queues[claim.pool] ?? 0) + 1;
  }
  if (!state.pools.length) {
    return html`<h2>Pools</h2><p>There is no pool that ${state.user} may list. Claims are on their own page.</p>`;
  }
  return state.pools.map(
    (pool) => html`
      <${Pool} key=${pool.name} ...${{ pool, shares, loads, cluster }} waiting=${queues[pool.name] ?? 0} />
    `,
  );
}

// By appliance and GPU: what each claim has of it.
function sharesByGpu(claims) {
  const found = {};
  for (const [id, claim] of Object.entries(claims)) {
    for (const { appliance, gpu, memory } of claim.shares) {
      (found[`${appliance} ${gpu}`] ??= []).push({ id, claim, memory });
    }
  }
  return found;
}

function Pool({ pool, shares, loads, waiting, cluster }) {
  return html`
    <section aria-labelledby=${`pool-${pool.name}`}>
      <h2 id=${`pool-${pool.name}`}>${pool.name} <span class=${`phase ${pool.phase}`}>${pool.phase}</span></h2>
      <p>
        ${gpus(pool.free.milli)} of ${gpus(pool.total.milli)} GPUs free (${pool.backend}, ${pool.computeMode})${cluster && html`, <${Waiting} waiting=${waiting} />`}
      </p>
      ${pool.phase !== "Ready" && pool.message && html`<p class="bad">${pool.message}</p>`}
      ${pool.schedules.length > 0 && html`<ul class="schedules">${pool.schedules.map(Schedule)}</ul>`}
      ${pool.appliances.map(
        (each) => html`<${Appliance} key=${each.name} appliance=${each} ...${{ shares, loads, cluster }} />`,
      )}
    </section>
  `;
}

function Waiting({ waiting }) {
  return waiting ? html`<a href="#/claims">${waiting} of the claims shown wait</a>` : "none of the claims shown waits";
}

function Schedule(schedule) {
  return html`
    <li key=${schedule.name}>
      Schedule ${schedule.name}: suspends from ${schedule.from} to ${schedule.to} ${schedule.timeZone},${" "}
      ${schedule.days.join(", ")}; ${schedule.active ? html`<strong>now</strong>` : "not now"}
      ${schedule.problem && html` <span class="bad">${schedule.problem}</span>`}
    </li>
  `;
}

function Appliance({ appliance, shares, loads, cluster }) {
  const problem = appliance.phase === "Ready" && loads?.problems[appliance.name];
  return html`
    <article>
      <h3>
        ${appliance.name} <span class=${`phase ${appliance.phase}`}>${appliance.phase}</span>
        ${appliance.cordoned && html` <span class="phase">cordoned</span>`}
      </h3>
      ${appliance.phase !== "Ready" && html`<p class="bad">${appliance.message}</p>`}
      ${problem && html`<p class="bad">Its sessions are not known: ${problem}</p>`}
      <ul class="gpus">
        ${appliance.gpus.map((gpu) => {
          const key = `${appliance.name} ${gpu.uuid}`;
          return html`<${Gpu} key=${gpu.uuid} ...${{ gpu, cluster }} shares=${shares[key] ?? []} its=${loads?.gpus[key]} />`;
        })}
      </ul>
    </article>
  `;
}

function Gpu({ gpu, shares, its, cluster }) {
  const one = cluster ? "claim" : "lease";
  const part = (memory) => `${(100 * memory) / (gpu.shareable || 1)}%`;
  // Claims of namespaces that the reader may not list are in the sum alone.
  const others = gpu.allocatedMemory - shares.reduce((sum, share) => sum + share.memory, 0);
  const given = `${bytes(gpu.allocatedMemory)} of ${bytes(gpu.shareable)}`;
  return html`
    <li>
      <p>
        <a href=${`#/claims?text=${gpu.uuid}`}>${gpu.uuid.slice(0, 12)}</a> ${gpu.model}${" "}
        ${!gpu.healthy && html`<span class="bad">broken: ${gpu.message || "its appliance does not say why"}</span>`}
      </p>
      <div class="bar" role="img" aria-label=${`${given} given to ${one}s`}>
        ${shares.map(
          ({ id, claim, memory }) => html`
            <span key=${id} class=${claim.phase} title=${`${id}: ${bytes(memory)}, ${claim.phase}`}
              style=${{ width: part(memory), "--hue": hue(claim.namespace) }}></span>
          `,
        )}
        ${others > 0 &&
        html`<span class="others" title=${`others: ${bytes(others)}`} style=${{ width: part(others) }}></span>`}
      </div>
      <p class="small">
        ${given}, ${shares.length} ${shares.length === 1 ? one : `${one}s`}${others > 0 ? ", and others" : ""}
      </p>
      ${its && html`<p class="small">${load(its)}</p>`}
    </li>
  `;
}
