// A long list that draws only the rows in sight, with sorting. The page scrolls; the list does not.

import { el, setAttribute } from './dom.js';

const OVERSCAN = 8;

/**
 * A sorted list of items.
 *
 * `columns` are `{ id, title, key, descending?, narrow? }`: `key` returns what to sort by. `makeRow` returns
 * `{ element, bind(item), tick() }`. Items are told apart by `idOf`.
 */
export class SortedList {
  #columns;
  #makeRow;
  #idOf;
  #order = [];
  #sort;
  #drawn = new Map();
  #spare = [];
  #rowHeight = 0;
  #compare;
  #headings = new Map();
  #body = el('div', { class: 'list-body', role: 'rowgroup' });
  #window = el('div', { class: 'list-window', role: 'presentation' });

  constructor({ name, columns, sort, makeRow, idOf, onSort }) {
    this.#columns = columns;
    this.#makeRow = makeRow;
    this.#idOf = idOf;
    const heading = (column) => this.#heading(column, onSort);
    this.#body.append(this.#window);
    this.element = el('div', { class: 'list', role: 'table', 'aria-label': name },
      el('div', { class: 'list-head', role: 'rowgroup' }, el('div', { class: 'list-row', role: 'row' }, columns.map(heading))),
      this.#body);
    this.sortBy(sort);
    addEventListener('resize', this.#measureAgain);
  }

  close() {
    removeEventListener('resize', this.#measureAgain);
  }

  get length() {
    return this.#order.length;
  }

  /** The items in their order. */
  get items() {
    return this.#order;
  }

  /** Sorts by `column`, or by `-column` in descending order. */
  sortBy(sort) {
    const column = this.#columns.find(({ id }) => id === sort.replace(/^-/, '')) ?? this.#columns[0];
    const direction = sort.startsWith('-') ? -1 : 1;
    const { key } = column;
    this.#sort = direction < 0 ? `-${column.id}` : column.id;
    this.#compare = (a, b) => direction * byKey(key(a), key(b)) || byKey(this.#idOf(a), this.#idOf(b));
    this.#order.sort(this.#compare);
    for (const [id, heading] of this.#headings) {
      const order = direction < 0 ? 'descending' : 'ascending';
      setAttribute(heading, 'aria-sort', id === column.id ? order : null);
    }
  }

  /** Replaces all items. */
  replace(items) {
    this.#order = items.sort(this.#compare);
  }

  /** Removes the items with the ids `changed` and merges `items` in: this is much cheaper than sorting all of them. */
  merge(changed, items) {
    const kept = this.#order.filter((item) => !changed.has(this.#idOf(item)));
    this.#order = mergeSorted(kept, items.sort(this.#compare), this.#compare);
  }

  /** Draws the rows in sight. */
  draw() {
    const focused = document.activeElement;
    this.element.hidden = this.#order.length === 0;
    const { first, last } = this.#inSight();
    const rows = this.#rowsFor(this.#order.slice(first, last));
    this.#place(rows, first);
    this.#body.style.setProperty('height', `${this.#order.length * this.#rowHeight}px`);
    setAttribute(this.element, 'aria-rowcount', String(this.#order.length + 1));
    // Moving an element in the document takes the focus from it.
    if (focused !== document.activeElement && this.#window.contains(focused)) focused.focus({ preventScroll: true });
  }

  /** Updates the times in the rows in sight. */
  tick() {
    for (const row of this.#drawn.values()) row.tick();
  }

  #heading(column, onSort) {
    const button = el('button', { type: 'button', onclick: () => onSort(this.#nextSort(column)) }, column.title);
    const heading = el('div', { role: 'columnheader', class: `c-${column.id}` }, button);
    this.#headings.set(column.id, heading);
    return heading;
  }

  #nextSort({ id, descending }) {
    if (this.#sort === id) return `-${id}`;
    if (this.#sort === `-${id}`) return id;
    return descending ? `-${id}` : id;
  }

  #inSight() {
    const height = this.#rowHeight || 32;
    const above = Math.max(0, -this.#body.getBoundingClientRect().top);
    const first = Math.min(Math.floor(above / height), Math.max(0, this.#order.length - 1));
    const last = Math.ceil((above + innerHeight) / height);
    return { first: Math.max(0, first - OVERSCAN), last: Math.min(this.#order.length, last + OVERSCAN) };
  }

  /** Returns a row for each item: the row that it already has, or one that has left the window. */
  #rowsFor(items) {
    const drawn = new Map(items.map((item) => [this.#idOf(item), null]));
    for (const [id, row] of this.#drawn) {
      if (drawn.has(id)) {
        drawn.set(id, row);
      } else {
        row.element.remove();
        this.#spare.push(row);
      }
    }
    for (const item of items) {
      const id = this.#idOf(item);
      const row = drawn.get(id) ?? this.#spare.pop() ?? this.#makeRow();
      if (row.item !== item) row.bind(item);
      row.item = item;
      drawn.set(id, row);
    }
    this.#drawn = drawn;
    return [...drawn.values()];
  }

  #place(rows, first) {
    let next = this.#window.firstElementChild;
    rows.forEach(({ element }, index) => {
      setAttribute(element, 'aria-rowindex', String(first + index + 2));
      if (element === next) next = next.nextElementSibling;
      else this.#window.insertBefore(element, next);
    });
    if (!this.#rowHeight && rows.length) this.#rowHeight = rows[0].element.getBoundingClientRect().height;
    this.#window.style.setProperty('transform', `translateY(${first * this.#rowHeight}px)`);
  }

  #measureAgain = () => {
    this.#rowHeight = 0;
    this.draw();
    this.draw();
  };
}

/** Compares keys. Unknown ones (`null`) come last in ascending order. */
function byKey(a, b) {
  if (a === b) return 0;
  if (a === null) return 1;
  if (b === null) return -1;
  return a < b ? -1 : 1;
}

function mergeSorted(left, right, compare) {
  const merged = [];
  let next = 0;
  for (const item of left) {
    while (next < right.length && compare(right[next], item) < 0) merged.push(right[next++]);
    merged.push(item);
  }
  while (next < right.length) merged.push(right[next++]);
  return merged;
}
