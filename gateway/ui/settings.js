// The settings drawer: sampling, system prompt, tools, key. Kept in this browser; an empty field means the model's default.

import { $, store, stored } from "/ui/dom.js";

const STORE = "terrace.settings";
// id of the field → field of the request, and how its text becomes a value
const NUMBERS = {
  "temperature": ["temperature", Number],
  "top-p": ["top_p", Number],
  "top-k": ["top_k", (text) => Math.round(Number(text))],
  "min-p": ["min_p", Number],
  "repetition": ["repetition_penalty", Number],
  "seed": ["seed", (text) => Math.round(Number(text))],
  "max-tokens": ["max_tokens", (text) => Math.round(Number(text))],
};
const SAVED = [...Object.keys(NUMBERS), "system", "thinking", "stop", "tools", "api-key"];

export class Settings extends EventTarget {
  constructor() {
    super();
    const saved = stored(STORE, {});
    for (const id of SAVED) if (typeof saved[id] === "string") $(id).value = saved[id];
    $("settings").addEventListener("submit", (event) => event.preventDefault());
    $("settings").addEventListener("change", (event) => {
      this.#save();
      if (event.target.id === "api-key") this.dispatchEvent(new Event("key"));
    });
    $("settings-reset").addEventListener("click", () => {
      for (const id of SAVED) if (id !== "api-key") $(id).value = "";
      this.#save();
    });
    this.#check();
  }

  get key() {
    return $("api-key").value.trim();
  }

  /** The request for a history; throws if the tools are not JSON. */
  request(history) {
    const system = $("system").value.trim();
    const body = {
      messages: system ? [{ role: "system", content: system }, ...history] : history,
      stream: true,
      stream_options: { include_usage: true },
    };
    for (const [id, [field, read]] of Object.entries(NUMBERS)) {
      if ($(id).value !== "" && Number.isFinite(Number($(id).value))) body[field] = read($(id).value);
    }
    if ($("thinking").value) body.reasoning_effort = $("thinking").value;
    const stops = $("stop").value.split("\n").filter((line) => line !== "");
    if (stops.length) body.stop = stops;
    const tools = this.#tools();
    if (tools.length) body.tools = tools;
    return body;
  }

  #tools() {
    const text = $("tools").value.trim();
    if (!text) return [];
    const tools = JSON.parse(text);
    const list = Array.isArray(tools) ? tools : [tools];
    return list.map((tool) => (tool.type ? tool : { type: "function", function: tool }));
  }

  #save() {
    store(STORE, Object.fromEntries(SAVED.map((id) => [id, $(id).value])));
    this.#check();
  }

  #check() {
    let problem = "";
    try {
      this.#tools();
    } catch {
      problem = "This is not JSON";
    }
    $("tools").setCustomValidity(problem);
    $("tools").toggleAttribute("aria-invalid", problem !== "");
    $("tools-problem").textContent = problem;
  }
}
