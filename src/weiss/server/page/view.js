// Draws the map: points are drawn once to a layer, which is moved as an image and drawn again at rest.

// Paul Tol's schemes "muted" (on light) and "light" (on dark): colour-blind people can tell them apart. There are
// more classes than colours, so shapes change too.
const COLOURS = {
  light: ["#332288", "#cc6677", "#117733", "#2f8fc0", "#882255", "#999933", "#44aa99", "#aa4499"],
  dark: ["#77aadd", "#ee8866", "#44bb99", "#ffaabb", "#eedd88", "#bbcc33", "#99ddff", "#aaaa00"],
};
const NO_CLASS = {light: "#8a929b", dark: "#7d8791"};
const SHAPES = [
  (c, r) => c.arc(0, 0, r, 0, 7),
  (c, r) => c.rect(-0.88 * r, -0.88 * r, 1.76 * r, 1.76 * r),
  (c, r) => polygon(c, [[0, -1.2 * r], [1.1 * r, 0.8 * r], [-1.1 * r, 0.8 * r]]),
  (c, r) => polygon(c, [[0, -1.3 * r], [1.3 * r, 0], [0, 1.3 * r], [-1.3 * r, 0]]),
  (c, r) => polygon(c, [[0, 1.2 * r], [1.1 * r, -0.8 * r], [-1.1 * r, -0.8 * r]]),
];
const QUICK = 6000; // up to this many points are drawn in every frame; more only at rest
const MANY_FIELDS = 100; // more fields are drawn below the items, which they would hide
const REST = 90; // milliseconds
const REACH = 14; // distance in CSS pixels at which a point is hit

function polygon(context, corners) {
  corners.forEach(([x, y], at) => (at ? context.lineTo(x, y) : context.moveTo(x, y)));
  context.closePath();
}

/** A map on a canvas. `data` is the answer of /map. */
export class View {
  constructor(canvas, data) {
    this.canvas = canvas;
    this.data = data;
    this.layer = document.createElement("canvas");
    this.chosen = -1; // the point that is shown
    this.only = -1; // the class that is highlighted
    this.showsFields = true;
    this.showsNames = false;
    this.#measure();
    this.#sort();
  }

  /** Compute centre and extent of all points. */
  #measure() {
    const {x, y, fields} = this.data;
    let [left, right, bottom, top] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const [xs, ys] of [[x, y], [fields.x, fields.y]]) {
      for (let at = 0; at < xs.length; at++) {
        left = Math.min(left, xs[at]);
        right = Math.max(right, xs[at]);
        bottom = Math.min(bottom, ys[at]);
        top = Math.max(top, ys[at]);
      }
    }
    if (!(left <= right)) [left, right, bottom, top] = [-1, 1, -1, 1];
    // Points without extent, such as a single item, are centred too.
    const [width, height] = [Math.max(right - left, 1e-6), Math.max(top - bottom, 1e-6)];
    this.box = {left: (left + right - width) / 2, bottom: (bottom + top - height) / 2, width, height};
  }

  /** Sort points into a grid, to find the point under the pointer quickly. */
  #sort() {
    const {x, y} = this.data;
    this.side = Math.max(1, Math.min(256, Math.round(Math.sqrt(x.length / 4))));
    this.cells = Array.from({length: this.side ** 2}, () => []);
    for (let at = 0; at < x.length; at++) this.cells[this.#cell(y[at], "bottom", "height") * this.side + this.#cell(x[at], "left", "width")].push(at);
  }

  #cell(value, from, extent) {
    const cell = Math.floor(((value - this.box[from]) / this.box[extent]) * this.side);
    return Math.max(0, Math.min(this.side - 1, cell));
  }

  /** Fit the canvas to its frame. */
  resize() {
    const {width, height} = this.canvas.getBoundingClientRect();
    if (!width || !height) return;
    const before = this.width;
    this.ratio = Math.min(devicePixelRatio || 1, 3);
    [this.width, this.height] = [width, height];
    for (const each of [this.canvas, this.layer]) {
      each.width = Math.round(width * this.ratio);
      each.height = Math.round(height * this.ratio);
    }
    if (before) this.changed();
    else this.showAll();
  }

  showAll() {
    const {left, bottom, width, height} = this.box;
    this.widest = Math.min((this.width - 56) / width, (this.height - 56) / height);
    this.scale = this.widest;
    this.middle = [left + width / 2, bottom + height / 2];
    this.changed();
  }

  toScreen(x, y) {
    return [this.width / 2 + (x - this.middle[0]) * this.scale, this.height / 2 - (y - this.middle[1]) * this.scale];
  }

  pan(dx, dy) {
    this.middle = [this.middle[0] - dx / this.scale, this.middle[1] + dy / this.scale];
    this.changed();
  }

  /** Zoom around a position of the screen. */
  zoom(factor, atX = this.width / 2, atY = this.height / 2) {
    const scale = Math.max(this.widest / 2, Math.min(this.widest * 400, this.scale * factor));
    const [dx, dy] = [atX - this.width / 2, this.height / 2 - atY];
    this.middle = [this.middle[0] + dx / this.scale - dx / scale, this.middle[1] + dy / this.scale - dy / scale];
    this.scale = scale;
    this.changed();
  }

  /** Return the nearest point within reach of a position of the screen; -1 if there is none. */
  at(screenX, screenY) {
    const {x, y} = this.data;
    const toX = (screenX - this.width / 2) / this.scale + this.middle[0];
    const toY = (this.height / 2 - screenY) / this.scale + this.middle[1];
    const reach = REACH / this.scale;
    let [best, nearest] = [-1, reach * reach];
    for (let row = this.#cell(toY - reach, "bottom", "height"); row <= this.#cell(toY + reach, "bottom", "height"); row++) {
      for (let column = this.#cell(toX - reach, "left", "width"); column <= this.#cell(toX + reach, "left", "width"); column++) {
        for (const point of this.cells[row * this.side + column]) {
          const distance = (x[point] - toX) ** 2 + (y[point] - toY) ** 2;
          if (distance < nearest && this.isLit(point)) [best, nearest] = [point, distance];
        }
      }
    }
    return best;
  }

  /**
   * Return the nearest point in a direction from the chosen one; the chosen one if there is none.
   * Points that lie on each other are passed one by one: upwards in their order to the right and up, downwards
   * to the left and down.
   */
  next(dx, dy) {
    const {x, y} = this.data;
    const [fromX, fromY] = this.chosen < 0 ? this.middle : [x[this.chosen], y[this.chosen]];
    const isUp = dx + dy > 0;
    let [best, least] = [this.chosen, Infinity];
    for (let point = 0; point < x.length; point++) {
      if (point === this.chosen || !this.isLit(point)) continue;
      const [ahead, aside] = [(x[point] - fromX) * dx + (y[point] - fromY) * dy, Math.abs((x[point] - fromX) * dy - (y[point] - fromY) * dx)];
      const isHere = this.chosen >= 0 && ahead === 0 && aside === 0 && point > this.chosen === isUp;
      if (this.chosen >= 0 && !isHere && (ahead <= 0 || aside > 2 * ahead)) continue;
      const cost = this.chosen < 0 ? ahead ** 2 + aside ** 2 : ahead + 2 * aside;
      if (cost < least || (cost === least && !isUp)) [best, least] = [point, cost];
    }
    return best;
  }

  isLit(point) {
    return this.only < 0 || this.data.classes[point] === this.only;
  }

  /** Show a point, and move the map if it is not visible. */
  choose(point) {
    this.chosen = point;
    if (point < 0) return this.draw();
    const [x, y] = this.toScreen(this.data.x[point], this.data.y[point]);
    if (x < 0 || y < 0 || x > this.width || y > this.height) {
      this.middle = [this.data.x[point], this.data.y[point]];
      this.changed();
    } else this.draw();
  }

  /** Request a new frame. */
  changed() {
    this.isStale = true;
    clearTimeout(this.rest);
    if (this.data.x.length > QUICK && this.drawn) {
      this.rest = setTimeout(() => {
        this.drawn = null;
        this.draw();
      }, REST);
    } else this.drawn = null;
    this.draw();
  }

  draw() {
    if (!this.frame) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.#show();
      });
    }
  }

  #show() {
    if (!this.width) return;
    if (!this.drawn) {
      this.#paint();
      this.drawn = {scale: this.scale, middle: this.middle};
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    // The layer as it was drawn, moved to its current position.
    const by = this.scale / this.drawn.scale;
    const [x, y] = this.toScreen(...this.drawn.middle);
    context.setTransform(by, 0, 0, by, (x - (by * this.width) / 2) * this.ratio, (y - (by * this.height) / 2) * this.ratio);
    context.drawImage(this.layer, 0, 0);
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    if (this.chosen >= 0) this.#mark(context);
  }

  #mark(context) {
    const [x, y] = this.toScreen(this.data.x[this.chosen], this.data.y[this.chosen]);
    const style = getComputedStyle(this.canvas);
    context.lineWidth = 5;
    context.strokeStyle = style.getPropertyValue("--card");
    context.beginPath();
    context.arc(x, y, this.radius + 4, 0, 7);
    context.stroke();
    context.lineWidth = 2.5;
    context.strokeStyle = style.getPropertyValue("--ink");
    context.stroke();
  }

  #paint() {
    const {x, y, classes} = this.data;
    const context = this.layer.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.layer.width, this.layer.height);
    const grown = Math.min(2, Math.sqrt(this.scale / this.widest)) || 1;
    this.radius = Math.max(2, 6.2 - 0.9 * Math.log10(x.length + 1)) * Math.max(1, grown);
    const lies = this.data.fields.names.length > MANY_FIELDS;
    if (this.showsFields && lies) {
      context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      this.#paintFields(context);
      context.setTransform(1, 0, 0, 1, 0, 0);
    }
    const sprites = new Map();
    const order = this.only < 0 ? [true] : [false, true]; // highlighted points are on top
    for (const lit of order) {
      context.globalAlpha = lit ? 0.85 : 0.13;
      for (let point = 0; point < x.length; point++) {
        if (this.only >= 0 && this.isLit(point) !== lit) continue;
        const [atX, atY] = this.toScreen(x[point], y[point]);
        if (atX < -9 || atY < -9 || atX > this.width + 9 || atY > this.height + 9) continue;
        const own = classes[point] < 0 ? -1 : classes[point] % (COLOURS.light.length * SHAPES.length);
        if (!sprites.has(own)) sprites.set(own, this.#sprite(own));
        const sprite = sprites.get(own);
        context.drawImage(sprite, Math.round(atX * this.ratio - sprite.width / 2), Math.round(atY * this.ratio - sprite.height / 2));
      }
    }
    context.globalAlpha = 1;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    if (this.showsFields && !lies) this.#paintFields(context);
    if (this.showsFields && this.showsNames) this.#paintNames(context);
  }

  #sprite(own) {
    const theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const sprite = document.createElement("canvas");
    sprite.width = sprite.height = Math.ceil((2.8 * this.radius + 2) * this.ratio);
    const context = sprite.getContext("2d");
    context.translate(sprite.width / 2, sprite.height / 2);
    context.scale(this.ratio, this.ratio);
    context.fillStyle = own < 0 ? NO_CLASS[theme] : COLOURS[theme][own % COLOURS[theme].length];
    context.beginPath();
    SHAPES[own < 0 ? 0 : Math.floor(own / COLOURS[theme].length)](context, this.radius);
    context.fill();
    context.lineWidth = 0.8;
    context.strokeStyle = getComputedStyle(this.canvas).getPropertyValue("--card");
    context.stroke();
    return sprite;
  }

  #paintFields(context) {
    const {x, y} = this.data.fields;
    const style = getComputedStyle(this.canvas);
    const [ink, card] = [style.getPropertyValue("--ink"), style.getPropertyValue("--card")];
    // Many fields are drawn smaller and fainter.
    const size = Math.max(3, 7 - Math.log10(x.length + 1) * 1.4) * Math.min(1.6, Math.max(1, Math.sqrt(this.scale / this.widest)));
    context.globalAlpha = x.length > MANY_FIELDS ? 0.5 : 1;
    for (const [colour, width] of [[card, size * 0.8], [ink, size * 0.33]]) {
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.lineCap = "round";
      context.beginPath();
      for (let at = 0; at < x.length; at++) {
        const [atX, atY] = this.toScreen(x[at], y[at]);
        context.moveTo(atX - size, atY - size);
        context.lineTo(atX + size, atY + size);
        context.moveTo(atX - size, atY + size);
        context.lineTo(atX + size, atY - size);
      }
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  #paintNames(context) {
    const {names, x, y} = this.data.fields;
    const style = getComputedStyle(this.canvas);
    const [ink, card] = [style.getPropertyValue("--ink"), style.getPropertyValue("--card")];
    context.font = `600 13px ${style.fontFamily}`;
    context.textBaseline = "middle";
    context.lineJoin = "round";
    const taken = []; // a name that would overlap another one is hidden until the user zooms in
    for (let at = 0; at < x.length; at++) {
      const [atX, atY] = this.toScreen(x[at], y[at]);
      const box = [atX + 10, atY - 8, atX + 14 + context.measureText(names[at]).width, atY + 8];
      if (box[0] > this.width || box[2] < 0 || box[1] > this.height || box[3] < 0) continue;
      if (taken.some((other) => box[0] < other[2] && box[2] > other[0] && box[1] < other[3] && box[3] > other[1])) continue;
      taken.push(box);
      context.lineWidth = 4;
      context.strokeStyle = card;
      context.strokeText(names[at], box[0], atY);
      context.fillStyle = ink;
      context.fillText(names[at], box[0], atY);
    }
  }
}
