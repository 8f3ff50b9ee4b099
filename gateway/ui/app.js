// What all pages share: which one is shown, the engine's state in the bar, drawers, the composer.

import { About } from "/ui/about.js";
import { Api } from "/ui/api.js";
import { Chat } from "/ui/chat.js";
import { Conversations } from "/ui/conversations.js";
import { $, setText } from "/ui/dom.js";
import { Feed } from "/ui/feed.js";
import { sentence } from "/ui/format.js";
import { Monitor } from "/ui/monitor.js";
import { Settings } from "/ui/settings.js";
import { Sidebar } from "/ui/sidebar.js";

const PAGES = ["chat", "monitor", "about"];
const STATE_TEXT = {
  ready: "Ready", busy: "Writing", loading: "Loading model", restarting: "Restarting", failed: "Not available",
  unloaded: "Stopped", stopped: "Stopping", offline: "Not reachable", connecting: "Connecting",
};
const CAN_SEND = ["ready", "restarting"];

const settings = new Settings();
const api = new Api(() => settings.key);
const feed = new Feed(api);
const conversations = new Conversations();
const chat = new Chat({ api, feed, settings, conversations });
const monitor = new Monitor({ feed, api });
const about = new About({ feed, api });
const wide = matchMedia("(min-width: 60rem)");

// ---- pages

function showPage() {
  const page = PAGES.includes(location.hash.slice(1)) ? location.hash.slice(1) : "chat";
  for (const name of PAGES) {
    $(name).hidden = name !== page;
    $(`to-${name}`).toggleAttribute("aria-current", name === page);
    if (name === page) $(`to-${name}`).setAttribute("aria-current", "page");
  }
  document.body.dataset.page = page;
  monitor.draw();
  about.draw();
  if (page === "chat" && !matchMedia("(pointer: coarse)").matches) $("input").focus();
}

// ---- state

function showState() {
  const { state, message, model, locked } = feed;
  const shown = chat.running && state === "ready" ? "busy" : state;
  $("state").dataset.state = shown;
  setText($("state-text"), STATE_TEXT[shown] ?? shown);
  $("state").title = message === "ok" ? "" : message;
  const texts = {
    failed: sentence(message),
    offline: "The server does not answer. Is it still running?",
    restarting: "The engine is being restarted. Messages wait for it.",
    unloaded: "The engine is stopped. The Monitor page starts it.",
  };
  const text = locked && state === "ready" ? "This server wants an API key: enter it in the settings." : texts[state] ?? "";
  setText($("notice"), text);
  $("notice").hidden = !text;
  $("notice").classList.toggle("bad", state === "failed" || state === "offline");
  if (model) {
    const here = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
    setText($("model"), model);
    setText($("welcome-note"), `${model} is listening. What you write stays on ${here ? "this machine" : location.hostname}.`);
    document.title = `${model} · terrace`;
  }
  updateSend();
}

// ---- drawers

function toggle(drawer, open = $(drawer).hidden) {
  $(drawer).hidden = !open;
  for (const button of document.querySelectorAll(`[aria-controls="${drawer}"]`)) button.setAttribute("aria-expanded", String(open));
  $("veil").hidden = wide.matches || ($("settings").hidden && $("sidebar").hidden);
}

function closeDrawers() {
  toggle("settings", false);
  if (!wide.matches) toggle("sidebar", false);
}

function fitDrawers() {
  toggle("sidebar", wide.matches);
}

// ---- composer

function fitInput() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
}

function updateSend() {
  $("send").classList.toggle("stop", chat.running);
  $("send").setAttribute("aria-label", chat.running ? "Stop" : "Send");
  $("send").disabled = !chat.running && (!CAN_SEND.includes(feed.state) || !$("input").value.trim());
}

function submit() {
  if (chat.running) {
    chat.stop();
    return;
  }
  const content = $("input").value.trim();
  if (!content || $("send").disabled) return;
  $("input").value = "";
  fitInput();
  chat.send(content);
}

function newChat() {
  chat.open();
  if (!wide.matches) toggle("sidebar", false);
  location.hash = "#chat";
  $("input").focus();
}

$("composer").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
$("input").addEventListener("input", () => { fitInput(); updateSend(); });
$("input").addEventListener("keydown", (event) => {
  const phone = matchMedia("(pointer: coarse)").matches; // there, Enter makes a new line
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !phone) {
    event.preventDefault();
    if (!chat.running) submit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || $("confirm").open) return;
  if (!$("settings").hidden || !$("veil").hidden) closeDrawers();
  else if (chat.running) chat.stop();
});
$("settings-button").addEventListener("click", () => toggle("settings"));
$("settings-close").addEventListener("click", () => toggle("settings", false));
$("sidebar-button").addEventListener("click", () => toggle("sidebar"));
$("veil").addEventListener("click", closeDrawers);
for (const button of document.querySelectorAll(".new-chat")) button.addEventListener("click", newChat);

// ---- start

new Sidebar({ conversations, chat, close: () => { if (!wide.matches) toggle("sidebar", false); } });
chat.addEventListener("change", showState);
chat.addEventListener("locked", () => { toggle("settings", true); $("api-key").focus(); });
feed.addEventListener("change", showState);
settings.addEventListener("key", () => { feed.reconnect(); about.refresh(); });
addEventListener("hashchange", showPage);
document.addEventListener("visibilitychange", () => { if (!document.hidden && feed.status === null) feed.reconnect(); });
wide.addEventListener("change", fitDrawers);
fitDrawers();
showPage();
updateSend();
feed.run();
