// The table of claims: filtered, sorted, and a hundred at a time, so that thousands do not slow the page down.

import { html, useMemo, useState } from "./vendor/htm.js";
import { age, compare, link, matches } from "./format.js";
import { Choice } from "./parts.js";

const ROWS = 100;
const COLUMNS = [
  ["id", "Claim"],
  ["pool", "Pool"],
  ["asks", "Share"],
  ["phase", "Phase"],
  ["reason", "Reason"],
  ["position", "Place in queue"],
  ["created", "Created"],
];

const COLUMNS_OF_LEASES = [
  ["id", "Lease"],
  ["asks", "Share"],
  ["phase", "State"],
  ["reason", "Reason"],
  ["message", "Program"],
  ["created", "Opened"],
];

export function Claims({ state, text, now, cluster }) {
  const [filter, setFilter] = useState({ text, phase: "", pool: "" });
  const [sort, setSort] = useState({ key: "created", descending: true });
  const [page, setPage] = useState(0);
  const all = useMemo(() => Object.entries(state.claims).map(([id, claim]) => ({ id, ...claim })), [state.claims]);
  const found = useMemo(
    () => all.filter((claim) => matches(claim, filter)).sort(compare(sort.key, sort.descending)),
    [all, filter, sort],
  );
  const last = Math.max(0, Math.ceil(found.length / ROWS) - 1);
  const shown = Math.min(page, last);
  const narrow = (change) => (setFilter({ ...filter, ...change }), setPage(0));
  const choices = (key) => {
    const names = [...new Set([...all.map((claim) => claim[key]), filter[key]])].filter(Boolean).sort();
    return { "": "all", ...Object.fromEntries(names.map((each) => [each, each])) };
  };
  const order = (key) => setSort({ key, descending: sort.key === key && !sort.descending });
  const many = cluster ? "Claims" : "Leases";
  const columns = cluster ? COLUMNS : COLUMNS_OF_LEASES;
  return html`
    <h2>${many}</h2>
    <form class="filter" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label>
        Find <input type="search" value=${filter.text} onInput=${(event) => narrow({ text: event.target.value })} />
      </label>
      ${(cluster ? ["phase", "pool"] : ["phase"]).map(
        (key) => html`
          <${Choice} key=${key} label=${columns.find(([each]) => each === key)[1]} value=${filter[key]}
            of=${choices(key)} onChoice=${(chosen) => narrow({ [key]: chosen })} />
        `,
      )}
    </form>
    <p>${found.length} of ${all.length} ${many.toLowerCase()}</p>
    <div class="wide" role="region" aria-label=${many} tabindex="0">
      <table>
        <thead>
          <tr>
            ${columns.map(([key, title]) => {
              const by = sort.key === key ? sort : null;
              return html`<${Head} key=${key} title=${title} sort=${by} onSort=${() => order(key)} />`;
            })}
          </tr>
        </thead>
        <tbody>
          ${found
            .slice(shown * ROWS, (shown + 1) * ROWS)
            .map((claim) => html`<${Row} key=${claim.id} ...${{ claim, now, columns }} />`)}
        </tbody>
      </table>
    </div>
    ${last > 0 &&
    html`
      <nav class="pages" aria-label="Pages of the table">
        <button type="button" disabled=${shown === 0} onClick=${() => setPage(shown - 1)}>Previous</button>
        <span>Page ${shown + 1} of ${last + 1}</span>
        <button type="button" disabled=${shown === last} onClick=${() => setPage(shown + 1)}>Next</button>
      </nav>
    `}
  `;
}

function Head({ title, sort, onSort }) {
  const direction = sort ? (sort.descending ? "descending" : "ascending") : undefined;
  return html`
    <th scope="col" aria-sort=${direction}>
      <button type="button" onClick=${onSort}>
        ${title}<span aria-hidden="true">${sort ? (sort.descending ? " ▾" : " ▴") : ""}</span>
      </button>
    </th>
  `;
}

function Row({ claim, now, columns }) {
  const cells = {
    phase: () => html`<td><span class=${`phase ${claim.phase}`}>${claim.phase}</span></td>`,
    position: () => html`<td class="number">${claim.position || ""}</td>`,
    created: () => html`<td class="number">${age(claim.created, now)} ago</td>`,
  };
  return html`
    <tr>
      <th scope="row"><a href=${link(claim.id)}>${claim.id}</a></th>
      ${columns.slice(1).map(([key]) => cells[key]?.() ?? html`<td>${claim[key]}</td>`)}
    </tr>
  `;
}
