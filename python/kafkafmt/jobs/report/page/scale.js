// Scales: from offsets and times to pixels, and the ticks of an axis.

const SECOND = 1e3, MINUTE = 60e3, HOUR = 3600e3, DAY = 86400e3, YEAR = 365 * DAY;
const TIME_STEPS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, SECOND, 2e3, 5e3, 10e3, 15e3, 30e3, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE,
  15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 30 * DAY,
  90 * DAY, 180 * DAY, YEAR, 2 * YEAR, 5 * YEAR, 10 * YEAR, 50 * YEAR,
];

/** Returns a round step of 1, 2 or 5 times a power of ten that is at least `least`. */
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * 0.999) ?? 10 * power;
}

/** Returns the ticks of an axis from `low` to `high` with at most `most` labels: a value and its text each. */
function ticksOf(axis, low, high, most) {
  const least = (high - low) / Math.max(most, 1);
  const step = axis === "time"
    ? TIME_STEPS.find((one) => one >= least) ?? roundStep(least)
    : Math.max(roundStep(least), 1);
  const ticks = [];
  for (let value = Math.ceil(low / step) * step; value <= high && ticks.length <= most + 1; value += step) {
    ticks.push({ value, text: axis === "time" ? tickTime(value, step, ticks.length === 0) : inNumbers(value) });
  }
  return ticks;
}

/** Returns the text of a tick: a date, or a time of day; of the first tick always with its date. */
function tickTime(value, step, isFirst) {
  const text = inTime(value);
  if (text.length !== 23) return text; // a year beyond four digits
  if (step >= DAY || value % DAY === 0) return text.slice(0, 10);
  const stop = step >= MINUTE ? 16 : step >= SECOND ? 19 : 23;
  return text.slice(isFirst ? 0 : 11, stop);
}

/** Returns a canvas's context that draws in CSS pixels, and its size; the canvas is cleared. */
function prepared(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const density = window.devicePixelRatio || 1;
  const [across, down] = [Math.round(width * density), Math.round(height * density)];
  if (canvas.width !== across || canvas.height !== down) [canvas.width, canvas.height] = [across, down];
  const context = canvas.getContext("2d");
  context.setTransform(density, 0, 0, density, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif";
  context.textBaseline = "middle";
  return { context, width, height };
}

/** The colours of the present theme, by name. */
const colours = {
  names: {},
  read() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["text", "quiet", "line", "grid", "lane", "segment", "segment-other", "rate", "accent", "card",
      "grey", "blue", "sky", "green", "orange", "red", "purple"]) {
      this.names[name] = style.getPropertyValue(`--${name}`).trim();
    }
  },
};

/** Draws the ticks of an axis below `bottom`, with grid lines from `top`. */
function drawAxis(context, axis, [low, high], { left, right, top, bottom }) {
  const names = colours.names;
  context.textAlign = "center";
  let free = left - 20;
  for (const { value, text } of ticksOf(axis, low, high, Math.floor((right - left) / 110))) {
    const x = Math.round(left + ((value - low) / (high - low)) * (right - left)) + 0.5;
    context.fillStyle = names.grid;
    context.fillRect(x - 0.5, top, 1, bottom - top + 4);
    const half = context.measureText(text).width / 2;
    const at = Math.min(Math.max(x, left + half - 8), right - half + 8);
    if (at - half < free) continue;
    context.fillStyle = names.quiet;
    context.fillText(text, at, bottom + 12);
    free = at + half + 12;
  }
}

/** Adds the bytes or records of bins to `buckets` of equal time, each spread evenly from its first to its last time. */
function spread(bins, amounts, [low, high], buckets) {
  const scale = buckets.length / (high - low);
  for (let at = 0; at < amounts.length; at += 1) {
    const first = bins.first_time[at];
    const last = bins.last_time[at];
    if (first === null || last < low || first > high) continue;
    const from = (first - low) * scale;
    const to = (last - low) * scale;
    const start = Math.min(Math.max(Math.floor(from), 0), buckets.length - 1);
    const stop = Math.min(Math.floor(to), buckets.length - 1);
    if (start === stop && from >= 0 && to <= buckets.length) {
      buckets[start] += amounts[at];
      continue;
    }
    for (let bucket = start; bucket <= stop; bucket += 1) {
      const share = Math.min(to, bucket + 1) - Math.max(from, bucket);
      buckets[bucket] += (amounts[at] * Math.max(share, 0)) / (to - from);
    }
  }
}
