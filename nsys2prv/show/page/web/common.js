// What all pages do: themes, texts on hover, what can be copied, contents that say where one is, tables.
import { copy, drawAll, find, findAll, getTheme, setTheme, showTip } from "./dom.js";
import { JobData } from "./data.js";
import { makeTables } from "./tables.js";

export const root = document.documentElement;

const followContents = () => {
  const links = new Map(findAll("nav.contents a").map(link => [link.hash.slice(1), link])), seen = new Set();
  const sections = findAll("section[id]");
  const observer = new IntersectionObserver(entries => {
    for (const { target, isIntersecting } of entries)
      if (isIntersecting) seen.add(target.id);
      else seen.delete(target.id);
    const first = sections.find(section => seen.has(section.id))?.id;
    for (const [id, link] of links)
      if (id === first) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
  }, { rootMargin: "-10% 0px -60% 0px" });
  sections.forEach(section => observer.observe(section));
};

/** Show what elements say of themselves beside the pointer, or below them where they have the focus. */
const showTips = () => {
  const show = ({ target, clientX, clientY }) => {
    const told = target.closest?.("[data-tip]");
    if (!told) return;
    const { left, bottom } = told.getBoundingClientRect();
    showTip(JSON.parse(told.dataset.tip), clientX ?? left, clientY ?? bottom - 10);
  };
  for (const name of ["pointermove", "focusin"]) document.addEventListener(name, show);
  for (const name of ["pointerout", "focusout"])
    document.addEventListener(name, ({ target }) => target.closest?.("[data-tip]") && showTip(null));
};

export const preparePage = () => {
  root.classList.add("js");
  find("#theme").addEventListener("click", () => setTheme(getTheme() === "dark" ? "light" : "dark"));
  showTips();
  prepareButtons();
  followContents();
};
export const prepareButtons = () => {
  for (const button of findAll("[data-copy]"))
    button.addEventListener("click", () => copy(button, button.dataset.copy));
};

/** Load the jobs whose data the page has. */
export const loadJobs = () => Promise.all(findAll("script.data").map(element => JobData.load(element)));

export const showTables = data => find("#all-tables").append(...data.tables.map(makeTables));

/** For printing: light colours, the width of the paper, and everything drawn; `makeAll` makes what else is
 * made when it comes into sight. */
export const prepareForPrint = makeAll => {
  let before = null;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme || "";
    root.classList.add("prints");
    setTheme("light");
    makeAll?.();
    drawAll();
  });
  addEventListener("afterprint", () => {
    root.classList.remove("prints", "brief");
    setTheme(before);
    drawAll();
  });
  find("#brief")?.addEventListener("click", () => {
    root.classList.add("brief");
    print();
  });
};

export const reportReady = () => { root.dataset.ready = Math.round(performance.now());};
