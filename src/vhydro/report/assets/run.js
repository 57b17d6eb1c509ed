// One log of a run: its signals, bands, modes, certificates and segments, drawn from packed numbers when it is chosen.
(() => {
  const plot = document.getElementById('plot');
  if (!plot) return;
  const data = JSON.parse(document.getElementById('run-data').textContent);
  const logs = [...document.querySelectorAll('script.log')], entries = [...document.querySelectorAll('.logs button')];
  const find = id => document.getElementById(id), kept = new Map();
  const SURPRISE_STEP = 0.05, STRIP = 30;
  const state = {index: 0, log: null, from: 0, to: 1, cursor: null, groups: new Set()};
  const make = (tag, kind = '', text = '') => {
    const element = document.createElement(tag);
    if (kind) element.className = kind;
    if (text) element.textContent = text;
    return element;
  };
  const drawing = (tall, words) => {
    const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
    svg.setAttribute('height', tall); svg.setAttribute('role', 'img'); svg.setAttribute('aria-label', words);
    return svg;
  };
  const number = (value, digits = 4) => {
    if (!isFinite(value)) return '–';
    const size = Math.abs(value);
    const text = size && (size >= 1e5 || size < 1e-3) ? value.toExponential(2) : String(+value.toPrecision(digits));
    return text.replace('-', '−').replace('e+', 'e');
  };
  const seconds = row => number(row * data.dt, 5) + ' s';

  // --- unpacking ---------------------------------------------------------------------------------------------------
  const unpacked = async index => {
    if (kept.has(index)) return kept.get(index);
    const bytes = Uint8Array.from(atob(logs[index].textContent), c => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
    const all = new Uint8Array(await new Response(stream).arrayBuffer());
    const length = new DataView(all.buffer).getUint32(0, true);
    const log = JSON.parse(new TextDecoder().decode(all.subarray(4, 4 + length)));
    let at = 4 + length;
    for (const [name, type, rows, size] of log.arrays) {
      const part = all.subarray(at, at += size), wide = type === 'u1' ? size : size / 2, columns = wide / rows;
      log[name] = Array.from({length: rows}, (_, r) => {
        if (type === 'u1') return part.subarray(r * columns, (r + 1) * columns);
        const out = new Int32Array(columns);
        for (let i = 0, k = r * columns, sum = 0; i < columns; i++, k++) {
          sum += (part[k] | part[wide + k] << 8) << 16 >> 16;
          out[i] = sum << 16 >> 16;
        }
        return out;
      });
    }
    if (kept.size > 20) kept.delete(kept.keys().next().value);
    kept.set(index, log);
    return log;
  };
  const rowOf = (log, point) => Math.min((point + .5) * log.cell, log.rows - .5); // the middle of what a point stands for
  const pointOf = (log, row) => Math.max(0, Math.min(log.points - 1, Math.floor(row / log.cell)));
  const valueOf = (log, channel, level) => log.low[channel] + (log.high[channel] - log.low[channel]) * level / log.levels;

  // --- one log -----------------------------------------------------------------------------------------------------
  const cuts = log => log.segments.length ? log.segments : (log.path || []).map(([a, b, m]) => [a, b, m, null]);
  const words = mode => data.modes[mode] ?? 'mode ' + mode;
  const swatch = mode => { const out = make('span', `mode m${mode % 8}`); out.append(make('b', '', String(mode))); return out; };
  let rows = [];

  const labelled = (kind, title, unit = '') => {
    const row = make('div', 'row ' + kind), label = make('div', 'label'), area = make('div', 'area');
    const name = make('span', '', title), said = make('small');
    if (unit) name.append(make('span', 'hush', ' in '), ' ', Object.assign(make('small'), {textContent: unit, style: 'display:inline'}));
    name.title = title;
    label.append(name, said); row.append(label, area);
    return {row, area, said};
  };
  const build = () => {
    const log = state.log, areas = find('areas');
    areas.replaceChildren(); rows = [];
    const ribbon = labelled('ribbon', log.segments.length ? 'segments' : 'likeliest mode');
    const track = make('div', 'cuts');
    ribbon.area.append(track); areas.append(ribbon.row);
    rows.push({...ribbon, track, draw: drawRibbon, read: readRibbon});
    const add = (kind, title, tall, draw, read, unit, words, rest = '') => {
      const one = labelled(kind, title, unit), svg = drawing(tall, words);
      const scale = make('div', 'scale');
      one.area.append(svg, scale); areas.append(one.row);
      rows.push({...one, svg, scale, tall, draw, read, rest});
    };
    if (log.modes && data.modes.length > 1)
      add('strip', 'mode probabilities', 46, drawModes, readModes, '', 'probability of every mode over time, stacked');
    if (log.certified && log.certificate !== 'none') add('strip', 'certified', 14, drawCertified, readCertified, '', 'which steps are certified', certifiedWords(log));
    if (log.surprise) add('strip', 'surprise', STRIP, drawSurprise, readSurprise, '', 'largest surprise of every step', 'largest of a row');
    if (log.mixing && log.mixing[0].some(v => v)) add('strip', 'λ spent', STRIP, drawMixing, readMixing, '', 'share of the model’s own prediction in the mix');
    const few = data.groups.filter(group => state.groups.has(group)).length, tall = few < 3 ? 170 : few < 5 ? 124 : 92;
    (log.mean || []).forEach((_, c) => {
      if (!state.groups.has(data.groups[c])) return;
      add('channel', data.channels[c], tall, (row, x, w) => drawChannel(row, x, w, c), (row, p) => readChannel(row, p, c),
        data.units[c], `${data.channels[c]}: seen, believed and its ${Math.round(100 * data.level)} % interval`);
    });
    add('axis', '', 24, drawAxis, () => '', '', 'time in seconds');
    listSegments();
  };
  const draw = () => {
    if (!state.log) return;
    const area = rows[0].area, wide = area.clientWidth, span = state.to - state.from;
    const x = row => (row - state.from) / span * wide;
    for (const row of rows) {
      if (row.svg) { row.svg.setAttribute('width', wide); row.svg.setAttribute('viewBox', `0 0 ${wide} ${row.tall}`); }
      row.draw(row, x, wide);
    }
    find('whole').disabled = state.from <= 0 && state.to >= state.log.rows;
    point();
  };
  const visible = () => {
    const log = state.log, first = Math.max(0, pointOf(log, state.from) - 1), last = Math.min(log.points - 1, pointOf(log, state.to) + 1);
    return [first, last];
  };

  const drawRibbon = (row, x, wide) => {
    const focused = row.track.contains(document.activeElement) ? document.activeElement.dataset.k : null;
    row.track.replaceChildren(...cuts(state.log).map(([a, b, mode, sure], k) => {
      const left = Math.max(x(a), -2), right = Math.min(x(b), wide + 2), cut = make('button', `cut mode m${mode % 8}`);
      if (right <= left) return null;
      cut.type = 'button'; cut.dataset.k = k; cut.tabIndex = -1;
      cut.style.left = left + 'px'; cut.style.width = Math.max(right - left, 1.5) + 'px';
      if (right - left < 70) cut.classList.add('tight');
      if (right - left < 15) cut.classList.add('thin');
      cut.append(make('b', '', String(mode)), ' ', make('span', '', words(mode)));
      const text = `${mode} ${words(mode)}\n${seconds(a)} to ${seconds(b)}${sure === null ? '' : `\n${Math.round(100 * sure)} % sure`}`;
      cut.dataset.tip = text; cut.setAttribute('aria-label', `${text.replace(/\n/g, ', ')}, look closely`);
      return cut;
    }).filter(Boolean));
    if (focused !== null) row.track.querySelector(`[data-k="${focused}"]`)?.focus({preventScroll: true});
  };
  const readRibbon = (row, p, at) => {
    const cut = cuts(state.log).find(([a, b]) => at >= a && at < b);
    return cut ? `${cut[2]}: ${words(cut[2])}` : '';
  };
  const drawModes = (row, x) => {
    const log = state.log, [first, last] = visible();
    let base = new Float64Array(log.points), out = '';
    log.modes.forEach((share, mode) => {
      const top = Float64Array.from(base, (v, i) => v + share[i] / 255);
      let up = '', down = '';
      for (let i = first; i <= last; i++) {
        const at = x(rowOf(log, i)).toFixed(1);
        up += `${up ? 'L' : 'M'}${at} ${(46 * (1 - Math.min(top[i], 1))).toFixed(1)}`;
        down = `L${at} ${(46 * (1 - Math.min(base[i], 1))).toFixed(1)}` + down;
      }
      out += `<path d="${up}${down}z" fill="url(#mode-${mode % 8})"/>`;
      base = top;
    });
    row.svg.innerHTML = out;
  };
  const readModes = (row, p) => state.log.modes.map((m, i) => [i, m[p] / 255]).sort((a, b) => b[1] - a[1]).slice(0, 2)
    .map(([i, share]) => `${i}: ${Math.round(100 * share)} %`).join('   ');
  const stretches = (values, first, last) => {
    const out = [];
    for (let i = first, start = first; i <= last; i++)
      if (i === last || values[i + 1] !== values[start]) { out.push([start, i, values[start]]); start = i + 1; }
    return out;
  };
  const drawCertified = (row, x) => {
    const log = state.log, edge = i => x(Math.min(i * log.cell, log.rows));
    row.svg.innerHTML = stretches(log.certified[0], ...visible()).map(([a, b, yes]) =>
      `<rect class="${yes ? 'ok' : 'off'}" x="${edge(a).toFixed(1)}" y="${yes ? 5 : 0}" width="${Math.max(edge(b + 1) - edge(a), 1).toFixed(1)}" height="${yes ? 4 : 14}"/>`).join('');
  };
  const certifiedWords = log => `${Math.floor(100 * log.share)} % of the steps`;
  const readCertified = (row, p) => state.log.certified[0][p] ? 'yes' : 'no';
  const columns = (row, x, values, tall, most, kind) => {
    const log = state.log, [first, last] = visible();
    let path = '';
    const wide = Math.max(x(log.cell) - x(0), 1);
    for (let i = first; i <= last; i++) {
      const h = tall * Math.min(values[i] / most, 1);
      if (h > .3) path += `M${(x(rowOf(log, i)) - wide / 2).toFixed(1)} ${tall}v${(-h).toFixed(1)}h${wide.toFixed(1)}v${h.toFixed(1)}z`;
    }
    return `<path class="${kind}" d="${path}"/>`;
  };
  const drawSurprise = (row, x, wide) => {
    const values = state.log.surprise[0], limit = data.surprise, most = Math.max(limit * 1.15, 1) / SURPRISE_STEP;
    const y = STRIP * (1 - limit / SURPRISE_STEP / most);
    row.svg.innerHTML = columns(row, x, values, STRIP, most, 'bars') + `<path class="edge" d="M0 ${STRIP - .5}H${wide}"/>` +
      `<path class="limit" d="M0 ${y.toFixed(1)}H${wide}"/>`;
  };
  const readSurprise = (row, p) => {
    const value = state.log.surprise[0][p] * SURPRISE_STEP;
    return value < 1 ? 'as expected' : `one in ${number(10 ** value, 1)}`;
  };
  const drawMixing = (row, x, wide) => {
    row.svg.innerHTML = columns(row, x, state.log.mixing[0], STRIP, 255, 'spent') + `<path class="edge" d="M0 ${STRIP - .5}H${wide}"/>`;
  };
  const readMixing = (row, p) => `λ = ${number(state.log.mixing[0][p] / 255, 2)}`;
  const drawChannel = (row, x, wide, c) => {
    const log = state.log, [first, last] = visible(), room = 5, tall = row.tall;
    let low = Infinity, high = -Infinity;
    const see = level => { low = Math.min(low, level); high = Math.max(high, level); };
    const mean = log.mean[c], up = log.up[c], down = log.down[c], parts = [['seen', 'seen'], ['hidden', 'truth']];
    for (let i = first; i <= last; i++) {
      see(mean[i] + up[i]); see(mean[i] - down[i]);
      for (const [name] of parts) if (log[name + '_known']?.[c][i]) see(mean[i] + log[name][c][i]);
    }
    if (high - low < 8) { low -= 8; high += 8; }
    const y = level => (room + (tall - 2 * room) * (1 - (level - low) / (high - low))).toFixed(1);
    let above = '', below = '', middle = '', marks = '';
    for (let i = first; i <= last; i++) {
      const at = x(rowOf(log, i)).toFixed(1), pen = middle ? 'L' : 'M';
      above += `${pen}${at} ${y(mean[i] + up[i])}`; middle += `${pen}${at} ${y(mean[i])}`;
      below = `L${at} ${y(mean[i] - down[i])}` + below;
    }
    for (const [name, kind] of parts) {
      const known = log[name + '_known']?.[c];
      if (!known) continue;
      let path = '';
      for (let i = first; i <= last; i++) {
        if (!known[i]) continue;
        const a = x(rowOf(log, i)).toFixed(1), b = y(mean[i] + log[name][c][i]);
        path += name === 'seen' ? `M${a} ${b}h0` : `M${a} ${b}m-2.6 0a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0-5.2 0`;
      }
      marks += `<path class="${kind}" d="${path}"/>`;
    }
    let faults = '';
    for (const [at, channel] of log.faults) if (channel === c && at >= state.from && at <= state.to) {
      const i = pointOf(log, at), b = +y(Math.min(Math.max(mean[i] + (log.seen?.[c][i] ?? 0), low), high)), a = x(at + .5);
      faults += `M${(a - 5).toFixed(1)} ${b - 5}l10 10m0-10l-10 10`;
    }
    const ticks = [high, low].map(level => [valueOf(log, c, level), level]);
    const digits = Math.max(3, Math.ceil(Math.log10(Math.abs(ticks[0][0]) / Math.abs(ticks[0][0] - ticks[1][0]) || 1)) + 2);
    row.svg.innerHTML = `<path class="band" d="${above}${below}z"/><path class="believed" d="${middle}"/>${marks}<path class="fault" d="${faults}"/>` +
      `<path class="edge" d="M0 0V${tall}"/>`;
    row.scale.replaceChildren(...ticks.map(([value]) => make('span', '', number(value, Math.min(digits, 8)))));
  };
  const readChannel = (row, p, c) => {
    const log = state.log, mean = log.mean[c][p];
    const low = valueOf(log, c, mean - log.down[c][p]), high = valueOf(log, c, mean + log.up[c][p]);
    const digits = Math.max(3, Math.ceil(Math.log10(Math.abs(high) / Math.abs(high - low) || 1)) + 2);
    return `${number(valueOf(log, c, mean), Math.min(digits, 6))} [${number(low, Math.min(digits, 6))}, ${number(high, Math.min(digits, 6))}]`;
  };
  const drawAxis = (row, x, wide) => {
    const from = state.from * data.dt, to = state.to * data.dt, rough = (to - from) / Math.max(wide / 90, 2);
    const power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map(k => k * power).find(s => s >= rough);
    let out = `<path class="edge" d="M0 .5H${wide}"/>`;
    for (let k = Math.ceil(from / step); k * step <= to + 1e-9; k++) {
      const at = x(k * step / data.dt), anchor = at < 16 ? 'start' : at > wide - 16 ? 'end' : 'middle';
      out += `<path class="edge" d="M${at.toFixed(1)} 0v5"/><text x="${at.toFixed(1)}" y="18" text-anchor="${anchor}">${number(+(k * step).toPrecision(9), 9)} s</text>`;
    }
    row.svg.innerHTML = out;
  };

  // --- segments as a table -------------------------------------------------------------------------------------------
  const listSegments = () => {
    const body = find('segments').tBodies[0], log = state.log, list = cuts(log);
    body.replaceChildren(...list.slice(0, 400).map(([a, b, mode, sure], k) => {
      const row = make('tr'), head = make('th'), what = make('div', 'what'), zoom = make('button', '', words(mode));
      zoom.type = 'button'; zoom.dataset.k = k; head.scope = 'row';
      what.append(swatch(mode), zoom); head.append(what); row.append(head);
      for (const text of [seconds(a), seconds(b), seconds(b - a)]) row.append(make('td', '', text));
      const cell = make('td');
      if (sure !== null) {
        const bar = make('span', 'sure'), inner = make('i');
        inner.style.width = 100 * sure + '%'; bar.append(inner); cell.append(bar, `${Math.round(100 * sure)} %`);
      } else cell.textContent = '–';
      row.append(cell);
      return row;
    }));
    find('cut-words').textContent = log.segments.length ? `${list.length} segments, by the whole log. Choose one to see it close up.` :
      `${list.length} stretches of the likeliest mode, row by row. vhydro segment cuts by the whole log and says how sure it is.`;
  };

  // --- choosing, zooming, pointing -------------------------------------------------------------------------------------
  const zoom = (from, to) => {
    const log = state.log, span = Math.max(Math.min(to - from, log.rows), Math.min(8, log.rows));
    from = Math.max(0, Math.min((from + to - span) / 2, log.rows - span));
    state.from = from; state.to = from + span;
    draw();
  };
  const closeUp = k => {
    const [a, b] = cuts(state.log)[k], room = Math.max(.25 * (b - a), 3);
    zoom(a - room, b + room);
  };
  const choose = async (index, keep) => {
    index = Math.max(0, Math.min(logs.length - 1, index));
    state.index = index;
    entries.forEach((e, i) => i === index ? e.setAttribute('aria-current', 'true') : e.removeAttribute('aria-current'));
    const box = entries[index].closest('.logs'), top = entries[index].offsetTop - box.offsetTop;
    if (top < box.scrollTop || top > box.scrollTop + box.clientHeight - 30) box.scrollTop = top - box.clientHeight / 2;
    try {
      const log = await unpacked(index);
      if (state.index !== index) return;
      Object.assign(state, {log, from: 0, to: log.rows, cursor: null});
      find('log-name').textContent = data.names[index];
      find('log-said').textContent = `${index + 1} of ${data.total}, ${log.rows} rows, ${seconds(log.rows)}`;
      find('before').disabled = index === 0; find('after').disabled = index === logs.length - 1;
      build(); draw();
      plot.dataset.ready = index;
      if (keep) { try { history.replaceState(null, '', '#log=' + encodeURIComponent(data.names[index])); } catch { /* no matter */ } }
    } catch (error) { find('areas').textContent = 'This browser cannot draw the log: ' + error; }
  };
  const point = () => {
    const cursor = find('cursor'), log = state.log, at = state.cursor, inside = at !== null && at >= state.from && at <= state.to;
    cursor.style.visibility = inside ? 'visible' : 'hidden';
    const p = inside ? pointOf(log, at) : 0;
    for (const row of rows) row.said.textContent = inside ? row.read(row, p, at) : row.rest || '';
    if (!inside) return;
    const area = rows[0].area, left = area.getBoundingClientRect().left - plot.getBoundingClientRect().left;
    cursor.style.left = left + (at + .5 - state.from) / (state.to - state.from) * area.clientWidth + 'px';
    cursor.firstChild.textContent = seconds(at);
  };
  const rowAt = event => {
    const box = rows[0].area.getBoundingClientRect();
    return state.from + Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)) * (state.to - state.from);
  };
  let grabbed = null;
  const areas = find('areas'), shade = find('drag');
  areas.addEventListener('pointermove', event => {
    if (!state.log) return;
    state.cursor = Math.min(Math.floor(rowAt(event)), state.log.rows - 1); point();
    if (grabbed === null) return;
    const box = rows[0].area.getBoundingClientRect(), outer = plot.getBoundingClientRect().left;
    const a = Math.max(Math.min(grabbed.x, event.clientX), box.left), b = Math.min(Math.max(grabbed.x, event.clientX), box.right);
    const far = Math.abs(event.clientX - grabbed.x) > 6;
    if (far) try { areas.setPointerCapture(event.pointerId); } catch { /* gone already */ }
    shade.style.visibility = far ? 'visible' : 'hidden';
    shade.style.left = a - outer + 'px'; shade.style.width = b - a + 'px';
  });
  areas.addEventListener('pointerdown', event => { if (state.log && event.button === 0) grabbed = {x: event.clientX, row: rowAt(event)}; });
  const release = event => {
    if (grabbed && event.type === 'pointerup' && Math.abs(event.clientX - grabbed.x) > 6) {
      const here = rowAt(event);
      zoom(Math.min(grabbed.row, here), Math.max(grabbed.row, here));
    }
    grabbed = null; shade.style.visibility = 'hidden';
  };
  areas.addEventListener('pointerup', release); areas.addEventListener('pointercancel', release);
  areas.addEventListener('pointerleave', () => { if (!grabbed) { state.cursor = null; point(); } });
  areas.addEventListener('dblclick', () => state.log && zoom(0, state.log.rows));
  areas.addEventListener('click', event => { const cut = event.target.closest('.cut'); if (cut) closeUp(+cut.dataset.k); });
  find('segments').addEventListener('click', event => { const b = event.target.closest('button'); if (b) { closeUp(+b.dataset.k); find('log-name').scrollIntoView({block: 'nearest'}); } });
  entries.forEach((entry, i) => entry.addEventListener('click', () => choose(i, true)));
  find('before').addEventListener('click', () => choose(state.index - 1, true));
  find('after').addEventListener('click', () => choose(state.index + 1, true));
  find('whole').addEventListener('click', () => zoom(0, state.log.rows));
  const near = k => { const span = (state.to - state.from) * k, middle = state.cursor ?? (state.from + state.to) / 2; zoom(middle - span / 2, middle + span / 2); };
  plot.addEventListener('keydown', event => {
    if (!state.log || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = (event.shiftKey ? 10 : 1) * state.log.cell, at = state.cursor ?? Math.round(state.from);
    const to = {ArrowLeft: at - step, ArrowRight: at + step, Home: 0, End: state.log.rows - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    state.cursor = Math.max(0, Math.min(state.log.rows - 1, to));
    if (state.cursor < state.from || state.cursor > state.to) near(1);
    point();
    find('spoken').textContent = `${seconds(state.cursor)}, ${rows[0].said.textContent}`;
  });
  addEventListener('keydown', event => {
    if (!state.log || event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.('input, select, textarea')) return;
    const act = {n: () => choose(state.index + 1, true), p: () => choose(state.index - 1, true), '+': () => near(.5), '-': () => near(2),
      Escape: () => zoom(0, state.log.rows)}[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  const chips = [...document.querySelectorAll('.chips button')];
  chips.forEach(chip => {
    if (chip.getAttribute('aria-pressed') === 'true') state.groups.add(chip.dataset.group);
    chip.addEventListener('click', () => {
      const on = chip.getAttribute('aria-pressed') !== 'true';
      chip.setAttribute('aria-pressed', on);
      on ? state.groups.add(chip.dataset.group) : state.groups.delete(chip.dataset.group);
      if (state.log) { build(); draw(); }
    });
  });
  new ResizeObserver(draw).observe(plot);
  const asked = /^#log=(.*)$/.exec(location.hash), wanted = asked ? data.names.indexOf(decodeURIComponent(asked[1])) : -1;
  choose(Math.max(wanted, 0));
})();
