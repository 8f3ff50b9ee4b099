// The chat page. Talks to the same API as every other client; text from the model only ever becomes text nodes.

import { renderText } from "/ui/text.js";
import { streamChat, readHealth, ApiFailure } from "/ui/api.js";

const $ = (id) => document.getElementById(id);
const STORE = "terrace.settings";
const SAVED = ["system", "temperature", "max-tokens", "thinking", "api-key"];

const history = []; // { role, content, reasoning_content? } as it is sent
let running = null; // AbortController of the reply that is being written
let engine = "loading";
let following = true;

// ---- settings

function loadSettings() {
  let saved = {};
  try { saved = JSON.parse(localStorage.getItem(STORE) || "{}"); } catch { /* private windows may refuse storage */ }
  for (const id of SAVED) if (typeof saved[id] === "string") $(id).value = saved[id];
}

function saveSettings() {
  try {
    localStorage.setItem(STORE, JSON.stringify(Object.fromEntries(SAVED.map((id) => [id, $(id).value]))));
  } catch { /* then they last as long as the page */ }
}

function requestBody() {
  const system = $("system").value.trim();
  const messages = system ? [{ role: "system", content: system }, ...history] : [...history];
  const body = { messages, stream: true, stream_options: { include_usage: true } };
  if ($("temperature").value !== "") body.temperature = Number($("temperature").value);
  if ($("max-tokens").value !== "") body.max_tokens = Math.round(Number($("max-tokens").value));
  if ($("thinking").value) body.reasoning_effort = $("thinking").value;
  return body;
}

// ---- engine state

const STATE_TEXT = {
  ready: "Ready", busy: "Writing", loading: "Loading model", restarting: "Restarting", failed: "Not available",
  stopped: "Stopping", offline: "Not reachable",
};

function showState(state, detail) {
  engine = state;
  const shown = running && state === "ready" ? "busy" : state;
  $("state").dataset.state = shown;
  $("state-text").textContent = STATE_TEXT[shown] || shown;
  $("state").title = detail || "";
  const notice = $("notice");
  const texts = {
    failed: detail,
    offline: "The server does not answer. Is it still running?",
    restarting: "The engine is being restarted. Messages wait for it.",
  };
  notice.textContent = texts[state] || "";
  notice.hidden = !texts[state];
  notice.classList.toggle("bad", state === "failed" || state === "offline");
  updateSend();
}

function showModel(name) {
  const here = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
  $("model").textContent = name;
  $("welcome-note").textContent = `${name} is listening. What you write stays on ${here ? "this machine" : location.hostname}.`;
  document.title = `${name} · terrace`;
}

async function watchHealth() {
  let wait = 1000;
  try {
    const health = await readHealth();
    if (health.model) showModel(health.model);
    showState(health.state, health.message);
    wait = health.state === "ready" ? 5000 : 1000;
  } catch {
    showState("offline");
  }
  setTimeout(watchHealth, wait);
}

// ---- turns

function addTurn(role) {
  const turn = $("turn-template").content.firstElementChild.cloneNode(true);
  turn.classList.add(role);
  const view = {
    turn,
    thinking: turn.querySelector(".thinking"),
    thinkingSummary: turn.querySelector("summary"),
    thinkingText: turn.querySelector(".thinking-text"),
    text: turn.querySelector(".text"),
    failure: turn.querySelector(".failure"),
    meta: turn.querySelector(".meta"),
    figures: turn.querySelector(".figures"),
    copy: turn.querySelector(".copy"),
    retry: turn.querySelector(".retry"),
  };
  $("turns").append(turn);
  $("welcome").hidden = true;
  return view;
}

// The view follows the reply until the reader scrolls up, and again once they are back at the end.
function follow() {
  if (following) $("scroller").scrollTop = $("scroller").scrollHeight;
}

function noteScroll() {
  const scroller = $("scroller");
  following = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 80;
}

// The rate over the last two seconds: a mean since the first token starts with absurd figures.
class Meter {
  constructor() { this.times = []; }
  tick(now) {
    this.times.push(now);
    while (this.times[0] < now - 2000) this.times.shift();
  }
  rate(now) {
    const span = (now - this.times[0]) / 1000;
    return this.times.length > 2 && span >= 0.25 ? (this.times.length - 1) / span : null;
  }
}

function rateText(perSecond) {
  return `${perSecond < 10 ? perSecond.toFixed(1) : Math.round(perSecond)} tokens/s`;
}

function finalFigures(reply) {
  const parts = [];
  if (reply.timings?.predicted_per_second > 0) parts.push(rateText(reply.timings.predicted_per_second));
  if (reply.usage) parts.push(`${reply.usage.completion_tokens} tokens`);
  if (reply.finish === "length") parts.push("cut at the limit");
  if (reply.stopped) parts.push("stopped");
  return parts.join(" · ");
}

async function answer() {
  const view = addTurn("assistant");
  view.turn.classList.add("writing");
  const reply = { content: "", reasoning: "", timings: null, usage: null, finish: null, stopped: false };
  const meter = new Meter();
  const started = performance.now();
  let painted = false;
  let thinkingMs = null;

  const paint = () => {
    painted = false;
    if (reply.reasoning) {
      view.turn.classList.add("has-thinking");
      view.thinking.hidden = false;
      view.thinkingText.textContent = reply.reasoning;
      view.thinkingSummary.textContent = thinkingMs === null
        ? "Thinking…" : `Thought for ${Math.max(1, Math.round(thinkingMs / 1000))} s`;
    }
    if (reply.content) view.turn.classList.add("has-text");
    renderText(view.text, reply.content);
    const rate = meter.rate(performance.now());
    if (rate !== null && running) {
      view.figures.textContent = rateText(rate);
      view.meta.hidden = false;
    }
    follow();
  };
  const repaint = () => {
    if (painted) return;
    painted = true;
    requestAnimationFrame(paint);
  };

  running = new AbortController();
  view.copy.hidden = view.retry.hidden = true;
  showState(engine);
  try {
    for await (const event of streamChat(requestBody(), $("api-key").value, running.signal)) {
      const delta = event.choices?.[0]?.delta ?? {};
      if (delta.reasoning_content) reply.reasoning += delta.reasoning_content;
      if (delta.content) {
        if (thinkingMs === null) thinkingMs = performance.now() - started;
        reply.content += delta.content;
      }
      if (delta.content || delta.reasoning_content) meter.tick(performance.now());
      if (event.choices?.[0]?.finish_reason) reply.finish = event.choices[0].finish_reason;
      if (event.timings) reply.timings = event.timings;
      if (event.usage) reply.usage = event.usage;
      repaint();
    }
  } catch (error) {
    if (error.name === "AbortError") reply.stopped = true;
    else showFailure(view, error);
  }
  running = null;
  if (thinkingMs === null) thinkingMs = performance.now() - started;
  paint();
  view.turn.classList.remove("writing");
  finish(view, reply);
  showState(engine);
}

function showFailure(view, error) {
  const text = error instanceof ApiFailure ? error.message : "The connection broke off. The server may have stopped.";
  view.failure.textContent = text.charAt(0).toUpperCase() + text.slice(1);
  view.failure.hidden = false;
  if (error.status === 401) {
    toggleSettings(true);
    $("api-key").focus();
  }
}

function finish(view, reply) {
  view.figures.textContent = finalFigures(reply);
  view.copy.hidden = !reply.content;
  view.retry.hidden = false;
  view.meta.hidden = false;
  const at = history.length;
  const failed = !view.failure.hidden;
  if (reply.content) {
    const message = { role: "assistant", content: reply.content };
    if (reply.reasoning) message.reasoning_content = reply.reasoning;
    history.push(message);
  }
  view.copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(reply.content);
      view.copy.textContent = "Copied";
    } catch {
      view.copy.textContent = "Cannot copy here";
    }
    setTimeout(() => { view.copy.textContent = "Copy"; }, 1500);
  });
  view.retry.addEventListener("click", () => {
    if (running) return;
    history.length = at;
    while (view.turn.nextSibling) view.turn.nextSibling.remove();
    view.turn.remove();
    answer();
  });
  if (failed) view.retry.classList.add("wanted");
  for (const button of document.querySelectorAll(".turn:not(:last-child) .retry")) button.hidden = true;
  follow();
}

// ---- composer

function fitInput() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
}

function updateSend() {
  const send = $("send");
  send.classList.toggle("stop", running !== null);
  send.setAttribute("aria-label", running ? "Stop" : "Send");
  const waiting = engine === "failed" || engine === "offline" || engine === "loading";
  send.disabled = running === null && (waiting || !$("input").value.trim());
}

function submit() {
  if (running) {
    running.abort();
    return;
  }
  const content = $("input").value.trim();
  if (!content || $("send").disabled) return;
  history.push({ role: "user", content });
  renderText(addTurn("user").text, content);
  $("input").value = "";
  fitInput();
  following = true;
  answer();
  follow();
}

function newChat() {
  running?.abort();
  history.length = 0;
  $("turns").replaceChildren();
  $("welcome").hidden = false;
  $("input").focus();
}

function toggleSettings(open) {
  $("settings").hidden = !open;
  $("settings-button").setAttribute("aria-expanded", String(open));
}

$("composer").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
$("input").addEventListener("input", () => { fitInput(); updateSend(); });
$("input").addEventListener("keydown", (event) => {
  const phone = matchMedia("(pointer: coarse)").matches; // there, Enter makes a new line
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !phone) {
    event.preventDefault();
    if (!running) submit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) running.abort();
});
$("scroller").addEventListener("scroll", noteScroll, { passive: true });
$("new-chat").addEventListener("click", newChat);
$("settings-button").addEventListener("click", () => toggleSettings($("settings").hidden));
$("settings").addEventListener("submit", (event) => event.preventDefault());
$("settings").addEventListener("change", saveSettings);

loadSettings();
updateSend();
watchHealth();
