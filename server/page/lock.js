// One lock: who holds it, since when, who is next, and what happened before.

import { lockDetails } from './api.js';
import { BreakForm } from './break.js';
import { command, copyButton, el, foreign, Live, setText, table, timeBar } from './dom.js';
import { brief, number, runningTime, shellWord } from './format.js';
import { address } from './routes.js';
import { holderName, kindOf, modeOf, sessionName, timeLeft, tokenText } from './rows.js';
import { sentence, warning } from './sentence.js';
import { drawTimeline, momentsTable } from './timeline.js';

const REFRESH_EVERY = 2000;
const REDRAW_EVERY = 1000;
const NAME_MOST = 160;

const section = (title, id, ...content) => el('section', { 'aria-labelledby': id, class: 'panel' }, el('h2', { id }, title), ...content);

const sessionLink = (entry, name) => (entry.session === null
  ? el('span', { class: 'warn' }, name)
  : el('a', { href: address('locks', { session: entry.session }), title: `Session ${entry.session}: show its locks` }, foreign(name)));

/** The view of one lock. */
export class LockView {
  #name;
  #store;
  #me;
  #details = null;
  #isFetching = false;
  #isStale = true;
  #fetchedAt = -Infinity;
  #drawnAt = -Infinity;
  #isClosed = false;
  #signatures = {};
  #headLive = new Live();
  #tableLive = new Live();
  #break = null;
  #sentence = el('p', { class: 'sentence' });
  #warning = el('p', { class: 'warn' });
  #problem = el('p', { class: 'warn', role: 'status' });
  #meta = el('p', { class: 'meta' });
  #holders = el('div');
  #queue = el('div');
  #timeline = el('div');
  #moments = el('details');
  #stale = el('div');
  #breaking = el('div');

  constructor({ store, name, me }) {
    this.#name = name;
    this.#store = store;
    this.#me = me;
    this.title = brief(name, 60);
    this.element = el('article', { class: 'view lock', 'aria-labelledby': 'title' },
      el('p', { class: 'crumbs' }, el('a', { href: '#/locks' }, 'Locks'), ' / ', ...this.#prefixLinks()),
      el('div', { class: 'bar-top' }, el('h1', { id: 'title', tabindex: '-1' }, foreign(name, NAME_MOST)), copyButton(name, 'Copy name'), this.#meta),
      this.#sentence, this.#warning, this.#problem,
      el('div', { class: 'columns' },
        section('Holders', 'h-holders', this.#holders), section('Queue, next first', 'h-queue', this.#queue)),
      section('Timeline', 'h-timeline', this.#timeline, this.#moments),
      el('div', { class: 'columns' },
        section('What an old holder would be told', 'h-stale', this.#stale),
        section('Commands', 'h-commands', ...this.#commands(), this.#breaking)));
  }

  close() {
    this.#isClosed = true;
  }

  update(changed) {
    if (changed.has(this.#name)) this.#isStale = true;
    this.#draw();
    this.tick();
  }

  tick() {
    const age = performance.now() - this.#fetchedAt;
    if (!this.#isFetching && (this.#isStale || age > REFRESH_EVERY) && this.#store.state() !== 'lost') this.#fetch();
    this.#headLive.tick();
    this.#tableLive.tick();
    setText(this.#warning, warning(this.#row(), this.#store.now()));
    if (performance.now() - this.#drawnAt > REDRAW_EVERY) this.#drawTimeline();
  }

  /** Returns the row of the stream. It is newer than the details, or as new. */
  #row() {
    return this.#store.locks.get(this.#name)?.row ?? null;
  }

  async #fetch() {
    this.#isFetching = true;
    this.#isStale = false;
    try {
      const details = await lockDetails(this.#name);
      if (this.#isClosed) return;
      this.#details = details;
      setText(this.#problem, '');
      this.#draw();
    } catch (problem) {
      setText(this.#problem, `The history cannot be read: ${brief(problem.message, 300)} ${brief(problem.whatToDo ?? '', 300)}`);
    } finally {
      this.#isFetching = false;
      this.#fetchedAt = performance.now();
    }
  }

  /** Runs `draw` if `data` differs from the last time. Replacing elements would take the focus from them. */
  #onChange(part, data, draw) {
    const signature = JSON.stringify(data);
    if (this.#signatures[part] === signature) return;
    this.#signatures[part] = signature;
    draw();
  }

  #draw() {
    const row = this.#row();
    if (!row && !this.#store.complete) return;
    const holders = this.#longer(row?.holders, this.#details?.holders, row?.holder_count);
    const waiters = this.#longer(row?.waiters, this.#details?.waiters, row?.waiter_count);
    const whole = row && { ...row, holders, waiters };
    this.#onChange('head', whole, () => this.#drawHead(whole));
    this.#onChange('tables', [holders, waiters, row?.waiter_count], () => this.#drawTables(row, holders, waiters));
    if (this.#me.may_break) this.#drawBreak(holders);
    if (!this.#details) return;
    const { history, timeline } = this.#details;
    this.#onChange('stale', [history, holders.map(({ token }) => token)], () => this.#drawStale(row, history, holders));
    this.#onChange('timeline', [timeline, holders.length, waiters.length], () => this.#drawMoments());
  }

  /** The stream's rows are cut at 16 entries. The details have more, if they are as new. */
  #longer(streamed = [], detailed = [], count = 0) {
    return streamed.length < count && detailed.length > streamed.length ? detailed : streamed;
  }

  #drawHead(row) {
    this.#headLive = new Live();
    this.#sentence.replaceChildren(...sentence(this.#name, row, { store: this.#store, live: this.#headLive }));
    const kind = row ? kindOf(row) : 'not in use';
    const value = row?.value ?? null;
    this.#meta.replaceChildren(el('span', { class: 'tag' }, kind), ...(value === null ? [] : [' publishes ', el('code', null, foreign(value, 200))]));
  }

  #drawTables(row, holders, waiters) {
    this.#tableLive = new Live();
    const none = (text) => el('p', { class: 'dim' }, text);
    this.#holders.replaceChildren(holders.length === 0 ? none('No session holds this lock.')
      : table('Holders, oldest first', ['Holder', 'Token', 'Mode', 'Held', 'Left'], holders.map((holder) => this.#holderCells(holder)), { class: 'cards' }));
    this.#queue.replaceChildren(waiters.length === 0 ? none('No session waits.')
      : table('Queue, next first', ['#', 'Session', 'Mode', 'Waits'], waiters.map((waiter, index) => this.#waiterCells(waiter, index)), { class: 'cards' }));
    const missing = (row?.waiter_count ?? 0) - waiters.length;
    if (missing > 0) this.#queue.append(el('p', { class: 'note' }, `and ${number(missing)} more`));
  }

  #since(at) {
    return at === null ? '-' : this.#tableLive.text(() => runningTime(this.#store.now() - at));
  }

  #holderCells(holder) {
    const bar = timeBar();
    this.#tableLive.add(() => {
      const { left, fraction, jeopardy } = timeLeft(holder, this.#store.now());
      bar.show(runningTime(left), fraction, jeopardy);
    });
    return [sessionLink(holder, holderName(holder)), el('span', { class: 'num' }, tokenText(holder.token)), modeOf(holder), this.#since(holder.since), bar.element];
  }

  #waiterCells(waiter, index) {
    return [String(index + 1), sessionLink(waiter, sessionName(waiter)), modeOf(waiter), this.#since(waiter.since)];
  }

  #drawTimeline() {
    if (!this.#details) return;
    this.#drawnAt = performance.now();
    this.#timeline.replaceChildren(...drawTimeline(this.#details, this.#store.now()));
  }

  #drawMoments() {
    const { timeline } = this.#details;
    const summary = el('summary', null, `The same as a table: ${number(timeline.length)} ${timeline.length === 1 ? 'moment' : 'moments'}`);
    this.#moments.hidden = timeline.length === 0;
    if (!this.#moments.firstChild) this.#moments.append(summary, el('div'));
    setText(this.#moments.firstChild, summary.textContent);
    this.#moments.lastChild.replaceChildren(momentsTable(this.#details, this.#store.now()));
    this.#drawTimeline();
  }

  #drawStale(row, history, holders) {
    this.#stale.replaceChildren(...staleHolders(row, history, holders));
  }

  #prefixLinks() {
    const folders = this.#name.split('/').slice(0, -1).slice(0, 4);
    let prefix = '';
    return folders.map((folder) => {
      prefix += `${folder}/`;
      return el('a', { href: address('locks', { prefix }), title: 'Locks with this prefix' }, foreign(`${folder}/`, 60));
    });
  }

  #commands() {
    // A name that begins with a dash would be taken for an option.
    const word = `${this.#name.startsWith('-') ? '-- ' : ''}${shellWord(this.#name)}`;
    const start = this.#me.command;
    return [
      command(`${start} show ${word}`, 'Inspect it'),
      command(`${start} watch ${word}`, 'Follow its events'),
      command(`${start} break --reason 'WHY' ${word}`, 'Take it away'),
    ];
  }

  #drawBreak(holders) {
    if (!this.#break && holders.length > 0) {
      this.#break = new BreakForm(this.#name, holders, () => { this.#isStale = true; });
      this.#breaking.append(this.#break.element);
    } else if (holders.length > 0) {
      this.#break?.update(holders);
    }
  }
}

/** Lists the ended grants and what a resource would answer them. */
function staleHolders(row, history, holders) {
  const exclusive = holders.every(({ mode }) => mode === 'exclusive') && (row?.limit ?? null) === null;
  if (!exclusive) {
    return [el('p', null, 'Shared holders and permits cannot seal a resource: it would fence out the other holders. Tokens protect exclusive holders only.')];
  }
  const latest = Math.max(0, ...holders.map(({ token }) => token ?? 0), ...history.map(({ token }) => token ?? 0));
  if (history.length === 0) return [el('p', { class: 'dim' }, 'No grant has ended since this lock came into use.')];
  const intro = `A resource that is sealed with ${latest} refuses every lower token:`;
  const line = (grant) => el('li', null, foreign(sessionName(grant), 80), ` with token ${grant.token} would be `,
    grant.token < latest ? `refused: ${latest} has been seen` : 'accepted: no later token has been given',
    el('span', { class: 'dim' }, ' (', foreign(grant.how, 120), ')'));
  return [el('p', null, intro), el('ul', { class: 'plain' }, history.toReversed().slice(0, 20).map(line))];
}
