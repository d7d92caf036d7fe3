// ---- Scales: smoothing, ranges and thinning of lines, as functions of arrays

const FLAT = 10; // values are drawn flat by a range so many times theirs
const INSIDE = 0.95; // share of a line's values that its range holds
const SHARED = 0.1; // share of its values that a run which exploded has in common with the others

// An exponential moving average over uneven steps. A value weighs as long as its step lasted, and nothing before the first counts.
function smoothed(steps, values, halfLife) {
  const known = values.map((_, i) => i).filter((i) => Number.isFinite(values[i]));
  const result = values.map(() => null), gap = known.length > 1 ? steps[known[1]] - steps[known[0]] : 1;
  let sum = 0, weight = 0, before = steps[known[0]] - gap;
  for (const i of known) {
    const kept = 2 ** ((before - steps[i]) / halfLife);
    sum = kept * sum + (1 - kept) * values[i];
    weight = kept * weight + 1 - kept;
    result[i] = weight ? sum / weight : values[i];
    before = steps[i];
  }
  return result;
}

const span = ([low, high]) => high - low;
const hull = (...ranges) => [Math.min(...ranges.map((range) => range[0])), Math.max(...ranges.map((range) => range[1]))];

// The shortest interval that holds 95% of sorted values.
function shortest(sorted) {
  const last = Math.ceil(INSIDE * sorted.length) - 1;
  let best = 0;
  for (let i = 1; i + last < sorted.length; i++) if (sorted[i + last] - sorted[i] < sorted[best + last] - sorted[best]) best = i;
  return [sorted[best], sorted[best + last]];
}

// The range of one line: all of its values, unless a few would make the others flat; with its last value unless that would.
function lineRange(values) {
  const sorted = Float64Array.from(values).sort(), whole = [sorted[0], sorted.at(-1)], inner = shortest(sorted);
  if (!span(inner) || span(whole) <= FLAT * span(inner)) return whole;
  const withLast = hull(inner, [values.at(-1), values.at(-1)]);
  return span(withLast) <= FLAT * span(inner) ? withLast : inner;
}

// The range of several lines: of all but those that were among the others, exploded, and would make them flat.
function robustRange(lines) {
  const known = lines.filter((values) => values.length).map((values) => ({ values, range: lineRange(values) }));
  if (!known.length) return null;
  known.sort((a, b) => span(a.range) - span(b.range));
  const half = Math.ceil(known.length / 2);
  let range = hull(...known.slice(0, half).map((line) => line.range));
  for (const line of known.slice(half)) {
    const wider = hull(range, line.range), [low, high] = range;
    const common = line.values.filter((value) => value >= low && value <= high).length / line.values.length;
    if (!span(range) || span(wider) <= FLAT * span(range) || common < SHARED) range = wider;
  }
  return range;
}

// The places of about so many values that keep the extremes of every stretch, and both ends.
function thinned(values, most) {
  const n = values.length, stretches = Math.max(1, Math.floor(most / 2) - 1);
  if (n <= most) return values.map((_, i) => i);
  const kept = new Set([0, n - 1]);
  for (let k = 0, from = 0; k < stretches; k++) {
    const to = Math.floor(((k + 1) * n) / stretches);
    let low = -1, high = -1;
    for (; from < to; from++) {
      if (!Number.isFinite(values[from])) continue;
      if (low < 0 || values[from] < values[low]) low = from;
      if (high < 0 || values[from] > values[high]) high = from;
    }
    if (low >= 0) kept.add(low).add(high);
  }
  return [...kept].sort((a, b) => a - b);
}

// The value at a step, between known ones and beyond them on a straight line; null if fewer than two are known.
function interpolated(steps, values, at) {
  if (steps.length < 2) return null;
  let [low, high] = [0, steps.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= at) low = middle;
    else high = middle;
  }
  return values[low] + ((at - steps[low]) / (steps[high] - steps[low])) * (values[high] - values[low]);
}

// Whether a name matches what was typed: an expression, or, if that is not one, the text itself.
function matcher(typed) {
  try {
    const pattern = new RegExp(typed, "i");
    return { matches: (name) => pattern.test(name), literal: false };
  } catch {
    return { matches: (name) => name.toLowerCase().includes(typed.toLowerCase()), literal: true };
  }
}
