// Cards of findings: the moment to look at in words, and its timeline across ranks.
import { describeMoment, findLast } from "./describe.js";
import { find, findAll, makeButton } from "./dom.js";
import { formatTime } from "./format.js";
import { Timeline } from "./timeline.js";

/** Marks of a moment: its time on the lanes of those at fault (of nobody: on all), and by how much one is
 * late. */
export const markMoment = (data, moment) => {
  // Of most of the time nothing is special.
  if (moment.end - moment.begin > .5 * data.duration) return [];
  const text = formatTime(moment.end - moment.begin);
  const last = moment.collective ? findLast(data, moment.collective) : null;
  // Processes that are no ranks, such as daemons, are at no fault.
  const ranks = moment.lanes.filter(lane => data.lanes[lane].who.startsWith("rank "));
  const marked = moment.culprits.length ? moment.culprits : ranks.length ? ranks : moment.lanes;
  const marks = marked.map(lane => ({ lane, begin: moment.begin, end: moment.end, text }));
  if (last?.late > 0 && moment.culprits.includes(last.lane)) {
    const came = last.track.begin[last.i];
    marks.push(
      { lane: last.lane, begin: came - last.late, end: came, text: `late by ${formatTime(last.late)}` });
  }
  return marks;
};

/** Draw the timeline of each card when it comes into sight; showInWhole(moment) shows it in that of the job,
 * if there is one. Returns what makes those that were not in sight, for printing. */
export const showCards = (data, showInWhole) => {
  const cards = findAll("article[data-moment]"), timelines = new Map();
  const open = card => {
    if (!timelines.has(card)) timelines.set(card, openCard(data, card, showInWhole));
  };
  const observer = new IntersectionObserver(entries => {
    for (const { isIntersecting, target } of entries)
      if (isIntersecting) {
        observer.unobserve(target);
        open(target);
      }
  }, { rootMargin: "300px" });
  for (const card of cards) {
    find(".sentence", card).textContent = describeMoment(data, data.moments[Number(card.dataset.moment)]);
    observer.observe(card);
  }
  return () => cards.forEach(open);
};

const openCard = (data, card, showInWhole) => {
  const number = Number(card.dataset.moment), moment = data.moments[number];
  const [first] = moment.culprits, other = moment.lanes.find(lane => !moment.culprits.includes(lane));
  const go = makeButton(
    "in the whole timeline", "show this moment in the timeline of the job", () => showInWhole(moment));
  return new Timeline(find(".excerpt", card), data, {
    lanes: moment.lanes,
    view: moment.view,
    marks: markMoment(data, moment),
    culprits: moment.culprits,
    collective: moment.collective,
    detailed: moment.lanes.length > 4 ? new Set([first, other].filter(lane => lane !== undefined)) : null,
    buttons: showInWhole ? [go] : [],
    label: `Timeline of finding ${number + 1}: ${describeMoment(data, moment)}`,
  });
};
