// The server's API as the page uses it: health, and a chat as an async stream of events.

export class ApiFailure extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** { state, message, model } whatever the server's condition; throws only if it cannot be reached. */
export async function readHealth() {
  const response = await fetch("/health", { cache: "no-store", signal: AbortSignal.timeout(8000) });
  const body = await response.json();
  if (response.ok) return { state: "ready", message: "", model: body.model };
  return { state: body.error?.state || "failed", message: body.error?.message || response.statusText };
}

/** The events of one streamed reply. Aborting the signal closes the connection, which stops the engine. */
export async function* streamChat(body, key, signal) {
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  const response = await fetch("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.ok) {
    const failure = await response.json().catch(() => null);
    throw new ApiFailure(failure?.error?.message || `the server answered ${response.status}`, response.status);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    held += value;
    const events = held.split("\n\n");
    held = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue; // a comment keeps the connection alive
      const data = event.slice(6);
      if (data === "[DONE]") return;
      const parsed = JSON.parse(data);
      if (parsed.error) throw new ApiFailure(parsed.error.message, response.status);
      yield parsed;
    }
  }
  throw new TypeError("the stream ended early");
}
