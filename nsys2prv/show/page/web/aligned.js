// Moments of several jobs, one above the other, aligned at their begins: those of a section zoom and move
// together.
import { findAll } from "./dom.js";
import { Timeline } from "./timeline.js";

/** Draw the timelines; jobs: those whose moments the page has, in its order. */
export const showAligned = jobs => {
  for (const section of new Set(findAll(".aligned").map(place => place.parentElement)))
    showSection(section, jobs);
};

const showSection = (section, jobs) => {
  const shown = findAll(".aligned", section).map(place => {
    const data = jobs[Number(place.dataset.job)], moment = data.moments[Number(place.dataset.moment)];
    return { place, data, moment, timeline: null };
  });
  const longest = Math.max(...shown.map(({ moment }) => moment.end - moment.begin));
  /** Show the same part of the other iterations. */
  const align = (from, view) => shown.forEach(({ moment, timeline }) => {
    const wanted = view.map(side => side - from.begin + moment.begin);
    if (timeline?.view.some((side, at) => Math.abs(side - wanted[at]) > 1)) timeline.set(wanted);
  });
  for (const one of shown) {
    const { place, data, moment } = one, { lanes } = moment;
    const title = section.firstElementChild.firstChild.textContent.trim();
    one.timeline = new Timeline(place, data, {
      lanes,
      detailed: lanes.length > 4 ? new Set(lanes.slice(0, 1)) : null,
      isFree: true,
      view: [moment.begin - .02 * longest, moment.begin + 1.05 * longest],
      label: `${title}: ${place.previousElementSibling.textContent}`,
      onview: view => align(moment, view),
    });
  }
};
