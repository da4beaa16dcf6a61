// The map: pointers, keys and buttons of a View.

import {$, address, ask, count, make, percent, plural, say} from "./dom.js";
import {View} from "./view.js";

const STEP = 60; // CSS pixels that Shift and an arrow move
const STILL = 6; // a pointer that moved less is a click
let view = null;
let isListening = false;
let known = new Map(); // item id -> the server's answer

/** Show the map; it is fetched the first time. */
export async function showMap() {
  if (view) return view.resize();
  $("map-words").textContent = "Drawing the map…";
  let data;
  try {
    data = await ask("/map");
  } catch (error) {
    $("map-words").textContent = error.message;
    return;
  }
  if (view) return;
  view = new View($("canvas"), data);
  describe(data);
  if (isListening) return view.resize();
  isListening = true;
  listen();
  new ResizeObserver(() => view?.resize()).observe($("map-frame"));
}

/** Forget the map: the index has changed. */
export function forgetMap() {
  if (view) hide();
  view = null;
  known = new Map();
}

function describe(data) {
  const kept = data.explained === null ? "" : `, which keep ${percent(data.explained)} of the variance`;
  const some = data.ids.length < data.total ? ` ${count(data.ids.length)} of ${count(data.total)} are drawn.` : "";
  const fields = data.fields.names.length ? ` Crosses are the mean fields of the ${plural(data.fields.names.length, "class", "classes")} that the model was trained on.` : "";
  const classes = data.class_names.length ? " its colour and shape its class," : "";
  $("map-words").textContent = `Every mark is an item,${classes} in two dimensions by ${data.method}${kept}.${some}${fields}`;
  $("fields-label").hidden = $("names-label").hidden = !data.fields.names.length;
  $("highlight-label").hidden = !data.class_names.length;
  $("class-names").replaceChildren(...data.class_names.slice(0, 2000).map((value) => make("option", {value})));
}

function listen() {
  const canvas = $("canvas");
  $("zoom-in").addEventListener("click", () => view.zoom(1.5));
  $("zoom-out").addEventListener("click", () => view.zoom(1 / 1.5));
  $("zoom-all").addEventListener("click", () => view.showAll());
  $("fields").addEventListener("change", () => {
    view.showsFields = $("fields").checked;
    $("names").disabled = !view.showsFields;
    view.changed();
  });
  $("names").addEventListener("change", () => {
    view.showsNames = $("names").checked;
    view.changed();
  });
  $("highlight").addEventListener("input", () => {
    view.only = view.data.class_names.indexOf($("highlight").value);
    hide();
    view.changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view.changed());
  canvas.addEventListener("keydown", press);
  // Only when the focus has moved elsewhere on the page: a touch on the card does not move it.
  canvas.addEventListener("blur", ({relatedTarget}) => relatedTarget && relatedTarget !== $("tip") && hide());
  canvas.addEventListener("wheel", turnWheel, {passive: false});
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && !isPinned() && hide());
  follow(canvas);
}

const place = (event) => {
  const {left, top} = $("canvas").getBoundingClientRect();
  return [event.clientX - left, event.clientY - top];
};

function turnWheel(event) {
  event.preventDefault();
  const lines = event.deltaMode === 1 ? 16 : 1;
  view.zoom(Math.exp(-event.deltaY * lines * 0.0016), ...place(event));
  hide();
}

/** Follow pointers: one moves the map or clicks, two zoom it. */
function follow(canvas) {
  const hands = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button > 0) return;
    if (!hands.size) moved = 0;
    hands.set(event.pointerId, place(event));
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    const before = hands.get(event.pointerId);
    if (!before) {
      if (event.pointerType === "mouse") hover(x, y);
      return;
    }
    moved += Math.hypot(x - before[0], y - before[1]);
    if (hands.size === 2) {
      const [other] = [...hands].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
      const [was, is] = [Math.hypot(before[0] - other[0], before[1] - other[1]), Math.hypot(x - other[0], y - other[1])];
      view.zoom(is / Math.max(was, 1), (x + other[0]) / 2, (y + other[1]) / 2);
      view.pan((x - before[0]) / 2, (y - before[1]) / 2);
    } else if (moved > STILL) view.pan(x - before[0], y - before[1]);
    if (moved > STILL) hide();
    hands.set(event.pointerId, [x, y]);
  });
  const lift = (event) => {
    const was = hands.delete(event.pointerId);
    if (!was || moved > STILL || event.type === "pointercancel" || hands.size) return;
    const point = view.at(...place(event));
    if (point < 0) hide();
    else if (event.pointerType === "mouse") go(point);
    else show(point, true); // a finger covers the point: the first tap shows, the second searches
  };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
}

function hover(x, y) {
  const point = view.at(x, y);
  $("canvas").classList.toggle("over", point >= 0);
  if (point >= 0) show(point, false);
  else hide();
}

function press(event) {
  const arrows = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1]};
  const arrow = arrows[event.key];
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (arrow && event.shiftKey) view.pan(-arrow[0] * STEP, arrow[1] * STEP);
  else if (arrow) {
    const point = view.next(...arrow);
    if (point >= 0) show(point, true, true);
  } else if (event.key === "+" || event.key === "=") view.zoom(1.4);
  else if (event.key === "-") view.zoom(1 / 1.4);
  else if (event.key === "0") view.showAll();
  else if (event.key === "Escape") hide();
  else if (event.key === "Enter" && view.chosen >= 0) go(view.chosen);
  else return;
  event.preventDefault();
  if (view.chosen >= 0) requestAnimationFrame(putTip);
}

const go = (point) => (location.hash = address({item: view.data.ids[point]}));
const isPinned = () => $("tip").classList.contains("pinned");

function hide() {
  $("tip").hidden = true;
  $("tip").classList.remove("pinned");
  if (view.chosen >= 0) view.choose(-1);
}

/** Show photo and class of a point; `pinned` if the card can be clicked, `aloud` for screen readers. */
async function show(point, pinned, aloud = false) {
  const isNew = view.chosen !== point;
  view.choose(point);
  $("tip").classList.toggle("pinned", pinned);
  if (isNew) {
    const id = view.data.ids[point];
    const own = view.data.classes[point];
    $("tip").href = address({item: id});
    $("tip-class").textContent = own < 0 ? "" : view.data.class_names[own];
    $("tip-name").textContent = "";
    $("tip-picture").removeAttribute("src");
    $("tip-hint").textContent = aloud ? "Enter searches" : pinned ? "Tap here to search" : "Click to search";
    if (!known.has(id)) known.set(id, ask(`/items/${id}`).catch(() => null));
    const item = await known.get(id);
    if (known.size > 2000) known = new Map();
    if (view.chosen !== point) return;
    if (item) {
      $("tip-picture").src = item.thumbnail;
      $(own < 0 ? "tip-class" : "tip-name").textContent = item.name;
    }
    if (aloud) say([$("tip-class").textContent, $("tip-name").textContent || `item ${id}`].filter(Boolean).join(", "));
  }
  $("tip").hidden = false;
  putTip();
}

/** Place the card beside its point, inside the frame. */
function putTip() {
  if (view.chosen < 0) return;
  const tip = $("tip");
  const [x, y] = view.toScreen(view.data.x[view.chosen], view.data.y[view.chosen]);
  const {offsetWidth: width, offsetHeight: height} = tip;
  const [right, left] = [x + 16, x - 16 - width];
  let [atX, atY] = [right + width <= view.width ? right : left, y - height / 2];
  // On a narrow screen no side has room: place it above or below, so that the point stays visible.
  if (atX < 0) [atX, atY] = [x - width / 2, y + 18 + height <= view.height ? y + 18 : y - 18 - height];
  tip.style.left = `${Math.max(4, Math.min(view.width - width - 4, atX))}px`;
  tip.style.top = `${Math.max(4, Math.min(view.height - height - 4, atY))}px`;
}
