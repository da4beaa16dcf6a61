// Small things every part of the page needs. Text is always set as text: nothing here makes markup of it.

export const $ = (id) => document.getElementById(id);

/** Make an element: attributes by name, `text` its text, `on` its listeners, then its children. */
export function make(tag, {text, on = {}, ...attributes} = {}, ...children) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined) made.setAttribute(name, value);
  }
  for (const [name, listener] of Object.entries(on)) made.addEventListener(name, listener);
  made.append(...children);
  return made;
}

const kept = new Map();

/** Ask the server; answers of GET are kept, so that going back is at once. */
export async function ask(address, options) {
  if (!options && kept.has(address)) return kept.get(address);
  let response;
  try {
    response = await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is it still running?");
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(sentence(answer.detail ?? `The server answered ${response.status}.`));
  if (!options) {
    kept.set(address, answer);
    if (kept.size > 60) kept.delete(kept.keys().next().value);
  }
  return answer;
}

export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
export const count = (number) => number.toLocaleString("en");
export const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many}`;
export const percent = (share) => `${(100 * share).toLocaleString("en", {maximumFractionDigits: 1})} %`;
export const address = (parts) => `#${new URLSearchParams(parts)}`;

/** Say something to those who listen to the page instead of looking at it. */
export function say(text) {
  $("status").textContent = text;
}

/** A picture of an item; very small ones show their pixels rather than a blur. */
export function picture(source, alt = "") {
  const image = make("img", {src: source, alt, loading: "lazy", decoding: "async", draggable: "false"});
  image.addEventListener("load", () => image.classList.toggle("coarse", image.naturalWidth < 64));
  return image;
}

/** What an item is called first: its classes, or its own name where nobody gave it any. */
export const titleOf = (item) => (item.classes.length ? item.classes.join(", ") : item.name);

/** Say in the window's title what is shown. */
export function entitle(...parts) {
  document.title = parts.filter(Boolean).join(" · ");
}
