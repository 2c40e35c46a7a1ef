// The connection to the server of the page, and the rows and numbers that it sends.

import { Lock } from './rows.js';

const OLD_AFTER = 3000;
const SAMPLES = 900;
const RETRY_FIRST = 500;
const RETRY_MOST = 10_000;
/** A stream that is silent for this long is dead, even if no error was reported (a suspended laptop, a lost network). */
const SILENT_MOST = 12_000;

/** What the server has sent, and how old it is. */
export class Store extends EventTarget {
  locks = new Map();
  /** The names whose lock has changed since the page last drew. */
  changed = new Set();
  samples = [];
  members = null;
  complete = false;
  outage = null;
  connected = false;
  #board = null;
  #generation = 0;
  #offset = 0;
  #receivedAt = null;
  #rowsAt = null;
  #outageAt = null;

  /**
   * Returns the time on the board's clock. It stops when the data is old: the page knows nothing about the time
   * after that.
   */
  now() {
    const latest = (this.#receivedAt ?? performance.now()) + OLD_AFTER;
    return Math.min(performance.now(), latest, this.#outageAt ?? Infinity) - this.#offset;
  }

  /** Returns the time on the board's clock, also while the data is old. The time of day of a moment follows from it. */
  clock() {
    return performance.now() - this.#offset;
  }

  /** Sets the clock by another answer than the stream's, if the stream has not begun. */
  setClock(now) {
    if (this.#receivedAt === null) this.#offset = performance.now() - now;
  }

  /** Returns the process that the rows are from, or `null` before the first message. */
  get board() {
    return this.#board;
  }

  /** Returns how many milliseconds old the data is, or `null` before it came. In an outage, only the numbers are new. */
  age() {
    const at = this.outage === null ? this.#receivedAt : this.#rowsAt;
    return at === null ? null : performance.now() - at;
  }

  /** Returns `live`, `old`, `lost`, or `connecting` before the first message. */
  state() {
    if (this.#receivedAt === null) return 'connecting';
    if (!this.connected) return 'lost';
    return this.outage !== null || performance.now() - this.#receivedAt > OLD_AFTER ? 'old' : 'live';
  }

  start({ now, board, numbers }) {
    // The times of another process are on another clock. Of the same process, rows stay until their successors came.
    if (board !== this.#board) this.#forgetAll();
    this.#board = board;
    this.#generation += 1;
    this.complete = false;
    this.samples = numbers;
    this.#received(now);
  }

  rows({ now, rows, gone, complete }) {
    for (const row of rows) {
      this.locks.set(row.name, new Lock(row, this.#generation));
      this.changed.add(row.name);
    }
    for (const name of gone) this.#forget(name);
    if (complete && !this.complete) this.#forgetOlderGenerations();
    this.complete ||= complete;
    this.outage = null;
    this.#outageAt = null;
    this.#rowsAt = performance.now();
    this.#received(now);
  }

  numbers({ now, sample, members }) {
    this.samples.push(sample);
    if (this.samples.length > SAMPLES) this.samples.splice(0, this.samples.length - SAMPLES);
    this.members = members;
    this.#received(now);
  }

  failed({ now, text }) {
    this.outage = text;
    this.#outageAt ??= performance.now();
    this.#received(now);
  }

  disconnected() {
    this.connected = false;
    this.#announce();
  }

  #received(now) {
    this.#receivedAt = performance.now();
    this.#offset = this.#receivedAt - now;
    this.connected = true;
    this.#announce();
  }

  #announce() {
    this.dispatchEvent(new Event('change'));
  }

  #forget(name) {
    if (this.locks.delete(name)) this.changed.add(name);
  }

  #forgetAll() {
    for (const name of [...this.locks.keys()]) this.#forget(name);
  }

  #forgetOlderGenerations() {
    for (const [name, { generation }] of this.locks) {
      if (generation !== this.#generation) this.#forget(name);
    }
  }
}

/** Keeps a stream open, and opens it again when it fails. */
export class Connection {
  #store;
  #mayReconnect;
  #source = null;
  #timer = null;
  #silence = null;
  #delay = RETRY_FIRST;

  /** `mayReconnect` is asked before each new stream. It resolves to `false` if a login is needed first. */
  constructor(store, mayReconnect) {
    this.#store = store;
    this.#mayReconnect = mayReconnect;
  }

  open() {
    this.close();
    const source = new EventSource('/page/stream');
    const on = (event, handle) => source.addEventListener(event, ({ data }) => {
      this.#delay = RETRY_FIRST;
      this.#expectMessage();
      handle(JSON.parse(data));
    });
    on('start', (message) => this.#store.start(message));
    on('rows', (message) => this.#store.rows(message));
    on('numbers', (message) => this.#store.numbers(message));
    on('outage', (message) => this.#store.failed(message));
    source.addEventListener('error', () => this.#failed());
    this.#source = source;
    this.#expectMessage();
  }

  close() {
    clearTimeout(this.#timer);
    clearTimeout(this.#silence);
    this.#source?.close();
    this.#source = null;
  }

  #expectMessage() {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => this.#retry(), SILENT_MOST);
  }

  #failed() {
    this.#store.disconnected();
    // The browser retries a broken stream by itself; after an HTTP error it gives up.
    if (this.#source?.readyState === EventSource.CLOSED) this.#retryLater();
  }

  #retryLater() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#retry(), this.#delay);
    this.#delay = Math.min(RETRY_MOST, this.#delay * 2);
  }

  async #retry() {
    this.close();
    try {
      if (await this.#mayReconnect()) this.open();
    } catch {
      this.#retryLater();
    }
  }
}
