// All locks: search, filter, sort, and the times that run.

import { el, foreign, setForeign, setText, timeBar } from './dom.js';
import { brief, count, number, runningTime } from './format.js';
import { SortedList } from './list.js';
import { address, lockAddress } from './routes.js';
import { isPeriod, timeLeft, tokenText } from './rows.js';

const COLUMNS = [
  { id: 'name', title: 'Lock', key: (lock) => lock.name },
  { id: 'kind', title: 'Kind', key: (lock) => lock.kind },
  { id: 'holder', title: 'Holder', key: (lock) => lock.holderText },
  { id: 'token', title: 'Token', key: (lock) => lock.oldest?.token ?? null, descending: true },
  { id: 'held', title: 'Held', key: (lock) => lock.oldest?.since ?? null },
  { id: 'left', title: 'Left', key: (lock) => lock.oldest?.until ?? null },
  { id: 'waiting', title: 'Waiting', key: (lock) => lock.row.waiter_count, descending: true },
];

/** Tokens of more digits get a wider column. */
const SHORT_TOKEN = 8;

/** Path parts of very deep names are not worth a button each. */
const MOST_PARTS = 4;

/** Splits a name after each `/`, with the last part at the end. */
function pathParts(name) {
  const parts = name.split('/');
  const folders = parts.slice(0, Math.min(parts.length - 1, MOST_PARTS)).map((part) => `${part}/`);
  return { folders, last: name.slice(folders.join('').length) };
}

/** A row of the list. */
class LockRow {
  #cells = Object.fromEntries(COLUMNS.map(({ id }) => [id, el('div', { role: 'cell', class: `c-${id}` })]));
  #bar = timeBar();
  #holder = el('bdi', { dir: 'ltr' });
  #view;
  element = el('div', { class: 'list-row', role: 'row' }, Object.values(this.#cells));

  constructor(view) {
    this.#view = view;
    this.#cells.left.append(this.#bar.element);
    this.#cells.holder.append(this.#holder);
  }

  bind(lock) {
    const cells = this.#cells;
    if (this.item?.name !== lock.name) cells.name.replaceChildren(...this.#nameParts(lock.name));
    setText(cells.kind, lock.kind);
    setForeign(this.#holder, lock.holderText);
    const token = tokenText(lock.oldest?.token);
    setText(cells.token, token);
    if (token.length > SHORT_TOKEN) this.#view.element.classList.add('long-tokens');
    setText(cells.waiting, number(lock.row.waiter_count));
    cells.waiting.classList.toggle('some', lock.row.waiter_count > 0);
    this.item = lock;
    this.tick();
  }

  tick() {
    const { oldest } = this.item;
    const now = this.#view.now();
    setText(this.#cells.held, runningTime(oldest?.since === null || !oldest ? null : now - oldest.since));
    const { left, fraction, jeopardy } = timeLeft(oldest ?? { until: null }, now, !isPeriod(this.item.name));
    this.#bar.show(runningTime(left), fraction, jeopardy);
  }

  #nameParts(name) {
    const { folders, last } = pathParts(name);
    let prefix = '';
    const buttons = folders.map((folder) => {
      prefix += folder;
      const filter = prefix;
      // The prefix field does the same for the keyboard; a tab stop per part would make the list tedious.
      const onclick = () => this.#view.filterPrefix(filter);
      const title = 'Show only locks with this prefix';
      return el('button', { type: 'button', class: 'part', tabindex: '-1', title, onclick }, foreign(folder, 60));
    });
    return [...buttons, el('a', { href: lockAddress(name), 'aria-label': brief(name) }, last === '' ? '(empty)' : foreign(last))];
  }
}

/** The view of all locks. */
export class LocksView {
  title = 'Locks';
  #store;
  #filter;
  #all = true;
  #list;
  #summary = el('p', { class: 'summary' });
  /** Says the result of a filter. The summary changes every second, which a screen reader should not read out. */
  #found = el('p', { class: 'hidden', role: 'status' });
  #isFoundStale = false;
  #session = el('p', { class: 'chip', hidden: true });
  #empty = el('div', { class: 'empty', hidden: true });
  #search = this.#field('search', 'Search', 'part of a name or a label');
  #prefix = this.#field('prefix', 'Prefix', 'e.g. orders/');

  constructor({ store, parameters, me }) {
    this.#store = store;
    this.command = me.command;
    this.#readFilter(parameters);
    this.#isFoundStale = this.#isFiltered();
    this.#list = new SortedList({
      name: 'Locks',
      columns: COLUMNS,
      sort: this.#filter.sort,
      idOf: (lock) => lock.name,
      makeRow: () => new LockRow(this),
      onSort: (sort) => this.#change({ sort }),
    });
    this.element = el('section', { class: 'view locks', 'aria-labelledby': 'title' },
      el('div', { class: 'bar-top' },
        el('h1', { id: 'title', tabindex: '-1' }, 'Locks'), this.#summary, this.#found,
        el('div', { class: 'filters', role: 'search' }, this.#session, this.#prefix.label, this.#search.label)),
      this.#empty, this.#list.element);
  }

  now() {
    return this.#store.now();
  }

  close() {
    this.#list.close();
  }

  focusSearch() {
    this.#search.input.focus();
    this.#search.input.select();
  }

  filterPrefix(prefix) {
    this.#prefix.input.value = prefix;
    this.#change({ prefix });
  }

  /** Takes over another filter of the address, as after the browser's Back. */
  readAddress(parameters) {
    this.#readFilter(parameters);
    this.#list.sortBy(this.#filter.sort);
    this.#isFoundStale = true;
    this.#all = true;
    this.update(new Set());
  }

  update(changed) {
    if (this.#all) this.#list.replace([...this.#store.locks.values()].filter((lock) => this.#passes(lock)));
    else if (changed.size > 0) this.#list.merge(changed, this.#passing(changed));
    this.#all = false;
    this.#list.draw();
    this.#describe();
    this.tick();
  }

  tick() {
    this.#list.tick();
  }

  scrolled() {
    this.#list.draw();
  }

  #passing(names) {
    return [...names].map((name) => this.#store.locks.get(name)).filter((lock) => lock && this.#passes(lock));
  }

  #passes(lock) {
    const { prefix, search, session } = this.#filter;
    return lock.name.startsWith(prefix)
      && (search === '' || lock.matches(search.toLowerCase()))
      && (session === null || lock.involves(session));
  }

  #isFiltered() {
    const { prefix, search, session } = this.#filter;
    return prefix !== '' || search !== '' || session !== null;
  }

  #readFilter(parameters) {
    const session = parameters.get('session');
    this.#filter = {
      prefix: parameters.get('prefix') ?? '',
      search: parameters.get('search') ?? '',
      session: session === null ? null : Number(session),
      sort: parameters.get('sort') ?? 'name',
    };
    this.#prefix.input.value = this.#filter.prefix;
    this.#search.input.value = this.#filter.search;
    this.#showSession();
  }

  #change(change) {
    Object.assign(this.#filter, change);
    const { sort, ...rest } = this.#filter;
    history.replaceState(null, '', address('locks', { ...rest, sort: sort === 'name' ? '' : sort }));
    this.#showSession();
    this.#list.sortBy(sort);
    this.#isFoundStale = true;
    this.#all = true;
    this.update(new Set());
  }

  #showSession() {
    const { session } = this.#filter;
    this.#session.hidden = session === null;
    const remove = el('button', { type: 'button', class: 'quiet', onclick: () => this.#change({ session: null }) }, 'Show all');
    this.#session.replaceChildren(`Session ${session} `, remove);
  }

  #field(id, title, placeholder) {
    const input = el('input', { id, type: 'search', placeholder, autocomplete: 'off', spellcheck: 'false' });
    input.addEventListener('input', () => this.#change({ [id]: input.value }));
    input.addEventListener('keydown', (event) => this.#openOnly(event));
    const hint = id === 'search' ? el('kbd', { 'aria-hidden': 'true' }, '/') : null;
    return { input, label: el('label', { class: 'field' }, el('span', null, title), input, hint) };
  }

  /** Opens the lock on Enter if the filter leaves only one. */
  #openOnly({ key, isComposing }) {
    const [only] = this.#list.items;
    if (key === 'Enter' && !isComposing && this.#store.complete && this.#list.length === 1) location.hash = lockAddress(only.name);
  }

  #describe() {
    const { locks, complete } = this.#store;
    const shownCount = this.#list.length;
    const all = count(locks.size, 'lock', 'locks');
    const filtered = shownCount === locks.size ? all : `${number(shownCount)} of ${all}`;
    const hits = this.#isFiltered() ? `, ${number(shownCount)} found` : '';
    const waiting = this.#list.items.reduce((sum, { row }) => sum + row.waiter_count, 0);
    const text = complete ? `${filtered} in use, ${number(waiting)} waiting` : `Loading: ${all} so far${hits}`;
    setText(this.#summary, text);
    this.#sayFound();
    this.#showEmpty(shownCount === 0 && complete, locks.size > 0);
  }

  /** Says the result of a changed filter, once it is known: not before all locks are loaded. */
  #sayFound() {
    if (!this.#isFoundStale) return;
    setText(this.#found, this.#store.complete ? `${count(this.#list.length, 'lock', 'locks')} found` : '');
    this.#isFoundStale = !this.#store.complete;
  }

  #showEmpty(isEmpty, isFiltered) {
    if (this.#empty.hidden === !isEmpty && this.#empty.filtered === isFiltered) return;
    this.#empty.filtered = isFiltered;
    this.#empty.hidden = !isEmpty;
    const clear = el('button', { type: 'button', onclick: () => this.#clear() }, 'Show all locks');
    const content = isFiltered
      ? [el('p', null, 'No lock matches this filter.'), clear]
      : [el('p', null, 'No lock is in use.'), el('p', null, 'Try: ', el('code', null, `${this.command} run demo -- sleep 60`))];
    this.#empty.replaceChildren(...content);
  }

  #clear() {
    this.#prefix.input.value = '';
    this.#search.input.value = '';
    this.#change({ prefix: '', search: '', session: null });
    this.focusSearch();
  }
}
