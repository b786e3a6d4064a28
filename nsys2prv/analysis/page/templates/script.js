"use strict";
(() => {
  const root = document.documentElement, theme = document.getElementById("theme");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  // Rows as trees: a row with those that lie within it. Plain tables are trees of depth 0.
  const forest = body => {
    const roots = [], open = [];
    for (const row of body.rows) {
      const node = { row, inner: [] }, depth = Number(row.dataset.d || 0);
      open.length = depth;
      (depth ? open[depth - 1].inner : roots).push(node);
      open[depth] = node;
    }
    return roots;
  };
  const flat = nodes => nodes.flatMap(node => [node.row, ...flat(node.inner)]);

  const sort = (table, column, numbers, up) => {
    const value = node => {
      const cell = node.row.cells[column];
      return numbers ? (cell.dataset.v === "" ? NaN : Number(cell.dataset.v)) : cell.textContent;
    };
    const before = (a, b) => numbers ? (Number.isNaN(a) ? 1 : 0) - (Number.isNaN(b) ? 1 : 0) || (up ? a - b : b - a) || 0
      : a.localeCompare(b, undefined, { numeric: true }) * (up ? 1 : -1);
    const order = nodes => {
      const known = nodes.map(node => [value(node), node]).sort((a, b) => before(a[0], b[0]));
      for (const [, node] of known) node.inner = order(node.inner);
      return known.map(([, node]) => node);
    };
    table.tBodies[0].append(...flat(order(forest(table.tBodies[0]))));
  };

  const sortable = table => [...table.tHead.rows[0].cells].forEach((head, column) => {
    const numbers = head.classList.contains("n");
    const act = () => {
      const now = head.getAttribute("aria-sort"), up = numbers ? now === "descending" : now !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      sort(table, column, numbers, up);
    };
    head.classList.add("sorts");
    head.tabIndex = 0;
    head.addEventListener("click", act);
    head.addEventListener("keydown", event => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); } });
  });

  const findable = table => {
    if (table.tBodies[0].rows.length < 12) return;
    const line = document.createElement("p"), input = document.createElement("input");
    line.className = "find";
    input.type = "search";
    input.placeholder = "show rows with ...";
    input.setAttribute("aria-label", "show rows with this text");
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      // What a row lies in is shown with it.
      const mark = node => {
        const found = node.inner.map(mark).includes(true) || node.row.textContent.toLowerCase().includes(wanted);
        node.row.classList.toggle("out", !found);
        return found;
      };
      forest(table.tBodies[0]).forEach(mark);
    });
    line.append(input);
    table.parentElement.before(line);
  };

  const foldable = table => {
    const within = row => {
      const found = [], depth = Number(row.dataset.d);
      for (let next = row.nextElementSibling; next && Number(next.dataset.d) > depth; next = next.nextElementSibling) found.push(next);
      return found;
    };
    for (const row of table.tBodies[0].rows) {
      if (!within(row).length) continue;
      const button = document.createElement("button");
      button.type = "button";
      const set = open => { button.textContent = open ? "\u25be" : "\u25b8"; button.setAttribute("aria-expanded", open); };
      button.setAttribute("aria-label", "what lies within");
      set(true);
      button.addEventListener("click", () => {
        const open = button.getAttribute("aria-expanded") !== "true";
        set(open);
        // What was closed within stays closed.
        let closed = Infinity;
        for (const inner of within(row)) {
          const depth = Number(inner.dataset.d);
          if (depth <= closed) closed = Infinity;
          inner.hidden = !open || depth > closed;
          const own = inner.cells[0].querySelector("button");
          if (own && own.getAttribute("aria-expanded") === "false" && closed === Infinity) closed = depth;
        }
      });
      row.cells[0].prepend(button);
    }
  };

  for (const table of document.querySelectorAll("table")) {
    sortable(table);
    findable(table);
    if (!table.classList.contains("tree")) continue;
    // What takes the most time comes first.
    const longest = [...table.tHead.rows[0].cells].findLastIndex(cell => ["gpu_ns", "host_ns"].includes(cell.title));
    sort(table, longest, true, false);
    foldable(table);
  }
})();
