// The dialog for an API key.

import { key, setKey } from './api.js';
import { $, say } from './dom.js';
import { errorBox } from './errors.js';

let waiting = null;

/** Opens the dialog; resolves to whether a key was given. Whoever asks while it is open waits for the same one. */
export function askForKey(fault = null) {
  waiting ??= new Promise((resolve) => {
    const dialog = $('key');
    $('key-says').replaceChildren(...(fault ? [errorBox(fault)] : []));
    $('key-value').value = '';
    $('key-forget').hidden = !key();
    dialog.returnValue = '';
    dialog.addEventListener('close', () => {
      waiting = null;
      resolve(dialog.returnValue === 'given');
    }, { once: true });
    dialog.showModal();
    $('key-value').focus();
  });
  return waiting;
}

export function prepareKeys(changed) {
  const dialog = $('key');
  dialog.querySelector('form').addEventListener('submit', (event) => {
    event.preventDefault();
    const value = $('key-value').value.trim();
    if (!value) return $('key-value').focus();
    setKey(value);
    dialog.close('given');
  });
  $('key-forget').addEventListener('click', () => {
    setKey(null);
    dialog.close('forgotten');
    say('The key is forgotten.');
    changed();
  });
  $('key-close').addEventListener('click', () => dialog.close(''));
  $('key-open').addEventListener('click', async () => {
    if (await askForKey()) changed(); // a request that wanted the key is sent again by itself
  });
}
