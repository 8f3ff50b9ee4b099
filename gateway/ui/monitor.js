// The Monitor page: what the engine is doing and how it is doing, all of it from the live feed.

import { $, confirmed, make, setText } from "/ui/dom.js";
import { UNKNOWN, clock, duration, isKnown, mebibytes, number, percent, rate, sentence } from "/ui/format.js";
import { Plot } from "/ui/plot.js";
import { RequestTable } from "/ui/requests.js";

const STATES = {
  ready: "Ready", loading: "Loading the model", restarting: "Restarting", failed: "Not available", unloaded: "Stopped",
  stopped: "Server is stopping", offline: "Not reachable", connecting: "Connecting",
};

// title, unit, figure of a sample, top of the scale, how a figure is written
const gpuLoad = (sample) => (sample.gpu_load?.some(isKnown) ? Math.max(...sample.gpu_load.filter(isKnown)) : null);
const PLOTS = [
  ["Generating", "tokens/s", (sample) => sample.tokens_per_s, null, rate],
  ["Reading prompts", "tokens/s", (sample) => sample.prompt_tokens_per_s, null, rate],
  ["Processor", "", (sample) => sample.cpu, 1, percent],
  ["Graphics card", "", gpuLoad, 1, percent],
  ["Drafts accepted", "", (sample) => sample.accepted_rate, 1, percent],
  ["Experts found in VRAM", "", (sample) => sample.hit_rate, 1, percent],
];

const DATED = /^\d{4}-\d\d-\d\d/; // the line says itself when it was written

const ORDERS = {
  load: null,
  unload: {
    title: "Stop the engine?", action: "Stop", done: "stopped",
    text: "Its memory is given back. A reply that is being written ends with an error, and nothing is answered until the engine is started again.",
  },
  restart: {
    title: "Restart the engine?", action: "Restart", done: "restarted",
    text: "A reply that is being written ends with an error. Requests that wait are answered by the new engine.",
  },
};

export class Monitor {
  #feed;
  #api;
  #plots;
  #table = new RequestTable($("requests"));
  #lastLine = 0;

  constructor({ feed, api }) {
    this.#feed = feed;
    this.#api = api;
    this.#plots = PLOTS.map((plot) => this.#addPlot(plot));
    for (const name of Object.keys(ORDERS)) $(`order-${name}`).addEventListener("click", () => this.#order(name));
    feed.addEventListener("change", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Show what the feed has, if the page can be seen. */
  draw() {
    if ($("monitor").hidden) return;
    const { status, state, message, locked } = this.#feed;
    $("monitor-locked").hidden = !locked;
    $("monitor").classList.toggle("stale", status === null);
    this.#drawEngine(status, state, message);
    this.#drawNow(status);
    const end = this.#feed.samples.at(-1)?.unix_s ?? Date.now() / 1000;
    for (const plot of this.#plots) plot(this.#feed.samples, end);
    this.#drawBars(status);
    this.#table.show(this.#feed.requests);
    this.#drawLog();
  }

  #addPlot([title, unit, figure, top, label]) {
    const value = make("span", { class: "plot-value" });
    const canvas = make("canvas", { class: "plot", role: "img" });
    const card = make("section", { class: "card" }, make("div", { class: "plot-head" }, make("h3", {}, title), value), canvas);
    $("plots").append(card);
    const words = (given) => (given === null ? UNKNOWN : `${label(given)}${unit && ` ${unit}`}`);
    let current = null;
    const plot = new Plot(canvas, {
      top, label,
      onpoint: (point) => {
        setText(value, point ? `${words(point.value)}, ${Math.round(point.secondsAgo)} s ago` : words(current));
        value.classList.toggle("unknown", !point && current === null);
      },
    });
    return (samples, end) => {
      // Rates of what is rare are not known in most moments: the last known one of the last minute is shown.
      current = samples.findLast((sample) => figure(sample) !== null && end - sample.unix_s < (top === 1 ? 60 : 2));
      current = current ? figure(current) : null;
      card.classList.toggle("empty", !samples.some((sample) => figure(sample) !== null));
      canvas.setAttribute("aria-label", `${title}: ${words(current)} now`);
      plot.show(samples.map((sample) => [sample.unix_s, figure(sample)]), end);
    };
  }

  #drawEngine(status, state, message) {
    $("engine-state").dataset.state = state;
    setText($("engine-state-text"), STATES[state] ?? state);
    const engine = status?.engine;
    const bad = state === "failed" || state === "restarting";
    setText($("engine-reason"), bad ? sentence(message) : "");
    const info = engine?.info ?? {};
    const now = status?.time_unix_s;
    facts($("engine-facts"), [
      ["Model", status?.model.name],
      ["Context", isKnown(status?.model.context) ? `${number(status.model.context)} tokens` : null],
      ["Backend", [info.backend, info.isa].filter(Boolean).join(", ") || null],
      [state === "ready" ? "Ready for" : "For", engine ? duration(now - engine.since_unix_s) : null],
      ["Restarts", engine ? number(engine.restarts) : null],
      ["Process", engine?.pid ?? null],
    ]);
    $("last-error").hidden = !engine?.last_error;
    if (engine?.last_error) setText($("last-error"), `Last error at ${clock(engine.last_error.unix_s)}: ${engine.last_error.message}`);
    $("order-load").hidden = state !== "unloaded" && state !== "failed";
    $("order-unload").hidden = !["ready", "loading", "restarting"].includes(state);
    $("order-restart").hidden = !["ready", "loading", "restarting"].includes(state);
  }

  #drawNow(status) {
    const activity = status?.activity;
    const reading = activity?.phase === "prompt";
    const share = reading && activity.prompt_tokens ? (activity.prompt_done ?? 0) / activity.prompt_tokens : 0;
    setText($("now-text"), status === null ? UNKNOWN : !activity ? "Idle" : reading ? "Reading a prompt" : "Writing a reply");
    $("now-bar").style.width = `${activity ? (reading ? share * 100 : 100) : 0}%`;
    $("now-bar").classList.toggle("moving", Boolean(activity) && !reading);
    $("now-progress").setAttribute("aria-valuenow", String(Math.round(share * 100)));
    const waiting = ["In the queue", status ? `${number(status.queue.waiting)} of at most ${number(status.queue.limit)}` : null];
    const last = this.#feed.requests.at(-1);
    setText($("now-caption"), !activity && last ? `The last request came at ${clock(last.began_unix_s)}` : "");
    if (!activity && !last) return facts($("now-facts"), [waiting]);
    const shown = activity ?? last;
    const speed = reading ? shown.prompt_tokens_per_s : shown.tokens_per_s;
    facts($("now-facts"), [
      ["Prompt", activity && reading ? `${number(shown.prompt_done ?? 0)} of ${number(shown.prompt_tokens)} tokens` : `${number(shown.prompt_tokens)} tokens`],
      ["From the cache", isKnown(shown.reused) ? `${number(shown.reused)} tokens` : null],
      ["Written", `${number(shown.generated)} tokens`],
      ["Speed", isKnown(speed) ? `${rate(speed)} tokens/s` : null],
      ["Time", duration(shown.total_s)],
      waiting,
    ]);
  }

  #drawBars(status) {
    const machine = status?.machine;
    const totals = status?.totals;
    const bars = [];
    if (machine) {
      const [engine, own] = [machine.engine_rss_mib ?? 0, machine.gateway_rss_mib];
      const others = Math.max(machine.ram_used_mib - engine - own, 0);
      bars.push(["RAM", machine.ram_total_mib, [["Engine", engine], ["Gateway", own], ["Others", others]], mebibytes]);
      for (const gpu of machine.gpus ?? []) {
        const held = gpu.engine_mib ?? 0;
        bars.push([gpu.name, gpu.memory_total_mib, [["Engine", held], ["Others", gpu.memory_used_mib - held]], mebibytes, gpuDetails(gpu)]);
      }
    }
    if (!machine?.gpus?.length) bars.push(["Graphics card memory", null, []]);
    if (totals) {
      const away = Math.max(totals.lookups - totals.hits - totals.ram_blobs - totals.file_blobs, 0);
      const tiers = [["VRAM", totals.hits], ["RAM", totals.ram_blobs], ["File", totals.file_blobs], ["Processor", away]];
      const read = totals.file_mb ? `${number(totals.file_mb)} MB read from the file` : "";
      bars.push(["Experts, by where they were", tiers.reduce((sum, tier) => sum + tier[1], 0) || null, tiers, number, read]);
      bars.push(["Drafts", totals.offered || null, [["Accepted", totals.accepted]], number, "Refused"]);
      bars.push(["Prompt tokens", totals.prompt_queries || null, [["From the cache", totals.reused]], number, "Read"]);
    }
    $("bars").replaceChildren(...bars.map(drawBar));
  }

  #drawLog() {
    const box = $("engine-log");
    const fresh = this.#feed.log.filter((line) => line.number > this.#lastLine);
    if (!fresh.length && (this.#feed.log.length || !box.childElementCount)) return;
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    if (this.#feed.log.at(-1)?.number < this.#lastLine) box.replaceChildren();
    this.#lastLine = this.#feed.log.at(-1)?.number ?? 0;
    box.append(...fresh.map((line) => make("div", {}, DATED.test(line.text) ? null : make("time", {}, clock(line.unix_s)), line.text)));
    while (box.childElementCount > 400) box.firstElementChild.remove();
    if (atEnd) box.scrollTop = box.scrollHeight;
  }

  async #order(name) {
    if (ORDERS[name] && !await confirmed(ORDERS[name])) return;
    const notice = $("order-notice");
    notice.hidden = true;
    for (const other of Object.keys(ORDERS)) $(`order-${other}`).disabled = true;
    try {
      await this.#api.order(name);
    } catch (error) {
      notice.textContent = sentence(error.message);
      notice.hidden = false;
    }
    for (const other of Object.keys(ORDERS)) $(`order-${other}`).disabled = false;
  }
}

function gpuDetails({ load, temperature_c: temperature, power_w: power }) {
  const parts = [isKnown(load) && `${percent(load)} busy`, isKnown(temperature) && `${temperature} °C`, isKnown(power) && `${Math.round(power)} W`];
  return parts.filter(Boolean).join(", ");
}

/** Rows of a definition list; what is null is said to be unknown. */
function facts(list, rows) {
  if (list.childElementCount !== rows.length) {
    list.replaceChildren(...rows.map(() => make("div", {}, make("dt"), make("dd"))));
  }
  rows.forEach(([name, value], index) => {
    const [term, description] = list.children[index].children;
    setText(term, name);
    setText(description, value === null || value === undefined ? UNKNOWN : String(value));
    description.classList.toggle("unknown", value === null || value === undefined);
  });
}

/** A stacked bar with its legend. `rest` says what the unfilled part is, or more about it. */
function drawBar([title, total, parts, label, rest = ""]) {
  if (total === null) {
    return make("div", { class: "stack" }, make("div", { class: "stack-head" }, make("h3", {}, title), make("span", { class: "unknown" }, UNKNOWN)),
      make("div", { class: "stack-bar none" }));
  }
  const filled = parts.reduce((sum, part) => sum + part[1], 0);
  const segments = parts.map(([, value], index) => {
    const segment = make("span", { class: `segment s${index}` });
    segment.style.width = `${(value / total) * 100}%`;
    return segment;
  });
  const legend = parts.map(([name, value], index) => make("li", { class: `s${index}` }, `${name} ${label(value)}`));
  const restName = rest === "Read" || rest === "Refused";
  if (restName) legend.push(make("li", { class: "rest" }, `${rest} ${label(total - filled)}`));
  return make("div", { class: "stack" },
    make("div", { class: "stack-head" }, make("h3", {}, title), make("span", {}, restName ? percent(filled / total) : `${label(filled)}${label === number ? "" : ` of ${label(total)}`}`)),
    make("div", { class: "stack-bar" }, segments),
    make("ul", { class: "legend" }, legend, rest && !restName ? make("li", { class: "more" }, rest) : null));
}
