// The conversations of this browser. They are kept in its storage and nowhere else.

import { store, stored } from "/ui/dom.js";

const INDEX = "terrace.chats";
const KEPT = 100;
const TITLE_CHARS = 60;

const nameOf = (id) => `terrace.chat.${id}`;

export class Conversations extends EventTarget {
  #index = stored(INDEX, []).filter((entry) => typeof entry?.id === "string");
  #unstored = new Map(); // what the browser would not keep lasts as long as the page

  /** { id, title, updated } of each, the newest first. */
  list() {
    return [...this.#index].sort((a, b) => b.updated - a.updated);
  }

  /** The messages of one; an empty list if it is not there. */
  messages(id) {
    const messages = this.#unstored.get(id) ?? stored(nameOf(id), []);
    return Array.isArray(messages) ? messages : [];
  }

  /** A new one's id. It is listed once it has a message. */
  create() {
    return Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
  }

  save(id, messages) {
    if (!messages.length) return this.remove(id);
    const first = messages.find((message) => message.role === "user")?.content ?? "";
    const title = first.trim().split("\n", 1)[0].slice(0, TITLE_CHARS) || "Untitled";
    this.#index = [{ id, title, updated: Date.now() }, ...this.list().filter((entry) => entry.id !== id)];
    for (const old of this.#index.splice(KEPT)) store(nameOf(old.id), null);
    // A full storage loses its oldest conversation rather than the newest.
    while (!store(nameOf(id), messages)) {
      const oldest = this.#index.length > 1 ? this.#index.pop() : null;
      if (!oldest) {
        this.#unstored.set(id, messages);
        break;
      }
      store(nameOf(oldest.id), null);
    }
    this.#changed();
  }

  remove(id) {
    this.#index = this.#index.filter((entry) => entry.id !== id);
    this.#unstored.delete(id);
    store(nameOf(id), null);
    this.#changed();
  }

  #changed() {
    store(INDEX, this.#index);
    this.dispatchEvent(new Event("change"));
  }
}
