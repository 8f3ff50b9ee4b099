// The list of conversations: open one, begin one, forget one.

import { $, confirmed, make } from "/ui/dom.js";

const DAY_MS = 86400000;

function dayOf(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (time >= midnight) return "Today";
  if (time >= midnight - DAY_MS) return "Yesterday";
  if (time >= midnight - 7 * DAY_MS) return "Last seven days";
  return "Earlier";
}

export class Sidebar {
  #conversations;
  #chat;

  /** `close` puts the list away where it covers the chat. */
  constructor({ conversations, chat, close }) {
    this.#conversations = conversations;
    this.#chat = chat;
    this.close = close;
    conversations.addEventListener("change", () => this.draw());
    chat.addEventListener("change", () => this.draw());
    this.draw();
  }

  draw() {
    const list = this.#conversations.list();
    const items = [];
    let day = "";
    for (const entry of list) {
      if (dayOf(entry.updated) !== day) {
        day = dayOf(entry.updated);
        items.push(make("li", { class: "day" }, day));
      }
      items.push(this.#item(entry));
    }
    $("conversations").replaceChildren(...(items.length ? items : [make("li", { class: "day" }, "Conversations are kept in this browser.")]));
  }

  #item({ id, title }) {
    const current = id === this.#chat.id;
    return make("li", { class: current ? "conversation current" : "conversation" },
      make("button", { class: "open", type: "button", "aria-current": current ? "true" : null, title, onclick: () => { this.#chat.open(id); this.close(); } }, title),
      make("button", { class: "forget", type: "button", "aria-label": `Delete ${title}`, onclick: () => this.#forget(id, title) }, "×"));
  }

  async #forget(id, title) {
    if (!await confirmed({ title: "Delete this conversation?", text: `“${title}” is kept only in this browser and cannot be brought back.`, action: "Delete" })) return;
    this.#conversations.remove(id);
    if (id === this.#chat.id) this.#chat.open();
  }
}
