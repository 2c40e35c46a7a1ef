// All elections: the leader, what it publishes, and who waits to lead.

import { el, foreign, Live, setText, table } from './dom.js';
import { count, number, runningTime } from './format.js';
import { lockAddress } from './routes.js';
import { holderName, sessionName, tokenText } from './rows.js';

const MOST = 500;

/** The view of all elections. */
export class ElectionsView {
  title = 'Elections';
  #store;
  #live = new Live();
  #isStale = true;
  #summary = el('p', { class: 'summary' });
  #content = el('div');

  constructor({ store, me }) {
    this.#store = store;
    this.command = me.command;
    this.element = el('section', { class: 'view elections', 'aria-labelledby': 'title' },
      el('div', { class: 'bar-top' }, el('h1', { id: 'title', tabindex: '-1' }, 'Elections'), this.#summary), this.#content);
  }

  close() {}

  update(changed) {
    const { locks, complete } = this.#store;
    const concerns = (name) => !locks.has(name) || locks.get(name).kind === 'election';
    if (this.#isStale || complete !== this.wasComplete || [...changed].some(concerns)) this.#draw();
    this.#isStale = false;
    this.wasComplete = complete;
    this.tick();
  }

  tick() {
    this.#live.tick();
  }

  #draw() {
    const elections = [...this.#store.locks.values()].filter(({ kind }) => kind === 'election');
    elections.sort((a, b) => (a.name < b.name ? -1 : 1));
    setText(this.#summary, count(elections.length, 'election', 'elections'));
    const signature = JSON.stringify(elections.slice(0, MOST).map(({ row }) => [row.name, row.value, row.waiters, row.holders.map(({ token, session, since }) => [token, session, since])]));
    if (signature === this.signature && this.#store.complete === this.wasComplete) return;
    this.signature = signature;
    // A link that had the focus gets it back.
    const focused = document.activeElement?.getAttribute('href');
    this.#live = new Live();
    this.#content.replaceChildren(...this.#drawn(elections));
    if (focused) [...this.#content.querySelectorAll('a')].find((link) => link.getAttribute('href') === focused)?.focus();
  }

  #drawn(elections) {
    if (elections.length === 0) return this.#store.complete ? [this.#empty()] : [];
    const headings = ['Election', 'Leader', 'Publishes', 'Leads for', 'Token', 'Waiting to lead'];
    const rows = elections.slice(0, MOST).map((election) => this.#row(election));
    const more = elections.length > MOST ? [el('p', { class: 'note' }, `The first ${MOST} are shown.`)] : [];
    return [el('div', { class: 'panel' }, table('Elections', headings, rows, { class: 'cards' })), ...more];
  }

  #row({ name, row, oldest }) {
    const since = oldest?.since ?? null;
    const publishes = row.value === '' ? el('span', { class: 'dim' }, '(empty text)') : el('code', null, foreign(row.value, 200));
    return [
      el('a', { href: lockAddress(name) }, foreign(name, 120)),
      oldest ? foreign(holderName(oldest)) : 'none',
      publishes,
      since === null ? '-' : this.#live.text(() => runningTime(this.#store.now() - since)),
      el('span', { class: 'num' }, tokenText(oldest?.token)),
      this.#candidates(row),
    ];
  }

  #candidates({ waiters, waiter_count: all }) {
    if (all === 0) return 'none';
    const names = waiters.slice(0, 3).flatMap((waiter, index) => [index ? ', ' : '', foreign(sessionName(waiter), 60)]);
    const rest = all - Math.min(3, waiters.length);
    return el('span', null, names, rest > 0 ? ` and ${number(rest)} more` : '');
  }

  #empty() {
    return el('div', { class: 'empty' }, el('p', null, 'No leader publishes a value.'),
      el('p', null, 'Try: ', el('code', null, `${this.command} elect demo --value here -- sleep 60`)));
  }
}
