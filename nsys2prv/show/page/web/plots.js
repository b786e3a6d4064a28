// The plots of a study: speed-up, factors and regions over runs, and the times of iterations.

/** Factors that are plotted: those of devices, and of MPI. */
const FACTORS = {
  device: ["parallel", "load_balance", "communication", "orchestration", "computation_scalability"],
  mpi: ["parallel", "load_balance", "communication", "serialisation", "transfer"],
};

/** study: as list_plotted of study/page.py has it. Returns plots as drawLines of lines.js takes them. */
export const listPlots = ({ names, counts, unit, reference, good, figures, regions, ofRegions, best, titles, times }) => {
  const hasScale = counts.length > 1 && new Set(counts).size === counts.length, plots = [];
  const x = hasScale ? { x: counts.map(Math.log2), names: counts.map(count => count.toLocaleString("en-US")), axis: unit }
    : { x: counts.map((_, at) => at), names, axis: "runs" };
  const plot = (title, unit, lines, guide = {}, over = x) => {
    const known = lines.filter(([, values]) => values?.some(one => one !== null));
    if (known.length) plots.push({ title, unit, guide, ...over, lines: Object.fromEntries(known) });
  };
  const acceptable = { [`${100 * good} % (POP)`]: counts.map(() => good) };
  if (hasScale) plot("Speed-up", "ratio", [["measured", figures.speedup?.[1]]], { ideal: counts.map(count => count / reference) });
  for (const [part, title] of [["device", "devices"], ["mpi", "MPI"]]) {
    const found = FACTORS[part].map(name => figures[`${part}.${name}`]).filter(Boolean);
    plot(`Factors of ${title}`, "share", found, acceptable);
  }
  const plotRegions = (path, title, unit, guide) =>
    plot(`Regions: ${title}`, unit, regions.map((name, at) => [name, ofRegions.map(one => one[path]?.[at] ?? null)]), guide);
  plotRegions(best, titles[0], "share", acceptable);
  plotRegions("elapsed_ns", titles[1], "time");
  const most = Math.max(...times.map(own => own.length)), numbers = Array.from({ length: most }, (_, at) => at);
  if (most > 1) plot("Time of each iteration", "time", names.map((name, at) => [name, times[at]]), {},
    { x: numbers, names: numbers.map(at => String(at + 1)), axis: "iteration of the focus" });
  return plots;
};
