// A timeline in a notebook: of the moment of a finding, or of the job.
import { showCards } from "./cards.js";
import { loadJobs, prepareButtons, reportReady, root } from "./common.js";
import { find } from "./dom.js";
import { showWhole } from "./whole.js";

root.classList.add("js");
const [data] = await loadJobs();
if (find("#whole")) showWhole(data);
else showCards(data, null);
prepareButtons();
reportReady();
