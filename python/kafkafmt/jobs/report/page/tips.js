// Tooltips and input of timelines: pointer, wheel and keys.

/** The one tooltip of the page: a title, and rows of a name and a text. */
const tip = {
  show(x, y, title, rows) {
    const box = byId("tip");
    const lines = rows.map(([name, text]) => make("div", {}, make("span", { textContent: name }), make("span", { textContent: text })));
    box.replaceChildren(make("b", { textContent: title }), ...lines);
    box.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = box;
    box.style.left = `${Math.max(Math.min(x + 14, window.innerWidth - width - 8), 8)}px`;
    box.style.top = `${y + 18 + height > window.innerHeight ? Math.max(y - height - 12, 8) : y + 18}px`;
  },
  hide() {
    byId("tip").hidden = true;
  },
};

function categoriesInWords(bins, colouring, at) {
  const found = [];
  eachCategory(bins, colouring, at, (category, size) => found.push([categoryName(colouring, category), size]));
  if (found.length === 1) return found[0][0];
  return found.map(([name, size]) => `${name} ${Math.round((size / bins.size[at]) * 100)}%`).join(", ");
}

function producerInWords(first, last) {
  if (last < 0) return "none";
  if (first === last) return inNumbers(first);
  return first < 0 ? `some, up to ${inNumbers(last)}` : `several: ${inRange(first, last)}`;
}

function binTip(partition, at) {
  const { bins } = partition;
  const batches = bins.batches[at];
  const records = `${inNumbers(bins.records[at])}${bins.uncounted[at] > 0 ? "+" : ""}`;
  return [batches === 1 ? "1 batch" : `${inNumbers(batches)} batches`, [
    ["offsets", inRange(bins.first[at], bins.last[at])],
    ["time", bins.first_time[at] === null ? "none" : inRange(bins.first_time[at], bins.last_time[at], inTime)],
    ["records", records],
    ["size", batches === 1 ? inBytes(bins.size[at]) : `${inBytes(bins.size[at])}, ${inBytes(bins.size[at] / batches)} a batch`],
    ["format", categoriesInWords(bins, "format", at)],
    ["codec", categoriesInWords(bins, "codec", at)],
    ["transaction", categoriesInWords(bins, "state", at)],
    ["producer", producerInWords(bins.first_producer[at], bins.last_producer[at] ?? bins.first_producer[at])],
  ]];
}

function segmentTip({ segments }, at) {
  const count = segments.count[at];
  return [count === 1 ? plain(segments.file[at]) : `${inNumbers(count)} segments from ${plain(segments.file[at])}`, [
    ["offsets", segments.next[at] === null ? "none" : `${inNumbers(segments.base[at])} – ${inNumbers(segments.next[at] - 1)}`],
    ["time", segments.first_time[at] === null ? "none" : inRange(segments.first_time[at], segments.last_time[at], inTime)],
    ["batches", inNumbers(segments.batches[at])],
    ["size", inBytes(segments.size[at])],
    ...(segments.tail[at] > 0 ? [["incomplete end", inBytes(segments.tail[at])]] : []),
    ...(segments.problems[at] > 0 ? [["problems", inNumbers(segments.problems[at])]] : []),
  ]];
}

function damageTip(problem) {
  return [`damage: ${problem.kind}`, [
    ["file", plain(problem.file)],
    ["positions", inRange(problem.position, problem.end_position)],
    ["offsets", offsetsInWords(problem)],
    ["", plain(problem.message)],
  ]];
}

/** Returns the offsets that a problem concerns; a missing end is unknown. */
function offsetsInWords({ first_offset: first, last_offset: last }) {
  if (first === null && last === null) return "–";
  return first === last ? inNumbers(first) : `${first === null ? "?" : inNumbers(first)} – ${last === null ? "?" : inNumbers(last)}`;
}

function marksTip(marks) {
  const rows = marks.slice(0, 12).map(({ offset, position }) => position === null
    ? ["log start offset", inNumbers(offset)]
    : [position.group, `offset ${inNumbers(offset)}, lag ${inNumbers(position.lag)}`]);
  if (marks.length > 12) rows.push([`and ${inNumbers(marks.length - 12)} more`, ""]);
  return [marks.some(({ position }) => position !== null) ? "Committed offsets" : "Log start", rows];
}

/** Returns the title and the rows of what is at a pixel of a timeline; null if there is nothing. */
function tipAt(timeline, x, y) {
  const { partition } = timeline;
  if (timeline.domain === null || x < LEFT - NEAR || x > timeline.right + NEAR) return null;
  if (y <= LANES.segments[1] + 3) {
    const value = timeline.valueAt(x);
    const at = nearest(partition.segments.size.length, (one) => timeline.segmentRange(one), value, timeline);
    return at < 0 ? null : segmentTip(partition, at);
  }
  const marks = timeline.marks().filter((mark) => Math.abs(mark.x - x) <= NEAR);
  if (marks.length > 0) return marksTip(marks);
  const damage = partition.damage.find((problem) => {
    const range = timeline.damageRange(problem);
    return range !== null && x >= range[0] - 2 && x <= range[1] + 2;
  });
  if (damage !== undefined) return damageTip(damage);
  const at = binAt(timeline, x);
  return at < 0 ? null : binTip(partition, at);
}

function binAt(timeline, x) {
  return nearest(timeline.partition.bins.size.length, (one) => timeline.rangeOf(one), timeline.valueAt(x), timeline);
}

/** Returns the number of the shortest range that has a value, or else of one within some pixels; -1 for none. */
function nearest(count, rangeOf, value, timeline) {
  const [low, high] = timeline.domain;
  const near = (2 * (high - low)) / Math.max(timeline.right - LEFT, 1);
  let [found, least] = [-1, Infinity];
  for (let at = 0; at < count; at += 1) {
    const range = rangeOf(at);
    if (range === null) continue;
    const away = Math.max(range[0] - value, value - range[1], 0);
    if (away > near) continue;
    const length = away * 1e6 + range[1] - range[0];
    if (length < least) [found, least] = [at, length];
  }
  return found;
}

Timeline.prototype.listen = function listen() {
  const { canvas } = this;
  let dragged = null;
  canvas.addEventListener("pointermove", (event) => {
    if (dragged !== null && event.buttons === 1) {
      const [low, high] = this.domain;
      this.pan(((dragged - event.offsetX) / (this.right - LEFT)) * (high - low));
      dragged = event.offsetX;
      this.tip.hide();
      return;
    }
    const found = tipAt(this, event.offsetX, event.offsetY);
    if (found === null) this.tip.hide();
    else this.tip.show(event.clientX, event.clientY, ...found);
  });
  canvas.addEventListener("pointerdown", (event) => {
    if (this.domain === null) return;
    dragged = event.offsetX;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => { dragged = null; });
  canvas.addEventListener("pointerleave", () => this.tip.hide());
  canvas.addEventListener("dblclick", (event) => this.zoom(0.5, event.offsetX));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.zoom(event.deltaY > 0 ? 1.25 : 0.8, event.offsetX);
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => this.press(event));
  canvas.addEventListener("blur", () => {
    this.cursor = -1;
    this.tip.hide();
    this.draw();
  });
};

/** Handles a key: arrows move from bin to bin, or with Shift the whole range. */
Timeline.prototype.press = function press(event) {
  if (this.domain === null || event.ctrlKey || event.altKey || event.metaKey) return;
  const count = this.partition.bins.size.length;
  const [low, high] = this.domain;
  const actions = {
    ArrowRight: () => (event.shiftKey ? this.pan((high - low) / 5) : this.moveTo(Math.min(this.cursor + 1, count - 1))),
    ArrowLeft: () => (event.shiftKey ? this.pan((low - high) / 5) : this.moveTo(Math.max(this.cursor - 1, 0))),
    Home: () => this.moveTo(0),
    End: () => this.moveTo(count - 1),
    "+": () => this.zoom(0.5),
    "=": () => this.zoom(0.5),
    "-": () => this.zoom(2),
    0: () => this.setDomain(null),
    Escape: () => this.setDomain(null),
  };
  const act = actions[event.key];
  if (act === undefined) return;
  event.preventDefault();
  act();
};

/** Moves the cursor to a bin, brings it into view, and shows its tooltip. */
Timeline.prototype.moveTo = function moveTo(at) {
  if (at < 0) return;
  this.cursor = at;
  const range = this.rangeOf(at);
  if (range !== null) {
    const [low, high] = this.domain;
    if (range[0] < low) this.pan(range[0] - low);
    else if (range[1] > high) this.pan(Math.min(range[1] - high, range[0] - low));
    const box = this.canvas.getBoundingClientRect();
    const x = Math.max(this.xOf(range[0]), LEFT);
    this.tip.show(box.left + x, box.top + LANES.batches[1] + 12, ...binTip(this.partition, at));
  }
  this.draw();
};
