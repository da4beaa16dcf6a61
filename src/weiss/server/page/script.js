// The entry point of the page: the hash of the address selects the view.

import {$, ask, count, entitle, forgetAnswers, make, plural, rateOf, say, sentence} from "./dom.js";
import {showClass, showClasses} from "./classes.js";
import {forgetMap, showMap} from "./map.js";
import {showItem, showPhoto, showStart, startAgain, startSearching} from "./search.js";
import {startViewing} from "./viewer.js";

const VIEWS = ["search", "classes", "map", "about"];
let about = null;
const heights = new Map(); // entry of the history -> scroll position
let entry = null;
let turn = 0;

function open(view) {
  for (const name of VIEWS) $(name).hidden = name !== view;
  for (const link of document.querySelectorAll(".tabs a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  entitle(view === "search" ? "" : sentence(view), about.name);
}

/** Show the view of the address; `isAgain` if it is the same view with other options. */
async function route(isAgain = false) {
  const mine = ++turn;
  const isFirst = entry === null;
  const isBack = history.state?.entry !== undefined;
  if (!isBack) history.replaceState({entry: `${Date.now()} ${turn}`}, "");
  entry = history.state.entry;
  const said = new URLSearchParams(location.hash.slice(1));
  const start = Math.max(0, Number.parseInt(said.get("start") ?? "0", 10) || 0);
  let title = "found-title";
  let shown = null;
  if (said.has("item")) (open("search"), (shown = showItem(said.get("item"))));
  else if (said.has("photo")) (open("search"), (shown = showPhoto(said.get("photo"))));
  else if (said.has("class")) (open("classes"), (shown = showClass(said.get("class"), start)), (title = "classes-title"));
  else if (said.has("all")) (open("classes"), (shown = showClass(null, start)), (title = "classes-title"));
  else if (said.has("classes")) (open("classes"), (shown = showClasses()), (title = "classes-title"));
  else if (said.has("map")) (open("map"), (shown = showMap()), (title = "map-title"));
  else if (said.has("about")) (open("about"), showAbout(), (title = "about-title"));
  else (open("search"), (shown = showStart()));
  if (isAgain) return;
  // A new view starts at its top, also for the keyboard; going back restores the scroll position.
  if (!isFirst) $(title).focus({preventScroll: true});
  const height = isBack ? heights.get(entry) ?? 0 : 0;
  if (!height) scrollTo(0, 0);
  await shown;
  if (height && mine === turn) scrollTo(0, height);
  if (!isFirst) lookAgain();
}

/** Check whether the index has changed on disk, and show the view again if the server has opened the new one. */
async function lookAgain() {
  const now = await ask("/about", {}).catch(() => about); // the search itself reports a server that does not answer
  $("outdated").hidden = !now.outdated;
  if (now.version === about.version) return;
  about = now;
  forgetAnswers();
  forgetMap();
  startAgain(about);
  showHead();
  await route(true);
}

/** Show name and size of the catalogue. */
function showHead() {
  $("name").textContent = about.name;
  const classes = about.classes ? ` · ${plural(about.classes, "class", "classes")}` : "";
  $("counts").textContent = plural(about.items, "item", "items") + classes;
}

function rows(facts, before = "") {
  const found = [];
  for (const [key, value] of Object.entries(facts)) {
    const name = (before ? `${before} · ` : "") + key.replaceAll("_", " ");
    if (value !== null && typeof value === "object" && !Array.isArray(value)) found.push(...rows(value, name));
    else if (value !== null && value !== "") found.push([name, shown(value)]);
  }
  return found;
}

function shown(value) {
  if (typeof value === "number") return Number.isInteger(value) ? count(value) : value.toPrecision(4);
  return Array.isArray(value) ? value.map(shown).join(", ") : String(value);
}

function list(title, facts) {
  const lines = facts.map(([name, value]) => make("div", {}, make("dt", {text: sentence(name)}), make("dd", {text: value})));
  return make("section", {}, make("h3", {text: title}), make("dl", {}, ...lines));
}

function showAbout() {
  const facts = [
    ["items", count(about.items)],
    ["classes", count(about.classes)],
    ["dimensions of an embedding", count(about.embedding_size)],
  ];
  if (about.columns.length) facts.push(["columns", about.columns.join(", ")]);
  if (about.threshold) {
    facts.push(
      ["threshold", `similarity ${about.threshold.similarity.toFixed(3)}`],
      ["false matches", rateOf(about.threshold, "false_match_rate")],
      ["right matches", rateOf(about.threshold, "true_match_rate")],
      ["measured on", about.threshold.basis],
    );
  }
  const told = new Set(["name", "num_items", "num_classes", "columns", "threshold", "threshold_why"]);
  const rest = Object.entries(about.facts).filter(([key]) => !told.has(key));
  const groups = rest.filter(([, value]) => value && typeof value === "object" && Object.keys(value).length);
  facts.push(...rows(Object.fromEntries(rest.filter(([, value]) => typeof value !== "object"))));
  $("about-facts").replaceChildren(list("Catalogue", facts), ...groups.map(([name, own]) => list(sentence(name), rows(own))));
}

/** Ask for the secret of the server, which gives a cookie for it; then begin again. */
function askForSecret() {
  const hide = (isHidden) => {
    for (const part of document.querySelectorAll(".tabs, .bottom, #search")) part.hidden = isHidden;
    $("login").hidden = !isHidden;
  };
  hide(true);
  entitle("Log in");
  $("token").focus();
  $("login").onsubmit = async (event) => {
    event.preventDefault();
    $("login-problem").hidden = true;
    try {
      // What no header can carry is refused by the browser itself.
      await ask("/login", {method: "POST", headers: new Headers({Authorization: `Bearer ${$("token").value}`})});
    } catch (error) {
      const isWrong = error.status === 401 || error instanceof TypeError;
      $("login-problem").textContent = isWrong ? "This is not the secret of this catalogue." : error.message;
      $("login-problem").hidden = false;
      $("token").select();
      return;
    }
    $("token").value = "";
    hide(false);
    await begin();
  };
}

async function begin() {
  try {
    about = await ask("/about");
  } catch (error) {
    if (error.status === 401) return askForSecret();
    $("problem").hidden = false;
    $("problem").textContent = error.message;
    return;
  }
  showHead();
  $("outdated").hidden = !about.outdated;
  startViewing();
  startSearching(about, () => route(true));
  history.scrollRestoration = "manual"; // the content arrives after the browser would scroll
  addEventListener("scroll", () => heights.set(entry, scrollY), {passive: true});
  $("skip").addEventListener("click", () => $("main").focus());
  addEventListener("hashchange", () => route());
  await route();
  say(`${about.name}, ${$("counts").textContent}`);
}

begin();
