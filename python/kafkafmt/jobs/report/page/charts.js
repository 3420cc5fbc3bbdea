// The charts of the overview: arrival over time, shares of formats, codecs and transactions, and compression.

const ARRIVAL_BUCKETS = 240;
const ARRIVAL_UNITS = {
  bytes: { amounts: (bins) => bins.size, text: inBytes },
  records: { amounts: (bins) => bins.records, text: (count) => `${inShort(count)} records` },
};
const FAR = 20; // times the range of nearly all bytes: a longer range is cut to it
const OUTLIERS = 0.005; // of the bytes, at each end of the range

/** Returns the range of times that is shown of partitions: without a few outliers far away, or all. */
function shownTimes(partitions) {
  const times = partitions.map((partition) => partition.times).filter((one) => one !== null);
  const full = extent(times.map(([low]) => low), times.map(([, high]) => high));
  if (full === null) return null;
  const bins = partitions.flatMap(({ bins }) => bins.size.flatMap((size, at) =>
    (bins.first_time[at] === null ? [] : [[bins.first_time[at], bins.last_time[at], size]])));
  const least = sum(bins.map(([, , size]) => size)) * OUTLIERS;
  const low = passing(bins.map(([first, , size]) => [first, size]).sort(([one], [other]) => one - other), least);
  const high = passing(bins.map(([, last, size]) => [last, size]).sort(([one], [other]) => other - one), least);
  const margin = (high - low) * 0.02;
  const range = full[1] - full[0] > FAR * (high - low) && high > low ? [low - margin, high + margin] : full;
  return range[0] === range[1] ? [range[0] - 500, range[1] + 500] : range;
}

/** Returns the first time at which more than `least` bytes have passed. */
function passing(times, least) {
  let passed = 0;
  for (const [time, size] of times) {
    passed += size;
    if (passed > least) return time;
  }
  return times[0][0];
}

/** Returns the unit of time in which a rate a second is at least one: its name, and its seconds. */
function rateUnit(rate) {
  return [["s", 1], ["min", 60], ["h", 3600]].find(([, seconds]) => rate * seconds >= 1) ?? ["d", 86400];
}

const arrival = {
  unit: "bytes",
  rates: new Float64Array(0),
  times: null,
  outside: 0,

  /** Computes the rates of partitions, and draws them. */
  show(partitions) {
    this.times = shownTimes(partitions);
    this.rates = new Float64Array(ARRIVAL_BUCKETS);
    this.outside = 0;
    if (this.times !== null) {
      const [low, high] = this.times;
      for (const { bins } of partitions) {
        spread(bins, ARRIVAL_UNITS[this.unit].amounts(bins), this.times, this.rates);
        bins.first_time.forEach((first, at) => {
          if (first !== null && (bins.last_time[at] < low || first > high)) this.outside += bins.batches[at];
        });
      }
      const seconds = (high - low) / 1000 / ARRIVAL_BUCKETS;
      this.rates = this.rates.map((amount) => amount / seconds);
    }
    this.draw();
  },

  rateText(rate) {
    const [name, seconds] = rateUnit(this.rates.reduce((most, one) => Math.max(most, one), 0));
    return `${ARRIVAL_UNITS[this.unit].text(rate * seconds)}/${name}`;
  },

  draw() {
    const canvas = byId("arrival");
    const { context, width, height } = prepared(canvas);
    const box = { left: 76, right: width - 10, top: 12, bottom: height - 26 };
    this.box = box;
    const highest = this.rates.reduce((most, rate) => Math.max(most, rate), 0);
    byId("arrival-note").textContent = this.times === null ? "" : "By the timestamps in batch headers, UTC."
      + (this.outside > 0 ? ` ${inWords(this.outside, "batch")} far from the others ${this.outside === 1 ? "is" : "are"} not shown.` : "");
    canvas.setAttribute("aria-label", `Arrival over time, at most ${this.rateText(highest)}`);
    context.fillStyle = colours.names.quiet;
    if (highest === 0) {
      context.textAlign = "center";
      context.fillText("No batch has a timestamp", width / 2, height / 2);
      return;
    }
    drawAxis(context, "time", this.times, box);
    context.textAlign = "right";
    for (const share of [0, 0.5, 1]) {
      const y = Math.round(box.bottom - share * (box.bottom - box.top)) + 0.5;
      context.fillStyle = colours.names.grid;
      context.fillRect(box.left, y - 0.5, box.right - box.left, 1);
      context.fillStyle = colours.names.quiet;
      context.fillText(share === 0 ? "0" : this.rateText(highest * share).replace(" records", ""), box.left - 8, y);
    }
    const step = (box.right - box.left) / this.rates.length;
    context.fillStyle = colours.names.accent;
    this.rates.forEach((rate, at) => {
      const part = rate === 0 ? 0 : Math.max((rate / highest) * (box.bottom - box.top), 1);
      context.fillRect(box.left + at * step, box.bottom - part, Math.max(step - 0.5, 1), part);
    });
  },

  listen() {
    const canvas = byId("arrival");
    canvas.addEventListener("pointermove", (event) => {
      const { left, right } = this.box;
      const at = Math.floor(((event.offsetX - left) / (right - left)) * this.rates.length);
      if (this.times === null || at < 0 || at >= this.rates.length) {
        tip.hide();
        return;
      }
      const step = (this.times[1] - this.times[0]) / this.rates.length;
      const from = Math.round(this.times[0] + at * step);
      tip.show(event.clientX, event.clientY, this.rateText(this.rates[at]), [["from", inTime(from)], ["for", inDuration(step)]]);
    });
    canvas.addEventListener("pointerleave", () => tip.hide());
  },
};

/** Shows the bytes of each category of the colourings as bars. */
function showShares(partitions) {
  const bars = [["format", "Message format"], ["codec", "Codec"], ["state", "Transactions"]].map(([colouring, title]) => {
    const sizes = COLOURINGS[colouring].names.map((_, category) => sum(partitions.map((partition) => partition[colouring][category])));
    const total = sum(sizes);
    const shown = sizes.map((size, category) => [size, category]).filter(([size]) => size > 0);
    const percent = (size) => { const part = (size / total) * 100; return part < 1 ? "<1%" : `${Math.round(part)}%`; };
    const bar = make("div", { className: "share-bar" });
    const legend = make("ul", { className: "legend" });
    for (const [size, category] of shown) {
      const part = make("span", { title: `${categoryName(colouring, category)}: ${inBytes(size)}` });
      part.style.flex = `${size} 0 0`;
      part.style.background = `var(--${COLOURINGS[colouring].colours[category]})`;
      bar.append(part);
      legend.append(legendItem(colouring, category, ` ${percent(size)}`));
    }
    if (total === 0) legend.append(make("li", { className: "quiet", textContent: "no batches" }));
    return make("div", { className: "share" },
      make("div", { className: "share-name" }, make("span", { textContent: title }), make("span", { textContent: inBytes(total) })), bar, legend);
  });
  byId("shares").replaceChildren(...bars);
}

function legendItem(colouring, category, suffix = "") {
  const swatch = make("span", { className: "swatch" });
  swatch.style.background = `var(--${COLOURINGS[colouring].colours[category]})`;
  return make("li", {}, swatch, `${categoryName(colouring, category)}${suffix}`);
}

/** Shows what each codec has stored, and its ratio if batches were decompressed. */
function showCompression(partitions) {
  const rows = HEAD.codecs.flatMap((name, codec) => {
    const stored = sum(partitions.map((partition) => partition.codec[codec]));
    if (stored === 0) return [];
    const whole = HEAD.is_deep && name !== "none" ? sum(partitions.map((partition) => partition.uncompressed?.[codec] ?? 0)) : null;
    return [make("tr", {}, ...[[categoryName("codec", codec), ""], [inBytes(stored), "number"],
      [name === "none" ? inBytes(stored) : whole === null ? "unknown" : inBytes(whole), "number"],
      [name === "none" ? "–" : ratioInWords(ratioOf(stored, whole)), "number"],
    ].map(([text, kind]) => make("td", { className: kind, textContent: text })))];
  });
  if (rows.length === 0) {
    byId("compression").replaceChildren(make("p", { className: "quiet", textContent: "no batches" }));
    return;
  }
  const heads = [["codec", ""], ["stored", "number"], ["decompressed", "number"], ["ratio", "number"]]
    .map(([text, kind]) => make("th", { scope: "col", className: kind, textContent: text }));
  const note = HEAD.is_deep ? [] : ["Batch headers do not have decompressed sizes. With ", make("code", { textContent: "--deep" }), " the report has them."];
  byId("compression").replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows)),
    make("p", { className: "quiet" }, ...note));
}
