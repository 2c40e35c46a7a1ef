// A classic script in the head: it sets the theme before the first paint.
'use strict';

(() => {
  const themes = ['system', 'light', 'dark'];

  const stored = () => {
    try {
      return localStorage.getItem('palisade-theme');
    } catch {
      return null; // The browser blocks storage for this site.
    }
  };

  const store = (theme) => {
    try {
      localStorage.setItem('palisade-theme', theme);
    } catch {
      // The choice lasts until the page is closed.
    }
  };

  let current = themes.includes(stored()) ? stored() : 'system';
  const apply = () => { document.documentElement.dataset.theme = current; };
  apply();

  document.addEventListener('DOMContentLoaded', () => {
    const button = document.getElementById('theme');
    const show = () => { button.textContent = `Theme: ${current}`; };
    button.addEventListener('click', () => {
      current = themes[(themes.indexOf(current) + 1) % themes.length];
      store(current);
      apply();
      show();
    });
    show();
  });
})();
