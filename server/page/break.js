// The form that takes a lock away from its holders.

import { breakLock } from './api.js';
import { el, prose } from './dom.js';
import { brief, count, problemText, shown } from './format.js';
import { holderName } from './rows.js';

const field = (title, input, hint) => el('label', { class: 'field tall' }, el('span', null, title), input, hint ? el('small', null, hint) : null);

const text = (name) => el('input', { name, type: 'text', required: true, autocomplete: 'off', spellcheck: 'false' });

/** A form for the grants that the operator saw when it was opened. */
export class BreakForm {
  #name;
  #tokens;
  /** The choice of grants that the form begins with. */
  #first;
  #warnedOf = null;
  #reason = text('reason');
  #typed = text('lock');
  #grant = el('select', { name: 'grant' });
  #button = el('button', { type: 'submit', class: 'danger', disabled: true }, 'Take it away');
  #outcome = el('div', { class: 'outcome', role: 'status', tabindex: '-1' });
  #form;
  #details = el('details');
  element = el('div', { class: 'break' }, this.#outcome, this.#details);

  constructor(name, holders, onDone) {
    this.#name = name;
    this.onDone = onDone;
    this.#reset(holders);
    this.#details.append(el('summary', null, 'Take this lock away (break)'));
    this.#form = el('form', { onsubmit: (event) => this.#submit(event), oninput: () => this.#check() },
      el('p', null, 'For a holder that hangs. The old holder is notified, but it may still write. The token moves on, so that you can seal the resource with it.'),
      field('Which grants end', this.#grant, 'If the grant is over before, nothing happens.'),
      field('Why? It is recorded', this.#reason),
      field('Type the name of the lock', this.#typed, brief(name, 200)),
      this.#button);
    this.#details.append(this.#form);
  }

  /** Takes over the holders, unless the operator is filling in the form. */
  update(holders) {
    const tokens = holders.map(({ token }) => token).join();
    if (tokens === this.#tokens) return;
    const isUntouched = this.#reason.value === '' && this.#typed.value === '' && this.#grant.value === this.#first;
    if (isUntouched) {
      this.#reset(holders);
    } else if (this.#warnedOf !== tokens) {
      this.#warnedOf = tokens;
      const again = () => { this.#reset(holders); this.#check(); this.#outcome.replaceChildren(); };
      this.#outcome.replaceChildren(el('p', { class: 'warn' }, 'The lock has changed hands since you opened this form. '),
        el('button', { type: 'button', onclick: again }, 'Show the holders of now'));
      this.#check();
    }
  }

  #reset(holders) {
    this.#tokens = holders.map(({ token }) => token).join();
    const one = ({ token, ...holder }) => el('option', { value: token }, `token ${token} of ${brief(holderName(holder), 80)}`);
    const all = holders.length === 1 ? [] : [el('option', { value: '' }, `all ${count(holders.length, 'grant', 'grants')}`)];
    this.#details.hidden = holders.length === 0;
    this.#grant.replaceChildren(...all, ...holders.slice(0, 100).map(one));
    [this.#first, this.#warnedOf] = [this.#grant.value, null];
  }

  #isConfirmed() {
    // The operator confirms what the form shows, which must be what is true.
    if (this.#warnedOf !== null) return false;
    // A name with a line break cannot be typed, so its escaped form counts too.
    return [this.#name, shown(this.#name)].includes(this.#typed.value) && this.#reason.value.trim() !== '';
  }

  #check() {
    this.#button.disabled = !this.#isConfirmed();
  }

  async #submit(event) {
    event.preventDefault();
    if (!this.#isConfirmed()) return;
    this.#button.disabled = true;
    const token = this.#grant.value === '' ? {} : { token: Number(this.#grant.value) };
    try {
      this.#showDone(await breakLock({ lock: this.#name, reason: this.#reason.value.trim(), ...token }));
    } catch (problem) {
      const isUnknown = problem.status === null || problem.status >= 500;
      const what = isUnknown ? 'It is not known whether the lock was taken away; its history will tell. ' : 'The lock was not taken away. ';
      this.#outcome.replaceChildren(el('p', { class: 'warn' }, what, prose(problemText(problem))));
      this.#outcome.focus();
      this.#check();
    }
  }

  #showDone({ grants, moved_to: movedTo }) {
    this.#form.reset();
    this.#check();
    this.#details.open = false;
    this.onDone(movedTo);
    this.#outcome.replaceChildren(
      el('p', null, `${count(grants, 'grant has', 'grants have')} ended, the token moved on to ${movedTo}.`),
      el('p', null, el('strong', null, `Seal the resource with ${movedTo}.`), ' It then refuses every lower token. Until then the old holder may still write.'));
    this.#outcome.focus();
  }
}
