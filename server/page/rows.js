// What a row of the stream means.

import { brief, NOTHING, number } from './format.js';

export const WITHHELD = 'withheld after an expiry';

/** Returns the kind of a lock. */
export function kindOf(row) {
  if (row.limit !== null) return 'semaphore';
  if (row.value !== null) return 'election';
  const shared = [...row.holders, ...row.waiters].some(({ mode }) => mode === 'shared');
  return shared ? 'read-write lock' : 'lock';
}

/** Names a session: its label, or its number if it has none. */
export const sessionName = ({ session, label }) => label || (session === null ? WITHHELD : `session ${session}`);

/** Names a holder. A withheld lock has a holder without a session. */
export const holderName = (holder) => (holder.session === null ? WITHHELD : sessionName(holder));

/** Describes the mode of a holder or a waiter. */
export function modeOf({ mode, permits }) {
  if (mode !== 'permits') return mode;
  return permits === 1 ? '1 permit' : `${permits} permits`;
}

/** Returns how many permits are taken, as text. A row lists at most 16 holders; the others have at least one each. */
export function permitsTaken({ holders, holder_count: all }) {
  const listed = holders.reduce((sum, { permits }) => sum + (permits ?? 0), 0);
  const others = all - holders.length;
  return others > 0 ? `at least ${number(listed + others)}` : number(listed);
}

/** Describes the holders of a lock in one cell: their count and the oldest one. */
export function holdersCell(row) {
  const [oldest] = row.holders;
  if (!oldest) return 'none';
  const name = brief(holderName(oldest));
  const shared = row.limit === null && oldest.mode === 'shared';
  if (row.limit === null && !shared) return name;
  const held = shared ? 'shared' : `${permitsTaken(row)}/${row.limit} permits`;
  return row.holder_count === 1 ? `${held}: ${name}` : `${held} by ${number(row.holder_count)}: ${name}`;
}

export const tokenText = (token) => (token === null || token === undefined ? NOTHING : String(token));

/** Whether a lock is a period of `palisade run --every`. Its session has no keeper, and ends when the period is over. */
export const isPeriod = (name) => name.endsWith('.every');

/** Returns the time left and whether the holder's session is in jeopardy. A keeper renews every third of the TTL. */
export function timeLeft({ until, ttl }, now, hasKeeper = true) {
  if (until === null) return { left: null, fraction: null, jeopardy: false };
  const left = Math.max(0, until - now);
  if (!ttl) return { left, fraction: null, jeopardy: false };
  return { left, fraction: Math.min(1, left / ttl), jeopardy: hasKeeper && left < ttl / 3 };
}

/** A row of the stream, with what the lists sort and search by. */
export class Lock {
  constructor(row, generation) {
    this.row = row;
    this.name = row.name;
    this.generation = generation;
    this.kind = kindOf(row);
    this.oldest = row.holders[0] ?? null;
    this.holderText = holdersCell(row);
  }

  /** Whether the name, or the label of a holder or a waiter, contains `text` (in lower case). */
  matches(text) {
    this.searched ??= [this.name, ...[...this.row.holders, ...this.row.waiters].map(({ label }) => label ?? '')]
      .join('\n').toLowerCase();
    return this.searched.includes(text);
  }

  /** Whether the session holds this lock or waits for it. */
  involves(session) {
    return this.row.holders.some((holder) => holder.session === session)
      || this.row.waiters.some((waiter) => waiter.session === session);
  }
}

/** Groups holders and waiters by session. Withheld locks have no session and are not among them. */
export function sessionsOf(locks) {
  const sessions = new Map();
  const find = ({ session, label, until, ttl }) => {
    let found = sessions.get(session);
    if (!found) {
      found = { session, label, holds: [], waits: [], until: null, ttl: null };
      sessions.set(session, found);
    }
    found.label ??= label;
    found.ttl ??= ttl;
    if (until !== null) found.until = Math.max(found.until ?? 0, until);
    return found;
  };
  for (const { name, row } of locks) {
    for (const holder of row.holders) {
      if (holder.session !== null) find(holder).holds.push(name);
    }
    for (const waiter of row.waiters) find(waiter).waits.push(name);
  }
  return sessions;
}
