// Functions for every part of the page. Text is always set as text, never as markup.

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

/** Forget all answers: the server has opened another state of the index. */
export const forgetAnswers = () => kept.clear();

/** Ask the server; answers to GET are cached, so that the back button is instant. */
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
  if (!response.ok) {
    const error = new Error(sentence(answer.detail ?? `The server answered ${response.status}.`));
    throw Object.assign(error, {status: response.status});
  }
  if (!options) {
    kept.set(address, answer);
    if (kept.size > 60) kept.delete(kept.keys().next().value);
  }
  return answer;
}

export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
export const count = (number) => number.toLocaleString("en");
export const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many}`;
/** A rate of a threshold with its interval, and no more digits than that supports; as in `percent` of Python. */
export function rateOf(threshold, name) {
  const [share, ends] = [threshold[name], threshold.intervals[name]];
  if (share === null) return "an unknown share";
  if (!ends) return `${(100 * share).toFixed(0)} %`;
  const digits = Math.min(Math.max(Math.floor(1 - Math.log10(100 * (ends[1] - ends[0]))), 0), 2);
  const [shown, low, high] = [share, ...ends].map((each) => (100 * each).toFixed(digits));
  return `${shown} % (${low} to ${high} %)`;
}

export const percent = (share) => `${(100 * share).toLocaleString("en", {maximumFractionDigits: 1})} %`;
export const address = (parts) => `#${new URLSearchParams(parts)}`;

/** Announce a message to screen readers. */
export function say(text) {
  $("status").textContent = text;
}

/** A picture of an item; very small ones are shown with sharp pixels. */
export function picture(source, alt = "") {
  const image = make("img", {src: source, alt, loading: "lazy", decoding: "async", draggable: "false"});
  image.addEventListener("load", () => image.classList.toggle("coarse", image.naturalWidth < 64));
  return image;
}

/** A name that can break after its signs: names of files have no spaces. */
export function breakable(name) {
  return name.split(/(?<=[_/.\-])/).flatMap((part, at) => (at ? [make("wbr"), part] : [part]));
}

/** The title of an item: its classes, or its name if it has none. */
export const titleOf = (item) => (item.classes.length ? item.classes.join(", ") : item.name);

/** The address of the photo of an item; only a server that was given the photos has it. */
export const originalOf = (item) => `/items/${item.id}/original`;

const isAddress = (value) => typeof value === "string" && /^https?:\/\/\S+$/i.test(value);

/** What a list said about an item, as names and values; an address is a link. Nothing if it said nothing. */
export function columnsOf(item) {
  const rows = Object.entries(item.columns ?? {}).map(([name, value]) => {
    const shown = breakable(String(value));
    return make("div", {}, make("dt", {text: name}), make("dd", {}, ...(isAddress(value) ? [make("a", {href: value, target: "_blank", rel: "noopener noreferrer"}, ...shown)] : shown)));
  });
  return rows.length ? make("dl", {class: "columns small"}, ...rows) : "";
}

/** The first of it in few words, for a tile, without addresses. */
export function brieflyOf(item) {
  const some = Object.entries(item.columns ?? {}).filter(([, value]) => !isAddress(value)).slice(0, 3);
  return some.map(([name, value]) => make("span", {class: "soft small brief", title: `${name}: ${value}`, text: `${name}: ${value}`}));
}

/** Set the title of the window. */
export function entitle(...parts) {
  document.title = parts.filter(Boolean).join(" · ");
}
