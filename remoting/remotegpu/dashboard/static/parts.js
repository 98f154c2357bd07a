// What several pages are made of.

import { html, useEffect, useState } from "./vendor/htm.js";
import { get } from "./stream.js";

// `of`: by value, what is shown for it.
export function Choice({ label, value, of, onChoice }) {
  return html`
    <label>
      ${label}${" "}
      <select value=${value} onChange=${(event) => onChoice(event.target.value)}>
        ${Object.entries(of).map(([each, shown]) => html`<option key=${each} value=${each}>${shown}</option>`)}
      </select>
    </label>
  `;
}

export function Table({ title, head, rows }) {
  const name = title.toLowerCase().replaceAll(" ", "-");
  return html`
    <h3 id=${name}>${title}</h3>
    ${rows.length === 0
      ? html`<p>None</p>`
      : html`
          <div class="wide" role="region" aria-labelledby=${name} tabindex="0">
            <table aria-labelledby=${name}>
              <thead><tr>${head.map((each) => html`<th key=${each} scope="col">${each}</th>`)}</tr></thead>
              <tbody>
                ${rows.map((row, index) => html`<tr key=${index}>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`)}
              </tbody>
            </table>
          </div>
        `}
  `;
}

// What `path` answers, asked again when `state` has changed; empty: not at all.
export function useFetched(path, state, token, otherwise) {
  const [found, setFound] = useState(otherwise);
  useEffect(() => {
    if (!state) return undefined;
    const ending = new AbortController();
    get(path, token, ending.signal)
      .then((response) => response.json())
      .then(setFound)
      .catch((error) => ending.signal.aborted || setFound(otherwise && { ...otherwise, problem: error.message }));
    return () => ending.abort();
  }, [path, state]);
  return found;
}
