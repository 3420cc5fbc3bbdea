// Data: what the page holds, and what follows from it for each partition.

const DATA = JSON.parse(byId("data").textContent);
const HEAD = DATA.head;

/** The ways to colour batches: a column of the bins, and the name and the colour of each of its categories. */
const COLOURINGS = {
  codec: { label: "Codec", names: HEAD.codecs, colours: ["grey", "orange", "sky", "green", "purple", "red"] },
  format: { label: "Format", names: HEAD.formats, colours: ["red", "orange", "blue"] },
  state: { label: "Transaction", names: HEAD.states, colours: ["grey", "blue", "red", "orange", "purple"] },
  damage: { label: "Damage", names: ["sound"], colours: ["green"] },
};
const STATE_WORDS = { none: "no transaction", open: "open transaction" };

/** Returns the name of a category as the page shows it. */
function categoryName(colouring, number) {
  const name = COLOURINGS[colouring].names[number];
  return colouring === "state" ? STATE_WORDS[name] ?? name : name;
}

/** Calls `visit(category, bytes)` for each category of a bin. */
function eachCategory(bins, colouring, at, visit) {
  const cell = colouring === "damage" ? 0 : bins[colouring][at];
  if (!Array.isArray(cell)) {
    visit(cell, bins.size[at]);
    return;
  }
  for (let i = 0; i < cell.length; i += 2) visit(cell[i], cell[i + 1]);
}

/** Returns the lowest first and the highest last number of two columns; null if they have none. */
function extent(firsts, lasts) {
  let [low, high] = [Infinity, -Infinity];
  for (const number of firsts) if (number !== null && number < low) low = number;
  for (const number of lasts) if (number !== null && number > high) high = number;
  return low <= high ? [low, high] : null;
}

function sum(numbers) {
  let total = 0;
  for (const number of numbers) total += number;
  return total;
}

/** Adds to a partition what follows from its columns. */
function complete(partition, number) {
  const { bins, segments } = partition;
  partition.id = `partition-${number}`;
  partition.label = plain(partition.name);
  partition.isInternal = partition.topic !== null && partition.topic.startsWith("__");
  partition.batches = sum(bins.batches);
  partition.records = sum(bins.records);
  partition.uncounted = sum(bins.uncounted);
  partition.times = extent(bins.first_time, bins.last_time);
  const bases = segments.base.filter((base) => base !== null);
  partition.offsets = extent(bins.first.concat(bases), bins.last.concat(bases));
  for (const colouring of ["format", "codec", "state"]) {
    const sizes = new Array(COLOURINGS[colouring].names.length).fill(0);
    for (let at = 0; at < bins.size.length; at += 1) {
      eachCategory(bins, colouring, at, (category, size) => { sizes[category] += size; });
    }
    partition[colouring] = sizes;
  }
  partition.damage = partition.problems.filter((problem) => problem.severity === "damage");
  partition.faults = sum(segments.problems);
  partition.positions = [];
}

/** Returns the names of the categories that have bytes. */
function present(sizes, colouring) {
  return sizes.flatMap((size, category) => (size > 0 ? [categoryName(colouring, category)] : []));
}

/** Returns the size without compression divided by the stored size; null if it is unknown, or if nothing is stored. */
function ratioOf(stored, uncompressed) {
  return uncompressed === null || stored === 0 ? null : uncompressed / stored;
}

function ratioInWords(ratio) {
  return ratio === null ? "unknown" : `${ratio.toFixed(2)}×`;
}

DATA.partitions.forEach(complete);
{
  const known = new Map();
  for (const partition of DATA.partitions) {
    if (partition.topic !== null) known.set(`${partition.topic}\n${partition.partition}`, partition);
  }
  DATA.positions = DATA.positions.map(([group, topic, number, offset]) => {
    const partition = known.get(`${topic}\n${number}`) ?? null;
    const end = partition === null ? null : partition.end;
    const position = {
      group: plain(group), name: plain(`${topic}-${number}`), offset, partition, end,
      lag: end === null ? null : Math.max(end - offset, 0),
    };
    if (partition !== null) partition.positions.push(position);
    return position;
  });
}
