// The chat: history, requests, the reply that is being written. Talks to the same API as every other client.

import { ApiFailure } from "/ui/api.js";
import { $ } from "/ui/dom.js";
import { number, rate } from "/ui/format.js";
import { AssistantTurn, UserTurn } from "/ui/turn.js";

const SENT = ["role", "content", "reasoning_content", "tool_calls", "tool_call_id"]; // of what we keep of a message

// The rate over the last two seconds: a mean since the first token starts with absurd figures.
class Meter {
  #times = [];

  tick(now) {
    this.#times.push(now);
    while (this.#times[0] < now - 2000) this.#times.shift();
  }

  rate(now) {
    const span = (now - this.#times[0]) / 1000;
    return this.#times.length > 2 && span >= 0.25 ? (this.#times.length - 1) / span : null;
  }
}

/** What a reply has said so far, from the deltas of a stream. */
class Reply {
  content = "";
  reasoning = "";
  calls = [];
  timings = null;
  usage = null;
  finish = null;

  take(event) {
    const choice = event.choices?.[0];
    const delta = choice?.delta ?? {};
    this.reasoning += delta.reasoning_content ?? "";
    this.content += delta.content ?? "";
    for (const part of delta.tool_calls ?? []) this.#takeCall(part);
    this.finish = choice?.finish_reason ?? this.finish;
    this.timings = event.timings ?? this.timings;
    this.usage = event.usage ?? this.usage;
    return Boolean(delta.content || delta.reasoning_content || delta.tool_calls);
  }

  #takeCall({ index, id, function: part = {} }) {
    const call = this.calls[index] ??= { id: "", type: "function", function: { name: "", arguments: "" } };
    call.id ||= id ?? "";
    call.function.name += part.name ?? "";
    call.function.arguments += part.arguments ?? "";
  }

  message(figures) {
    const message = { role: "assistant", content: this.content, figures };
    if (this.reasoning) message.reasoning_content = this.reasoning;
    if (this.calls.length) message.tool_calls = this.calls;
    return message;
  }

  figures(stopped) {
    return {
      tokensPerSecond: this.timings?.predicted_per_second,
      generated: this.usage?.completion_tokens,
      promptTokens: this.usage?.prompt_tokens,
      cachedTokens: this.usage?.prompt_tokens_details?.cached_tokens,
      finish: this.finish,
      stopped,
    };
  }
}

export class Chat extends EventTarget {
  #running = null; // AbortController of the reply that is being written
  #following = true;
  #messages = [];
  #turns = []; // { turn, at }: its place in #messages

  constructor({ api, feed, settings, conversations }) {
    super();
    Object.assign(this, { api, feed, settings, conversations });
    this.id = conversations.create();
    $("scroller").addEventListener("scroll", () => this.#noteScroll(), { passive: true });
    const observer = new ResizeObserver(() => this.#follow());
    for (const id of ["scroller", "turns"]) observer.observe($(id));
  }

  get running() {
    return this.#running !== null;
  }

  /** Show a conversation of the store, or an empty one. */
  open(id = this.conversations.create()) {
    this.stop();
    this.id = id;
    this.#messages = this.conversations.messages(id);
    this.#redraw();
    this.#following = true;
    this.#follow();
    this.#changed();
  }

  stop() {
    this.#running?.abort();
  }

  send(content) {
    if (this.running) return;
    this.#push({ role: "user", content });
    this.#answer();
  }

  #push(message) {
    this.#messages.push(message);
    this.#draw(message, this.#messages.length - 1);
    this.conversations.save(this.id, this.#messages);
    this.#following = true;
    this.#follow();
  }

  /** Everything from a place on is forgotten. */
  #cut(at) {
    this.#messages.length = at;
    while (this.#turns.length && this.#turns.at(-1).at >= at) this.#turns.pop().turn.element.remove();
  }

  #redraw() {
    this.#turns = [];
    $("turns").replaceChildren();
    this.#messages.forEach((message, at) => this.#draw(message, at));
    $("welcome").hidden = this.#messages.length > 0;
  }

  #draw(message, at) {
    $("welcome").hidden = true;
    if (message.role === "user") {
      this.#add(new UserTurn(message.content, { resend: (text) => this.#resend(at, text) }), at);
    } else if (message.role === "assistant") {
      const turn = this.#add(this.#assistantTurn(at), at);
      turn.showReply({ content: message.content, reasoning: message.reasoning_content, calls: message.tool_calls ?? [] });
      turn.showFigures(message.figures);
      turn.finish();
      const results = this.#messages.slice(at + 1).filter((other) => other.role === "tool").map((other) => other.content);
      if (message.tool_calls && at + 1 < this.#messages.length) turn.showResults(results.slice(0, message.tool_calls.length));
      else if (message.tool_calls) turn.askForResults(message.tool_calls);
    }
  }

  #assistantTurn(at) {
    return new AssistantTurn({
      retry: () => this.#retry(at),
      answerCalls: (results) => this.#answerCalls(at, results),
    });
  }

  #add(turn, at) {
    this.#turns.push({ turn, at });
    $("turns").append(turn.element);
    return turn;
  }

  #resend(at, text) {
    if (this.running) return;
    this.#cut(at);
    this.send(text);
  }

  #retry(at) {
    if (this.running) return;
    this.#cut(at);
    this.#answer();
  }

  #answerCalls(at, results) {
    if (this.running) return;
    const calls = this.#messages[at].tool_calls;
    calls.forEach((call, index) => this.#messages.push({ role: "tool", tool_call_id: call.id, content: results[index] }));
    this.conversations.save(this.id, this.#messages);
    this.#redraw();
    this.#answer();
  }

  async #answer() {
    const [id, messages, at] = [this.id, this.#messages, this.#messages.length];
    const turn = this.#add(this.#assistantTurn(at), at);
    const reply = new Reply();
    const meter = new Meter();
    const started = performance.now();
    let [painting, begun, failed, stopped] = [false, false, false, false];
    let thought = null; // seconds

    const paint = () => {
      painting = false;
      turn.showReply(reply, reply.reasoning ? thought : undefined);
      const now = meter.rate(performance.now());
      if (now !== null && this.running) {
        turn.figures.textContent = `${rate(now)} tokens/s`;
        turn.show(false);
      }
      this.#follow();
    };
    const showWaiting = () => turn.showWaiting(begun ? null : this.#waitingState());

    turn.writing = true;
    const controller = this.#running = new AbortController();
    this.feed.addEventListener("change", showWaiting);
    showWaiting();
    this.#changed();
    try {
      const history = messages.map((message) => Object.fromEntries(SENT.filter((name) => name in message).map((name) => [name, message[name]])));
      for await (const event of this.api.chat(this.settings.request(history), controller.signal)) {
        if (reply.take(event)) {
          meter.tick(performance.now());
          begun = true;
          turn.showWaiting(null);
        }
        if (thought === null && (reply.content || reply.calls.length)) thought = (performance.now() - started) / 1000;
        if (!painting) {
          painting = true;
          requestAnimationFrame(paint);
        }
      }
    } catch (error) {
      stopped = error.name === "AbortError";
      failed = !stopped;
      if (failed) this.#fail(turn, error);
    }
    this.feed.removeEventListener("change", showWaiting);
    if (this.#running === controller) this.#running = null;
    thought ??= (performance.now() - started) / 1000;
    const figures = reply.figures(stopped);
    paint();
    turn.showFigures(figures);
    turn.finish();
    if (reply.content || reply.calls.length) {
      messages.push(reply.message(figures));
      this.conversations.save(id, messages);
      if (reply.calls.length && !stopped && !failed) turn.askForResults(reply.calls);
    }
    this.#follow();
    this.#changed();
  }

  #fail(turn, error) {
    const known = error instanceof ApiFailure;
    turn.showFailure(known || error instanceof SyntaxError ? error.message : "The connection broke off. The server may have stopped.");
    if (known && error.status === 401) this.dispatchEvent(new Event("locked"));
  }

  /** What the feed tells while there is no word yet. */
  #waitingState() {
    const activity = this.feed.status?.activity;
    const waiting = this.feed.status?.queue.waiting ?? 0;
    if (["loading", "restarting"].includes(this.feed.state)) return { text: "Waiting for the engine", share: null };
    if (!activity || activity.phase === "decode") return { text: waiting ? `In the queue, ${number(waiting)} waiting` : "Waiting for the first word", share: null };
    const { prompt_done: done, prompt_tokens: total } = activity;
    if (done === null || !total) return { text: "Reading the prompt", share: null };
    return { text: `Reading the prompt, ${number(done)} of ${number(total)} tokens`, share: Math.min(done / total, 1) };
  }

  // The view follows the reply until the reader scrolls up, and again once they are back at the end.
  #follow() {
    if (this.#following) $("scroller").scrollTop = $("scroller").scrollHeight;
  }

  #noteScroll() {
    const { scrollHeight, scrollTop, clientHeight } = $("scroller");
    this.#following = scrollHeight - scrollTop - clientHeight < 80;
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}
