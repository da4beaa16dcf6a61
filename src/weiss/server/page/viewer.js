// A larger picture of a hit, in a dialog; arrows go to the next one, and Escape closes it.

import {$, address, breakable, columnsOf, make, originalOf, titleOf} from "./dom.js";

let hits = [];
let at = 0;
let hasOriginals = false;

/** Open the dialog by a click on one of these links, which belong to the hits in their order. */
export function showPictures(links, results, originals) {
  [hits, hasOriginals] = [results, originals];
  links.forEach((link, place) => {
    link.setAttribute("aria-haspopup", "dialog");
    link.addEventListener("click", (event) => {
      // With a key or another button it stays a link to a search with this item.
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
      event.preventDefault();
      show(place);
      $("viewer").showModal();
      $("viewer").scrollTop = 0;
    });
  });
}

function show(place) {
  at = place;
  const hit = hits[at];
  const original = originalOf(hit);
  const image = make("img", {alt: titleOf(hit)});
  const small = () => (image.src = hit.thumbnail);
  if (hasOriginals) {
    image.addEventListener("error", small, {once: true}); // the file has gone, or no browser shows its format
    image.src = original;
  } else small();
  $("viewer-picture").replaceChildren(image);
  $("viewer-title").replaceChildren(...breakable(titleOf(hit)));
  $("viewer-name").replaceChildren(...(hit.classes.length ? breakable(hit.name) : []));
  $("viewer-rank").textContent = `${at + 1} of ${hits.length} · similarity ${hit.similarity.toFixed(3)}`;
  $("viewer-columns").replaceChildren(columnsOf(hit));
  $("viewer-search").href = address({item: hit.id});
  $("viewer-original").hidden = !hasOriginals;
  $("viewer-original").href = original;
  $("viewer-hint").hidden = hasOriginals;
  $("viewer-before").disabled = at === 0;
  $("viewer-after").disabled = at === hits.length - 1;
}

/** Listen to the keys and buttons of the dialog. */
export function startViewing() {
  const viewer = $("viewer");
  const step = (by) => hits[at + by] && show(at + by);
  $("viewer-before").addEventListener("click", () => step(-1));
  $("viewer-after").addEventListener("click", () => step(1));
  $("viewer-close").addEventListener("click", () => viewer.close());
  $("viewer-search").addEventListener("click", () => viewer.close());
  viewer.addEventListener("keydown", (event) => {
    const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (by) (event.preventDefault(), step(by));
  });
  // A click beside the dialog is one on the element itself: its content fills it.
  viewer.addEventListener("click", (event) => event.target === viewer && viewer.close());
  viewer.addEventListener("close", () => $("viewer-picture").replaceChildren());
  addEventListener("hashchange", () => viewer.close());
}
