// One connection to the server's live feed for all pages: keeps what came, says "change" to who listens, reconnects.

import { ApiFailure } from "/ui/api.js";

const SAMPLES = 600; // five minutes
const REQUESTS = 100;
const LINES = 400;

export class Feed extends EventTarget {
  #api;
  #wake = null;
  #connection = null;

  constructor(api) {
    super();
    this.#api = api;
    this.state = "connecting"; // the engine's state; or connecting, offline, locked
    this.message = "";
    this.status = null;
    this.samples = [];
    this.requests = [];
    this.log = [];
  }

  /** The model's name, as far as the server tells it. */
  get model() {
    return this.status?.model.name ?? this.fallbackModel ?? "";
  }

  /** Connect, and stay connected. */
  async run() {
    for (let wait = 500; ; wait = Math.min(wait * 2, 5000)) {
      try {
        this.#connection = new AbortController();
        for await (const event of this.#api.feed(this.#connection.signal)) {
          if (event === null) break;
          this.#take(event);
          wait = 500;
        }
        await this.#lost();
      } catch (error) {
        await this.#lost(error);
      }
      await new Promise((resolve) => {
        this.#wake = resolve;
        setTimeout(resolve, wait);
      });
    }
  }

  /** Try again at once, with another key for example. */
  reconnect() {
    this.#connection?.abort();
    this.#wake?.();
  }

  #take(event) {
    const first = this.status === null;
    this.status = event;
    this.samples = (first ? event.samples : [...this.samples, ...event.samples]).slice(-SAMPLES);
    this.requests = (first ? event.requests : [...this.requests, ...event.requests]).slice(-REQUESTS);
    this.log = (first ? event.log : [...this.log, ...event.log]).slice(-LINES);
    this.#show(event.engine.state, event.engine.reason);
  }

  /** Without the feed the health, which needs no key, still says how the engine is. */
  async #lost(error) {
    const locked = error instanceof ApiFailure && error.status === 401;
    this.status = null;
    try {
      const health = await this.#api.health();
      this.fallbackModel = health.model ?? this.fallbackModel;
      this.locked = locked;
      this.#show(health.state, health.message);
    } catch {
      this.#show("offline", "");
    }
  }

  #show(state, message) {
    if (this.status !== null) this.locked = false;
    this.state = state;
    this.message = message;
    this.dispatchEvent(new Event("change"));
  }
}
