// Tables that are sorted, filtered, and shown page by page.

const PAGE_ROWS = 50;

/**
 * A table of rows. columns: `name`, `value(row)` to sort by, `cell(row)` with a text or an element, and `kind`, a class.
 * A null value comes last. changed: called with the rows of the page that is shown.
 */
class RowTable {
  constructor(place, { columns, rows, sort, empty, changed = () => {} }) {
    Object.assign(this, { place, columns, rows, empty, changed });
    [this.sortedBy, this.isDescending] = sort;
    this.chosen = rows;
    this.page = 0;
    this.show();
  }

  /** Shows the rows that are chosen by a function. Returns their number. */
  filter(isChosen) {
    this.chosen = this.rows.filter(isChosen);
    this.page = 0;
    this.show();
    return this.chosen.length;
  }

  /** Shows the page that has a row; all rows are chosen if the filter leaves it out. */
  reveal(row) {
    if (!this.chosen.includes(row)) this.chosen = this.rows;
    this.page = Math.floor(this.sorted().indexOf(row) / PAGE_ROWS);
    this.show();
  }

  sortBy(column) {
    this.isDescending = this.sortedBy === column ? !this.isDescending : (this.columns[column].kind ?? "").includes("number");
    this.sortedBy = column;
    this.page = 0;
    this.show();
    this.place.querySelectorAll("th button")[column].focus();
  }

  sorted() {
    const value = this.columns[this.sortedBy].value;
    const sign = this.isDescending ? -1 : 1;
    return this.chosen.map((row) => [value(row), row]).sort(([one], [other]) => {
      if (one === null || other === null) return (one === null) - (other === null);
      return sign * (typeof one === "string" ? NAMES.compare(one, other) : one - other);
    }).map(([, row]) => row);
  }

  show() {
    const sorted = this.sorted();
    const pages = Math.max(Math.ceil(sorted.length / PAGE_ROWS), 1);
    const shown = sorted.slice(this.page * PAGE_ROWS, (this.page + 1) * PAGE_ROWS);
    if (sorted.length === 0) this.place.replaceChildren(make("div", { className: "scroll" }, make("p", { className: "empty", textContent: this.empty })));
    else this.place.replaceChildren(this.table(shown), ...(pages > 1 ? [this.pager(pages)] : []));
    this.changed(shown);
  }

  table(rows) {
    const heads = this.columns.map((column, number) => make("th", {
      scope: "col", className: column.kind ?? "",
      "aria-sort": number !== this.sortedBy ? "none" : this.isDescending ? "descending" : "ascending",
    }, make("button", { type: "button", textContent: column.name, onclick: () => this.sortBy(number) })));
    const body = rows.map((row) => make("tr", {}, ...this.columns.map((column) => make("td", { className: column.kind ?? "" }, column.cell(row)))));
    return make("div", { className: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...body)));
  }

  pager(pages) {
    const go = (text, page) => make("button", {
      type: "button", textContent: text, disabled: page < 0 || page >= pages,
      onclick: () => { this.page = page; this.show(); },
    });
    return make("div", { className: "pager" }, go("Previous", this.page - 1), go("Next", this.page + 1),
      make("span", { className: "quiet", textContent: `page ${inNumbers(this.page + 1)} of ${inNumbers(pages)}, ${inNumbers(this.chosen.length)} rows` }));
  }
}

const NAMES = new Intl.Collator("en", { numeric: true });
