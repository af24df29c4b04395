// Where to search: buckets, and filters on the fields that they have.

import { $, h, icon, plural } from './dom.js';

const OPS = {
  text: [['=', 'is'], ['!=', 'is not'], ['in', 'is one of'], ['like', 'is like'], ['is_null', 'is missing']],
  number: [['=', 'is'], ['!=', 'is not'], ['>=', 'at least'], ['<=', 'at most'], ['between', 'between'], ['is_null', 'is missing']],
  date: [['>=', 'from'], ['<=', 'until'], ['=', 'on'], ['between', 'between'], ['is_null', 'is missing']],
  boolean: [['=', 'is'], ['is_null', 'is missing']],
  list: [['=', 'has'], ['in', 'has one of'], ['like', 'has one like'], ['!=', 'has not'], ['is_null', 'is missing']],
};
// What every document has, whatever its bucket's schema says.
const OWN = [['title', 'text'], ['uri', 'text'], ['format', 'text'], ['ingested_at', 'date']];

export class Scope {
  constructor() {
    this.buckets = [];
    this.rows = [];
    this.button = $('scope-open');
    this.panel = $('scope');
    this.choices = h('div', { class: 'chips' });
    this.list = h('div', { class: 'rules' });
    this.fields = h('fieldset', { class: 'where' }, h('legend', {}, 'Buckets'), this.choices);
    this.panel.append(this.fields, h('fieldset', { class: 'where' }, h('legend', {}, 'Filters, all of which must hold'), this.list,
      h('button', { type: 'button', class: 'quiet', click: () => this.#add().field.focus() }, icon('plus'), 'Add a filter')));
    this.button.addEventListener('click', () => this.show(this.panel.hidden));
    this.panel.addEventListener('input', () => this.#says());
  }

  show(open) {
    this.panel.hidden = !open;
    this.button.setAttribute('aria-expanded', String(open));
  }

  /** The buckets that there are, with their fields. */
  offer(buckets) {
    const chosen = this.chosen();
    this.buckets = buckets;
    this.choices.replaceChildren(...buckets.map(({ name, documents }) => h('label', { class: 'chip' },
      h('input', { type: 'checkbox', name: 'bucket', value: name, checked: chosen.includes(name) }), h('span', { dir: 'auto' }, name),
      documents != null && h('span', { class: 'count' }, documents.toLocaleString('en')))));
    this.fields.hidden = buckets.length < 2;
    this.#says();
  }

  choose(names) {
    for (const box of this.choices.querySelectorAll('input')) box.checked = names.includes(box.value);
    this.#says();
  }

  chosen() {
    return [...this.choices.querySelectorAll('input:checked')].map((box) => box.value);
  }

  /** `{buckets, filters}` of a request; nothing where nothing was chosen. Throws where a value is missing. */
  value() {
    const filters = this.rows.map((row) => row.value());
    const buckets = this.chosen();
    return { ...(buckets.length && { buckets }), ...(filters.length && { filters: { and: filters } }) };
  }

  /** Marks what the server blames: `filters.and[1].value`, `buckets[0]`. Says whether there was anything to mark. */
  blame(path) {
    for (const row of this.rows) row.blame(false);
    const at = /^filters\.and\[(\d+)\]/.exec(path ?? '')?.[1];
    if (at !== undefined) this.rows[at]?.blame(true);
    const ours = /^(filters|buckets)/.test(path ?? '');
    if (ours && matchMedia('(min-width: 701px)').matches) this.show(true); // on a phone it would hide what is said
    return ours;
  }

  #add() {
    const row = new Rule(this.#known(), () => {
      this.rows = this.rows.filter((each) => each !== row);
      row.element.remove();
      this.button.focus();
      this.#says();
    });
    this.rows.push(row);
    this.list.append(row.element);
    this.#says();
    return row;
  }

  /** Fields of the chosen buckets (of all, where none is chosen): name -> {type, values}. */
  #known() {
    const chosen = this.chosen();
    const known = new Map(OWN.map(([name, type]) => [name, { type, values: [] }]));
    for (const bucket of this.buckets.filter(({ name }) => !chosen.length || chosen.includes(name))) {
      for (const { name, type, values = [] } of bucket.fields ?? []) known.set(name, { type, values });
    }
    return known;
  }

  #says() {
    const chosen = this.chosen();
    $('scope-says').textContent = chosen.length ? chosen.join(', ') : 'All documents';
    $('scope-filters').textContent = `· ${plural(this.rows.length, 'filter')}`;
    $('scope-filters').hidden = !this.rows.length;
  }
}

let rules = 0;

/** One test of one field. */
class Rule {
  constructor(known, remove) {
    this.known = known;
    this.id = `values-${(rules += 1)}`;
    this.field = select('Field', [...known.keys()].map((name) => [name, name]), () => this.#ops());
    this.op = select('Test', [], () => this.#inputs());
    this.values = h('span', { class: 'values' });
    this.element = h('div', { class: 'rule', role: 'group', 'aria-label': 'Filter' }, this.field, this.op, this.values,
      h('button', { type: 'button', class: 'icon', 'aria-label': 'Remove this filter', click: remove }, icon('close')));
    this.#ops();
  }

  get type() {
    return this.known.get(this.field.value).type;
  }

  value() {
    const inputs = [...this.values.querySelectorAll('input, select')];
    const empty = inputs.find((input) => !input.value.trim());
    if (empty) {
      empty.focus();
      throw new RangeError(`Say a value for the filter on ${this.field.value}, or remove it.`);
    }
    const values = inputs.map((input) => this.#typed(input.value));
    const [first] = values;
    const list = this.op.value === 'between' ? values : this.op.value === 'in' ? first.split(',').map((each) => each.trim()).filter(Boolean) : first;
    return { field: this.field.value, op: this.op.value, value: list };
  }

  blame(wrong) {
    this.element.classList.toggle('wrong', wrong);
    for (const input of this.values.children) input.setAttribute('aria-invalid', String(wrong));
  }

  #typed(text) {
    if (this.op.value === 'is_null' || this.type === 'boolean') return text === 'true';
    return this.type === 'number' ? Number(text) : text.trim();
  }

  #ops() {
    this.op.replaceChildren(...OPS[this.type].map(([value, label]) => h('option', { value }, label)));
    this.#inputs();
  }

  #inputs() {
    const op = this.op.value;
    if (op === 'is_null' || this.type === 'boolean') {
      this.values.replaceChildren(select('Value', [['true', 'yes'], ['false', 'no']]));
      return;
    }
    const kind = { number: 'number', date: 'date' }[this.type] ?? 'text';
    const input = (label) => h('input', { type: kind, step: kind === 'number' && 'any', 'aria-label': label, list: kind === 'text' && this.id, autocomplete: 'off', dir: 'auto',
      placeholder: op === 'in' ? 'one, another' : op === 'like' ? 'begins%' : null });
    this.values.replaceChildren(...(op === 'between' ? [input('From'), input('To')] : [input('Value')]),
      h('datalist', { id: this.id }, this.known.get(this.field.value).values.map((value) => h('option', { value }))));
  }
}

function select(label, options, change = null) {
  return h('select', { 'aria-label': label, ...(change && { change }) }, options.map(([value, text]) => h('option', { value }, text)));
}
