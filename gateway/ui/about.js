// The About page: addresses to paste into clients, the model and its card, the settings in force.

import { $, copy, make } from "/ui/dom.js";
import { UNKNOWN, mebibytes, sentence } from "/ui/format.js";
import { renderText } from "/ui/text.js";

const origin = location.origin;
const ADDRESSES = [
  ["OpenAI clients", `${origin}/v1`, "Base URL; any text does as the key unless the server has one"],
  ["Anthropic clients", origin, "ANTHROPIC_BASE_URL"],
  ["llama.cpp clients", origin, "Server address"],
  ["Prometheus", `${origin}/metrics`, "Scrape target"],
  ["Status", `${origin}/v1/status`, "JSON; /v1/status/feed streams it"],
];

export class About {
  #api;
  #feed;
  #shown = false;

  constructor({ api, feed }) {
    this.#api = api;
    this.#feed = feed;
    $("addresses").append(...ADDRESSES.map(([name, address, note]) => {
      const button = make("button", { class: "quiet", type: "button", "aria-label": `Copy the address for ${name}`, onclick: () => copy(button, address) }, "Copy");
      return make("li", {}, make("span", { class: "address-name" }, name), make("code", {}, address), button, make("span", { class: "note" }, note));
    }));
    feed.addEventListener("change", () => this.draw());
  }

  /** Ask once, when the page is first seen and the server answers. */
  async draw() {
    if ($("about").hidden || this.#shown || this.#feed.state === "offline") return;
    this.#shown = true;
    try {
      this.#fill(await this.#api.about());
      $("about-problem").hidden = true;
    } catch (error) {
      $("about-problem").textContent = sentence(error.message);
      $("about-problem").hidden = false;
      this.#shown = error.status === 401 && this.#feed.locked;
    }
  }

  /** The key has changed, or the engine has. */
  refresh() {
    this.#shown = false;
    this.draw();
  }

  #fill({ version, model, settings, engine_info: info }) {
    rows($("about-facts"), {
      Model: model.name,
      File: model.file,
      Size: model.file_bytes === null ? null : mebibytes(model.file_bytes / 2 ** 20),
      Family: model.family,
      Version: version,
    });
    rows($("about-settings"), settings);
    rows($("about-engine"), info ?? {});
    $("about-engine-box").hidden = info === null;
    $("card-box").hidden = !model.card;
    if (model.card) renderText($("card"), model.card);
  }
}

function rows(table, values) {
  const text = (value) => (Array.isArray(value) ? value.join(" ") || "none" : String(value));
  table.replaceChildren(...Object.entries(values).map(([name, value]) => make("tr", {},
    make("th", { scope: "row" }, name),
    value === null || value === undefined ? make("td", { class: "unknown" }, table.id === "about-settings" ? "not set" : UNKNOWN) : make("td", {}, text(value)))));
}
