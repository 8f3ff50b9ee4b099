// Making elements without markup: everything that is text stays text.

export const $ = (id) => document.getElementById(id);

/** An element with properties (class, dataset and aria- names too) and children; null children are left out. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name === "class") element.className = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.includes("-") || name === "for" || name === "role" || name === "scope") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Set a text only if it differs: selections and screen readers are left alone. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Copy, and say on the button how it went. */
export async function copy(button, text) {
  const label = button.dataset.label ?? (button.dataset.label = button.textContent);
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    done = copyByHand(text);
  }
  button.textContent = done ? "Copied" : "Cannot copy here";
  setTimeout(() => { button.textContent = label; }, 1500);
}

/** The old way: a page that did not come over HTTPS or from this machine has no other. */
function copyByHand(text) {
  const field = make("textarea", { value: text, class: "hidden-title", "aria-hidden": "true" });
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}

/** Ask before something that cannot be undone; resolves to true if the answer is yes. */
export function confirmed({ title, text, action }) {
  const dialog = $("confirm");
  $("confirm-title").textContent = title;
  $("confirm-text").textContent = text;
  $("confirm-yes").textContent = action;
  dialog.showModal();
  const form = dialog.querySelector("form");
  return new Promise((resolve) => {
    // not at "close", which comes late: by then the next question may stand in the same dialog
    const submitted = (event) => answer(event.submitter?.value === "yes");
    const cancelled = () => answer(false);
    function answer(yes) {
      form.removeEventListener("submit", submitted);
      dialog.removeEventListener("cancel", cancelled);
      resolve(yes);
    }
    form.addEventListener("submit", submitted);
    dialog.addEventListener("cancel", cancelled);
  });
}

/** Whether storage takes what we give it; private windows and full disks refuse. */
export function store(name, value) {
  try {
    if (value === null) localStorage.removeItem(name);
    else localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/** What was stored, or the fallback. */
export function stored(name, fallback) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? fallback;
  } catch {
    return fallback;
  }
}
