// SPDX-License-Identifier: BSD-2-Clause
// The program in a page of `mam-bench picture`.
//
// The record is unpacked into arrays of numbers, one value for each moment or block; bench_picture.h says what those
// are.  Nothing is drawn a block at a time where many blocks share a pixel: a chart asks for each column of pixels
// which of its moments has most in use, and adds up layers from sums that are kept for every 512th moment.
//
// Texts of the record go into the page by textContent and fillText alone.
'use strict';
(() => {
const root = document.documentElement;
const byId = (id) => document.getElementById(id);

function trouble(text) {
  root.dataset.error = text;
  byId('trouble').hidden = false;
  byId('trouble').textContent = 'This page could not be drawn: ' + text;
}
window.addEventListener('error', (event) => trouble(event.message));

// ---- Words ----------------------------------------------------------------------------------------------------------

function bytesText(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0, value = bytes;
  while (value >= 1023.5 && unit + 1 < units.length) {
    value /= 1024;
    unit++;
  }
  return Number(value.toFixed(unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2)) + ' ' + units[unit];
}

const timeUnits = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']];

function timeText(ns) {
  const [scale, unit] = timeUnits.find((candidate) => ns >= candidate[0]) || [1, 'ns'];
  return Number((ns / scale).toPrecision(5)) + ' ' + unit;
}

const countText = (count) => count.toLocaleString('en-US');
const plural = (count, word) => countText(count) + ' ' + word + (count === 1 ? '' : 's');
const shareText = (part, whole) => whole > 0 ? (100 * part / whole).toFixed(1) + ' %' : '';

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined)
    made.textContent = text;
  if (className !== undefined)
    made.className = className;
  return made;
}

// ---- Unpacking ------------------------------------------------------------------------------------------------------

const kinds = {allocate: 0, free: 1, taken: 2, refused: 3};

function bytesOf(base64) {
  const text = atob(base64.trim()), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++)
    bytes[i] = text.charCodeAt(i);
  return bytes;
}

// A function that gives the next value of a column.
function reader(bytes, begin) {
  let at = begin;
  return () => {
    let byte = bytes[at++], value = byte & 127, scale = 128;
    while (byte > 127) {
      byte = bytes[at++];
      value += (byte & 127) * scale;
      scale *= 128;
    }
    return value;
  };
}

const difference = (value) => value % 2 === 0 ? value / 2 : -(value + 1) / 2;

function emptyData(moments, blocks) {
  return {
    time: new Float64Array(moments), kind: new Uint8Array(moments), subject: new Uint32Array(moments),
    live: new Float64Array(moments), taken: new Float64Array(moments), hole: new Float64Array(moments),
    position: new Float64Array(blocks), size: new Float64Array(blocks), who: new Uint32Array(blocks),
    begin: new Uint32Array(blocks), end: new Uint32Array(blocks).fill(moments),
    marks: [], ranges: [], refusals: [],
  };
}

function unpackBlocks(data, header, column) {
  const position = column('position'), size = column('size'), who = column('who');
  let sum = 0;
  for (let i = 0; i < data.size.length; i++) {
    sum += difference(position());
    data.position[i] = sum * header.unit;
    data.size[i] = size();
    data.who[i] = who();
  }
}

function unpackMoments(data, header, column) {
  const time = column('time'), what = column('what'), hole = column('hole'), taken = column('taken');
  const refusedSize = column('refusedSize'), refusedWho = column('refusedWho');
  let now = 0, live = 0, holds = 0, largest = 0, allocated = 0;
  for (let i = 0; i < data.time.length; i++) {
    const value = what(), kind = value & 3;
    let subject = Math.floor(value / 4);
    if (kind === kinds.allocate) {
      subject = allocated++;
      data.begin[subject] = i;
      live += data.size[subject];
    } else if (kind === kinds.free) {
      subject = allocated - 1 - subject;
      data.end[subject] = i;
      live -= data.size[subject];
    } else if (kind === kinds.taken) {
      holds = taken();
    } else {
      data.refusals.push({moment: i, size: refusedSize(), who: refusedWho()});
    }
    data.kind[i] = kind;
    data.subject[i] = subject;
    data.time[i] = now += difference(time());
    data.live[i] = live;
    data.taken[i] = holds;
    data.hole[i] = largest += difference(hole());
  }
}

function unpackPhases(data, header, column) {
  const markTime = column('markTime'), markText = column('markText'), markThread = column('markThread');
  for (let i = 0, time = 0; i < header.marks; i++)
    data.marks.push({time: time += difference(markTime()), text: header.texts[markText()], thread: markThread()});
  const rangeTime = column('rangeTime'), duration = column('rangeDuration'), rangeText = column('rangeText');
  const rangeThread = column('rangeThread'), depth = column('rangeDepth');
  for (let i = 0, begin = 0; i < header.ranges; i++) {
    begin += difference(rangeTime());
    data.ranges.push({begin: begin, end: begin + duration(), text: header.texts[rangeText()], thread: rangeThread(),
                      depth: depth()});
  }
}

function unpack(header, bytes) {
  const data = emptyData(header.moments, header.blocks);
  const column = (name) => reader(bytes, header.columns[name]);
  unpackBlocks(data, header, column);
  unpackMoments(data, header, column);
  unpackPhases(data, header, column);
  return data;
}

// A report of a pool as a record of one moment: what is not free and has memory is a block.  A run of segments that
// have memory is a span.
const notBlocks = {
  waiting: 'freed, waits for the GPU', kept: 'kept by threads', slab: 'small blocks (their slabs)',
};

function unpackReport(header, bytes) {
  const report = JSON.parse(new TextDecoder().decode(bytes));
  const sites = new Map(), found = [];
  let position = 0;
  Object.assign(header, {report: report, command: '', cut: false, end: 0, granularity: 1, unknownFrees: 0,
                         threads: [''], texts: [''], sites: [], created: [false], streams: [], whos: [], paths: [[0, 0]], spans: []});
  const siteOf = (name) => {
    if (!sites.has(name)) {
      sites.set(name, sites.size);
      header.sites.push([name, '', '']);
      header.whos.push([sites.size - 1, 0, 0, 0, 0, 0, 0]);
    }
    return sites.get(name);
  };
  for (const chunk of report.chunks) {
    let span = null;
    for (const segment of chunk.segments) {
      if (segment.state === 'unmapped') {
        span = null;
        continue;
      }
      if (span === null)
        header.spans.push(span = [segment.base, 0]);
      const name = segment.state === 'used' ? String(segment.site) : notBlocks[segment.state] || segment.state;
      if (segment.state !== 'free')
        found.push({position: position, size: segment.bytes, who: siteOf(name)});
      span[1] += segment.bytes;
      position += segment.bytes;
    }
  }
  const data = emptyData(found.length, found.length);
  found.forEach((block, i) => {
    data.position[i] = block.position;
    data.size[i] = block.size;
    data.who[i] = block.who;
    data.begin[i] = data.subject[i] = i;
    data.live[i] = block.size + (i > 0 ? data.live[i - 1] : 0);
    data.taken[i] = report.reserved_bytes;
    data.hole[i] = report.largest_free_bytes;
  });
  return data;
}

// ---- Questions to the data ------------------------------------------------------------------------------------------

let header, data, lastMoment, peak;
const group = 1024; // blocks, and moments, that are passed over together

// Of each group of blocks, the latest moment at which one of them is freed.
let groupEnds;
// Of each group of moments, the one at which most is live.
let groupPeaks;

function indexMake() {
  groupEnds = new Uint32Array(Math.ceil(data.size.length / group));
  for (let i = 0; i < data.size.length; i++)
    groupEnds[Math.floor(i / group)] = Math.max(groupEnds[Math.floor(i / group)], data.end[i]);
  groupPeaks = new Uint32Array(Math.ceil(data.time.length / group));
  for (let i = 0; i < groupPeaks.length; i++)
    groupPeaks[i] = peakByScan(i * group, Math.min(data.time.length, (i + 1) * group));
}

// The first of the moments from begin to before end with most live; there is at least one.
function peakByScan(begin, end) {
  let found = begin;
  for (let i = begin + 1; i < end; i++)
    if (data.live[i] > data.live[found])
      found = i;
  return found;
}

function peakOf(begin, end) {
  const first = Math.ceil(begin / group), last = Math.floor(end / group);
  if (first >= last)
    return peakByScan(begin, end);
  let found = begin < first * group ? peakByScan(begin, first * group) : groupPeaks[first];
  for (let i = first; i < last; i++)
    if (data.live[groupPeaks[i]] > data.live[found])
      found = groupPeaks[i];
  if (last * group < end) {
    const rest = peakByScan(last * group, end);
    if (data.live[rest] > data.live[found])
      found = rest;
  }
  return found;
}

// The first moment at the time or later.
function momentFrom(time) {
  let low = 0, high = data.time.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (data.time[middle] < time)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Calls visit with each block that is live at some moment from first to last.
function eachBlock(first, last, visit) {
  for (let base = 0; base < data.size.length && data.begin[base] <= last; base += group) {
    if (groupEnds[base / group] <= first)
      continue;
    const end = Math.min(data.size.length, base + group);
    for (let i = base; i < end && data.begin[i] <= last; i++)
      if (data.end[i] > first)
        visit(i);
  }
}

// Those that are live after the moment, the oldest first.
function liveAt(moment) {
  const found = [];
  eachBlock(moment, moment, (block) => found.push(block));
  return found;
}

function extent(block) {
  return Math.max(1, Math.ceil(data.size[block] / header.granularity)) * header.granularity;
}

// The last span that begins at the position or before.
function spanAt(position) {
  let low = 0, high = spanStarts.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (spanStarts[middle] <= position)
      low = middle;
    else
      high = middle;
  }
  return low;
}

function addressText(position) {
  const span = spanAt(position);
  return '0x' + (BigInt(header.spans[span][0]) + BigInt(Math.floor(position - spanStarts[span]))).toString(16);
}

let spanStarts, positions; // where the spans begin, and the bytes of all

function spansMake() {
  positions = 0;
  spanStarts = header.spans.map((span) => {
    positions += span[1];
    return positions - span[1];
  });
  positions = Math.max(1, positions);
}

// ---- Layers ---------------------------------------------------------------------------------------------------------

const layersMost = 10, momentsKept = 512, pathEnds = 16;

// Of each path of ranges: the name of its innermost one, that of the outermost one, that of the range which an
// allocation is for, and a number that paths of the same names share.  A path comes after the one around it.
let paths;

function pathsMake() {
  const numbers = new Map();
  paths = [{name: '', outermost: '', purpose: '', number: 0}];
  for (const [around, text] of header.paths.slice(1)) {
    const outer = paths[around];
    // A name ends where details follow that differ each time.
    const name = header.texts[text].replace(/, [a-z_]+ = [^]*/, ''), key = outer.number + ' ' + name;
    if (!numbers.has(key))
      numbers.set(key, numbers.size + 1);
    // PyTorch has ranges inside others that only allocate.
    const allocates = /^aten::(empty|new_empty|resize)/.test(name);
    paths.push({name, outermost: around === 0 ? name : outer.outermost, purpose: allocates ? outer.purpose : name,
                number: numbers.get(key)});
  }
}

// The names of a path, the outermost first.  Of many, those in the middle are left out.
function pathText(id) {
  const names = [];
  for (; id !== 0; id = header.paths[id][0])
    names.push(paths[id].name);
  const left = names.length - 2 * pathEnds;
  if (left > 1)
    names.splice(pathEnds, left, '… ' + left + ' more …');
  return names.reverse().join(' > ');
}

// What blocks can be told apart by: the part of a who, what it is called, and what is the same where the parts differ
// (key).
const functionName = (id) => (header.sites[id][0] || 'unknown call site').replace(/\+0x[0-9a-f]+$/, '');
const rangeName = (id) => paths[id].purpose || phaseName(id), phaseName = (id) => paths[id].outermost || 'no range';
const choices = {
  site: {title: 'call site', part: 0, name: (id) => header.sites[id][0] || 'unknown call site',
         key: (id) => header.sites[id].join(' ')}, // the same place may stand there twice
  function: {title: 'function', part: 0, name: functionName, key: functionName},
  range: {title: 'range', part: 6, name: rangeName, key: rangeName},
  phase: {title: 'outermost range', part: 6, name: phaseName, key: phaseName},
  ranges: {title: 'all ranges', part: 6, name: (id) => pathText(id) || 'no range', key: (id) => paths[id].number},
  thread: {title: 'thread', part: 1, name: (id) => header.threads[id] || 'thread ' + (id + 1)},
  stream: {title: 'stream', part: 2, name: (id) => id === 0 ? 'no stream' : 'stream ' + header.streams[id - 1]},
  tag: {title: 'tag', part: 3, name: (id) => id === 0 ? 'no tag' : header.texts[id]},
  context: {title: 'context', part: 4, name: (id) => (header.created[id] ? 'created pool ' : 'context ') + id},
  device: {title: 'device', part: 5, name: (id) => 'device ' + id},
};

let choice = 'site';
let groups;      // {name, title, peakBytes, peakCount, bytes: ever, layer}, the largest at the peak first
let groupOfWho;  // an index of groups
let layerOfWho;  // 0 to layerCount - 1; the last one may be that of all others
let layerCount, hasOthers;
let kept;        // bytes of each layer before every momentsKept-th moment, one after the other

function groupsMake() {
  const {part, name, key: keyOf = (id) => id} = choices[choice], byKey = new Map();
  const keys = header.whos.map((who) => {
    const id = who[part], key = keyOf(id);
    if (!byKey.has(key))
      byKey.set(key, {get name() { return name(id); }, title: choice === 'site' ? header.sites[id][1] + ' ' + header.sites[id][2] : '',
                      peakBytes: 0, peakCount: 0, bytes: 0});
    return byKey.get(key);
  });
  for (let i = 0; i < data.size.length; i++) {
    const found = keys[data.who[i]];
    found.bytes += data.size[i];
    if (data.begin[i] <= peak && peak < data.end[i]) {
      found.peakBytes += data.size[i];
      found.peakCount++;
    }
  }
  groups = [...byKey.values()].sort((a, b) => b.peakBytes - a.peakBytes || b.bytes - a.bytes);
  hasOthers = groups.length > layersMost;
  layerCount = Math.min(groups.length, layersMost);
  groups.forEach((found, i) => {
    found.index = i;
    found.layer = Math.min(i, layersMost - 1);
  });
  groupOfWho = Uint32Array.from(keys, (found) => found.index);
  layerOfWho = Uint8Array.from(keys, (found) => found.layer);
}

function layersStep(sums, moment) {
  const kind = data.kind[moment];
  if (kind === kinds.allocate)
    sums[layerOfWho[data.who[data.subject[moment]]]] += data.size[data.subject[moment]];
  else if (kind === kinds.free)
    sums[layerOfWho[data.who[data.subject[moment]]]] -= data.size[data.subject[moment]];
}

function layersMake() {
  groupsMake();
  const sums = new Float64Array(layerCount);
  kept = new Float64Array((Math.floor(data.time.length / momentsKept) + 1) * layerCount);
  for (let i = 0; i <= data.time.length; i++) {
    if (i % momentsKept === 0)
      kept.set(sums, i / momentsKept * layerCount);
    if (i < data.time.length)
      layersStep(sums, i);
  }
}

// The sums after a moment, or before all for -1.
function layersAt(moment) {
  const from = Math.floor((moment + 1) / momentsKept), sums = kept.slice(from * layerCount, (from + 1) * layerCount);
  for (let i = from * momentsKept; i <= moment; i++)
    layersStep(sums, i);
  return sums;
}

const layerName = (layer) => hasOthers && layer === layersMost - 1 ?
  plural(groups.length - layersMost + 1, 'other ' + choices[choice].title) : groups[layer].name;

// ---- What is shown --------------------------------------------------------------------------------------------------

const gutter = 112, margin = 12; // left and right of all charts
const whole = {from: 0, to: 1};
const view = {from: 0, to: 1};
const mapView = {from: 0, to: 1};
const cursor = {moment: -1, time: 0};
let colours;
let columns; // of the charts: {moments, width}

function coloursRead() {
  const style = getComputedStyle(root), read = (name) => style.getPropertyValue('--' + name).trim();
  colours = {layers: [], pixels: []};
  for (const name of ['paper', 'ink', 'soft', 'line', 'card', 'accent', 'alarm', 'hole', 'idle'])
    colours[name] = read(name);
  for (let i = 0; i < layersMost; i++) {
    const colour = read('layer' + i), value = parseInt(colour.slice(1), 16);
    colours.layers.push(colour);
    colours.pixels.push(0xff000000 | (value & 255) << 16 | value & 0xff00 | value >> 16);
  }
  colours.font = '11px system-ui, sans-serif';
}

// A canvas with a point for each pixel of the screen; width and height are those of the page.
function surface(id) {
  const canvas = byId(id), ratio = window.devicePixelRatio || 1;
  const height = Number(canvas.dataset.height || canvas.getAttribute('height'));
  canvas.dataset.height = height;
  const width = Math.max(gutter + margin + 50, Math.floor(canvas.parentElement.clientWidth));
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + 'px';
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = colours.font;
  context.textBaseline = 'middle';
  return {canvas, context, ratio, width, height, plot: width - gutter - margin};
}

const xOf = (time, plot) => gutter + (time - view.from) / (view.to - view.from) * plot;

// For each column of pixels the moment that stands for it, the one at which most is live; -1 before the first.
function columnsMake(plot) {
  const width = Math.max(1, Math.floor(plot)), moments = new Int32Array(width);
  let begin = momentFrom(view.from);
  for (let x = 0; x < width; x++) {
    const end = momentFrom(view.from + (view.to - view.from) * (x + 1) / width);
    moments[x] = end > begin ? peakOf(begin, end) : begin - 1;
    begin = end;
  }
  columns = {moments, width};
}

// ---- Axes -----------------------------------------------------------------------------------------------------------

function timeTicks(plot) {
  const least = (view.to - view.from) / Math.max(2, plot / 110), power = 10 ** Math.floor(Math.log10(least));
  const step = Math.max(1, [1, 2, 5, 10].map((digit) => digit * power).find((candidate) => candidate >= least));
  const [scale, unit] = timeUnits.find((candidate) => view.to >= candidate[0]) || [1, 'ns'];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9)), ticks = [];
  for (let i = Math.ceil(view.from / step); i * step <= view.to && ticks.length < 100; i++)
    ticks.push({time: i * step, text: (i * step / scale).toFixed(digits) + ' ' + unit});
  return ticks;
}

function drawTimeAxis({context, plot, height}, bottom, labels) {
  context.strokeStyle = colours.line;
  context.fillStyle = colours.soft;
  context.textAlign = 'center';
  context.lineWidth = 1;
  let free = gutter - 40;
  for (const tick of timeTicks(plot)) {
    const x = Math.round(xOf(tick.time, plot)) + 0.5, half = context.measureText(tick.text).width / 2;
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, bottom);
    context.stroke();
    if (labels && x - half > free && x + half < gutter + plot + margin) {
      context.fillText(tick.text, x, height - 8);
      free = x + half + 8;
    }
  }
}

// Ticks at multiples of a power of two.
function drawBytesAxis({context, plot}, most, top, bottom) {
  let step = 1;
  while (most / step > (bottom - top) / 36)
    step *= 2;
  context.textAlign = 'right';
  context.lineWidth = 1;
  for (let bytes = 0; bytes <= most; bytes += step) {
    const y = Math.round(bottom - bytes / most * (bottom - top)) + 0.5;
    context.strokeStyle = colours.line;
    context.beginPath();
    context.moveTo(gutter, y);
    context.lineTo(gutter + plot, y);
    context.stroke();
    context.fillStyle = colours.soft;
    context.fillText(bytesText(bytes), gutter - 8, y);
  }
}

// ---- Charts ---------------------------------------------------------------------------------------------------------

// A stepped area or line: y of each column, from left to right.
function steps(context, ys, begin) {
  for (let x = begin; x < ys.length; x++) {
    context.lineTo(gutter + x, ys[x]);
    context.lineTo(gutter + x + 1, ys[x]);
  }
}

function drawArea(context, ys, base, colour) {
  context.fillStyle = colour;
  context.beginPath();
  context.moveTo(gutter, base);
  steps(context, ys, 0);
  context.lineTo(gutter + ys.length, base);
  context.fill();
}

function drawLine(context, ys, colour, dash) {
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  context.setLineDash(dash);
  context.beginPath();
  steps(context, ys, 0);
  context.stroke();
  context.setLineDash([]);
}

function drawOverview() {
  const chart = surface('overview'), {context, plot, height} = chart, bottom = height - 4;
  const most = Math.max(1, peak < 0 ? 0 : data.live[peak]);
  context.fillStyle = colours.card;
  context.fillRect(gutter, 0, plot, height);
  context.fillStyle = colours.idle;
  let begin = 0, last = 0;
  for (let x = 0; x < plot; x++) {
    const end = momentFrom(whole.to * (x + 1) / plot);
    const live = end > begin ? data.live[peakOf(begin, end)] : last;
    const top = live / most * (bottom - 4);
    context.fillRect(gutter + x, bottom - top, 1.2, top);
    last = end > 0 ? data.live[end - 1] : 0;
    begin = end;
  }
  const left = gutter + view.from / whole.to * plot, width = Math.max(3, (view.to - view.from) / whole.to * plot);
  context.strokeStyle = colours.accent;
  context.lineWidth = 2;
  context.strokeRect(left, 1, width, height - 2);
  context.fillStyle = colours.soft;
  context.textAlign = 'right';
  context.fillText('whole record', gutter - 8, height / 2);
}

let memoryScale; // of the chart as it is drawn

function drawMemory() {
  const chart = surface('memory'), {context, plot, height} = chart, top = 8, bottom = height - 18;
  columnsMake(plot);
  const {moments, width} = columns, ys = [], takenYs = new Float64Array(width);
  let most = 1, hasTaken = false;
  for (let x = 0; x < width; x++)
    if (moments[x] >= 0)
      most = Math.max(most, data.live[moments[x]], data.taken[moments[x]]);
  most *= 1.04;
  memoryScale = {most, top, bottom};
  drawTimeAxis(chart, bottom, true);
  drawBytesAxis(chart, most, top, bottom);
  for (let layer = 0; layer < layerCount; layer++)
    ys.push(new Float64Array(width));
  const scale = (bottom - top) / most;
  let sums = layersAt(-1), at = -1;
  for (let x = 0; x < width; x++) {
    const moment = moments[x];
    if (moment > at + momentsKept || moment < at)
      sums = layersAt(moment);
    else
      for (at++; at <= moment; at++)
        layersStep(sums, at);
    at = moment;
    for (let layer = 0, sum = 0; layer < layerCount; layer++)
      ys[layer][x] = bottom - (sum += sums[layer]) * scale;
    takenYs[x] = bottom - (moment < 0 ? 0 : data.taken[moment]) * scale;
    hasTaken = hasTaken || takenYs[x] < bottom;
  }
  for (let layer = layerCount - 1; layer >= 0; layer--)
    drawArea(context, ys[layer], bottom, colours.layers[layer]);
  if (hasTaken)
    drawLine(context, takenYs, colours.ink, [5, 3]);
  drawRefusals(context, plot, bottom);
}

function drawRefusals(context, plot, bottom) {
  context.fillStyle = colours.alarm;
  let before = -1;
  for (const refusal of data.refusals) {
    const x = Math.round(xOf(data.time[refusal.moment], plot));
    if (x !== before && x >= gutter && x <= gutter + plot)
      context.fillRect(x - 1, bottom - 8, 2, 12);
    before = x;
  }
}

// For each moment from the view's first to its last the first column that stands for it or a later one.
function columnsOfMoments(first, last) {
  const found = new Int32Array(last - first + 1);
  for (let x = 0, moment = first; x <= columns.width; x++) {
    const end = x < columns.width ? columns.moments[x] : last;
    for (; moment <= end; moment++)
      found[moment - first] = x;
  }
  return found;
}

// Calls visit with each cell, of count, that an interval touches, and with the part of the cell that it covers.  Long
// intervals end a cell early, so that there is a line between two that touch.
function eachCell(from, to, count, visit) {
  const end = Math.min(count, to - from > 6 ? to - 1 : to);
  for (let cell = Math.max(0, Math.floor(from)); cell < end; cell++)
    visit(cell, Math.min(end, cell + 1) - Math.max(from, cell));
}

// Colours pixels.  Those of which only parts are covered become as opaque as the sum of the parts, but never invisible.
function paint(pixels, begin, end, colour, part) {
  if (part > 0.99) {
    pixels.fill(colour, begin, end);
    return;
  }
  const more = Math.round(255 * part), faintest = 50;
  for (let i = begin; i < end; i++)
    pixels[i] = Math.max(faintest, Math.min(255, (pixels[i] >>> 24) + more)) << 24 | colour & 0xffffff;
}

// A column has the blocks that are live at its moment, so those that come and go between two columns are not drawn.
function drawAddresses() {
  const chart = surface('addresses'), {context, ratio, plot, height} = chart, bottom = height - 18;
  const {width, moments} = columns, rows = Math.max(1, Math.floor(bottom * ratio));
  const image = context.createImageData(width, rows), pixels = new Uint32Array(image.data.buffer);
  const perByte = rows / positions, first = Math.max(0, moments[0]), last = moments[width - 1];
  const columnOf = columnsOfMoments(first, Math.max(first, last));
  const column = (moment) => moment <= first ? columnOf[0] : moment > last ? width : columnOf[moment - first];
  eachBlock(first, last, (block) => {
    const x0 = column(data.begin[block]), x1 = column(data.end[block]), from = data.position[block] * perByte;
    if (x0 < x1)
      eachCell(from, from + extent(block) * perByte, rows, (row, part) => {
        const line = (rows - 1 - row) * width;
        paint(pixels, line + x0, line + x1, colours.pixels[layerOfWho[data.who[block]]], part);
      });
  });
  context.fillStyle = colours.hole;
  context.fillRect(gutter, 0, plot, bottom);
  drawImage(context, image, gutter, 0, width, bottom);
  drawTimeAxis(chart, 0, true);
  drawSpans(chart, bottom);
}

// Over what is there: putImageData alone would replace it.
const scratch = document.createElement('canvas');
function drawImage(context, image, left, top, width, height) {
  scratch.width = image.width;
  scratch.height = image.height;
  scratch.getContext('2d').putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(scratch, left, top, width, height);
}

function drawSpans({context, plot}, bottom) {
  let free = bottom + 14;
  context.textAlign = 'right';
  for (let i = 0; i < spanStarts.length; i++) {
    const y = bottom - spanStarts[i] / positions * bottom;
    if (i > 0) {
      context.fillStyle = colours.ink;
      context.fillRect(gutter, Math.round(y), plot, 1);
    }
    if (y < free - 12) {
      context.fillStyle = colours.soft;
      context.fillText('0x' + BigInt(header.spans[i][0]).toString(16), gutter - 8, Math.max(6, y - 6));
      free = y;
    }
  }
}

const idleAt = (moment) => moment < 0 ? 0 : Math.max(0, data.taken[moment] - data.live[moment]);

function drawIdle() {
  const chart = surface('idle'), {context, plot, height} = chart, top = 8, bottom = height - 18;
  const {moments, width} = columns, idleYs = new Float64Array(width), holeYs = new Float64Array(width);
  let most = 1;
  for (const moment of moments)
    if (moment >= 0)
      most = Math.max(most, idleAt(moment), data.hole[moment]);
  most *= 1.04;
  for (let x = 0; x < width; x++) {
    idleYs[x] = bottom - idleAt(moments[x]) / most * (bottom - top);
    holeYs[x] = bottom - (moments[x] < 0 ? 0 : data.hole[moments[x]]) / most * (bottom - top);
  }
  drawTimeAxis(chart, bottom, true);
  drawBytesAxis(chart, most, top, bottom);
  drawArea(context, idleYs, bottom, colours.idle);
  drawLine(context, holeYs, colours.accent, []);
}

// ---- Phases ---------------------------------------------------------------------------------------------------------

const laneHeight = 18, lanesMost = 12, marksHeight = 18;
let lanes; // for a thread and a depth: {thread, depth, ranges}

function lanesMake() {
  const found = new Map();
  for (const range of data.ranges) {
    const key = range.thread + ' ' + range.depth;
    if (!found.has(key))
      found.set(key, {thread: range.thread, depth: range.depth, ranges: []});
    found.get(key).ranges.push(range);
  }
  lanes = [...found.values()].sort((a, b) => a.thread - b.thread || a.depth - b.depth);
  byId('phases-section').hidden = data.marks.length + data.ranges.length === 0;
  byId('phases').dataset.height =
    Math.min(lanes.length, lanesMost + 1) * laneHeight + (data.marks.length > 0 ? marksHeight : 0);
}

// The text, or as much of it as fits.
function fitText(context, text, width) {
  if (context.measureText(text).width <= width)
    return text;
  let length = Math.min(text.length, Math.floor(width / 4));
  while (length > 0 && context.measureText(text.slice(0, length) + '…').width > width)
    length--;
  return length > 0 ? text.slice(0, length) + '…' : '';
}

function drawPhases() {
  if (byId('phases-section').hidden)
    return;
  const chart = surface('phases'), {context, plot} = chart;
  context.save();
  context.textAlign = 'left';
  lanes.slice(0, lanesMost).forEach((lane, row) => {
    const y = row * laneHeight;
    if (row === 0 || lanes[row - 1].thread !== lane.thread) {
      context.fillStyle = colours.soft;
      context.fillText(fitText(context, choices.thread.name(lane.thread), gutter - 14), 0, y + laneHeight / 2);
    }
    let until = -Infinity; // what is narrower than a pixel and drawn already is left out
    lane.ranges.forEach((range, i) => {
      const left = Math.max(gutter, xOf(range.begin, plot)), right = Math.min(gutter + plot, xOf(range.end, plot));
      if (right < gutter || left > gutter + plot || right < until)
        return;
      until = Math.max(right, left + 1);
      context.fillStyle = i % 2 === 0 ? colours.idle : colours.line;
      context.fillRect(left, y + 1, Math.max(1, right - left), laneHeight - 2);
      if (right - left > 14) {
        context.fillStyle = colours.ink;
        context.fillText(fitText(context, range.text, right - left - 8), left + 4, y + laneHeight / 2);
      }
    });
  });
  if (lanes.length > lanesMost)
    context.fillText(plural(lanes.length - lanesMost, 'more lane'), gutter, (lanesMost + 0.5) * laneHeight);
  drawMarks(context, plot, Math.min(lanes.length, lanesMost + 1) * laneHeight);
  context.restore();
}

function drawMarks(context, plot, y) {
  let free = gutter, before = -1;
  const xs = data.marks.map((mark) => xOf(mark.time, plot));
  data.marks.forEach((mark, i) => {
    const x = xs[i];
    if (x < gutter - 1 || x > gutter + plot || Math.round(x) === before)
      return;
    before = Math.round(x);
    context.fillStyle = colours.accent;
    context.fillRect(x, y, 2, marksHeight);
    const next = i + 1 < xs.length ? Math.min(xs[i + 1], gutter + plot) : gutter + plot;
    const text = fitText(context, mark.text, next - x - 10);
    if (x >= free && next - x > 24 && text !== '') {
      context.fillStyle = colours.ink;
      context.fillText(text, x + 5, y + marksHeight / 2);
      free = x + 8 + context.measureText(text).width;
    }
  });
  if (data.marks.length > 0) {
    context.fillStyle = colours.soft;
    context.fillText('marks', 0, y + marksHeight / 2);
  }
}

// ---- The map of a moment --------------------------------------------------------------------------------------------

const mapRows = 12, mapRowHeight = 20;
let mapBlocks = []; // live at the cursor, by position

function mapMake() {
  mapBlocks = cursor.moment < 0 ? [] : liveAt(cursor.moment);
  mapBlocks.sort((a, b) => data.position[a] - data.position[b]);
}

function drawMap() {
  const chart = surface('map'), {context, ratio, plot} = chart;
  const width = Math.max(1, Math.floor(plot * ratio)), cells = width * mapRows;
  const perByte = cells / (mapView.to - mapView.from), rowBytes = (mapView.to - mapView.from) / mapRows;
  const image = context.createImageData(width, mapRows), pixels = new Uint32Array(image.data.buffer);
  for (const block of mapBlocks) {
    const from = (data.position[block] - mapView.from) * perByte, colour = colours.pixels[layerOfWho[data.who[block]]];
    eachCell(from, from + extent(block) * perByte, cells, (cell, part) => paint(pixels, cell, cell + 1, colour, part));
  }
  context.fillStyle = colours.hole;
  for (let row = 0; row < mapRows; row++)
    context.fillRect(gutter, row * mapRowHeight, plot, mapRowHeight - 4);
  context.textAlign = 'right';
  context.fillStyle = colours.soft;
  for (let row = 0; row < mapRows; row++) {
    const line = new ImageData(image.data.subarray(4 * row * width, 4 * (row + 1) * width), width, 1);
    drawImage(context, line, gutter, row * mapRowHeight, plot, mapRowHeight - 4);
    if (header.spans.length > 0)
      context.fillText(addressText(mapView.from + row * rowBytes), gutter - 8, (row + 0.5) * mapRowHeight - 2);
  }
  context.fillStyle = colours.ink;
  for (const start of spanStarts) {
    const cell = (start - mapView.from) / rowBytes;
    if (start > 0 && cell >= 0 && cell < mapRows)
      context.fillRect(gutter + cell % 1 * plot, Math.floor(cell) * mapRowHeight - 2, 1.5, mapRowHeight);
  }
}

// ---- Tables and words -----------------------------------------------------------------------------------------------

const rowsMost = 25, blocksMost = 15;

function swatch(layer) {
  const made = element('i', undefined, 'swatch');
  made.style.background = colours.layers[layer];
  return made;
}

function tableRow(table, cells) {
  const row = table.insertRow();
  for (const [text, className, layer, title] of cells) {
    const cell = row.insertCell();
    if (layer !== undefined)
      cell.append(swatch(layer));
    cell.append(text);
    if (className)
      cell.className = className;
    if (title)
      cell.title = title;
  }
}

function tableHead(table, titles) {
  table.textContent = '';
  const row = table.createTHead().insertRow();
  for (const [title, className] of titles) {
    const cell = element('th', title, className);
    cell.scope = 'col';
    row.append(cell);
  }
}

function drawHolders() {
  const now = groups.map(() => ({bytes: 0, count: 0})), timed = header.report === undefined;
  for (const block of mapBlocks) {
    const held = now[groupOfWho[data.who[block]]];
    held.bytes += data.size[block];
    held.count++;
  }
  const table = byId('holders'), most = peak < 0 ? 0 : data.live[peak];
  const titles = timed ? ['at the peak', 'share', 'blocks', 'at the cursor', 'blocks'] : ['bytes', 'share', 'segments'];
  tableHead(table, [[choices[choice].title], ...titles.map((title) => [title, 'n'])]);
  const body = table.createTBody();
  const shown = groups.filter((found, i) => i < rowsMost && (found.peakCount > 0 || now[i].count > 0));
  for (const found of shown) {
    const held = now[found.index];
    tableRow(body, [[found.name, 'name', found.layer, found.title], [bytesText(found.peakBytes), 'n'],
                    [shareText(found.peakBytes, most), 'n'], [countText(found.peakCount), 'n'],
                    ...timed ? [[bytesText(held.bytes), 'n'], [countText(held.count), 'n']] : []]);
  }
  const rest = groups.slice(rowsMost).filter((found) => found.peakCount > 0);
  const restBytes = rest.reduce((sum, found) => sum + found.peakBytes, 0);
  byId('holders-rest').textContent = rest.length === 0 ? '' :
    'And ' + plural(rest.length, 'more ' + choices[choice].title) + ' with ' + bytesText(restBytes) + '.';
}

function drawBlocks() {
  const table = byId('blocks'), timed = header.report === undefined;
  const largest = [...mapBlocks].sort((a, b) => data.size[b] - data.size[a] || a - b).slice(0, blocksMost);
  const timedTitles = timed ? [['allocated at', 'n'], ['lifetime', 'n'], ['thread'], ['stream'], ['tag']] : [];
  tableHead(table, [['size', 'n'], ['address'], ['call site'], ...timedTitles]);
  const body = table.createTBody();
  for (const block of largest) {
    const who = header.whos[data.who[block]];
    tableRow(body, [[bytesText(data.size[block]), 'n'], [addressText(data.position[block]), 'a'],
                    [choices.site.name(who[0]), 'name', choice === 'site' ? layerOfWho[data.who[block]] : undefined],
                    ...timed ? [[timeText(data.time[data.begin[block]]), 'n'], [lifetimeText(block), 'n'],
                                [choices.thread.name(who[1])], [who[2] === 0 ? '' : header.streams[who[2] - 1]],
                                [who[3] === 0 ? '' : header.texts[who[3]]]] : []]);
  }
}

function lifetimeText(block) {
  const begin = data.time[data.begin[block]], freed = data.end[block] < data.time.length;
  return freed ? timeText(data.time[data.end[block]] - begin) : 'not freed';
}

function blockText(block) {
  const who = header.whos[data.who[block]];
  const size = bytesText(data.size[block]) + ' (' + countText(data.size[block]) + ' B)';
  const lines = [choices.site.name(who[0]), size + ' at ' + addressText(data.position[block])];
  if (header.report === undefined) {
    lines.push('allocated at ' + timeText(data.time[data.begin[block]]) + ', ' +
               (data.end[block] < data.time.length ? 'lives ' : '') + lifetimeText(block));
    const parts = [choices.thread.name(who[1]), choices.stream.name(who[2])];
    if (who[3] !== 0)
      parts.push('tag ' + header.texts[who[3]]);
    if (header.whos.some((other) => other[4] !== who[4]))
      parts.push(choices.context.name(who[4]) + ' on device ' + who[5]);
    lines.push(parts.join(', '));
    if (who[6] !== 0)
      lines.push('in ' + pathText(who[6]));
  }
  return lines.join('\n');
}

function drawLegend() {
  const legend = byId('legend');
  legend.textContent = '';
  for (let layer = 0; layer < layerCount; layer++) {
    const item = element('span');
    item.append(swatch(layer), element('b', layerName(layer)));
    item.title = layerName(layer);
    legend.append(item);
  }
  if (data.taken.some((bytes) => bytes > 0)) {
    const item = element('span');
    item.append(element('i', undefined, 'dash'), element('b', 'taken of the driver'));
    legend.append(item);
  }
}

function fact(title, value, more) {
  const pair = element('div'), dd = element('dd', value);
  if (more)
    dd.append(element('small', ' ' + more));
  pair.append(element('dt', title), dd);
  byId('facts').append(pair);
}

function drawFacts() {
  const blocks = data.size.length, freed = data.end.reduce((sum, end) => sum + (end < data.time.length ? 1 : 0), 0);
  const most = data.taken.reduce((sum, bytes) => Math.max(sum, bytes), 0);
  const refusedMost = data.refusals.reduce((sum, refusal) => Math.max(sum, refusal.size), 0);
  fact('most in use', bytesText(peak < 0 ? 0 : data.live[peak]), peak < 0 ? '' : 'after ' + timeText(data.time[peak]));
  if (most > 0)
    fact('most taken of the driver', bytesText(most),
         peak < 0 ? '' : (most / data.live[peak]).toFixed(2) + ' times what was in use');
  fact('allocations', countText(blocks));
  fact('not freed', countText(blocks - freed), freed < blocks ? bytesText(data.live[lastMoment]) : '');
  if (data.refusals.length > 0)
    fact('refused', countText(data.refusals.length), 'the largest ' + bytesText(refusedMost));
  fact('duration', timeText(header.end));
  fact('call sites', countText(header.sites.length));
  fact('threads', countText(header.threads.length));
  root.dataset.allocations = blocks;
  root.dataset.freed = freed;
  root.dataset.refused = data.refusals.length;
  root.dataset.takenMost = most;
  root.dataset.peakBytes = peak < 0 ? 0 : data.live[peak];
  root.dataset.peakTime = peak < 0 ? 0 : data.time[peak];
}

function drawReportFacts() {
  const report = header.report;
  fact('in use', bytesText(report.used_bytes), 'asked for as ' + bytesText(report.requested_bytes));
  fact('waits for the GPU', bytesText(report.waiting_bytes));
  fact('free', bytesText(report.free_bytes), 'the largest hole ' + bytesText(report.largest_free_bytes));
  fact('external fragmentation', (100 * report.external_fragmentation).toFixed(1) + ' %');
  fact('held', bytesText(report.reserved_bytes), 'of at most ' + bytesText(report.limit_bytes));
  fact('source, reuse', report.source + ', ' + report.reuse);
}

function drawWarnings() {
  const texts = [];
  if (header.cut)
    texts.push('The end of the record is missing: the program runs on, or was killed. This is what it had written.');
  if (header.unknownFrees > 0)
    texts.push(plural(header.unknownFrees, 'free') + ' of blocks that are not in the record: left out.');
  if (header.lost > 0)
    texts.push(plural(header.lost, 'event') + ' were lost, because the host had no memory for them.');
  if (data.time.length === 0)
    texts.push(header.report === undefined ? 'The record has no allocations.' : 'The pool holds no memory in use.');
  for (const text of texts)
    byId('warnings').append(element('li', text));
  byId('warnings').hidden = texts.length === 0;
}

// ---- The cursor -----------------------------------------------------------------------------------------------------

function cursorPlace() {
  const line = byId('cursor'), plot = byId('charts').clientWidth - gutter - margin, x = xOf(cursor.time, plot);
  line.hidden = x < gutter - 1 || x > gutter + plot + 1;
  line.style.left = x + 'px';
  line.className = x > gutter + plot / 2 ? 'left' : '';
}

// Shows a moment; time: where the cursor stands, if that is not when the moment is.
function cursorSet(moment, time) {
  cursor.moment = Math.max(-1, Math.min(lastMoment, moment));
  cursor.time = time !== undefined ? time : cursor.moment < 0 ? 0 : data.time[cursor.moment];
  schedule(false);
}

function drawCursor() {
  const {moment} = cursor, live = moment < 0 ? 0 : data.live[moment], hole = moment < 0 ? 0 : data.hole[moment];
  mapMake();
  drawMap();
  drawHolders();
  drawBlocks();
  const blocks = plural(mapBlocks.length, 'block'), idle = idleAt(moment);
  byId('map-now').textContent = header.report ?
    bytesText(live) + ' in ' + plural(mapBlocks.length, 'segment') + ' that are not free' :
    'at ' + timeText(cursor.time) + ': ' + bytesText(live) + ' in ' + blocks + ' in use';
  Object.assign(root.dataset, {cursorTime: cursor.time, cursorBytes: live, cursorBlocks: mapBlocks.length,
                               cursorHole: hole, cursorTaken: moment < 0 ? 0 : data.taken[moment]});
  if (header.report)
    return;
  cursorPlace();
  byId('cursor').firstChild.textContent = timeText(cursor.time);
  byId('memory-now').textContent = 'at the cursor ' + bytesText(live) + ' in ' + blocks;
  byId('idle-now').textContent =
    'at the cursor ' + (idle > 0 ? bytesText(idle) + ' not in use, ' : '') + 'the largest hole ' + bytesText(hole);
  byId('blocks-title').textContent = 'Largest blocks at the cursor, ' + timeText(cursor.time);
  const charts = byId('charts');
  charts.setAttribute('aria-valuenow', cursor.time);
  charts.setAttribute('aria-valuetext', timeText(cursor.time) + ': ' + bytesText(live) + ' in ' + blocks + ' in use');
}

// ---- Drawing --------------------------------------------------------------------------------------------------------

let scheduled = false, chartsStale = true, cursorStale = true;

function schedule(charts) {
  chartsStale = chartsStale || charts;
  cursorStale = true;
  if (!scheduled)
    requestAnimationFrame(draw);
  scheduled = true;
}

function draw() {
  scheduled = false;
  if (chartsStale && header.report === undefined) {
    drawOverview();
    drawPhases();
    drawMemory();
    drawAddresses();
    drawIdle();
    cursorPlace();
  }
  if (cursorStale)
    drawCursor();
  chartsStale = cursorStale = false;
}

function viewSet(from, to) {
  const least = Math.min(whole.to, 100), span = Math.max(least, Math.min(whole.to, to - from));
  view.from = Math.max(0, Math.min(whole.to - span, from));
  view.to = view.from + span;
  root.dataset.view = view.from + ' ' + view.to;
  chartsStale = true;
  if (!scheduled)
    requestAnimationFrame(draw);
  scheduled = true;
}

function zoom(factor, around) {
  const at = Math.max(view.from, Math.min(view.to, around));
  viewSet(at - (at - view.from) * factor, at + (view.to - at) * factor);
}

function recolour() {
  layersMake();
  coloursRead();
  drawLegend();
  byId('holders-title').textContent =
    (header.report ? 'Who holds the memory' : 'The peak explained') + ', by ' + choices[choice].title;
  schedule(true);
}

// ---- Input ----------------------------------------------------------------------------------------------------------

function tipShow(event, text) {
  const tip = byId('tip');
  tip.hidden = text === '';
  tip.textContent = text;
  const right = event.clientX + 16 + tip.offsetWidth < window.innerWidth;
  const below = event.clientY + 16 + tip.offsetHeight < window.innerHeight;
  tip.style.left = Math.max(4, right ? event.clientX + 16 : event.clientX - 12 - tip.offsetWidth) + 'px';
  tip.style.top = Math.max(4, below ? event.clientY + 16 : event.clientY - 12 - tip.offsetHeight) + 'px';
}

const inCanvas = (event, id) => {
  const box = byId(id).getBoundingClientRect();
  return {x: event.clientX - box.left, y: event.clientY - box.top, plot: box.width - gutter - margin};
};

const timeAt = ({x, plot}) => view.from + (x - gutter) / plot * (view.to - view.from);
const columnAt = ({x}) => Math.max(0, Math.min(columns.width - 1, Math.floor(x - gutter)));

// What lies under a point of the chart of memory: the layer by its sums, and in it the block by its age.
function memoryTip(point) {
  const moment = columns.moments[columnAt(point)];
  const {most, top, bottom} = memoryScale, bytes = (bottom - point.y) / (bottom - top) * most;
  if (moment < 0 || point.x < gutter)
    return '';
  const sums = layersAt(moment), when = timeText(data.time[moment]) + ': ' + bytesText(data.live[moment]) + ' in use';
  let layer = 0, below = 0;
  while (layer < layerCount && below + sums[layer] <= bytes)
    below += sums[layer++];
  if (bytes < 0 || layer === layerCount)
    return when + (data.taken[moment] > 0 ? '\n' + bytesText(data.taken[moment]) + ' taken of the driver' : '') +
      refusalText(point);
  let found = -1, count = 0;
  for (const block of liveAt(moment))
    if (layerOfWho[data.who[block]] === layer) {
      count++;
      if (found < 0 && bytes < below + data.size[block])
        found = block;
      else if (found < 0)
        below += data.size[block];
    }
  return layerName(layer) + ': ' + bytesText(sums[layer]) + ' in ' + plural(count, 'block') + '\nat ' + when +
    (found < 0 ? '' : '\n\nThe block here:\n' + blockText(found));
}

function refusalText(point) {
  const near = data.refusals.find((refusal) => Math.abs(xOf(data.time[refusal.moment], point.plot) - point.x) < 4);
  return near === undefined ? '' :
    '\nrefused: ' + bytesText(near.size) + ' to ' + choices.site.name(header.whos[near.who][0]);
}

function addressesTip(point) {
  const bottom = Number(byId('addresses').dataset.height) - 18, position = (bottom - point.y) / bottom * positions;
  if (point.x < gutter || position < 0 || data.size.length === 0)
    return '';
  const perPixel = positions / bottom, time = timeAt(point);
  const moment = momentFrom(time + (view.to - view.from) / point.plot / 2) - 1;
  let found = -1, distance = perPixel;
  if (moment >= 0)
    eachBlock(moment, moment, (block) => {
      const off = Math.max(data.position[block] - position, position - data.position[block] - extent(block), 0);
      if (off < distance) {
        found = block;
        distance = off;
      }
    });
  return found < 0 ? timeText(time) + '\nnot in use near ' + addressText(position) : blockText(found);
}

function phasesTip(point) {
  const row = Math.floor(point.y / laneHeight), lane = row < lanesMost ? lanes[row] : undefined, time = timeAt(point);
  const pixel = (view.to - view.from) / point.plot, near = 4 * pixel;
  const range = lane && lane.ranges.find(({begin, end}) => begin - pixel <= time && time <= end + pixel);
  if (range)
    return {range, text: range.text + '\n' + timeText(range.end - range.begin) + ' from ' + timeText(range.begin) +
                         ', ' + choices.thread.name(range.thread)};
  const mark = lane ? undefined : data.marks.find((candidate) => Math.abs(candidate.time - time) <= near);
  return {text: mark ? mark.text + '\nat ' + timeText(mark.time) + ', ' + choices.thread.name(mark.thread) : ''};
}

function idleTip(point) {
  const moment = columns.moments[columnAt(point)];
  if (moment < 0 || point.x < gutter)
    return '';
  const idle = idleAt(moment), hole = data.hole[moment];
  const lines = [timeText(data.time[moment]), 'the largest hole: ' + bytesText(hole)];
  if (idle > 0)
    lines.push('taken and not in use: ' + bytesText(idle), 'fragmentation: ' + shareText(idle - hole, idle));
  return lines.join('\n');
}

// The last live block that begins at the position or before.
function mapFind(position) {
  let low = 0, high = mapBlocks.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (data.position[mapBlocks[middle]] <= position)
      low = middle + 1;
    else
      high = middle;
  }
  return low - 1;
}

const mapPosition = ({x, y, plot}) =>
  mapView.from + (Math.floor(y / mapRowHeight) + (x - gutter) / plot) / mapRows * (mapView.to - mapView.from);

function mapTip(point) {
  if (point.x < gutter || point.x > gutter + point.plot || header.spans.length === 0)
    return '';
  const position = mapPosition(point), at = mapFind(position);
  const slack = (mapView.to - mapView.from) / mapRows / point.plot;
  const end = (block) => data.position[block] + extent(block);
  if (at >= 0 && position < end(mapBlocks[at]) + slack)
    return blockText(mapBlocks[at]);
  if (at + 1 < mapBlocks.length && data.position[mapBlocks[at + 1]] < position + slack)
    return blockText(mapBlocks[at + 1]);
  const span = spanAt(position), next = at + 1 < mapBlocks.length ? data.position[mapBlocks[at + 1]] : Infinity;
  const from = Math.max(spanStarts[span], at < 0 ? 0 : end(mapBlocks[at]));
  const to = Math.min(spanStarts[span] + header.spans[span][1], next);
  return 'not in use: ' + bytesText(to - from) + '\nfrom ' + addressText(from);
}

// Calls move for each place of a drag, its first included.
function onDrag(id, move) {
  const canvas = byId(id);
  let dragging = null;
  canvas.addEventListener('pointerdown', (event) => {
    if (event.button !== 0)
      return;
    canvas.setPointerCapture(event.pointerId);
    dragging = inCanvas(event, id);
    move(dragging, null);
  });
  canvas.addEventListener('pointermove', (event) => {
    if (dragging !== null) {
      const point = inCanvas(event, id);
      move(point, dragging);
      dragging = point;
    }
  });
  for (const name of ['pointerup', 'pointercancel'])
    canvas.addEventListener(name, () => { dragging = null; });
}

function onHover(id, tip) {
  byId(id).addEventListener('pointermove', (event) => tipShow(event, tip(inCanvas(event, id))));
  byId(id).addEventListener('pointerleave', () => { byId('tip').hidden = true; });
}

// turn answers whether there was something to do: otherwise, and left of the chart, the wheel scrolls the page.
function onWheel(id, turn) {
  byId(id).addEventListener('wheel', (event) => {
    const point = inCanvas(event, id);
    if (event.ctrlKey || point.x < gutter)
      return; // ctrl: the browser's own zoom
    const notches = (event.deltaY || event.deltaX) * (event.deltaMode === 1 ? 1 / 3 : 1 / 100);
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (turn(point, Math.max(-3, Math.min(3, notches)), sideways))
      event.preventDefault();
  }, {passive: false});
}

function timedInput() {
  const tips = {memory: memoryTip, addresses: addressesTip, idle: idleTip, phases: (point) => phasesTip(point).text};
  for (const id of Object.keys(tips)) {
    onHover(id, tips[id]);
    onDrag(id, (point) => {
      const moment = columns.moments[columnAt(point)];
      const time = Math.max(timeAt(point), moment < 0 ? 0 : data.time[moment]);
      cursorSet(moment, Math.max(view.from, Math.min(view.to, time)));
    });
    onWheel(id, (point, notches, sideways) => {
      const span = view.to - view.from, {from, to} = view;
      if (sideways)
        viewSet(view.from + notches * span / 8, view.to + notches * span / 8);
      else
        zoom(1.25 ** notches, timeAt(point));
      return view.from !== from || view.to !== to;
    });
  }
  onDrag('overview', ({x, plot}) => {
    const middle = (x - gutter) / plot * whole.to, half = (view.to - view.from) / 2;
    viewSet(middle - half, middle + half);
  });
  byId('phases').addEventListener('dblclick', (event) => {
    const {range} = phasesTip(inCanvas(event, 'phases'));
    if (range)
      viewSet(range.begin, range.end);
  });
}

function mapInput() {
  const mapSet = (from, span) => {
    mapView.from = Math.max(0, Math.min(positions - span, from));
    mapView.to = mapView.from + span;
    drawMap();
  };
  onHover('map', mapTip);
  onWheel('map', (point, notches) => {
    const at = mapPosition(point), before = mapView.to - mapView.from;
    const span = Math.min(positions, Math.max(Math.min(positions, 4096), before * 1.25 ** notches));
    mapSet(at - (at - mapView.from) * span / before, span);
    return span !== before;
  });
  onDrag('map', (point, before) => {
    if (before !== null)
      mapSet(mapView.from + mapPosition(before) - mapPosition(point), mapView.to - mapView.from);
  });
  byId('map').addEventListener('dblclick', () => mapSet(0, positions));
}

// Moves the window after the cursor.
function follow() {
  if (cursor.time < view.from || cursor.time > view.to)
    viewSet(cursor.time - (view.to - view.from) / 2, cursor.time + (view.to - view.from) / 2);
}

// To the moment that stands for the next column of pixels, or the one before.
function cursorStep(direction) {
  const column = Math.floor((cursor.time - view.from) / (view.to - view.from) * columns.width) + direction;
  if (column < 0 || column >= columns.width)
    viewSet(view.from + direction * (view.to - view.from) / 4, view.to + direction * (view.to - view.from) / 4);
  const time = Math.max(0, Math.min(whole.to, view.from + (column + 0.5) / columns.width * (view.to - view.from)));
  cursorSet(column >= 0 && column < columns.width ? columns.moments[column] : momentFrom(time) - 1, time);
}

const actions = {
  zoomIn: () => zoom(0.5, cursor.time),
  zoomOut: () => zoom(2, cursor.time),
  whole: () => viewSet(0, whole.to),
  previous: () => { cursorSet(cursor.moment - 1); follow(); },
  next: () => { cursorSet(cursor.moment + 1); follow(); },
  peak: () => { cursorSet(peak); follow(); },
  first: () => { cursorSet(0); follow(); },
  last: () => { cursorSet(lastMoment); follow(); },
  left: () => cursorStep(-1),
  right: () => cursorStep(1),
  pageLeft: () => viewSet(view.from - 0.75 * (view.to - view.from), view.to - 0.75 * (view.to - view.from)),
  pageRight: () => viewSet(view.from + 0.75 * (view.to - view.from), view.to + 0.75 * (view.to - view.from)),
};

const keys = {
  '+': 'zoomIn', '=': 'zoomIn', '-': 'zoomOut', '0': 'whole', p: 'peak', P: 'peak', Home: 'first', End: 'last',
  ArrowLeft: 'left', ArrowRight: 'right', PageUp: 'pageLeft', PageDown: 'pageRight',
};

function controls() {
  const buttons = {
    'zoom-in': 'zoomIn', 'zoom-out': 'zoomOut', whole: 'whole', previous: 'previous', next: 'next', 'to-peak': 'peak',
  };
  for (const id of Object.keys(buttons))
    byId(id).addEventListener('click', actions[buttons[id]]);
  byId('charts').addEventListener('keydown', (event) => {
    const step = event.shiftKey && {ArrowLeft: 'previous', ArrowRight: 'next'}[event.key];
    const action = step || keys[event.key];
    if (action === undefined || event.ctrlKey || event.altKey || event.metaKey)
      return;
    event.preventDefault();
    actions[action]();
  });
  for (const name of Object.keys(choices)) {
    const {part, name: nameOf, key = nameOf} = choices[name];
    if (name !== 'site' && new Set(header.whos.map((who) => key(who[part]))).size < 2)
      continue; // nothing to tell apart
    const option = element('option', choices[name].title);
    option.value = name;
    byId('by').append(option);
    // A library that allocates for others has one call site; then the ranges tell more.
    if (name === 'range' && new Set(header.whos.map((who) => functionName(who[0]))).size < 2)
      byId('by').value = choice = name;
  }
  byId('by').addEventListener('change', () => {
    choice = byId('by').value;
    recolour();
  });
}

// ---- Start ----------------------------------------------------------------------------------------------------------

// What the address of the page asks for, as in picture.html#at=1500000&from=0&to=2000000&by=thread; times are in ns.
function addressRead() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const number = (name, otherwise) => asked.has(name) ? Number(asked.get(name)) || 0 : otherwise;
  if (Object.hasOwn(choices, asked.get('by') || '')) {
    choice = asked.get('by');
    byId('by').value = choice;
  }
  viewSet(number('from', 0), number('to', whole.to));
  if (asked.has('at'))
    cursorSet(momentFrom(number('at', 0) + 1) - 1, Math.max(0, Math.min(whole.to, number('at', 0))));
  else
    cursorSet(peak);
  return asked;
}

// How long a redraw takes, for tests: the median of windows of several widths.
function measure() {
  const times = [];
  for (let i = 0; i < 15; i++) {
    const span = whole.to / 1.5 ** i, begin = performance.now();
    viewSet(whole.to / 3 - span / 2, whole.to / 3 + span / 2);
    chartsStale = cursorStale = true;
    draw();
    times.push(performance.now() - begin);
  }
  root.dataset.redrawTimes = times.map((time) => time.toFixed(1)).join(' ');
  root.dataset.redrawMs = times.sort((a, b) => a - b)[7].toFixed(1);
  viewSet(0, whole.to);
}

function start() {
  const begin = performance.now();
  header = JSON.parse(byId('header').textContent);
  const bytes = bytesOf(byId('data').textContent);
  byId('data').textContent = '';
  data = header.report ? unpackReport(header, bytes) : unpack(header, bytes);
  root.dataset.unpackMs = (performance.now() - begin).toFixed(1);
  lastMoment = data.time.length - 1;
  indexMake();
  peak = header.report ? lastMoment : data.time.length > 0 ? peakOf(0, data.time.length) : -1;
  if (peak >= 0 && data.live[peak] === 0 && !header.report)
    peak = -1;
  spansMake();
  pathsMake();
  mapView.to = positions;
  whole.to = view.to = header.end + Math.max(1, header.end / 200);
  byId('cursor').append(element('span'));
  byId('command').textContent = header.command;
  document.title = header.report ? 'Memory of a pool' : 'Memory of ' + (header.command || 'a program');
  byId('title').textContent = header.report ? 'Memory of a pool' : 'Memory over time';
  byId('timed').hidden = byId('help-timed').hidden = header.report !== undefined;
  for (const [name, value] of [['min', 0], ['max', header.end]])
    byId('charts').setAttribute('aria-value' + name, value);
  (header.report ? drawReportFacts : drawFacts)();
  drawWarnings();
  lanesMake();
  controls();
  layersMake();
  if (!data.taken.some((taken) => taken > 0))
    byId('idle-title').textContent = 'The largest hole';
  const asked = addressRead();
  recolour();
  timedInput();
  mapInput();
  draw();
  root.dataset.firstDrawMs = (performance.now() - begin).toFixed(1);
  if (asked.has('measure'))
    measure();
  window.addEventListener('resize', () => schedule(true));
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', recolour);
  root.dataset.state = 'drawn';
}

try {
  start();
} catch (error) {
  trouble(error.message);
  throw error;
}
})();
