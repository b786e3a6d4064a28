// The page of `nsys2prv diff`.
import { loadJobs, preparePage, reportReady, showTables } from "./common.js";

preparePage();
const [difference] = await loadJobs();
showTables(difference);
reportReady();
