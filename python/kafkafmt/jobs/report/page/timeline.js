// The timeline of a partition: lanes of segments, of batches, and of their rate, by offset or by time.

const LEFT = 72, RIGHT = 14; // pixels beside the lanes
const LANES = { segments: [6, 20], batches: [28, 68], rate: [80, 118] };
const LEAST_WIDTH = 1; // of what is drawn, in pixels
const NEAR = 5; // pixels from a mark to the pointer
const view = { axis: "offset", colour: "codec", aligned: false, allTimes: null };

class Timeline {
  constructor(partition, tip) {
    this.partition = partition;
    this.tip = tip;
    this.cursor = -1;
    this.zooms = { offset: null, time: null };
    this.canvas = make("canvas", { tabIndex: 0, role: "img", "aria-label": this.describe() });
    const tool = (text, label, act) => make("button", { type: "button", textContent: text, "aria-label": label, title: label, onclick: act });
    this.section = make("section", { className: "timeline", id: partition.id },
      make("header", {},
        make("h3", { className: "mono", textContent: partition.label }),
        make("span", { className: "quiet", textContent: this.summary() }),
        partition.faults > 0 ? make("span", { className: "bad", textContent: inWords(partition.faults, "problem") }) : "",
        make("span", { className: "tools" },
          tool("−", "Zoom out", () => this.zoom(2)),
          tool("+", "Zoom in", () => this.zoom(0.5)),
          tool("All", "Show all", () => this.setDomain(null)))),
      this.canvas);
    this.listen();
  }

  summary() {
    const { partition } = this;
    if (partition.batches === 0) return `no batches, ${inWords(partition.segment_count, "segment")}`;
    return [
      `offsets ${inRange(...partition.offsets)}`, inWords(partition.segment_count, "segment"), inWords(partition.batches, "batch"),
      inBytes(partition.size), partition.times === null ? "no timestamps" : inDuration(partition.times[1] - partition.times[0]),
    ].join(" · ");
  }

  describe() {
    return `Timeline of ${this.partition.label}: ${this.summary()}. Arrow keys go from bin to bin.`;
  }

  /** The range of all: null if there is nothing to show on this axis. */
  get full() {
    const { partition } = this;
    if (view.axis === "time") {
      const times = view.aligned && partition.times !== null ? view.allTimes : partition.times;
      return times === null ? null : times[0] === times[1] ? [times[0] - 500, times[1] + 500] : times;
    }
    if (partition.offsets === null) return null;
    return [partition.offsets[0], Math.max(partition.end ?? 0, partition.offsets[1] + 1)];
  }

  get domain() {
    return this.zooms[view.axis] ?? this.full;
  }

  setDomain(domain) {
    const full = this.full;
    if (domain !== null && full !== null) {
      const least = view.axis === "time" ? 2 : 1;
      const span = Math.max(domain[1] - domain[0], least);
      if (span >= full[1] - full[0]) domain = null;
      else {
        const low = Math.min(Math.max(domain[0], full[0]), full[1] - span);
        domain = [low, low + span];
      }
    }
    this.zooms[view.axis] = domain;
    this.draw();
  }

  /** Zooms by a factor around a pixel, or around the middle. */
  zoom(factor, x = (LEFT + this.right) / 2) {
    if (this.domain === null) return;
    const at = this.valueAt(x);
    const [low, high] = this.domain;
    this.setDomain([at - (at - low) * factor, at + (high - at) * factor]);
  }

  pan(values) {
    if (this.domain !== null) this.setDomain(this.domain.map((value) => value + values));
  }

  get right() {
    return this.canvas.clientWidth - RIGHT;
  }

  valueAt(x) {
    const [low, high] = this.domain;
    return low + ((x - LEFT) / (this.right - LEFT)) * (high - low);
  }

  xOf(value) {
    const [low, high] = this.domain;
    return LEFT + ((value - low) / (high - low)) * (this.right - LEFT);
  }

  /** Returns the range of a bin on the present axis; null if it has no time. */
  rangeOf(at) {
    const { bins } = this.partition;
    if (view.axis === "offset") return [bins.first[at], bins.last[at] + 1];
    return bins.first_time[at] === null ? null : [bins.first_time[at], bins.last_time[at]];
  }

  segmentRange(at) {
    const { segments } = this.partition;
    if (view.axis === "time") return segments.first_time[at] === null ? null : [segments.first_time[at], segments.last_time[at]];
    if (segments.next[at] === null) return null;
    return [segments.base[at] ?? this.partition.offsets[0], segments.next[at]];
  }

  /** Returns where an offset is on the present axis: for time, the last timestamp of the batches before it. */
  placeOf(offset) {
    if (view.axis === "offset") return offset;
    const { bins } = this.partition;
    let [low, high] = [0, bins.first.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (bins.last[middle] < offset) low = middle + 1;
      else high = middle;
    }
    if (low === 0) return bins.first_time[0] ?? null;
    return bins.last_time[low - 1] ?? null;
  }

  draw() {
    const { context, width, height } = prepared(this.canvas);
    const names = colours.names;
    context.fillStyle = names.quiet;
    if (this.domain === null) {
      context.textAlign = "center";
      const text = this.partition.batches === 0 ? "No batches" : "No batch has a timestamp (message format v0)";
      context.fillText(text, width / 2, height / 2);
      return;
    }
    drawAxis(context, view.axis, this.domain, { left: LEFT, right: this.right, top: LANES.segments[0], bottom: LANES.rate[1] });
    context.textAlign = "left";
    context.fillStyle = names.quiet;
    for (const [lane, [top, bottom]] of Object.entries(LANES)) if (lane !== "rate") context.fillText(lane, 2, (top + bottom) / 2);
    context.save();
    context.beginPath();
    context.rect(LEFT - 1, 0, this.right - LEFT + 2, height);
    context.clip();
    this.drawSegments(context);
    this.drawBatches(context);
    this.drawDamage(context);
    this.drawRate(context);
    this.drawMarks(context);
    this.drawCursor(context);
    context.restore();
    this.drawRateLabel(context);
  }

  drawSegments(context) {
    const { segments } = this.partition;
    const [top, bottom] = LANES.segments;
    for (let at = 0; at < segments.size.length; at += 1) {
      const range = this.segmentRange(at);
      if (range === null) continue;
      const [x, end] = range.map((value) => this.xOf(value));
      if (end < LEFT || x > this.right) continue;
      context.fillStyle = colours.names[segments.problems[at] > 0 ? "red" : at % 2 === 0 ? "segment" : "segment-other"];
      context.fillRect(x, top, Math.max(end - x - (end - x > 4 ? 1 : 0), LEAST_WIDTH), bottom - top);
    }
  }

  drawBatches(context) {
    const { bins } = this.partition;
    const [top, bottom] = LANES.batches;
    context.fillStyle = colours.names.lane;
    context.fillRect(LEFT, top, this.right - LEFT, bottom - top);
    const palette = COLOURINGS[view.colour].colours.map((name) => colours.names[name]);
    for (let at = 0; at < bins.size.length; at += 1) {
      const range = this.rangeOf(at);
      if (range === null) continue;
      const x = this.xOf(range[0]);
      const width = Math.max(this.xOf(range[1]) - x, LEAST_WIDTH);
      if (x + width < LEFT || x > this.right) continue;
      const gap = width > 6 ? 1 : 0;
      let y = top;
      eachCategory(bins, view.colour, at, (category, size) => {
        const part = (size / bins.size[at]) * (bottom - top);
        context.fillStyle = palette[category];
        context.fillRect(x, y, width - gap, part);
        y += part;
      });
    }
  }

  /** Returns the pixels of a damaged range; null if its place is not known on the present axis. */
  damageRange(problem) {
    const low = problem.first_offset ?? problem.last_offset;
    if (low === null) return null;
    const from = this.placeOf(low);
    const to = this.placeOf(Math.max(problem.last_offset ?? low, low) + 1);
    if (from === null || to === null) return null;
    const x = this.xOf(from);
    return [x, Math.max(this.xOf(to), x + 3)];
  }

  drawDamage(context) {
    const [top, bottom] = LANES.batches;
    for (const problem of this.partition.damage) {
      const range = this.damageRange(problem);
      if (range === null || range[1] < LEFT || range[0] > this.right) continue;
      const [x, end] = range;
      context.save();
      context.beginPath();
      context.rect(x, top - 3, end - x, bottom - top + 6);
      context.clip();
      context.fillStyle = colours.names.card;
      context.fillRect(x, top - 3, end - x, bottom - top + 6);
      context.strokeStyle = colours.names.red;
      context.lineWidth = 2;
      context.beginPath();
      for (let line = x - (bottom - top) - 6; line < Math.min(end, this.right); line += 6) {
        if (line + (bottom - top) + 6 < LEFT) continue;
        context.moveTo(line, bottom + 3);
        context.lineTo(line + (bottom - top) + 6, top - 3);
      }
      context.stroke();
      context.strokeRect(x, top - 3, end - x, bottom - top + 6);
      context.restore();
    }
  }

  /** The rate lane: bytes a second by time; by offset, the bytes of a record. */
  rates() {
    const { bins } = this.partition;
    const count = Math.max(Math.floor((this.right - LEFT) / 3), 1);
    const [low, high] = this.domain;
    const buckets = new Float64Array(count);
    if (view.axis === "time") {
      spread(bins, bins.size, [low, high], buckets);
      return buckets.map((bytes) => (bytes * count * 1000) / (high - low));
    }
    const weights = new Float64Array(count);
    for (let at = 0; at < bins.size.length; at += 1) {
      if (bins.records[at] === 0) continue;
      const from = ((bins.first[at] - low) / (high - low)) * count;
      const to = ((bins.last[at] + 1 - low) / (high - low)) * count;
      for (let bucket = Math.max(Math.floor(from), 0); bucket < Math.min(Math.ceil(to), count); bucket += 1) {
        const share = Math.min(to, bucket + 1) - Math.max(from, bucket);
        buckets[bucket] += (share * bins.size[at]) / bins.records[at];
        weights[bucket] += share;
      }
    }
    return buckets.map((bytes, bucket) => (weights[bucket] > 0 ? bytes / weights[bucket] : 0));
  }

  drawRate(context) {
    const [top, bottom] = LANES.rate;
    const rates = this.rates();
    this.highestRate = rates.reduce((most, rate) => Math.max(most, rate), 0);
    if (this.highestRate === 0) return;
    const width = (this.right - LEFT) / rates.length;
    context.fillStyle = colours.names.rate;
    rates.forEach((rate, bucket) => {
      const part = rate === 0 ? 0 : Math.max((rate / this.highestRate) * (bottom - top), 1);
      context.fillRect(LEFT + bucket * width, bottom - part, width + 0.3, part);
    });
  }

  drawRateLabel(context) {
    const [top, bottom] = LANES.rate;
    context.fillStyle = colours.names.quiet;
    context.textAlign = "left";
    context.fillText(view.axis === "time" ? "bytes/s" : "bytes/rec.", 2, (top + bottom) / 2 - 7);
    context.fillText(`≤ ${inBytes(this.highestRate)}`, 2, (top + bottom) / 2 + 7);
  }

  /** Returns the marks that have a place: the log start offset, and the positions of groups. */
  marks() {
    const { partition } = this;
    const marks = partition.positions.map((position) => ({ offset: position.offset, position }));
    if (partition.start > 0) marks.unshift({ offset: partition.start, position: null });
    return marks.flatMap((mark) => {
      const place = this.placeOf(mark.offset);
      return place === null ? [] : [{ ...mark, x: this.xOf(place) }];
    });
  }

  drawMarks(context) {
    const [top, bottom] = LANES.batches;
    for (const { x, position } of this.marks()) {
      if (x < LEFT - 1 || x > this.right + 1) continue;
      context.strokeStyle = context.fillStyle = colours.names.text;
      context.lineWidth = 1;
      context.setLineDash(position === null ? [4, 3] : []);
      context.beginPath();
      context.moveTo(x, top - 4);
      context.lineTo(x, bottom + 4);
      context.stroke();
      context.setLineDash([]);
      if (position === null) continue;
      context.beginPath();
      context.moveTo(x, bottom + 1);
      context.lineTo(x - 5, bottom + 9);
      context.lineTo(x + 5, bottom + 9);
      context.fill();
    }
  }

  drawCursor(context) {
    if (this.cursor < 0) return;
    const range = this.rangeOf(this.cursor);
    if (range === null) return;
    const [top, bottom] = LANES.batches;
    const [x, end] = range.map((value) => this.xOf(value));
    context.strokeStyle = colours.names.text;
    context.lineWidth = 2;
    context.strokeRect(x - 1, top - 2, Math.max(end - x, 2) + 1, bottom - top + 4);
  }
}
