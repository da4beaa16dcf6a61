// Search with a photo that is dropped, pasted or chosen, or with an item.

import {$, address, ask, breakable, brieflyOf, columnsOf, count, entitle, make, originalOf, picture, plural, rateOf, say, titleOf} from "./dom.js";
import {showPictures} from "./viewer.js";

const photos = new Map(); // number -> {file, url, answer, asked}, for the back button
const MOST_PHOTOS = 20;
const EXAMPLE = 142; // largest width of an example in CSS pixels
let about = null;
let filters = ""; // the conditions of the last search
let problem = ""; // a message for the first page
let turn = 0; // of several requests only the last one shows its answer

/** Listen for photos; `again` shows the current view again, with other options. */
export function startSearching(known, again) {
  about = known;
  $("limits").textContent = `Up to ${about.limits.bytes / 1e6} MB and ${about.limits.pixels / 1e6} megapixels. It stays on this server’s machine and is not kept.`;
  $("file").addEventListener("change", () => {
    take([...$("file").files]);
    $("file").value = ""; // so that the same photo can be chosen again
  });
  addEventListener("paste", (event) => take([...(event.clipboardData?.files ?? [])]));
  $("k").addEventListener("change", again);
  const filter = () => filters !== conditions().join("\n") && again();
  for (const name of ["only-class", "where"]) {
    $(name).addEventListener("change", filter);
    $(name).addEventListener("search", filter); // emptied by its cross
  }
  $("filters").addEventListener("submit", (event) => (event.preventDefault(), filter()));
  showFilters();
  let depth = 0;
  const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
  const curtain = (by) => ($("curtain").hidden = (depth = Math.max(0, depth + by)) === 0);
  addEventListener("dragenter", (event) => carriesFiles(event) && curtain(1));
  addEventListener("dragleave", (event) => carriesFiles(event) && curtain(-1));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    curtain(-depth);
    take([...event.dataTransfer.files]);
  });
}

/** Offer what the catalogue can be filtered by. */
async function showFilters() {
  $("only-class-label").hidden = !about.classes;
  $("where-label").hidden = !about.columns.length;
  $("where").placeholder = `${about.columns[0]}=…`;
  $("where").title = `A column (${about.columns.join(", ")}), one of = != < <= > >=, and a value. A comma separates conditions; all must hold.`;
  const {classes} = await ask("/classes").catch(() => ({classes: []}));
  $("only-classes").replaceChildren(...classes.map(({name}) => make("option", {value: name})));
}

/** The conditions of a search as the server wants them: `price<5, colour=red` are two. */
function conditions() {
  const name = $("only-class").value.trim();
  const others = $("where").value.split(/,(?=[^=!<>,]+[=!<>])/).map((each) => each.trim()).filter(Boolean);
  return [...(name && about.classes ? [`class=${name}`] : []), ...(about.columns.length ? others : [])];
}

/** The part of an address that says what is asked for, and with which conditions. */
function wanted() {
  const where = conditions();
  filters = where.join("\n");
  return String(new URLSearchParams([["k", $("k").value], ...where.map((each) => ["where", each])]));
}

function take(files) {
  if (!files.length) return;
  const [file] = files;
  if (file.size > about.limits.bytes) {
    complain(`The photo must have at most ${about.limits.bytes / 1e6} MB; this one has ${(file.size / 1e6).toFixed(1)}. Reduce it.`);
    return;
  }
  const number = nextNumber();
  photos.set(number, {file, url: URL.createObjectURL(file), answer: null, asked: ""});
  if (photos.size > MOST_PHOTOS) {
    const [oldest, {url}] = photos.entries().next().value;
    URL.revokeObjectURL(url);
    photos.delete(oldest);
  }
  location.hash = address({photo: number});
}

/** A number that no photo of this tab has had, also before a reload: the history keeps them. */
function nextNumber() {
  let number = Number([...photos.keys()].at(-1) ?? 0) + 1;
  try {
    number = Math.max(number, Number(sessionStorage.getItem("photos") ?? 0) + 1);
    sessionStorage.setItem("photos", String(number));
  } catch {
    number = Math.max(number, Date.now()); // storage is forbidden
  }
  return String(number);
}

function complain(message) {
  // A new photo can arrive in another view: open the search view first.
  if ($("search").hidden) {
    problem = message;
    location.hash = "#search";
  } else showProblem(message);
}

function showProblem(message) {
  $("problem").textContent = message;
  $("problem").hidden = !message;
}

/** Use other facts about the catalogue: its index has changed. */
export function startAgain(known) {
  about = known;
  for (const photo of photos.values()) photo.asked = ""; // its answer is of the old index
  showFilters();
}

/** Start a request: its number, and the page before the answer. */
function begin(title) {
  showProblem("");
  $("verdict").hidden = true;
  $("how-many").hidden = false;
  $("filters").hidden = !about.classes && !about.columns.length;
  $("search").classList.remove("empty");
  $("found-title").textContent = title;
  $("results").setAttribute("aria-busy", "true");
  return ++turn;
}

/** Show the first page: how to start, and a few items. */
export async function showStart() {
  const mine = ++turn;
  showProblem(problem);
  problem = "";
  entitle(about.name);
  $("search").classList.add("empty");
  $("asked").hidden = true;
  $("verdict").hidden = true;
  $("how-many").hidden = true;
  $("filters").hidden = true;
  $("found-title").textContent = "Or begin with one of these";
  $("results").replaceChildren();
  $("results").removeAttribute("aria-busy");
  const items = await examples().catch(() => []);
  if (mine !== turn || !items.length) return;
  const cards = items.map((item) => make("li", {class: "card"}, itemLink(item)));
  $("results").replaceChildren(make("ul", {class: "cards few"}, ...cards));
}

/** A few different items: the first ones of evenly spaced classes. */
async function examples() {
  const {classes} = await ask("/classes");
  const number = 2 * Math.max(4, Math.floor($("results").clientWidth / EXAMPLE)); // two full rows
  if (!classes.length) return (await ask(`/classes/items?count=${number}`)).items;
  const step = Math.max(1, classes.length / number);
  const some = Array.from({length: Math.min(number, classes.length)}, (_, at) => classes[Math.floor(at * step)]);
  return some.map(({first, name, thumbnail}) => ({id: first, name: "", classes: [name], thumbnail}));
}

/** The name of an item, for the line below its classes, without a folder that is one of them; nothing if it is the title. */
function nameBelow(item) {
  if (!item.name || !item.classes.length) return "";
  const own = item.classes.find((name) => item.name.startsWith(`${name}/`));
  return make("span", {class: "soft small name", title: item.name}, ...breakable(own === undefined ? item.name : item.name.slice(own.length + 1)));
}

/** Picture, class and name of an item, with a link to search with it. */
export function itemLink(item) {
  const label = [...item.classes, item.name].filter(Boolean).join(", ");
  return make(
    "a",
    {href: address({item: item.id}), "aria-label": `${label}: search with it`},
    make("span", {class: "plate"}, picture(item.thumbnail)),
    make("span", {class: "words"}, make("strong", {}, ...breakable(titleOf(item))), nameBelow(item), ...brieflyOf(item)),
  );
}

/** Search with a photo; an answer that is known is shown again without a request. */
export async function showPhoto(number) {
  const photo = photos.get(number);
  const asked = wanted();
  if (!photo) {
    problem = "The photo is no longer here; choose it again."; // the page was reloaded
    return showStart();
  }
  const mine = begin("Nearest items");
  entitle("Your photo", about.name);
  showQuery(photo.url, "Your photo", []);
  if (photo.asked === asked) return showAnswer(photo.answer);
  say("Searching");
  $("results").replaceChildren(...waiting(Number($("k").value)));
  const form = new FormData();
  form.set("file", photo.file, "photo"); // its own name is private
  try {
    const answer = await ask(`/search?${asked}`, {method: "POST", body: form});
    Object.assign(photo, {answer, asked});
    if (mine === turn) showAnswer(answer);
  } catch (error) {
    if (mine === turn) showFailure(error);
  }
}

/** Search with an item. */
export async function showItem(id) {
  const mine = begin("Nearest items");
  try {
    const answer = await ask(`/items/${encodeURIComponent(id)}/neighbours?${wanted()}`);
    if (mine !== turn) return;
    const {item} = answer.query;
    entitle(titleOf(item), about.name);
    showQuery(item.thumbnail, item.name, item.classes, about.originals && originalOf(item), item);
    showAnswer(answer);
  } catch (error) {
    if (mine === turn) showFailure(error);
  }
}

function waiting(k) {
  const cards = Array.from({length: Math.min(k, 10)}, () => make("li", {class: "card pending"}, make("span", {class: "plate"})));
  return [make("ul", {class: "cards", "aria-hidden": "true"}, ...cards)];
}

/** Show an error, and let the user start again. */
function showFailure(error) {
  if (error.status === 422 && filters) {
    showProblem(error.message); // the query stays, and its conditions can be changed
    $("results").replaceChildren();
    $("results").removeAttribute("aria-busy");
    return;
  }
  problem = error.message;
  return showStart();
}

function showQuery(source, name, classes, original, item = {}) {
  $("asked").hidden = false;
  $("asked-picture").src = source;
  $("asked-picture").alt = `The query: ${name}`;
  $("asked-picture").hidden = false;
  $("asked-picture").onload = () => $("asked-picture").classList.toggle("coarse", $("asked-picture").naturalWidth < 64);
  $("asked-picture").onerror = () => ($("asked-picture").hidden = true); // the server reads formats that a browser cannot show
  const links = classes.map((own) => make("a", {class: "chip", href: address({class: own}), text: own}));
  if (original) links.push(make("a", {class: "chip", href: original, target: "_blank", rel: "noopener", text: "Open the original"}));
  $("asked-words").replaceChildren(
    make("span", {class: "soft small", text: "Searching with"}),
    make("strong", {}, ...breakable(name)),
    make("span", {class: "chips"}, ...links),
    columnsOf(item),
  );
}

function showAnswer(answer) {
  $("results").removeAttribute("aria-busy");
  const {results, threshold} = answer;
  if (!results.length) {
    const text = filters ? "No other item satisfies the filter." : "There is no other item.";
    say(text);
    $("results").replaceChildren(make("p", {class: "soft", text}));
    return;
  }
  showVerdict(answer);
  $("results").classList.toggle("plain", !threshold);
  const near = results.filter((hit) => hit.match);
  const from = barsFrom(results, threshold);
  $("results").style.setProperty("--from", String(from));
  const mark = threshold ? "; the mark is the threshold" : "";
  const parts = [make("p", {class: "soft small scale", text: `Similarity: bars run from ${from} to 1${mark}.`})];
  if (!threshold || near.length === 0 || near.length === results.length) parts.push(cardsOf(results, 1, threshold));
  else {
    parts.push(make("h3", {text: plural(near.length, "match", "matches")}), cardsOf(near, 1, threshold));
    parts.push(make("h3", {text: "Below the threshold"}), cardsOf(results.slice(near.length), near.length + 1, threshold));
  }
  $("results").replaceChildren(...parts);
  const cards = [...$("results").querySelectorAll(".card a")];
  showPictures(cards, results, about.originals);
}

function cardsOf(hits, first, threshold) {
  return make("ol", {class: "cards", start: String(first)}, ...hits.map((hit, at) => card(hit, first + at, threshold)));
}

function card(hit, rank, threshold) {
  const similarity = hit.similarity.toFixed(3);
  const verdict = hit.match === null ? "" : hit.match ? ", a match" : ", below the threshold";
  const name = hit.classes.length ? `, ${hit.name}` : "";
  const label = `${rank}. ${titleOf(hit)}, similarity ${similarity}, distance ${hit.distance.toFixed(3)}${verdict}${name}: show it larger`;
  const link = make(
    "a",
    {href: address({item: hit.id}), "aria-label": label, title: hit.name},
    make("span", {class: "plate"}, picture(hit.thumbnail), make("span", {class: "rank", text: String(rank)}), hit.match ? make("span", {class: "sign", text: "✓"}) : ""),
    make(
      "span",
      {class: "words"},
      make("strong", {}, ...breakable(titleOf(hit))),
      nameBelow(hit),
      ...brieflyOf(hit),
      meter(hit, threshold),
      make("span", {class: "numbers small"}, make("span", {text: similarity}), make("span", {class: "soft", text: `dist. ${hit.distance.toFixed(3)}`})),
    ),
  );
  return make("li", {class: hit.match === false ? "card far" : "card"}, link);
}

/**
 * Where the bars begin: a round number below everything they show, so that bars of similar hits differ. They end at 1.
 * 0.54 gives 0.5, and 0.948 gives 0.94.
 */
export function barsFrom(results, threshold) {
  const least = Math.min(...results.map((hit) => hit.similarity), threshold?.similarity ?? 1);
  if (least >= 1) return 0;
  const step = 10 ** Math.floor(Math.log10(1 - least));
  return Math.max(-1, Number(((Math.ceil(least / step) - 1) * step).toFixed(6)));
}

/** The similarity as a bar from `--from` of the results to 1, with a mark at the threshold. */
function meter(hit, threshold) {
  const bar = make("span", {class: "meter"});
  for (const [name, at] of [["fill", hit.similarity], ...(threshold ? [["tick", threshold.similarity]] : [])]) {
    const part = make("span", {class: name});
    part.style.setProperty("--at", String(Math.max(-1, Math.min(1, at))));
    bar.append(part);
  }
  return bar;
}

function showVerdict({results, threshold, match}) {
  const verdict = $("verdict");
  verdict.hidden = false;
  if (!threshold) {
    verdict.className = "banner";
    verdict.replaceChildren("These are the nearest items. This catalogue has no threshold to tell whether they are near enough.");
    say(`The ${plural(results.length, "nearest item", "nearest items")}`);
    return;
  }
  const limit = threshold.similarity.toFixed(3);
  const rate = rateOf(threshold, "false_match_rate");
  const nearest = results[0].similarity.toFixed(3);
  const heading = match ? `Match: ${titleOf(results[0])}` : "No match";
  const first = match
    ? `Similarity ${nearest} reaches the threshold of ${limit}.`
    : `The nearest item has similarity ${nearest}, below the threshold of ${limit}.`;
  const second = `Of pictures whose class is not there, ${rate} pass the threshold all the same. Measured: ${threshold.basis}.`;
  verdict.className = match ? "banner good" : "banner warn";
  verdict.replaceChildren(
    make("strong", {text: heading}),
    make("span", {text: first}),
    make("details", {}, make("summary", {text: `False matches: ${rate}`}), make("span", {text: second})),
  );
  say(`${heading}. ${first} ${results.length === 1 ? "One item is" : `${count(results.length)} items are`} shown.`);
}
