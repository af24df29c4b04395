// The conversations on the side: open, rename, delete.

import { get, patch, remove } from './api.js';
import { $, h, icon, say } from './dom.js';

const PAGE = 50;

export class Conversations {
  /** `open(id)` shows one; `gone(id)` is called when one was deleted; `failed(fault)` shows what went wrong. */
  constructor({ open, gone, failed }) {
    Object.assign(this, { open, gone, failed, current: null, known: [] });
    this.list = $('conversations');
    $('older').addEventListener('click', () => this.#attempt(() => this.#older()));
  }

  /** Reads the newest again. */
  async refresh() {
    const { conversations } = await get(`v1/conversations?limit=${PAGE}`);
    this.#keep(conversations, conversations.length < PAGE);
  }

  /** Which one is shown; null for a new one. */
  select(id) {
    this.current = id;
    this.#show();
  }

  titleOf(id) {
    return this.known.find((each) => each.id === id)?.title || 'Untitled';
  }

  async #older() {
    const { conversations } = await get(`v1/conversations?limit=${PAGE}&before=${this.known.at(-1).id}`);
    this.#keep([...this.known, ...conversations], conversations.length < PAGE);
  }

  #keep(conversations, all) {
    this.known = conversations;
    $('older').hidden = all;
    $('earlier').hidden = !conversations.length;
    this.#show();
  }

  #show() {
    this.list.replaceChildren(...this.known.map((each) => this.#item(each)));
  }

  #item(each) {
    const title = each.title || 'Untitled';
    const name = h('button', { type: 'button', class: 'name', dir: 'auto', 'aria-current': each.id === this.current && 'true', click: () => this.open(each.id) }, title);
    const item = h('li', {}, name,
      h('button', { type: 'button', class: 'icon', 'aria-label': `Rename ${title}`, click: () => this.#rename(each, item) }, icon('pencil')),
      h('button', { type: 'button', class: 'icon', 'aria-label': `Delete ${title}`, click: () => this.#confirm(each, item) }, icon('trash')));
    return item;
  }

  #rename(each, item) {
    const input = h('input', { 'aria-label': 'Title', value: each.title, maxlength: '200', dir: 'auto' });
    const back = () => {
      this.#show();
      this.#focus(each.id);
    };
    const keep = () => this.#attempt(async () => {
      Object.assign(each, await patch(`v1/conversations/${each.id}`, { title: input.value.trim() }));
      back();
      if (each.id === this.current) this.open(each.id);
    });
    const form = h('form', { submit: (event) => (event.preventDefault(), keep()), keydown: (event) => {
      if (event.key === 'Escape') (event.stopPropagation(), back());
    } }, input, h('button', { type: 'submit', class: 'quiet' }, 'Save'));
    item.replaceChildren(form);
    input.select();
  }

  #confirm(each, item) {
    const back = () => {
      this.#show();
      this.#focus(each.id);
    };
    const yes = h('button', { type: 'button', class: 'danger', click: () => this.#attempt(async () => {
      await remove(`v1/conversations/${each.id}`);
      this.known = this.known.filter(({ id }) => id !== each.id);
      this.#show();
      $('new').focus();
      say(`Deleted ${each.title || 'Untitled'}`);
      this.gone(each.id);
    }) }, 'Delete');
    item.replaceChildren(h('div', { class: 'sure', role: 'group', 'aria-label': `Delete ${each.title}?`, keydown: (event) => {
      if (event.key === 'Escape') (event.stopPropagation(), back());
    } }, h('span', {}, 'Delete it for good?'), yes, h('button', { type: 'button', class: 'quiet', click: back }, 'Keep')));
    yes.focus();
  }

  #focus(id) {
    this.list.children[this.known.findIndex((each) => each.id === id)]?.querySelector('.name').focus();
  }

  #attempt(work) {
    return work().catch((fault) => {
      this.#show();
      this.failed(fault);
    });
  }
}
