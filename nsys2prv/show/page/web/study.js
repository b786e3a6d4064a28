// The page of `nsys2prv study`: a typical iteration of each run.
import { showAligned } from "./aligned.js";
import { loadJobs, prepareForPrint, preparePage, reportReady } from "./common.js";

preparePage();
showAligned(await loadJobs());
prepareForPrint();
reportReady();
