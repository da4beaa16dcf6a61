// Classes: all of them with a filter, or the items of one, page by page.

import {$, address, ask, breakable, count, entitle, make, picture, plural} from "./dom.js";
import {itemLink} from "./search.js";

const PER_PAGE = 24;
const AT_ONCE = 120; // more classes are shown on demand
let shown = AT_ONCE;
let turn = 0;

/** Show the list of classes. */
export async function showClasses() {
  const mine = ++turn;
  $("unknown-list").replaceChildren();
  $("classes-title").textContent = "Classes";
  entitle("Classes", $("name").textContent);
  $("filter-label").hidden = false;
  const answer = await ask("/classes").catch((error) => error);
  if (mine !== turn) return;
  if (answer instanceof Error) return fail(answer);
  $("filter").oninput = () => {
    shown = AT_ONCE;
    list(answer);
  };
  list(answer);
  const unknown = await ask("/unknown").catch(() => null); // the classes are shown without it
  if (mine === turn && unknown?.groups.length) showUnknown(unknown);
}

/** Show items without a class that fit none, in groups of what is alike. */
function showUnknown({total, is_cut: isCut, groups}) {
  const parts = groups.map(({count: size, items}, at) => [
    make("h4", {text: `Group ${count(at + 1)} · ${plural(size, "item", "items")}`}),
    make("ul", {class: "cards small-cards"}, ...items.map((item) => make("li", {class: "card"}, itemLink(item)))),
  ]);
  $("unknown-list").replaceChildren(
    make("h3", {text: "Without a class, and unlike every class"}),
    make("p", {class: "soft", text: `${plural(total, "group", "groups")} of items that are alike: new classes, perhaps.${isCut ? " There are more items than could be grouped." : ""}${total > groups.length ? ` The largest ${count(groups.length)} are shown.` : ""}`}),
    ...parts.flat(),
  );
}

function list({items, classes}) {
  const wanted = $("filter").value.trim().toLocaleLowerCase();
  const found = classes.filter(({name}) => name.toLocaleLowerCase().includes(wanted));
  $("classes-words").replaceChildren(
    wanted ? `${count(found.length)} of ${plural(classes.length, "class", "classes")} · ` : "",
    make("a", {href: "#all", text: `All ${plural(items, "item", "items")}`}),
  );
  const cards = found.slice(0, shown).map(({name, count: size, thumbnail}) =>
    make(
      "li",
      {class: "card"},
      make(
        "a",
        {href: address({class: name})},
        make("span", {class: "plate"}, picture(thumbnail)),
        make("span", {class: "words row"}, make("strong", {}, ...breakable(name)), make("span", {class: "soft small", text: plural(size, "item", "items")})),
      ),
    ),
  );
  const parts = [make("ul", {class: "cards small-cards"}, ...cards)];
  if (!classes.length) parts.unshift(make("p", {text: "The items of this catalogue have no classes."}));
  else if (!found.length) parts.unshift(make("p", {text: `No class has “${$("filter").value.trim()}” in its name.`}));
  if (found.length > shown) {
    const more = () => {
      const before = shown;
      shown += AT_ONCE;
      list({items, classes});
      document.querySelectorAll("#classes-list .card a")[before]?.focus();
    };
    parts.push(make("button", {class: "button", type: "button", text: `Show more (${count(found.length - shown)})`, on: {click: more}}));
  }
  $("classes-list").replaceChildren(...parts);
}

/** Show some items of a class, or of all if the name is null. */
export async function showClass(name, start) {
  const mine = ++turn;
  $("unknown-list").replaceChildren();
  $("classes-title").textContent = name ?? "All items";
  entitle($("classes-title").textContent, $("name").textContent);
  $("filter-label").hidden = true;
  const which = name === null ? {} : {name};
  const query = new URLSearchParams({...which, start, count: PER_PAGE});
  const answer = await ask(`/classes/items?${query}`).catch((error) => error);
  if (mine !== turn) return;
  if (answer instanceof Error) return fail(answer);
  const last = Math.min(answer.total, start + answer.items.length);
  $("classes-words").replaceChildren(
    make("a", {href: "#classes", text: "All classes"}),
    answer.items.length ? ` · ${count(start + 1)} to ${count(last)} of ${plural(answer.total, "item", "items")}` : " · nothing here",
  );
  const own = name === null ? {all: ""} : {class: name};
  const link = (text, to, isThere, rel) =>
    isThere
      ? make("a", {class: "button quiet", rel, href: address({...own, start: Math.max(0, to)}), text})
      : make("a", {class: "button quiet off", role: "link", "aria-disabled": "true", text});
  const pages = make(
    "nav",
    {class: "pages", "aria-label": "Pages"},
    link("Previous", start - PER_PAGE, start > 0, "prev"),
    make("span", {class: "soft", text: `Page ${count(Math.floor(start / PER_PAGE) + 1)} of ${count(Math.max(1, Math.ceil(answer.total / PER_PAGE)))}`}),
    link("Next", start + PER_PAGE, last < answer.total, "next"),
  );
  const cards = answer.items.map((item) => make("li", {class: "card"}, itemLink(item)));
  $("classes-list").replaceChildren(make("ul", {class: "cards small-cards"}, ...cards), answer.total > PER_PAGE ? pages : "");
}

function fail(error) {
  $("classes-words").textContent = "";
  $("classes-list").replaceChildren(make("p", {class: "banner bad", role: "alert", text: error.message}));
}
