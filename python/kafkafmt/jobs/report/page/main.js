// Puts the page together.

const LONG_COUNT = 1e7;

function showHead() {
  byId("source").textContent = plain(HEAD.source);
  document.title = `Kafka logs: ${plain(HEAD.source)}`;
  byId("about").textContent = `Written ${inSeconds(HEAD.created_ms)} UTC by kafkafmt ${HEAD.version}. `
    + (HEAD.is_deep ? "All batches were decompressed and all records read." : "CRCs were checked. Nothing was decompressed.");
  const { partitions } = DATA;
  const topics = new Set(partitions.flatMap(({ topic }) => (topic === null ? [] : [topic])));
  const times = partitions.map((partition) => partition.times).filter((one) => one !== null);
  view.allTimes = extent(times.map(([low]) => low), times.map(([, high]) => high));
  const uncounted = sum(partitions.map((partition) => partition.uncounted));
  const { totals } = DATA;
  const tiles = [
    ["Topics", inNumbers(topics.size)], ["Partitions", inNumbers(totals.partitions)], ["Segments", inNumbers(totals.segments)],
    countTile("Batches", totals.batches), countTile("Records", sum(partitions.map((partition) => partition.records)), uncounted > 0 ? "+" : ""),
    ["Size", inBytes(totals.size_in_bytes)],
    ["Problems", inNumbers(totals.problems), totals.damaged > 0 ? `in ${inWords(totals.damaged, "partition")}` : "", totals.problems > 0 ? "bad" : ""],
    ["Time span", view.allTimes === null ? "–" : inDuration(view.allTimes[1] - view.allTimes[0]),
      view.allTimes === null ? "no timestamps" : `${inMinutes(view.allTimes[0])} – ${inMinutes(view.allTimes[1])}`, "span"],
  ];
  byId("tiles").replaceChildren(...tiles.map(([name, text, small = "", kind = ""]) => make("div", { className: `tile ${kind}` },
    make("dt", { textContent: name }), make("dd", {}, text, small === "" ? "" : make("small", { textContent: small })))));
  const notices = [];
  if (totals.left_out > 0) notices.push(`${inWords(totals.left_out, "partition")} more were read and are not shown.`);
  if (DATA.positions_left_out > 0) notices.push(`${inWords(DATA.positions_left_out, "committed offset")} more are not shown.`);
  if (uncounted > 0) notices.push("A + marks a count without the records in compressed messages of v0 and v1. With --deep they are counted.");
  byId("notices").replaceChildren(...notices.map((text) => make("p", { className: "notice", textContent: text })));
}

/** Returns the tile of a count. A long one is shown in short, with all digits below. */
function countTile(name, count, suffix = "") {
  const text = `${inNumbers(count)}${suffix}`;
  return count < LONG_COUNT ? [name, text] : [name, `${SHORT_NUMBERS.format(count)}${suffix}`, text];
}

/** Makes a group of buttons of which one is chosen, as a radio group: arrow keys choose the next one. */
function makeChoice(place, options, chosen, choose) {
  const buttons = Object.entries(options).map(([value, label]) => make("button", { type: "button", role: "radio", textContent: label, value }));
  const select = (button) => {
    for (const one of buttons) {
      one.setAttribute("aria-checked", String(one === button));
      one.tabIndex = one === button ? 0 : -1;
    }
    choose(button.value);
  };
  buttons.forEach((button, number) => {
    button.addEventListener("click", () => select(button));
    button.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      const next = buttons[(number + step + buttons.length) % buttons.length];
      next.focus();
      select(next);
    });
  });
  place.replaceChildren(...buttons);
  select(buttons.find((button) => button.value === chosen));
}

const shownTimelines = new Set(); // those that are scrolled into view
const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) {
      shownTimelines.add(target.timeline);
      target.timeline.draw();
    } else shownTimelines.delete(target.timeline);
  }
}, { rootMargin: "200px" });

function showTimelines(partitions) {
  watcher.disconnect();
  shownTimelines.clear();
  const timelines = partitions.map((partition) => new Timeline(partition, tip));
  byId("timelines").replaceChildren(...timelines.map(({ section }) => section));
  if (timelines.length === 0) byId("timelines").append(make("p", { className: "quiet", textContent: "No partition is chosen." }));
  for (const timeline of timelines) {
    timeline.canvas.timeline = timeline;
    watcher.observe(timeline.canvas);
  }
}

function redraw() {
  colours.read();
  for (const timeline of shownTimelines) timeline.draw();
  arrival.draw();
}

function showLegend() {
  const { names } = COLOURINGS[view.colour];
  const used = names.map((_, category) => view.colour === "damage" || DATA.partitions.some((partition) => partition[view.colour][category] > 0));
  const items = names.flatMap((_, category) => (used[category] ? [legendItem(view.colour, category)] : []));
  const extra = (kind, text) => make("li", {}, make("span", { className: `swatch ${kind}` }), text);
  if (view.colour === "damage" || DATA.partitions.some(({ damage }) => damage.length > 0)) items.push(extra("hatched", "damaged range"));
  if (DATA.partitions.some(({ start }) => start > 0)) items.push(extra("dashed", "log start offset"));
  if (DATA.positions.length > 0) items.push(extra("triangle", "committed offset"));
  byId("legend").replaceChildren(...items);
}

let partitionTable = null;

/** Returns a link to the timeline of a partition, which is shown first if it is on another page of the table. */
function linkTo(partition) {
  const follow = () => { if (byId(partition.id) === null) partitionTable.reveal(partition); };
  return make("a", { href: `#${partition.id}`, textContent: partition.label, onclick: follow });
}

function showPartitions() {
  const number = (name, value, cell = (row) => inNumbers(value(row))) => ({ name, value, cell, kind: "number" });
  const time = (name, end) => ({
    name, value: ({ times }) => times?.[end] ?? null, cell: ({ times }) => (times === null ? "–" : inMinutes(times[end])), kind: "short",
  });
  const lag = (row) => (row.positions.length === 0 ? null : Math.max(...row.positions.map((position) => position.lag ?? 0)));
  const columns = [
    { name: "Partition", value: (row) => row.label, kind: "name", cell: linkTo },
    number("Problems", (row) => row.faults, (row) => (row.faults > 0 ? make("span", { className: "bad", textContent: inNumbers(row.faults) }) : "0")),
    number("Segments", (row) => row.segment_count),
    number("Batches", (row) => row.batches),
    number("Records", (row) => row.records, (row) => `${inNumbers(row.records)}${row.uncounted > 0 ? "+" : ""}`),
    number("Size", (row) => row.size, (row) => inBytes(row.size)),
    number("First offset", (row) => row.offsets?.[0] ?? null),
    number("End offset", (row) => row.end),
    time("First time", 0), time("Last time", 1),
    { name: "Formats", value: (row) => present(row.format, "format").join(), cell: (row) => present(row.format, "format").join(", ") || "–", kind: "short" },
    { name: "Codecs", value: (row) => present(row.codec, "codec").join(), cell: (row) => present(row.codec, "codec").join(", ") || "–", kind: "short" },
    ...(HEAD.is_deep ? [number("Ratio", (row) => ratioOf(sum(row.codec), sum(row.uncompressed)), (row) => {
      const ratio = ratioOf(sum(row.codec), sum(row.uncompressed));
      return ratio === null ? "–" : ratioInWords(ratio);
    })] : []),
    ...(DATA.positions.length > 0 ? [number("Most lag", lag)] : []),
  ];
  const table = new RowTable(byId("partitions"), {
    columns, rows: DATA.partitions, sort: [0, false], empty: "No partition matches.", changed: showTimelines,
  });
  partitionTable = table;
  const choose = () => {
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter((word) => word !== "");
    const [onlyProblems, internal] = [byId("only-problems").checked, byId("internal").checked];
    const count = table.filter((row) => words.every((word) => row.label.toLowerCase().includes(word))
      && (!onlyProblems || row.faults > 0) && (internal || !row.isInternal));
    byId("partition-count").textContent = `${inNumbers(count)} of ${inNumbers(DATA.partitions.length)}`;
    arrival.show(table.chosen);
    showShares(table.chosen);
    showCompression(table.chosen);
  };
  for (const id of ["filter", "only-problems", "internal"]) byId(id).addEventListener("input", choose);
  choose();
  makeChoice(byId("arrival-unit"), { bytes: "Bytes", records: "Records" }, "bytes", (unit) => {
    arrival.unit = unit;
    arrival.show(table.chosen);
  });
}

function showGroups() {
  if (DATA.positions.length === 0) return;
  byId("groups-section").hidden = false;
  const columns = [
    { name: "Group", value: (row) => row.group, cell: (row) => row.group, kind: "name" },
    {
      name: "Partition", value: (row) => row.name, kind: "name", cell: (row) => (row.partition === null ? row.name : linkTo(row.partition)),
    },
    { name: "Committed offset", value: (row) => row.offset, cell: (row) => inNumbers(row.offset), kind: "number" },
    { name: "End offset", value: (row) => row.end, cell: (row) => inNumbers(row.end), kind: "number" },
    { name: "Lag", value: (row) => row.lag, cell: (row) => (row.lag === null ? "not in these logs" : inNumbers(row.lag)), kind: "number" },
  ];
  const table = new RowTable(byId("groups"), { columns, rows: DATA.positions, sort: [4, true], empty: "No group matches." });
  const choose = () => {
    const text = byId("groups-filter").value.toLowerCase();
    const count = table.filter((row) => row.group.toLowerCase().includes(text) || row.name.toLowerCase().includes(text));
    byId("groups-count").textContent = `${inNumbers(count)} of ${inNumbers(DATA.positions.length)}`;
  };
  byId("groups-filter").addEventListener("input", choose);
  choose();
}

function showProblems() {
  const order = { failed: 0, damage: 1, finding: 2, gone: 3, note: 4 };
  const rows = DATA.partitions.flatMap((partition) => partition.problems.map((problem) => ({ partition, problem })));
  const leftOut = sum(DATA.partitions.map((partition) => partition.problems_left_out));
  const text = (name, value, kind = "short") => ({ name, value, cell: value, kind });
  const columns = [
    {
      name: "Severity", value: ({ problem }) => order[problem.severity],
      cell: ({ problem }) => make("span", { className: order[problem.severity] < 3 ? "bad" : "quiet", textContent: problem.severity }),
    },
    { name: "Partition", value: (row) => row.partition.label, kind: "name", cell: ({ partition }) => linkTo(partition) },
    text("File", ({ problem }) => plain(problem.file)),
    text("Kind", ({ problem }) => problem.kind),
    { name: "Positions", value: ({ problem }) => problem.position, cell: ({ problem }) => (problem.position === null ? "–" : inRange(problem.position, problem.end_position)), kind: "number" },
    { name: "Offsets", value: ({ problem }) => problem.first_offset ?? problem.last_offset, cell: ({ problem }) => offsetsInWords(problem), kind: "number" },
    text("Message", ({ problem }) => plain(problem.message), "text"),
  ];
  new RowTable(byId("problems"), { columns, rows, sort: [0, false], empty: "No damage was found." });
  if (leftOut > 0) byId("problems").after(make("p", { className: "quiet", textContent: `${inWords(leftOut, "problem")} more are not shown: kafkafmt verify tells all.` }));
}

function chooseTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", `Use the ${theme === "dark" ? "light" : "dark"} theme`);
  redraw();
}

const systemTheme = window.matchMedia("(prefers-color-scheme: dark)");
chooseTheme(systemTheme.matches ? "dark" : "light");
systemTheme.addEventListener("change", () => chooseTheme(systemTheme.matches ? "dark" : "light"));
byId("theme").addEventListener("click", () => chooseTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
showHead();
showPartitions();
showGroups();
showProblems();
makeChoice(byId("axis"), { offset: "By offset", time: "By time" }, view.axis, (axis) => {
  view.axis = axis;
  byId("aligned-label").hidden = axis !== "time";
  redraw();
});
const labels = Object.fromEntries(Object.entries(COLOURINGS).map(([name, { label }]) => [name, label]));
makeChoice(byId("colour"), labels, view.colour, (colour) => {
  view.colour = colour;
  showLegend();
  redraw();
});
byId("aligned").addEventListener("input", (event) => {
  view.aligned = event.target.checked;
  redraw();
});
window.addEventListener("resize", redraw);
window.addEventListener("scroll", () => tip.hide(), { passive: true });
arrival.listen();
