// The page of `nsys2prv study`: plots of figures over runs, and a typical iteration of each run.
import { showAligned } from "./aligned.js";
import { loadJobs, prepareButtons, prepareForPrint, preparePage, reportReady } from "./common.js";
import { find } from "./dom.js";
import { drawLines } from "./lines.js";

preparePage();
find(".plots").append(...JSON.parse(find("#plot-data").textContent).filter(({ lines }) => Object.keys(lines).length).map(drawLines));
const draw = showAligned(await loadJobs());
prepareForPrint(draw);
reportReady();
