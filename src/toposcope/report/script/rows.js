// ---- Rows that a served page received, as functions of arrays: steps ascend, each once

// Put values at their steps, in place of those that were there.
function put(line, steps, values) {
  steps.forEach((step, i) => {
    const at = line.steps.length && step <= line.steps.at(-1) ? line.steps.findLastIndex((each) => each < step) + 1 : line.steps.length;
    const known = line.steps[at] === step ? 1 : 0;
    line.steps.splice(at, known, step);
    line.values.splice(at, known, values[i]);
  });
  return line;
}

// The rows of a part of a line: all of them, or, of more than so many, neighbours as their mean and range.
function merged({ steps, values }, from, to, most) {
  const width = Math.ceil((to - from) / most), rows = [];
  for (let i = from; i < to; i += width) {
    const part = values.slice(i, Math.min(i + width, to)), value = +part.reduce((sum, v) => sum + v / part.length, 0).toPrecision(6);
    rows.push({ step: steps[i + part.length - 1], value, ...(width > 1 && { low: Math.min(...part), high: Math.max(...part) }) });
  }
  return rows;
}

// Lines in at most so many columns of equally many steps: the last step of each, and by line the value in each that differs most
// from the line's mean, so that a spike at one step stays visible.
function columnsOf(lines, most) {
  const steps = [...new Set(lines.flatMap((line) => line.steps))].sort((a, b) => a - b), width = Math.ceil(steps.length / most) || 1;
  const column = new Map(steps.map((step, i) => [step, Math.floor(i / width)])), ends = steps.filter((_, i) => (i + 1) % width === 0 || i === steps.length - 1);
  const values = lines.map((line) => {
    const mean = line.values.reduce((sum, v) => sum + v / line.values.length, 0), shown = ends.map(() => null);
    line.steps.forEach((step, i) => {
      const at = column.get(step), value = line.values[i];
      if (shown[at] === null || Math.abs(value - mean) > Math.abs(shown[at] - mean)) shown[at] = value;
    });
    return shown;
  });
  return { ends, width, values };
}
