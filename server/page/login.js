// The login form.

import { login } from './api.js';
import { el, setProse } from './dom.js';
import { problemText } from './format.js';

/** The view in which a user logs in. */
export class LoginView {
  title = 'Log in';
  #user = el('input', { name: 'user', type: 'text', required: true, autocomplete: 'username', spellcheck: 'false' });
  #secret = el('input', { name: 'secret', type: 'password', required: true, autocomplete: 'current-password' });
  #button = el('button', { type: 'submit', class: 'main' }, 'Log in');
  #problem = el('p', { class: 'warn', role: 'alert' });

  constructor({ me, onDone }) {
    this.onDone = onDone;
    const field = (title, input) => el('label', { class: 'field tall' }, el('span', null, title), input);
    this.element = el('form', { class: 'view login', onsubmit: (event) => this.#submit(event) },
      el('h1', { id: 'title', tabindex: '-1' }, 'Log in'),
      el('p', { class: 'dim' }, `The ${me.engine} at ${me.where} has users. Use the name and the secret of one of them.`),
      field('User', this.#user), field('Secret', this.#secret), this.#problem, this.#button);
  }

  close() {}

  takeFocus() {
    this.#user.focus();
  }

  update() {}
  tick() {}

  async #submit(event) {
    event.preventDefault();
    this.#button.disabled = true;
    setProse(this.#problem, '');
    try {
      await login(this.#user.value, this.#secret.value);
      await this.onDone();
    } catch (problem) {
      setProse(this.#problem, problemText(problem));
      this.#secret.select();
    } finally {
      this.#button.disabled = false;
    }
  }
}
