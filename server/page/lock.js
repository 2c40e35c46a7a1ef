// One lock: who holds it, since when, who is next, and what happened before.

import { lockDetails } from './api.js';
import { BreakForm } from './break.js';
import { command, copyButton, el, foreign, Live, prose, setProse, setText, table, timeBar } from './dom.js';
import { brief, number, problemText, runningTime, shellWord } from './format.js';
import { address } from './routes.js';
import { holderName, isPeriod, kindOf, modeOf, sessionName, timeLeft, tokenText } from './rows.js';
import { sentence, warning } from './sentence.js';
import { drawTimeline, momentsTable } from './timeline.js';

const REFRESH_EVERY = 2000;
/** A refusal seldom changes, and the service may log each one. */
const REFUSED_EVERY = 30_000;
const REDRAW_EVERY = 1000;
const NAME_MOST = 160;

const dim = (text) => el('p', { class: 'dim' }, text);
const LOADING = 'Loading …';

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
  /** The process that the details are from. */
  #board = null;
  /** Why the details could not be fetched, or `null`. */
  #failure = null;
  /** When the waits of each session began that this view has seen: the timeline lacks those that are older than its records. */
  #waits = new Map();
  #movedTo = 0;
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
  #timeline = el('div', null, dim(LOADING));
  #moments = el('details', { hidden: true });
  #stale = el('div', null, dim(LOADING));
  #breaking = el('div');
  /** Shown instead of the content, before it is known and if the user may not see it. */
  #instead = el('div', { role: 'status' });
  #content;

  constructor({ store, name, me }) {
    this.#name = name;
    this.#store = store;
    this.#me = me;
    this.title = brief(name, 60);
    this.#content = el('div', { class: 'content', hidden: true },
      this.#sentence, this.#warning, this.#problem,
      el('div', { class: 'columns' },
        section('Holders', 'h-holders', this.#holders), section('Queue, next first', 'h-queue', this.#queue)),
      section('Timeline', 'h-timeline', this.#timeline, this.#moments),
      el('div', { class: 'columns' },
        section('What an old holder would be told', 'h-stale', this.#stale),
        section('Commands', 'h-commands', ...this.#commands(), this.#breaking)));
    this.element = el('article', { class: 'view lock', 'aria-labelledby': 'title' },
      el('p', { class: 'crumbs' }, el('a', { href: '#/locks' }, 'Locks'), ' / ', ...this.#prefixLinks()),
      el('div', { class: 'bar-top' }, el('h1', { id: 'title', tabindex: '-1' }, foreign(name, NAME_MOST)), copyButton(name, 'Copy name'), this.#meta),
      this.#instead, this.#content);
  }

  close() {
    this.#isClosed = true;
  }

  update(changed) {
    if (changed.has(this.#name)) this.#isStale = true;
    this.#dropOldDetails();
    this.#draw();
    this.tick();
  }

  tick() {
    const age = performance.now() - this.#fetchedAt;
    if (!this.#isFetching && (this.#isStale || age > (this.#isRefused() ? REFUSED_EVERY : REFRESH_EVERY)) && this.#store.state() !== 'lost') this.#fetch();
    this.#headLive.tick();
    this.#tableLive.tick();
    setText(this.#warning, warning(this.#row(), this.#store.now()));
    if (performance.now() - this.#drawnAt > REDRAW_EVERY) this.#drawTimeline();
  }

  /** Returns the row of the stream: it is newer than the details, or as new. Until the list is loaded, the details do. */
  #row() {
    const { locks, complete } = this.#store;
    return locks.get(this.#name)?.row ?? (complete ? null : this.#details?.row ?? null);
  }

  #isRefused() {
    return this.#failure?.status === 403;
  }

  /**
   * Returns whether the lock's state is known. A lock that the list lacks may be one that the user may not see, so
   * only the details tell that it is not in use, unless they cannot be fetched.
   */
  #isKnown() {
    return this.#row() !== null || this.#details !== null || (this.#store.complete && this.#failure !== null);
  }

  /** The times of another process are on another clock. */
  #dropOldDetails() {
    const { board } = this.#store;
    if (board === this.#board) return;
    if (this.#board !== null) {
      this.#details = null;
      this.#waits.clear();
    }
    this.#board = board;
    this.#isStale = true;
  }

  async #fetch() {
    this.#isFetching = true;
    this.#isStale = false;
    const board = this.#board;
    const [details, failure] = await lockDetails(this.#name).then((answer) => [answer, null], (problem) => [null, problem]);
    this.#isFetching = false;
    this.#fetchedAt = performance.now();
    if (this.#isClosed || (board !== null && board !== this.#board)) return;
    this.#failure = failure;
    if (details) {
      this.#store.setClock(details.now);
      this.#details = details;
    } else if (this.#isRefused()) {
      this.#details = null;
    }
    this.#draw();
  }

  /** Runs `draw` if `data` differs from the last time. Replacing elements would take the focus from them. */
  #onChange(part, data, draw) {
    const signature = JSON.stringify(data);
    if (this.#signatures[part] === signature) return;
    this.#signatures[part] = signature;
    draw();
  }

  #draw() {
    const isShown = this.#isKnown() && !this.#isRefused();
    this.#content.hidden = !isShown;
    this.#meta.hidden = !isShown;
    this.#onChange('instead', [isShown, this.#failure?.message], () => this.#drawInstead(isShown));
    if (!isShown) return;
    const row = this.#row();
    const holders = this.#longer(row?.holders, this.#details?.holders, row?.holder_count);
    const waiters = this.#longer(row?.waiters, this.#details?.waiters, row?.waiter_count);
    const whole = row && { ...row, holders, waiters };
    this.#onChange('head', whole, () => this.#drawHead(whole));
    this.#onChange('tables', [holders, waiters, row?.waiter_count], () => this.#drawTables(row, holders, waiters));
    if (this.#me.may_break) this.#drawBreak(holders);
    setProse(this.#problem, this.#failure ? `The history cannot be read. ${problemText(this.#failure)}` : '');
    this.#remember([...waiters, ...this.#details?.waiters ?? []]);
    if (!this.#details) return this.#drawWithoutDetails();
    const { history, timeline } = this.#details;
    this.#onChange('stale', [history, holders.map(({ token }) => token), row?.limit, this.#movedTo], () => this.#drawStale(row, history, holders));
    this.#onChange('timeline', [timeline, holders.length, waiters.length], () => this.#drawMoments());
    return undefined;
  }

  #drawInstead(isShown) {
    if (isShown) this.#instead.replaceChildren();
    else if (this.#isRefused()) this.#instead.replaceChildren(el('p', { class: 'sentence' }, 'You may not see this lock.'), el('p', null, prose(problemText(this.#failure))));
    else this.#instead.replaceChildren(dim(this.#failure ? `${LOADING} ${problemText(this.#failure)}` : LOADING));
  }

  #drawWithoutDetails() {
    const text = this.#failure ? 'Unknown: the history cannot be read.' : LOADING;
    for (const part of ['stale', 'timeline']) delete this.#signatures[part];
    this.#moments.hidden = true;
    this.#onChange('missing', text, () => {
      this.#timeline.replaceChildren(dim(text));
      this.#stale.replaceChildren(dim(text));
    });
  }

  #remember(waiters) {
    for (const { session, since } of waiters) {
      const seen = this.#waits.get(session) ?? [];
      if (since !== null && !seen.includes(since)) this.#waits.set(session, [...seen.slice(-9), since]);
    }
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
    this.#holders.replaceChildren(holders.length === 0 ? dim('No session holds this lock.')
      : table('Holders, oldest first', ['Holder', 'Token', 'Mode', 'Held', 'Left'], holders.map((holder) => this.#holderCells(holder)), { class: 'cards' }));
    this.#queue.replaceChildren(waiters.length === 0 ? dim('No session waits.')
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
      const { left, fraction, jeopardy } = timeLeft(holder, this.#store.now(), !isPeriod(this.#name));
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
    this.#timeline.replaceChildren(...drawTimeline(this.#details, this.#waits, {
      now: this.#store.now(), clock: this.#store.clock(), isCurrent: !['old', 'lost'].includes(this.#store.state()),
    }));
  }

  #drawMoments() {
    const { timeline } = this.#details;
    const summary = el('summary', null, `The same as a table: ${number(timeline.length)} ${timeline.length === 1 ? 'moment' : 'moments'}`);
    this.#moments.hidden = timeline.length === 0;
    if (!this.#moments.firstChild) this.#moments.append(summary, el('div'));
    setText(this.#moments.firstChild, summary.textContent);
    this.#moments.lastChild.replaceChildren(momentsTable(this.#details, this.#store.clock()));
    this.#drawTimeline();
  }

  #drawStale(row, history, holders) {
    delete this.#signatures.missing;
    this.#stale.replaceChildren(...staleHolders(row, history, holders, this.#movedTo));
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
      ...(this.#me.may_break ? [command(`${start} break --reason 'WHY' ${word}`, 'Take it away')] : []),
    ];
  }

  #drawBreak(holders) {
    if (!this.#break && holders.length > 0) {
      this.#break = new BreakForm(this.#name, holders, (movedTo) => this.#broke(movedTo));
      this.#breaking.append(this.#break.element);
    } else {
      this.#break?.update(holders);
    }
  }

  #broke(movedTo) {
    this.#movedTo = movedTo;
    this.#isStale = true;
    this.#draw();
  }
}

/** Lists the ended grants and what a resource would answer them. A break moves the token on without a grant. */
function staleHolders(row, history, holders, movedTo) {
  const exclusive = holders.every(({ mode }) => mode === 'exclusive') && (row?.limit ?? null) === null;
  if (!exclusive) {
    return [el('p', null, 'Shared holders and permits cannot seal a resource: it would fence out the other holders. Tokens protect exclusive holders only.')];
  }
  const latest = Math.max(movedTo, ...holders.map(({ token }) => token ?? 0), ...history.map(({ token }) => token ?? 0));
  if (history.length === 0) return [el('p', { class: 'dim' }, 'No grant has ended since this lock came into use.')];
  const intro = `A resource that was sealed with ${latest} would refuse every lower token:`;
  const line = (grant) => el('li', null, foreign(sessionName(grant), 80), ` with token ${grant.token} would be `,
    grant.token < latest ? 'refused' : 'accepted: no later token has been given',
    el('span', { class: 'dim' }, ' (', foreign(grant.how, 120), ')'));
  return [el('p', null, intro), el('ul', { class: 'plain' }, history.toReversed().slice(0, 20).map(line))];
}
