// Light and dark, remembered; the section one is in; values on hovering; a link into what is folded opens it.
(() => {
  const root = document.documentElement, button = document.querySelector('.theme');
  const dark = () => getComputedStyle(root).colorScheme === 'dark' ||
    (getComputedStyle(root).colorScheme !== 'light' && matchMedia('(prefers-color-scheme: dark)').matches);
  const show = () => {
    root.dataset.shade = dark() ? 'dark' : 'light';
    if (button) { button.textContent = dark() ? 'Light' : 'Dark'; button.setAttribute('aria-label', dark() ? 'Light colours' : 'Dark colours'); }
  };
  const keep = value => { try { localStorage.setItem('vhydro-theme', value); } catch { /* not remembered */ } };
  button?.addEventListener('click', () => { root.dataset.theme = dark() ? 'light' : 'dark'; keep(root.dataset.theme); show(); });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', show);
  show();

  const links = new Map([...document.querySelectorAll('.head nav a')].map(a => [a.hash.slice(1), a]));
  const parts = [...links.keys()].map(id => document.getElementById(id)).filter(Boolean);
  let current;
  const mark = () => {
    const bottom = innerHeight + scrollY >= root.scrollHeight - 2;
    const seen = bottom ? parts : parts.filter(part => part.getBoundingClientRect().top < innerHeight / 3);
    const link = seen.length ? links.get(seen[seen.length - 1].id) : undefined;
    if (link === current) return;
    current?.removeAttribute('aria-current');
    link?.setAttribute('aria-current', 'true');
    if (link) { const strip = link.closest('nav'); strip.scrollLeft = link.offsetLeft - strip.offsetLeft - 40; }
    current = link;
  };
  if (parts.length) { addEventListener('scroll', mark, {passive: true}); mark(); }

  const open = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let fold = target && target.closest('details'); fold; fold = fold.parentElement.closest('details')) fold.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener('hashchange', open);
  if (location.hash) open();

  const tip = document.getElementById('tip');
  const place = event => {
    const {width, height} = tip.getBoundingClientRect();
    tip.style.left = Math.max(6, Math.min(event.clientX + 14, innerWidth - width - 6)) + 'px';
    tip.style.top = (event.clientY - height - 12 > 4 ? event.clientY - height - 12 : event.clientY + 18) + 'px';
  };
  document.addEventListener('pointermove', event => {
    const mark = event.target.closest?.('[data-tip]');
    if (mark) { if (tip.textContent !== mark.dataset.tip) tip.textContent = mark.dataset.tip; place(event); }
    tip.style.visibility = mark ? 'visible' : 'hidden';
  });
  document.addEventListener('pointerdown', event => {
    const mark = event.target.closest?.('[data-tip]');
    if (mark) { tip.textContent = mark.dataset.tip; place(event); tip.style.visibility = 'visible'; }
  });
  addEventListener('scroll', () => { tip.style.visibility = 'hidden'; }, {passive: true});
})();
