// One turn of a conversation on the page: text, thinking, tool calls, figures, buttons. Knows nothing of requests.

import { copy, make, setText } from "/ui/dom.js";
import { duration, isKnown, number, percent, rate, sentence } from "/ui/format.js";
import { renderText } from "/ui/text.js";

const button = (text, action, properties = {}) => make("button", { class: "quiet", type: "button", onclick: action, ...properties }, text);

/** The figures under a reply, as far as they are known. */
export function figuresText({ tokensPerSecond, generated, promptTokens, cachedTokens, finish, stopped } = {}) {
  const parts = [];
  if (tokensPerSecond > 0) parts.push(`${rate(tokensPerSecond)} tokens/s`);
  if (isKnown(generated)) parts.push(`${number(generated)} tokens`);
  if (isKnown(promptTokens) && promptTokens > 0) parts.push(`prompt ${number(promptTokens)}, ${percent((cachedTokens ?? NaN) / promptTokens)} cached`);
  if (finish === "length") parts.push("cut at the limit");
  if (stopped) parts.push("stopped");
  return parts.join(" · ");
}

class Turn {
  constructor(role, name) {
    this.text = make("div", { class: "text" });
    this.actions = make("div", { class: "actions" });
    this.figures = make("span", { class: "figures" });
    this.meta = make("div", { class: "meta", hidden: true }, this.figures, this.actions);
    this.element = make("li", { class: `turn ${role}`, "aria-label": name });
  }

  /** Buttons are out of the way while a reply is written. */
  show(actions) {
    this.meta.hidden = false;
    this.actions.hidden = !actions;
  }
}

export class UserTurn extends Turn {
  /** `resend(text)` is called when an edited text is sent. */
  constructor(text, { resend }) {
    super("user", "You");
    this.resend = resend;
    this.value = text;
    this.text.textContent = text;
    this.element.append(this.text, this.meta);
    const copyButton = button("Copy", () => copy(copyButton, this.value));
    this.actions.append(button("Edit", () => this.#edit(), { "aria-label": "Edit and send again" }), copyButton);
    this.show(true);
  }

  #edit() {
    const field = make("textarea", { class: "edit", value: this.value, "aria-label": "Edit the message" });
    const close = () => {
      form.replaceWith(this.text);
      this.element.classList.remove("editing");
      this.meta.hidden = false;
    };
    const send = () => field.value.trim() && this.resend(field.value.trim());
    const form = make("form", { class: "edit-form", onsubmit: (event) => { event.preventDefault(); send(); } }, field,
      make("div", { class: "edit-buttons" },
        button("Cancel", close), make("button", { class: "primary", type: "submit" }, "Send")));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.stopPropagation(); close(); }
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); send(); }
    });
    this.text.replaceWith(form);
    this.element.classList.add("editing");
    this.meta.hidden = true;
    field.style.height = `${Math.min(field.scrollHeight + 4, innerHeight / 2)}px`;
    field.focus();
  }
}

export class AssistantTurn extends Turn {
  constructor({ retry, answerCalls }) {
    super("assistant", "Reply");
    this.answerCalls = answerCalls;
    this.waitingText = make("span");
    this.bar = make("span", { class: "bar-fill" });
    this.waiting = make("div", { class: "waiting", hidden: true, role: "progressbar", "aria-label": "Reading the prompt", "aria-valuemin": 0, "aria-valuemax": 100 },
      this.waitingText, make("span", { class: "track" }, this.bar));
    this.summary = make("summary");
    this.thinkingText = make("div", { class: "thinking-text" });
    this.thinking = make("details", { class: "thinking", hidden: true }, this.summary, this.thinkingText);
    this.calls = make("div", { class: "calls", hidden: true });
    this.failure = make("p", { class: "failure", role: "alert", hidden: true });
    this.copyButton = button("Copy", () => copy(this.copyButton, this.content), { class: "quiet copy" });
    this.retryButton = button("Try again", retry, { class: "quiet retry" });
    this.actions.append(this.copyButton, this.retryButton);
    this.element.append(this.waiting, this.thinking, this.text, this.calls, this.failure, this.meta);
    this.content = "";
  }

  set writing(writing) {
    this.element.classList.toggle("writing", writing);
    this.element.setAttribute("aria-busy", String(writing));
    if (!writing) this.waiting.hidden = true;
  }

  /** What is going on before the first word: { text, share }; share null = not known; null = nothing to say. */
  showWaiting(state) {
    this.waiting.hidden = state === null;
    if (state === null) return;
    setText(this.waitingText, state.text);
    this.waiting.classList.toggle("vague", state.share === null);
    if (state.share === null) this.waiting.removeAttribute("aria-valuenow");
    else this.waiting.setAttribute("aria-valuenow", String(Math.round(state.share * 100)));
    this.bar.style.width = state.share === null ? "" : `${state.share * 100}%`;
  }

  /** `thinkingSeconds` is null while it thinks, undefined when nobody measured it. */
  showReply({ content, reasoning, calls }, thinkingSeconds) {
    if (reasoning) {
      this.element.classList.add("has-thinking");
      this.thinking.hidden = false;
      setText(this.thinkingText, reasoning);
      setText(this.summary, thinkingSeconds === null ? "Thinking…" : thinkingSeconds === undefined ? "Thoughts" : `Thought for ${duration(Math.max(thinkingSeconds, 0.1))}`);
    }
    if (content) this.element.classList.add("has-text");
    this.content = content;
    renderText(this.text, content);
    this.#showCalls(calls);
  }

  #showCalls(calls) {
    this.calls.hidden = !calls.length;
    calls.forEach((call, index) => {
      const card = this.calls.children[index] ?? this.calls.appendChild(
        make("section", { class: "call" }, make("h3"), make("pre", { tabIndex: 0 })));
      setText(card.children[0], call.function.name);
      card.setAttribute("aria-label", `Call of ${call.function.name}`);
      setText(card.children[1], pretty(call.function.arguments));
    });
  }

  /** Fields for what the tools returned; the page runs no tools itself. */
  askForResults(calls) {
    const fields = calls.map((call, index) => {
      const field = make("textarea", { rows: 2, placeholder: "What the tool returns" , "aria-label": `Result of ${call.function.name}` });
      this.calls.children[index].append(field);
      return field;
    });
    const form = make("div", { class: "edit-buttons" }, make("button", {
      class: "primary", type: "button",
      onclick: () => this.answerCalls(fields.map((field) => field.value)),
    }, fields.length > 1 ? "Send results" : "Send result"));
    this.calls.append(form);
  }

  /** What the tools returned, in a conversation that is opened again. */
  showResults(results) {
    results.forEach((result, index) => this.calls.children[index]?.append(make("pre", { class: "result", tabIndex: 0 }, result)));
  }

  showFailure(text) {
    this.failure.textContent = sentence(text);
    this.failure.hidden = false;
    this.retryButton.classList.add("wanted");
  }

  showFigures(figures) {
    setText(this.figures, figuresText(figures));
  }

  /** The end: buttons, and copying where there is something to copy. */
  finish() {
    this.writing = false;
    this.copyButton.hidden = !this.content;
    this.show(true);
  }
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // it is still being written
  }
}
