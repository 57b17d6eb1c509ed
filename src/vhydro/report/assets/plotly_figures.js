// Plotly's figures are drawn when they come near the window: a page opens at once, however many it has.
const library = (async () => {
  const packed = Uint8Array.from(atob(document.getElementById('plotly').textContent), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  (0, eval)(await new Response(stream).text());
})();
const draw = async figure => {
  if (figure.dataset.drawn) return;
  figure.dataset.drawn = true;
  try {
    await library;
    const {data, layout} = JSON.parse(figure.nextElementSibling.textContent);
    await Plotly.newPlot(figure, data, layout, {displayModeBar: false, responsive: true});
  } catch (error) { figure.textContent = 'This browser cannot draw the figure: ' + error; }
};
const figures = [...document.querySelectorAll('.figure')];
const near = entries => entries.filter(e => e.isIntersecting).forEach(e => draw(e.target));
const watch = new IntersectionObserver(near, {rootMargin: '800px'});
figures.forEach(figure => watch.observe(figure));
addEventListener('beforeprint', () => figures.forEach(draw));
