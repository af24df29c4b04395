// Files into a bucket: sent with their progress, then followed while they are read, each to its outcome.

import { upload } from './api.js';
import { $, h, icon, percent, plural, say } from './dom.js';
import { ApiError, errorBox } from './errors.js';
import { takenUp } from './stream.js';

const OUTCOMES = {
  ingested: 'Added', replaced: 'Replaced', described: 'Described anew', unchanged: 'Unchanged', skipped: 'Skipped', failed: 'Failed',
};
const GOOD = ['ingested', 'replaced', 'described', 'unchanged'];

/** `done` is called when documents have been added. */
export function prepareUpload(done) {
  const form = new Form(done);
  $('upload-open').addEventListener('click', () => form.open());
  $('upload-close').addEventListener('click', () => $('upload').close());
}

class Form {
  constructor(done) {
    Object.assign(this, { done, files: [], rows: new Map(), running: false, ended: false });
    $('upload').querySelector('form').addEventListener('submit', (event) => event.preventDefault());
    $('files').addEventListener('change', () => {
      this.#add($('files').files);
      $('files').value = '';
    });
    const drop = $('drop');
    for (const name of ['dragover', 'dragleave', 'drop']) {
      drop.addEventListener(name, (event) => {
        event.preventDefault();
        drop.classList.toggle('over', name === 'dragover');
        if (name === 'drop') this.#add(event.dataTransfer.files);
      });
    }
    $('upload-go').addEventListener('click', () => this.#send());
  }

  open() {
    const bucket = $('upload-bucket');
    bucket.value ||= $('bucket-names').options[0]?.value ?? 'docs';
    $('upload').showModal();
    $('files').focus();
  }

  #add(files) {
    if (this.running) return;
    if (this.ended) this.#clear();
    this.files.push(...files);
    $('upload-says').replaceChildren();
    this.#list();
  }

  #clear() {
    this.files = [];
    this.ended = false;
  }

  #list() {
    this.rows.clear();
    $('chosen').replaceChildren(...this.files.map((file) => {
      const state = h('span', { class: 'state' }, size(file.size));
      const drop = h('button', { type: 'button', class: 'icon', 'aria-label': `Leave out ${file.name}`, click: () => {
        this.files = this.files.filter((each) => each !== file);
        this.#list();
        $('files').focus();
      } }, icon('close'));
      const row = h('li', {}, h('span', { dir: 'auto' }, file.name), h('span', { class: 'end' }, state, drop));
      this.rows.set(file.name, { row, state, drop });
      return row;
    }));
    $('upload-go').hidden = false;
    $('upload-go').disabled = !this.files.length;
    $('upload-go').textContent = this.files.length ? `Upload ${plural(this.files.length, 'file')}` : 'Upload';
  }

  async #send() {
    const bar = h('progress', { max: '1', value: '0', 'aria-label': 'Progress' });
    const text = h('p', { class: 'soft' }, 'Sending');
    $('upload-says').replaceChildren(text, bar);
    this.#busy(true);
    const form = new FormData();
    for (const file of this.files) form.append('files', file, file.webkitRelativePath || file.name);
    try {
      const path = `v1/documents?bucket=${encodeURIComponent($('upload-bucket').value.trim())}`;
      const job = await upload(path, form, (share) => this.#progress(bar, text, share, 'Sending'));
      await this.#follow(job, bar, text);
      this.ended = true;
    } catch (fault) {
      this.#blame(fault.field);
      $('upload-says').replaceChildren(errorBox(fault, () => this.#send()));
    }
    this.#busy(false);
  }

  async #follow(job, bar, text) {
    const line = { says: (wrong) => wrong && (text.textContent = wrong) };
    this.#progress(bar, text, 0, 'Reading');
    for await (const { type, data } of takenUp(`v1/documents/jobs/${job.id}/events`, line)) {
      if (type === 'error') throw new ApiError(data.error);
      if (type === 'file') this.#outcome(data.file);
      if (type === 'progress') this.#progress(bar, text, data.progress.bytes / data.progress.total_bytes, 'Reading');
      if (type === 'completed') this.#completed(data.job);
    }
  }

  #progress(bar, text, share, doing) {
    bar.value = share;
    text.textContent = share > 0 ? `${doing}, ${percent(share)}` : doing;
  }

  #outcome({ name, outcome, chunks, message }) {
    const { row, state, drop } = this.rows.get(name) ?? {};
    if (!row) return;
    drop.remove();
    const good = GOOD.includes(outcome);
    state.className = `state ${good ? 'good' : 'bad'}`;
    state.textContent = OUTCOMES[outcome] + (chunks ? `, ${plural(chunks, 'passage')}` : '');
    row.querySelector('.why')?.remove();
    if (message) row.append(h('p', { class: 'why', dir: 'auto' }, message));
  }

  #completed({ files, bucket }) {
    files.forEach((file) => this.#outcome(file));
    const good = files.filter(({ outcome }) => GOOD.includes(outcome)).length;
    const told = `${good} of ${plural(files.length, 'file')} can be searched in ${bucket}.`;
    $('upload-says').replaceChildren(h('p', {}, told));
    say(told);
    this.done();
  }

  #blame(field) {
    const file = this.files[/^files\[(\d+)\]/.exec(field ?? '')?.[1]];
    if (file) this.rows.get(file.name).state.className = 'state bad';
  }

  #busy(running) {
    this.running = running;
    $('upload-go').disabled = running;
    $('upload-go').hidden = this.ended;
    $('upload-bucket').disabled = $('files').disabled = running;
    $('upload-open').querySelector('span').textContent = running ? 'Adding …' : 'Add documents';
    for (const { drop } of this.rows.values()) drop.hidden = running;
  }
}

function size(bytes) {
  const at = bytes < 1000 ? 0 : bytes < 1e6 ? 1 : 2;
  return `${(bytes / 1000 ** at).toFixed(at === 2 ? 1 : 0)} ${['B', 'kB', 'MB'][at]}`;
}
