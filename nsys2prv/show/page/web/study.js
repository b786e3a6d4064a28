// The page of `nsys2prv study`: plots of figures over runs, and a typical iteration of each run.
import { showAligned } from "./aligned.js";
import { loadJobs, prepareButtons, prepareForPrint, preparePage, reportReady } from "./common.js";
import { find } from "./dom.js";
import { drawLines } from "./lines.js";
import { listPlots } from "./plots.js";

preparePage();
find(".plots").append(...listPlots(JSON.parse(find("#plot-data").textContent)).map(drawLines));
showAligned(await loadJobs());
prepareForPrint();
reportReady();
