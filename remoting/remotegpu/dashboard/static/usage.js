// Who had how much of GPUs, used it or not, what it cost, and how long claims waited.

import { html } from "./vendor/htm.js";
import { gpuHours, percent, seconds } from "./format.js";
import { Choice, Table, useFetched } from "./parts.js";

const REFRESH_MILLISECONDS = 15000;
const GIB_HOUR = 2 ** 30 * 3600;
const RANGES = { hour: "last hour", day: "last day", week: "last 7 days", month: "last 30 days" };
const BY = { namespace: "Namespace", pool: "Pool", model: "Model of GPU", claim: "Claim" };

export function Usage({ range, by, state, token, now }) {
  const chosen = { range: range in RANGES ? range : "day", by: by in BY ? by : "namespace" };
  const path = `api/usage?${new URLSearchParams(chosen)}`;
  const usage = useFetched(path, now - (now % REFRESH_MILLISECONDS), token, { problem: "" });
  const go = (change) => (location.hash = `#/usage?${new URLSearchParams({ ...chosen, ...change })}`);
  return html`
    <h2>Usage</h2>
    <form class="filter" onSubmit=${(event) => event.preventDefault()}>
      <${Choice} label="Time" value=${chosen.range} of=${RANGES} onChoice=${(range) => go({ range })} />
      <${Choice} label="By" value=${chosen.by} of=${BY} onChoice=${(by) => go({ by })} />
    </form>
    ${usage.problem && html`<p role="alert" class="bad">${usage.problem}</p>`}
    ${usage.total ? html`<${Figures} ...${{ usage, state, now }} />` : html`<p>Reading the record</p>`}
  `;
}

function Figures({ usage, state, now }) {
  // Not what is chosen: that may be another one already.
  const { range, by, total, rows, more, waits, idle } = usage;
  const figures = (row) => [
    gpuHours(row.gpu_seconds),
    percent(row.used_gpu_seconds, row.gpu_seconds),
    (row.byte_seconds / GIB_HOUR).toFixed(2),
    gpuHours(row.unknown_gpu_seconds),
    row.cost === null ? "-" : row.cost.toFixed(2),
  ];
  const sums = ["GPU hours", "Used", "GiB hours", "Not known", "Cost"];
  return html`
    ${usage.known < usage.until &&
    html`
      <p class="bad">
        The operator has recorded nothing for ${seconds(usage.until - usage.known)}: what follows ends then.
      </p>
    `}
    ${usage.unreadable > 0 &&
    html`<p class="bad">${usage.unreadable} parts of the record cannot be read: see the operator's log.</p>`}
    <p>
      Held: ${gpuHours(total.gpu_seconds)} GPU hours. While a program had a session:${" "}
      ${gpuHours(total.used_gpu_seconds)} (${percent(total.used_gpu_seconds, total.gpu_seconds)}).${" "}
      ${total.cost !== null && `Cost: ${total.cost.toFixed(2)}.`}
    </p>
    <${Bars} bars=${usage.bars} range=${range} />
    <${Table} title="Sums" head=${[BY[by], ...sums]} rows=${rows.map((row) => [row.name || "-", ...figures(row)])} />
    ${more > 0 && html`<p>And ${more} more, which hold less: <code>remotegpu usage --by ${by}</code> has all.</p>`}
    <${Table} title="Waiting times"
      head=${["Pool", "Claims that got a share", "Half waited up to", "Nine of ten up to"]}
      rows=${waits.map((each) => [each.pool, each.claims, seconds(each.median_seconds), seconds(each.most_seconds)])} />
    <p class="small">
      From when a claim was made until it first had a share, of those made in this time. ${waiting(state, now)}
    </p>
    <${Table} title="Held and not used" head=${["Claim", "Pool", "GPUs", "No session for"]}
      rows=${idle.map((each) => [
        html`<a href=${`#/claims/${each.namespace}/${each.claim}`}>${each.namespace}/${each.claim}</a>`,
        each.pool, each.gpus, seconds(each.idle_seconds),
      ])} />
  `;
}

function waiting(state, now) {
  const since = Object.values(state.claims).filter((claim) => claim.position).map((claim) => Date.parse(claim.created));
  if (!since.length) return "None waits now.";
  const longest = seconds(Math.floor((now - Math.min(...since)) / 1000));
  return `${since.length} ${since.length === 1 ? "waits" : "wait"} now, the longest for ${longest}.`;
}

// Each bar is what was held, and its filled part what was used of that.
function Bars({ bars, range }) {
  const most = Math.max(...bars.map((bar) => bar.held), 1);
  const name = (bar) => time(bar.start, range);
  const text = (bar) => `${name(bar)}: ${gpuHours(bar.held)} GPU hours held, ${gpuHours(bar.used)} used`;
  return html`
    <figure>
      <svg class="history" viewBox=${`0 0 ${bars.length} 1`} preserveAspectRatio="none" role="img"
        aria-label=${`GPU hours held and used, ${RANGES[range]}; at most ${gpuHours(most)} in a bar`}>
        ${bars.map(
          (bar, index) => html`
            <g key=${bar.start}>
              <title>${text(bar)}</title>
              ${["held", "used"].map((kind) => {
                const height = bar[kind] / most;
                return html`<rect class=${kind} x=${index + 0.1} width="0.8" y=${1 - height} height=${height} />`;
              })}
            </g>
          `,
        )}
      </svg>
      <figcaption class="small">
        <span>${name(bars[0])}</span>
        <span>
          <span class="key held"></span> held <span class="key used"></span> used; the highest bar is${" "}
          ${gpuHours(most)} GPU hours
        </span>
        <span>now</span>
      </figcaption>
    </figure>
    <details>
      <summary>The bars as a table</summary>
      <${Table} title="History" head=${["From", "GPU hours", "Used"]}
        rows=${bars.map((bar) => [name(bar), gpuHours(bar.held), gpuHours(bar.used)])} />
    </details>
  `;
}

function time(start, range) {
  const short = range === "hour" || range === "day";
  const form = short ? { hour: "2-digit", minute: "2-digit" } : { month: "short", day: "numeric", hour: "2-digit" };
  return new Date(start * 1000).toLocaleString(undefined, form);
}
