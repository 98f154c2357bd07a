// Numbers, times and orders, without a document.

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log2(count || 1) / 10)));
  return `${Number((count / 1024 ** power).toFixed(power > 2 ? 1 : 0))} ${units[power]}`;
}

// Where the page of a claim, or of a lease, is.
export function link(id) {
  return `#/claims/${id.split("/").map(encodeURIComponent).join("/")}`;
}

export function gpus(milli) {
  return String(milli / 1000);
}

export function gpuHours(count) {
  return (count / 3600).toFixed(2);
}

// What an appliance says of a GPU or a claim.
export function load({ sessions, used, busy, age }) {
  const said = [`${sessions} ${sessions === 1 ? "session" : "sessions"}`, `${bytes(used)} in use`];
  if (busy !== null) said.push(`busy ${percent(busy, 1)}`);
  if (age > 15) said.push(`${seconds(age)} ago`);
  return said.join(", ");
}

export function percent(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)} %` : "-";
}

export function seconds(count) {
  const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => count >= size);
  if (first < 0) return "0s";
  const [[name, size], next] = [units[first], units[first + 1]];
  const rest = next ? Math.floor((count % size) / next[1]) : 0;
  return `${Math.floor(count / size)}${name}${rest ? rest + next[0] : ""}`;
}

export function age(time, now) {
  return time ? seconds(Math.max(0, Math.floor((now - Date.parse(time)) / 1000))) : "";
}

// A colour for each namespace, the same on each page.
export function hue(text) {
  let hash = 0;
  for (const letter of text) hash = (hash * 31 + letter.codePointAt(0)) >>> 0;
  return (hash * 137) % 360;
}

export function matches(claim, filter) {
  const text = filter.text.toLowerCase();
  return (
    (!filter.phase || claim.phase === filter.phase) &&
    (!filter.pool || claim.pool === filter.pool) &&
    (!text ||
      [claim.id, claim.reason, claim.gpus, ...claim.pods, ...claim.shares.map((share) => share.gpu)].some((each) =>
        each.toLowerCase().includes(text),
      ))
  );
}

// Claims that do not wait come behind those that do.
export function compare(key, descending) {
  const value = (claim) => (key === "position" ? claim.position || Infinity : claim[key]);
  return (one, other) => {
    const [a, b] = [value(one), value(other)];
    const order = a < b ? -1 : a > b ? 1 : 0;
    return (descending ? -order : order) || (one.id < other.id ? -1 : 1);
  };
}
