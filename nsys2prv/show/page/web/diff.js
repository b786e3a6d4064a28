// The page of `nsys2prv diff`: a typical iteration of both jobs, and the tables of what differs.
import { showAligned } from "./aligned.js";
import { loadJobs, prepareForPrint, preparePage, reportReady, showTables } from "./common.js";

preparePage();
const [difference, ...jobs] = await loadJobs();
showAligned(jobs);
showTables(difference);
prepareForPrint();
reportReady();
