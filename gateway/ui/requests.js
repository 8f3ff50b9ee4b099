// The table of the last requests: figures only, no word of a prompt or a reply.

import { make } from "/ui/dom.js";
import { UNKNOWN, clock, duration, isKnown, number, percent, rate } from "/ui/format.js";

const SHOWN = 30;
const ENDINGS = { stop: "finished", length: "cut at the limit", cancel: "cancelled", error: "failed" };

const share = (part, whole) => (isKnown(part) && whole > 0 ? percent(part / whole) : UNKNOWN);

// heading, what it means, cell of a record
const COLUMNS = [
  ["At", "When it came", (r) => clock(r.began_unix_s)],
  ["Address", "Where it was sent", (r) => r.route],
  ["Prompt", "Tokens of the prompt", (r) => number(r.prompt_tokens)],
  ["Cached", "Part of the prompt taken from the cache", (r) => share(r.reused, r.prompt_tokens)],
  ["Read at", "Prompt tokens a second", (r) => rate(r.prompt_tokens_per_s)],
  ["Written", "Tokens of the reply", (r) => number(r.generated)],
  ["Speed", "Tokens a second of the reply", (r) => rate(r.tokens_per_s)],
  ["Drafts", "Drafted tokens accepted, of those offered", (r) => share(r.accepted, r.offered)],
  ["In VRAM", "Experts found in VRAM", (r) => share(r.hits, r.lookups)],
  ["RAM / file", "Experts read from RAM and from the file", (r) => (isKnown(r.ram_blobs) ? `${number(r.ram_blobs)} / ${number(r.file_blobs)}` : UNKNOWN)],
  ["Waited", "In the queue", (r) => duration(r.queue_s ?? r.total_s)],
  ["First word", "From arrival to the first token", (r) => duration(r.first_token_s)],
  ["Total", "From arrival to the end", (r) => duration(r.total_s)],
  ["End", "How it ended", (r) => (r.error ? `failed: ${r.error}` : ENDINGS[r.ending])],
];
const WORDS = new Set(["At", "Address", "End"]);

export class RequestTable {
  #body = make("tbody");
  #shown = null;

  constructor(box) {
    this.box = box;
    const heads = COLUMNS.map(([name, meaning]) => make("th", { scope: "col", title: meaning, class: WORDS.has(name) ? null : "figure" }, name));
    box.append(make("table", {}, make("thead", {}, make("tr", {}, heads)), this.#body));
  }

  show(records) {
    const newest = records.at(-1)?.number ?? 0;
    if (newest === this.#shown) return;
    this.#shown = newest;
    this.#body.replaceChildren(...(records.length ? records.slice(-SHOWN).reverse().map(row) : [
      make("tr", {}, make("td", { colSpan: COLUMNS.length, class: "empty" }, "No request has ended yet.")),
    ]));
  }
}

function row(record) {
  return make("tr", { class: record.ending }, COLUMNS.map(([name, , cell]) => {
    const text = cell(record);
    const kind = [WORDS.has(name) ? "" : "figure", text === UNKNOWN ? "unknown" : ""].join(" ").trim();
    return make("td", { class: kind || null }, text);
  }));
}
