// The server's API as the pages use it: whole answers, and event streams as async generators.

export class ApiFailure extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export class Api {
  /** `key` gives the API key, or an empty string. */
  constructor(key) {
    this.key = key;
  }

  /** { state, message, model } whatever the server's condition; throws only if it cannot be reached. Needs no key. */
  async health() {
    const response = await fetch("/health", { cache: "no-store", signal: AbortSignal.timeout(8000) });
    const body = await response.json();
    if (response.ok) return { state: "ready", message: "", model: body.model };
    return { state: body.error?.state || "failed", message: body.error?.message || response.statusText };
  }

  /** What does not change while the server runs. */
  async about() {
    return (await this.#send("GET", "/v1/about")).json();
  }

  /** load, unload or restart. */
  async order(name) {
    return (await this.#send("POST", `/v1/engine/${name}`)).json();
  }

  /** Status events until the connection ends. */
  async* feed(signal) {
    yield* this.#events(await this.#send("GET", "/v1/status/feed", { signal }));
  }

  /** The events of one streamed reply. Aborting the signal closes the connection, which stops the engine. */
  async* chat(body, signal) {
    const response = await this.#send("POST", "/v1/chat/completions", { body, signal });
    for await (const event of this.#events(response)) {
      if (event === null) return;
      if (event.error) throw new ApiFailure(event.error.message, response.status);
      yield event;
    }
    throw new TypeError("the stream ended early");
  }

  async #send(method, path, { body, signal } = {}) {
    const headers = {};
    if (body) headers["Content-Type"] = "application/json";
    if (this.key()) headers.Authorization = `Bearer ${this.key()}`;
    const response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal, cache: "no-store" });
    if (response.ok) return response;
    const failure = await response.json().catch(() => null);
    throw new ApiFailure(failure?.error?.message || `the server answered ${response.status}`, response.status);
  }

  /** Decoded `data:` fields; null stands for [DONE]. Comments keep the connection alive and are skipped. */
  async* #events(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let held = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      held += value;
      const events = held.split("\n\n");
      held = events.pop();
      for (const event of events) {
        const line = event.split("\n").find((part) => part.startsWith("data: "));
        if (line) yield line === "data: [DONE]" ? null : JSON.parse(line.slice(6));
      }
    }
  }
}
