// The page of `nsys2prv diff`: a typical iteration of both jobs, one above the other, which move together.
import { loadJobs, prepareForPrint, preparePage, reportReady, showTables } from "./common.js";
import { findAll } from "./dom.js";
import { Timeline } from "./timeline.js";

preparePage();
const [difference, ...jobs] = await loadJobs(), places = findAll(".aligned");
const begins = jobs.map(({ moments: [moment] }) => moment?.begin), timelines = [];
const longest = Math.max(...jobs.map(({ moments: [moment] }) => moment ? moment.end - moment.begin : 0));
places.forEach((place, number) => {
  const data = jobs[number], [moment] = data.moments, begin = begins[number];
  timelines[number] = new Timeline(place, data, {
    lanes: moment.lanes, detailed: moment.lanes.length > 4 ? new Set(moment.lanes.slice(0, 1)) : null, isFree: true,
    view: [begin - .02 * longest, begin + 1.05 * longest], label: `A typical iteration of job ${"AB"[number]}`,
    onview: view => align(number, view),
  });
});
/** Show the same part of the other job's iteration. */
function align(number, view) {
  const other = timelines[1 - number], wanted = view.map(side => side - begins[number] + begins[1 - number]);
  if (other && other.view.some((side, at) => Math.abs(side - wanted[at]) > 1)) other.show(...wanted, false);
}
showTables(difference);
prepareForPrint(() => timelines.forEach(timeline => timeline.painter.now()));
reportReady();
