// A panel beside the conversation where there is room for it, and over it where there is not: then the rest is inert.

export class Sheet {
  /** `over`: the media query under which the panel covers the conversation. What `others` selects is inert
   * while it does: the parts of the main landmark, not the landmark or the page's heading, which have to be there. */
  constructor(panel, { over, others, first, opened = () => {} }) {
    Object.assign(this, { panel, first, opened, others, narrow: matchMedia(over), from: null, isOpen: false });
    this.narrow.addEventListener('change', () => this.#apply());
    document.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && this.isOpen && !document.querySelector('dialog[open]')) this.close();
    });
    document.addEventListener('click', (event) => {
      // Of the path as it was: what was clicked may be gone from the page by now.
      const path = event.composedPath();
      const inside = path.includes(panel) || path.includes(this.from) || path.some((each) => each.tagName === 'DIALOG');
      if (this.isOpen && this.narrow.matches && !inside) this.close();
    });
  }

  open(from = document.activeElement) {
    this.from = from;
    this.isOpen = true;
    this.#apply();
    this.first().focus();
  }

  close() {
    if (!this.isOpen) return;
    this.isOpen = false;
    this.#apply();
    if (this.from?.isConnected) this.from.focus();
  }

  #apply() {
    const covers = this.isOpen && this.narrow.matches;
    for (const other of document.querySelectorAll(this.others)) other.inert = covers;
    this.panel.classList.toggle('open', this.isOpen);
    document.body.classList.toggle('covered', covers);
    this.opened(this.isOpen);
  }
}
