// All sessions that hold a lock or wait for one.

import { el, setForeign, setText, timeBar } from './dom.js';
import { brief, count, number, runningTime } from './format.js';
import { SortedList } from './list.js';
import { address } from './routes.js';
import { isPeriod, sessionName, sessionsOf, timeLeft } from './rows.js';

const COLUMNS = [
  { id: 'label', title: 'Session', key: (session) => sessionName(session) },
  { id: 'holds', title: 'Holds', key: (session) => session.holds.length, descending: true },
  { id: 'waits', title: 'Waits for', key: (session) => session.waits.length, descending: true },
  { id: 'kept', title: 'Last keep-alive', key: (session) => lastKeepAlive(session) },
  { id: 'left', title: 'Left', key: (session) => session.until },
  { id: 'health', title: 'State', key: (session) => (session.until === null ? null : session.until - (session.ttl ?? 0) / 3) },
];

/** The list is rebuilt from all rows, so not at every message. */
const REBUILD_EVERY = 1000;

const lastKeepAlive = ({ until, ttl }) => (until === null || ttl === null ? null : until - ttl);

/** Whether the session is that of a period. It has no keeper, so it is never in jeopardy. */
const isOfPeriod = ({ holds, waits }) => waits.length === 0 && holds.every(isPeriod);

/** Names the first lock and counts the others. */
function locksText(names) {
  if (names.length === 0) return '-';
  const first = brief(names[0], 80);
  return names.length === 1 ? first : `${number(names.length)}: ${first}, …`;
}

class SessionRow {
  #cells = Object.fromEntries(COLUMNS.map(({ id }) => [id, el('div', { role: 'cell', class: `c-${id}` })]));
  #link = el('a');
  #label = el('bdi', { dir: 'ltr' });
  #holds = el('bdi', { dir: 'ltr' });
  #waits = el('bdi', { dir: 'ltr' });
  #bar = timeBar();
  #now;
  element = el('div', { class: 'list-row', role: 'row' }, Object.values(this.#cells));

  constructor(now) {
    this.#now = now;
    this.#link.append(this.#label);
    this.#cells.label.append(this.#link);
    this.#cells.holds.append(this.#holds);
    this.#cells.waits.append(this.#waits);
    this.#cells.left.append(this.#bar.element);
  }

  bind(session) {
    this.item = session;
    this.#link.href = address('locks', { session: session.session });
    this.#link.title = `Session ${session.session}: show its locks`;
    setForeign(this.#label, brief(sessionName(session)));
    setForeign(this.#holds, locksText(session.holds));
    setForeign(this.#waits, locksText(session.waits));
    this.tick();
  }

  tick() {
    const now = this.#now();
    const ofPeriod = isOfPeriod(this.item);
    const { left, fraction, jeopardy } = timeLeft(this.item, now, !ofPeriod);
    const kept = lastKeepAlive(this.item);
    setText(this.#cells.kept, kept === null || ofPeriod ? '-' : `${runningTime(now - kept)} ago`);
    this.#bar.show(runningTime(left), fraction, jeopardy);
    setText(this.#cells.health, left === null ? 'unknown' : ofPeriod ? 'a period' : jeopardy ? 'in jeopardy' : 'alive');
    this.#cells.health.classList.toggle('warn', jeopardy);
  }
}

/** The view of all sessions. */
export class SessionsView {
  title = 'Sessions';
  #store;
  #sessions = [];
  #builtAt = -Infinity;
  #isStale = true;
  #summary = el('p', { class: 'summary' });
  #withheld = el('p', { class: 'note' });
  #empty = el('div', { class: 'empty', hidden: true }, el('p', null, 'No session holds a lock or waits for one.'));
  #list;

  constructor({ store, parameters }) {
    this.#store = store;
    this.#list = new SortedList({
      name: 'Sessions',
      columns: COLUMNS,
      sort: parameters.get('sort') ?? 'label',
      idOf: ({ session }) => session,
      makeRow: () => new SessionRow(() => store.now()),
      onSort: (sort) => this.#sortBy(sort),
    });
    this.element = el('section', { class: 'view sessions', 'aria-labelledby': 'title' },
      el('div', { class: 'bar-top' }, el('h1', { id: 'title', tabindex: '-1' }, 'Sessions'), this.#summary),
      this.#withheld, this.#empty, this.#list.element,
      el('p', { class: 'note' }, 'A keeper renews its session every third of the TTL. A session with less than a third left has missed a renewal: it is in jeopardy. The session of a period of palisade run --every is not renewed.'));
  }

  close() {
    this.#list.close();
  }

  update(changed) {
    this.#isStale ||= changed.size > 0;
    this.tick();
  }

  tick() {
    if (this.#isStale && performance.now() - this.#builtAt >= REBUILD_EVERY) this.#rebuild();
    this.#list.tick();
    this.#describe();
  }

  scrolled() {
    this.#list.draw();
  }

  #rebuild() {
    this.#builtAt = performance.now();
    this.#isStale = false;
    const locks = [...this.#store.locks.values()];
    this.#sessions = [...sessionsOf(locks).values()];
    const withheld = locks.filter(({ row }) => row.holders.some(({ session }) => session === null)).length;
    setText(this.#withheld, withheld === 0 ? '' : `${count(withheld, 'lock is', 'locks are')} withheld: the session has expired, and the lock-delay runs.`);
    this.#list.replace(this.#sessions);
    this.#list.draw();
  }

  #sortBy(sort) {
    history.replaceState(null, '', address('sessions', { sort }));
    this.#list.sortBy(sort);
    this.#list.draw();
  }

  #describe() {
    const now = this.#store.now();
    const jeopardy = this.#sessions.filter((session) => timeLeft(session, now, !isOfPeriod(session)).jeopardy).length;
    setText(this.#summary, `${count(this.#sessions.length, 'session', 'sessions')}, ${number(jeopardy)} in jeopardy`);
    this.#empty.hidden = this.#sessions.length > 0 || !this.#store.complete;
  }
}
