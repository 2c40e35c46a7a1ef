// Starts the page: the login, the connection, the views, and one update per frame.

import { logout, me as fetchMe } from './api.js';
import { setAttribute, setProse, setText } from './dom.js';
import { asSentence, brief, time } from './format.js';
import { ElectionsView } from './elections.js';
import { LockView } from './lock.js';
import { LocksView } from './locks.js';
import { LoginView } from './login.js';
import { parseAddress } from './routes.js';
import { ServiceView } from './service.js';
import { SessionsView } from './sessions.js';
import { Connection, Store } from './stream.js';

const VIEWS = { locks: LocksView, lock: LockView, sessions: SessionsView, service: ServiceView, elections: ElectionsView };
const RETRY_START = 2000;
const TICK = matchMedia('(prefers-reduced-motion: reduce)').matches ? 1000 : 100;

const part = (id) => document.getElementById(id);

class Page {
  #store = new Store();
  #connection = new Connection(this.#store, () => this.#refreshMe());
  #me = null;
  #view = null;
  #place = null;
  #frame = null;
  #hasNews = false;
  #isUnreachable = false;

  async start() {
    this.#store.addEventListener('change', () => this.#news());
    addEventListener('hashchange', () => this.#navigate());
    addEventListener('scroll', () => this.#view?.scrolled?.(), { passive: true });
    addEventListener('keydown', (event) => this.#key(event));
    part('skip').addEventListener('click', (event) => this.#skip(event));
    part('logout').addEventListener('click', () => this.#logOut());
    setInterval(() => this.#requestFrame(), TICK);
    await this.#enter();
  }

  /** Asks who the user is, and shows the views or the login form. */
  async #enter() {
    try {
      if (await this.#refreshMe()) this.#connection.open();
      this.#isUnreachable = false;
    } catch {
      this.#isUnreachable = true;
      setTimeout(() => this.#enter(), RETRY_START);
    }
    this.#requestFrame();
  }

  /** Returns whether the stream may be opened. If a login is needed, shows the form. */
  async #refreshMe() {
    this.#me = await fetchMe();
    const { engine, login, user, where } = this.#me;
    setText(part('where'), user === null ? brief(where, 60) : `${brief(user, 30)} at ${brief(where, 60)}`);
    part('logout').hidden = user === null;
    part('nav').hidden = login;
    setText(part('engine'), engine === 'service' ? 'Service' : 'Engine');
    if (login) {
      this.#connection.close();
      this.#show(new LoginView({ me: this.#me, onDone: () => this.#enter() }));
      this.#place = null;
    } else if (!this.#place) {
      this.#navigate();
    }
    return !login;
  }

  async #logOut() {
    await logout().catch(() => null);
    this.#connection.close();
    location.reload();
  }

  #navigate() {
    if (!this.#me || this.#me.login) return;
    const place = parseAddress(location.hash);
    const View = Object.hasOwn(VIEWS, place.view) ? VIEWS[place.view] : LocksView;
    const isSameView = this.#place?.view === place.view && this.#place?.name === place.name;
    this.#place = place;
    if (isSameView && this.#view.readAddress) {
      this.#view.readAddress(place.parameters);
    } else {
      this.#show(new View({ store: this.#store, me: this.#me, ...place }));
    }
    this.#markCurrent(place.view);
  }

  #show(view) {
    const isFirst = this.#view === null;
    this.#view?.close();
    this.#view = view;
    part('main').replaceChildren(view.element);
    document.title = `${view.title} · Palisade`;
    scrollTo(0, 0);
    view.update(new Set());
    // Screen readers then read the new heading. The first view keeps the focus at the top of the page.
    if (view.takeFocus) view.takeFocus();
    else if (!isFirst) part('title')?.focus({ preventScroll: true });
    this.#requestFrame();
  }

  #markCurrent(view) {
    const section = view === 'lock' ? 'locks' : view;
    for (const link of part('nav').querySelectorAll('a')) {
      setAttribute(link, 'aria-current', link.getAttribute('href') === `#/${section}` ? 'page' : null);
    }
  }

  #news() {
    this.#hasNews = true;
    this.#requestFrame();
  }

  #requestFrame() {
    this.#frame ??= requestAnimationFrame(() => this.#draw());
  }

  /** The only place where data becomes visible: at most once per frame. */
  #draw() {
    this.#frame = null;
    if (this.#hasNews) this.#view?.update(this.#store.changed);
    else this.#view?.tick();
    if (this.#hasNews) this.#store.changed.clear();
    this.#hasNews = false;
    this.#showState();
  }

  /** Says whether the data is live. The age is outside of the alert, or screen readers would read it every second. */
  #showState() {
    const loggedOut = this.#me?.login ?? false;
    const state = this.#isUnreachable ? 'lost' : loggedOut ? 'live' : this.#store.state();
    const { outage } = this.#store;
    const age = this.#store.age();
    setProse(part('alert'), state === 'lost' ? lostText(this.#me) : '');
    setProse(part('status'), state === 'old' ? oldText(this.#me, outage) : '');
    setText(part('age'), (state === 'lost' || state === 'old') && age !== null ? `The data is ${wholeSeconds(age)} old.` : '');
    setText(part('state'), loggedOut ? '' : { live: 'Live', old: 'Old data', lost: 'Connection lost', connecting: 'Connecting' }[state]);
    const root = document.documentElement.dataset;
    if (root.state !== state) root.state = state;
    const trust = String(state === 'live');
    if (root.current !== trust) root.current = trust;
  }

  #key(event) {
    const isTyping = event.target.closest?.('input, textarea, select');
    if (event.key !== '/' || isTyping || event.ctrlKey || event.metaKey || event.altKey || !this.#place) return;
    event.preventDefault();
    if (!this.#view.focusSearch) {
      location.hash = '#/locks';
      this.#navigate();
    }
    this.#view.focusSearch();
  }

  #skip(event) {
    event.preventDefault(); // The part after the # is the address of a view.
    part('main').focus();
  }
}

const wholeSeconds = (ms) => (ms < 10_000 ? `${Math.floor(ms / 1000)}s` : time(ms));

/** Says that the connection is lost. Without a service, it is the one to `palisade page`, which runs in a terminal. */
function lostText(me) {
  if (!me) return 'The connection is lost. Connecting again …';
  if (me.engine === 'service') return 'The connection to the service is lost. Connecting again …';
  return 'The connection to `palisade page` is lost. If it has ended, start it again and open the address that it prints.';
}

function oldText(me, outage) {
  if (outage !== null) return asSentence(`The locks cannot be read at the moment: ${brief(outage, 300)}`);
  return me?.engine === 'service' ? 'The service sends nothing at the moment.' : '`palisade page` sends nothing at the moment.';
}

new Page().start();
