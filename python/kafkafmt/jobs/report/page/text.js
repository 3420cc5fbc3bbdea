// Text: numbers, sizes and times for people, and elements. Text from data is only ever inserted as text.

const NUMBERS = new Intl.NumberFormat("en-US");
const SHORT_NUMBERS = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const LAST_TIME = 8.64e15; // the last millisecond that a Date can have

/** Returns text in which characters that are not printed, or change the order of others, are spelled out. */
function plain(text) {
  return String(text).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (character) => {
    const code = character.codePointAt(0).toString(16);
    return code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`;
  });
}

function inNumbers(value) {
  return value === null || value === undefined ? "–" : NUMBERS.format(value);
}

/** Returns a count with its noun: "1 batch", "2 batches". */
function inWords(count, noun) {
  const plural = noun + (noun.endsWith("ch") ? "es" : "s");
  return `${inNumbers(count)} ${count === 1 ? noun : plural}`;
}

function inBytes(size) {
  if (size === null || size === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let number = size;
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${unit === 0 || number >= 100 ? Math.round(number) : number.toFixed(1)} ${units[unit]}`;
}

/** Returns a number in at most four characters and a letter: "950", "12.5k", "3.1M". */
function inShort(value) {
  const units = ["", "k", "M", "G", "T"];
  let number = value;
  let unit = 0;
  while (number >= 1000 && unit < units.length - 1) {
    number /= 1000;
    unit += 1;
  }
  return `${number >= 100 || Number.isInteger(number) ? Math.round(number) : number.toFixed(1)}${units[unit]}`;
}

/** Returns milliseconds as a time in UTC; the number if no calendar has it. */
function inTime(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "–";
  if (Math.abs(milliseconds) > LAST_TIME) return String(milliseconds);
  return new Date(milliseconds).toISOString().replace("T", " ").replace("Z", "");
}

function inMinutes(milliseconds) {
  return inTime(milliseconds).replace(/:\d\d\.\d+$/, "");
}

function inSeconds(milliseconds) {
  return inTime(milliseconds).replace(/\.\d+$/, "");
}

function inDuration(milliseconds) {
  const units = [["d", 86400e3], ["h", 3600e3], ["min", 60e3], ["s", 1e3]];
  const at = units.findIndex(([, size]) => milliseconds >= size);
  if (at < 0) return `${Math.round(milliseconds)} ms`;
  const [name, size] = units[at];
  const count = Math.floor(milliseconds / size);
  const next = units[at + 1];
  const rest = next === undefined ? 0 : Math.floor((milliseconds - count * size) / next[1]);
  return `${inNumbers(count)} ${name}${rest > 0 ? ` ${rest} ${next[0]}` : ""}`;
}

function inRange(first, last, format = inNumbers) {
  return first === last ? format(first) : `${format(first)} – ${format(last)}`;
}

/** Returns a new element. properties: of the element; children: elements, or strings that become text. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role" || name === "scope") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

function byId(id) {
  return document.getElementById(id);
}
